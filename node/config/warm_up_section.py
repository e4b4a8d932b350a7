"""The section `[warm_up]`: what this node tells newcomers of its data, and how it begins as one itself."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from node.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class WarmUpConfig:
    """Class statistics that are shared, and a warm-up by those of others; no member needs to know."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    share: bool = False
    """Whether neighbours that ask get this node's class statistics: count, mean and variance of its inputs by class."""
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Where the data are protected: standard deviation of the statistics' noise over the largest norm of an example's
    share. Sharing spends of the budget once. None: privacy.noise."""
    below: Annotated[int, Field(ge=0)] = 0
    """A newcomer with fewer examples of its own trains its local parameters on synthetic ones before its first round;
    it wants train.local. 0: none does."""
    steps: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Of the warm-up, of train.batch_size examples each."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.01
    """Of the warm-up: AdamW's, constant."""
    own_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of each batch of the warm-up that is the node's own examples. Where these are protected there are none."""

    @property
    def on(self) -> bool:
        """Return whether the node shares statistics, or may warm up."""
        return self.share or self.below > 0

    def check(self, *, local: bool, unit: str) -> None:
        """UsageError for settings that cannot be. `local`: whether there are local parameters. `unit`: what of the
        node's data is protected (p2ptrain/privacy/base.py)."""
        if self.below and not local:
            raise UsageError(
                f"warm_up.below={self.below} trains local parameters, and there are none: the swarm's model, which a "
                "newcomer takes, knows its classes already",
                'name some, such as train.local = ["head.*"], or leave it out',
            )
        if self.share and unit not in ("nothing", "example"):
            raise UsageError(
                f"warm_up.share: statistics protect single examples, and the privatizer {unit!r} all that a member has",
                "take privacy.privatizer=example, or leave warm_up.share out",
            )
        if self.noise is not None and unit == "nothing":
            message = f"warm_up.noise={self.noise:g} is counted by nobody: privacy.privatizer is none"
            raise UsageError(message, "take privacy.privatizer=example, or leave it out")
