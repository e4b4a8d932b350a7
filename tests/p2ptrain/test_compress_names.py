"""Composed names: what they build, which options they take, and how little a name from a peer can ask for."""

import doctest
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import Compressor, PayloadError, Stateful
from p2ptrain.compress.compose_codecs import MAX_NAME, MAX_PARTS
from p2ptrain.compress.dense import Dense
from p2ptrain.compress.stage import Stage
from p2ptrain.registry import BadOptionError, UnknownMemberError

STAGES = ["demo", "lossless", "randomk", "rotated", "warmup"]
BASES = sorted(set(compress.names()) - set(STAGES))
PAIRS = [f"{stage}+{base}" for stage in STAGES for base in BASES]
TRIPLES = [f"{a}+{b}+{base}" for a, b in itertools.permutations(STAGES, 2) for base in ("int8", "topk")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAIRS, *TRIPLES])
def test_every_composition_reads_itself_by_name_alone(name: str) -> None:
    codec = compress.get(name)
    assert codec.name == name
    assert isinstance(codec, Compressor)
    assert 0 < codec.contraction <= 1
    assert 0 < codec.gamma <= 1
    for numel in (1, 700, 5003):
        compress.base.reset(codec)
        x_d = vector(numel)
        for _ in range(2):
            payload = codec.encode(x_d)
            decoded_d = compress.get(name).decode(payload, numel)
            assert torch.equal(decoded_d, codec.decode(payload, numel))
            assert float((decoded_d - x_d).square().sum()) <= float(x_d.square().sum()) * (1 + 1e-5)
        for wrong in (b"", payload[:1], payload[:-1], payload + b"\0", payload + payload):
            with pytest.raises(PayloadError) as refused:
                codec.decode(wrong, numel)
            assert refused.value.reason == "wrong_shape"
    x_d = vector(5003)
    x_d[4000] = torch.nan
    with pytest.raises(PayloadError) as refused:
        codec.decode(codec.encode(x_d), 5003)
    assert refused.value.reason == "nonfinite"


@settings(max_examples=examples(200), deadline=None)
@given(name=st.sampled_from([*PAIRS, *TRIPLES]), junk=st.binary(max_size=400), numel=st.integers(1, 300))
def test_compositions_read_or_refuse_any_bytes(name: str, junk: bytes, numel: int) -> None:
    assert_reads_or_refuses(compress.get(name), junk, numel)


@settings(max_examples=examples(200), deadline=None)
@given(name=st.sampled_from([*PAIRS, *TRIPLES]), numel=st.integers(1, 2000), data=st.data())
def test_compositions_read_or_refuse_spoiled_payloads(name: str, numel: int, data: st.DataObject) -> None:
    codec = compress.get(name)
    payload = bytearray(codec.encode(vector(numel)))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, min(len(payload) - 1, 40)))] = data.draw(st.integers(0, 255))
    assert_reads_or_refuses(codec, bytes(payload), numel)


def assert_reads_or_refuses(codec: Compressor, payload: bytes, numel: int) -> None:
    reason, decoded_d = "", torch.empty(0)
    try:
        decoded_d = codec.decode(payload, numel)
    except PayloadError as refused:
        reason = refused.reason
    if reason:
        assert reason in {"wrong_shape", "malformed", "nonfinite"}
    else:
        assert decoded_d.shape == (numel,)
        assert torch.isfinite(decoded_d).all()


def test_a_stage_alone_wraps_its_default() -> None:
    defaults = {stage: compress.get(stage).name for stage in STAGES}
    assert defaults == {
        "demo": "demo+topk",
        "lossless": "lossless+topk",
        "randomk": "randomk+int8",
        "rotated": "rotated+q2",
        "warmup": "warmup+sign1",
    }


def test_options_go_to_the_part_that_takes_them() -> None:
    x_d = vector(4096)
    codec = compress.get("rotated+topk", block=64, ratio=0.5)
    expected = compress.get("rotated+topk", **{"rotated.block": 64, "topk.ratio": 0.5})
    assert codec.encode(x_d) == expected.encode(x_d) != compress.get("rotated+topk").encode(x_d)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotated+q2", {"ratio": 0.1}, "no part takes the option 'ratio'; its options: rotated.block, rotated.seed"),
        ("rotated+topk", {"topk.block": 1}, "no part takes the option 'topk.block'"),
        ("rotated+q2", {"lossless.level": 1}, "no part takes the option 'lossless.level'"),
        ("rotated+randomk", {"seed": 1}, "write rotated.seed or randomk.seed"),
        ("rotated+topk", {"ratio": 0.1, "topk.ratio": 0.1}, "given twice"),
        ("rotated+q2", {"inner": None}, "no part takes the option 'inner'"),
        ("q2", {"ratio": 1}, "its options: none"),
    ],
)
def test_options_that_no_part_takes_are_refused_by_name(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadOptionError, match=message):
        compress.get(name, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zip", "q2"),
        ("zip+q2", "'zip'"),
        ("rotated+zip", "'zip'"),
        ("q2+topk", "'q2' is no stage"),
        ("rotated+q2+topk", "'q2' is no stage"),
        ("rotated+rotated+q2", "once"),
        ("q2+q2", "once"),
        ("", "''"),
        ("+q2", "''"),
        ("rotated+", "''"),
        ("demo+warmup+lossless+rotated+q2", f"{MAX_PARTS} parts"),
        ("rotated+" * 10_000 + "q2", f"{MAX_NAME} characters"),
    ],
)
def test_names_that_cannot_be_are_unknown(name: str, message: str) -> None:
    with pytest.raises(UnknownMemberError, match=message) as refused:
        compress.get(name)
    assert len(str(refused.value)) < 400
    with pytest.raises(UnknownMemberError):
        compress.check(name)


def test_the_examples_run() -> None:
    results = doctest.testmod(compress)
    assert (results.failed, results.attempted) == (0, 6)


def test_check_knows_what_get_knows() -> None:
    for name in [*compress.names(), *PAIRS]:
        compress.check(name)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(name=st.lists(st.sampled_from([*STAGES, *BASES, "", "x"]), min_size=1, max_size=6).map("+".join))
def test_any_name_builds_or_is_unknown(name: str) -> None:
    try:
        codec = compress.get(name)
    except UnknownMemberError:
        return
    assert codec.name.split("+")[: name.count("+") + 1] == name.split("+")


def test_a_stage_of_another_package_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Negated(Stage):
        stage = "negated"

        def __init__(self, inner: Compressor | None = None, *, times: float = 1.0) -> None:
            super().__init__(inner or Dense())
            self.times = times

        def encode(self, x_d: torch.Tensor) -> bytes:
            return self.inner.encode(-self.times * x_d)

        def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
            return -self.inner.decode(payload, numel)

    monkeypatch.setitem(compress.COMPRESSORS._factories, "negated", Negated)
    x_d = vector(100)
    for name in ("negated", "negated+none", "lossless+negated+none", "negated+lossless+none"):
        codec = compress.get(name, **{"negated.times": 2.0})
        assert torch.equal(codec.decode(codec.encode(x_d), 100), 2 * x_d)


def test_a_composition_remembers_what_its_parts_do() -> None:
    codec = compress.get("lossless+warmup+randomk")
    assert isinstance(codec, Stateful)
    assert codec.state_dict().keys() == {"inner.done", "inner.inner.encodes"}
    stateless = compress.get("lossless+rotated+q2")
    assert isinstance(stateless, Stateful)
    assert stateless.state_dict() == {}
    with pytest.raises(ValueError, match=r"no memory|no state"):
        stateless.load_state_dict({"inner.inner.encodes": torch.tensor(1)})


def test_an_empty_state_begins_anew_and_a_foreign_one_is_refused() -> None:
    codec, x_d = compress.get("randomk"), vector(100)
    first = codec.encode(x_d)
    compress.base.load_state(codec, {})
    assert codec.encode(x_d) == first
    with pytest.raises(ValueError, match="no memory"):
        compress.base.load_state(compress.get("q2"), {"encodes": torch.tensor(1)})
