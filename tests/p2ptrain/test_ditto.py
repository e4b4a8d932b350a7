"""Ditto: the personal model follows the paper's rule, is pulled to the anchor and to nothing else, and stays here."""

import pytest
import torch

from p2ptrain.tasks.base import OWN_SHARD, Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.ditto import PERSONAL, DittoTrainer, PersonalTraining

SHARD = Shard(index=3, count=10)
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0}


def ditto(strength=0.5, every=1.0, learning_rate=None, **train):
    config = TrainConfig(**({"device": "cpu", "warmup_steps": 0, "schedule": "constant"} | train))
    personal = PersonalTraining(strength=strength, every=every, learning_rate=learning_rate)
    return DittoTrainer(Digits("dirichlet", 0.1), config, SHARD, personal=personal)


def test_a_step_is_the_papers():
    it = ditto(strength=0.7, learning_rate=0.05, **PLAIN)
    it.step()  # v is away from x
    x_d = torch.linspace(-0.1, 0.1, it.numel)
    it.load_vector(x_d)
    v_d = it.personal.vector()
    lone = Trainer(it.task, it.config, SHARD)
    lone.load_vector(v_d)
    _, grad_d = lone.gradient(1)
    it.step()
    torch.testing.assert_close(it.personal.vector(), v_d - 0.05 * (grad_d + 0.7 * (v_d - x_d)), atol=1e-6, rtol=1e-5)


def test_x_is_the_anchor_once_the_correction_has_come():
    it = ditto()
    x_d = it.vector()
    anchor_d = it.personal.drift.buffers["anchor"]
    it.step()
    it.begin_round()
    theta_d = it.vector()
    it.step()
    assert torch.equal(anchor_d, x_d), "own steps move no anchor"
    it.correct(torch.full((it.numel,), 0.25))
    torch.testing.assert_close(anchor_d, theta_d + 0.25)
    it.correct(torch.full((it.numel,), 0.5))  # a fragment of the same round
    torch.testing.assert_close(anchor_d, theta_d + 0.75)


def test_a_round_that_is_never_closed_leaves_the_anchor():
    it = ditto()
    x_d = it.vector()
    for _ in range(3):
        it.begin_round()
        it.step()
    assert torch.equal(it.personal.drift.buffers["anchor"], x_d)


def test_without_a_pull_nothing_that_others_do_matters():
    one, other = ditto(strength=0.0), ditto(strength=0.0)
    for number in range(4):
        for each in (one, other):
            each.step()
            each.begin_round()
        one.correct(torch.full((one.numel,), 1e3 * (-1) ** number))
        other.load_vector(torch.zeros(other.numel))
    assert torch.equal(one.personal.vector(), other.personal.vector())


def test_a_strong_pull_holds_it_at_x():
    weak, strong = ditto(strength=0.0, **PLAIN), ditto(strength=20.0, **PLAIN)
    for each in (weak, strong):
        for _ in range(30):
            each.step()
    away = [float((each.personal.vector() - each.personal.drift.buffers["anchor"]).norm()) for each in (weak, strong)]
    assert away[1] < 0.6 * away[0]


def test_the_shared_model_does_not_know():
    it, plain = ditto(), Trainer(Digits("dirichlet", 0.1), ditto().config, SHARD)
    for _ in range(5):
        assert it.step() == plain.step()
    assert torch.equal(it.vector(), plain.vector())
    assert (it.fingerprint, it.numel, it.tokens) == (plain.fingerprint, plain.numel, plain.tokens)
    assert not torch.equal(it.personal.vector(), it.vector())


@pytest.mark.parametrize(("every", "steps"), [(1.0, 12), (0.5, 6), (0.25, 3), (0.3, 3)])
def test_the_share_of_steps(every, steps):
    it = ditto(every=every)
    for _ in range(12):
        it.step()
    assert it.personal.global_step == steps


@pytest.mark.parametrize("given", [{"strength": -1.0}, {"strength": float("nan")}, {"every": 0.0}, {"every": 1.5}])
def test_values_that_cannot_be(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        PersonalTraining(**{"strength": 1.0, **given})


@pytest.mark.parametrize("local", [(), ("6.*",)])
def test_it_goes_on_from_its_own_state(local):
    one, other = ditto(local=local, every=0.5), ditto(local=local, every=0.5)
    for _ in range(5):
        one.step()
    one.begin_round()
    one.correct(torch.full((one.numel,), 0.01))
    other.load_state_dict(one.state_dict())
    for _ in range(3):
        assert one.step() == other.step()
    assert one.measure() == other.measure()
    assert torch.equal(one.personal.vector(), other.personal.vector())


def test_it_begins_at_a_model_that_has_none():
    plain = Trainer(Digits("dirichlet", 0.1), ditto(local=("6.*",)).config, SHARD)
    for _ in range(5):
        plain.step()
    it = ditto(local=("6.*",))
    it.load_state_dict(plain.state_dict())
    assert torch.equal(it.personal.vector(), plain.vector())
    assert torch.equal(it.personal.local.vector(), plain.local.vector())
    assert it.personal.global_step == 5


def test_who_has_none_leaves_it_in_the_checkpoint():
    it = ditto()
    it.step()
    plain = Trainer(Digits("dirichlet", 0.1), it.config, SHARD)
    plain.load_state_dict(it.state_dict())
    assert torch.equal(plain.vector(), it.vector())


def test_it_is_measured_on_the_shards_own_split():
    it = ditto()
    for _ in range(40):
        it.step()
    own = it.measure().own
    assert own[PERSONAL] == pytest.approx(it.personal.own_loss(it.personal.vector()))
    assert own[PERSONAL] != own[OWN_SHARD]
    assert it.units[PERSONAL] == "nats per digit"


def test_a_task_without_own_splits_is_measured_on_what_all_hold_out():
    config = TrainConfig(device="cpu")
    it = DittoTrainer(Digits(), config, SHARD, personal=PersonalTraining(strength=1.0))
    assert it.measure().own == {PERSONAL: pytest.approx(it.evaluate())}


@pytest.mark.parametrize("local", [(), ("6.*",)])
def test_both_models_give_their_memory_back_and_go_on(local):
    it, whole = ditto(local=local), ditto(local=local)
    for each in (it, whole):
        each.step()
    held = it.measure()
    alone = Trainer(it.task, it.config, SHARD).park()
    assert it.park() >= 2 * alone
    for each in (it, it.personal):
        assert each.flat.data_d.untyped_storage().nbytes() == 0
    assert it.measure() == held, "what is evaluated meanwhile is there"
    it.take_memory()
    for each in (it, whole):
        each.step()
    assert torch.equal(it.vector(), whole.vector())
    assert torch.equal(it.personal.vector(), whole.personal.vector())


def test_no_more_examples_go_through_either_model_at_a_time(monkeypatch):
    it, seen = ditto(batch_size=16), []
    loss = it.task.loss

    def counted(model, batch):
        seen.append(len(batch[1]))
        return loss(model, batch)

    monkeypatch.setattr(it.task, "loss", counted)
    it.take_at_a_time(4)
    it.step()
    assert set(seen) == {4}
    assert len(seen) == 2 * 16 // 4


def test_a_personal_step_is_at_the_same_place_of_the_schedule():
    one, other = (ditto(learning_rate=0.1, schedule="cosine", rounds=10, inner_steps=10) for _ in range(2))
    one.step(90)
    other.step(90)
    assert one.personal.learning_rate == pytest.approx(0.1 / one.config.learning_rate * one.learning_rate)
    other.step(10)
    assert other.personal.learning_rate > one.personal.learning_rate


def test_a_personal_model_has_no_local_steps_of_its_own():
    it = ditto(local=("6.*",), local_steps=2, inner_steps=5)
    it.begin_round()
    before = {name: each.detach().clone() for name, each in it.personal.model.named_parameters()}
    it.step()
    assert not any(torch.equal(each, before[name]) for name, each in it.personal.model.named_parameters())


def test_a_correction_that_was_under_way_is_not_added_to_another_anchor():
    """A checkpoint or a model that is taken up begins anew."""
    it, other = ditto(), ditto()
    other.begin_round()
    other.correct(torch.ones(other.numel))
    it.begin_round()
    it.load_state_dict(other.state_dict())
    anchor_d = it.personal.drift.buffers["anchor"].clone()
    it.correct(torch.full((it.numel,), 0.25))
    torch.testing.assert_close(it.personal.drift.buffers["anchor"], anchor_d + 0.25)


@pytest.mark.parametrize("local", [(), ("6.*",)])
def test_a_newcomers_begins_at_the_model_that_it_has_joined_with(local):
    it = ditto(local=local)
    batch = it.task.train_batch(0, seed=0, shard=SHARD, size=16)
    x_d = torch.linspace(-0.1, 0.1, it.numel)
    it.load_vector(x_d)
    if local:
        it.train_local([batch] * 3, 0.01)
        assert torch.equal(it.personal.local.vector(), it.local.vector()), "as the warm-up has left them"
    assert torch.equal(it.personal.vector(), x_d)
    it.step()
    v_d = it.personal.vector()
    assert not torch.equal(v_d, x_d)
    it.load_vector(torch.zeros(it.numel))  # it was away, and takes the swarm's model
    assert torch.equal(it.personal.vector(), v_d), "it is the node's own from its first step on"


def test_one_that_went_on_is_no_newcomers():
    one, other = ditto(), ditto()
    one.step()
    other.load_state_dict(one.state_dict())
    other.load_vector(torch.zeros(other.numel))
    assert torch.equal(other.personal.vector(), one.personal.vector())
