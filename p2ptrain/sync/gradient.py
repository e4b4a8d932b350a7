"""Data parallel: compressed gradients, averaged at every step. For LANs, and the baseline of every table.

    a = e + g;  q = C(a) travels;  e <- a - decode(q);  the step is taken with Agg over all members' decode(q)

Error feedback makes biased codecs right (1901.09847), sign1, topk, q2 and powersgd among them; `warmup+sign1` sends
exact gradients first, as 1-bit Adam does. All members reduce the same decoded numbers in the order of their names, so
that their models stay one.
Guarantee: the aggregator's; with an exact codec and the mean it is synchronous data parallel with a batch of all.
Cost: a payload a step to each member, the error, and a decoded vector a member while the step is averaged.

**It runs in drivers that stop between a trainer's two half steps, not in a node.** A node's training never waits for
the network, and here every step does; and one missed message sets models apart for good, since nothing here pulls them
together again. In a node, tracked_gossip with inner_steps = 1 comes near: it averages models at every step.
"""

from collections.abc import Collection

import torch

from p2ptrain import aggregate, compress
from p2ptrain.aggregate.base import Rows
from p2ptrain.compress import ErrorFeedback
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync.base import Message
from p2ptrain.sync.decoding import Decoder
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


def method() -> StrategySpec:
    """Data parallel."""
    return StrategySpec(name="gradient", gradients=Gradient, aggregator="mean", f=0, check=_check)


def _check(config: SyncConfig) -> None:
    if config.outer != "average" or config.gamma is not None:
        raise ValueError("gradient takes every step with the averaged gradient: it has no outer optimizer and no gamma")


class Gradient:
    """Data parallel: compressed gradients are averaged at every step."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> None:
        self.name = config.strategy
        self.own = own
        self._codec = ErrorFeedback(compress.get(config.compressor, **config.codec_options()))
        self._rule = aggregate.get(config.aggregator, f=config.f, **config.rule_options())
        self._decoder = Decoder(genesis_d.numel())
        self._zero_d = torch.zeros_like(genesis_d)
        self._told: dict[str, torch.Tensor] = {}
        """Decoded messages of this step, by member."""

    def encode(self, gradient_d: torch.Tensor, *, step: int) -> Message:
        """Return the message of this step, from the own gradient (d,). A gradient that is not finite is told as none,
        and what is owed goes on."""
        if gradient_d.shape != self._zero_d.shape:
            shape, own = tuple(gradient_d.shape), tuple(self._zero_d.shape)
            raise ValueError(f"a gradient of shape {shape}, the model's is {own}")
        sound = bool(torch.isfinite(gradient_d).all())
        message = Message(self._codec.name, self._codec.encode(gradient_d if sound else self._zero_d))
        self._told[self.own] = self._decoder.advance(self._zero_d, message.codec, message.payload)
        return message

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Take a member's message of this step. Raises PayloadError; nothing is then taken."""
        if peer == self.own:
            raise PayloadError("protocol", "a message in our own name")
        self._told[peer] = self._decoder.advance(self._zero_d, codec, payload)

    def aggregate(self, peers: Collection[str], *, step: int) -> torch.Tensor:
        """Return the averaged gradient (d,), the same bits at all members. ValueError with fewer members than the
        aggregator's f needs, or without own message."""
        if self.own not in self._told:
            raise ValueError("own gradient comes first: there is none of this step")
        told = [self._told[peer] for peer in sorted(self._told.keys() & {self.own, *peers})]
        self._told = {}
        rows = Rows(len(told), self._zero_d.numel(), lambda part: torch.stack([told_d[part] for told_d in told]))
        return self._rule.reduce(rows)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what is owed, and what the encoder remembers."""
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model or codec."""
        if "residual" in state and state["residual"].shape != self._zero_d.shape:
            raise ValueError("the state belongs to another model: its vectors have other sizes")
        self._codec.load_state_dict(state)
