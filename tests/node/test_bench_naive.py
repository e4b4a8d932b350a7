"""What kernels are measured against does the same work: plain versions, and the order of taking turns."""

import pytest
import torch

from node.bench import baseline, bounds, rivals, timing
from p2ptrain import aggregate, compress

RULES = [name for name in (*aggregate.names(), "nnm+trimmed_mean", "nnm+mean") if baseline.aggregator(name, 0)]
CODECS = [name for name in compress.names() if baseline.codec(name)]


def vectors(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n))


def test_there_are_plain_versions():
    assert {"mean", "trimmed_mean", "median", "krum", "nnm+trimmed_mean"} <= set(RULES)
    assert {"none", "fp16", "int8", "q2", "sign1", "topk"} <= set(CODECS)
    assert baseline.codec("powersgd") is None
    assert baseline.aggregator("cs_plus", 1) is None


@pytest.mark.parametrize("name", RULES)
def test_a_plain_rule_gives_what_ours_gives(name):
    x_nd = vectors(9, 700)
    plain = baseline.aggregator(name, 2)
    assert plain is not None
    loose = 1e-2 if name == "geometric_median" else 1e-5  # a few steps, where ours go on until nothing moves
    torch.testing.assert_close(plain(x_nd), aggregate.get(name, f=2)(x_nd), rtol=loose, atol=loose)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("numel", [4096, 5003])
def test_a_plain_codec_loses_what_ours_loses(name, numel):
    x_d, codec = vectors(1, numel)[0], compress.get(name)
    encode, decode = baseline.codec(name)
    plain_d, ours_d = decode(encode(x_d), numel), codec.decode(codec.encode(x_d), numel)

    def lost(seen_d: torch.Tensor) -> float:
        return float((x_d - seen_d).square().sum() / x_d.square().sum())

    assert plain_d.shape == (numel,)
    assert lost(plain_d) == pytest.approx(lost(ours_d), rel=0.75, abs=1e-6)


def test_candidates_take_turns_with_the_reference(monkeypatch):
    called: list[str] = []
    clock = iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(timing.time, "process_time", lambda: 2.0 * next(clock))
    works = {name: lambda name=name: called.append(name) for name in ("a", "b")}
    taken = timing.in_turns(lambda: called.append("reference"), works, rounds=2)
    turn = ["reference", "a", "reference", "b"]
    assert called == ["reference", "a", "b", *turn, *turn]
    every = timing.Taken(ratio=1.0, cpu_ratio=1.0, seconds=2.0, cpu_seconds=4.0)
    assert taken == {"a": every, "b": every}


def test_a_slow_candidate_gets_fewer_turns():
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1

    timing.in_turns(lambda: None, {"slow": slow}, rounds=15, budget_s=0.0)
    assert calls == 1 + timing.LEAST_ROUNDS


def test_the_number_of_threads_comes_back():
    with timing.threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1


def test_the_bound_is_a_mean_and_the_compare_exchanges():
    least = bounds.Bounds(3, gram=2.0, copy_traffic=1.0, exchange=0.5)
    # The middle of three: by three exchanges at most, and not by none.
    found = least.of("median", 1)
    assert found == least.of("trimmed_mean", 1)
    assert 1 < found <= 1 + 3 * 0.5
    assert least.of("krum", 1) is None
    assert least.of("trimmed_mean", 0) is None
    assert bounds.Bounds(3, gram=2.0, copy_traffic=1.0, exchange=None).of("median", 1) is None
    measured = bounds.measure(vectors(5, 20_000), threads=1, rounds=3)
    assert measured.gram > 0
    assert measured.of("median", 2) > measured.of("trimmed_mean", 1) > 1


def test_absent_rivals_are_named_and_not_needed():
    for name, found in (("byzfl", rivals.byzfl_rule("krum", 1)), ("hivemind", rivals.hivemind_codec("fp16"))):
        notes = rivals.absent(name)
        assert (found is None) == any("not installed" in note for note in notes)
    assert rivals.byzfl_rule("cs_plus", 1) is None
    assert rivals.hivemind_codec("q2") is None
