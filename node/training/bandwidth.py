"""What the links carry, as a round sees it: what its payload may weigh, and how many steps hide the exchange.

**A payload may weigh what reaches a quorum in half of the closing time.**

A node publishes one chain for all its neighbours, who hold one and the same estimate of it: so there is one payload for
all, and one budget. It is that of the slowest link that the round's quorum waits for; who is slower than a quorum, or
pretends to be, makes nobody's payload coarser, and is served at its own pace.
"""

import math
from collections.abc import Iterable

from node.training.node import Node
from node.training.pace import Link

CLOSING_SHARE = 0.5
"""Of the time in which a round must close, for the payload's way. The other half is for what speeds do not show: its
announcement, encoding and decoding, neighbours that finish later, and a link that is slower than a moment ago."""


def quorum_speed(speeds: Iterable[float | None], quorum: float) -> float | None:
    """The slowest of the fastest `quorum` (a share) of the speeds that are known; None when none is."""
    known = sorted((speed for speed in speeds if speed is not None), reverse=True)
    return known[math.ceil(quorum * len(known) - 1e-9) - 1] if known else None


def sending_speed(node: Node) -> float | None:
    """Bytes a second that a quorum of the neighbours gets of us, beside each other; None before anything was sent."""
    speeds = node.service.link_speeds().values()
    return quorum_speed((speed.sent for speed in speeds), node.config.network.quorum)


def receiving_speed(node: Node) -> float | None:
    """Bytes a second that we get of each of a quorum of the neighbours, at the least; None before anything came."""
    speeds = node.service.link_speeds().values()
    return quorum_speed((speed.received for speed in speeds), node.config.network.quorum)


def plan_phase(node: Node, step_seconds: float) -> None:
    """Settle how many steps the next phase has, from what links and neighbours have shown."""
    known = [speed for speed in (sending_speed(node), receiving_speed(node)) if speed is not None]
    link = Link(
        bytes_per_s=min(known, default=None),
        payload_bytes=node.counts.newest_bytes,
        overlap_steps=node.config.node.overlap_steps or None,
    )
    node.pace.plan({str(peer) for peer in node.service.neighbours()}, step_seconds, link)


def give_budget(node: Node, step_seconds: float) -> None:
    """Tell the strategy what its next message may weigh. Until a link was measured, or while nobody fetches anything,
    what it was told before stands."""
    speed = sending_speed(node)
    closing_s = min(node.state.overlap_steps * step_seconds, node.config.network.initial_deadline_s)
    if speed is not None and closing_s > 0:
        node.state.link_speed = speed
        node.strategy.budget(speed, CLOSING_SHARE * closing_s)
