"""Refinements: what a round's update left out, in further layers that a neighbour takes if its link has time for them.

    base         q = C_0(x - xhat); xhat += q          all take it, and all hold the same xhat
    refinement   r^k = sum_{l <= k} C_l(x - xhat - r^(l-1))   for this link alone: no estimate moves by it

An edge between i and j where both hold k layers of each other averages the refined models,

    (xhat_j + r_j^k) - (xhat_i + r_i^k)    in place of    xhat_j - xhat_i,

and takes the consensus step of the finest layer in place of the base's. Both ends use the same k: the fewer of those
that we have of the neighbour and it has of us. With unlike k an edge would move its ends unlike, and the members' mean
with them (docs/decisions/0066). Own layers are subtracted as well: without that a node would add to itself what its own
base has left out, round after round.

What a base left out is in the next base, as before. So a refinement is never carried on, and who missed it lacks
nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from p2ptrain import compress
from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.sync.base import Message
from p2ptrain.sync.decoding import Decoder
from p2ptrain.sync.vectors import is_sane_part

LONGEST: Final = 16.0
"""Times the norm of the base's step that a refinement may have; a longer one is shortened to it. What `topk` leaves out
of a block is no larger, value by value, than what it sends: sqrt(1 / ratio) times as long at most, 11.3 at 1/128."""


class Refinements:
    """Own layers of the newest update, and those taken of the neighbours' newest ones, as payloads.

    Cost: a decoding of each layer when it is taken, to check it, and another when the round closes; while it closes,
    one vector (d,) for each neighbour that is averaged with its layers, and one for each number of layers in use.
    """

    def __init__(self, names: Sequence[str], decoder: Decoder) -> None:
        self._codecs: tuple[Compressor, ...] = tuple(compress.get(name) for name in names)
        self._decoder = decoder
        self._own: tuple[Message, ...] = ()
        self._taken: dict[str, list[Message]] = {}
        self._bases: dict[str, Message] = {}
        """The newest base of each neighbour, until it is followed by the next."""
        self.sent: Mapping[str, int] = {}
        """How many of our layers each neighbour has, as far as we know."""

    def encode(self, missing_d: torch.Tensor) -> tuple[Message, ...]:
        """Return the layers of what the base left out (d,), coarsest first. The vector is used up."""
        layers = []
        for codec in self._codecs:
            layers.append(Message(codec.name, codec.encode(missing_d)))
            missing_d.sub_(codec.decode(layers[-1].payload, missing_d.numel()))
        self._own = tuple(layers)
        return self._own

    def advanced(self, peer: str, base: Message) -> None:
        """Note that a neighbour's estimate has moved by `base`: layers of links before say nothing any more."""
        self.forget(peer)
        self._bases[peer] = base

    def take(self, peer: str, layer: int, refinement: Message) -> None:
        """Take layer `layer`, from 1, of a neighbour's newest link. Raises PayloadError; nothing is then taken.
        Reasons: the codec's; `protocol` out of turn; `unknown_codec` for another codec than the run's; `nonfinite`."""
        taken = self._taken.get(peer, [])
        if peer not in self._bases or layer != len(taken) + 1:
            raise PayloadError("protocol", f"layer {layer} after {len(taken)}")
        if layer > len(self._codecs) or refinement.codec != self._codecs[layer - 1].name:
            raise PayloadError("unknown_codec", f"{refinement.codec!r} as layer {layer}")
        if not is_sane_part(self._decoded(refinement).numpy()):
            raise PayloadError("nonfinite", "the refinement is out of all bounds")
        self._taken[peer] = [*taken, refinement]

    def forget(self, peer: str) -> None:
        """Drop what is held of a neighbour; no-op where there is nothing."""
        self._taken.pop(peer, None)
        self._bases.pop(peer, None)

    def restart(self) -> None:
        """Drop own layers: a new chain begins."""
        self._own = ()

    def depths(self, members: Sequence[str]) -> dict[str, int]:
        """Return the number of layers by which each edge is refined; members without any are left out."""
        both = {peer: min(len(self._taken.get(peer, ())), self.sent.get(peer, 0), len(self._own)) for peer in members}
        return {peer: depth for peer, depth in both.items() if depth}

    def gamma(self, depth: int) -> float:
        """Return the consensus step of a codec whose error is that of this layer."""
        return self._codecs[depth - 1].gamma

    def differences(self, depths: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return r_j - r_i (d,), fp32, for each neighbour j."""
        own = {depth: self._sum(self._own[:depth]) for depth in sorted(set(depths.values()))}
        return {peer: self._bounded(peer, depth).sub_(own[depth]) for peer, depth in depths.items()}

    def _bounded(self, peer: str, depth: int) -> torch.Tensor:
        refined_d = self._sum(self._taken[peer][:depth])
        longest = LONGEST * float(torch.linalg.vector_norm(self._decoded(self._bases[peer])))
        norm = float(torch.linalg.vector_norm(refined_d))
        return refined_d.mul_(longest / norm) if norm > longest else refined_d

    def _sum(self, layers: Sequence[Message]) -> torch.Tensor:
        sum_d = self._decoded(layers[0]).clone()
        for layer in layers[1:]:
            sum_d.add_(self._decoded(layer))
        return sum_d

    def _decoded(self, message: Message) -> torch.Tensor:
        _, codec = self._decoder.reader(message.codec)
        return codec.decode(message.payload, self._decoder.numel)
