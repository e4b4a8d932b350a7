"""How the ranks of a site share out the work on one model: the `[site]` section."""

import math
from dataclasses import dataclass
from typing import ClassVar

from p2ptrain.tasks.base import TaskError


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """What `torchrun ... -m p2ptrain node` does with its ranks. ValueError, with the field's name, on a value that
    cannot be."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    shard: int = 0
    """Ranks among which parameters, gradients and optimizer state are shared out (FSDP2). 0: all that `tensor` leaves.
    Where more remain than this, they are replicas of each other (HSDP)."""
    activation_checkpointing: bool = False
    """Whether each block's activations are computed again in the backward pass, in place of being kept: a third more
    computing for far less memory."""
    timeout_s: float = 120.0
    """Seconds after which a rank that does not answer is taken for hung, and the site ends. The longest that any
    collective of a step may take. Chosen."""

    def __post_init__(self) -> None:
        if self.shard < 0:
            raise ValueError(f"shard must be at least 0, not {self.shard}")
        if not math.isfinite(self.timeout_s) or self.timeout_s < 1:
            raise ValueError(f"timeout_s must be at least 1, not {self.timeout_s}")

    @property
    def needs_ranks(self) -> str:
        """The first setting, as `name=value`, that means nothing in one process; empty where there is none."""
        return f"shard={self.shard}" if self.shard > 1 else ""

    def mesh(self, ranks: int) -> tuple[int, int]:
        """Return how many replicas `ranks` are, and among how many ranks each is shared out. TaskError where that
        cannot be."""
        shard = self.shard or ranks
        if ranks % shard:
            raise TaskError(f"site.shard={shard} does not divide {ranks} ranks: start another number of them")
        return ranks // shard, shard
