"""What a node's settings say of what may leave its region: checked before it starts, and in words."""

from collections.abc import Mapping

from node.config.schema import Config
from node.system.errors import UsageError
from p2ptrain import aggregate
from p2ptrain.aggregate.base import Averages
from p2ptrain.protocols import implements
from p2ptrain.sync.sync_config import NOTHING


def residency_of(config: Config) -> Mapping[str, int]:
    """Return the run's policy, by region: of how many members' models what leaves it is an average at least; 0: nothing
    leaves it."""
    return {label: 0 if least == NOTHING else int(least) for label, least in config.sync.residency.items()}


def check_residency(config: Config) -> None:
    """Raise UsageError for an aggregate that no member can make, and for a relay of which nobody has said that it
    stands in the node's region."""
    for label, least in residency_of(config).items():
        if least > 0:
            _check_aggregate(config, label, least)
    region, network = config.node.region, config.network
    if region in config.sync.residency and network.behind_relay and network.via_region != region:
        raise UsageError(
            f"the relay of this node is not said to be in region {region}, which has a policy (sync.residency)",
            f"say network.via_region={region} where it is, and take another relay where it is not",
        )


def _check_aggregate(config: Config, label: str, least: int) -> None:
    sync, degree = config.sync, config.network.degree
    rule = aggregate.get(sync.aggregator, f=sync.f, **sync.rule_options())
    if not implements(rule, Averages) or sync.spec().turn > 1:
        which = f"sync.strategy={sync.strategy} averages a part of the model a round"
        if sync.spec().turn == 1:
            which = f"sync.aggregator={sync.aggregator} does not say of how many models its result is an average"
        raise UsageError(f"sync.residency.{label}: {which}", "use tracked_gossip with mean or trimmed_mean")
    most = rule.averages(degree + 1)
    if least > most:
        raise UsageError(
            f"sync.residency.{label}: no aggregate is of {least} members: with network.degree={degree} and "
            f"f={sync.f} one is of {most} at most",
            "ask for fewer, or raise network.degree",
        )


def residency_in_words(config: Config) -> str | None:
    """Return the policy in one line; None where there is none."""
    policy = residency_of(config)
    if not policy:
        return None
    closed = [label for label, least in policy.items() if least == 0]
    told = [f"nothing leaves {' and '.join(sorted(closed))}"] if closed else []
    told += [f"averages of {least} members or more leave {label}" for label, least in policy.items() if least > 0]
    own = config.node.region
    return f"{'; '.join(told)}{f'; this node is of {own}' if own else ''}"
