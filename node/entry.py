"""How a node comes into a run: at its start, late, after a crash, or after having been away.

The rule is one for all four: who is no more than `max_staleness` rounds behind the neighbours goes on with what it
has; who is further behind takes the robust aggregate of the neighbours' models and carries on at their round. No
single donor is trusted: the aggregate is the one that every round uses.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from gossip.api import RoundView
from node.errors import RunError
from node.node import Node
from p2ptrain.sync import Meeting

JOIN_PATIENCE_S = 60.0
"""How long a joiner waits for its neighbours' snapshots. A 100 MB model over a 20 Mbit/s link takes 40 s."""

NEWCOMERS_S = 10.0
"""Of that, how long for those who have come as it did and have no model yet: they may be waiting for this one. Of fifty
that come at once most have one member among their neighbours, or none."""

LOOK_AGAIN_S = 0.5
"""Between two looks at whether enough donors are level: far below the time that catching up takes."""


async def enter(node: Node, *, resumed: bool) -> None:
    """Find the neighbours, then begin or go on. Raises RunError when peers were named and none of them answers."""
    await find_neighbours(node, resumed=resumed)
    node.look_around()
    trained, rounds = node.swarm_round + 1, node.config.train.rounds
    if not resumed and node.swarm_round > 0 and trained >= rounds:
        raise RunError(
            f"the swarm has trained {trained} rounds, and this node is to train {rounds} in all",
            hint="give the --rounds that the others run with; there is nothing left to join otherwise",
        )
    behind = node.behind > (node.config.network.max_staleness if resumed else 0)
    if not (behind and await rejoin(node)):
        snapshot = await node.lane.offload(node.strategy.snapshot) if resumed else None
        await node.service.begin_epoch(epoch=node.next_epoch(), round=node.round, snapshot=snapshot)


async def find_neighbours(node: Node, *, resumed: bool) -> None:
    """Wait for those that are to be there at the start. RunError when peers were named and none of them answers."""
    settings = node.config.node
    found = await node.service.wait_for_neighbours(settings.wait_for, settings.wait_timeout_s)
    alone = found < min(settings.wait_for, 1) and not node.service.met_bootstrap
    if alone and node.config.network.peers and not resumed:
        raise _nobody(node)
    if found < settings.wait_for:
        node.journal.emit("warning", message=f"going on with {found} of {settings.wait_for} awaited neighbours")


def _nobody(node: Node) -> RunError:
    peers, waited = ", ".join(node.config.network.peers), node.config.node.wait_timeout_s
    if node.refusals:
        return RunError(
            f"no neighbour after {waited:g} s: {peers} refused ({node.refusals[-1]})",
            hint="members need the same --task, model options, --seed and swarm name: run the line that they print",
        )
    return RunError(
        f"no peer answered within {waited:g} s: {peers}",
        hint="check the address, and that the other node runs and can be reached; leave --peer out to begin a swarm",
    )


async def rejoin(node: Node) -> bool:
    """Take the neighbours' model and round. False, with nothing changed, when none of them gives its model."""
    with fetching_models(node):
        return await _rejoin(node)


async def _rejoin(node: Node) -> bool:
    view = await _neighbours_now(node)
    members = {str(peer): rounds for peer, rounds in view.staleness.items()}
    if not members:
        node.journal.emit("warning", message="behind the neighbours, but none gave its model: going on with our own")
        return False
    # What they announced they have trained: the round that they train now is the next one. (The last is never over.)
    entered = min(view.round + 1, node.config.train.rounds - 1)
    async with node.strategy_lock:
        theta_d = await node.lane.offload(lambda: node.strategy.adopt(members))
        snapshot = await node.lane.offload(node.strategy.snapshot)
        await node.service.begin_epoch(epoch=node.next_epoch(), round=view.round, snapshot=snapshot)
    node.inner.replace(theta_d, at_step=entered * node.config.train.inner_steps)
    node.enter_round(entered)
    node.journal.emit("joined", round=entered, donors=len(members))
    return True


@contextmanager
def fetching_models(node: Node) -> Iterator[None]:
    """Where nobody's updates are fetched, models are while there is one to choose."""
    if not isinstance(node.strategy, Meeting):
        yield
        return
    node.service.fetch("models")
    try:
        yield
    finally:
        node.service.fetch("nothing")
        for peer in node.service.neighbours():
            node.strategy.forget(str(peer))


async def _neighbours_now(node: Node) -> RoundView:
    """The neighbours' newest state, once enough of it is here. Their round moves on meanwhile, so it is asked for
    again until what arrived is not stale, and of so many donors that the promise about f liars holds among them. A
    donor that leaves, or is left for what it offered, is not waited for any more from that moment on, and who has none
    to give not for long."""
    deadline = trio.current_time() + JOIN_PATIENCE_S
    patient_until = trio.current_time() + NEWCOMERS_S
    while True:
        left, patient = max(0.0, deadline - trio.current_time()), trio.current_time() < patient_until
        while_s = patient_until - trio.current_time() if patient else min(left, LOOK_AGAIN_S)
        found = await node.service.wait_for_tracked(_needed(node, patient=patient), while_s, of_those_here=patient)
        needed = _needed(node, patient=patient)
        if found >= needed or left == 0.0:
            view = await node.service.close_round(node.service.swarm_round() or node.round, at_most_s=left)
            if len(view.staleness) >= needed or left == 0.0:
                return view
            await trio.sleep(LOOK_AGAIN_S)


def _needed(node: Node, *, patient: bool) -> int:
    """Of how many neighbours a model is wanted: of those that are where the swarm is, since others that were away as
    well are no donors; and where one is `patient`, also of newcomers that have none to give yet."""
    level = (node.service.swarm_round() or 0) - node.config.network.max_staleness
    there = sum(it.round >= level if it.gives else patient for it in node.service.neighbours().values())
    return max(1, min(there, node.needed_members))
