"""A trainer whose vector is what its model says of a public batch, alone and among others, honest and not."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from p2ptrain import privacy, tasks
from p2ptrain.privacy.base import Release
from p2ptrain.sync import SyncConfig, build
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.base import KeepsItsModel, TakesSnapshots
from p2ptrain.training.logits_trainer import LogitsTrainer
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.public_logits import LARGEST_LOGIT, PublicBatch, shared_form

PUBLIC = 30
CONFIG = TrainConfig(rounds=2, inner_steps=5, warmup_steps=2, device="cpu", threads=1, shares="logits")


def trainer(model: str = "mlp", config: TrainConfig = CONFIG, *, public: int = PUBLIC, index: int = 0) -> LogitsTrainer:
    own = Trainer(tasks.get("digits", model=model, public=public), config, Shard(index=index, count=4))
    return LogitsTrainer(own)


def said(one: LogitsTrainer) -> torch.Tensor:
    """The public batch through the live model, in plain torch."""
    task = one.own.task
    assert isinstance(task, Digits)
    with torch.no_grad():
        logits_nc = one.own.model_with()(task.public.images)
    return (logits_nc - logits_nc.mean(1, keepdim=True)).flatten()


def distance(one: LogitsTrainer, target_d: torch.Tensor) -> float:
    """KL(target || model), over the public batch."""
    log_ours, theirs = (x_d.view(-1, 10).log_softmax(1) for x_d in (one.vector(), target_d))
    return float(functional.kl_div(log_ours, theirs, log_target=True, reduction="batchmean"))


@pytest.mark.parametrize("model", ["mlp", "wide", "conv"])
def test_the_vector_is_what_the_live_model_says_without_its_mean(model: str) -> None:
    one = trainer(model)
    assert isinstance(one, TakesSnapshots)
    assert isinstance(one, KeepsItsModel)
    assert one.vector().shape == (one.numel,) == (10 * PUBLIC,)
    assert torch.allclose(one.vector(), said(one), atol=1e-6)
    before_d = one.vector()
    one.take_step()
    assert not torch.equal(one.vector(), before_d)
    assert torch.allclose(one.vector(), said(one), atol=1e-6)


def test_models_of_all_shapes_are_of_one_run_and_begin_alike() -> None:
    members = [trainer(model) for model in ("mlp", "wide", "conv")]
    assert len({member.own.fingerprint for member in members}) == 3
    assert len({member.fingerprint for member in members}) == 1
    assert all(torch.equal(member.initial_vector(), torch.zeros(10 * PUBLIC)) for member in members)
    assert trainer(public=PUBLIC + 1).fingerprint != members[0].fingerprint


def test_the_address_is_of_inputs_and_of_what_counts_and_not_of_targets() -> None:
    class Other(Digits):
        targets, inputs = 0, 0.0

        def public_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
            images, targets = super().public_batch()
            return images + self.inputs, targets + self.targets

    plain, labelled, blind, changed = (Other(public=PUBLIC) for _ in range(4))
    labelled.targets, blind.targets, changed.inputs = 3, -1, 1e-3
    address, *others = (PublicBatch(task).address for task in (plain, labelled, blind, changed))
    assert others[0] == address
    assert address not in others[1:]
    assert others[1] != others[2]


def test_another_public_batch_than_the_run_s_is_refused_with_both_addresses() -> None:
    own = trainer().address.hex()
    assert trainer(config=replace(CONFIG, public_digest=own)).numel == 10 * PUBLIC
    with pytest.raises(TaskError, match=f"{own}.*{'0' * 64}"):
        trainer(config=replace(CONFIG, public_digest="0" * 64))
    with pytest.raises(ValueError, match="public_digest"):
        replace(CONFIG, public_digest="zz")


def test_a_task_without_a_public_batch_is_refused() -> None:
    with pytest.raises(TaskError, match=r"task\.public"):
        trainer(public=0)
    with pytest.raises(TaskError, match="quadratic has no public batch"):
        LogitsTrainer(Trainer(tasks.get("quadratic"), CONFIG, Shard()))


def test_without_a_correction_its_steps_are_a_trainer_s_own() -> None:
    one, plain = trainer(), Trainer(tasks.get("digits", public=PUBLIC), CONFIG, Shard(index=0, count=4))
    for _ in range(5):
        one.take_step()
        plain.take_step()
    assert torch.equal(one.own.vector(), plain.vector())


def test_it_learns_towards_its_snapshot_and_the_correction() -> None:
    one = trainer(config=replace(CONFIG, inner_steps=60, learning_rate=3e-3))
    wanted_d = shared_form(3 * torch.randn(PUBLIC, 10, generator=torch.Generator().manual_seed(1))).flatten()
    one.begin_round()
    snapshot_d, _ = one.snapshot()
    one.take_step()  # while the round closes, the model goes on
    one.begin_round()
    one.take_step()
    one.correct(wanted_d - snapshot_d)
    before = distance(one, wanted_d)
    for _ in range(60):
        one.take_step()
    assert distance(one, wanted_d) < 0.7 * before
    silent = trainer(config=replace(CONFIG, inner_steps=60, distill_rate=0.0))
    silent.load_vector(wanted_d)
    for _ in range(60):
        silent.take_step()
    assert distance(silent, wanted_d) > before, "it is the public step that brings it there"


def test_what_is_measured_is_the_live_model_whatever_vector_is_given() -> None:
    one = trainer()
    anything_d = torch.randn(one.numel)
    assert one.evaluate(anything_d) == one.own.evaluate() == one.measure(anything_d).loss
    assert one.judge(anything_d, 3) == one.own.judge(one.own.vector(), 3)
    assert one.divergence(anything_d, [anything_d, anything_d]) == pytest.approx(0, abs=1e-9)
    assert (one.divergence(anything_d, [-anything_d]) or 0) > 0.1
    for wrong in (one.correct, one.load_vector):
        with pytest.raises(ValueError, match="does not fit"):
            wrong(torch.zeros(one.numel + 1))


def test_a_state_goes_on_bit_for_bit() -> None:
    one = trainer()
    one.load_vector(torch.linspace(-2, 2, one.numel))
    for _ in range(3):
        one.take_step()
    again = trainer()
    again.load_state_dict(one.state_dict())
    for _ in range(3):
        one.take_step()
        again.take_step()
    assert torch.equal(one.own.vector(), again.own.vector())
    with pytest.raises(ValueError, match=r"train\.shares"):
        again.load_state_dict(one.own.state_dict())


def test_a_vector_beyond_all_bounds_breaks_nothing() -> None:
    one = trainer()
    one.load_vector(torch.full((one.numel,), 3e38) * torch.tensor([1.0, -1.0]).repeat(one.numel // 2))
    for _ in range(4):
        assert one.take_step() is not None
    assert bool(one.own.vector().isfinite().all())
    assert float(one.vector().abs().max()) <= LARGEST_LOGIT


def test_a_diverged_model_says_so_to_its_strategy() -> None:
    one = trainer()
    one.own.load_vector(torch.full((one.own.numel,), torch.nan))
    strategy = build(SyncConfig(), one.initial_vector(), "own")
    with pytest.raises(ValueError, match="not finite"):
        strategy.encode(one.vector(), round=0)


def test_under_private_steps_only_own_steps_are_releases() -> None:
    spent = []
    for aims in (False, True):
        releases: list[Release] = []
        protection = PrivateTraining(privatizer=privacy.get("example", noise=1.0, clip=1.0), spend=releases.append)
        task = tasks.get("digits", public=PUBLIC)
        one = LogitsTrainer(Trainer(task, CONFIG, Shard(index=0, count=4), privacy=protection))
        if aims:
            one.load_vector(torch.linspace(-2, 2, one.numel))
        one.ask_ahead(5)
        for _ in range(5):
            assert one.take_step() is not None
        one.end_round()
        spent.append([release.count for release in releases])
    assert spent[0] == spent[1] == [5]


LIES = {
    "sign": lambda x_d: -5 * x_d,
    "constant": lambda x_d: torch.eye(10)[0].repeat(PUBLIC) * 16,
    "random": lambda x_d: 16 * torch.randn(len(x_d), generator=torch.Generator().manual_seed(3)),
    "huge": lambda x_d: torch.full_like(x_d, 1e5),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_two_liars_of_eight_move_no_logit_beyond_the_honest_members(lie: str) -> None:
    config = SyncConfig(compressor="none", f=2)
    members = [trainer(("mlp", "wide", "conv")[index % 3], index=index % 4) for index in range(8)]
    for member in members:
        for _ in range(3):
            member.take_step()
    names = [f"peer{index}" for index in range(8)]
    told = [m.vector() if i < 6 else LIES[lie](m.vector()) for i, m in enumerate(members)]
    strategies = [build(config, members[0].initial_vector(), name) for name in names]
    messages = [it.encode(theta_d, round=0) for it, theta_d in zip(strategies, told, strict=True)]
    honest_nd = torch.stack(told[:6])
    for index in range(6):
        strategy, others = strategies[index], [name for name in names if name != names[index]]
        for name, message in zip(names, messages, strict=True):
            if name != names[index]:
                strategy.track(name, None)
                strategy.apply(name, message.codec, message.payload)
        result = strategy.aggregate(told[index], dict.fromkeys(others, 0), round=0)
        heard_d = told[index] + result.correction_d
        assert bool((heard_d <= honest_nd.max(0).values + 1e-4).all())
        assert bool((heard_d >= honest_nd.min(0).values - 1e-4).all())


def test_predictions_that_do_not_count_are_not_learned_from() -> None:
    class Half(Digits):
        def public_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
            images, targets = super().public_batch()
            targets[::2] = -1
            return images, targets

    one = LogitsTrainer(Trainer(Half(public=PUBLIC), CONFIG, Shard()))
    assert one.numel == 10 * PUBLIC
    target_d = torch.randn(one.numel)
    other_d = target_d.view(PUBLIC, 10).clone()
    other_d[::2] += 5 * torch.randn(PUBLIC // 2, 10)
    moved = []
    for aim_d in (target_d, other_d.flatten()):
        twin = LogitsTrainer(Trainer(Half(public=PUBLIC), CONFIG, Shard()))
        twin.load_vector(aim_d)
        twin.take_step()
        moved.append(twin.own.vector())
    assert torch.equal(*moved)


def test_a_model_without_logits_is_refused() -> None:
    class Flat(Digits):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(64, 1), nn.Flatten(0))

        def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return model(batch[0]).square().mean()

    with pytest.raises(TaskError, match="no logits of its targets"):
        LogitsTrainer(Trainer(Flat(public=PUBLIC), CONFIG, Shard()))


def test_public_steps_take_no_more_examples_at_a_time_than_own_ones() -> None:
    own = Trainer(tasks.get("digits", public=PUBLIC), CONFIG, Shard(index=0, count=4))
    own.take_at_a_time(2)
    assert LogitsTrainer(own)._public_steps.micro_batch == 2
    assert trainer()._public_steps.micro_batch is None
