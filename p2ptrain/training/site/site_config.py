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
    tensor: int = 1
    """Ranks that compute each matrix together (tensor parallelism, with the sequence shared out between the matrices).
    They belong within one machine, whose GPUs talk fast, and train on the same examples."""
    activation_checkpointing: bool = False
    """Whether each block's activations are computed again in the backward pass, in place of being kept: a third more
    computing for far less memory."""
    timeout_s: float = 120.0
    """Seconds after which a rank that does not answer is taken for hung, and the site ends. The longest that any
    collective of a step may take. Chosen."""

    def __post_init__(self) -> None:
        for name, least in (("shard", 0), ("tensor", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not math.isfinite(self.timeout_s) or self.timeout_s < 1:
            raise ValueError(f"timeout_s must be at least 1, not {self.timeout_s}")

    @property
    def needs_ranks(self) -> str:
        """The first setting, as `name=value`, that means nothing in one process; empty where there is none."""
        named = ((name, getattr(self, name)) for name in ("shard", "tensor"))
        return next((f"{name}={count}" for name, count in named if count > 1), "")

    def mesh(self, ranks: int) -> tuple[int, int, int]:
        """Return how many replicas `ranks` are, among how many each is sharded, and how many of these compute together.
        TaskError where that cannot be."""
        shard = self.shard or max(1, ranks // self.tensor)
        if ranks % (shard * self.tensor):
            named = ((name, getattr(self, name)) for name in ("shard", "tensor"))
            wanted = " and ".join(f"site.{name}={count}" for name, count in named if count > 1)
            raise TaskError(
                f"{ranks} ranks cannot be shared out by {wanted}: start a multiple of {shard * self.tensor}"
            )
        return ranks // (shard * self.tensor), shard, self.tensor
