"""Whether a process is a rank of a site, and whether a site can do what is set. What a site needs is not imported."""

from node.config.schema import Config
from node.system.errors import UsageError
from node.system.ranks import SiteProcess
from p2ptrain import inner
from p2ptrain.tasks import TaskError
from p2ptrain.training.logits_trainer import is_of_logits
from p2ptrain.training.site.site_config import SiteConfig


def check_site(config: Config, process: SiteProcess | None, *, run_dir_given: bool) -> bool:
    """Return whether this process is a rank of a site. UsageError for what a site cannot do, and for a `[site]` without
    ranks."""
    if process is None or (process.count == 1 and config.site == SiteConfig()):
        if process is None and (wanted := config.site.needs_ranks):
            raise UsageError(
                f"site.{wanted} wants several ranks",
                "start them by `torchrun --nproc-per-node N -m p2ptrain node ...`, or go on in one process by "
                f"--set site.{wanted.partition('=')[0]}=1",
            )
        return False
    if process.restarts and not run_dir_given:
        raise UsageError("torchrun is to start this site again, and it would begin anew", "give it a --run-dir")
    try:
        config.site.mesh(process.count)
        if config.site.pipeline > 1:
            config.site.micro_batch_count(config.train.batch_size, config.train.grad_accumulation, process.count)
    except TaskError as error:
        raise UsageError(str(error)) from None
    _check_settings(config)
    return True


def idle_site_settings(site: SiteConfig) -> list[str]:
    """Return a line for each `[site]` setting that does nothing in one process."""
    idle = (name for name in ("activation_checkpointing", "offload") if getattr(site, name))
    return [
        f"site.{name} does nothing in a process of its own: start it by `torchrun --nproc-per-node 1 -m p2ptrain node`"
        for name in idle
    ]


def _check_settings(config: Config) -> None:
    train, node, strategy = config.train, config.node, config.sync.strategy
    optimizer = inner.get(train.optimizer, **train.optimizer_options())
    for wrong, what, hint in (
        (node.role != "trainer", f"node.role={node.role}", "an observer is one process"),
        (node.lane != "thread", f"node.lane={node.lane}", "leave it at thread"),
        (config.budget.is_set, "budget: its ranks are processes of their own", "leave out [budget]"),
        (node.optimizer_on != "memory", f"node.optimizer_on={node.optimizer_on}", "leave it at memory"),
        (node.micro_batch > 0, f"node.micro_batch={node.micro_batch}", "set site.pipeline or train.batch_size"),
        (
            (policy := config.selection.find()) is not None and policy.measures,
            f"selection.policy={config.selection.policy}: its ranks hold parts of models, of which none is measured",
            "take nearest or random",
        ),
        (bool(config.participation.names), "pauses: all its ranks would have to pause", "leave out [participation]"),
        (config.privacy.on, f"privacy.privatizer={config.privacy.privatizer}: its ranks share a batch", "leave it out"),
        (bool(train.local), f"train.local={list(train.local)}: its ranks hold the model in parts", "leave it out"),
        (is_of_logits(train), "train.shares=logits: its ranks hold the model in parts", "leave it out"),
        (
            config.personal.find() is not None,
            "personal model: its ranks hold one model in parts",
            "leave out [personal]",
        ),
        (config.shift.on, f"shift.detector={config.shift.detector}: its ranks share a batch", "leave it out"),
        (config.warm_up.on, "[warm_up]: its ranks share a batch", "leave it out"),
        (config.visits.on, "visitors: its ranks hold the model in parts", "leave out [visits]"),
        (train.drift != "none", f"train.drift={train.drift}", "leave it at none"),
        (
            train.step_normalization != "none",
            f"train.step_normalization={train.step_normalization}, which works on whole vectors",
            "leave it at none",
        ),
        (train.compile, "train.compile=true", "leave it at false"),
        (
            not getattr(optimizer, "elementwise", False),
            f"train.optimizer={train.optimizer}, which wants whole matrices",
            "take adamw, sgd or schedule_free",
        ),
        (
            bool(config.sync.spec().wants) or config.sync.spec().steps_anchor,
            f"sync.strategy={strategy}, which wants the state of the inner optimizer",
            "take another strategy",
        ),
    ):
        if wrong:
            raise UsageError(f"a site has no {what}", hint)
