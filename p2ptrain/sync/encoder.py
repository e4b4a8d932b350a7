"""What travels: the encoders that strategies are made with. `base.py` has their contract.

An encoder follows a `FragmentSchedule`: which part of the model is sent in which round, and in which codec. It moves
its public estimate by its own message as decoded, the way receivers do.

    TrackedEncoder        sends  theta - xhat
    ErrorFeedbackEncoder  sends  a = b e + (theta - phi) + (1 - b) (phi - xhat),  e <- a - sent

`TrackedEncoder` (CHOCO-Gossip, 1902.00340) keeps what a codec lost in the next difference: xhat follows the model
itself, so a node sends again what it has learned of others. With a coarse codec that fills the message.
`ErrorFeedbackEncoder` (SparseLoCo, 2508.15706) sends a node's own progress, and remembers with decay b what did not
fit. The paper's nodes share one phi, and its a ends there; the last term is ours. What e forgets comes back in it as
the gap to the consensus, so that public estimates do not drift apart, and changes travel beyond the next
neighbour. In rounds alone, where phi becomes theta, e comes to be phi - xhat, and all of it `TrackedEncoder`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch

from p2ptrain import compress
from p2ptrain.compress.adaptive import adaptive_in
from p2ptrain.compress.base import Compressor, State, load_state, reset, state_of
from p2ptrain.compress.blocks import Floats, ReadPart
from p2ptrain.compress.by_parts import encode_from
from p2ptrain.compress.compose_codecs import MAX_NAME
from p2ptrain.sync.base import Message, UpdateEncoder
from p2ptrain.sync.decoding import Decoder
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.vectors import check_model, rounded, values_of


@dataclass(frozen=True)
class FragmentSchedule:
    """Which part is sent in which round, and in which codec. `codecs` has one a part: some remember what they sent."""

    parts: tuple[Fragment, ...]
    codecs: tuple[Compressor, ...]
    exact: Compressor
    """The encoder of exact rounds."""
    is_exact: Callable[[int], bool]

    @classmethod
    def of(
        cls,
        numel: int,
        compressor: str,
        options: Mapping[str, object],
        *,
        fragments: int = 1,
        is_exact: Callable[[int], bool] = lambda round: False,
    ) -> Self:
        """`compressor`, built with `options`, for `fragments` parts that take turns. ValueError on what cannot be."""
        parts = tuple(Fragment(numel, index, fragments) for index in range(fragments))
        codecs = tuple(compress.get(compressor, **options) for _ in parts)
        longest = max((part.prefix + codec.name for part, codec in zip(parts, codecs, strict=True)), key=len)
        if len(longest) > MAX_NAME:
            raise ValueError(f"a codec's name has at most {MAX_NAME} characters on the wire, {longest!r} has more")
        return cls(parts, codecs, compress.get("none"), is_exact)

    def part(self, round: int) -> Fragment:
        """Return the part that is sent, and averaged, in a round."""
        return self.parts[round % len(self.parts)]

    def codec(self, round: int) -> Compressor:
        """Return the codec of a round."""
        return self.exact if self.is_exact(round) else self.codecs[round % len(self.codecs)]


class ScheduledEncoder(UpdateEncoder, Protocol):
    """An encoder with what its own strategy needs beside messages."""

    schedule: FragmentSchedule
    decoder: Decoder

    def gamma(self, round: int) -> float:
        """Return the consensus step that goes with the codec of a round."""

    def restart(self, public_d: torch.Tensor) -> None:
        """Begin a new chain at `public_d` (d,): nothing sent so far is remembered."""

    def unshare(self) -> None:
        """Hold the public estimate as a vector of its own, if it is that of the last `restart`."""

    def state_dict(self) -> State:
        """Return what it remembers."""

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another encoder."""


class _BaseEncoder:
    """The common half: encode, and advance as receivers do."""

    def __init__(self, schedule: FragmentSchedule, genesis_d: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        check_model(genesis_d)
        self.schedule = schedule
        self.decoder = Decoder(genesis_d.numel())
        self.dtype = dtype
        """What the public estimate is held in, here and at the neighbours."""
        self.public_d = rounded(genesis_d, dtype)
        self._lent = self.public_d is genesis_d
        """Whether the public estimate is somebody else's vector too: it is copied before it moves."""
        self.rung = ""
        """What an `adaptive` codec made the newest message with; "" for others."""

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """Tell `adaptive` codecs what the link carries in the time that a message may take."""
        for codec in self.schedule.codecs:
            if (adaptive := adaptive_in(codec)) is not None:
                adaptive.budget(bytes_per_s, seconds)

    def gamma(self, round: int) -> float:
        """Return the consensus step that goes with the codec of a round."""
        return self.schedule.codec(round).gamma

    def fork(self) -> Self:
        """Return an encoder that goes on from here, without the other's knowledge."""
        return copy.deepcopy(self)

    def restart(self, public_d: torch.Tensor) -> None:
        """Begin a new chain at `public_d` (d,), which is not changed: nothing sent so far is remembered."""
        self.public_d = rounded(public_d, self.dtype)
        self._lent = self.public_d is public_d
        for codec in self.schedule.codecs:
            reset(codec)

    def unshare(self) -> None:
        """Hold the public estimate as a vector of its own."""
        if self._lent:
            self.public_d, self._lent = self.public_d.clone(), False

    def state_dict(self) -> State:
        """Return what the encoders remember, as `<part>.<name>`."""
        memories = [state_of(codec, f"{index}.") for index, codec in enumerate(self.schedule.codecs)]
        return {name: value for memory in memories for name, value in memory.items()}

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another encoder."""
        for index, codec in enumerate(self.schedule.codecs):
            own = {name: value for name, value in state.items() if name.split(".")[0] == str(index)}
            load_state(codec, {name.partition(".")[2]: value for name, value in own.items()})

    def _message(self, read: ReadPart, round: int) -> Message:
        codec, part = self.schedule.codec(round), self.schedule.part(round)
        message = Message(part.prefix + codec.name, encode_from(codec, read, part.numel))
        adaptive = adaptive_in(codec)
        self.rung = "" if adaptive is None else adaptive.rung
        return message

    def _advance(self, message: Message) -> None:
        """Move the public estimate, in place where no one else holds the vector."""
        self.unshare()
        self.decoder.advance_(self.public_d, message.codec, message.payload)


class TrackedEncoder(_BaseEncoder):
    """Sends the difference to the public estimate, of the part whose turn it is. Memory: `public_d`."""

    def draft(self, theta_d: torch.Tensor, *, anchor_d: torch.Tensor, round: int) -> Message:
        """Return the message that moves the public estimate towards `theta_d` (d,); nothing moves yet."""
        part, theta, public_d = self.schedule.part(round), theta_d.numpy(), self.public_d

        def read(at: slice, out: Floats) -> None:
            for in_model, in_part in part.within(at):
                np.subtract(theta[in_model], values_of(public_d, in_model), out=out[in_part])

        return self._message(read, round)

    def commit(self, message: Message) -> None:
        """Advance by the last draft, as receivers will. PayloadError, with nothing changed, if they would refuse it."""
        self._advance(message)


class ErrorFeedbackEncoder(_BaseEncoder):
    """Sends own progress, with an error feedback that decays; the whole model. Memory: `public_d` and the error."""

    def __init__(
        self,
        schedule: FragmentSchedule,
        genesis_d: torch.Tensor,
        dtype: torch.dtype = torch.float32,
        *,
        decay: float,
    ) -> None:
        super().__init__(schedule, genesis_d, dtype)
        self.decay = decay
        self.untold_d = torch.zeros_like(genesis_d)
        """e: the residual, what was to be sent and was not. Replaced, never changed in place."""
        self._wish_d = self.untold_d

    def draft(self, theta_d: torch.Tensor, *, anchor_d: torch.Tensor, round: int) -> Message:
        """Return the message that moves the public estimate towards `theta_d` (d,); nothing moves yet."""
        wish_d = (anchor_d - self.public_d).mul_(1 - self.decay)
        wish_d.add_(theta_d).sub_(anchor_d).add_(self.untold_d, alpha=self.decay)
        self._wish_d = wish_d
        return self._message(lambda at, out: np.copyto(out, wish_d.numpy()[at]), round)

    def commit(self, message: Message) -> None:
        """Advance by the last draft, as receivers will. PayloadError, with nothing changed, if they would refuse it.
        What counts as sent is what receivers' estimates moved by, the addition's rounding included."""
        before_d = self.public_d.float() if self.dtype != torch.float32 else self.public_d.clone()
        self._advance(message)
        self.untold_d = self._wish_d.sub_(torch.sub(self.public_d, before_d, out=before_d))

    def restart(self, public_d: torch.Tensor) -> None:
        """Begin a new chain at `public_d` (d,): a base sends all, so that no residual is left."""
        super().restart(public_d)
        self.untold_d = torch.zeros_like(public_d)

    def state_dict(self) -> State:
        """Return what the codecs remember, and the residual as `untold`."""
        return {"untold": self.untold_d, **super().state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another encoder."""
        super().load_state_dict(state)
        untold_d = state.get("untold", self.untold_d)
        if untold_d.shape != self.public_d.shape or untold_d.dtype is not torch.float32:
            raise ValueError("the sync state belongs to another model: its vectors have other sizes")
        self.untold_d = untold_d.clone()
