"""`train.learning_rate = "auto"`: found once where a swarm starts, and a number from then on.

All members of a swarm train at one rate, so no node finds its own. `up` and `swarm create` find it for all of their
nodes; for nodes that are started one by one `p2ptrain tune` prints it.
"""

import math
from collections.abc import Callable
from typing import Final

from node.config.toml_source import Raw, merge
from node.system.errors import UsageError
from p2ptrain.training.rate_search import FIRST_RATE, TRIAL_STEPS, FoundRate, Trial, run_trial, search

AUTO: Final = "auto"

Tell = Callable[[Trial], None]
"""Called with each trial as it ends."""


def wants_auto(raw: Raw) -> bool:
    """Return whether the learning rate is still to be found."""
    train = raw.get("train")
    return isinstance(train, dict) and train.get("learning_rate") == AUTO


def refuse_auto(raw: Raw) -> None:
    """Raise UsageError where the rate is still to be found, which is too late here."""
    if wants_auto(raw):
        raise UsageError(
            "train.learning_rate=auto is for `p2ptrain up` and `p2ptrain swarm create`: a swarm's nodes need one rate",
            "find it once with `p2ptrain tune` and the same settings, and give every node what it prints",
        )


def without_auto(given: Raw) -> Raw:
    """Return what was given to a run that has its rate already, without the wish to find one."""
    if not wants_auto(given):
        return given
    return given | {"train": {key: value for key, value in given["train"].items() if key != "learning_rate"}}


def with_rate(raw: Raw, rate: float) -> Raw:
    """Return the settings with this rate."""
    made: Raw = {}
    merge(made, raw)
    merge(made, {"train": {"learning_rate": rate}})
    return made


def find_rate(raw: Raw, tell: Tell, *, steps: int = TRIAL_STEPS) -> FoundRate:
    """Find the rate for these settings by runs of so many steps, with all of the task's data on this machine. Raises
    UsageError, and what a task raises."""
    from node.config.schema import from_raw
    from p2ptrain import tasks
    from p2ptrain.training.trainer import pick_device

    config = from_raw(with_rate(raw, FIRST_RATE))
    if config.task.name == tasks.EXTERNAL:
        raise UsageError("the model is built by its own program, not by a task", "give train.learning_rate a number")
    if config.privacy.on:
        what = "a search for the learning rate trains on all of the data, and no privatizer covers it"
        raise UsageError(f"privacy.privatizer={config.privacy.privatizer}: {what}", "give train.learning_rate a number")
    pick_device(config.train.device)
    task = tasks.get(config.task.name, **config.task.options)
    trials = []
    for trial in search(lambda rate: run_trial(task, config.train, rate, steps)):
        trials.append(trial)
        tell(trial)
    found = FoundRate(trials=tuple(trials), trial_steps=steps, total_steps=config.train.total_steps)
    if found.best.loss == math.inf:
        least = min(trial.rate for trial in trials)
        raise UsageError(
            f"no learning rate from {least:g} on gave a finite loss in {steps} steps", "look at the task or its data"
        )
    if found.nothing_learned:
        raise UsageError(
            f"the held-out loss is {found.best.loss:.4g} after {steps} steps at every rate: nothing was learned",
            "look at the task: its loss must depend on the model's trained parameters",
        )
    return found
