"""What protects a node's data, and the settings that it does not go with: none of them may let anything out beside."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from node.config.privacy_section import PrivacyConfig
from node.config.schema import Config
from node.events.event_types import WarningEvent
from node.events.journal import Emit
from node.privacy.budget import PrivacyBudget
from node.privacy.chained_log import NOTHING, LedgerMark, check_not_left
from node.privacy.ledger import PrivacyLedger, read_ledger
from node.system.errors import UsageError
from node.system.run_dir import PRIVACY
from node.system.text import plural
from node.training.node import Node
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import Spend
from p2ptrain.privacy.noise_shares import NoiseShares
from p2ptrain.protocols import implements
from p2ptrain.tasks import EXTERNAL
from p2ptrain.training import Learner
from p2ptrain.training.base import ProtectsData
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.warm_up.class_statistics import MECHANISM

_SHARED: Final = (
    "take sync.strategy=secure_average, and set sync.sum_noise and sync.sum_clip to what privacy.noise and "
    "privacy.clip are, on all members"
)

_UNSEEN: Final = "a loop of your own (p2ptrain.join), which is in no sum of a task's"
_UNRATED: Final = "a loop of your own (p2ptrain.join) without privacy.rate"
_RATE: Final = "set it to the batch that you want over the number of your examples: each is drawn with that probability"
_UNSAID: Final = "a loop of your own (p2ptrain.join) before you say that the model it begins with is public"
_PUBLIC: Final = (
    "that model is published as it is: set privacy.public_start=true where none of the data to protect were ever used "
    "for it (a fresh model of a seed, or a public pretrained one)"
)


def _is_shared(privacy: PrivacyConfig, shares: NoiseShares | None) -> bool:
    return shares is None or (shares.noise, shares.clip) == (privacy.noise, privacy.clip)


def check_privacy(config: Config, *, user_loop: bool = False) -> None:
    """Raise UsageError for settings with which a privatizer would protect nothing, or not all. `user_loop`: whether a
    loop of the user's own takes the steps."""
    if not config.privacy.on:
        return
    unit, spec = config.privacy.find().unit, config.sync.spec()
    per_round, of_sums = unit in ("update", "sum"), unit == "sum"
    strategy, by_example = f"sync.strategy={config.sync.strategy}", "take privatizer=example"
    own_loop = user_loop or config.task.name == EXTERNAL
    for wrong, what, hint in (
        (own_loop and unit not in ("example", "update"), _UNSEEN, "take privacy.privatizer=example or update"),
        (own_loop and unit == "example" and config.privacy.rate is None, _UNRATED, _RATE),
        (own_loop and not config.privacy.public_start, _UNSAID, _PUBLIC),
        (config.privacy.public_start and not own_loop, "privacy.public_start and a task", "leave public_start out"),
        (config.node.lane == "process", "node.lane=process", "leave it at thread"),
        (config.train.compile and not per_round, "train.compile", "leave it at false, or take privatizer=update"),
        (config.budget.memory is not None, "budget.memory, which has no room planned for it", "leave it out"),
        (of_sums and spec.noise_shares is None, f"{strategy} without sync.sum_noise", _SHARED),
        (of_sums and not _is_shared(config.privacy, spec.noise_shares), "other sync.sum_noise or sum_clip", _SHARED),
        (per_round and bool(spec.wants), f"{strategy}, which sends more than a round's move", by_example),
        (per_round and spec.steps_anchor, f"{strategy}, which averages gradients", by_example),
    ):
        if wrong:
            raise UsageError(f"privacy.privatizer={config.privacy.privatizer} does not go with {what}", hint)


@contextmanager
def privacy_budget(config: Config, node_dir: Path, emit: Emit) -> Iterator[PrivacyBudget | None]:
    """Hold the privacy ledger of a node, and what it may spend; None for a node that protects nothing, or that does not
    train. Raises UsageError as `check_privacy`, and where its data were protected before, or by another privatizer;
    RunError where the ledger is damaged, or another process has it."""
    check_privacy(config)
    path = node_dir / PRIVACY
    if not config.privacy.on or config.node.role != "trainer":
        if config.node.role == "trainer":
            check_not_left(path, read_ledger(path), "this node's", "[privacy]")
        yield None
        return
    ledger = PrivacyLedger(path)
    try:
        _check_same(config.privacy, ledger)
        budget = PrivacyBudget(config.privacy, ledger)
        if budget.torn:
            lines = plural(budget.torn, "line")
            message = f"{lines} at the end of {path} cannot be read, and will be charged as spent"
            emit(WarningEvent(message=message, about="privacy"))
        yield budget
    finally:
        ledger.close()


def _check_same(privacy: PrivacyConfig, ledger: PrivacyLedger) -> None:
    """Raise UsageError where the ledger has releases of another privatizer. What the two protect is not the same, so
    that a sum of both bounds neither; and an optimizer that went on after `update` would bring gradients without noise
    into the steps of `example`."""
    privatizer = privacy.find()
    own = privatizer.release(rate=1.0, count=1)
    known = {MECHANISM} if privatizer.unit == "example" else set()
    if own is None or not (others := ledger.contents.mechanisms - known - {own.mechanism}):
        return
    raise UsageError(
        f"{ledger.path} has releases of {', '.join(sorted(others))}, and privacy.privatizer is {privacy.privatizer}: "
        "what they protect is not the same, and no epsilon would bound both",
        "set privacy.privatizer as it was, or take another --run-dir (on the same data what both spend adds up)",
    )


def check_ledger(node: Node, mark: LedgerMark | None, round: int) -> None:
    """Raise RunError where the node's privacy ledger does not have what its checkpoint has seen. Warn of what it cannot
    cover."""
    if node.privacy is None:
        return
    node.privacy.check(NOTHING if mark is None else mark)
    if mark is None and round:
        message = f"what it trained before round {round} was not protected: no epsilon covers it"
        node.journal.emit(WarningEvent(message=message, about="privacy"))


def check_first_round(config: Config, budget: PrivacyBudget, learner: Learner) -> None:
    """Raise UsageError where the whole budget is less than the run's first round spends: no step would be taken. A
    ledger with entries has begun; its node serves on (spent_budget.py)."""
    assert implements(learner, ProtectsData), "it has a budget"
    release = learner.release_of(config.train.steps_in(0))
    if release is None or not budget.is_new or budget.allows(budget.with_release(release)):
        return
    what = plural(release.count, "step") if budget.settings.find().unit == "example" else "it"
    rate = f" at rate {release.rate:.4g}" if release.rate < 1 else ""
    raise UsageError(
        f"privacy.epsilon={budget.settings.epsilon:g} is less than the first round spends: {what} with noise "
        f"{release.noise:g}{rate}: epsilon {budget.with_release(release):.4g} at delta {budget.settings.delta:g}",
        "give more privacy.noise, fewer train.inner_steps or a larger privacy.epsilon (`p2ptrain privacy epsilon`)",
    )


def private_training(config: Config, spend: Spend | None) -> PrivateTraining | None:
    """Return what protects the data of the node's trainer, which calls `spend` before each release; None where nothing
    does. Raises UsageError as `check_privacy`, and where nobody counts the releases."""
    check_privacy(config)
    privacy = config.privacy
    if not privacy.on or config.node.role != "trainer":  # the others take no step
        return None
    if spend is None:
        what = f"privacy.privatizer={privacy.privatizer}: nothing here writes down what is told"
        raise UsageError(what, "train it with `p2ptrain node` or `p2ptrain up`")
    if privacy.epsilon is not None and spend is unaccounted:  # a simulation
        raise UsageError(f"privacy.epsilon={privacy.epsilon:g}: nobody counts here what is spent", "leave it out")
    return PrivateTraining(privatizer=privacy.find(), rate=privacy.rate, chunk=privacy.chunk, spend=spend)
