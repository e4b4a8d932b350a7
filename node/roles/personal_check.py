"""What models that stay personal do not go with: said before a node starts, each in one line."""

from node.config.schema import Config
from node.system.errors import UsageError
from p2ptrain.tasks import EXTERNAL


def check_personal(config: Config, *, user_loop: bool = False) -> None:
    """Raise UsageError for settings with which parameters would not stay local, or the personal model would not be
    what it is said to be. `user_loop`: whether a loop of the user's own takes the steps."""
    own_loop = user_loop or config.task.name == EXTERNAL
    everywhere = (
        (own_loop, "a loop of your own (p2ptrain.join)", "give the model as a task"),
        (config.node.lane == "process", "node.lane=process", "leave it at thread"),
    )
    if config.train.local:
        per_round = config.privacy.on and config.privacy.find().unit == "update"
        schedules = config.train.local_steps > 0 and config.node.pace != "fixed"
        for wrong, what, hint in (
            *everywhere,
            (config.visits.on, "visits, whose devices train whole models", "leave one of them out"),
            (per_round, "privacy.privatizer=update, which covers what is shared alone", "take privatizer=example"),
            (schedules, f"train.local_steps and node.pace={config.node.pace}: rounds may be as short", "leave one out"),
        ):
            if wrong:
                raise UsageError(f"train.local does not go with {what}", hint)
    if config.personal.find() is not None:
        for wrong, what, hint in (
            *everywhere,
            (config.privacy.on, "[privacy]: its losses would tell what no noise has covered", "leave one of them out"),
            *(
                (
                    getattr(config.budget, name) is not None,
                    f"budget.{name}, which has no room planned for it",
                    "leave it out",
                )
                for name in ("memory", "disk")
            ),
        ):
            if wrong:
                raise UsageError(f"personal.strength does not go with {what}", hint)
