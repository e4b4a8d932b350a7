"""The trainer with every optimizer and drift correction: what it keeps, what a closed round does, what is published."""

import itertools

import pytest
import torch
from sizes import thorough_but

from p2ptrain import drift, inner
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer

STEPS = 5
RATES = {"sgd": 0.05}
every_inner = pytest.mark.parametrize("optimizer", inner.names())
PAIRS = list(itertools.product(inner.names(), drift.names()))
of_pairs = pytest.mark.parametrize(
    ("optimizer", "correction"), thorough_but([each for each in PAIRS if "adamw" in each or "none" in each], PAIRS)
)
"""`make test` has each optimizer without a correction, and each correction with adamw."""


def config(**changes):
    settings = {"rounds": 4, "inner_steps": STEPS, "warmup_steps": 2, "device": "cpu", "batch_size": 8}
    rate = RATES.get(changes.get("optimizer", "adamw"), 3e-3)
    return TrainConfig(**(settings | {"learning_rate": rate} | changes))


def trainer(**changes):
    return Trainer(Digits("dirichlet", 0.3), config(**changes), Shard(index=0, count=3))


def live(node, rounds=1, late=2, seed=0):
    """Rounds whose corrections come late, as in a node; the losses. Ends in the middle of a round."""
    generator = torch.Generator().manual_seed(seed)
    losses, pending = [], None
    for _ in range(rounds):
        node.begin_round()
        for index in range(STEPS):
            if index == late and pending is not None:
                node.correct(pending)
            losses.append(node.step())
        pending = 0.01 * torch.randn(node.numel, generator=generator)
    node.begin_round()
    losses += [node.step() for _ in range(late)]
    node.correct(pending)
    return [*losses, node.step()]


@pytest.mark.slow
@of_pairs
def test_a_resumed_run_is_the_uninterrupted_one(optimizer, correction):
    choice = {"optimizer": optimizer, "drift": correction}
    whole, first, resumed = trainer(**choice), trainer(**choice), trainer(**choice, seed=0)
    live(whole)
    live(first)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    resumed.load_state_dict(state)
    assert all(torch.equal(resumed.state_dict()[name], state[name]) for name in state)
    assert live(resumed, seed=1) == live(whole, seed=1)
    assert torch.equal(resumed.vector(), whole.vector())
    assert all(tensor.device.type == "cpu" for tensor in state.values())


@every_inner
def test_a_state_is_a_copy(optimizer):
    node = trainer(optimizer=optimizer)
    node.step()
    state = node.state_dict()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    node.step()
    assert all(torch.equal(state[name], kept[name]) for name in state)


@pytest.mark.slow
@of_pairs
def test_training_learns_through_closed_rounds(optimizer, correction):
    changes = {"optimizer": optimizer, "drift": correction, "drift_strength": None, "rounds": 12}
    if correction == "qgm":  # its momentum stands in for the inner one
        changes |= {"momentum": 0.0} if optimizer == "sgd" else {"learning_rate": 1e-3}
    node = trainer(**changes)
    losses = live(node, rounds=10)
    assert node.skipped_steps == 0
    assert sum(losses[-STEPS:]) < 0.8 * sum(losses[:STEPS])


@every_inner
def test_a_correction_lands_exactly_and_a_loaded_vector_is_the_model(optimizer):
    node = trainer(optimizer=optimizer)
    live(node)
    before = node.vector()
    correction = torch.randn(node.numel) * 1e-2
    node.correct(correction)
    assert torch.equal(node.vector(), before + correction)
    node.load_vector(before)
    assert torch.equal(node.vector(), before)
    assert torch.equal(node.state_dict()["parameters"], before)


@every_inner
def test_taking_a_gradient_leaves_the_model_alone(optimizer):
    whole, halves = trainer(optimizer=optimizer), trainer(optimizer=optimizer)
    for _ in range(STEPS):
        expected = whole.step()
        before = halves.vector()
        halves.gradient(7)
        assert torch.equal(halves.vector(), before)
        loss, grad_d = halves.gradient()
        assert torch.equal(halves.vector(), before)
        assert halves.apply_gradient(grad_d)
        assert loss == expected
    assert torch.equal(halves.vector(), whole.vector())


@every_inner
def test_a_failing_task_leaves_the_model_alone(optimizer):
    class Failing(Digits):
        fails = False

        def loss(self, model, batch):
            if self.fails:
                raise RuntimeError("no more")
            return super().loss(model, batch)

    node = Trainer(Failing(), config(optimizer=optimizer), Shard())
    node.step()
    before = node.vector()
    node.task.fails = True
    with pytest.raises(TaskError, match="no more"):
        node.step()
    assert torch.equal(node.vector(), before)


def test_schedule_free_trains_at_y_and_gives_away_x():
    node = trainer(optimizer="schedule_free", clip_norm=0, weight_decay=0, warmup_steps=0)
    for _ in range(3):
        node.step()
    x_d, ahead_d = node.vector(), node.state_dict()["ahead"]
    assert ahead_d.norm() > 1e-3 * x_d.norm()  # z and x are apart
    y_d = x_d + 0.1 * ahead_d
    at_y, at_x = ([it.clone() for it in own_gradient(node, point_d)] for point_d in (y_d, x_d))
    loss, grad_d = node.gradient()
    assert loss == pytest.approx(float(at_y[0]), rel=1e-6)
    torch.testing.assert_close(grad_d, at_y[1], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(grad_d, at_x[1], rtol=1e-2, atol=1e-4)
    assert node.evaluate() == node.evaluate(x_d) != node.evaluate(y_d)
    lent = torch.cat([parameter.detach().reshape(-1) for parameter in node.model_with().parameters()])
    assert torch.equal(lent, x_d)


def own_gradient(node, point_d):
    """Loss and flat gradient of the node's next batch at `point_d`, by a model apart from the trainer's."""
    model = node.model_with(point_d).train()
    size = node.config.batch_size
    batch = node.task.train_batch(node.global_step, seed=node.data_seed, shard=node.shard, size=size)
    loss = node.task.loss(model, batch)
    loss.backward()
    return loss.detach(), torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


@every_inner
def test_a_checkpoint_whose_parameters_were_corrected_is_a_correction(optimizer):
    """The runtime saves the state of a snapshot with the round's new anchor in place of the parameters."""
    corrected, reloaded = trainer(optimizer=optimizer), trainer(optimizer=optimizer)
    live(corrected)
    state = corrected.state_dict()
    shift = 0.01 * torch.randn(corrected.numel, generator=torch.Generator().manual_seed(5))
    corrected.correct(shift)
    reloaded.load_state_dict(state | {"parameters": state["parameters"] + shift})
    assert [corrected.step() for _ in range(STEPS)] == [reloaded.step() for _ in range(STEPS)]
    assert torch.equal(corrected.vector(), reloaded.vector())


def test_the_state_of_another_optimizer_or_drift_correction_is_refused_and_changes_nothing():
    node = trainer()
    before = node.state_dict()
    for other in ({"optimizer": "sgd"}, {"optimizer": "muon"}, {"optimizer": "schedule_free"}, {"drift": "scaffold"}):
        foreign = trainer(**other)
        foreign.step()
        with pytest.raises(ValueError, match=r"optimizer adamw and drift none"):
            node.load_state_dict(foreign.state_dict())
    assert all(torch.equal(node.state_dict()[name], before[name]) for name in before)


def test_a_state_of_an_older_release_lacks_a_number_of_the_drift_correction():
    node, resumed = trainer(drift="scaffold"), trainer(drift="scaffold", seed=0)
    live(node)
    state = node.state_dict()
    del state["drift.usual_rates"], state["drift.steps"]
    resumed.load_state_dict(state)
    assert torch.equal(resumed.state_dict()["drift.pull"], state["drift.pull"])
    del state["drift.pull"]
    with pytest.raises(ValueError, match=r"lacks drift.pull"):
        resumed.load_state_dict(state)


def test_the_rounds_of_a_driver_that_waits_need_not_be_told():
    told, untold = trainer(drift="scaffold"), trainer(drift="scaffold")
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        correction = 0.01 * torch.randn(told.numel, generator=generator)
        for node in (told, untold):
            for _ in range(STEPS):
                node.step()
            if node is told:
                node.begin_round()
            node.correct(correction)
    assert torch.equal(told.vector(), untold.vector())
    assert all(torch.equal(told.state_dict()[name], untold.state_dict()[name]) for name in told.state_dict())


def test_fedprox_pulls_to_the_corrected_anchor():
    """The gradient that the optimizer sees, worked out by hand in a round whose correction comes late."""
    changes = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0, "warmup_steps": 0}
    node = trainer(drift="fedprox", drift_strength=0.5, schedule="constant", **changes)
    node.step()
    snapshot = node.vector()
    node.begin_round()
    node.step()
    correction = torch.full((node.numel,), 0.02)
    node.correct(correction)
    before = node.vector()
    _, grad_d = node.gradient()
    node.step()
    moved = before - (snapshot + correction)
    torch.testing.assert_close(node.vector(), before - 0.05 * (grad_d + 0.5 * moved), rtol=1e-5, atol=1e-7)


def test_fedprox_pulls_where_the_gradient_is_taken():
    """With a loss that is flat, the only gradient is that of the proximal term: at y, of which x is a part."""

    class Flat(Digits):
        def loss(self, model, batch):
            return 0 * super().loss(model, batch)

    options = {"optimizer": "schedule_free", "drift": "fedprox", "drift_strength": 0.5, "clip_norm": 0}
    node = Trainer(Flat(), config(weight_decay=0.0, **options), Shard())
    anchor = node.vector()
    node.correct(torch.zeros(node.numel))  # the round begins here
    node.optimizer.buffers["ahead"].fill_(0.1)
    node.step()
    y_d = anchor + 0.1 * 0.1
    torch.testing.assert_close(
        node.optimizer.buffers["exp_avg_sq"], 0.05 * (0.5 * (y_d - anchor)) ** 2, rtol=1e-3, atol=1e-9
    )


@pytest.mark.parametrize("correction", ["fedprox", "qgm"])
def test_another_model_is_no_movement(correction):
    """A node that takes the neighbours' model begins a round there: it is neither pulled back nor pushed on."""
    node = trainer(drift=correction)
    live(node)
    node.load_vector(node.vector() + 1.0)
    assert torch.equal(node.state_dict()["drift.anchor"], node.vector())
    node.begin_round()
    if correction == "qgm":
        assert not node.state_dict()["drift.moved"].any()


def test_schedule_free_is_given_a_constant_rate_unless_told_otherwise():
    assert config(optimizer="schedule_free").decay_schedule == "constant"
    assert config(optimizer="schedule_free", schedule="cosine").decay_schedule == "cosine"
    assert config().decay_schedule == config(optimizer="muon").decay_schedule == "cosine"
    assert config(schedule="constant").decay_schedule == "constant"
