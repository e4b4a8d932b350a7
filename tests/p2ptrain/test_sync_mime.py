"""Gradients averaged before the optimizer: with one step a round it is synchronous training; anchors and optimizers
stay alike; what one member alone must learn is learned."""

from typing import Any

import pytest
import torch
from sizes import thorough_but

from node.bench.swarm import simulated_allreduce
from node.bench.swarm.baselines import synchronous
from node.bench.swarm.presets import asked
from node.bench.swarm.simulated_allreduce import SimulatedMember
from node.bench.swarm.simulation import Swarm
from p2ptrain import tasks
from p2ptrain.inner.base import Place
from p2ptrain.sync import Reduced, RoundResult, StepsAnchor, SyncConfig, build
from p2ptrain.sync.difference_packing import counting
from p2ptrain.sync.mime import Mime
from p2ptrain.training import TrainConfig, lr_at
from p2ptrain.training.anchor_optimizer import AnchorOptimizer
from p2ptrain.training.base import OptimizerPlace

ROWS, COLUMNS = 48, 40
BIAS = 80
D = ROWS * COLUMNS + BIAS


def place() -> OptimizerPlace:
    whole = torch.Size((ROWS, COLUMNS))
    matrix = Place(name="w", span=slice(0, whole.numel()), shape=whole, decayed=True, hidden=True)
    bias = Place(name="b", span=slice(whole.numel(), D), shape=torch.Size((BIAS,)), decayed=False, hidden=False)
    return OptimizerPlace(places=(matrix, bias), options={})


def train(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"optimizer": "muon", "inner_steps": 3, "rounds": 20, "warmup_steps": 2} | settings)


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def member(own: str = "own", config: TrainConfig | None = None, **options: object) -> Mime:
    steps = AnchorOptimizer(config or train(), place())
    made = build(SyncConfig(**{"strategy": "mime", "refresh": 4} | options), genesis(), own, steps=steps)
    assert isinstance(made, Mime)
    assert isinstance(made, StepsAnchor)
    return made


class Members:
    """A group whose members meet the gradients that they are told to, at models that they moved by those."""

    def __init__(self, count: int, **options: object) -> None:
        self.names = [f"peer{number}" for number in range(count)]
        self.syncs = {own: member(own, **options) for own in self.names}
        self.nodes = {own: SimulatedMember(sync, set(self.names) - {own}) for own, sync in self.syncs.items()}
        self.thetas = dict.fromkeys(self.names, genesis())
        self.generator = torch.Generator().manual_seed(1)
        self.rounds = 0

    def gradients(self) -> dict[str, torch.Tensor]:
        common_d = torch.randn(D, generator=self.generator)
        return {own: common_d + 2 * torch.randn(D, generator=self.generator) for own in self.names}

    def round(
        self, gradients: dict[str, torch.Tensor] | None = None, *, spoil: str = ""
    ) -> tuple[dict[str, RoundResult], list[Reduced]]:
        """`spoil`: a member that no part reaches; what it would have got is returned."""
        for own, gradient_d in (gradients or self.gradients()).items():
            self.thetas[own] = self.thetas[own] - 0.01 * gradient_d
            self.syncs[own].take_gradient(gradient_d)
        came = simulated_allreduce.exchange(self.nodes, self.thetas, self.rounds)
        results = {}
        for own, sync in self.syncs.items():
            parts = [part._replace(data=None) if own == spoil else part for part in came.parts[own]]
            results[own] = sync.finish(self.thetas[own], came.groups[own], parts, round=self.rounds)
            self.thetas[own] = self.thetas[own] + results[own].correction_d
        self.rounds += 1
        return results, came.parts.get(spoil, [])

    def check_alike(self) -> None:
        first = self.syncs["peer0"]
        for own, sync in self.syncs.items():
            assert torch.equal(sync.anchor_d, first.anchor_d)
            torch.testing.assert_close(self.thetas[own], first.anchor_d)
            for name, buffer in sync.optimizer_state().items():
                assert torch.equal(buffer, first.optimizer_state()[name]), name


@pytest.mark.parametrize("codec", ["none", "int8", "rotated+q2"])
def test_anchors_and_optimizers_are_the_same_bits_at_all(codec: str) -> None:
    members = Members(4, compressor=codec)
    for _ in range(5):
        results, _ = members.round()
        members.check_alike()
    for own, result in results.items():
        given = {part.name: part.values for part in result.optimizer_state}
        assert given.keys() == members.syncs[own].optimizer_state().keys()
        for name, buffer in members.syncs[own].optimizer_state().items():
            assert torch.equal(buffer, given[name])


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "sgd"])
def test_a_round_is_the_optimizers_steps_by_the_mean_gradient(optimizer: str) -> None:
    config = train(optimizer=optimizer)
    members = Members(3, compressor="none", config=config)
    alone, anchor_d = AnchorOptimizer(config, place()), genesis()
    for round in range(4):
        gradients = members.gradients()
        members.round(gradients)
        alone.advance_(anchor_d, torch.stack(list(gradients.values())).mean(0), round)
        torch.testing.assert_close(members.syncs["peer0"].anchor_d, anchor_d, rtol=1e-4, atol=1e-4)


def test_what_a_codec_lost_is_told_later() -> None:
    """The sum of what arrived is that of the gradients, but for what is still owed; and that does not grow."""
    members, met_d, arrived_d = Members(4, config=train(rounds=60, clip_norm=0)), torch.zeros(D), torch.zeros(D)
    for _ in range(40):
        gradients = members.gradients()
        members.round(gradients)
        met_d += torch.stack(list(gradients.values())).mean(0)
        before = members.syncs["peer0"]._before
        assert before is not None
        arrived_d -= before.moved_d
    owed_d = -torch.stack([sync.residual_d for sync in members.syncs.values()]).mean(0)
    lost = float((met_d - arrived_d - owed_d).norm() / met_d.norm())
    assert lost < 0.36, "the owners' own rounding alone, which is not fed back: the root of 0.12"
    assert all(float(sync.residual_d.norm()) < 1.2 * D**0.5 for sync in members.syncs.values())


def test_a_part_that_comes_before_the_next_round_leaves_no_trace() -> None:
    members = Members(3, local_rate=1.0)
    members.round()
    results, missed = members.round(spoil="peer1")
    late = members.syncs["peer1"]
    assert results["peer1"].members == 1
    assert not results["peer1"].optimizer_state
    assert not results["peer1"].correction_d.any(), "own steps stay"
    assert not torch.equal(late.anchor_d, members.syncs["peer0"].anchor_d)
    late.take_missed(missed)
    assert torch.equal(late.anchor_d, members.syncs["peer0"].anchor_d)
    late.take_missed(missed)
    assert torch.equal(late.anchor_d, members.syncs["peer0"].anchor_d), "once"
    assert late.snapshot() == late.anchor_d.numpy().tobytes(), "newcomers are given the new one"
    members.round()
    members.check_alike()


def test_who_missed_a_round_is_alike_again_in_time() -> None:
    """Its anchor by the shares that travel, its momenta because they fade."""
    members = Members(3, config=train(rounds=80, inner_steps=8))
    members.round(spoil="peer1")
    first, late = members.syncs["peer0"], members.syncs["peer1"]
    apart = float((late.anchor_d - first.anchor_d).norm())
    for _ in range(40):
        members.round()
    assert float((late.anchor_d - first.anchor_d).norm()) < 0.1 * apart, "fp16 alone is left"


def test_where_nothing_came_own_steps_count_and_are_remembered() -> None:
    """With own steps at twice the anchor's rate it goes half as far."""
    members = Members(3, compressor="none", local_rate=2.0)
    gradients = members.gradients()
    results, missed = members.round(gradients, spoil="peer1")
    late = members.syncs["peer1"]
    torch.testing.assert_close(late.anchor_d, genesis() - 0.005 * gradients["peer1"])
    torch.testing.assert_close(members.thetas["peer1"], late.anchor_d)
    assert not late.residual_d.any(), "the others have it"
    alone = AnchorOptimizer(train(), place())
    alone.advance_(genesis(), gradients["peer1"], 0)
    for name, buffer in late.optimizer_state().items():
        torch.testing.assert_close(buffer, alone.buffers[name])
    late.take_missed(missed)
    torch.testing.assert_close(late.residual_d, torch.zeros(D), atol=1e-5, rtol=0)
    assert results["peer1"].snapshot_d is not None


def test_alone_it_keeps_what_it_learned_and_its_momenta() -> None:
    node, theta_d = member(local_rate=1.0), genesis()
    for round in range(5):
        gradient_d = torch.randn(D, generator=torch.Generator().manual_seed(round))
        theta_d = theta_d - 0.01 * gradient_d
        node.take_gradient(gradient_d)
        node.pack(theta_d, round=round)
        assert not node.finish(theta_d, ["own"], [], round=round).correction_d.any()
    assert torch.equal(node.anchor_d, theta_d)
    assert node.optimizer_state()["momentum"].any()
    assert not node.residual_d.any()


def test_alone_it_moves_by_steps_of_the_anchors_rate() -> None:
    node, moved_d = member(local_rate=4.0), torch.full((D,), 0.5)
    node.take_gradient(torch.ones(D))
    node.pack(genesis() + moved_d, round=0)
    found = node.finish(genesis() + moved_d, ["own"], [], round=0)
    torch.testing.assert_close(node.anchor_d, genesis() + moved_d / 4)
    torch.testing.assert_close(found.correction_d, -0.75 * moved_d)


@pytest.mark.parametrize("wrong", [0.0, 0.09, -1.0, 11.0, float("nan")])
def test_a_local_rate_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"local_rate must be at least 0\.1"):
        member(local_rate=wrong)


@pytest.mark.thorough
def test_a_newcomer_takes_the_others_model_again_once_momenta_are_alike() -> None:
    members = Members(4, config=train(rounds=60, inner_steps=6))
    for _ in range(5):
        members.round()
    late = members.syncs["peer1"] = member("peer1", train(rounds=60, inner_steps=6))
    members.nodes["peer1"] = SimulatedMember(late, members.nodes["peer1"].known)

    def adopt() -> None:
        for other in ("peer0", "peer2", "peer3"):
            late.track(other, members.syncs[other].snapshot())
        members.thetas["peer1"] = late.adopt(dict.fromkeys(("peer0", "peer2", "peer3"), 0)).clone()
        for other in ("peer0", "peer2", "peer3"):
            late.forget(other)

    adopt()
    asked = []
    for round in range(30):
        members.round()
        asks = [own for own, sync in members.syncs.items() if sync.asks_for_model()]
        assert set(asks) <= {"peer1"}, "nobody else has reason to"
        if asks:
            asked.append(round)
            assert not torch.equal(late.anchor_d, members.syncs["peer0"].anchor_d)
            adopt()
    assert asked == [9], "after 60 steps, and once"
    torch.testing.assert_close(late.anchor_d, members.syncs["peer0"].anchor_d, atol=2e-3, rtol=0)


def test_nobody_asks_for_a_model_after_all_have_begun_again() -> None:
    """However far apart one of them is: all would ask at once, and take each other's."""
    members = Members(3, config=train(rounds=60, inner_steps=8))
    members.round(spoil="peer1")
    for sync in members.syncs.values():
        sync.load_state_dict({name: value.clone() for name, value in sync.state_dict().items()})
    for _ in range(20):
        members.round()
        assert not any(sync.asks_for_model() for sync in members.syncs.values())


def test_it_adopts_what_most_have() -> None:
    node, others = member(), [genesis() + 1, genesis() + 1, genesis() + 50]
    for number, other_d in enumerate(others):
        node.track(f"peer{number}", other_d.numpy().tobytes())
    assert torch.equal(node.adopt({f"peer{number}": 0 for number in range(3)}), others[0])


def test_its_state_is_the_anchors_and_the_optimizers() -> None:
    members = Members(3)
    for _ in range(3):
        members.round()
    state = {name: value.clone() for name, value in members.syncs["peer1"].state_dict().items()}
    again = member("peer1")
    again.load_state_dict(state)
    members.syncs["peer1"], members.nodes["peer1"] = again, SimulatedMember(again, {"peer0", "peer2"})
    for _ in range(2):
        members.round()
        members.check_alike()
    with pytest.raises(ValueError, match="not that of adamw"):
        member(config=train(optimizer="adamw")).load_state_dict(state)
    without = build(SyncConfig(strategy="mime"), genesis(), "own")
    with pytest.raises(ValueError, match="was given none"):
        without.load_state_dict(state)


def led_by_an_owner(optimizer: str, lie: float | None, *, of_share: bool = False) -> tuple[list[float], float]:
    """A member and an owner who lies in round 5, of the mean or of the anchor's share: how far each round moved the
    anchor, and its distance to the target."""
    target_d = torch.randn(D, generator=torch.Generator().manual_seed(7))
    honest, moved = member(config=train(optimizer=optimizer, rounds=60, learning_rate=0.05)), []
    for round in range(60):
        gradient_d = honest.anchor_d - target_d
        honest.take_gradient(gradient_d)
        packed = honest.pack(honest.anchor_d, round=round)
        share_d = honest.anchor_d[honest.packing.refreshed(slice(0, D), round)]
        lies = round == 5 and lie is not None
        said_d = torch.full((D,), lie) if lies and not of_share else -gradient_d
        piece_d = torch.cat([said_d, share_d + (lie or 0.0) if lies and of_share else share_d])
        reduced = counting(honest.packing.pack(piece_d), 0b11)
        before_d = honest.anchor_d.clone()
        honest.finish(before_d, ["own", "other"], [Reduced("other", slice(0, len(packed)), reduced)], round=round)
        moved.append(float((honest.anchor_d - before_d).norm()))
    return moved, float((honest.anchor_d - target_d).norm())


@pytest.mark.parametrize("lie", thorough_but({-1e30}, [1e3, 1e12, -1e30]))
@pytest.mark.parametrize("optimizer", thorough_but({"adamw"}, ["muon", "adamw"]))
def test_a_lying_owner_moves_the_anchor_no_further_than_steps_go_and_training_goes_on(
    optimizer: str, lie: float
) -> None:
    """Whatever it says of the mean. Under allreduce the anchor would go there."""
    moved, distance = led_by_an_owner(optimizer, lie)
    assert moved[5] < 2 * max(moved[3:5])
    assert distance < 1.5 * led_by_an_owner(optimizer, None)[1]


@pytest.mark.parametrize("lie", thorough_but({-6e4}, [10.0, -6e4]))
def test_nor_does_what_it_says_of_the_anchors_share(lie: float) -> None:
    moved, distance = led_by_an_owner("adamw", lie, of_share=True)
    assert moved[5] < 2 * max(moved[3:5])
    assert distance < 1.5 * led_by_an_owner("adamw", None)[1]


def test_a_lie_of_one_owner_leaves_the_others_their_steps() -> None:
    """Each one's part, of however many pieces, is clipped for itself before all are together."""
    numel = 250_000
    whole = Place(name="w", span=slice(0, numel), shape=torch.Size((numel, 1)), decayed=False, hidden=False)
    steps = AnchorOptimizer(train(optimizer="sgd", momentum=0.0), OptimizerPlace(places=(whole,), options={}))
    moved = []
    for lie in (0.0, 1e9):
        node = build(SyncConfig(strategy="mime", compressor="none"), torch.zeros(numel), "own", steps=steps)
        assert isinstance(node, Mime)
        gradient_d = torch.full((numel,), numel**-0.5)
        node.take_gradient(gradient_d)
        packed, (first, *others) = node.pack(torch.zeros(numel), round=5), node.packing.spans
        assert len(others) == 3
        pieces = []
        for at, said_d in ((first, -gradient_d[first]), *((at, -gradient_d[at] + lie) for at in others)):
            shares_d = torch.zeros_like(gradient_d[node.packing.refreshed(at, 5)])
            pieces.append(counting(node.packing.pack(torch.cat([said_d, shares_d])), 0b11))
        border = node.part_bytes
        reduced = [
            Reduced("own", slice(0, border), pieces[0]),
            Reduced("other", slice(border, len(packed)), b"".join(pieces[1:])),
        ]
        moved.append(
            float(node.finish(torch.zeros(numel), ["own", "other"], reduced, round=5).correction_d[first].norm())
        )
    assert moved[1] > 0.6 * moved[0] > 0


def test_where_one_piece_did_not_come_the_model_and_the_anchor_stay() -> None:
    numel = 100_000
    whole = Place(name="w", span=slice(0, numel), shape=torch.Size((numel, 1)), decayed=True, hidden=False)
    steps = AnchorOptimizer(train(optimizer="sgd"), OptimizerPlace(places=(whole,), options={}))
    node = build(SyncConfig(strategy="mime", compressor="none"), torch.ones(numel), "own", steps=steps)
    assert isinstance(node, Mime)
    node.take_gradient(torch.full((numel,), 1e-3))
    packed, (first, last) = node.pack(torch.ones(numel) / 2, round=5), node.packing.spans
    width = node.part_bytes
    part = slice(0, width)
    reduced = counting(packed[part], 0b11)
    parts = [Reduced("other", part, reduced), Reduced("own", slice(width, len(packed)), None)]
    result = node.finish(torch.ones(numel) / 2, ["own", "other"], parts, round=5)
    assert (node.anchor_d[first] != 1).all()
    assert (node.anchor_d[last] == 1).all(), "weight decay, too, is for the late part's round"
    torch.testing.assert_close(torch.ones(numel)[first] / 2 + result.correction_d[first], node.anchor_d[first])
    assert not result.correction_d[last].any()
    rest = slice(width, len(packed))
    node.take_missed([Reduced("own", rest, counting(packed[rest], 0b11))])
    assert (node.anchor_d[last] != 1).all()
    torch.testing.assert_close(node.residual_d, torch.zeros(numel), atol=1e-6, rtol=0)


def test_a_gradient_that_is_no_number_moves_nothing() -> None:
    steps, x_d = AnchorOptimizer(train(), place()), genesis()
    steps.advance_(x_d, torch.full((D,), torch.inf), 3)
    assert torch.equal(x_d, genesis())
    assert not any(buffer.any() for buffer in steps.buffers.values())


def test_the_anchor_takes_as_many_steps_as_the_schedule_gives_the_round_at_their_rates() -> None:
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.0, "inner_steps": 6}
    config = train(inner_steps_schedule="qsr", **plain)
    steps = AnchorOptimizer(config, place())
    assert config.steps_in(19) > 4 * config.steps_in(0)
    for round in (0, 7, 19):
        x_d = torch.zeros(D)
        steps.advance_(x_d, torch.ones(D), round)
        taken = range(config.first_step(round), config.first_step(round + 1))
        assert steps.steps_in(round) == len(taken)
        moved = sum(lr_at(step, config.total_steps, config) for step in taken)
        torch.testing.assert_close(x_d, torch.full((D,), -moved))


def test_settings_that_change_meanwhile_hold_from_the_next_round() -> None:
    now = [train(learning_rate=0.1)]
    steps, moved = AnchorOptimizer(now[0], place(), newest=lambda: now[0]), []
    for rate in (0.1, 1e-4):
        now[0] = train(learning_rate=rate)
        x_d = torch.zeros(D)
        steps.advance_(x_d, torch.ones(D), 3)
        moved.append(float(x_d.norm()))
    assert moved[1] < 0.01 * moved[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"optimizer": "schedule_free"}, "elsewhere"), ({"drift": "scaffold"}, "which scaffold would bend")],
)
def test_an_optimizer_that_cannot_step_the_anchor_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AnchorOptimizer(train(**settings), place())


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"outer": "nesterov"}, "it has no outer one"),
        ({"gamma": 0.5}, "no gamma"),
        ({"compressor": "topk"}, "use one of"),
        ({"compressor": "rotated+topk"}, "use one of"),
        ({"aggregator": "clipped_gossip"}, "one's own"),
        ({"refresh": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(sync: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        SyncConfig(**{"strategy": "mime"} | sync)
    assert "\n" not in str(refused.value)


def test_wrong_gradients_are_our_mistake() -> None:
    node = member()
    with pytest.raises(ValueError, match="shape"):
        node.take_gradient(torch.zeros(7))
    with pytest.raises(ValueError, match="not finite"):
        node.take_gradient(torch.full((D,), torch.inf))
    with pytest.raises(ValueError, match="does not fit"):
        build(SyncConfig(strategy="mime"), torch.zeros(7), "own", steps=AnchorOptimizer(train(), place()))


def swarm_of(strategy: str, *sets: str, optimizer: str, inner_steps: int, rounds: int) -> Swarm:
    words: dict[str, object] = {"task": "digits", "nodes": 4, "rounds": rounds, "inner_steps": inner_steps}
    words |= {"strategy": strategy, "compressor": "none", "aggregator": "mean"}
    words["set_"] = [f"train.optimizer={optimizer}", "train.warmup_steps=4", *sets]
    (found,) = asked("strategies", words, quick=False).recipes({})
    return Swarm(found, tasks.get("digits", **found.config.task.options))


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_with_one_step_a_round_it_is_synchronous_training(optimizer: str) -> None:
    """Without clipping, which members do each for itself."""
    swarm = swarm_of("mime", "train.clip_norm=0", optimizer=optimizer, inner_steps=1, rounds=12)
    train_config = swarm.recipe.config.train
    together = synchronous(tasks.get("digits"), train_config, 4)
    for _ in range(12):
        swarm.round()
        together.step()
    moved = float((together.vector() - swarm.nodes[0].trainer.vector()).norm())
    assert moved < 0.02 * float((together.vector() - synchronous(tasks.get("digits"), train_config, 4).vector()).norm())


def test_own_steps_have_a_rate_of_their_own() -> None:
    """And the anchor's steps that of the settings."""
    swarm = swarm_of("mime", "sync.local_rate=3", optimizer="adamw", inner_steps=2, rounds=12)
    swarm.round()
    config = swarm.recipe.config.train
    assert {node.trainer.learning_rate for node in swarm.nodes} == {3 * lr_at(1, config.total_steps, config)}
    moved_d = (swarm.mean_model() - synchronous(tasks.get("digits"), config, 4).vector()).abs()
    rates = sum(lr_at(step, config.total_steps, config) for step in range(2))
    assert 0.5 * rates < float(moved_d.max()) < 1.1 * rates, "no step of Adam is longer than its rate at first"


@pytest.mark.thorough
def test_what_one_member_alone_must_learn_is_learned() -> None:
    """Classes that few members have: what averages models takes a fourth of each step, and needs more of them."""
    losses = {}
    for strategy in ("mime", "allreduce"):
        unlike = ("task.partition=label", "train.learning_rate=0.003")
        swarm = swarm_of(strategy, *unlike, optimizer="muon", inner_steps=2, rounds=30)
        for _ in range(30):
            swarm.round()
        losses[strategy] = swarm.nodes[0].trainer.evaluate(swarm.mean_model())
    assert losses["mime"] < 0.8 * losses["allreduce"], losses
