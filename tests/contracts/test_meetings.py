"""What every strategy that meets must hold: its groups are alike at all, own values stay where nothing came, the bytes.

Beside test_sync_strategies.py, which holds for these as well.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
import torch
from sizes import thorough_but

from gossip.allreduce.allreduce import Group
from gossip.core.ids import PeerId
from node.bench.swarm import simulated_allreduce
from node.bench.swarm.simulated_allreduce import Round, SimulatedMember
from p2ptrain import attacks, graphs
from p2ptrain.attacks import VectorAttack
from p2ptrain.sync import ALLREDUCE, SYNC_STRATEGIES, AllReduceStrategy, Reduced, SyncConfig, build, liar_of
from p2ptrain.sync.group_allreduce import GroupAllReduce
from p2ptrain.sync.mime import Mime
from p2ptrain.sync.packing import Packing

D = 300_000
"""Of 4 bytes each, two parts: one member of a pair owns a whole chunk, the other the rest."""
NAMES = [name for name in SYNC_STRATEGIES.names() if SYNC_STRATEGIES.get(name).averager == ALLREDUCE]

WHOLE: dict[str, dict[str, object]] = {"sparta": {"period": 1}}
"""Options by which all of the model is averaged in a round, where that is not so anyway."""

every_meeting = pytest.mark.parametrize("name", NAMES)
every_robust_one = pytest.mark.parametrize("name", [name for name in NAMES if name != "noloco"])

Models = dict[str, torch.Tensor]


def genesis(numel: int = D) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(0))


def group_of(name: str, size: int) -> dict[str, int]:
    """The option that makes groups so large, where a strategy has one."""
    return {"group": size} if "group" in SYNC_STRATEGIES.options(name) else {}


def packing_of(node: SimulatedMember) -> Packing:
    assert isinstance(node.sync, GroupAllReduce)
    return node.sync.packing


class OneStep:
    """The plainest optimizer: x <- x - g."""

    buffers: ClassVar[dict[str, torch.Tensor]] = {}

    longest = math.inf

    def __init__(self, numel: int) -> None:
        self.numel = numel

    def steps_in(self, round: int) -> int:
        return 1

    def advance_(self, x_d: torch.Tensor, gradient_d: torch.Tensor, round: int) -> None:
        x_d -= gradient_d

    def load(self, buffers: Mapping[str, torch.Tensor]) -> None:
        assert not buffers


class StepsOnce(Mime):
    """Where every model moved from its anchor by one gradient, as `OneStep` moves the anchor: models are averaged."""

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        self._check_shape(theta_d)
        self.take_gradient(self.anchor_d - theta_d)
        return super().pack(theta_d, round=round)


def make(name: str, own: str, numel: int = D, **options: object) -> AllReduceStrategy:
    config = SyncConfig(strategy=name, **WHOLE.get(name, {}), **options)  # type: ignore[arg-type]
    if name == "mime":
        steps_once = StepsOnce(config, genesis(numel), own, 64, 1.0)
        steps_once.steps_by(OneStep(numel))
        return steps_once
    made = build(config, genesis(numel), own)
    assert isinstance(made, AllReduceStrategy)
    return made


def crowd(name: str, count: int, numel: int = D, **options: object) -> dict[str, SimulatedMember]:
    names = [f"peer{i:02}" for i in range(count)]
    return {own: SimulatedMember(make(name, own, numel, **options), set(names) - {own}) for own in names}


def scattered(nodes: dict[str, SimulatedMember], numel: int = D) -> Models:
    generator = torch.Generator().manual_seed(5)
    return {own: genesis(numel) + torch.randn(numel, generator=generator) for own in nodes}


def mean_of(models: Models) -> torch.Tensor:
    return torch.stack(list(models.values())).double().mean(0)


def farthest(models: Models, from_d: torch.Tensor) -> float:
    return max(float((model_d - from_d).abs().max()) for model_d in models.values())


def settled(nodes: dict[str, SimulatedMember], thetas: Models, came: Round, round: int) -> Models:
    return {
        own: thetas[own] + node.sync.finish(thetas[own], came.groups[own], came.parts[own], round=round).correction_d
        for own, node in nodes.items()
    }


def one_round(nodes: dict[str, SimulatedMember], thetas: Models, round: int) -> Models:
    return settled(nodes, thetas, simulated_allreduce.exchange(nodes, thetas, round), round)


def spoilt(came: Round, owner: str, say: Callable[[bytes], bytes | None]) -> Round:
    """The same round, but what `owner` gives of its part."""

    def spoil(part: Reduced) -> Reduced:
        assert part.data is not None
        return part._replace(data=say(part.data)) if part.owner == owner else part

    parts = {own: [part if own == owner else spoil(part) for part in told] for own, told in came.parts.items()}
    return Round(packed=came.packed, groups=came.groups, parts=parts, sent=came.sent)


@every_meeting
def test_all_find_the_same_groups_and_take_turns_in_owning(name: str) -> None:
    nodes = crowd(name, 7, 10)
    lasts = set()
    for round in range(30):
        groups = {own: node.sync.peer_selection(node.known, round=round) for own, node in nodes.items()}
        for own, group in groups.items():
            assert own in group
            assert all(groups[other] == group for other in group)
        lasts |= {group[-1] for group in groups.values() if len(group) > 1}
    assert lasts == set(nodes), "who is last owns the only part of a small model"


@pytest.mark.slow
@every_meeting
def test_a_round_is_the_groups_mean_and_leaves_the_mean_of_all(name: str) -> None:
    nodes = crowd(name, 6, compressor="none", outer="average")
    thetas = scattered(nodes)
    before_d = mean_of(thetas)
    for round in range(3):
        groups = {own: node.sync.peer_selection(node.known, round=round) for own, node in nodes.items()}
        means = {own: mean_of({other: thetas[other] for other in group}) for own, group in groups.items()}
        thetas = one_round(nodes, thetas, round)
        for own, mean_d in means.items():
            torch.testing.assert_close(thetas[own].double(), mean_d, atol=1e-5, rtol=0)
            assert nodes[own].sync.snapshot() == nodes[own].sync.state_dict()["anchor"].numpy().tobytes()
    torch.testing.assert_close(mean_of(thetas), before_d, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "atol"), [("none", 2e-6), ("fp16", 0.01), ("int8", 0.1)])
def test_a_square_number_of_members_is_one_after_two_rounds(codec: str, atol: float) -> None:
    nodes = crowd("moshpit", 9, 5000, group=3, compressor=codec)
    thetas = scattered(nodes, 5000)
    mean_d = mean_of(thetas)
    for round in range(2):
        assert farthest(thetas, mean_d) > 0.5
        thetas = one_round(nodes, thetas, round)
    assert farthest(thetas, mean_d) < atol


@every_meeting
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_who_agrees_stays_where_it_is_however_coarse_the_codec(name: str, codec: str) -> None:
    nodes = crowd(name, 4, 5000, compressor=codec)
    theta_d = genesis(5000) + 1e-5
    thetas = one_round(nodes, dict.fromkeys(nodes, theta_d), 0)
    assert farthest(thetas, theta_d) < 1e-6 + 1e-5  # noloco's step is 0.7 of the way there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("moshpit", 2 * 3 / 4),
        ("noloco", 1.0),
        ("allreduce", 2 * 15 / 16),
        *(pytest.param(name, 2 * 15 / 16, marks=pytest.mark.thorough) for name in ("mime", "des_loc", "sparta")),
    ],
)
def test_a_node_sends_what_its_group_needs_and_no_more(name: str, each: float) -> None:
    nodes = crowd(name, 16, compressor="none")
    thetas, rounds = scattered(nodes), 4
    sent = 0
    for round in range(rounds):
        came = simulated_allreduce.exchange(nodes, thetas, round)
        sent += sum(came.sent.values())
        size = len(came.packed["peer00"])
        assert max(came.sent.values()) <= 2 * (len(came.groups["peer00"]) - 1) * size
        thetas = settled(nodes, thetas, came, round)
    assert sent == rounds * 16 * each * size, "by the mesh it would be 15 payloads"


@every_meeting
@pytest.mark.parametrize(
    "say",
    [
        lambda data: None,
        lambda data: b"\xff" * len(data),
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: torch.full((len(data) // 4,), 1e30).numpy().tobytes(),
    ],
    ids=["nothing", "no numbers", "less", "empty", "beyond bounds"],
)
def test_own_values_stay_where_an_owner_gives_nothing(name: str, say: Callable[[bytes], bytes | None]) -> None:
    nodes = crowd(name, 2, compressor="none", outer="average")
    thetas = scattered(nodes)
    came = simulated_allreduce.exchange(nodes, thetas, 0)
    first, last = came.groups["peer00"]
    mean_d = mean_of(thetas)
    after = settled(nodes, thetas, spoilt(came, last, say), 0)
    own, other = came.parts[first]
    packing = packing_of(nodes[first])
    mine, theirs = (packing.span(part.part) for part in (own, other))
    torch.testing.assert_close(after[first][theirs], thetas[first][theirs])
    torch.testing.assert_close(after[first][mine].double(), mean_d[mine], atol=1e-6, rtol=0)
    assert farthest({last: after[last]}, mean_d) < 1e-5, "it knows its own part"


@every_meeting
def test_a_contribution_that_cannot_be_read_is_left_out(name: str) -> None:
    nodes = crowd(name, 2, compressor="none", outer="average")
    thetas = scattered(nodes)
    packed = {own: node.sync.pack(thetas[own], round=0) for own, node in nodes.items()}
    group, part = ["peer00", "peer01"], slice(0, len(packed["peer00"]))
    for junk in (b"\xff" * len(packed["peer01"]), b"junk"):
        reduced = nodes["peer00"].sync.reduce({"peer00": packed["peer00"], "peer01": junk}, group=group, part=part)
    result = nodes["peer00"].sync.finish(thetas["peer00"], group, [Reduced("peer00", part, reduced)], round=0)
    assert result.members == 1
    assert not result.correction_d.any()


@every_robust_one
def test_a_part_is_the_same_whoever_reduces_it(name: str) -> None:
    nodes = crowd(name, 5, 1000, **group_of(name, 5), aggregator="trimmed_mean", f=1)
    thetas = scattered(nodes, 1000)
    packed = {own: node.sync.pack(thetas[own], round=0) for own, node in nodes.items()}
    part = slice(0, len(packed["peer00"]))
    assert len({node.sync.reduce(packed, group=list(nodes), part=part) for node in nodes.values()}) == 1


@every_robust_one
@pytest.mark.parametrize("attack", thorough_but({"sign_flip", "nan"}, ["sign_flip", "gaussian", "inf", "nan"]))
def test_a_robust_rule_bounds_a_lying_contribution(attack: str, name: str) -> None:
    found = attacks.find(attack)
    assert isinstance(found, VectorAttack)
    moved = {}
    for rule in ("mean", "trimmed_mean"):
        nodes = crowd(name, 4, aggregator=rule, f=1, compressor="none")
        lying = liar_of(nodes["peer03"].sync, found, generator=torch.Generator().manual_seed(0))
        assert isinstance(lying, AllReduceStrategy)
        nodes["peer03"] = SimulatedMember(lying, nodes["peer03"].known)
        theta_d = genesis() + 1
        came = simulated_allreduce.exchange(nodes, dict.fromkeys(nodes, theta_d), 0)
        after = settled(nodes, dict.fromkeys(nodes, theta_d), came, 0)
        moved[rule] = farthest(after, theta_d)
    assert moved["trimmed_mean"] < 1e-5, "three of four say the same"
    assert attack in ("inf", "nan") or moved["mean"] > 0.1, "and one that does not is heard by a mean"


@pytest.mark.slow
def test_a_lying_owner_is_not_bounded_but_for_its_part() -> None:
    """What the docstring says: a robust rule is of no use against who reduces."""
    nodes = crowd("moshpit", 4, 1_500_000, aggregator="trimmed_mean", f=1, compressor="none")
    thetas = dict.fromkeys(nodes, genesis(1_500_000))
    came = simulated_allreduce.exchange(nodes, thetas, 0)
    liar = came.groups["peer00"][0]
    after = settled(nodes, thetas, spoilt(came, liar, lambda data: b"\0" * len(data)), 0)
    for own in nodes.keys() - {liar}:
        share = float((after[own] != thetas[own]).float().mean())
        assert 0.15 < share < 0.3, "a fourth, in whole chunks"


def test_too_few_robust_contributions_leave_the_owners_values() -> None:
    """Once a round has held f = 1, no later one listens to two (decision 0010)."""
    nodes = crowd("moshpit", 4, 1000, aggregator="trimmed_mean", f=1, compressor="none")
    thetas = scattered(nodes, 1000)
    packed = {own: node.sync.pack(thetas[own], round=0) for own, node in nodes.items()}
    owner = nodes["peer00"].sync
    group, part = list(nodes), slice(0, len(packed["peer00"]))
    assert owner.reduce(packed, group=group, part=part) != packed["peer00"]
    assert owner.reduce(dict(itertools.islice(packed.items(), 2)), group=group, part=part) == packed["peer00"]


@every_meeting
def test_alone_it_keeps_what_it_learned(name: str) -> None:
    node = make(name, "own", 1000, outer="average")
    theta_d = genesis(1000) + 1
    assert node.peer_selection([], round=0) == ["own"]
    node.pack(theta_d, round=0)
    result = node.finish(theta_d, ["own"], [], round=0)
    assert result.members == 1
    assert not result.correction_d.any()
    assert result.consensus_distance == 0.0


@every_meeting
def test_wrong_parameters_are_our_mistake(name: str) -> None:
    node = make(name, "own", 1000)
    with pytest.raises(ValueError, match="diverged"):
        node.pack(torch.full((1000,), torch.nan), round=0)
    with pytest.raises(ValueError, match="shape"):
        node.pack(torch.zeros(7), round=0)
    with pytest.raises(ValueError, match="shape"):
        node.finish(torch.zeros(7), ["own"], [], round=0)


@every_meeting
def test_who_sees_another_group_exchanges_nothing_and_keeps_its_own(name: str) -> None:
    nodes = crowd(name, 4, compressor="none", outer="average")
    lost = nodes["peer00"]
    nodes["peer00"] = SimulatedMember(lost.sync, {"peer01", "stranger"})
    thetas = scattered(nodes)
    for round in range(6):
        group = lost.sync.peer_selection(nodes["peer00"].known, round=round)
        came = simulated_allreduce.exchange(nodes, thetas, round)
        after = settled(nodes, thetas, came, round)
        if came.groups["peer01"] != group:
            torch.testing.assert_close(after["peer00"], thetas["peer00"])
        thetas = after


def test_the_bytes_of_a_group_are_those_of_the_wire() -> None:
    """What the simulation counts is what the network's Group says."""
    nodes = crowd("moshpit", 4, compressor="none")
    came = simulated_allreduce.exchange(nodes, scattered(nodes), 0)
    size = len(came.packed["peer00"])
    members, width = tuple(map(PeerId, came.groups["peer00"])), nodes["peer00"].sync.part_bytes
    group = Group(members=members, round=0, size=size, chunk_bytes=width)
    for own in nodes:
        part = group.part_size(PeerId(own))
        assert came.sent[own] == (size - part) + 3 * part


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("members", [5, 7, 10, 12])
def test_the_base_graph_makes_any_number_of_members_one(members: int, size: int) -> None:
    """By exchanges, with steps that members take where they close a round."""
    nodes = crowd("moshpit", members, 500, group=size, graph="base", compressor="none")
    thetas = scattered(nodes, 500)
    mean_d = mean_of(thetas)
    rounds = graphs.get("base", group=size).period(members)
    for round in range(rounds):
        assert farthest(thetas, mean_d) > 0.05
        thetas = one_round(nodes, thetas, round)
        torch.testing.assert_close(mean_of(thetas), mean_d, atol=1e-6, rtol=0)
    assert farthest(thetas, mean_d) < 1e-5
    grid = crowd("moshpit", members, 500, group=size, compressor="none")
    on_grid = scattered(grid, 500)
    for round in range(rounds):
        on_grid = one_round(grid, on_grid, round)
    assert members == 12 or farthest(on_grid, mean_d) > 0.01, "as many rounds on the grid come near"


def test_members_who_know_unlike_members_meet_along_the_base_graph_where_they_agree() -> None:
    nodes = crowd("moshpit", 7, 500, group=2, graph="base", compressor="none")
    nodes["peer00"] = SimulatedMember(nodes["peer00"].sync, nodes["peer00"].known - {"peer06"})
    nodes["peer01"] = SimulatedMember(nodes["peer01"].sync, {"peer00", "stranger"})
    thetas = scattered(nodes, 500)
    highest, lowest = (torch.stack(list(thetas.values())).aminmax(dim=0))[::-1]
    sizes = []
    for round in range(30):
        came = simulated_allreduce.exchange(nodes, thetas, round)
        after = settled(nodes, thetas, came, round)
        for own, group in came.groups.items():
            met = [other for other in group if came.groups.get(other) == group]
            sizes.append(len(met))
            if len(met) == 1:
                torch.testing.assert_close(after[own], thetas[own])
            assert ((after[own] <= highest + 1e-5) & (after[own] >= lowest - 1e-5)).all(), "weights are not negative"
        thetas = after
    assert {1, 2} == set(sizes)


@pytest.mark.parametrize("graph", ["exponential", "matching", "base"])
def test_pairs_of_every_graph_send_one_model_a_round(graph: str) -> None:
    nodes = crowd("moshpit", 8, 1000, group=2, graph=graph, compressor="none")
    thetas = scattered(nodes, 1000)
    for round in range(3):
        came = simulated_allreduce.exchange(nodes, thetas, round)
        assert sum(came.sent.values()) == 8 * len(came.packed["peer00"])
        thetas = settled(nodes, thetas, came, round)
    assert (farthest(thetas, mean_of(thetas)) < 1e-5) == (graph != "matching")


def test_a_step_beyond_the_mean_ends_no_farther_from_it_where_own_values_came_too_late() -> None:
    """What an owner reduced without them is the others' mean, which the step goes towards all the same."""
    node = make("moshpit", "peer00", 100, group=2, graph="base", compressor="none")
    names, theta_d = [f"peer{i:02}" for i in range(9)], genesis(100)
    round = next(r for r in range(200) if node.peer_selection(names, round=r) and node._step > 1.7)
    group = node.peer_selection(names, round=round)
    packed = node.pack(theta_d, round=round)
    other_d = theta_d + 1
    part = Reduced(group[0], slice(0, len(packed)), other_d.numpy().tobytes())
    after_d = theta_d + node.finish(theta_d, group, [part], round=round).correction_d
    torch.testing.assert_close(after_d, theta_d + 16 / 9)
    assert float((after_d - other_d).abs().max()) < 1
