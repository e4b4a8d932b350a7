"""Simulated swarms: what honest nodes, liars and baselines do, against what can be worked out by hand."""

import itertools

import pytest
import torch
from sizes import thorough_but

from node.bench.robust import Robust, verdict
from node.bench.swarm import baselines, byzantine_nodes, simulation
from node.bench.swarm.gradients import GradientSwarm
from node.bench.swarm.measure import measure
from node.bench.swarm.presets import asked
from node.bench.swarm.run_spec import RunSpec, Shape, baseline
from node.bench.swarm.simulation import Swarm
from node.bench.swarm.study import Study
from node.config.schema import from_raw
from node.system.errors import UsageError
from p2ptrain import attacks, step_schedules, tasks
from p2ptrain.sync import ALLREDUCE, SECURE, SYNC_STRATEGIES, averages_gradients
from p2ptrain.tasks import Shard, Task
from p2ptrain.training import Trainer
from p2ptrain.training.anchor_optimizer import AnchorOptimizer


@pytest.fixture(scope="module")
def digits() -> Task:
    return tasks.get("digits")


def recipe(*sets: str, **given: object) -> RunSpec:
    """One run: by default four nodes that all hear each other, and average exactly."""
    words = {"task": "digits", "nodes": 4, "rounds": 3, "inner_steps": 2, "strategy": "tracked_gossip"}
    words |= {"compressor": "none", "aggregator": "mean", "set_": ["train.warmup_steps=1", *sets]}
    (found,) = asked("strategies", {**words, **given}, quick=False).recipes({})
    return found


@pytest.mark.slow
def test_a_round_over_everybody_is_the_exact_mean(digits):
    swarm = Swarm(recipe(), digits)
    alone = [Trainer(digits, swarm.recipe.config.train, Shard(index=index, count=4)) for index in range(4)]
    for _ in range(3):
        for trainer in alone:
            trainer.step()
            trainer.step()
        mean_d = torch.stack([trainer.vector() for trainer in alone]).double().mean(0).float()
        for trainer in alone:
            trainer.load_vector(mean_d)
        swarm.round()
        for node in swarm.nodes:
            torch.testing.assert_close(node.anchor_d, mean_d, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(swarm.mean_model(), mean_d, rtol=1e-4, atol=1e-6)
    assert swarm.traffic.published == 3 * 4 * 4 * len(mean_d)
    assert swarm.traffic.sent == 3 * swarm.traffic.published
    assert not swarm.traffic.refused


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({}, marks=pytest.mark.thorough),
        {"byzantine": "1", "attack": "sign_flip", "aggregator": "trimmed_mean"},
    ],
)
def test_members_who_step_alike_step_once(digits, rule, monkeypatch):
    taken = []

    class Counted(AnchorOptimizer):
        def advance_(self, x_d, gradient_d, round):
            taken.append(round)
            super().advance_(x_d, gradient_d, round)

    sets = ["train.optimizer=muon", *(["sync.f=1"] if rule else [])]
    given = {"strategy": "mime", "compressor": "rotated+q2", "set_": ["train.warmup_steps=1", *sets], **rule}
    each = Swarm(recipe(**given), digits)
    monkeypatch.setattr(simulation, "AnchorOptimizer", Counted)
    recalled = Swarm(recipe(**given), digits)
    for node in each.honest:
        node.sync.steps_by(AnchorOptimizer(each.recipe.config.train, node.trainer.optimizer_place()))
    for _ in range(3):
        recalled.round()
        each.round()
        for ours, theirs in zip(recalled.honest, each.honest, strict=True):
            assert torch.equal(ours.anchor_d, theirs.anchor_d)
            pairs = zip(ours.sync.optimizer_state().values(), theirs.sync.optimizer_state().values(), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
    assert taken == [0, 1, 2]


def test_late_weights_are_judged_by_their_mean(digits):
    swarm, plain = Swarm(recipe("train.late_average=0.5"), digits), Swarm(recipe(), digits)
    seen = []
    for _ in range(3):
        swarm.round()
        plain.round()
        assert all(
            torch.equal(ours.anchor_d, theirs.anchor_d) for ours, theirs in zip(swarm.nodes, plain.nodes, strict=True)
        )
        seen.append(plain.mean_model())
    torch.testing.assert_close(swarm.mean_model(), (seen[1] + seen[2]) / 2)
    row, without = measure(recipe("train.late_average=0.5")), measure(recipe())
    assert row["eval_loss"] == pytest.approx(swarm.nodes[0].trainer.evaluate(swarm.mean_model()), abs=1e-5)
    assert row["eval_loss"] != without["eval_loss"]
    assert row["recipe"]["train"]["late_average"] == 0.5


@pytest.mark.parametrize("kind", ["alone", "synchronous"])
def test_so_are_the_late_steps_of_what_it_is_held_against(kind):
    rows = [measure(baseline(recipe(*sets), kind)) for sets in ((), ("train.late_average=0.5",))]
    assert rows[0]["eval_loss"] != rows[1]["eval_loss"]


def test_a_drift_correction_bounds_the_consensus_step(digits):
    swarm = Swarm(recipe("train.drift=scaffold", "train.drift_strength=1"), digits)
    assert {node.sync.largest_gamma for node in swarm.nodes} == {2 / 3}


def test_neighbours_alone_are_heard(digits):
    swarm = Swarm(recipe(nodes=8, degree=2), digits)
    swarm.round()
    assert {len(node.tracked) for node in swarm.nodes} == {2}
    assert swarm.traffic.sent == 2 * swarm.traffic.published
    assert len({float(node.anchor_d.norm()) for node in swarm.nodes}) == 8
    torch.testing.assert_close(swarm.mean_model(), torch.stack([node.anchor_d for node in swarm.nodes]).mean(0))


def test_all_as_one_is_the_mean_of_all_gradients(digits):
    train = recipe().config.train
    together = baselines.synchronous(digits, train, 4)
    nodes = [Trainer(digits, train, Shard(index=index, count=4)) for index in range(4)]
    for _ in range(5):
        mean_d = torch.stack([node.gradient()[1] for node in nodes]).mean(0)
        for node in nodes:
            node.apply_gradient(mean_d)
        together.step()
    torch.testing.assert_close(together.vector(), nodes[0].vector(), rtol=1e-3, atol=1e-5)


def test_exact_compressed_gradients_are_data_parallel(digits):
    asked_for = recipe(strategy="gradient")
    swarm = GradientSwarm(asked_for, digits)
    together = baselines.synchronous(digits, asked_for.config.train, 4)
    for _ in range(5):
        swarm.step()
        together.step()
    torch.testing.assert_close(swarm.model(), together.vector(), rtol=1e-3, atol=1e-5)
    assert len({trainer.vector().sum().item() for trainer in swarm.trainers}) == 1
    assert swarm.traffic.published == 5 * 4 * 4 * len(swarm.model())
    assert swarm.traffic.sent == 3 * swarm.traffic.published


def test_a_ring_sends_less_than_two_vectors():
    assert baselines.ring_all_reduce_bytes(1000, 2) == 4000
    assert baselines.ring_all_reduce_bytes(1000, 8) == 7000


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_but({"tracked_gossip", "moshpit", "gradient"}, SYNC_STRATEGIES.names()))
def test_every_strategy_learns(name):
    quick = {"compressor": "own", "aggregator": "own", "rounds": 8, "inner_steps": 5}
    row = measure(recipe("train.epsilon=1e-8", strategy=name, **quick))
    assert not row["diverged"]
    assert row["eval_loss"] < 0.8 * row["eval_loss_first"]
    if SYNC_STRATEGIES.get(name).averager in (ALLREDUCE, SECURE):
        # Pairs send a vector; groups of four send 3/2 of one, by turns with pairs where there are more.
        each = {
            "noloco": 1.0,
            "moshpit": 1.5,
            "allreduce": 1.5,
            "mime": 1.5,
            "des_loc": 1.5,
            "sparta": 1.5,
            "secure_average": 1.5,
        }[name]
        assert row["sent_bits"] == pytest.approx(each * row["published_bits"], rel=1e-4)
    else:
        assert row["sent_bits"] == pytest.approx(3 * row["published_bits"], rel=1e-4)
    assert row["steps"] == 40
    assert row["accuracy"] > 0.3
    if not averages_gradients(name):
        assert row["eval_loss_nodes_max"] >= row["eval_loss_nodes_mean"]


@pytest.mark.parametrize("schedule", step_schedules.names())
def test_a_step_schedule_changes_neither_steps_nor_bytes(schedule):
    rounds = {"rounds": 6, "inner_steps": 4}
    told = measure(recipe(f"train.inner_steps_schedule={schedule}", "train.eval_every=2", **rounds))
    plain = measure(recipe("train.eval_every=2", **rounds))
    assert [told[key] for key in ("steps", "sent_bits", "refused")] == [24, plain["sent_bits"], {}]
    config = from_raw({"train": told["recipe"]["train"]}).train
    assert [step for step, _, _ in told["curve"]] == [config.first_step(number) for number in (2, 4, 6)]
    assert (told["eval_loss"] == plain["eval_loss"]) is (schedule == "constant")


def test_the_same_run_twice_is_the_same_run():
    first, second = (measure(recipe(attack="gaussian", byzantine="1", nodes=4)) for _ in range(2))
    for told in (first, second):
        del told["wall_s"], told["cpu_s"]
    assert first == second


def test_a_run_that_diverges_is_a_result():
    row = measure(recipe("train.learning_rate=1e30", "train.clip_norm=0"))
    assert row["diverged"]
    assert (row["eval_loss"], row["accuracy"], row["eval_loss_nodes_mean"]) == (None, None, None)


@pytest.mark.slow
def test_noise_ruins_a_mean_and_not_a_trimmed_one():
    common = {"nodes": 5, "degree": 4, "rounds": 8, "inner_steps": 5, "byzantine": "1", "attack": "gaussian"}
    mean, trimmed = (measure(recipe(**common, aggregator=name)) for name in ("mean", "trimmed_mean"))
    assert trimmed["accuracy_nodes_mean"] > mean["accuracy_nodes_mean"] + 0.2
    assert (trimmed["robust_share"], mean["robust_share"]) == (1.0, 0.0)
    assert (trimmed["byzantine"], trimmed["f"]) == (1, 1)


def test_what_cannot_be_a_model_is_refused_once_by_everybody():
    row = measure(recipe(nodes=4, byzantine="1", attack="nan"))
    assert row["refused"] == {"nonfinite": 3}
    assert not row["diverged"]


@pytest.mark.slow
@pytest.mark.parametrize("name", byzantine_nodes.simulated())
def test_every_attack_can_be_simulated(name):
    row = measure(recipe(attack=name, byzantine="1", aggregator="trimmed_mean"))
    assert row["attack"] == name
    assert row["payload_bytes_published"] == 3 * 3 * 4 * row["parameters"]  # liars' are not counted


def test_attacks_on_the_network_are_refused():
    assert 0 < len(byzantine_nodes.simulated()) < len(attacks.names())
    with pytest.raises(UsageError, match="there is no 'flood'"):
        recipe(attack="flood", byzantine="1")


def test_a_liar_learns_wrong_labels(digits):
    swarm = Swarm(recipe(attack="label_flip", byzantine="1"), digits)
    train = {"seed": 0, "shard": Shard(index=3, count=4), "size": 16}
    told = [node.trainer.task.train_batch(0, **train)[1] for node in swarm.nodes]
    assert all(torch.equal(labels, told[0]) for labels in told[:3])
    assert torch.equal(told[3], 9 - told[0])


def test_liars_know_each_other(digits):
    swarm = Swarm(recipe(attack="scaled", byzantine="2", nodes=5, aggregator="trimmed_mean"), digits)
    for _ in range(3):
        begun = {node.name: node.anchor_d.clone() for node in swarm.liars}
        swarm.round()
        told = swarm.honest[0].sync.estimates | {"node00": swarm.honest[0].sync.public_d}
        honest_d = torch.stack([told[node.name] for node in swarm.honest]).mean(0)
        for name, anchor_d in begun.items():
            lie_d = -3 / 2 * (honest_d - anchor_d)  # -(h/f) times the mean: two liars for three honest ones
            torch.testing.assert_close(told[name] - anchor_d, lie_d, rtol=1e-3, atol=1e-5)


def test_each_victim_is_told_something_else(digits):
    swarm = Swarm(recipe(attack="dissensus", byzantine="1", rounds=2), digits)
    swarm.round()
    swarm.round()
    heard = [node.sync.estimates["node03"] for node in swarm.honest]
    assert all(not torch.allclose(one, other) for one, other in itertools.pairwise(heard))


def test_the_honest_graph_weighs_liars_apart():
    found = byzantine_nodes.honest_graph([frozenset({1, 2}), frozenset({0, 2}), frozenset({0, 1})], honest=2)
    assert found.weight_hh.tolist() == [[0, pytest.approx(1 / 3)], [pytest.approx(1 / 3), 0]]
    assert found.liar_weight_h.tolist() == [pytest.approx(1 / 3), pytest.approx(1 / 3)]


def test_the_liar_knows_the_defence():
    plan = byzantine_nodes.Conspiracy(recipe(attack="searched_alie", byzantine="1", aggregator="median"))
    assert plan._find().defence == "median"
    told = recipe("attack.name=searched_alie", "attack.defence=krum", attack="searched_alie", byzantine="1")
    assert byzantine_nodes.Conspiracy(told)._find().defence == "krum"


def test_the_legend_says_points_of_accuracies_and_percent_of_losses() -> None:
    recipe = {
        "kind": "swarm",
        "task": {"name": "digits"},
        "attack": {"name": "none"},
        "sync": {"aggregator": "mean", "f": 0},
        **vars(Shape()),
    }
    row = {"metric": "nats", "recipe": recipe, "attack": "none", "aggregator": "mean", "byzantine": 0}
    robust = Robust(study=Study(benchmark="robust", recipes=[]))
    rated = robust.summaries([{**row, "accuracy": 0.9, "accuracy_nodes_mean": 0.9}])
    assert (
        rated[0]
        .notes[0]
        .startswith("green: at most 3 points less than the clean plain mean; red: more than 10 points;")
    )
    lost = robust.summaries([{**row, "accuracy": None, "eval_loss_nodes_mean": 2.0}])
    assert lost[0].notes[0].startswith("green: at most 3% more than the clean plain mean; red: more than 10%;")


@pytest.mark.parametrize(
    ("value", "reference", "higher", "said"),
    [
        (0.95, 0.96, True, "holds"),
        (0.97, 0.96, True, "holds"),
        (0.90, 0.96, True, "hurt"),
        (0.80, 0.96, True, "falls"),
        (None, 0.96, True, "falls"),
        (0.5, None, True, "unjudged"),
        (None, None, True, "falls"),
        (1.02, 1.0, False, "holds"),
        (1.06, 1.0, False, "hurt"),
        (1.2, 1.0, False, "falls"),
    ],
)
def test_who_holds_and_who_falls(value, reference, higher, said):
    assert verdict(value, reference, higher_is_better=higher) == said
