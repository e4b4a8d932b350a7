"""A strategy whose vectors lie in slices, each in a process of its own: none has more than a slice of any vector.

    encode      each slice's payload -> joined: bit for bit what one process would send
    apply       a neighbour's payload -> taken apart, and checked in all slices before it moves any
    aggregate   each slice for itself: what the rule does to a coordinate needs that coordinate alone
    snapshots   read from the slices, a piece at a time

Payloads are whole in the process that leads, and nothing else is. Which of a node's settings can be worked on so
`whole_because` says. A neighbour's are not this node's to say: a payload that is no row of slices' payloads is decoded
where it came in, and its values are dealt out as they come. Where its codec is not `ByParts`, that takes a vector.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch

from p2ptrain import aggregate, compress
from p2ptrain.aggregate.coordinate import CoordinateRule
from p2ptrain.aggregate.mean import Mean
from p2ptrain.compress.base import Compressor, PayloadError, gamma_of
from p2ptrain.compress.blocks import Decoding, Floats
from p2ptrain.compress.by_parts import decoding
from p2ptrain.compress.lossless import Lossless
from p2ptrain.compress.payload_layout import Buffer, layout_of
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync.base import ALL_WHOLE, Message, RoundResult
from p2ptrain.sync.decoding import Decoder
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.sync.model_slice import (
    ANCHOR,
    BASE,
    CORRECTION,
    ESTIMATE,
    GENESIS,
    PUBLIC,
    STATE,
    ClosedSlice,
    Refusal,
    SliceStart,
)
from p2ptrain.sync.sliced_vectors import LostSliceError, SlicedBytes, SlicedVector, SliceHolders, deal, within
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import ByteSource, check_bytes, view_of

FP32_BYTES: Final = 4
PROBE: Final = 1 << 10
"""Parameters of the strategy that is built to see what it is made of: as many as fragments need."""


def whole_because(config: SyncConfig) -> str:
    """Return in a few words why vectors must be whole in one process; "" where slices do."""
    models = config.spec().models
    strategy = None if models is None else models(config, torch.zeros(PROBE, dtype=torch.float32), "")
    if type(strategy) is not ModelAveraging or not strategy.is_cuttable:  # others add what they do themselves
        return f"sync.strategy = {config.strategy} works on whole vectors"
    if layout_of(_within(compress.get(config.compressor, **config.codec_options()))) is None:
        return f"sync.compressor = {config.compressor} looks at a whole vector"
    rule = aggregate.get(config.aggregator, f=config.f, **config.rule_options())
    if not isinstance(rule, CoordinateRule | Mean):
        return f"sync.aggregator = {config.aggregator} looks at distances of whole vectors"
    if config.regions:
        return "sync.regions averages whole models of regions"
    return ""


def unit_of(config: SyncConfig) -> int:
    """Return at whose multiples slices begin."""
    layout = layout_of(_within(compress.get(config.compressor, **config.codec_options())))
    assert layout is not None, "whole_because says so"
    return layout.unit


class SlicedAveraging:
    """A `ModelAveraging` in slices: a `SyncStrategy` that works `InPlace`, on vectors that are `SlicedVector`s."""

    def __init__(
        self,
        config: SyncConfig,
        genesis_d: torch.Tensor,
        own: str,
        holders: SliceHolders,
        *,
        rounds: int | None = None,
        largest_gamma: float = 1.0,
    ) -> None:
        """`genesis_d` fp32 (d,): in slices, which are taken, or a tensor of this process, which is dealt out.
        ValueError where it is no model."""
        self.name, self.config = config.strategy, config
        self._holders = holders
        self._numels = [at.stop - at.start for at in holders.cuts]
        self._numel = genesis_d.shape[0]
        self._decoder = Decoder(self._numel)
        self._codec = compress.get(config.compressor, **config.codec_options())
        self._layout = layout_of(_within(self._codec))
        self._itemsize = config.estimate_dtype.itemsize
        self._tracked: set[str] = set()
        self._genesis_file: NamelessFile | None = None
        name = genesis_d.key if isinstance(genesis_d, SlicedVector) else GENESIS
        if not isinstance(genesis_d, SlicedVector):
            deal(holders, name, view_of(genesis_d), FP32_BYTES)
        of_a_slice = replace(config, compressor=_within(self._codec).name)
        holders.each("begin", of_a_slice, own, rounds, largest_gamma, SliceStart(self._numel, name))

    def encode(self, theta_d: torch.Tensor, *, round: int) -> Message:
        """Return the message of this round and advance the public estimate. ValueError on a model that is not
        finite."""
        for fault in filter(None, self._holders.each("fault")):
            raise ValueError(fault)
        payloads = [message.payload for message in self._holders.each("encode", round)]
        assert self._layout is not None, "whole_because says so"
        payload = self._layout.joined(payloads, self._numels)
        if isinstance(self._codec, Lossless):
            payload = self._codec.squeezed(payload, self._numel)
        return Message(self._codec.name, payload)

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged."""
        part, reader = self._decoder.reader(codec)
        try:
            refusals = self._checked(peer, part, reader, payload)
            for reason, detail in filter(None, refusals):
                raise PayloadError(reason, detail)
        except LostSliceError:
            raise
        except Exception:  # a decoder's own error, too: what it handed out before must not be added to the next payload
            self._holders.each("drop", peer)
            raise
        self._holders.each("advance", peer, gamma_of(reader, payload))

    def _checked(self, peer: str, part: Fragment, reader: Compressor, payload: bytes) -> list[Refusal | None]:
        """What each slice says of a payload. Raises PayloadError where that is seen here."""
        codec, body = _opened(reader, payload, part.numel)
        layout = layout_of(codec, body) if part.count == 1 else None
        if layout is not None and layout.cuts(self._numels):
            parts = [(each,) for each in layout.split(body, self._numels)]
            return self._holders.each("check", peer, codec.name, own=parts)
        self._deal_steps(peer, part, decoding(codec, body, part.numel))
        return self._holders.each("check_steps", peer)

    def track(self, peer: str, base: ByteSource | None) -> None:
        """Begin a neighbour's estimate at the genesis (None) or a snapshot. Raises PayloadError."""
        if base is not None:
            check_bytes(base, self._numel, self.config.estimate_dtype)
        self.forget(peer)  # first: two of one peer need not be held
        source = self._genesis_file if base is None else base
        if source is not None:
            deal(self._holders, BASE, source, self._itemsize)
        self._holders.each("track", peer, source is not None)
        self._tracked.add(peer)

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        if peer in self._tracked:
            self._tracked.discard(peer)
            self._holders.each("forget", peer)

    def aggregate(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Close the round over the named neighbours, each so many rounds old, in place: `theta_d` is given away."""
        closed: list[ClosedSlice] = self._holders.each("aggregate", dict(staleness), round, dict(shares))
        first = closed[0]
        return RoundResult(
            correction_d=SlicedVector.of(self._holders, CORRECTION),
            anchor_d=SlicedVector.of(self._holders, STATE + ANCHOR),
            snapshot_d=SlicedVector.of(self._holders, STATE + ANCHOR),
            consensus_distance=sum(each.consensus_distance**2 for each in closed) ** 0.5,
            members=first.members,
            robust=first.robust,
        )

    aggregate_ = aggregate

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """Return a late joiner's model: the trimmed mean of the neighbours' estimates, as `ModelAveraging` does."""
        self._holders.each("adopt", dict(staleness))
        return SlicedVector.of(self._holders, STATE + ANCHOR)

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """Do nothing: no codec that has a layout adapts to a link."""

    rung: Final = ""

    def snapshot(self) -> bytes:
        """Return the own public estimate, exact and whole: fp32 or bf16, little-endian."""
        return b"".join(self.snapshot_view().pieces())

    def snapshot_view(self) -> SlicedBytes:
        """Return the same where it lies: valid until the public estimate moves."""
        return SlicedBytes(self._holders, PUBLIC, self._itemsize)

    def estimate(self, peer: str) -> bytes | None:
        """Return a neighbour's estimate, exact and whole; None when it has none."""
        view = self.estimate_view(peer)
        return None if view is None else b"".join(view.pieces())

    def estimate_view(self, peer: str) -> SlicedBytes | None:
        """Return the same where it lies: valid until that estimate moves."""
        return SlicedBytes(self._holders, ESTIMATE + peer, self._itemsize) if peer in self._tracked else None

    def estimate_model(self, peer: str) -> torch.Tensor | None:
        """Return None: it is nowhere whole."""
        return None

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Keep the initial model in this file, and in no slice. Raises OSError."""
        for piece in SlicedBytes(self._holders, GENESIS, self._itemsize).pieces():
            file.append(piece)
        self._holders.each("drop_genesis")
        self._genesis_file = file

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the own state, as `ModelAveraging` does: vectors are `SlicedVector`s, to be read until they change."""
        layout: dict[str, torch.Tensor | None] = self._holders.one(0, "layout")
        return {
            name: SlicedVector.of(self._holders, STATE + name) if value is None else value
            for name, value in layout.items()
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`, of slices or of one process. ValueError when it is of another model."""
        vectors = [name for name, value in state.items() if value.shape == (self._numel,)]
        if ANCHOR not in vectors or any(state[name].dtype is not torch.float32 for name in vectors):
            raise ValueError(
                "the sync state belongs to another model or strategy: its vectors have other sizes or types"
            )
        for name in vectors:
            deal(self._holders, STATE + name, view_of(state[name]), FP32_BYTES)
        common = {name: value for name, value in state.items() if name not in vectors}
        self._holders.each("load", common, vectors)

    def _deal_steps(self, peer: str, part: Fragment, hand_out: Decoding) -> None:
        """Decode a payload here, and give each slice what it adds there. Raises PayloadError."""

        def take(at: slice, step_p: Floats) -> None:
            for in_model, in_step in part.within(at):
                step_r = step_p[in_step].astype("<f4", copy=False)
                values = slice(in_model.start * FP32_BYTES, in_model.stop * FP32_BYTES)
                raw = step_r.tobytes()
                for index, start, stop in within(self._holders.cuts, values, FP32_BYTES):
                    first = self._holders.cuts[index].start * FP32_BYTES + start - values.start
                    data = raw[first : first + stop - start]
                    self._holders.one(index, "note_step", peer, start // FP32_BYTES, data)

        hand_out(take)


def _within(codec: Compressor) -> Compressor:
    """The codec that makes a payload's values, where another one only squeezes its bytes."""
    return codec.inner if isinstance(codec, Lossless) else codec


def _opened(codec: Compressor, payload: Buffer, numel: int) -> tuple[Compressor, Buffer]:
    """That codec, and its payload. Raises PayloadError."""
    return (codec.inner, codec.inflated(payload, numel)) if isinstance(codec, Lossless) else (codec, payload)
