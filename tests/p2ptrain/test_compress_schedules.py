"""Compressors that choose another one: `warmup` by count, `adaptive` by budget."""

import pytest
import torch
from vectors import vector

from p2ptrain import attacks, compress
from p2ptrain.compress import PayloadError, Stateful
from p2ptrain.compress.adaptive import CODES, LADDER, Adaptive, Rung, adaptive_in
from p2ptrain.compress.int8 import Int8
from p2ptrain.compress.sign1 import ScaledSign
from p2ptrain.compress.topk import TopK
from p2ptrain.compress.warmup import Warmup
from p2ptrain.sync import Byzantine, SyncConfig, build


@pytest.mark.parametrize("whole", ["none", "fp16"])
@pytest.mark.parametrize("encodes", [0, 1, 3])
def test_the_first_payloads_are_whole(whole: str, encodes: int) -> None:
    codec, x_d = compress.get("warmup+q2", encodes=encodes, whole=whole), vector(3000)
    for i in range(encodes + 3):
        part = compress.get(whole if i < encodes else "q2")
        assert (codec.contraction, codec.gamma) == (part.contraction, part.gamma)
        payload = codec.encode(x_d)
        assert payload[1:] == part.encode(x_d)
        assert torch.equal(compress.get("warmup+q2").decode(payload, 3000), part.decode(payload[1:], 3000))


def test_warmup_counts_across_restarts() -> None:
    codec, x_d = Warmup(encodes=2), vector(100)
    codec.encode(x_d)
    restarted = Warmup(encodes=2)
    restarted.load_state_dict(codec.state_dict())
    assert [restarted.encode(x_d)[0] for _ in range(2)] == [1, 2]
    restarted.reset()
    assert restarted.encode(x_d)[0] == 1


def test_an_inner_memory_is_kept_apart() -> None:
    codec, x_d = compress.get("warmup+randomk", encodes=1), vector(500)
    payloads = [codec.encode(x_d) for _ in range(4)]
    other = compress.get("warmup+randomk", encodes=1)
    for _ in range(2):
        other.encode(x_d)
    assert isinstance(other, Stateful)
    state = other.state_dict()
    assert {name: int(value) for name, value in state.items()} == {"done": 2, "inner.encodes": 1}
    restarted = compress.get("warmup+randomk", encodes=1)
    assert isinstance(restarted, Stateful)
    restarted.load_state_dict(state)
    assert [restarted.encode(x_d) for _ in range(2)] == payloads[2:]
    restarted.reset()
    assert [restarted.encode(x_d) for _ in range(4)] == payloads
    for wrong in (
        {"done": state["done"]},
        {"inner.encodes": state["inner.encodes"]},
        {**state, "inner.more": state["done"]},
    ):
        if "inner.encodes" not in wrong:  # begins anew within
            continue
        with pytest.raises(ValueError, match="state"):
            restarted.load_state_dict(wrong)


@pytest.mark.parametrize("payload", [b"\3" + bytes(400), b"\xff"])
def test_an_unknown_kind_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError) as refused:
        compress.get("warmup").decode(payload, 100)
    assert refused.value.reason == "malformed"


def test_warmup_options_are_checked() -> None:
    with pytest.raises(ValueError, match="encodes"):
        compress.get("warmup", encodes=-1)
    with pytest.raises(ValueError, match="whole"):
        compress.get("warmup", whole="q2")


def weights(numel: int) -> list[int]:
    return [1 + len(rung.codec.encode(vector(numel))) for rung in LADDER]


def test_each_rung_is_lighter_and_keeps_less() -> None:
    assert weights(100_000) == sorted(weights(100_000), reverse=True)
    x_d = vector(100_000)
    errors = [float((rung.codec.decode(rung.codec.encode(x_d), 100_000) - x_d).square().sum()) for rung in LADDER]
    assert errors == sorted(errors)


@pytest.mark.parametrize("numel", [100, 5000, 70_001])
def test_the_finest_rung_that_fits_is_taken(numel: int) -> None:
    x_d, weighs = vector(numel), weights(numel)
    budgets = sorted({1.0, 1e12, *(w + more for w in weighs for more in (-0.5, 0, 0.5))})
    for order in (budgets, budgets[::-1], budgets[1::2] + budgets[::2]):
        codec = Adaptive()
        for room in order:
            codec.budget(room / 2, 2)
            fitting = [i for i, weight in enumerate(weighs) if weight <= room]
            rung = LADDER[fitting[0] if fitting else -1]
            payload = codec.encode(x_d)
            assert payload == bytes([rung.code]) + rung.codec.encode(x_d)
            assert (codec.contraction, codec.gamma) == (rung.codec.contraction, rung.codec.gamma)
            assert torch.equal(compress.get("adaptive").decode(payload, numel), rung.codec.decode(payload[1:], numel))


def test_without_a_budget_the_finest() -> None:
    assert Adaptive().encode(vector(50))[0] == LADDER[0].code


def test_lengths_are_remembered_by_size() -> None:
    class Counting(Int8):
        encodes = 0

        def encode(self, x_d: torch.Tensor) -> bytes:
            Counting.encodes += 1
            return super().encode(x_d)

    rung = Rung(Int8)
    rung.__dict__["codec"] = Counting()
    codec = Adaptive(ladder=[rung, Rung(ScaledSign)])
    codec.budget(100, 1)
    for numel, encodes in ((500, 1), (500, 1), (501, 2), (501, 2), (20, 3), (20, 4)):
        codec.encode(vector(numel))
        assert Counting.encodes == encodes


def test_codes_are_part_of_the_format() -> None:
    assert [member.name for member in CODES] == ["none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "topk"]


def test_receivers_read_every_code_and_any_options() -> None:
    x_d = vector(5000)
    for member in CODES:
        payload = Adaptive(ladder=[Rung(member)]).encode(x_d)
        assert torch.equal(compress.get("adaptive").decode(payload, 5000), member().decode(payload[1:], 5000))
    rung = Rung(TopK, {"ratio": 0.5, "value_bits": 5})
    payload = Adaptive(ladder=[rung]).encode(x_d)
    assert torch.equal(compress.get("adaptive").decode(payload, 5000), rung.codec.decode(payload[1:], 5000))
    with pytest.raises(PayloadError) as refused:
        compress.get("adaptive").decode(bytes([len(CODES)]) + payload[1:], 5000)
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, -1), (float("nan"), 1), (1, float("nan"))])
def test_budgets_are_checked(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        Adaptive().budget(rate, seconds)


def test_a_ladder_is_checked() -> None:
    with pytest.raises(ValueError, match="rung"):
        Adaptive(ladder=[])
    with pytest.raises(ValueError, match="not in tuple"):
        Adaptive(ladder=[Rung(Adaptive)])


def test_rungs_have_names_for_the_eye() -> None:
    assert [rung.label for rung in LADDER] == ["int8", "int4", "q2", "sign1", "topk 1/32", "topk 1/128"]
    codec = Adaptive()
    assert codec.rung == "int8"
    codec.budget(1.0, 1.0)
    codec.encode(vector(5000))
    assert codec.rung == "topk 1/128"


@pytest.mark.parametrize("name", ["adaptive", "lossless+adaptive", "warmup+lossless+adaptive"])
def test_it_is_found_within_stages(name: str) -> None:
    assert adaptive_in(compress.get(name)) is not None
    assert adaptive_in(compress.get(name.replace("adaptive", "q2"))) is None


@pytest.mark.parametrize("strategy", ["tracked_gossip", "sparse_loco", "streaming", "async"])
def test_a_strategy_passes_its_budget_on(strategy: str) -> None:
    outer = {"outer": "average"} if strategy == "async" else {}
    config = SyncConfig(strategy=strategy, compressor="adaptive", **outer)  # type: ignore[arg-type]
    lying = Byzantine(build(config, vector(9000), "own"), attacks.get("sign_flip"))
    for node in (build(config, vector(9000), "own"), lying):
        sizes = {"": 0}
        for round, (speed, rung) in enumerate([(1e9, "int8"), (20.0, "topk 1/128"), (1e9, "int8")]):
            node.budget(speed, 2.0)
            sizes[node.rung] = len(node.encode(vector(9000, seed=round + 1), round=round).payload)
            assert node.rung == rung
        assert sizes["topk 1/128"] < sizes["int8"] / 10
        with pytest.raises(ValueError, match="above 0"):
            node.budget(0.0, 1.0)


def test_other_compressors_take_no_notice_of_a_budget() -> None:
    node = build(SyncConfig(), vector(5000), "own")
    node.budget(1.0, 1.0)
    assert node.encode(vector(5000, seed=1), round=0).codec == "q2"
    assert node.rung == ""


def test_a_swinging_outer_step_is_refused_what_may_become_coarse() -> None:
    with pytest.raises(ValueError, match="adaptive loses"):
        SyncConfig(strategy="diloco", compressor="adaptive")
