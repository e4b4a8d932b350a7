"""The section `[personal]`: a second model of this node's own, beside the one that members share."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from p2ptrain.training.ditto import PersonalTraining


@dataclass(frozen=True, kw_only=True)
class PersonalConfig:
    """A personal model (Ditto), which is never sent; no member needs to know."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Ditto's lambda: how strongly the personal model is held near the shared one. 0: not at all. None: there is no
    personal model."""
    every: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the node's steps that a step of the personal model goes with; each takes as long as one of these."""
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Peak of the personal model's learning rate. None: train.learning_rate."""

    def find(self) -> PersonalTraining | None:
        """Return how the personal model is trained; None where there is none."""
        if self.strength is None:
            return None
        return PersonalTraining(strength=self.strength, every=self.every, learning_rate=self.learning_rate)
