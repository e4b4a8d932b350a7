"""Local parameters: they are in no vector and no fingerprint, they train as they would otherwise, and they come back
from a checkpoint, or it is refused."""

import pytest
import torch

from p2ptrain import privacy
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining
from tests.seeded_bytes import seeded_bytes

SHARD = Shard(index=0, count=8)
HEAD, NORMS = ("6.*",), ("1.*", "4.*")


def trainer(local=HEAD, task=None, privacy=None, **train):
    config = TrainConfig(device="cpu", warmup_steps=0, local=local, **train)
    return Trainer(task or Digits(), config, SHARD, privacy=privacy)


def by_name(it):
    """All parameters of a trainer, by name."""
    return {name: parameter.detach().clone() for name, parameter in it.model.named_parameters()}


def test_they_are_no_part_of_the_vector():
    whole, headless, normless = trainer(()), trainer(), trainer(NORMS)
    assert whole.local is None
    assert [it.numel for it in (whole, headless, normless)] == [9226, 9226 - 650, 9226 - 256]
    assert len(headless.vector()) == headless.numel
    assert [place.name for place in headless.flat.places] == [
        f"{n}.{it}" for n in (0, 1, 3, 4) for it in ("weight", "bias")
    ]


def test_the_fingerprint_is_of_what_is_shared():
    prints = {trainer(local).fingerprint for local in ((), HEAD, NORMS, ("1.*",), ("4.*",))}
    assert len(prints) == 5, "another pattern is another run, also where the vectors are of one length"
    assert trainer(("6.weight", "6.bias")).fingerprint == trainer().fingerprint


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "schedule_free", "muon"])
def test_steps_are_those_of_the_whole_model(optimizer):
    whole, parted = (trainer(local, optimizer=optimizer) for local in ((), ("1.*", "6.*")))
    for _ in range(4):
        assert parted.step() == pytest.approx(whole.step(), abs=1e-6)
    for name, value in by_name(whole).items():
        torch.testing.assert_close(by_name(parted)[name], value, atol=1e-6, rtol=1e-5)


def test_what_comes_from_others_leaves_them_alone():
    it = trainer()
    it.step()
    before = by_name(it)
    it.load_vector(torch.zeros(it.numel))
    it.correct(torch.ones(it.numel))
    after = by_name(it)
    assert all(torch.equal(after[name], before[name]) for name in ("6.weight", "6.bias"))
    assert bool((after["0.weight"] == 1).all())


def test_a_model_is_measured_with_them_as_they_are_now():
    it = trainer()
    x_d, first = it.vector(), it.evaluate()
    for _ in range(20):
        it.step()
    assert it.evaluate(x_d) != first, "the head has learned"
    with torch.no_grad():
        expected = it.model_with(x_d)(Digits().held_out.images)
        head = by_name(it)
    body = Trainer(Digits(), it.config, SHARD)
    body.load_untrained({name: head[name] for name in ("6.weight", "6.bias")})
    torch.testing.assert_close(body.model_with(x_d)(Digits().held_out.images), expected)


def test_local_steps_come_first_and_move_nothing_else():
    it = trainer(local_steps=3, inner_steps=5)
    for _ in range(2):
        it.begin_round()
        for step in range(5):
            before = by_name(it)
            it.step()
            moved = {name for name, value in by_name(it).items() if not torch.equal(value, before[name])}
            head = {"6.weight", "6.bias"}
            assert moved == (head if step < 3 else set(before) - head)


def test_local_steps_are_no_part_of_what_is_told_of_the_shared_ones(monkeypatch):
    it = Trainer(
        Digits(),
        TrainConfig(device="cpu", warmup_steps=0, local=HEAD, local_steps=3, inner_steps=5),
        SHARD,
        tells=("gradient",),
    )
    nudged = []
    monkeypatch.setattr(it.drift, "nudge", lambda data_d, rate: nudged.append(it._round_steps))
    it.begin_round()
    sums = []
    for _ in range(5):
        it.step()
        sums.append((it._summed, bool(it._gradients_d.any())))
    assert sums == [(0, False)] * 3 + [(1, True), (2, True)]
    assert nudged == [3, 4]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"local": (), "local_steps": 1}, "no parameter is local"),
        ({"local_steps": 20}, "below inner_steps=20"),
        ({"local_steps": 2, "inner_steps_schedule": "qsr"}, "qsr"),
    ],
)
def test_local_steps_that_cannot_be(train, words):
    with pytest.raises(ValueError, match=words):
        trainer(**train)


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free"])
def test_a_checkpoint_has_them(optimizer):
    one = trainer(optimizer=optimizer)
    for _ in range(3):
        one.step()
    state, other = one.state_dict(), trainer(optimizer=optimizer)
    other.load_state_dict(state)
    for _ in range(3):
        assert other.step() == one.step()
    assert all(torch.equal(value, by_name(other)[name]) for name, value in by_name(one).items())


@pytest.mark.parametrize("local", [(), NORMS, ("4.*",), ("1.*", "6.*")])
def test_a_checkpoint_of_another_pattern_is_refused_with_nothing_changed(local):
    state, it = trainer(("1.*",)).state_dict(), trainer(local)
    before = by_name(it)
    with pytest.raises(ValueError, match=r"train\.local|parameters"):
        it.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in by_name(it).items())


def test_a_large_local_part_is_kept_however_little_else_is(monkeypatch):
    monkeypatch.setattr("p2ptrain.training.layout.MAX_UNTRAINED_BYTES", 16)
    it = trainer(("0.*", "3.*"))
    assert it.numel < 1000
    assert {"model.0.weight", "model.3.bias"} <= set(it.state_dict())


@pytest.mark.parametrize(
    ("local", "words"),
    [(("7.*",), "7"), (("6.*", "head"), "head"), (("*",), "nothing to average"), (("HEAD",), "HEAD")],
)
def test_a_pattern_of_nothing_or_of_everything_is_refused(local, words):
    with pytest.raises(TaskError, match=words) as refused:
        trainer(local)
    assert "\n" not in str(refused.value)


def test_a_model_whose_state_has_no_names_is_refused():
    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return 1

        def set_extra_state(self, state):
            pass

    class Odd(Digits):
        def build_model(self):
            return torch.nn.Sequential(Extra(64, 8), torch.nn.Linear(8, 10))

    assert trainer((), Odd()).numel
    with pytest.raises(TaskError, match="state_dict"):
        trainer(("1.*",), Odd())


class Drawn(SecretRandom):
    """Draws these examples."""

    def __init__(self, chosen):
        super().__init__(seeded_bytes(0))
        self.chosen = chosen

    def drawn(self, count, rate):
        return torch.tensor(self.chosen, dtype=torch.int64).numpy()


def private_sum(local, chosen, clip, noise=1e-9):
    protection = PrivateTraining(
        privatizer=privacy.get("example", noise=noise, clip=clip), rate=0.1, source=Drawn(chosen)
    )
    it = trainer(local, privacy=protection, clip_norm=0)
    it.gradient()
    found = {name: parameter.grad.double() * 18 for name, parameter in it.model.named_parameters()}
    return torch.cat([found[name].flatten() for name in sorted(found)])


def test_private_steps_clip_and_noise_them_with_the_others():
    clip = 0.05
    change = private_sum(HEAD, [3, 7, 11], clip) - private_sum(HEAD, [3, 11], clip)
    assert float(change.norm()) == pytest.approx(clip, rel=1e-3), "the norm is over shared and local ones together"
    torch.testing.assert_close(private_sum(HEAD, [3, 7], clip), private_sum((), [3, 7], clip), atol=1e-6, rtol=1e-4)
    noised = private_sum(HEAD, [], 1.0, noise=2.0)
    assert float(noised.std()) == pytest.approx(2.0, rel=0.05)
    assert float(noised[-650:].std()) == pytest.approx(2.0, rel=0.15), "the head's too"


def test_private_rounds_do_not_go_with_them():
    protection = PrivateTraining(privatizer=privacy.get("update"))
    with pytest.raises(TaskError, match=r"train\.local"):
        trainer(privacy=protection)
