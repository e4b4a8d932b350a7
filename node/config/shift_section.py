"""The section `[shift]`: whether this node watches its own data for shift (data drift), and what it does about one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from node.config.config_errors import did_you_mean
from node.shift import SHIFT_DETECTORS, ShiftDetector
from node.system.errors import UsageError

OFF: Final = "none"

Signal: TypeAlias = Literal["loss", "moments", "predictions"]

OF_OWN_DATA: Final[tuple[Signal, ...]] = ("loss", "moments")
"""Signals that are computed from what the node trains on. Predictions are compared on held-out examples."""


@dataclass(frozen=True, kw_only=True)
class ShiftConfig:
    """Whether and how the node watches its own data for shift; no member needs to know."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    detector: str = OFF
    """none: nothing is watched; page_hinkley, adwin, kswin, or a plug-in's."""
    signals: tuple[Signal, ...] = ("loss", "moments")
    """loss: of a kept old model on fresh own data. moments: of their inputs. predictions: divergence from neighbours'
    on held-out examples."""
    settle: Annotated[int, Field(ge=1)] = 10
    """Rounds before the model is kept that is compared with, at first and after each shift."""
    examples: Annotated[int, Field(ge=16)] = 256
    """Own examples that are looked at in a round."""
    window: Annotated[int, Field(ge=1)] = 20
    """Rounds within which shifts of several members count as one."""
    action: Literal["tell", "learning_rate"] = "tell"
    """What to do about a shift here. tell: only tell. learning_rate: multiply it for some rounds."""
    rate_factor: Annotated[float, Field(gt=0, le=10)] = 2.0
    """By what, with action = learning_rate."""
    rate_rounds: Annotated[int, Field(ge=1)] = 10
    """For how many rounds."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Options of the detector, such as {threshold = 15}."""

    @property
    def on(self) -> bool:
        """Return whether anything is watched."""
        return self.detector != OFF

    @property
    def reads_own_data(self) -> bool:
        """Return whether a signal is computed from what the node trains on."""
        return self.on and any(signal in OF_OWN_DATA for signal in self.signals)

    def make(self) -> ShiftDetector:
        """Return a new detector. UsageError for an unknown name or option, or where river is not installed."""
        known = SHIFT_DETECTORS.names()
        if self.detector not in known:
            words = [OFF, *known]
            message = f"unknown shift.detector {self.detector!r}{did_you_mean(self.detector, words)}"
            raise UsageError(message, f"there are {', '.join(words)}")
        try:
            return SHIFT_DETECTORS.get(self.detector, **self.options)
        except ValueError as error:
            raise UsageError(f"[shift]: {error}") from None

    def check(self, *, private: bool) -> None:
        """UsageError for settings that cannot be. `private`: whether what the node tells of its data is bounded."""
        if not self.on:
            return
        if not self.signals or len(set(self.signals)) < len(self.signals):
            raise UsageError("shift.signals: each signal once, and one at least", "leave it out")
        if private and self.reads_own_data:
            message = "shift.signals: loss and moments tell of private data what no epsilon covers"
            raise UsageError(message, 'set shift.signals=["predictions"], or leave out privacy.privatizer')
        self.make()
