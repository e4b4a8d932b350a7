"""Values at random places averaged in every round, and differences by fragments: the mean stays, anchors stay alike."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from node.bench.swarm import simulated_allreduce
from node.bench.swarm.presets import asked
from node.bench.swarm.simulated_allreduce import Round, SimulatedMember
from node.bench.swarm.simulation import Swarm
from p2ptrain import compress, tasks
from p2ptrain.sync import AllReduceStrategy, Reduced, RoundResult, SyncConfig, build
from p2ptrain.sync.difference_packing import DifferencePacking, counting
from p2ptrain.sync.packing import DIFFERENCE_PACKERS
from p2ptrain.sync.sparta import FARTHEST, SparseAllReduce

D = 3000
PERIOD = 4


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def member(own: str = "own", **options: object) -> SparseAllReduce:
    config = SyncConfig(**{"strategy": "sparta", "period": PERIOD, "random_share": 0.01, "refresh": 8} | options)
    made = build(config, genesis(), own)
    assert isinstance(made, SparseAllReduce)
    assert isinstance(made, AllReduceStrategy)
    return made


class Members:
    """A group that trains: each one's model moves from where it is, by a common step and noise of its own."""

    def __init__(self, count: int, **options: object) -> None:
        self.names = [f"peer{number}" for number in range(count)]
        self.syncs = {own: member(own, **options) for own in self.names}
        self.nodes = {own: SimulatedMember(sync, set(self.names) - {own}) for own, sync in self.syncs.items()}
        self.thetas = dict.fromkeys(self.names, genesis())
        self.generator = torch.Generator().manual_seed(1)
        self.rounds = 0
        self.learned_d = torch.zeros(D)
        """The mean of all members' steps so far."""

    def train(self) -> None:
        common_d = torch.randn(D, generator=self.generator)
        for own, theta_d in self.thetas.items():
            step_d = 0.01 * (common_d + torch.randn(D, generator=self.generator))
            self.thetas[own] = theta_d + step_d
            self.learned_d += step_d / len(self.thetas)

    def exchange(self, *, train: bool = True) -> Round:
        if train:
            self.train()
        return simulated_allreduce.exchange(self.nodes, self.thetas, self.rounds)

    def close(self, came: Round, spoil: str = "") -> dict[str, RoundResult]:
        results = {}
        for own, sync in self.syncs.items():
            parts = [part._replace(data=None) if own == spoil else part for part in came.parts[own]]
            results[own] = sync.finish(self.thetas[own], came.groups[own], parts, round=self.rounds)
            self.thetas[own] = self.thetas[own] + results[own].correction_d
        self.rounds += 1
        return results

    def round(self, spoil: str = "", *, train: bool = True) -> dict[str, RoundResult]:
        """`spoil`: a member that no part reaches."""
        return self.close(self.exchange(train=train), spoil)

    def mean(self) -> torch.Tensor:
        return torch.stack(list(self.thetas.values())).mean(0)

    def apart(self) -> float:
        first_d = self.syncs["peer0"].anchor_d
        return max(float((sync.anchor_d - first_d).abs().max()) for sync in self.syncs.values())


def fragment_of(sync: SparseAllReduce, round: int) -> set[int]:
    return {place for at in sync.packing.spans for place in range(D)[sync.packing.moved(at, round)]}


def drawn_of(sync: SparseAllReduce, round: int) -> set[int]:
    return {place for at in sync.packing.spans for place in sync.places(at, round).tolist()}


def test_a_round_averages_a_fragment_and_the_places_drawn_and_leaves_all_else() -> None:
    members = Members(5, compressor="none")
    for round in range(2 * PERIOD):
        members.train()
        before, mean_d = dict(members.thetas), members.mean()
        results = members.round(train=False)
        sync = members.syncs["peer0"]
        fragment, drawn = fragment_of(sync, round), drawn_of(sync, round)
        moved = sorted(fragment | drawn)
        stays = sorted(set(range(D)) - fragment - drawn)
        assert len(fragment) == D // PERIOD
        assert len(drawn) == 30
        for own, theta_d in members.thetas.items():
            torch.testing.assert_close(theta_d[moved], mean_d[moved], atol=4e-3, rtol=0)  # fp16 of as much as four
            torch.testing.assert_close(theta_d[sorted(fragment)], mean_d[sorted(fragment)], atol=2e-6, rtol=0)
            assert torch.equal(theta_d[stays], before[own][stays])
            snapshot_d = results[own].snapshot_d
            assert snapshot_d is not None
            torch.testing.assert_close(snapshot_d, theta_d)


@pytest.mark.parametrize("outer", ["average", "nesterov", "noloco"])
@pytest.mark.parametrize("codec", DIFFERENCE_PACKERS)
def test_anchors_are_the_same_bits_at_all(codec: str, outer: str) -> None:
    members = Members(4, compressor=codec, outer=outer)
    for _ in range(2 * PERIOD):
        results = members.round()
        assert members.apart() == 0
        assert {result.members for result in results.values()} == {4}


def test_the_mean_is_what_all_have_learned_where_nothing_is_lost() -> None:
    members = Members(4, compressor="none")
    for _ in range(3 * PERIOD):
        members.round()
    torch.testing.assert_close(members.mean() - genesis(), members.learned_d, atol=2e-3, rtol=0)
    assert float((members.mean() - genesis() - members.learned_d).norm()) < 1e-2, "but for fp16 at the places drawn"


def test_random_places_hold_models_together() -> None:
    spreads = []
    for share in (1e-4, 0.2):
        members = Members(4, random_share=share, period=64)
        for _ in range(40):
            members.round()
        mean_d = members.mean()
        spreads.append(sum(float((theta_d - mean_d).norm()) for theta_d in members.thetas.values()))
    assert spreads[1] < 0.6 * spreads[0]


def test_all_draw_the_same_places_and_others_in_every_round() -> None:
    one, other = member("one"), member("other")
    assert all(drawn_of(one, round) == drawn_of(other, round) for round in range(5))
    assert len(set().union(*(drawn_of(one, round) for round in range(20)))) > 500, "of 600 at most"


@cache
def shared() -> SparseAllReduce:
    return member()


@settings(max_examples=examples(60), deadline=None)
@given(start=st.integers(0, 2**30), width=st.integers(1, 5000), share=st.floats(1e-6, 1), round=st.integers(0, 2**40))
def test_places_are_in_the_piece_and_none_is_drawn_twice(start: int, width: int, share: float, round: int) -> None:
    sync = shared()
    sync._share = share
    places = sync.places(slice(start, start + width), round)
    assert len(places) == sync._count(width) >= 1
    assert start <= int(places[0]) <= int(places[-1]) < start + width
    assert bool((places.diff() > 0).all())


@settings(max_examples=examples(30), deadline=None)
@given(
    codec=st.sampled_from(DIFFERENCE_PACKERS),
    period=st.integers(1, 9),
    numel=st.integers(1, 3000),
    seed=st.integers(0, 2**20),
)
def test_a_packed_fragment_is_read_as_it_was_written(codec: str, period: int, numel: int, seed: int) -> None:
    packing = DifferencePacking(compress.get(codec), numel, 4, period=period)
    (at,) = packing.spans
    seen = set()
    for round in range(period):
        part = packing.moved(at, round)
        assert 0 <= part.start < part.stop <= numel
        seen |= set(range(part.start, part.stop))
    assert seen == set(range(numel)), "all of the model"
    x_p = torch.randn(packing.numel, generator=torch.Generator().manual_seed(seed))
    moved_p, _ = packing.split(packing.unpack(packing.pack(x_p)))
    count = len(moved_p)
    torch.testing.assert_close(moved_p, compress.get(codec).decode(compress.get(codec).encode(x_p[:count]), count))


def test_a_rounds_bytes_are_few_and_the_same_in_each() -> None:
    sync = member(period=8, random_share=0.005, refresh=512)
    sizes = {len(sync.pack(genesis() + round, round=round)) for round in range(10)}
    (size,) = sizes
    assert 8 * size / D == pytest.approx(2.03 / 8 + 16 * 0.005 + 16 / 512, abs=0.05)


def test_what_a_codec_lost_is_told_at_the_next_turn() -> None:
    members = Members(4, compressor="q2")
    for _ in range(4 * PERIOD):
        members.round()
    left = float(members.syncs["peer0"].residual_d.norm())
    assert left > 0
    for _ in range(8 * PERIOD):
        members.round(train=False)
    assert float(members.syncs["peer0"].residual_d.norm()) < 0.25 * left


# -- liars


@pytest.mark.parametrize("lie", [1e3, -1e3])
def test_a_lying_contribution_is_bounded_by_the_rule(lie: float) -> None:
    moved = {}
    for rule in ("mean", "trimmed_mean"):
        members = Members(4, aggregator=rule, f=1, compressor="none")
        members.train()
        honest = torch.stack([members.thetas[own] for own in members.names[:3]])
        members.thetas["peer3"] = torch.full((D,), lie)
        members.round(train=False)
        low_d, high_d = honest.min(0).values - 4e-3, honest.max(0).values + 4e-3
        theta_d = members.thetas["peer0"]
        moved[rule] = int(((theta_d < low_d) | (theta_d > high_d)).sum())
    assert moved["trimmed_mean"] == 0
    assert moved["mean"] > 0


@pytest.mark.parametrize("lie", [1e4, -6e4])
def test_an_owner_moves_the_places_drawn_no_further_than_steps_go(lie: float) -> None:
    sync, theta_d = member(compressor="none"), genesis() + 0.01 * torch.randn(D)
    packed = sync.pack(theta_d, round=0)
    piece_p = sync.packing.unpack(packed)
    piece_p[-sync._count(D) :] = lie
    said = counting(sync.packing.pack(piece_p), 0b11)
    result = sync.finish(theta_d, ["own", "other"], [Reduced("other", slice(0, len(packed)), said)], round=0)
    farthest = float((theta_d - genesis()).abs().max())
    outside = sorted(drawn_of(sync, 0) - fragment_of(sync, 0))
    assert 0 < float(result.correction_d[outside].abs().max()) <= FARTHEST * farthest * 1.001


# -- who was late, away, or is new


def test_who_misses_a_part_keeps_its_model_and_tells_it_at_the_next_turn() -> None:
    members = Members(4, compressor="none", refresh=64)
    members.train()
    theta_d = members.thetas["peer2"].clone()
    results = members.round(spoil="peer2", train=False)
    assert torch.equal(members.thetas["peer2"], theta_d)
    assert torch.equal(members.syncs["peer2"].anchor_d, genesis())
    assert results["peer2"].members == 1
    late = members.syncs["peer2"]
    (at,) = late.packing.spans
    moving = late.packing.moved(at, PERIOD)
    moved_p, _ = late.packing.split(late.packing.unpack(late.packed(theta_d, round=PERIOD)))
    torch.testing.assert_close(moved_p, (theta_d - genesis())[moving])


def test_a_part_that_comes_before_the_next_round_makes_anchors_alike() -> None:
    members = Members(4)
    members.round()
    came = members.exchange()
    members.close(came, spoil="peer2")
    assert members.apart() > 0
    theta_d = members.thetas["peer2"].clone()
    for _ in range(2):
        members.syncs["peer2"].take_missed(came.parts["peer2"])
        assert members.apart() == 0, "a part is taken once"
    assert torch.equal(members.thetas["peer2"], theta_d)
    for _ in range(PERIOD):
        members.round()
        assert members.apart() == 0


def test_a_newcomer_with_another_anchor_is_alike_in_time() -> None:
    members = Members(5, aggregator="trimmed_mean", f=1)
    members.syncs["peer4"]._restart_at(genesis() + 0.5)
    members.thetas["peer4"] = genesis() + 0.5
    for _ in range(8):
        members.round(train=False)
    assert members.apart() < 2**-10 * 4, "fp16 of parameters as large as four"


def test_alone_it_keeps_what_it_learned() -> None:
    sync, theta_d = member(), genesis() + 1
    sync.pack(theta_d, round=0)
    result = sync.finish(theta_d, ["own"], [], round=0)
    assert not result.correction_d.any()
    torch.testing.assert_close(sync.anchor_d, theta_d)


def test_its_state_is_the_anchor_the_residual_and_the_momentum() -> None:
    members = Members(3, outer="nesterov", alpha=0.5, beta=0.7)
    for _ in range(3):
        members.round()
    kept = {name: value.clone() for name, value in members.syncs["peer0"].state_dict().items()}
    assert kept.keys() == {"anchor", "residual", "outer.0.momentum"}
    back = member("peer0", outer="nesterov", alpha=0.5, beta=0.7)
    back.load_state_dict(kept)
    members.train()
    went_on, came_back = (sync.pack(members.thetas["peer0"], round=3) for sync in (members.syncs["peer0"], back))
    assert went_on == came_back


# -- mistakes, and a whole swarm


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"period": 0}, "period must be at least 1"),
        ({"random_share": 0.0}, r"random_share must be in \(0, 1\]"),
        ({"random_share": 1.5}, r"random_share must be in \(0, 1\]"),
        ({"refresh": 0}, "refresh must be at least 1"),
        ({"compressor": "topk"}, "does not make equally long"),
        ({"outer": "delayed_nesterov"}, "counts its rounds"),
        ({"gamma": 0.5}, "no gamma"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(sync: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        SyncConfig(**{"strategy": "sparta"} | sync)
    assert "\n" not in str(refused.value)


def test_members_who_would_pack_otherwise_are_in_another_run() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"period": 2},
        {"random_share": 0.001},
        {"refresh": 2},
        {"compressor": "int4"},
    ]
    assert len({SyncConfig(**{"strategy": "sparta"} | more).run_key() for more in changes}) == 5


def test_a_swarm_learns_in_many_small_rounds() -> None:
    words: dict[str, object] = {"task": "digits", "nodes": 4, "rounds": 60, "inner_steps": 1, "strategy": "sparta"}
    words |= {"compressor": "own", "aggregator": "own", "set_": ["train.learning_rate=0.003", "train.epsilon=1e-8"]}
    (found,) = asked("strategies", words, quick=False).recipes({})
    swarm = Swarm(found, tasks.get("digits", **found.config.task.options))
    before = swarm.nodes[0].trainer.evaluate()
    for _ in range(60):
        swarm.round()
    assert swarm.nodes[0].trainer.evaluate() < 0.6 * before
