"""From a message to an estimate: the one way that senders and receivers both go, so that they hold the same bits."""

from functools import cached_property

import torch

from p2ptrain import compress
from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.sync import fragments
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.vectors import from_bytes, is_sane

MAX_CODECS = 64
"""Codecs that are kept once built. A peer chooses the names, and compositions have no end."""


class Decoder:
    """Reads messages of models with `numel` parameters."""

    def __init__(self, numel: int) -> None:
        self.numel = numel
        self._codecs: dict[str, Compressor] = {}

    def advance(self, estimate_d: torch.Tensor, codec: str, payload: bytes) -> torch.Tensor:
        """Return the estimate after a message: one decoding, one addition. The argument stays as it was.

        PayloadError: the codec's reasons, `unknown_codec`, and `nonfinite` for one that leaves all bounds.
        """
        part, name = self._part(codec)
        step_p = self._codec(name).decode(payload, part.numel)
        moved_p = torch.add(part.of(estimate_d), step_p, out=step_p)
        if not is_sane(moved_p):
            raise PayloadError("nonfinite", "the update would take the estimate out of all bounds")
        return part.put(estimate_d, moved_p)

    def _part(self, name: str) -> tuple[Fragment, str]:
        try:
            return fragments.parse(name, self.numel)
        except ValueError as error:
            raise PayloadError("unknown_codec", str(error)) from error

    @cached_property
    def _known(self) -> frozenset[str]:
        # Asked once: names come from peers, and a miss must not read the installed packages' metadata each time.
        return frozenset(compress.names())

    def _codec(self, name: str) -> Compressor:
        if name not in self._codecs:
            if not self._known.issuperset(name.split("+")):
                raise PayloadError("unknown_codec", repr(name[:32]))
            if len(self._codecs) >= MAX_CODECS:
                self._codecs.clear()
            try:
                self._codecs[name] = compress.get(name)
            except ValueError as error:  # a plug-in that cannot be built without options cannot be decoded by name
                raise PayloadError("unknown_codec", str(error)) from error
        return self._codecs[name]


class Estimates:
    """The neighbours' models, as far as they have sent them. Vectors are replaced, never changed in place: a refused
    payload leaves no trace, and code that still reads an old vector reads it whole."""

    def __init__(self, genesis_d: torch.Tensor, decoder: Decoder) -> None:
        self.models: dict[str, torch.Tensor] = {}
        self._genesis_d = genesis_d
        self._decoder = decoder

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged. Reasons:
        those of `Decoder.advance`, and `protocol` for a peer with no base."""
        if peer not in self.models:
            raise PayloadError("protocol", "an update of a peer that is not tracked")
        self.models[peer] = self._decoder.advance(self.models[peer], codec, payload)

    def track(self, peer: str, base: bytes | None) -> None:
        """Begin a neighbour's estimate at the genesis (None) or a snapshot. Raises PayloadError. Reasons:
        `wrong_shape`, `nonfinite`."""
        self.models[peer] = self._genesis_d if base is None else from_bytes(base, self._genesis_d.numel())

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        self.models.pop(peer, None)
