"""The trainer: the same steps whatever interrupts them, and the vector that the swarm works on."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from p2ptrain.inner.inner_state import BufferPart, whole_buffers
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.byte_lm import ByteLM
from p2ptrain.tasks.digits import EPSILON, Digits
from p2ptrain.training import TrainConfig, Trainer, lr_at, vector_bytes

STEPS = 6


class Fixed(Digits):
    """Digits with a model of the test's choosing."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def build_model(self):
        return self.model


def config(**changes):
    return TrainConfig(**({"rounds": 2, "inner_steps": STEPS, "warmup_steps": 2, "device": "cpu"} | changes))


def trainer(index=0, count=2, **changes):
    return Trainer(Digits(), config(**changes), Shard(index=index, count=count))


def run(node, steps=STEPS):
    return [node.step() for _ in range(steps)]


def test_a_seed_reproduces_bit_by_bit():
    first, second, other = trainer(), trainer(), trainer(seed=1)
    assert run(first) == run(second)
    assert torch.equal(first.vector(), second.vector())
    run(other)
    assert not torch.equal(first.vector(), other.vector())


def test_all_shards_start_alike_and_go_apart():
    first, second = trainer(index=0), trainer(index=1)
    assert torch.equal(first.vector(), second.vector())
    assert first.fingerprint == second.fingerprint
    assert vector_bytes(first.vector()) == vector_bytes(second.vector())
    assert run(first) != run(second)


def test_the_callers_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(trainer())
    assert torch.equal(torch.rand(3), expected)


def test_a_resumed_run_is_the_uninterrupted_one():
    whole, first = trainer(), trainer()
    expected = run(whole, 2 * STEPS)
    before = run(first)
    resumed = trainer(seed=0)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    assert before + run(resumed) == expected
    assert torch.equal(resumed.vector(), whole.vector())
    assert (resumed.global_step, resumed.tokens) == (whole.global_step, whole.tokens)


def test_a_state_before_the_first_step_is_a_state():
    fresh, loaded = trainer(), trainer(seed=3)
    loaded.load_state_dict(fresh.state_dict())
    assert torch.equal(loaded.vector(), fresh.vector())
    assert loaded.global_step == 0


def test_a_state_of_another_model_is_refused_and_changes_nothing():
    node = trainer()
    before = node.vector()
    good = node.state_dict()
    for bad in ({"parameters": torch.zeros(3)}, {"exp_avg": torch.zeros(0)}):
        with pytest.raises(ValueError, match="parameters"):
            node.load_state_dict(good | bad)
    with pytest.raises(ValueError, match="lacks exp_avg_sq"):
        node.load_state_dict({name: good[name] for name in good if name != "exp_avg_sq"})
    assert torch.equal(node.vector(), before)


def test_a_correction_is_added_and_training_goes_on_from_it():
    node = trainer()
    run(node, 2)
    before = node.vector()
    correction = torch.randn(node.numel) * 1e-3
    node.correct(correction)
    assert torch.equal(node.vector(), before + correction)
    node.load_vector(before)
    assert torch.equal(node.vector(), before)
    node.step()
    assert not torch.equal(node.vector(), before)


def test_the_vector_is_a_copy():
    node = trainer()
    taken = node.vector()
    kept = taken.clone()
    node.step()
    assert torch.equal(taken, kept)
    taken.zero_()
    assert not torch.equal(node.vector(), taken)


@pytest.mark.parametrize("method", ["correct", "load_vector", "evaluate", "model_with"])
def test_a_vector_of_another_length_is_refused(method):
    with pytest.raises(ValueError, match="does not fit"):
        getattr(trainer(), method)(torch.zeros(1))


def test_accumulation_equals_a_bigger_batch():
    class InOrder(Digits):
        """Batch `step` of size n is examples step * n onwards, so that parts make up the whole."""

        def train_batch(self, step, *, seed, shard, size):
            chosen = torch.arange(step * size, (step + 1) * size) % len(self.train.labels)
            return self.train.images[chosen], self.train.labels[chosen]

    whole = Trainer(InOrder(), config(batch_size=32), Shard())
    parts = Trainer(InOrder(), config(batch_size=8, grad_accumulation=4), Shard())
    torch.testing.assert_close(torch.tensor(run(whole)), torch.tensor(run(parts)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole.vector(), parts.vector(), rtol=1e-3, atol=1e-4)
    assert whole.tokens == parts.tokens == 32 * STEPS


def test_a_late_joiner_begins_at_its_step():
    early, late = trainer(), trainer()
    run(early)
    late.load_vector(early.vector())
    late.global_step = STEPS
    assert late.step() == early.step()  # the same model on the same data


def test_evaluation_leaves_the_live_model_alone():
    node = trainer()
    run(node, 2)
    before, live = node.vector(), node.evaluate()
    zeros = torch.zeros(node.numel)
    assert node.evaluate(zeros) == pytest.approx(2.302585, abs=1e-5)
    assert not zeros.any()
    assert torch.equal(node.vector(), before)
    assert node.evaluate() == live == node.evaluate(before)
    assert node.model.training


def test_evaluation_is_of_all_examples_alike():
    node = trainer(eval_examples=100)
    images, labels = (part[:100] for part in node.task.held_out)
    expected = nn.functional.cross_entropy(node.model(images), labels)
    assert node.evaluate() == pytest.approx(expected.item(), rel=1e-5)


def test_evaluation_beside_training_changes_nothing():
    alone, beside = trainer(), trainer()
    expected = run(alone, 40)
    x_d = beside.vector()
    losses = []
    other = threading.Thread(target=lambda: losses.extend(beside.evaluate(x_d) for _ in range(20)))
    other.start()
    found = run(beside, 40)
    other.join()
    assert found == expected
    assert len(losses) == 20
    assert len(set(losses)) == 1


def test_a_model_of_its_own_is_no_view_of_anything():
    node = trainer()
    x_d = torch.ones(node.numel)
    model = node.model_with(x_d)
    x_d.zero_()
    assert all((parameter == 1).all() for parameter in model.parameters())
    assert not model.training


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_skipped_and_counted(poison):
    class Poisoned(Digits):
        def train_batch(self, step, *, seed, shard, size):
            images, labels = super().train_batch(step, seed=seed, shard=shard, size=size)
            return (images * poison if step == 1 else images), labels

    node = Trainer(Poisoned(), config(), Shard())
    node.step()
    before = node.state_dict()
    assert not torch.isfinite(torch.tensor(node.step()))
    after = node.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name != "counters")
    assert (node.skipped_steps, node.global_step) == (1, 2)
    assert torch.isfinite(torch.tensor(node.step()))
    assert torch.isfinite(node.vector()).all()


@pytest.mark.slow
def test_it_is_adamw():
    """Against torch's own AdamW on the unflattened model, with the usual two groups."""
    settings = config(
        warmup_steps=0, schedule="constant", clip_norm=0, learning_rate=1e-2, weight_decay=0.3, epsilon=1e-8
    )
    node = Trainer(Digits(), settings, Shard())
    model = node.model_with().train()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    for step in range(STEPS):
        node.step()
        reference.zero_grad()
        batch = node.task.train_batch(step, seed=0, shard=Shard(), size=settings.batch_size)
        node.task.loss(model, batch).backward()
        reference.step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(node.vector(), expected, rtol=1e-4, atol=1e-5)


def test_what_suits_a_task_holds_where_the_user_says_nothing():
    assert Trainer(Digits(), config(), Shard()).optimizer.epsilon == EPSILON
    assert Trainer(Digits(), config(epsilon=1e-8), Shard()).optimizer.epsilon == 1e-8
    assert Trainer(ByteLM(), config(), Shard()).optimizer.epsilon == 1e-8
    assert Trainer(Digits(), config(optimizer="sgd"), Shard()).optimizer.weight_decay == 0.005


def test_the_gradient_is_clipped():
    node = Trainer(Digits(), config(clip_norm=0.01), Shard())
    node.step()
    assert float(node.flat.grad_d.norm()) == pytest.approx(0.01, rel=1e-4)


def test_threads_are_set_in_whichever_thread_steps():
    node = trainer(threads=2)
    seen = []

    def work():
        torch.set_num_threads(1)
        node.step()
        seen.append(torch.get_num_threads())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert seen == [2]


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(TaskError, match="LayerNorm"):
        Trainer(Fixed(nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))), config(), Shard())
    with pytest.raises(TaskError, match="no trainable parameter"):
        Trainer(Fixed(nn.Flatten()), config(), Shard())


@pytest.mark.parametrize("device", ["nonsense", "cuda:77"])
def test_a_device_that_is_not_here_is_named(device):
    with pytest.raises(TaskError, match=f"{device}.*auto or cpu"):
        Trainer(Digits(), config(device=device), Shard())


def test_auto_is_plain_fp32_on_the_cpu():
    node = trainer()
    assert (node.device.type, node.precision, node.vector().dtype) == ("cpu", "fp32", torch.float32)


def test_bf16_on_request_keeps_fp32_weights():
    node = trainer(precision="bf16")
    losses = run(node)
    assert torch.isfinite(torch.tensor(losses)).all()
    assert node.flat.data_d.dtype == torch.float32


@pytest.mark.thorough
@pytest.mark.slow
def test_the_initial_models_are_the_same_on_every_type_of_cpu(tmp_path):
    """Members refuse who begins elsewhere, and torch's fp32 draws depend on the instructions that a CPU has."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 100)
    program = (
        "import hashlib\nfrom p2ptrain import tasks\nfrom p2ptrain.training import Trainer, TrainConfig, vector_bytes\n"
        f"for task in tasks.get('digits'), tasks.get('byte-lm', data={str(text)!r}):\n"
        "    trainer = Trainer(task, TrainConfig(threads=1), tasks.Shard())\n"
        "    print(hashlib.blake2b(vector_bytes(trainer.vector())).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
            capture_output=True,
            check=True,
        ).stdout
        for capability in ("default", "avx2")
    }
    assert len(digests) == 1
    assert len(digests.pop().split()) == 2


def test_the_rate_is_multiplied_by_what_the_caller_says():
    settings = config(optimizer="sgd", warmup_steps=0, schedule="constant", weight_decay=0.0, momentum=0.0)
    moved = []
    for factor in (1.0, 0.25, 0.0):
        node = Trainer(Digits(), settings, Shard())
        before = node.vector()
        node.step(rate_factor=factor)
        moved.append(node.vector() - before)
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-3, atol=1e-7)
    assert not moved[2].any()


def test_the_rate_can_follow_the_swarms_rounds(monkeypatch):
    settings = config(warmup_steps=0, schedule="cosine", learning_rate=1e-2)
    node = Trainer(Digits(), settings, Shard())
    rates = []
    monkeypatch.setattr(node.optimizer, "step", rates.append)
    node.step(settings.total_steps - 1)
    assert rates == [lr_at(settings.total_steps - 1, settings.total_steps, settings)]
    assert node.global_step == 1


def test_its_two_halves_are_a_step_bit_for_bit():
    whole, halves = trainer(grad_accumulation=2), trainer(grad_accumulation=2)
    for _ in range(STEPS):
        expected = whole.step()
        loss, grad_d = halves.gradient()
        kept = grad_d.clone()
        assert halves.apply_gradient(grad_d)
        assert loss == expected
        assert torch.equal(grad_d, kept)  # clipped in the trainer's own buffer
    assert torch.equal(halves.vector(), whole.vector())
    assert (halves.global_step, halves.tokens) == (whole.global_step, whole.tokens)


def test_the_mean_gradient_is_of_the_steps_since_it_was_asked_for_and_clipped_as_they_were():
    node, halves = Trainer(Digits(), config(clip_norm=0.5), Shard(index=0, count=2), tells=["gradient"]), trainer()
    for count in (1, 3):
        met = []
        for _ in range(count):
            _, grad_d = halves.gradient()
            met.append(grad_d * min(1.0, 0.5 / float(grad_d.norm())))
            node.step()
            halves.load_vector(node.vector())
            halves.global_step += 1
        torch.testing.assert_close(node.mean_gradient(), torch.stack(met).mean(0), rtol=1e-5, atol=1e-7)
    assert not node.mean_gradient().any(), "there was no step since"


def test_a_step_that_is_not_taken_is_in_no_mean():
    node = Trainer(Digits(), config(), Shard(index=0, count=2), tells=["gradient"])
    node.load_vector(torch.full((node.numel,), torch.nan))
    node.step()
    assert node.skipped_steps == 1
    assert torch.equal(node.mean_gradient(), torch.zeros(node.numel))


def test_gradients_of_a_model_that_was_replaced_are_in_no_mean():
    node = Trainer(Digits(), config(), Shard(index=0, count=2), tells=["gradient"])
    node.step()
    node.load_vector(node.vector() + 1)
    assert torch.equal(node.mean_gradient(), torch.zeros(node.numel))


def test_the_optimizers_state_can_be_set_by_name():
    node, other = trainer(), trainer()
    run(other)
    state = {name: buffer.clone() for name, buffer in other.optimizer.buffers.items()}
    node.take_optimizer_state(whole_buffers({**state, "of no optimizer": torch.zeros(1)}))
    assert all(torch.equal(node.optimizer.buffers[name], state[name]) for name in state)
    node.take_optimizer_state(whole_buffers({"exp_avg": state["exp_avg"] + 1}))
    assert torch.equal(node.optimizer.buffers["exp_avg_sq"], state["exp_avg_sq"]), "what is not named stays"
    with pytest.raises(ValueError, match="of another model"):
        node.take_optimizer_state(whole_buffers({"exp_avg": torch.zeros(7)}))


def test_a_gradient_alone_moves_nothing_and_is_of_the_step_that_is_named():
    node = trainer()
    before = node.vector()
    own_loss, own_d = node.gradient()
    later_loss, later_d = node.gradient(3)
    assert node.gradient(0)[0] == own_loss
    assert torch.equal(node.gradient(0)[1], own_d)
    assert later_loss != own_loss
    assert not torch.equal(later_d, own_d)
    assert torch.equal(node.vector(), before)
    assert node.global_step == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_a_wrong_shape_refused():
    node = trainer()
    before = node.vector()
    assert not node.apply_gradient(torch.full((node.numel,), float("nan")))
    assert torch.equal(node.vector(), before)
    assert (node.skipped_steps, node.global_step) == (1, 1)
    with pytest.raises(ValueError, match="does not fit"):
        node.apply_gradient(torch.zeros(1))


@pytest.mark.parametrize(("ends", "whole"), [((1, 2, 9, 16), (1, 1, 7, 7)), ((1, 2, 4, 6), (1, 1, 7, 7))])
def test_a_control_variate_divides_by_the_rates_of_its_own_round(ends, whole):
    """By the schedule rounds have 1, 1, 7 and 7 steps, and not 4: by those of another number of steps a member that
    takes fewer of them would divide by less than the others do."""
    scheduled = {"rounds": 4, "inner_steps": 4, "inner_steps_schedule": "post_local", "synchronous_share": 0.5}
    node = trainer(**scheduled, drift="scaffold", warmup_steps=0, schedule="constant", learning_rate=0.01)
    firsts, found, taken = (0, 1, 2, 9), [], 0
    for first, end in zip(firsts, ends, strict=True):
        for place in range(end - taken):
            node.step(first + place)
        taken = end
        node.begin_round()
        found.append(float(node.drift.buffers["ended_rates"]))
    assert found == pytest.approx([0.01 * steps for steps in whole])


def test_moments_that_come_from_members_are_bounded_by_what_steps_have_made_meanwhile():
    node = trainer()
    run(node)
    half = slice(0, node.numel // 2)
    node.take_optimizer_state([BufferPart("exp_avg", half, torch.full((node.numel // 2,), 9.0), 4)])
    state = node.state_dict()
    most_p = state["exp_avg_sq"][half].sqrt() * (2 * node.optimizer.moments["exp_avg"].steepest)  # 2: the root of 4
    torch.testing.assert_close(state["exp_avg"][half], most_p.clamp(max=9.0))
