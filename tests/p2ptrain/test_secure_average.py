"""Secure averaging without a network: what the sums do to anchors, residuals and models, and what liars can do."""

import math
import random
from collections.abc import Collection, Mapping

import numpy as np
import pytest
import torch

from p2ptrain import attacks
from p2ptrain.compress import PayloadError
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync import GroupSum, RoundResult, SecureStrategy, SyncConfig, build, liar_of
from p2ptrain.sync.byzantine import LyingSecureMember
from p2ptrain.sync.group_cuts import CUTS
from p2ptrain.sync.secure_average import SecureAverage

D = 300
RANGE = 0.5
STEP = 2 * RANGE / (2**16 - 1)

Node = SecureAverage | LyingSecureMember


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def make(name: str, **options: object) -> SecureAverage:
    config = SyncConfig(strategy="secure_average", **{"clipping_range": RANGE, **options})  # type: ignore[arg-type]
    node = build(config, genesis(), name)
    assert isinstance(node, SecureAverage)
    assert isinstance(node, SecureStrategy)
    node.rounding = SecretRandom(random.Random(name).randbytes)
    return node


def swarm(count: int, **options: object) -> dict[str, Node]:
    return {f"n{place}": make(f"n{place}", **options) for place in range(count)}


def moves(nodes: Mapping[str, Node], round: int, scale: float = 0.05) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + round)
    return {name: scale * torch.randn(D, generator=generator) for name in nodes}


def summed(group: list[str], words: Mapping[str, np.ndarray], width: int, lost: frozenset[str]) -> GroupSum:
    """What the network opens: the sum modulo 2^width of those who were there."""
    survivors = [name for name in group if name not in lost]
    total_v = np.sum([words[name] for name in survivors], axis=0, dtype=np.uint64) % (1 << width)
    return GroupSum(members=group, survivors=frozenset(survivors), words_v=total_v.astype(np.uint32))


def one_round(
    nodes: Mapping[str, Node],
    thetas: Mapping[str, torch.Tensor],
    round: int,
    *,
    lost: frozenset[str] = frozenset(),
    without: frozenset[str] = frozenset(),
) -> dict[str, RoundResult]:
    """`lost`: left out of the sums. `without`: sees no sum."""
    groups = next(iter(nodes.values())).groups(list(nodes), round=round)
    assert all(node.groups(list(nodes), round=round) == groups for node in nodes.values()), "all find the same groups"
    place_of = {name: place for place, group in enumerate(groups) for name in group}
    words = {
        name: node.pack(thetas[name], round=round, members=len(groups[place_of[name]])) for name, node in nodes.items()
    }
    sums = {place: summed(group, words, nodes[group[0]].width(len(group)), lost) for place, group in enumerate(groups)}
    return {
        name: node.finish_(thetas[name].clone(), {} if name in without else sums, place_of[name], round=round)
        for name, node in nodes.items()
    }


@pytest.mark.parametrize("count", [4, 7, 12])
def test_the_anchor_moves_by_the_plain_mean_to_the_fixed_point_step(count: int) -> None:
    """One group, one of up to seven, and three: each member counts alike."""
    nodes, anchor_d = swarm(count), genesis().double()
    for round in range(3):
        moved = moves(nodes, round)
        thetas = {name: node.anchor_d + moved[name] for name, node in nodes.items()}
        before = {name: node.residual_d.double().clone() for name, node in nodes.items()}  # type: ignore[union-attr]
        results = one_round(nodes, thetas, round)
        mean_d = torch.stack([moved[name].double() + before[name] for name in nodes]).mean(0)
        anchor_d += mean_d
        for name, node in nodes.items():
            assert float((node.anchor_d.double() - anchor_d).abs().max()) < STEP + 1e-6
            assert torch.equal(node.anchor_d, nodes["n0"].anchor_d), "the same bits at all"
            assert torch.allclose(thetas[name] + results[name].correction_d, node.anchor_d, atol=1e-6)
            assert results[name].members == count
            assert node.snapshot() == node.anchor_d.numpy().tobytes(), "what newcomers get is made of sums alone"
        anchor_d = nodes["n0"].anchor_d.double()


def test_what_is_cut_is_counted_and_told_later() -> None:
    nodes, target_d = swarm(4), torch.full((D,), 3.4 * RANGE)
    for round in range(5):
        thetas = {name: node.anchor_d + (target_d if round == 0 else 0.0) for name, node in nodes.items()}
        one_round(nodes, thetas, round)
        share = nodes["n0"].clipped_share
        assert share == (1.0 if round < 3 else 0.0), "3.4 R takes three full rounds, and a rest"
    assert float((nodes["n0"].anchor_d - genesis() - target_d).abs().max()) < 2 * STEP


def test_who_is_left_out_keeps_its_move_and_tells_it_next() -> None:
    nodes = swarm(5)
    moved = moves(nodes, 0)
    one_round(nodes, {name: genesis() + moved[name] for name in nodes}, 0, lost=frozenset({"n3"}))
    four_d = torch.stack([moved[name] for name in nodes if name != "n3"]).mean(0)
    assert float((nodes["n3"].anchor_d - genesis() - four_d).abs().max()) < STEP + 1e-6
    assert torch.equal(nodes["n3"].anchor_d, nodes["n0"].anchor_d)
    assert torch.allclose(nodes["n3"].residual_d, moved["n3"], atol=1e-6)  # type: ignore[union-attr]


def test_a_round_that_did_not_open_leaves_model_and_anchor() -> None:
    nodes = swarm(4)
    theta_d = genesis() + moves(nodes, 0)["n0"]
    nodes["n0"].pack(theta_d, round=0, members=4)
    result = nodes["n0"].finish_(theta_d.clone(), {}, 0, round=0)
    assert torch.equal(nodes["n0"].anchor_d, genesis())
    assert not result.correction_d.any()
    assert result.members == 1
    assert nodes["n0"].snapshot() == genesis().numpy().tobytes(), "its own steps are not given to newcomers"


def test_anchors_that_came_apart_come_together() -> None:
    """One member sees nothing of a round; its anchor is brought back by the shares that travel in the sums."""
    nodes = swarm(5, refresh=4)
    for round in range(2):
        one_round(
            nodes,
            {name: node.anchor_d + moves(nodes, round)[name] for name, node in nodes.items()},
            round,
            without=frozenset({"n4"} if round == 0 else ()),
        )
    apart = float((nodes["n4"].anchor_d - nodes["n0"].anchor_d).abs().max())
    assert apart > 100 * STEP
    for round in range(2, 10):
        one_round(nodes, {name: node.anchor_d.clone() for name, node in nodes.items()}, round)
    assert float((nodes["n4"].anchor_d - nodes["n0"].anchor_d).abs().max()) < 0.05 * apart
    assert {name: bool(node.residual_d.isfinite().all()) for name, node in nodes.items()} == dict.fromkeys(nodes, True)  # type: ignore[union-attr]


def test_values_that_did_not_come_leave_their_part_alone() -> None:
    nodes = swarm(4)
    thetas = {name: genesis() + moves(nodes, 0)[name] for name in nodes}
    group = nodes["n0"].groups(list(nodes), round=0)[0]
    words = {name: node.pack(thetas[name], round=0, members=4) for name, node in nodes.items()}
    whole = summed(group, words, nodes["n0"].width(4), frozenset())
    gap = slice(100, 200)
    partial = GroupSum(members=group, survivors=whole.survivors, words_v=whole.words_v, missing=(gap,))
    result = nodes["n0"].finish_(thetas["n0"].clone(), {0: partial}, 0, round=0)
    assert torch.equal(nodes["n0"].anchor_d[gap], genesis()[gap])
    assert not result.correction_d[gap].any()
    assert result.snapshot_d is not None
    assert torch.equal(result.snapshot_d[gap], thetas["n0"][gap])
    nodes["n1"].finish_(thetas["n1"].clone(), {0: whole}, 0, round=0)
    assert torch.equal(nodes["n0"].anchor_d[:100], nodes["n1"].anchor_d[:100])
    assert not torch.equal(nodes["n1"].anchor_d[gap], genesis()[gap])


def test_liars_in_two_of_seven_groups_move_nothing_beyond_the_honest_means() -> None:
    nodes = swarm(28, f=2, aggregator="trimmed_mean", members=28)
    for name in ("n0", "n1"):
        nodes[name] = liar_of(nodes[name], attacks.get("scaled"))  # type: ignore[assignment,arg-type]
    for round in range(4):
        anchor_d = nodes["n5"].anchor_d.clone()
        thetas = {name: node.anchor_d + moves(nodes, round)[name] for name, node in nodes.items()}
        groups = nodes["n5"].groups(list(nodes), round=round)
        results = one_round(nodes, thetas, round)
        honest = [group for group in groups if not {"n0", "n1"} & set(group)]
        residual = {name: getattr(node, "residual_d", None) for name, node in nodes.items()}
        assert all(value is None or bool(value.isfinite().all()) for value in residual.values())
        means = torch.stack([torch.stack([moves(nodes, round)[name] for name in group]).mean(0) for group in honest])
        moved_d = nodes["n5"].anchor_d - anchor_d
        slack = 4 * STEP * (round + 1)
        assert bool((moved_d <= means.max(0).values + slack).all() and (moved_d >= means.min(0).values - slack).all())
        assert results["n5"].robust


def test_with_fewer_means_than_the_rule_needs_nothing_moves() -> None:
    nodes = swarm(12, f=1, aggregator="trimmed_mean", members=12)
    groups = nodes["n0"].groups(list(nodes), round=0)
    theta_d = genesis() + 0.1
    own = next(place for place, group in enumerate(groups) if "n0" in group)
    words_v = nodes["n0"].pack(theta_d, round=0, members=4)
    two = {
        place: GroupSum(members=groups[place], survivors=frozenset(groups[place][:1]), words_v=words_v)
        for place in (own, (own + 1) % 3)
    }
    result = nodes["n0"].finish_(theta_d, two, own, round=0)
    assert torch.equal(nodes["n0"].anchor_d, genesis())
    assert not result.robust


def test_groups_are_drawn_anew_and_never_below_their_size() -> None:
    node = make("n0", group=4)
    peers = [f"n{place}" for place in range(1, 19)]
    drawn = [node.groups(peers, round=round) for round in range(6)]
    assert all(4 <= len(group) <= 7 for groups in drawn for group in groups)
    everybody = sorted(["n0", *peers])
    assert all(sorted(name for group in groups for name in group) == everybody for groups in drawn)
    together = {frozenset(next(group for group in groups if "n0" in group)) for groups in drawn}
    assert len(together) == 6
    assert node.groups(["n1", "n2"], round=0) == [], "three are no group"
    assert node.groups([], round=0) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"compressor": "q2"},
            "sums whole numbers under masks, which q2 cannot be read through: set compressor to none",
        ),
        ({"compressor": "topk"}, "which topk cannot be read through"),
        ({"group": 3}, "group must be 4 to 32, not 3: of fewer members one learns what another sent"),
        ({"group": 33}, "group must be 4 to 32, not 33"),
        ({"clipping_range": 0.0}, "clipping_range must be a finite number above 0"),
        ({"clipping_range": math.nan}, "clipping_range must be a finite number above 0"),
        ({"bits": 5}, "has 7 bits, and a masked value has 8 at least: set bits to 6 or more"),
        ({"bits": 30}, r"30 \+ ceil\(log2 7\) = 33 bits"),
        ({"refresh": 0}, "refresh must be at least 1"),
        ({"owners": 5}, "owners must be 1 to 4"),
        (
            {"f": 2, "aggregator": "trimmed_mean"},
            "needs 20 members, a group of 4 for each of 5 means, and members says nothing",
        ),
        (
            {"f": 1, "aggregator": "trimmed_mean", "group": 5, "members": 14},
            "needs 15 members.* and the run has 14; in groups of 5 a trimmed mean needs: f = 0 5, f = 1 15; ",
        ),
        (
            {"f": 2, "aggregator": "trimmed_mean", "members": 28, "cut": "bisection"},
            r"needs 29 members.* a trimmed mean needs: f = 0 4, f = 1 15, f = 2 29; with 2 f \+ 1 groups of 4, 29",
        ),
        ({"f": 1, "members": 40}, "f = 1: mean of the groups' means withstands no liar: set aggregator to nnm"),
        ({"f": 2, "members": 40, "aggregator": "nnm+mean"}, "nnm.mean of the groups' means withstands no liar"),
        ({"cut": "halves"}, "cut must be even or bisection, not halves"),
        ({"outer": "delayed_nesterov"}, "counts its rounds"),
        ({"gamma": 0.5}, "it has no gamma"),
        ({"aggregator": "zeno", "f": 1, "members": 40}, "which zeno cannot try"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why) as told:
        SyncConfig(strategy="secure_average", **options)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)


def test_a_sum_travels_alike_at_all_and_what_is_none_is_refused() -> None:
    node = make("n0")
    members = [f"n{place}" for place in range(5)]
    generator = np.random.default_rng(1)
    words_v = generator.integers(0, 1 << node.width(5), node.values, dtype=np.uint32)
    total = GroupSum(members=members, survivors=frozenset(members[1:]), words_v=words_v)
    payload = node.published(total)
    assert len(payload) == node.published_size(5) == 8 + -(-node.values * (16 + 3) // 8)
    found = node.read(payload, members)
    np.testing.assert_array_equal(found.words_v, words_v)
    assert found.survivors == total.survivors
    assert not found.missing
    for wrong in (payload[:-1], payload + b"\0", b"", bytes(8) + payload[8:], b"\xff" * 8 + payload[8:]):
        with pytest.raises(PayloadError):
            node.read(wrong, members)
    with pytest.raises(ValueError, match="published by nobody"):
        node.published(GroupSum(members=members, survivors=total.survivors, words_v=words_v, missing=(slice(0, 1),)))


def test_state_comes_back_with_the_residual() -> None:
    nodes = swarm(4)
    one_round(nodes, {name: genesis() + 2 * RANGE for name in nodes}, 0)
    state = nodes["n0"].state_dict()
    again = make("n0")
    again.load_state_dict(state)
    assert torch.equal(again.anchor_d, nodes["n0"].anchor_d)
    assert float(again.residual_d.abs().max()) > RANGE / 2
    with pytest.raises(ValueError, match="another model"):
        again.load_state_dict(state | {"residual": torch.zeros(3)})


def placements_of(names: Collection[str]) -> dict[str, bytes]:
    """What an admin signed for each: nothing that its name has a say in."""
    return {name: random.Random(f"grant of {place}").randbytes(32) for place, name in enumerate(names)}


def test_who_may_choose_its_key_lands_with_its_accomplice_by_name_and_not_by_grant() -> None:
    """A liar makes keys for a round to come, and takes the first that is in its accomplice's group."""
    others, accomplice = [f"n{place}" for place in range(26)], "accomplice"
    tried = [f"key{number}" for number in range(100)]
    drawn_by = {draw: make("n0", draw=draw) for draw in ("names", "grants")}

    def together(key: str, draw: str, round: int) -> bool:
        members = [*others, accomplice, key]  # the certificate is the same one, whatever key takes it up
        groups = drawn_by[draw].groups(members, round=round, placements=placements_of(members))
        return any({key, accomplice} <= set(group) for group in groups)

    for round in (0, 1, 3):
        assert 3 < sum(together(key, "names", round) for key in tried) < 60, "the first is found in no time"
    for round in range(6):
        assert len({together(key, "grants", round) for key in tried}) == 1, "no key is better than another"


@pytest.mark.parametrize("cut", CUTS)
def test_by_grant_groups_are_the_same_at_all_and_others_in_every_round(cut: str) -> None:
    names = [f"n{place}" for place in range(13)]
    placements = placements_of(names)
    drawn = []
    for round in range(6):
        groups = make("n0", draw="grants", cut=cut).groups(names[::-1], round=round, placements=placements)
        assert groups == make("n7", draw="grants", cut=cut).groups(names, round=round, placements=placements)
        assert groups != make("n0", cut=cut).groups(names, round=round)
        assert sorted(name for group in groups for name in group) == sorted(names)
        drawn.append(frozenset(next(group for group in groups if "n0" in group)))
    assert len(set(drawn)) == 6


def test_who_has_no_placement_is_in_no_group_and_goes_by_the_sums_of_the_others() -> None:
    nodes = swarm(5, draw="grants")
    placements = placements_of(list(nodes)[:4])
    (group,) = nodes["n4"].groups(list(nodes), round=0, placements=placements)
    assert sorted(group) == ["n0", "n1", "n2", "n3"]
    thetas = {
        name: node.anchor_d + move for (name, node), move in zip(nodes.items(), moves(nodes, 0).values(), strict=True)
    }
    words = {name: node.pack(thetas[name], round=0, members=4) for name, node in nodes.items()}
    total = summed(group, {name: words[name] for name in group}, nodes["n0"].width(4), frozenset())
    for name, node in nodes.items():
        node.finish_(thetas[name].clone(), {0: total}, -1 if name == "n4" else 0, round=0)
    assert torch.equal(nodes["n4"].anchor_d, nodes["n0"].anchor_d)


def test_a_draw_is_a_setting_of_all_and_the_usual_one_leaves_them_as_they_were() -> None:
    def key(**options: object) -> str:
        return SyncConfig(strategy="secure_average", **options).run_key()  # type: ignore[arg-type]

    assert key() == key(draw="names")
    assert key(draw="grants") == f"{key()} draw grants"
    assert key() == key(cut="even")
    assert key(cut="bisection") == f"{key()} cut bisection"
    with pytest.raises(ValueError, match="draw must be names or grants, not lots"):
        key(draw="lots")
