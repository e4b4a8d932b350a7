"""Error feedback: what a payload lost is added to the next vector before it is encoded.

Under a tracked estimate (sync/tracked_gossip.py) the next *difference* holds what was lost already, and a second
feedback would count it twice. This is for a stream of vectors that no receiver tracks, such as gradients.
"""

import torch

from p2ptrain.compress.base import Compressor, PayloadError, State, load_state, reset, state_of
from p2ptrain.compress.stage import INNER


class ErrorFeedback:
    """A codec with a residual: sent = C(x + residual); residual = x + residual - sent.

    Source: 1-bit SGD (Seide et al., Interspeech 2014); proof and form of Karimireddy et al. (1901.09847).
    Guarantee: what was sent adds up to what was given but for one residual, which stays within 4 (1 - delta) / delta^2
    times the largest ||x||^2 (their lemma 3), delta the codec's contraction. `encode` alone is no contraction.
    Cost: the codec's, a decoding, and a vector of memory.
    """

    def __init__(self, codec: Compressor) -> None:
        self.codec = codec
        self.residual_d: torch.Tensor | None = None
        """What is still owed, fp32 (d,); None before the first encode."""

    @property
    def name(self) -> str:
        """The codec's: payloads are its own."""
        return self.codec.name

    @property
    def contraction(self) -> float:
        """The codec's, for the vector with its residual."""
        return self.codec.contraction

    @property
    def gamma(self) -> float:
        """The codec's."""
        return self.codec.gamma

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Return the payload of x plus what is owed. A vector that is not finite is encoded, and leaves no trace.

        ValueError on a vector of another length than those before.
        """
        if self.residual_d is not None and self.residual_d.shape != x_d.shape:
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} after one of {tuple(self.residual_d.shape)}")
        owed_d = x_d if self.residual_d is None else x_d + self.residual_d
        payload = self.codec.encode(owed_d)
        try:
            self.residual_d = owed_d - self.codec.decode(payload, owed_d.numel())
        except PayloadError as refused:
            if refused.reason != "nonfinite":
                raise
        return payload

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,), as the codec does, without memory. Raises PayloadError."""
        return self.codec.decode(payload, numel)

    def state_dict(self) -> State:
        """Return the memory for a checkpoint: `residual` if there is one, and the codec's own."""
        own = {} if self.residual_d is None else {"residual": self.residual_d.clone()}
        return {**own, **state_of(self.codec, INNER)}

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another codec."""
        inner = {name.removeprefix(INNER): value for name, value in state.items() if name.startswith(INNER)}
        residual_d = state.get("residual")
        if len(inner) + (residual_d is not None) != len(state):
            raise ValueError(f"this is no state of error feedback: it holds {', '.join(sorted(state))}")
        if residual_d is not None and (residual_d.dim() != 1 or not bool(residual_d.isfinite().all())):
            raise ValueError("a residual is a flat vector of finite numbers")
        load_state(self.codec, inner)
        self.residual_d = None if residual_d is None else residual_d.to(torch.float32).clone()

    def reset(self) -> None:
        """Forget: the next payload is as the first one of a new encoder."""
        self.residual_d = None
        reset(self.codec)
