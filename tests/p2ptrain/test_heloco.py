"""Neighbours' movements corrected by direction, against the formula written out block by block in float64."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.sync import SyncConfig, SyncStrategy, build, mixing
from p2ptrain.sync.heloco import LEAST_MOMENTUM, DirectionCorrection
from p2ptrain.sync.model_averaging import ModelAveraging

Values = npt.NDArray[np.float64]

D, BLOCK = 3 * 64 + 10, 64
CORRECTION = DirectionCorrection(keep=0.2, shrink=1.0, most_shrink=1.0, turn=0.5, kappa=1.0, block=BLOCK)
EXACT: dict[str, Any] = {"strategy": "heloco", "compressor": "none", "block": BLOCK, "alpha": 0.4, "beta": 0.5}


def vector(seed: int, numel: int = D) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def corrected(delta: Values, momentum: Values, share: float) -> Values:
    """One block by the paper's formula, in its own words: unit vectors, and no linear combination."""
    length, mean = float(np.linalg.norm(delta)), float(np.linalg.norm(momentum)) * share
    if length == 0 or mean == 0:
        return delta
    u, v = delta / length, momentum / np.linalg.norm(momentum)
    cosine, sure = float(u @ v), length / (length + CORRECTION.kappa * mean)
    if cosine >= CORRECTION.keep:
        return delta
    if cosine < 0:
        return delta - min(CORRECTION.shrink * -cosine * sure, CORRECTION.most_shrink) * cosine * length * v
    turn = min(CORRECTION.turn * (1 - cosine) * sure, 1)
    along: Values = (1 - turn) * u + turn * v
    return length * along / np.linalg.norm(along)


def rounds(config: SyncConfig, count: int, peers: int = 3) -> ModelAveraging:
    """A node after so many rounds with neighbours that all move at random."""
    node, others = pair(config, peers)
    for round in range(count):
        play(node, others, round)
    return node


def pair(config: SyncConfig, peers: int) -> tuple[ModelAveraging, dict[str, SyncStrategy]]:
    node = build(config, vector(0))
    assert isinstance(node, ModelAveraging)
    others = {f"p{index}": build(config, vector(0)) for index in range(peers)}
    for name in others:
        node.track(name, None)
    return node, others


def play(node: ModelAveraging, others: dict[str, SyncStrategy], round: int) -> torch.Tensor:
    theta_d = node.anchor_d + vector(100 * round + 1)
    node.encode(theta_d, round=round)
    for index, (name, other) in enumerate(others.items()):
        message = other.encode(node.anchor_d + vector(100 * round + 2 + index), round=round)
        node.apply(name, message.codec, message.payload)
    node.aggregate(theta_d, dict.fromkeys(others, 0), round=round)
    return theta_d


def test_a_round_is_the_formula_block_by_block() -> None:
    node, others = pair(SyncConfig(**EXACT), 3)
    play(node, others, 0)
    play(node, others, 1)
    phi, momentum = node.anchor_d.double().numpy(), node.state_dict()["outer.0.momentum"].double().numpy()
    theta = play(node, others, 2).double().numpy()
    moves, kinds = [np.zeros(D)], set()
    for model_d in node.estimates.values():
        delta = model_d.double().numpy() - phi
        blocks = [slice(begin, begin + BLOCK) for begin in range(0, D, BLOCK)]
        whole = np.concatenate([corrected(delta[at], momentum[at], 0.6) for at in blocks])
        kinds |= {math.copysign(1, delta[at] @ momentum[at]) for at in blocks}
        moves.append(phi + whole - theta)
    assert kinds == {1.0, -1.0}, "both cases are met"
    target = theta + np.mean(moves, axis=0)
    moved = target - phi + 0.4 * (0.4 * momentum + target - phi)
    np.testing.assert_allclose(node.anchor_d.numpy(), phi + 0.5 * moved, atol=2e-6)


@pytest.mark.parametrize("off", [{"shrink": 0.0, "turn": 0.0}, {"keep": 0.0, "most_shrink": 0.0}, {"outer": "average"}])
def test_without_strength_or_momentum_it_is_diloco_to_the_last_bit(off: dict[str, Any]) -> None:
    plain = {"strategy": "diloco", "compressor": "none"} | ({"outer": "average"} if "outer" in off else {"alpha": 0.5})
    exact = {"strategy": "heloco", "compressor": "none", **off} | ({} if "outer" in off else {"alpha": 0.5})
    assert torch.equal(rounds(SyncConfig(**exact), 4).anchor_d, rounds(SyncConfig(**plain), 4).anchor_d)
    on = {"strategy": "heloco", "compressor": "none", "alpha": 0.5}
    assert not torch.equal(rounds(SyncConfig(**on), 4).anchor_d, rounds(SyncConfig(**plain), 4).anchor_d)


@pytest.mark.parametrize("outer", [{"outer": "nesterov"}, {"outer": "delayed_nesterov", "every": 2}])
def test_it_corrects_by_the_momentum_of_either_outer_step(outer: dict[str, Any]) -> None:
    plain_d = rounds(SyncConfig(**EXACT, **outer, shrink=0.0, turn=0.0), 4).anchor_d
    assert not torch.equal(rounds(SyncConfig(**EXACT, **outer), 4).anchor_d, plain_d)


@pytest.mark.parametrize("gamma", [None, 0.3])
def test_late_updates_and_a_consensus_step_count_as_in_diloco(gamma: float | None) -> None:
    def moved(strategy: str, staleness: int, **off: float) -> torch.Tensor:
        config = SyncConfig(strategy=strategy, compressor="int4", gamma=gamma, **off)
        node, others = pair(config, 2)
        play(node, others, 0)
        theta_d = node.anchor_d + vector(7)
        node.encode(theta_d, round=1)
        return node.aggregate(theta_d, {"p0": staleness, "p1": 0}, round=1).anchor_d

    late_d = moved("heloco", 3, shrink=0.0, turn=0.0)
    assert torch.equal(late_d, moved("diloco", 3))
    assert not torch.equal(late_d, moved("diloco", 0))


@pytest.mark.parametrize("outer", ["nesterov", "delayed_nesterov"])
@pytest.mark.parametrize("rule", ["mean", "clipped_gossip"])
def test_a_round_in_slices_is_the_round_at_once(outer: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor and the momentum change slice by slice: what a slice reads of them is what was there before."""
    options = EXACT | {"outer": outer, "aggregator": rule, "f": int(rule != "mean"), "block": 48}
    config = SyncConfig(**options | ({"every": 2} if outer == "delayed_nesterov" else {}))
    at_once_d = rounds(config, 5).anchor_d
    monkeypatch.setattr(mixing, "SEGMENT_NUMEL", 32)
    assert torch.equal(rounds(config, 5).anchor_d, at_once_d)


@given(
    seed=st.integers(0, 2**31),
    length=st.floats(1e-6, 1e6),
    toward=st.floats(-3, 3),
    share=st.floats(0.05, 1),
    strengths=st.tuples(st.floats(0, 1), st.floats(0, 9), st.floats(0, 1), st.floats(0, 9), st.floats(0, 9)),
)
def test_a_correction_makes_nothing_longer_and_turns_nothing_away_from_momentum(
    seed: int, length: float, toward: float, share: float, strengths: tuple[float, float, float, float, float]
) -> None:
    """What a liar gains: no length, whatever it sends and whatever the momentum is."""
    rng = np.random.default_rng(seed)
    momentum = rng.standard_normal(8)
    delta = (rng.standard_normal(8) + toward * momentum) * length
    norms = np.array([[np.linalg.norm(delta)]]), np.array([np.linalg.norm(momentum)])
    scale, push = DirectionCorrection(*strengths, block=8).changes(np.array([[delta @ momentum]]), *norms, share)
    after = delta * (1 + scale[0, 0]) + push[0, 0] * momentum / norms[1][0]
    assert np.linalg.norm(after) <= np.linalg.norm(delta) * (1 + 1e-9)
    before = delta @ momentum
    assert after @ momentum >= before - 1e-9 * abs(before)
    assert before > 0 or after @ momentum <= 1e-9 * norms[0][0, 0] * norms[1][0], (
        "what opposes comes to nothing at most"
    )


@pytest.mark.parametrize("left", [1e-25, 1e-32, 1e-40])
@pytest.mark.parametrize("rule", ["mean", "clipped_gossip"])
def test_a_block_that_stood_still_moves_again_against_what_is_left_of_its_momentum(left: float, rule: str) -> None:
    """Momentum that nobody renews comes to lengths of which fp32 does not hold the inverse."""

    def after(**options: float) -> torch.Tensor:
        node, others = pair(SyncConfig(**EXACT | {"aggregator": rule, "f": int(rule != "mean")} | options), 3)
        node.load_state_dict(node.state_dict() | {"outer.0.momentum": torch.full((D,), left)})
        start_d = node.anchor_d.clone()
        node.encode(start_d, round=0)
        for index, (name, other) in enumerate(others.items()):
            message = other.encode(start_d - 0.01 * index, round=0)
            node.apply(name, message.codec, message.payload)
        return node.aggregate(start_d, dict.fromkeys(others, 0), round=0).anchor_d

    corrected_d = after(shrink=9.0)
    assert torch.isfinite(corrected_d).all()
    assert torch.equal(corrected_d, after(shrink=0.0)) == (left < 1e-30), "what has no direction takes nothing back"


@pytest.mark.parametrize(("delta", "momentum"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_a_block_without_a_direction_stays_as_it_is(delta: float, momentum: float) -> None:
    inner = np.array([[-delta * momentum]])
    for part in CORRECTION.changes(inner, np.array([[delta]]), np.array([momentum]), 0.5):
        assert part.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keep": 1.5}, "keep and most_shrink must be in"),
        ({"most_shrink": -0.1}, "keep and most_shrink must be in"),
        ({"turn": -1.0}, "shrink, turn and kappa must be at least 0"),
        ({"block": 0}, "block must be 1 or more"),
        ({"compressor": "q2", "alpha": 0.9}, "nesterov makes grow what q2 loses"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SyncConfig(strategy="heloco", **options)


def test_a_momentum_without_a_direction_corrects_nothing() -> None:
    """What stood still for long keeps a rest of it, which points somewhere."""
    correction = DirectionCorrection(keep=0.2, shrink=1.0, most_shrink=1.0, turn=0.5, kappa=1.0, block=4)
    rest, delta_nb = np.array([0.1 * LEAST_MOMENTUM]), np.ones((2, 1))
    cosine_nb = np.array([[-0.5], [0.1]])
    for changed_nb in correction.changes(cosine_nb * rest, delta_nb, rest, 0.1):
        assert not changed_nb.any()
