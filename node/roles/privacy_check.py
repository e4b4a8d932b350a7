"""What protects a node's data, and the settings that it does not go with: none of them may let anything out beside."""

from node.config.schema import Config
from node.system.errors import UsageError
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import Spend
from p2ptrain.tasks import EXTERNAL
from p2ptrain.training.private_training import PrivateTraining


def check_privacy(config: Config, *, user_loop: bool = False) -> None:
    """Raise UsageError for settings with which a privatizer would protect nothing, or not all. `user_loop`: whether a
    loop of the user's own takes the steps."""
    if not config.privacy.on:
        return
    per_round, spec = config.privacy.find().unit == "update", config.sync.spec()
    strategy, by_example = f"sync.strategy={config.sync.strategy}", "take privatizer=example"
    for wrong, what, hint in (
        (user_loop or config.task.name == EXTERNAL, "a loop of your own (p2ptrain.join)", "give the model as a task"),
        (config.node.lane == "process", "node.lane=process", "leave it at thread"),
        (config.train.compile and not per_round, "train.compile", "leave it at false, or take privatizer=update"),
        (config.budget.memory is not None, "budget.memory, which has no room planned for it", "leave it out"),
        (per_round and bool(spec.wants), f"{strategy}, which sends more than a round's move", by_example),
        (per_round and spec.steps_anchor, f"{strategy}, which averages gradients", by_example),
    ):
        if wrong:
            raise UsageError(f"privacy.privatizer={config.privacy.privatizer} does not go with {what}", hint)


def private_training(config: Config, spend: Spend) -> PrivateTraining | None:
    """Return what protects the data of the node's trainer, which calls `spend` before each release; None where nothing
    does. Raises UsageError as `check_privacy`, and for a budget where nobody counts."""
    check_privacy(config)
    privacy = config.privacy
    if privacy.epsilon is not None and spend is unaccounted:
        raise UsageError(f"privacy.epsilon={privacy.epsilon:g}: nobody counts here what is spent", "leave it out")
    if not privacy.on:
        return None
    return PrivateTraining(privatizer=privacy.find(), rate=privacy.rate, chunk=privacy.chunk, spend=spend)
