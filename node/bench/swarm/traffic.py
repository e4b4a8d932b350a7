"""What is said in a simulated swarm, in bytes of real payloads."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What the honest nodes sent, in bytes of payload."""

    published: int = 0
    """Each payload once."""
    sent: int = 0
    """Each payload once for every neighbour that took it."""
    peak: int = 0
    """The largest that a node published at once."""
    refused: Counter[str] = field(default_factory=Counter)
    """Payloads refused, liars' included, by reason."""

    def count(self, size: int, receivers: int) -> None:
        """Count one payload of `size` bytes that was published, and received by so many."""
        self.published += size
        self.sent += size * receivers
        self.peak = max(self.peak, size)

    def exchange(self, size: int, sent: int) -> None:
        """Count a vector of `size` bytes that a node exchanged with its group, and the bytes that it sent to the
        members."""
        self.published += size
        self.sent += sent
        self.peak = max(self.peak, size)
