"""A strategy whose vectors lie in slices does, to the last bit, what one with whole vectors does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_slices import LocalSlices
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.payload_layout import layout_of
from p2ptrain.compress.q2 import LloydMax2Bit
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync import Message, RoundResult, SyncConfig, SyncStrategy, build
from p2ptrain.sync.base import InPlace
from p2ptrain.sync.model_slice import CORRECTION, THETA
from p2ptrain.sync.sliced_averaging import SlicedAveraging, unit_of, whole_because
from p2ptrain.sync.sliced_vectors import LARGEST_UNIT, SlicedVector, cuts_of
from p2ptrain.sync.vectors import to_bytes

D = 11 * 1024 + 77
CUT_CODECS = ("none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "rotated+q2", "rotated+int4", "lossless+q2")
WHOLE_CODECS = ("topk", "powersgd", "demo", "randomk", "adaptive", "warmup", "rotated+topk", "lossless+topk")
PEERS = ("a", "b", "c")


@pytest.mark.parametrize("name", [name for name in CUT_CODECS if "lossless" not in name])
@given(data=st.data())
@settings(max_examples=examples(12), deadline=None)
def test_payloads_of_slices_are_the_payload_of_the_whole(name: str, data: st.DataObject) -> None:
    codec = compress.get(name)
    layout = layout_of(codec)
    assert layout is not None
    units = data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=3))
    numels = [*(each * layout.unit for each in units), data.draw(st.integers(1, 2 * layout.unit + 1))]
    x_d = vector(sum(numels), seed=data.draw(st.integers(0, 9)))
    whole = codec.encode(x_d)
    parts = [codec.encode(x_p) for x_p in x_d.split(numels)]
    assert layout.cuts(numels)
    assert layout.joined(parts, numels) == whole
    assert layout.split(whole, numels) == parts
    read = layout_of(compress.get(name), whole)
    assert read is not None
    assert read.unit == layout.unit
    for wrong in (whole[:-1], whole + b"\0"):
        with pytest.raises(PayloadError, match="where the model needs"):
            layout.split(wrong, numels)


@pytest.mark.parametrize("name", WHOLE_CODECS)
def test_payloads_of_codecs_that_look_at_a_whole_vector_are_not_cut(name: str) -> None:
    assert layout_of(compress.get(name)) is None
    config = SyncConfig(compressor=name)
    assert whole_because(config) == f"sync.compressor = {name} looks at a whole vector"


def test_slices_that_were_encoded_in_different_ways_are_not_joined() -> None:
    codec = compress.get("rotated+q2")
    layout = layout_of(codec)
    assert layout is not None
    parts = [codec.encode(vector(1024)), codec.encode(vector(1024) * 2.0**95)]
    with pytest.raises(ValueError, match="encoded in different ways"):
        layout.joined(parts, [1024, 1024])


@pytest.mark.parametrize(
    ("settings_", "why"),
    [
        ({"strategy": "streaming"}, "sync.strategy = streaming works on whole vectors"),
        ({"strategy": "sparse_loco"}, "sync.strategy = sparse_loco works on whole vectors"),
        ({"strategy": "gossip_pga"}, "sync.strategy = gossip_pga works on whole vectors"),
        ({"strategy": "allreduce"}, "sync.strategy = allreduce works on whole vectors"),
        ({"strategy": "gradient"}, "sync.strategy = gradient works on whole vectors"),
        ({"aggregator": "krum"}, "sync.aggregator = krum looks at distances of whole vectors"),
        ({"aggregator": "nnm+median"}, "sync.aggregator = nnm+median looks at distances of whole vectors"),
        ({}, ""),
        ({"strategy": "diloco"}, ""),
        ({"strategy": "async"}, ""),
        ({"aggregator": "median", "compressor": "rotated+int4"}, ""),
    ],
)
def test_what_wants_whole_vectors_is_told(settings_: dict[str, Any], why: str) -> None:
    assert whole_because(SyncConfig(**settings_)) == why


@given(numel=st.integers(1, 5_000_000), count=st.integers(1, 9), unit=st.sampled_from([1, 256, 1024, 65_536]))
def test_slices_are_even_and_begin_at_units(numel: int, count: int, unit: int) -> None:
    cuts = cuts_of(numel, count, unit)
    assert 1 <= len(cuts) <= count
    assert [cut.stop for cut in cuts[:-1]] == [cut.start for cut in cuts[1:]]
    assert (cuts[0].start, cuts[-1].stop) == (0, numel)
    assert all(cut.start % unit == 0 for cut in cuts)
    assert max(cut.stop - cut.start for cut in cuts) <= numel / count + max(unit, numel / count / 16)


def test_slices_of_large_models_begin_where_any_codec_can_be_cut() -> None:
    assert all(cut.start % LARGEST_UNIT == 0 for cut in cuts_of(10**9, 8, 256))


class Pair:
    """The same node twice: with whole vectors, and with slices of them."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, cuts: Sequence[slice]) -> None:
        self.whole: Any = build(config, genesis_d.clone(), "own", rounds=40)
        self.holders = LocalSlices(cuts)
        self.sliced = SlicedAveraging(config, genesis_d, "own", self.holders, rounds=40)

    def put(self, x_d: torch.Tensor) -> torch.Tensor:
        """Put the model after a round's steps into the slices."""
        for part, at in zip(self.holders.slices, self.holders.cuts, strict=True):
            part.hold(THETA, x_d[at].clone())
        return SlicedVector.of(self.holders, THETA)

    def encode(self, theta_d: torch.Tensor, round_: int) -> Message:
        message: Message = self.whole.encode(theta_d, round=round_)
        assert self.sliced.encode(self.put(theta_d), round=round_) == message
        return message

    def aggregate(self, theta_d: torch.Tensor, staleness: dict[str, int], round_: int) -> RoundResult:
        shares = dict.fromkeys(staleness, 0.75)
        result: RoundResult = self.whole.aggregate_(theta_d.clone(), staleness, round=round_, shares=shares)
        again = self.sliced.aggregate_(SlicedVector.of(self.holders, THETA), staleness, round=round_, shares=shares)
        assert torch.equal(again.correction_d.clone(), result.correction_d)
        assert torch.equal(again.anchor_d.clone(), result.anchor_d)
        assert again.snapshot_d is not None
        assert torch.equal(again.snapshot_d.clone(), result.anchor_d)
        assert again.consensus_distance == pytest.approx(result.consensus_distance, rel=1e-5)
        assert (again.members, again.robust, again.clipped) == (result.members, result.robust, ())
        for part in self.holders.slices:
            part.taken(CORRECTION)
        return result

    def check(self) -> None:
        """All that others, or a checkpoint, can be given is the same."""
        assert self.sliced.snapshot() == self.whole.snapshot()
        for peer in PEERS:
            assert self.sliced.estimate(peer) == self.whole.estimate(peer)
        state, again = self.whole.state_dict(), self.sliced.state_dict()
        assert state.keys() == again.keys()
        assert all(torch.equal(again[name].clone(), value) for name, value in state.items())


@pytest.mark.parametrize(
    "settings_",
    [
        pytest.param({}, id="tracked_gossip"),
        pytest.param({"estimates": "bf16", "compressor": "int4", "format": "e3m0"}, id="bf16"),
        pytest.param({"strategy": "diloco", "aggregator": "median"}, id="diloco"),
        pytest.param({"strategy": "async", "every": 2}, id="async"),
        pytest.param({"compressor": "lossless+q2", "aggregator": "mean", "f": 0}, id="lossless"),
        pytest.param({"compressor": "rotated+q2", "rotated.block": 2048}, id="rotated"),
        pytest.param({"compressor": "fp16", "gamma": 0.5, "aggregator": "meamed"}, id="fp16"),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_rounds_in_slices_are_rounds_of_whole_vectors(settings_: dict[str, Any], count: int) -> None:
    config = SyncConfig(**settings_)
    assert whole_because(config) == ""
    genesis_d = vector(D)
    pair = Pair(config, genesis_d, cuts_of(D, count, unit_of(config)))
    assert len(pair.holders.cuts) == count
    # Neighbours take whatever codec they like: one whose payloads are not cut, and one that sends fragments.
    others = [
        build(SyncConfig(**theirs), genesis_d, peer)
        for peer, theirs in zip(
            PEERS,
            (settings_, {"compressor": "lossless+topk"}, {"strategy": "streaming", "estimates": config.estimates}),
            strict=True,
        )
    ]
    for node in (pair.whole, pair.sliced):
        node.track("a", None)
        node.track("c", None)
    theta_d = genesis_d
    for round_ in range(5):
        theta_d = theta_d + 0.02 * vector(D, seed=round_ + 1)
        pair.encode(theta_d, round_)
        if round_ == 1:
            for node in (pair.whole, pair.sliced):
                node.track("b", to_bytes(vector(D, seed=40).to(config.estimate_dtype)))
        for seed, (peer, other) in enumerate(zip(PEERS, others, strict=True), 10 * round_):
            message = other.encode(genesis_d + 0.02 * vector(D, seed=seed), round=round_)
            if peer != "b" or round_ > 1:
                for node in (pair.whole, pair.sliced):
                    node.apply(peer, *message)
        staleness = {} if round_ == 3 else {peer: number % 2 for number, peer in enumerate(PEERS[: 2 + (round_ > 1)])}
        theta_d = theta_d + pair.aggregate(theta_d, staleness, round_).correction_d
        pair.check()
    assert torch.equal(pair.sliced.adopt(dict.fromkeys(PEERS, 0)).clone(), pair.whole.adopt(dict.fromkeys(PEERS, 0)))
    pair.check()


def test_a_slice_holds_its_share_of_each_vector() -> None:
    config, numel, count = SyncConfig(), 64 * 1024, 4
    pair = Pair(config, vector(numel), cuts_of(numel, count, unit_of(config)))
    for peer in PEERS:
        pair.sliced.track(peer, to_bytes(vector(numel)))
    pair.sliced.encode(pair.put(vector(numel)), round=0)
    vectors = 1 + 1 + 1 + 1 + len(PEERS)  # theta, the anchor, which is the genesis yet, its own, the public one
    shares = [part.nbytes / (4 * numel / count) for part in pair.holders.slices]
    assert all(share <= vectors for share in shares)
    assert min(shares) >= 3 + len(PEERS)


def test_a_state_goes_on_in_other_slices_and_in_one_process() -> None:
    config = SyncConfig(strategy="diloco")
    genesis_d = vector(D)
    pair = Pair(config, genesis_d, cuts_of(D, 3, 1024))
    for node in (pair.whole, pair.sliced):
        node.track("a", to_bytes(vector(D, seed=3)))
    pair.encode(genesis_d + 0.1, 0)
    pair.aggregate(genesis_d + 0.1, {"a": 0}, 0)
    kept = {name: value.clone() for name, value in pair.sliced.state_dict().items()}
    again = Pair(config, genesis_d, cuts_of(D, 2, 1024))
    for node in (again.whole, again.sliced):
        node.load_state_dict(kept)
    again.check()
    assert again.sliced.state_dict()["anchor"].clone().equal(kept["anchor"])
    for wrong in ({}, {"anchor": torch.zeros(D + 1)}, {"anchor": torch.zeros(D, dtype=torch.float64)}):
        with pytest.raises(ValueError, match="belongs to another model"):
            again.sliced.load_state_dict(wrong)
    again.check()


def test_a_payload_that_is_bad_in_one_slice_moves_none() -> None:
    config = SyncConfig()
    pair = Pair(config, torch.zeros(D), cuts_of(D, 3, 1024))
    other = build(SyncConfig(compressor="none"), torch.zeros(D), "a")
    for node in (pair.whole, pair.sliced):
        node.track("a", None)
    payload = bytearray(other.encode(vector(D), round=0).payload)
    payload[-4:] = b"\0\0\x7f\x7f"  # beyond all bounds, and finite
    bad: list[tuple[str, bytes]] = [("none", bytes(payload)), ("none", b"1"), ("nosuch", b""), ("q2", b"1" * 99)]
    topk = compress.get("topk").encode(torch.cat([torch.zeros(D - 1), torch.tensor([1e30])]))
    for codec, wrong in [*bad, ("topk", topk)]:
        reasons = []
        for node in (pair.whole, pair.sliced):
            with pytest.raises(PayloadError) as refused:
                node.apply("a", codec, wrong)
            reasons.append(refused.value.reason)
        assert reasons[0] == reasons[1]
        pair.check()
    for node in (pair.whole, pair.sliced):
        node.apply("a", *build(config, torch.zeros(D), "a").encode(vector(D), round=0))
    pair.check()


def test_a_decoder_that_fails_costs_the_sender_and_not_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SyncConfig()
    pair = Pair(config, torch.zeros(D), cuts_of(D, 2, 1024))
    pair.sliced.track("a", None)
    message = build(config, torch.zeros(D), "a").encode(vector(D), round=0)

    def fails(*given: object) -> None:
        raise IndexError("beyond")

    with monkeypatch.context() as patched:
        patched.setattr(LloydMax2Bit, "decode_rows", fails)
        with pytest.raises(PayloadError, match="malformed: IndexError while decoding q2"):
            pair.sliced.apply("a", *message)
    pair.sliced.apply("a", *message)


def test_a_peer_that_is_not_tracked_is_refused_and_forgetting_is_final() -> None:
    config = SyncConfig()
    pair = Pair(config, torch.zeros(D), cuts_of(D, 2, 1024))
    message = build(config, torch.zeros(D), "a").encode(vector(D), round=0)
    pair.sliced.forget("a")
    with pytest.raises(PayloadError, match="not tracked"):
        pair.sliced.apply("a", *message)
    pair.sliced.track("a", None)
    pair.sliced.apply("a", *message)
    pair.sliced.forget("a")
    assert pair.sliced.estimate("a") is None
    with pytest.raises(PayloadError, match="not tracked"):
        pair.sliced.apply("a", "topk", compress.get("topk").encode(vector(D)))


@pytest.mark.parametrize("estimates", ["fp32", "bf16"])
def test_the_genesis_may_lie_in_a_file_and_newcomers_begin_there(estimates: str, tmp_path: Path) -> None:
    config = SyncConfig(estimates=estimates)
    pair = Pair(config, vector(D), cuts_of(D, 3, 1024))
    pair.sliced.track("a", None)
    pair.sliced.keep_genesis_in(NamelessFile(tmp_path))
    assert all(part.nbytes <= 4 * 3 * part.numel for part in pair.holders.slices), "anchor, public one, estimate"
    pair.sliced.track("b", None)
    assert pair.sliced.estimate("b") == pair.sliced.estimate("a") == to_bytes(vector(D).to(config.estimate_dtype))
    message = build(config, vector(D), "a").encode(vector(D, seed=9), round=0)
    pair.sliced.apply("a", *message)
    assert pair.sliced.estimate("b") == to_bytes(vector(D).to(config.estimate_dtype))


def test_a_model_that_is_not_finite_in_one_slice_is_not_sent() -> None:
    pair = Pair(SyncConfig(), torch.zeros(D), cuts_of(D, 3, 1024))
    theta_d = torch.zeros(D)
    theta_d[-1] = torch.nan
    with pytest.raises(ValueError, match="parameters are not finite"):
        pair.sliced.encode(pair.put(theta_d), round=0)
    pair.check()
    low, high = SlicedVector.of(pair.holders, THETA).aminmax()
    assert low.isnan()
    assert high.isnan()
    with pytest.raises(TypeError, match="held in slices"):
        torch.neg(SlicedVector.of(pair.holders, THETA))


def test_it_is_a_strategy_that_works_in_place() -> None:
    sliced = Pair(SyncConfig(), torch.zeros(D), cuts_of(D, 2, 1024)).sliced
    assert isinstance(sliced, SyncStrategy)
    assert isinstance(sliced, InPlace)
