"""From a message to an estimate: the one way that senders and receivers both go, so that they hold the same bits."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from p2ptrain import compress
from p2ptrain.compress.base import Compressor, PayloadError, gamma_of
from p2ptrain.compress.blocks import CHUNK_NUMEL, Floats
from p2ptrain.compress.by_parts import cut, decoding
from p2ptrain.saved.filed_vector import FiledVector, Refused
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync import fragments
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.vectors import (
    ByteSource,
    Vector,
    check_bytes,
    fill,
    is_sane_part,
    raw_of,
    rounded,
    set_raw,
    set_values,
    values_of,
    view_of,
)

Move = Callable[[], None]
"""Does what was checked."""

MAX_CODECS = 64
"""Codecs that are kept once built. A peer chooses the names, and compositions have no end."""


class Decoder:
    """Reads messages of models with `numel` parameters."""

    def __init__(self, numel: int) -> None:
        self.numel = numel
        self._codecs: dict[str, Compressor] = {}

    def advance(self, estimate_d: torch.Tensor, codec: str, payload: bytes) -> torch.Tensor:
        """Return the estimate after a message, a new vector. Raises as `advance_` does."""
        advanced_d = estimate_d.clone()
        self.advance_(advanced_d, codec, payload)
        return advanced_d

    def advance_(self, estimate_d: Vector, codec: str, payload: bytes) -> None:
        """Add a message to an estimate fp32 or bf16 (d,), in place: one decoding, one addition, and one rounding where
        it is bf16.

        PayloadError, with nothing changed: the codec's reasons, `unknown_codec`, and `nonfinite` for one that leaves
        all bounds. Nothing is written before all of it is known to be good: so a payload is read twice, or, where the
        model is no larger than what is worked on at a time, the result is held meanwhile.
        """
        self.checked(estimate_d, codec, payload)()

    def checked(self, estimate_d: Vector, codec: str, payload: bytes) -> Move:
        """Return what adds a message to an estimate, once all of it is known to be good: it raises nothing then, while
        the estimate stays as it is. PayloadError as `advance_`."""
        part, within = self.reader(codec)
        hand_out = decoding(within, payload, part.numel)

        def moved(at: slice, step_p: Floats) -> None:
            for in_model, in_step in part.within(at):
                np.add(values_of(estimate_d, in_model), step_p[in_step], out=step_p[in_step])

        held_p = np.empty(part.numel, dtype=np.float32) if part.numel <= CHUNK_NUMEL else None

        def check(at: slice, step_p: Floats) -> None:
            moved(at, step_p)
            if not is_sane_part(step_p):
                raise PayloadError("nonfinite", "the update would take the estimate out of all bounds")
            if held_p is not None:
                held_p[at] = step_p

        def move(at: slice, step_p: Floats) -> None:
            moved(at, step_p)
            for in_model, in_step in part.within(at):
                set_values(estimate_d, in_model, step_p[in_step])

        def take_held() -> None:
            assert held_p is not None, "it is small"
            for in_model, in_part in part.within(slice(0, part.numel)):
                set_values(estimate_d, in_model, held_p[in_part])

        hand_out(check)
        return take_held if held_p is not None else lambda: hand_out(move)

    def gamma(self, codec: str, payload: bytes) -> float | None:
        """Return the consensus step of a message's encoder, once it was read. None: that is not told."""
        _, within = self.reader(codec)
        return gamma_of(within, payload)

    def reader(self, codec: str) -> tuple[Fragment, Compressor]:
        """Return the part of the model that a wire name speaks of, and what reads its payloads. Raises PayloadError."""
        part, name = self._part(codec)
        return part, self._codec(name)

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


NewFile = Callable[[], NamelessFile]
"""Makes a file. Raises OSError."""


class Estimates:
    """The neighbours' models, as far as they have sent them, fp32 or bf16 (d,): in memory, or in files when asked. They
    change in place, but not by a payload that is refused."""

    def __init__(self, genesis_d: torch.Tensor, decoder: Decoder, dtype: torch.dtype) -> None:
        self.models: dict[str, Vector] = {}
        self.gammas: dict[str, float | None] = {}
        """The consensus step of each neighbour's newest codec; none before its first payload."""
        self._numel = genesis_d.numel()
        self._dtype = dtype
        self._genesis_d: torch.Tensor | None = rounded(genesis_d, dtype)
        """What many may begin at, and nobody changes; None once it lies in a file."""
        self._file: NamelessFile | None = None
        self._new_file: NewFile | None = None
        self._refused: Refused | None = None
        self._decoder = decoder

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Keep the initial model in this file, for those that begin later, and not in memory. Raises OSError."""
        if self._genesis_d is not None:
            file.append(view_of(self._genesis_d))
            self._file = file
            self.drop_genesis()

    @property
    def genesis_d(self) -> torch.Tensor | None:
        """The initial model, to be read; None where it is not in memory."""
        return self._genesis_d

    def drop_genesis(self) -> None:
        """Let go of the initial model: who keeps it gives it as a base."""
        for peer in [peer for peer, model_d in self.models.items() if model_d is self._genesis_d]:
            self.own(peer)  # no longer known to be shared
        self._genesis_d = None

    def keep_in(self, new_file: NewFile, refused: Refused) -> None:
        """Keep each estimate that begins from now on in a file of its own; in memory, where the disk refuses it, which
        `refused` is told."""
        self._new_file, self._refused = new_file, refused

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged. Reasons:
        those of `Decoder.advance_`, and `protocol` for a peer with no base."""
        self._decoder.advance_(self.own(peer), codec, payload)
        self.gammas[peer] = self._decoder.gamma(codec, payload)

    def checked(self, peer: str, codec: str, payload: bytes) -> Move:
        """Return what advances a neighbour's estimate by a payload that is good: raises as `apply`, now."""
        return self._decoder.checked(self.own(peer), codec, payload)

    def own(self, peer: str) -> Vector:
        """Return a neighbour's estimate, which is nobody else's vector. Raises PayloadError `protocol` where it has
        none."""
        if peer not in self.models:
            raise PayloadError("protocol", "an update of a peer that is not tracked")
        if self.models[peer] is self._genesis_d:
            self.models[peer] = self._copy(self._genesis_d)
        return self.models[peer]

    def track(self, peer: str, base: ByteSource | None) -> None:
        """Begin a neighbour's estimate at the genesis (None) or a snapshot. Raises PayloadError. Reasons:
        `wrong_shape`, `nonfinite`."""
        if base is not None:
            check_bytes(base, self._numel, self._dtype)
        self.forget(peer)  # first: two of one peer need not be held
        if base is None and self._genesis_d is not None:
            self.models[peer] = self._genesis_d
            return
        source = self._file if base is None else base
        assert source is not None, "the initial model is in memory or in the file"
        model_d = self._empty()
        fill(model_d, source)
        self.models[peer] = model_d

    def share(self, peer: str, model_d: torch.Tensor) -> None:
        """Hold `model_d` as a neighbour's estimate, which somebody else advances: in one process all of a node's
        neighbours have the same bits of it. Its codec's consensus step is taken to be our own."""
        if model_d.shape != (self._numel,) or model_d.dtype is not self._dtype:
            raise ValueError(f"an estimate of {model_d.shape}, {model_d.dtype} is of another model")
        self.models[peer] = model_d

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        self.models.pop(peer, None)
        self.gammas.pop(peer, None)

    def _copy(self, x_d: torch.Tensor) -> Vector:
        copy_d = self._empty()
        for at in cut(self._numel):
            set_raw(copy_d, at, raw_of(x_d)[at])
        return copy_d

    def _empty(self) -> Vector:
        """A vector that is not set yet."""
        if self._new_file is not None and self._refused is not None:
            try:
                return FiledVector(self._numel, self._dtype, self._new_file(), self._refused)
            except OSError as error:
                self._refused(error)
        return torch.empty(self._numel, dtype=self._dtype)
