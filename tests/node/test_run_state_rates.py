"""The factor on the learning rate in a phase: the strategy's own, less where the phase is longer than planned."""

from node.config.schema import Config
from node.training.pace import Pace
from node.training.run_state import RunState
from p2ptrain.sync import SyncConfig


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
