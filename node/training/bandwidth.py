"""Budgets from measured link speeds: how large a round's payload may be, and how many steps hide the exchange.

**A payload may be as large as what reaches a quorum in half of the closing time.**

A node publishes one chain for all its neighbours, and they all hold the same estimate of it. So there is one payload
for all, and one budget: that of the slowest link that the round's quorum waits for. A neighbour that is slower than a
quorum, or pretends to be, makes nobody's payload coarser, and is served at its own pace.
"""

import math
from collections.abc import Iterable

from node.training.node import Node
from node.training.pace import Link

CLOSING_SHARE = 0.5
"""Share of the time in which a round must close that is left for the payload's transfer. The other half is for what
speeds do not show: its announcement, encoding and decoding, neighbours that finish later, and a link that has become
slower."""


def quorum_speed(speeds: Iterable[float | None], quorum: float) -> float | None:
    """Return the slowest speed among the fastest `quorum` (a share) of the known ones; None when none is known."""
    known = sorted((speed for speed in speeds if speed is not None), reverse=True)
    return known[math.ceil(quorum * len(known) - 1e-9) - 1] if known else None


def sending_speed(node: Node) -> float | None:
    """Return the bytes a second that each of a quorum of neighbours receives from us, all at the same time; None before
    anything was sent."""
    speeds = node.service.link_speeds().values()
    return quorum_speed((speed.sent for speed in speeds), node.config.network.quorum)


def receiving_speed(node: Node) -> float | None:
    """Return the bytes a second that we receive at least from each of a quorum of neighbours; None before anything
    came."""
    speeds = node.service.link_speeds().values()
    return quorum_speed((speed.received for speed in speeds), node.config.network.quorum)


def plan_phase(node: Node, step_seconds: float) -> None:
    """Set how many steps the next phase has, from the measured links and the neighbours' paces."""
    known = [speed for speed in (sending_speed(node), receiving_speed(node)) if speed is not None]
    link = Link(
        bytes_per_s=min(known, default=None),
        payload_bytes=node.counts.newest_bytes,
        overlap_steps=node.config.node.overlap_steps or None,
    )
    node.pace.plan({str(peer) for peer in node.service.neighbours()}, step_seconds, link)


def hidden_seconds(node: Node, step_seconds: float) -> float:
    """Return the seconds of a closing that refinements may take: as much as a payload, while the next steps run; where
    training waits for the closing, as long as the exchange of the updates takes anyway."""
    if not node.config.node.overlap:
        return node.service.exchange_seconds() or 0.0
    return CLOSING_SHARE * min(node.state.overlap_steps * step_seconds, node.config.network.initial_deadline_s)


def give_budget(node: Node, step_seconds: float) -> None:
    """Tell the strategy how large its next message may be. Until a link was measured, or while nobody fetches anything,
    the budget stays as it was."""
    speed = sending_speed(node)
    closing_s = min(node.state.overlap_steps * step_seconds, node.config.network.initial_deadline_s)
    if speed is not None and closing_s > 0:
        node.state.link_speed = speed
        node.strategy.budget(speed, CLOSING_SHARE * closing_s)
