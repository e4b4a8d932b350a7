"""How a node joins a run: at its start, late, after a crash, or after an absence.

One rule covers all four. A node that is at most `max_staleness` rounds behind the swarm continues with its own model. A
node further behind takes the robust aggregate of the neighbours' models and continues at their round.

The swarm's round is what more than `sync.f` neighbours and more than half of them announce; a neighbour that has
announced nothing yet counts as one at round 0. When only few claim a later round, the node waits: others may arrive, or
begin, and announce the same. If none do, the claim is not followed; and only a majority of *all* neighbours can end a
start. There are two exceptions, which are reported: those few are the only neighbours, and the node has never been in a
swarm that withstood its liars; or the operator allows it (`node.min_donors`). Few donors are not trusted either: a
model is taken from 2 f + 1, or from all neighbours with the node's own model beside theirs. docs/decisions/0037 has the
reasons.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from gossip.core.ids import PeerId
from gossip.updates.rounds import swarm_round
from node.events.event_types import Joined, WaitingFor, WarningEvent
from node.swarm.effective_manifest import more_rounds_hint
from node.system import free_memory
from node.system.errors import RunError
from node.training.executors import SideWork
from node.training.node import Node
from node.training.region_joining import Beginning, bear_out, join_regions

JOIN_PATIENCE_S = 60.0
"""How long a joiner waits for its neighbours' snapshots. A 100 MB model over a 20 Mbit/s link takes 40 s."""

NEWCOMERS_S = 10.0
"""How much of that it waits for other newcomers, which have no model yet: they may be waiting for this node. Of fifty
that join at once most have one member among their neighbours, or none."""

WAITED_OUT_S = 20.0
"""How long the node waits before it gives up a claim that few make. Chosen: twice NEWCOMERS_S. By then those of many
newcomers that have several member neighbours have begun, and the others believe them. A liar can delay a start by as
much."""

ALONE_S = 5.0
"""A node that meets nobody new for so long has met all peers there are: hellos bring others' addresses within the first
second, and a dial that succeeds takes no longer than the handshakes of a slow link."""

MANIFEST_S = 5.0
"""How long a newcomer to a private swarm that seems to be over waits for a newer manifest, which may give the run more
rounds. Chosen: members announce it to each other as they connect, and fetch it in two round trips."""

MEETING_S = 1.0
"""Seconds between two looks at who has come, and who has left again. Chosen: a neighbour stays for a round at least."""

LOOK_AGAIN_S = 0.1
"""Seconds between two checks of the neighbours and their rounds: far below the time that anything here takes."""

TELL_S = 5.0
"""Seconds between two messages while waiting: a person sees that the node still waits, and a minute adds twelve lines
to the log. Chosen."""

Vote = Callable[[Node], int | None]
"""Returns the swarm's round, as enough of the neighbours announce it now; None when too few do."""


async def enter(node: Node, *, resumed: bool) -> None:
    """Find the neighbours, then begin or resume. Raises RunError when peers were named and none of them answers."""
    await find_neighbours(node, resumed=resumed)
    begins = Beginning.NEIGHBOURS
    for again in (False, True):
        if begins is Beginning.NEIGHBOURS:
            vote = await _locate(node, resumed=resumed)
            if vote is not None and await rejoin(node, vote, entering_above=_level(node, resumed=resumed)):
                return
            begins = Beginning.ALONE if resumed else await join_regions(node, neighbours_first=not again)
    if begins is not Beginning.OTHERS:
        snapshot = await node.executor.offload(node.snapshots.cut) if resumed else None
        await node.service.begin_epoch(epoch=node.next_epoch(), round=node.state.round, snapshot=snapshot)


def _level(node: Node, *, resumed: bool) -> int:
    """Return the round up to which a swarm is not ahead of this node."""
    return node.state.round + (node.config.network.max_staleness if resumed else 0)


async def _locate(node: Node, *, resumed: bool) -> Vote | None:
    """Return the vote by which the swarm is ahead of this node; None when it is not ahead. Waits while too few say so.
    Raises RunError when enough say that there is nothing left to train."""
    stale, level = node.config.network.max_staleness, _level(node, resumed=resumed)
    began, told = trio.current_time(), False
    while True:
        node.state.look_around(node.service.swarm_round())
        waited_s = trio.current_time() - began
        ahead = [at for at in _said(node).values() if at is not None and at > node.state.round + stale]
        vote = next((vote for vote in _votes(node, waited_s) if vote(node) is not None), None)
        at = None if vote is None else vote(node)
        if at is not None and at <= level:
            return None
        if at is not None and (resumed or at + 1 < node.state.rounds_at(at + 1)):
            return vote
        if at is not None and vote in (_of_all, _of_trusted) and not (node.state.private and waited_s < MANIFEST_S):
            raise RunError(
                f"the swarm has trained {at + 1} rounds, "
                f"and this node is to train {node.state.rounds_at(at + 1)} in all",
                hint=more_rounds_hint(at + 1)
                if node.state.private
                else "give the --rounds that the others run with; there is nothing left to join otherwise",
            )
        others = not resumed and waited_s >= ALONE_S and bear_out(node, ahead)
        if told and not resumed and not node.service.neighbours():
            # They may be back, as after a restart; to begin now would be another run beside theirs.
            left = "the neighbours that knew of a later round have left before they gave their model"
            node.journal.emit(WarningEvent(message=left))
            await find_neighbours(node, resumed=resumed)
            began, told = trio.current_time(), False
            continue
        if not ahead or others or waited_s >= WAITED_OUT_S:
            if ahead and not others:
                few = f"{_few_say(node, ahead)}: {_TOO_FEW.format(f=node.config.sync.f)}"
                node.journal.emit(WarningEvent(message=few))
            return None
        if not told:
            told = True
            message = f"{_few_say(node, ahead)}: waiting for others to say where it is"
            node.journal.emit(WaitingFor(message=message))
        await trio.sleep(LOOK_AGAIN_S)


_TOO_FEW = (
    "too few to be believed, as f = {f} of the neighbours may lie; training goes on with the own model "
    "(--set node.min_donors=1 takes the word of one)"
)


def _few_say(node: Node, ahead: list[int]) -> str:
    there = len(node.service.neighbours())
    return f"{len(ahead)} of {there} neighbours say that the swarm is at round {min(ahead) + 1} or later"


def _votes(node: Node, waited_s: float) -> Iterator[Vote]:
    """Yield the votes that count after `waited_s` seconds, the best first."""
    said, f = _said(node), node.config.sync.f
    speakers = sum(at is not None for at in said.values())
    yield _of_all
    if node.config.node.min_donors is not None:
        yield _of_trusted
    if waited_s >= NEWCOMERS_S and speakers > 2 * f:
        yield _of_speakers
    if waited_s >= ALONE_S and speakers == len(said) <= f and not node.service.outvoted_liars:
        yield _of_few


def _said(node: Node) -> dict[PeerId, int | None]:
    """Return the round that each neighbour has announced; None for one that has announced nothing yet."""
    return {peer: it.round if it.gives else None for peer, it in node.service.neighbours().items()}


def _of_all(node: Node) -> int | None:
    """Vote of all neighbours, the silent ones counted as behind."""
    return node.service.swarm_round()


def _of_speakers(node: Node) -> int | None:
    """Vote of the neighbours that have announced a round: the others are newcomers too, and wait as long."""
    spoken = {peer: at for peer, at in _said(node).items() if at is not None}
    return swarm_round(spoken, liars=node.config.sync.f)


def _of_few(node: Node) -> int | None:
    """Vote of all neighbours though they may all be liars: there is nobody else."""
    return swarm_round(_said(node), liars=0)


def _of_trusted(node: Node) -> int | None:
    """Vote of as many neighbours as the operator trusts (`node.min_donors`)."""
    rounds = sorted((at for at in _said(node).values() if at is not None), reverse=True)
    least = node.config.node.min_donors or 1
    return rounds[least - 1] if len(rounds) >= least else None


async def await_more_rounds(node: Node) -> None:
    """Ask the other members of a private swarm whether an admin has signed for more rounds, for `node.wait_timeout_s`
    at most. This node has trained all rounds that it knows of, and was away when more may have been announced."""
    settings = node.config.node
    done, waited = node.config.train.rounds, f"{settings.wait_timeout_s:g} s"
    message = f"all {done} rounds are done: asking the other members for up to {waited} whether an admin has given more"
    node.journal.emit(WaitingFor(message=message))
    with trio.move_on_after(settings.wait_timeout_s):
        while node.state.finished:  # noqa: ASYNC110  # the manifest applies itself, in a callback
            await trio.sleep(LOOK_AGAIN_S)


async def find_neighbours(node: Node, *, resumed: bool) -> None:
    """Wait for the neighbours expected at the start. Raises RunError when peers were named and none of them answers. In
    the first node of a region members of others do, and are no neighbours."""
    settings = node.config.node
    found, met = await _wait(node, settings.wait_for, settings.wait_timeout_s)
    alone = found < min(settings.wait_for, 1) and not (node.service.met_bootstrap or node.service.bridge_ids)
    if alone and node.config.network.peers and not resumed:
        raise _all_left(met) if met else _nobody(node)
    if found < settings.wait_for:
        message = f"going on with {found} of {settings.wait_for} awaited neighbours"
        node.journal.emit(WarningEvent(message=message))


async def _wait(node: Node, count: int, timeout_s: float) -> tuple[int, int]:
    """Wait for `count` neighbours, at most `timeout_s` seconds, and return how many there are, and how many there ever
    were. Reports progress. Where the swarm is training already and nobody new has come for ALONE_S, there is nobody
    else to wait for: a swarm of short rounds would be over meanwhile."""
    newest_at = tell_at = trio.current_time()
    ends_at = newest_at + timeout_s
    met = set(node.service.neighbours())
    while (found := len(node.service.neighbours())) < count and (left := ends_at - trio.current_time()) > 0:
        if trio.current_time() >= tell_at:
            tell_at += TELL_S
            of = f" of region {node.config.node.region}" if node.config.node.region else ""
            message = (
                f"waiting for {count} neighbour{'s' * (count != 1)}{of}, {left:.0f} s at most: {found} here so far"
            )
            node.journal.emit(WaitingFor(message=message))
        await node.service.wait_for_neighbours(count, min(MEETING_S, left))
        if new := node.service.neighbours().keys() - met:
            met |= new
            newest_at = trio.current_time()
        elif trio.current_time() - newest_at >= ALONE_S and (node.service.swarm_round() or 0) > 0:
            break
    return len(node.service.neighbours()), len(met)


def _all_left(met: int) -> RunError:
    return RunError(
        f"{met} peer{'s' * (met != 1)} answered, and left before enough others came",
        hint="the swarm may be over; if not, give more --peer addresses, or wait for fewer neighbours (node.wait_for)",
    )


def _nobody(node: Node) -> RunError:
    peers, waited = ", ".join(node.config.network.peers), node.config.node.wait_timeout_s
    if node.refusals:
        return RunError(
            f"no neighbour after {waited:g} s: {peers} refused ({node.refusals[-1]})",
            hint="members need the same --task, model options, sync.strategy with its options, --seed and swarm name: "
            "run the line that they print; with p2ptrain.join, the same initial model and frozen parameters",
        )
    return RunError(
        f"no peer answered within {waited:g} s: {peers}",
        hint="check the address, and that the other node runs and can be reached; one that refused this node again and "
        "again, for other settings, answers its key no more for an hour: another --run-dir has another key; to begin a "
        "swarm, leave out --peer and this --run-dir",
    )


async def rejoin(node: Node, vote: Vote = _of_all, *, entering_above: int | None = None, donors: int = 1) -> bool:
    """Take the neighbours' model and round. Return False, with nothing changed, when too few of them give their model.
    `entering_above`: others may be about to connect, and the swarm must still be beyond this round: others may be about
    to begin, too. `donors`: so many at the least, or all neighbours."""
    with fetching_models(node):
        return await _rejoin(node, vote, entering_above, least=donors)


def _next_epoch(node: Node, *, starts: bool) -> int | None:
    """Return the epoch of the next chain; None, and say so once, where the disk does not take it and the node has work
    to lose. Raises RunError where it only `starts`."""
    try:
        epoch = node.next_epoch()
    except RunError as error:
        if starts:
            raise
        if not node.state.owes_epoch:
            message = f"{error.message}: this node cannot take the others' model, and goes on with its own until it can"
            node.journal.emit(WarningEvent(message=message))
        node.state.owes_epoch = True
        return None
    node.state.owes_epoch = False
    return epoch


async def _rejoin(node: Node, vote: Vote, entering_above: int | None, *, least: int) -> bool:
    epoch = _next_epoch(node, starts=entering_above is not None)
    if epoch is None:
        return False
    found = await _donors(node, vote, entering_above, least=least)
    if found is None and not _is_beyond(entering_above, vote(node)):
        return False  # those that have begun meanwhile are where this node is
    if found is None:
        message = "the swarm has another model, but too few neighbours gave theirs: going on with our own"
        node.journal.emit(WarningEvent(message=message))
        return False
    at, donors = found
    # They have trained the round that they announced, and train the next one now. (The last is never over.)
    entered = min(at + 1, node.state.rounds_at(at + 1) - 1)
    await node.executor.offload(free_memory.trim)  # what the downloads left
    async with node.strategy_lock:
        theta_d = await node.executor.offload(lambda: node.strategy.adopt(donors), work=SideWork.AGGREGATE)
        snapshot = await node.executor.offload(node.snapshots.cut)
        await node.service.begin_epoch(epoch=epoch, round=at, snapshot=snapshot)
    node.inner.replace(theta_d, at_step=node.config.train.first_step(entered))
    node.state.enter_round(entered)
    node.journal.emit(Joined(round=entered, donors=len(donors), peers=sorted(donors)))
    node.watch.note_joined(entered)
    if len(donors) <= node.config.sync.f:
        there, f = len(node.service.neighbours()), node.config.sync.f
        message = f"took the model of {len(donors)} of {there} neighbours, of which f = {f} may lie"
        node.journal.emit(WarningEvent(message=f"{message}: no other neighbour could confirm it"))
    return True


@contextmanager
def fetching_models(node: Node) -> Iterator[None]:
    """Fetch neighbours' models inside this block where the averager does not fetch their updates."""
    if node.averager.fetches == "updates":
        yield
        return
    node.service.fetch("models")
    try:
        yield
    finally:
        node.service.fetch("nothing")
        for peer in node.service.neighbours():
            node.strategy.forget(str(peer))


def _is_beyond(level: int | None, at: int | None) -> bool:
    return level is None or at is None or at > level


async def _donors(
    node: Node, vote: Vote, entering_above: int | None, *, least: int
) -> tuple[int, dict[str, int]] | None:
    """Wait for enough donors. Return the swarm's round, and for each neighbour whose model has arrived how many rounds
    it is behind; None when too few arrive. The round advances meanwhile, so it is asked again until the models are not
    stale, and ends where the swarm is no longer beyond `entering_above`. A donor that leaves, or is dropped for what it
    offered, is no longer waited for."""
    began, f, entering = trio.current_time(), node.config.sync.f, entering_above is not None
    while True:
        waited_s = trio.current_time() - began
        at = vote(node)
        if not _is_beyond(entering_above, at):
            return None
        donors = {} if at is None else _models_at(node, at)
        if at is not None and _enough(node, len(donors), at, waited_s, entering=entering, least=least):
            return at, donors
        if waited_s >= JOIN_PATIENCE_S:
            # With the node's own model beside theirs, these are also enough to withstand the liars.
            whole = at is not None and f < len(donors) >= 2 * f and node.config.node.min_donors is None
            return (at, donors) if at is not None and whole else None
        if not any(at is not None for at in _said(node).values()):
            return None
        await trio.sleep(LOOK_AGAIN_S)


def _models_at(node: Node, at: int) -> dict[str, int]:
    """Return by how many rounds each donor for this round is behind. Where those that stand there may all be liars,
    others who are ahead are donors too, however far: two that say later rounds than all others, each of another one,
    bear each other out, and neither alone is enough."""
    there = node.service.staleness(at)
    if len(there) <= node.config.sync.f:
        there = node.service.donors(at)
    return {str(peer): rounds for peer, rounds in there.items()}


def _enough(node: Node, donors: int, at: int, waited_s: float, *, entering: bool, least: int) -> bool:
    """Return whether so many donors are enough: 2 f + 1 and `least`, or as many as the operator asks for; or all
    neighbours at the swarm's round, once nobody else is expected."""
    f, trusted = node.config.sync.f, node.config.node.min_donors
    if donors >= (max(2 * f + 1, least) if trusted is None else trusted):
        return True
    said = _said(node).values()
    silent = any(stands is None for stands in said)
    there = sum(stands is not None and stands >= at - node.config.network.max_staleness for stands in said)
    patience_s = (NEWCOMERS_S if silent else ALONE_S) if entering else 0.0
    return donors >= max(1, there) and waited_s >= patience_s
