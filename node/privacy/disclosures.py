"""What a node with a privatizer tells of its data, thing by thing: what the ledger's epsilon covers, and what not."""

from dataclasses import dataclass
from enum import StrEnum

from node.config.schema import Config
from p2ptrain.tasks import EXTERNAL


class Coverage(StrEnum):
    """How far something that a node tells is protected."""

    COVERED = "covered"
    """It is made of noised sums that are in the ledger: epsilon bounds what it tells."""
    WITHHELD = "withheld"
    """It is not told, or it is made without the protected examples."""
    PUBLIC = "public"
    """It counts as known to everybody: choose it without looking at the data."""
    UNCOVERED = "not covered"
    """It is told, and no epsilon bounds what it tells."""


@dataclass(frozen=True)
class Disclosure:
    """One thing that a node may tell."""

    what: str
    coverage: Coverage
    why: str


def disclosures(config: Config) -> list[Disclosure]:
    """Return what a node with these settings tells."""
    if not config.privacy.on:
        why = "nothing is clipped or noised: privacy.privatizer is none"
        found = [Disclosure("updates, snapshots, checkpoints, losses and metrics", Coverage.UNCOVERED, why)]
        if config.warm_up.share:
            exact = "neighbours get exact counts, means and variances of classes of five examples or more"
            found.append(Disclosure("class statistics", Coverage.UNCOVERED, exact))
        return found if config.visits.noise is None else [*found, *_of_visitors(config)]
    unit = config.privacy.find().unit
    per_round = unit in ("update", "sum")
    if config.warm_up.share:  # then the unit is an example
        shared = Disclosure(
            "class statistics", Coverage.COVERED, "noised once, and a release of their own in the ledger"
        )
        return [shared, *_covered(config), *_withheld(per_round=False), *_uncovered(config, per_round=False)]
    if unit == "sum":
        return [*_covered_by_sums(config), *_withheld(per_round=True), *_uncovered(config, per_round=True)]
    if config.task.name == EXTERNAL:
        return [*_covered(config), *_of_own_loop(per_round=per_round), *_uncovered(config, per_round=per_round)]
    return [*_covered(config), *_withheld(per_round=per_round), *_uncovered(config, per_round=per_round)]


def _covered(config: Config) -> list[Disclosure]:
    made = "made of noised sums alone (post-processing)"
    return [
        Disclosure("updates, snapshots and refinements sent to peers", Coverage.COVERED, made),
        Disclosure("exports, and the model in checkpoints", Coverage.COVERED, made),
        Disclosure(
            f"what {config.sync.strategy}, {config.sync.compressor} and {config.sync.aggregator} make of them",
            Coverage.COVERED,
            "no data of this node go into them otherwise",
        ),
    ]


def _covered_by_sums(config: Config) -> list[Disclosure]:
    return [
        Disclosure(
            "sums of groups, and the anchors that are made of them",
            Coverage.COVERED,
            "while at most n - t of a group of n work together, t = floor(2n/3) + 1, and the others add their noise",
        ),
        Disclosure(
            "exports, and the model in checkpoints",
            Coverage.UNCOVERED,
            "the model here has own moves in it that no sum hides yet: give away what a newcomer is given",
        ),
        Disclosure("share of values that were cut", Coverage.UNCOVERED, "in metrics and events of this node"),
        Disclosure(
            "distance of the own move from the mean (consensus distance)",
            Coverage.UNCOVERED,
            "in metrics and events of this node: the own move has one share of the noise, and not the sum's",
        ),
        Disclosure(
            f"what {config.sync.aggregator} and {config.sync.outer} make of the sums",
            Coverage.COVERED,
            "no data of this node go into them otherwise",
        ),
    ]


def _withheld(*, per_round: bool) -> list[Disclosure]:
    found = [
        Disclosure("training loss", Coverage.WITHHELD, "neither in events and metrics nor sent"),
        Disclosure("gradient norms", Coverage.WITHHELD, "no metric has them, and no message"),
        Disclosure(
            "losses by which zeno and trial choose models",
            Coverage.WITHHELD,
            "measured on examples held out for all, not on the shard",
        ),
        Disclosure("divergence of predictions", Coverage.WITHHELD, "measured on examples held out for all"),
        Disclosure(
            "signals of shift from own data",
            Coverage.WITHHELD,
            "loss and moments of inputs are refused together with a privatizer; predictions are compared on examples "
            "held out for all",
        ),
        Disclosure("search for the learning rate", Coverage.WITHHELD, "refused together with a privatizer"),
        Disclosure("buffers, such as running means", Coverage.WITHHELD, "a model that changes any is refused"),
    ]
    if not per_round:
        found.append(
            Disclosure(
                "how many examples a step drew", Coverage.WITHHELD, "the expected number divides the sum, and is told"
            )
        )
    return found


def _of_own_loop(*, per_round: bool) -> list[Disclosure]:
    """Return what a loop of the user's own tells, of which the node sees its model alone (`p2ptrain.join`)."""
    here = "in this node's checkpoints and metrics, sent to no peer"
    found = [
        Disclosure("training loss and counts that the loop tells", Coverage.WITHHELD, "swarm.tell passes neither on"),
        Disclosure(
            "losses by which zeno and trial choose models",
            Coverage.UNCOVERED,
            "what your `evaluate` measures: give it no example that is to be protected",
        ),
        Disclosure(
            "the model that `join` is given",
            Coverage.PUBLIC,
            "privacy.public_start is your word that none of the protected data were used for it",
        ),
        Disclosure("the learning rate", Coverage.UNCOVERED, f"a schedule of yours may look at the data; {here}"),
    ]
    buffers = "buffers, such as running means"
    if per_round:
        program = "in its process the model has own moves that are not released; swarm.export writes it without them"
        found.append(Disclosure(buffers, Coverage.UNCOVERED, here))
    else:
        program = "it sees the examples, and their losses"
        found += [
            Disclosure(
                buffers, Coverage.WITHHELD, "they leave as at the join; a step is refused where one has changed"
            ),
            Disclosure("how many examples a step drew", Coverage.WITHHELD, "the expected number divides the sum"),
        ]
    return [*found, Disclosure("what your program itself prints, saves or sends", Coverage.UNCOVERED, program)]


def _uncovered(config: Config, *, per_round: bool) -> list[Disclosure]:
    seen = "on the page and in metrics and events of this node, sent to no peer"
    found = [
        Disclosure(
            "how many examples the shard has",
            Coverage.PUBLIC,
            "rate and noise follow from it; no update is weighed by it",
        ),
        Disclosure("settings (noise, clip, rate, steps)", Coverage.PUBLIC, "trying several on the data tells of them"),
        Disclosure(
            "losses and metrics on held-out examples",
            Coverage.UNCOVERED,
            f"these examples are not trained on; {seen}",
        ),
        Disclosure(
            "when updates come, and how many steps a round has",
            Coverage.UNCOVERED,
            "times of steps depend on the examples drawn" if not per_round else "times may depend on the data",
        ),
    ]
    if per_round:
        found += [
            Disclosure("skipped steps", Coverage.UNCOVERED, f"whether a step was finite; {seen}"),
            Disclosure(
                "the optimizer's state in checkpoints",
                Coverage.UNCOVERED,
                "it has seen each step as it was: give away an export, and not the node's folder",
            ),
        ]
    found += _of_visitors(config)
    if config.monitoring.exporters:
        names = ", ".join(config.monitoring.exporters)
        found.append(Disclosure(f"what is exported ({names})", Coverage.UNCOVERED, "the held-out losses are among it"))
    return found


def _of_visitors(config: Config) -> list[Disclosure]:
    """Return what is said about visitors' data; nothing without visitors."""
    if not config.visits.on:
        return []
    if config.visits.noise is None:
        why = "this node's noise protects its own data, not theirs"
        return [Disclosure("visitors' data", Coverage.UNCOVERED, why)]
    return [
        Disclosure(
            "visitors' data, in all that is made of models", Coverage.COVERED, "by visits.noise, on their ledger"
        ),
        Disclosure(
            "which visitors come, when, and how many leave what is not finite",
            Coverage.UNCOVERED,
            "answers to visitors, and metrics of this node",
        ),
    ]
