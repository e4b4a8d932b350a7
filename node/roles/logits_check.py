"""What members that share logits do not go with: said before a node starts, each in one line."""

from node.config.schema import Config
from node.system.errors import UsageError
from p2ptrain.sync.strategy_spec import GOSSIP
from p2ptrain.tasks import EXTERNAL
from p2ptrain.training.logits_trainer import is_of_logits


def check_logits(config: Config, *, user_loop: bool = False) -> None:
    """Raise UsageError for settings that want a vector of parameters, or whose part in a run of logits is not worked
    out. `user_loop`: whether a loop of the user's own takes the steps."""
    train, sync, spec = config.train, config.sync, config.sync.spec()
    if not is_of_logits(train):
        return
    unit = config.privacy.find().unit if config.privacy.on else ""
    strategy = f"sync.strategy={sync.strategy}"
    for wrong, what, hint in (
        (user_loop or config.task.name == EXTERNAL, "a loop of your own (p2ptrain.join)", "give the model as a task"),
        (config.node.role != "trainer", f"node.role={config.node.role}, which has no model of its own", "leave it out"),
        (config.node.lane == "process", "node.lane=process", "leave it at thread"),
        (bool(train.local), "train.local: every parameter is a node's own", "leave it out"),
        (config.personal.find() is not None, "personal.strength: every model is a node's own", "leave it out"),
        (train.drift != "none", f"train.drift={train.drift}, which bends towards parameters", "leave it at none"),
        (train.step_normalization != "none", "train.step_normalization", "leave it at none"),
        (train.late_average > 0, "train.late_average, a mean of parameters", "leave it at 0"),
        (spec.averager != GOSSIP, f"{strategy}, whose members meet", "take sync.strategy=tracked_gossip"),
        (bool(spec.wants) or spec.steps_anchor, f"{strategy}, which wants gradients", "take tracked_gossip"),
        (sync.needs_judge, f"sync.aggregator={sync.aggregator}, which tries models", "take trimmed_mean"),
        (bool(sync.regions), "sync.regions", "leave it out"),
        (config.visits.on, "visits, whose devices train a host's model", "leave it out"),
        (config.shift.on, "shift.detector, which watches the members' common model", "leave it out"),
        (config.budget.memory is not None, "budget.memory, which has no room planned for it", "leave it out"),
        (config.budget.disk is not None, "budget.disk, which has no room planned for it", "leave it out"),
        (config.node.optimizer_on == "disk", "node.optimizer_on=disk", "leave it at memory"),
        (
            unit not in ("", "example"),
            f"privacy.privatizer={config.privacy.privatizer}, which noises a round's move of parameters",
            "take privatizer=example, under which logits follow from a protected model",
        ),
    ):
        if wrong:
            raise UsageError(f"train.shares=logits does not go with {what}", hint)
