"""The learning rate in a phase: its place in the schedule, and its factor, the strategy's own, less where the phase is
longer than planned."""

import pytest

from node.config.schema import Config
from node.training.pace import Pace
from node.training.run_state import RunState
from p2ptrain import step_schedules
from p2ptrain.sync import SyncConfig
from p2ptrain.training import TrainConfig


def factor(steps: int, **sync: object) -> float:
    pace = Pace("fixed", 4, f=0, own="own", clock=lambda: 0.0)
    config = Config(sync=SyncConfig(**sync))  # type: ignore[arg-type]
    return RunState(config=config, pace=pace).rate_factor(steps)


def test_planned_steps_have_the_strategys_rate():
    assert [factor(steps) for steps in range(4)] == [1.0] * 4
    assert [factor(steps, strategy="mime") for steps in range(4)] == [2.0] * 4
    assert factor(0, strategy="mime", local_rate=1.5) == 1.5


def test_a_lengthened_phase_leads_no_further():
    assert factor(7) == 0.5
    assert factor(7, strategy="mime") == 1.0


def walk(train: TrainConfig) -> list[list[int]]:
    """The places of all steps of a run, by round: each round is closed while the next one is trained."""
    pace = Pace("fixed", train.steps_in(0), f=0, own="own", clock=lambda: 0.0)
    state, places = RunState(config=Config(train=train), pace=pace), list[list[int]]()
    while not state.finished:
        taken: list[int] = []
        state.enter_round(state.round + state.closing)
        while not taken or not state.enough(len(taken)):
            taken.append(state.schedule_step(len(taken)))
        places.append(taken)
        state.begin_closing(waits_for_group=False)
    return places


@pytest.mark.parametrize("schedule", step_schedules.names())
def test_rates_follow_the_steps_of_the_run_however_these_are_spread(schedule: str) -> None:
    train = TrainConfig(rounds=9, inner_steps=6, inner_steps_schedule=schedule, warmup_steps=5)
    places = walk(train)
    assert [len(taken) for taken in places] == [train.steps_in(round_) for round_ in range(9)]
    assert [place for taken in places for place in taken] == list(range(54))


def test_who_jumps_to_a_round_has_its_steps_and_its_place() -> None:
    train = TrainConfig(rounds=9, inner_steps=6, inner_steps_schedule="qsr", warmup_steps=5)
    state = RunState(config=Config(train=train), pace=Pace("fixed", train.steps_in(0), f=0, own="o", clock=lambda: 0.0))
    state.enter_round(7)
    assert state.pace.steps == train.steps_in(7) > 2 * train.steps_in(0)
    assert state.schedule_step(0) == train.first_step(7)
    assert state.schedule_step(1000) == train.first_step(8) - 1, "a lengthened phase does not pass the next round's"


def test_who_lags_does_a_share_of_what_the_schedule_says() -> None:
    train = TrainConfig(rounds=9, inner_steps=6, inner_steps_schedule="qsr", warmup_steps=5)
    state = RunState(config=Config(train=train), pace=Pace("fixed", train.steps_in(0), f=0, own="o", clock=lambda: 0.0))
    state.enter_round(8)
    state.look_around(10)
    least = next(steps for steps in range(1, 100) if state.enough(steps))
    assert least == -(-train.steps_in(8) // 4)
