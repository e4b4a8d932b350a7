"""The section `[privacy]`: what of this node's data the model may tell, and how much in all."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from node.system.errors import UsageError
from p2ptrain import privacy
from p2ptrain.privacy import Privatizer

OFF: Final = "none"


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """Differential privacy of this node's data; no member needs to know. Its noise is its own."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    privatizer: str = OFF
    """What is protected: none; example, each example of the shard, in every step (DP-SGD); update, all that this node
    learns in a round; or a plug-in's."""
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Standard deviation of the noise over `clip`. More noise spends less of the budget."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Largest norm of one example's gradient, or of a round's move, over all trained parameters together."""
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of example: probability with which each example is in a step. None: train.batch_size times
    train.grad_accumulation over the examples of the shard; `p2ptrain.join` wants a number."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Probability with which the bound may fail. Choose one over the number of examples, or less."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The budget: training ends before it would be exceeded. None: there is none, and what is spent is counted."""
    chunk: Annotated[int, Field(ge=1)] | None = None
    """Of example: examples whose gradients are in memory at a time, each as large as the model. None: twice as many as
    are expected in a step, and no more than take 256 MB."""

    public_start: bool = False
    """Of `p2ptrain.join`: whether the model that is given may be published as it is, as none of the protected data were
    used for it. Without that word a private loop is refused."""

    @property
    def on(self) -> bool:
        """Return whether anything is protected."""
        return self.privatizer != OFF

    def find(self) -> Privatizer:
        """Return the privatizer. UsageError for options that are none of its own."""
        try:
            return privacy.get(self.privatizer, **({"noise": self.noise, "clip": self.clip} if self.on else {}))
        except ValueError as error:
            raise UsageError(f"[privacy]: {error}") from None

    def check(self) -> None:
        """Raise UsageError for options that cannot be, and for a budget of nothing."""
        self.find()
        if not self.on and self.epsilon is not None:
            message = f"privacy.epsilon={self.epsilon:g} limits nothing: privacy.privatizer is none"
            raise UsageError(message, "set privacy.privatizer=example or update, or leave it out")
        if self.rate is not None and self.on and self.find().unit != "example":
            message = f"privacy.rate={self.rate:g} is of examples, and privacy.privatizer={self.privatizer} draws none"
            raise UsageError(message, "leave it out")
