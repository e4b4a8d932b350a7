"""Noise that members of a secure sum share out: who it counts on, that every vector is bounded, and what sums have."""

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossip.secure_aggregation.secure_group import default_threshold
from p2ptrain.privacy.accounting.loss_distributions import tight_epsilon_of
from p2ptrain.privacy.base import Release
from p2ptrain.privacy.noise_shares import NoiseShares, honest_members
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync import GroupSum, SyncConfig, build
from p2ptrain.sync.noised_fixed_point import NoisedFixedPoint
from p2ptrain.sync.secure_average import SecureAverage
from tests.seeded_bytes import seeded_bytes

NOISE, CLIP, RANGE = 0.5, 0.2, 1.0
SHARES = NoiseShares(NOISE, CLIP)


def codec(members: int, **fields: float) -> NoisedFixedPoint:
    return NoisedFixedPoint(fields.get("range", RANGE), int(fields.get("bits", 16)), members, SHARES)


def rounding(seed: int = 1) -> SecretRandom:
    return SecretRandom(seeded_bytes(seed))


def whole_numbers(codec: NoisedFixedPoint, x_d: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return codec.encode(x_d, rounding()).words_d.astype(np.int64) - codec.center


@pytest.mark.parametrize("members", range(4, 65))
def test_the_noise_of_the_honest_that_stay_is_enough(members: int) -> None:
    """The fewest that open a sum stay, and of them as many as may be liars add nothing."""
    threshold = default_threshold(members)
    liars = members - threshold
    honest = threshold - liars
    assert honest_members(members) == honest > liars
    assert honest * SHARES.deviation(members) ** 2 == pytest.approx((NOISE * CLIP) ** 2)
    assert SHARES.deviation(members) < NOISE * CLIP


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=60),
    scale=st.sampled_from([1e-30, 1e-6, 1e-3, 1.0]),
    bits=st.integers(8, 18),
)
def test_no_vector_of_whole_numbers_is_longer_than_the_bound(values: list[float], scale: float, bits: int) -> None:
    found = codec(4, bits=bits)
    whole_d = whole_numbers(found, torch.tensor(values, dtype=torch.float32) * scale)
    squares = sum(int(each) ** 2 for each in whole_d)
    assert squares <= found.squares <= (CLIP / found.step) ** 2
    assert abs(whole_d).max() <= found.largest


@pytest.mark.parametrize("count", [10, 1000, 300_000])
def test_rounding_that_makes_a_vector_too_long_is_done_again(count: int) -> None:
    """A vector of the clipping norm, spread out: rounding alone would add a sixth of a step squared to each value."""
    found, x_d = codec(4), torch.randn(count, generator=torch.Generator().manual_seed(count))
    x_d *= CLIP / x_d.norm()
    whole_d = whole_numbers(found, x_d)
    assert int((whole_d**2).sum()) <= found.squares
    assert float(torch.from_numpy(whole_d * found.step).norm()) > 0.99 * CLIP, "nothing is shortened more than it must"


def test_rounding_is_without_bias_below_the_bound() -> None:
    found = codec(4)
    x_d = torch.full((100_000,), 0.3 * found.step)
    assert whole_numbers(found, x_d).mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_never_encoded(wrong: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        codec(4).encode(torch.tensor([0.1, wrong]), rounding())


@pytest.mark.parametrize(("members", "survivors"), [(4, 4), (5, 4), (7, 5), (16, 11)])
def test_a_mean_has_the_values_mean_and_the_noise_that_is_accounted_for(members: int, survivors: int) -> None:
    """The noise of all who stayed is at least sqrt(survivors / honest) of what is counted on."""
    count, found = 100_000, codec(members)
    generator = torch.Generator().manual_seed(members)
    x_nd = 0.5 * CLIP / math.sqrt(count) * torch.randn(survivors, count, generator=generator)
    words = [
        found.noised(found.encode(x_d, rounding(place)).words_d, seeded_bytes(100 + place))
        for place, x_d in enumerate(x_nd)
    ]
    assert all(int(each.max()) < 1 << found.width for each in words)
    sum_d = (np.sum(words, axis=0, dtype=np.uint64) & np.uint64((1 << found.width) - 1)).astype(np.uint32)
    noise_d = survivors * (found.mean(sum_d, survivors) - x_nd.mean(0)).double()
    expected = NOISE * CLIP * math.sqrt(survivors / honest_members(members))
    assert float(noise_d.std()) == pytest.approx(expected, rel=0.01)
    assert abs(float(noise_d.mean())) < 4 * expected / math.sqrt(count)
    alone_d = (words[0].astype(np.int64) - found.center) * found.step
    assert float(alone_d.std()) >= SHARES.deviation(members) * 0.99, "no member relies on the others alone"


def test_a_lie_goes_no_further_than_the_range() -> None:
    found = codec(4)
    for word in (0, 1, (1 << found.width) - 1, 1 << (found.width - 1), found.center):
        mean_d = found.mean(np.full(3, word, np.uint32), 4)
        assert float(mean_d.abs().max()) <= RANGE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clipping_range": 0.1}, "set clipping_range to 0.566 or more"),
        ({"bits": 6}, "fewer than 4"),
        ({"bits": 25}, "24 or less with sum_noise"),
        ({"sum_noise": -1.0}, "sum_noise must be a number above 0"),
        ({"sum_noise": math.nan}, "sum_noise must be a number above 0"),
        ({"sum_clip": 0.0}, "sum_clip must be a number above 0"),
        ({"sum_clip": math.inf}, "sum_clip must be a number above 0"),
        ({"bits": 20, "clipping_range": 0.6}, "give fewer bits"),
    ],
)
def test_noise_that_does_not_fit_is_refused_with_the_arithmetic(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SyncConfig(
            **{"strategy": "secure_average", "sum_noise": NOISE, "sum_clip": CLIP, "clipping_range": 1.0} | options
        )  # type: ignore[arg-type]


def test_the_range_that_is_asked_for_is_enough() -> None:
    SyncConfig(strategy="secure_average", sum_noise=NOISE, sum_clip=CLIP, clipping_range=0.567)


def test_members_that_add_other_noise_are_in_another_run() -> None:
    def key(**options: float) -> str:
        return SyncConfig(strategy="secure_average", clipping_range=1.0, **options).run_key()  # type: ignore[arg-type]

    keys = [
        key(),
        key(sum_noise=NOISE, sum_clip=CLIP),
        key(sum_noise=0.6, sum_clip=CLIP),
        key(sum_noise=NOISE, sum_clip=0.3),
    ]
    assert len(set(keys)) == 4
    assert key(sum_clip=0.3) == keys[0], "without noise nothing is clipped, and the run is as before"


def test_the_tight_epsilon_is_not_told_of_whole_numbers() -> None:
    assert tight_epsilon_of([Release(mechanism="secure_update", noise=1.0, rate=1.0, count=3)], 1e-5) is None


# -- The strategy


def swarm(count: int, genesis_d: torch.Tensor, **options: float) -> dict[str, SecureAverage]:
    found = {}
    for place in range(count):
        settings = {"clipping_range": RANGE, "sum_noise": NOISE, "sum_clip": CLIP} | options
        node = build(SyncConfig(strategy="secure_average", **settings), genesis_d, f"n{place}")  # type: ignore[arg-type]
        assert isinstance(node, SecureAverage)
        node.rounding, node.random_bytes = rounding(place), random.Random(place).randbytes
        found[f"n{place}"] = node
    return found


def one_round(nodes: Mapping[str, SecureAverage], moves: Mapping[str, torch.Tensor], lost: str = "") -> None:
    first = nodes["n0"]
    (group,) = first.groups(list(nodes), round=0)
    words = {name: node.pack(node.anchor_d + moves[name], round=0, members=len(group)) for name, node in nodes.items()}
    survivors = [name for name in group if name != lost]
    total_v = np.sum([words[name] for name in survivors], axis=0, dtype=np.uint64) % (1 << first.width(len(group)))
    total = GroupSum(members=group, survivors=frozenset(survivors), words_v=total_v.astype(np.uint32))
    for name, node in nodes.items():
        node.finish_(node.anchor_d + moves[name], {0: total}, 0, round=0)


def test_what_is_clipped_or_noised_is_not_made_up_for_later() -> None:
    """One member's move is five times the clipping norm; another's was in no sum, and is told in the next one."""
    genesis_d = torch.zeros(2000)
    nodes = swarm(5, genesis_d)
    direction_d = torch.nn.functional.normalize(torch.randn(2000, generator=torch.Generator().manual_seed(1)), dim=0)
    lengths = {"n0": 5 * CLIP, "n3": 0.5 * CLIP}
    moves = {name: lengths.get(name, 0.0) * direction_d for name in nodes}
    one_round(nodes, moves, lost="n3")
    assert all(torch.equal(node.anchor_d, nodes["n0"].anchor_d) for node in nodes.values())
    assert not any(node.residual_d.any() for name, node in nodes.items() if name != "n3")
    assert torch.allclose(nodes["n3"].residual_d, moves["n3"], atol=1e-6)
    told = float(nodes["n0"].anchor_d @ direction_d)
    error = NOISE * CLIP * math.sqrt(4 / honest_members(5)) / 4
    assert told == pytest.approx(CLIP / 4, abs=4 * error), "a move five times the norm counts as one of the norm"


def test_two_that_pack_the_same_model_send_other_numbers() -> None:
    nodes = swarm(4, torch.zeros(500))
    first, second = (nodes[name].pack(torch.zeros(500), round=0, members=4)[:500] for name in ("n0", "n1"))
    assert np.mean(first == second) < 0.01


def test_a_member_in_no_group_keeps_its_move_and_goes_on() -> None:
    """Alone its whole noise would fit into no range that a group's fits into; and nothing of it leaves."""
    node = swarm(1, torch.zeros(500), clipping_range=0.567)["n0"]
    moved_d = node.anchor_d + 0.01
    assert node.groups([], round=0) == []
    node.pack(moved_d.clone(), round=0, members=1)
    result = node.finish_(moved_d.clone(), {}, -1, round=0)
    assert not result.correction_d.any()
    assert not node.anchor_d.any()
