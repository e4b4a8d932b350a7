"""A round of a strategy that meets: the node's group averages by exchange, and nobody fetches anybody's updates.

Every round is announced as ever, by a link of the node's chain, so that neighbours know how far it is and newcomers
where to begin; the link's payload is a mark that means nothing and that nobody fetches. Who enters the run fetches
snapshots of its neighbours' models instead (joining.py), and is of the company once it has announced itself.

Exchange and closing go on side by side, while the next phase trains, and no longer than a correction may be old, or
`LEAST_S`.
"""

from collections.abc import Mapping
from functools import partial

import trio

from gossip.allreduce.allreduce import Group
from gossip.core.api import RoundView
from gossip.core.ids import PeerId
from node.training.divergence import diverged, why_refused
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.sync import AllReduceStrategy, Reduced, RoundResult

MARK = b"\0"
MARK_CODEC = "met"
"""What a link announces where models are exchanged."""

GATHER_SHARE = 0.5
"""Of the time that an exchange may take, for the others' models to come. In the other half reduced parts travel, which
are no larger than what was gathered for them."""


LEAST_S = 2.0
"""The least that is given to an exchange, however short phases are: eight round trips (two to tell and two to pull,
twice) of a fourth of a second each between processes that share a core. Shorter phases are for trying things out: they
become as long as the exchange takes, and a correction may then be older than tau steps."""


async def meet(
    node: Node, meeting: AllReduceStrategy, phase: Phase, *, at_most_s: float
) -> tuple[RoundView, RoundResult]:
    """Announce the round, average with its company, and close it."""
    ends_at = trio.current_time() + max(at_most_s, LEAST_S)
    packed = await _pack(node, meeting, phase)
    await node.service.publish(round=node.round, codec=MARK_CODEC, payload=MARK, steps=phase.steps, tokens=phase.tokens)
    node.note_payload(len(packed))
    node.pace.took(node.peer_id, phase.steps)
    names = [PeerId(name) for name in meeting.peer_selection(node.service.members(node.round), round=node.round)]
    left_s = max(0.0, ends_at - trio.current_time())
    parts: list[Reduced] = []

    async def exchange() -> None:
        if len(names) > 1:
            parts.extend(await _exchange(node, meeting, names, packed, left_s))

    async def gather() -> None:
        with trio.move_on_after(left_s):
            await node.service.wait_for_round(node.round, names)
        node.gathered()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gather)
        nursery.start_soon(exchange)
        view = await node.service.close_round(node.round, at_most_s=left_s)
    async with node.strategy_lock:
        node.forget(node.estimates.forget_all_but(()))  # of models that were fetched to enter the run
        with node.pace.work():
            settle = partial(meeting.settle, phase.theta_d, names, parts, round=node.round)
            return view, await node.lane.offload(settle)


async def _pack(node: Node, meeting: AllReduceStrategy, phase: Phase) -> bytes:
    try:
        async with node.strategy_lock:
            with node.pace.work():
                return await node.lane.offload(lambda: meeting.pack(phase.theta_d))
    except ValueError as error:
        raise diverged(node, why_refused(error)) from error


async def _exchange(
    node: Node, meeting: AllReduceStrategy, names: list[PeerId], packed: bytes, seconds: float
) -> list[Reduced]:
    def reduce(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
        return meeting.reduce({str(peer): data for peer, data in vectors.items()})

    group = Group(members=tuple(names), round=node.round, size=len(packed))
    parts = await node.service.exchange(group, packed, reduce, gather_s=GATHER_SHARE * seconds, timeout_s=seconds)
    return [Reduced(part.owner, part.part, part.data) for part in parts]
