"""The inner loop: phases, and the door through which corrections come."""

from typing import TypeVar

import pytest
import torch

from node.training.inner_loop import InnerLoop, Phase
from p2ptrain import privacy, tasks
from p2ptrain.privacy.base import BudgetSpentError, Release
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.user_model import UserModel

T = TypeVar("T")


@pytest.fixture
def trainer() -> Trainer:
    config = TrainConfig(rounds=4, inner_steps=3, batch_size=4, threads=1, warmup_steps=0)
    return Trainer(tasks.get("digits"), config, Shard())


def run(loop: InnerLoop, steps: int, *, keep_state: bool = False, planned: int = 1) -> Phase:
    work = loop.phase(enough=lambda done: done >= steps, keep_state=lambda: keep_state, planned=planned)
    while True:
        try:
            next(work)
        except StopIteration as end:
            phase: Phase = end.value
            return phase


def test_a_phase_counts_what_it_did(trainer: Trainer) -> None:
    ticks = iter(range(1000))
    loop = InnerLoop(trainer, clock=lambda: float(next(ticks)))
    phase = run(loop, 3)
    assert (phase.steps, phase.end_step, phase.tokens) == (3, 3, 12)
    assert phase.compute_seconds == 3.0
    assert phase.step_seconds == 1.0
    assert phase.state is None
    assert torch.equal(phase.theta_d, trainer.vector())


def of_a_users_loop(steps: int) -> UserModel:
    """A learner whose first steps a loop of the user's own has taken, with losses 0, 1, 2, ..."""
    model = torch.nn.Linear(2, 1)
    learner = UserModel(model, None, TrainConfig(threads=1), Shard(), data_seed=0)
    for step in range(steps):
        learner.tell(loss=float(step), tokens=8)
        learner.note_step()
    return learner


def test_steps_of_a_users_loop_that_are_told_together_all_count() -> None:
    loop = InnerLoop(of_a_users_loop(5))
    work = loop.phase(enough=lambda done: done >= 6, keep_state=lambda: False, planned=6)
    next(work)
    loop.told_together = 5
    next(work)
    assert (loop.phase_steps, loop.steps, loop.trainer.global_step) == (5, 5, 5)
    loop.told_together = 1
    with pytest.raises(StopIteration) as end:
        next(work)
    phase = end.value.value
    assert (phase.steps, phase.work, phase.end_step) == (6, 6.0, 6)
    assert phase.loss == 2.0, "of the five that were told"


def test_how_many_steps_need_not_be_told() -> None:
    times = iter([0.0] + [each for step in range(1, 40) for each in (0.1 * step, 0.1 * step)])
    loop = InnerLoop(of_a_users_loop(0), clock=lambda: next(times))
    assert loop.untold(0.2, 0.5) == 0, "how long a step takes is not known yet"
    work = loop.phase(enough=lambda done: done >= 20, keep_state=lambda: False, planned=20)
    next(work)
    for told in (1, 1):
        loop.told_together = told
        next(work)
    assert loop.untold(0.2, 0.5) == 3, "a fifth of twenty, with the one that tells"
    assert loop.untold(0.5, 0.25) == 1, "steps of 0.1 s"
    assert loop.untold(0.5, 0.05) == 0
    loop.correct(torch.zeros(3), taken_at=0)
    assert loop.untold(0.2, 0.5) == 0, "a correction waits"
    for _ in range(15):
        next(work)
    assert loop.phase_steps == 17
    assert loop.untold(0.5, 5.0) == 2, "the phase's last step is told"


def test_a_step_takes_its_part_of_the_time_of_those_told_together() -> None:
    times = iter([0.0, 1.0, 1.0, 2.0])
    loop = InnerLoop(of_a_users_loop(5), clock=lambda: next(times))
    work = loop.phase(enough=lambda done: done >= 100, keep_state=lambda: False, planned=100)
    next(work)
    loop.told_together = 5
    next(work)
    assert loop.untold(0.5, 1.0) == 4, "steps of 0.2 s"


def test_a_loop_that_stands_still_is_told_of_each_step() -> None:
    held, times = False, iter([0.0, 0.1])
    loop = InnerLoop(of_a_users_loop(0), clock=lambda: next(times), held=lambda: held)
    work = loop.phase(enough=lambda done: done >= 20, keep_state=lambda: False, planned=20)
    next(work)
    held = True
    next(work)
    assert loop.stands
    assert loop.untold(0.5, 5.0) == 0


def test_a_loop_that_ends_has_taken_none_of_the_steps_that_it_might_have_told_together() -> None:
    learner = of_a_users_loop(0)
    loop = InnerLoop(learner)
    work = loop.phase(enough=lambda done: done >= 20, keep_state=lambda: False, planned=20)
    next(work)
    next(work)
    loop.told_together, learner.ended = 5, True
    with pytest.raises(StopIteration) as end:
        next(work)
    assert end.value.value.steps == 1


def test_the_snapshot_does_not_move_with_the_model(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    first = run(loop, 2)
    before = first.theta_d.clone()
    run(loop, 2)
    assert torch.equal(first.theta_d, before)
    assert not torch.equal(first.theta_d, trainer.vector())


def test_a_correction_is_added_between_two_steps_and_its_lateness_told(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    taken = run(loop, 2).end_step
    shift = torch.full((trainer.numel,), 0.5)
    work = loop.phase(enough=lambda done: done >= 3, keep_state=lambda: False)
    next(work)
    before = trainer.vector()
    loop.correct(shift, taken_at=taken)
    assert torch.equal(before, trainer.vector()), "nothing may change before the next step"
    next(work)
    assert loop.late_steps == 1
    assert torch.allclose(trainer.vector() - before, shift, atol=0.1)


def test_a_correction_left_after_the_last_step_is_not_lost(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    phase = run(loop, 1)
    loop.correct(torch.ones(trainer.numel), taken_at=phase.end_step)
    loop.settle()
    assert torch.allclose(trainer.vector(), phase.theta_d + 1)


def test_an_adopted_model_replaces_parameters_and_step(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    loop.replace(torch.zeros(trainer.numel), at_step=9)
    loop.settle()
    assert trainer.global_step == 9
    assert not trainer.vector().any()


def test_the_state_is_that_of_the_phases_end(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    phase = run(loop, 2, keep_state=True)
    then = {name: value for name, value in trainer.state_dict().items() if name != "parameters"}
    run(loop, 1)
    assert phase.state is not None
    assert phase.state.keys() == then.keys(), "the parameters are the phase's own"
    for name, value in then.items():
        kept = phase.state[name]
        assert isinstance(kept, torch.Tensor)
        assert torch.equal(kept, value), name
    assert not torch.equal(trainer.state_view()["exp_avg"], then["exp_avg"]), "training went on"


def test_a_phase_has_at_least_one_step(trainer: Trainer) -> None:
    assert run(InnerLoop(trainer), 0).steps == 1


def test_work_is_counted_in_steps_at_the_full_rate_and_not_where_a_step_was_skipped(trainer: Trainer) -> None:
    def phase_of(steps: int) -> Phase:
        work = loop.phase(
            enough=lambda done: done >= steps,
            keep_state=lambda: False,
            rate_factor=lambda done: 1.0 if done < 2 else 0.5,
        )
        while True:
            try:
                next(work)
            except StopIteration as end:
                phase: Phase = end.value
                return phase

    loop = InnerLoop(trainer)
    assert phase_of(2).work == 2.0
    assert phase_of(4).work == 3.0
    trainer.load_vector(torch.full((trainer.numel,), 1e30))  # its loss is not finite
    skipped = phase_of(2)
    assert (skipped.steps, skipped.skipped, skipped.work) == (2, 2, 0.0)


def test_a_difference_is_added_between_two_steps_and_is_no_correction(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    shift = torch.full((trainer.numel,), 0.5)
    work = loop.phase(enough=lambda done: done >= 2, keep_state=lambda: False)
    next(work)
    before = trainer.vector()
    loop.add(shift)
    assert torch.equal(before, trainer.vector()), "nothing may change before the next step"
    next(work)
    assert (trainer.vector() - before - shift).norm() < 0.1 * shift.norm()
    assert loop.late_steps == 0


def test_it_counts_how_often_another_model_took_its_place(trainer: Trainer) -> None:
    loop = InnerLoop(trainer)
    loop.correct(torch.zeros(trainer.numel), taken_at=0)
    assert loop.adoptions == 0
    loop.replace(torch.zeros(trainer.numel), at_step=5)
    loop.forget_corrections()
    assert loop.adoptions == 2
    assert loop.waiting == 1


@pytest.mark.parametrize("shares", ["parameters", "logits"])
def test_a_private_round_is_asked_for_before_its_first_step_and_not_begun_where_it_is_refused(shares: str) -> None:
    releases: list[Release] = []

    def spend(release: Release) -> None:
        if len(releases) == 2:
            raise BudgetSpentError("two rounds are all")
        releases.append(release)

    protection = PrivateTraining(privatizer=privacy.get("example", noise=1.0, clip=1.0), spend=spend)
    config = TrainConfig(rounds=4, inner_steps=10, batch_size=4, threads=1, shares=shares)  # type: ignore[arg-type]
    own = Trainer(tasks.get("digits", public=20), config, Shard(), privacy=protection)
    loop = InnerLoop(LogitsTrainer(own) if shares == "logits" else own)
    assert [run(loop, 10, planned=10).steps for _ in range(2)] == [10, 10]
    assert run(loop, 10, planned=10) is None
    assert [release.count for release in releases] == [10, 10]
