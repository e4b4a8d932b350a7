"""What secure averaging needs of a node's other settings: checked before it starts, in one line."""

from typing import Final

from gossip.membership.placement import placement
from gossip.membership.private_swarm import PrivateMembership
from node.config.schema import Config
from node.system.errors import UsageError
from p2ptrain.sync import SECURE
from p2ptrain.sync.secure_average import GRANTS, largest_sum_bytes

DEVIATIONS: Final = 4.0
"""Standard deviations of a privatizer's noise that the clipping range has room for: of normal values one in 16,000 is
beyond."""


def check_secure(config: Config) -> None:
    """Raise UsageError where not all members of a group can know each other, or most of a privatizer's noise would be
    cut."""
    if config.sync.spec().averager != SECURE or config.node.role != "trainer":
        return
    options, degree = config.sync.options, config.network.degree
    members, which = max((options["group"], "a group"), (options["members"], "the run"))
    if degree < members - 1:
        raise UsageError(
            f"sync.strategy={config.sync.strategy}: {which} has {members} members, who all have to know each other, "
            f"and network.degree={degree} is enough for {degree + 1}",
            f"set network.degree={members - 1} or more on every node",
        )
    _check_room(config)


def check_enough(config: Config, nodes: int) -> None:
    """Raise UsageError where a swarm of `nodes` would sum nothing, since a group has more members."""
    if config.sync.spec().averager != SECURE:
        return
    group = config.sync.options["group"]
    if nodes < group:
        raise UsageError(
            f"sync.strategy={config.sync.strategy}: a group has {group} members, and there are {nodes} nodes, which "
            "would exchange nothing",
            f"start {group} or more",
        )


def check_draw(config: Config, private: PrivateMembership | None) -> None:
    """Raise UsageError where members are drawn into groups by their grants, and this node has none of its own."""
    if config.sync.spec().averager != SECURE or config.node.role != "trainer" or config.sync.options["draw"] != GRANTS:
        return
    if private is None:
        raise UsageError(
            "sync.draw=grants draws members by what an admin signed, and this node is in no private swarm",
            "create a private swarm, or leave sync.draw out on every node",
        )
    own = private.admission.own
    if own is None or placement(own) is None:
        raise UsageError(
            "sync.draw=grants: this node came by no invite of its own, and would be in no group",
            "ask an admin for an invite for one member (p2ptrain swarm invite)",
        )


def largest_of_sums(config: Config, numel: int) -> int:
    """Return the most bytes that a node publishes for a secure sum of a model of `numel` parameters; 0 where its
    strategy has none."""
    if config.sync.spec().averager != SECURE:
        return 0
    options = config.sync.options
    return largest_sum_bytes(numel, group=options["group"], bits=options["bits"], refresh=options["refresh"])


def _check_room(config: Config) -> None:
    privacy, clipping_range = config.privacy, config.sync.options["clipping_range"]
    if not privacy.on or privacy.find().unit != "update":
        return
    needed = DEVIATIONS * privacy.noise * privacy.clip
    if clipping_range < needed:
        raise UsageError(
            f"sync.clipping_range={clipping_range:g} cuts noise of standard deviation "
            f"{privacy.noise * privacy.clip:g} (privacy.noise times privacy.clip)",
            f"set sync.clipping_range={needed:g} or more on every node, or less noise",
        )
