"""What a compressor is: a contraction C on flat fp32 vectors, with a byte form.

Contract, held for every member by `tests/contracts/test_compressors.py`:
- `encode` takes a contiguous fp32 CPU tensor of shape (d,) and returns bytes; the same input gives the same bytes, from
  the same state where the encoder has one (`Stateful`).
- `decode(payload, numel)` returns fp32 (numel,), all finite, or raises PayloadError; it never allocates more than
  O(numel) whatever the bytes say, and checks the payload's length before touching its content.
- Decoding is stateless and needs no option of the sender's: a member built by its name alone reads every payload of
  that name. What a reader must know travels in a header.
- Decoding is element-wise IEEE arithmetic in a fixed order: sender and receivers hold the same bits on any machine.
- ||decode(encode(x)) - x||^2 <= (1 - delta) ||x||^2 for a Gaussian x, delta = `contraction`, in (0, 1]. That is what is
  measured, and no bound for every x: of one value among 1,024 zeros q2 keeps 0.011 and sign1 0.001. For every finite x
  each member has its own `Guarantee`, and the error is never longer than x. `rotated+` makes any x nearly Gaussian.
- Non-finite input is encoded as such (a liar must be able to send it); `decode` then refuses with `nonfinite`.
"""

from typing import Protocol, runtime_checkable

import torch

from p2ptrain.protocols import implements

State = dict[str, torch.Tensor]


class PayloadError(ValueError):
    """A payload that cannot be a vector of ours. `reason` is a value of gossip's Reason: the sender's offence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@runtime_checkable
class Compressor(Protocol):
    """A lossy (or exact) byte form of a flat vector."""

    @property
    def name(self) -> str:
        """What `compress.get` builds its like by; of a composition all parts: `rotated+q2`."""

    @property
    def contraction(self) -> float:
        """delta of the contract above, measured for a Gaussian vector; 1.0 is exact. A stateful encoder's may change:
        it is that of the next payload, as far as the encoder can know."""

    @property
    def gamma(self) -> float:
        """The consensus step that goes with the contraction: `gamma_for` or `sparse_gamma_for` it, unless there are
        reasons."""

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Return the byte form of an fp32 vector of shape (d,)."""

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """fp32 (numel,). Raises PayloadError with reason `wrong_shape`, `malformed` or `nonfinite`."""


@runtime_checkable
class Stateful(Protocol):
    """What an encoder with a memory has beside `encode`. Decoding never has one."""

    def state_dict(self) -> State:
        """Return the memory, for a checkpoint. Empty for a composition of which no part remembers anything."""

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is not of this compressor."""

    def reset(self) -> None:
        """Forget: the next payload is as the first one of a new encoder."""


@runtime_checkable
class SaysGamma(Protocol):
    """A codec whose gamma follows from more than its name: receivers ask each payload."""

    def gamma_of(self, payload: bytes | memoryview) -> float | None:
        """Return gamma of the encoder that made this payload, which has been decoded before. None: it does not say."""


def gamma_of(codec: Compressor, payload: bytes | memoryview) -> float | None:
    """Return the consensus step of the encoder that made a payload; `codec` was built by its name alone. Two neighbours
    take the smaller one of theirs on their edge, so that their mean stays where it is (sync/mixing.py)."""
    return codec.gamma_of(payload) if implements(codec, SaysGamma) else codec.gamma


SPARSE_STEP = 0.35
"""gamma over the contraction, for codecs that leave values out. With 0.45 all of the runs below come to rest as well;
at 0.59 (a ratio of 0.1) and above the models part again after some hundred rounds."""


def sparse_gamma_for(contraction: float) -> float:
    """Return the consensus step of a codec that leaves values out altogether, such as topk.

    What is left out waits for many rounds, and is then sent at once: a Gaussian's contraction says nothing of that.
    Held by noise-free consensus over 900 rounds on a full mesh, a star and K(8, 8), for ratios from 1/128 to 0.5
    (test_compress_gamma.py repeats some).
    """
    return SPARSE_STEP * _checked(contraction)


def gamma_for(contraction: float) -> float:
    """Return the consensus step for a contraction: delta times max(0.35, 1.4 delta), 1 at most.

    Theory wants a step that falls with the contraction (CHOCO-Gossip, 1902.00340), and proves far smaller ones than
    are stable. This one is fitted: 8 nodes, 4 neighbours each, whose models drift apart at random; for contractions
    from 0.06 to 1 half of it and twice it keep them no closer together, or hardly (test_compress_gamma.py repeats it).
    What all nodes learn alike fills their messages too, and makes the best step smaller still: so never take a larger
    one because single rounds look stable. docs/benchmarks.md has training runs.
    """
    return min(1.0, _checked(contraction) * max(0.35, 1.4 * contraction))


def _checked(contraction: float) -> float:
    if not 0 < contraction <= 1:
        raise ValueError(f"a contraction lies in (0, 1], not {contraction}")
    return contraction


def state_of(codec: Compressor, prefix: str = "") -> State:
    """Return the memory of `codec`, its names with `prefix`; empty when it has none."""
    state = codec.state_dict() if implements(codec, Stateful) else {}
    return {prefix + name: value for name, value in state.items()}


def load_state(codec: Compressor, state: State) -> None:
    """Give `codec` its memory back; from an empty state it begins anew. ValueError when the state is another's."""
    if not state:
        reset(codec)
    elif isinstance(codec, Stateful):
        codec.load_state_dict(state)
    else:
        raise ValueError(f"compressor {codec.name!r} has no memory, but the state holds {', '.join(sorted(state))}")


def reset(codec: Compressor) -> None:
    """Make `codec` forget, if it remembers anything."""
    if isinstance(codec, Stateful):
        codec.reset()
