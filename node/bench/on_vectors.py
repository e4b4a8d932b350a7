"""What the benchmarks of plain vectors (codecs, aggregators) have in common."""

from dataclasses import dataclass, field

from node.bench.base import within
from node.bench.timing import ROUNDS

FP32_BYTES = 4
GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class OnVectors:
    """Vectors of `numel` fp32 parameters, and torch with so many threads. ValueError on a number below 1."""

    numel: int
    threads: int
    seed: int = 0
    rounds: int = ROUNDS
    """Turns that each gets."""
    refused: dict[str, str] = field(default_factory=dict)
    """Filled by `run`: those that were left out, with why."""

    def __post_init__(self) -> None:
        for what in ("numel", "threads", "rounds"):
            within(what, getattr(self, what), 1)

    @property
    def place(self) -> str:
        """Return where it is measured, in words."""
        return f"{self.threads} thread{'s' * (self.threads > 1)}"
