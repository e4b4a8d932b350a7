"""How a node comes into a run: at its start, late, after a crash, or after having been away.

The rule is one for all four: who is no more than `max_staleness` rounds behind the swarm goes on with what it has; who
is further behind takes the robust aggregate of the neighbours' models and carries on at their round.

Where the swarm is, is what more than `sync.f` neighbours and more than half of them say; who has said nothing yet
counts as one at round 0. A claim that only few make is waited out: others may come, or begin, and say the same.
Otherwise it is not followed; and what ends a start is only the word of most of *all* neighbours. Two exceptions are
told: where those few are all that there are and the node has never been in a swarm that withstood its liars, and where
the operator says so (`node.min_donors`). Nor are few donors trusted: a model is taken of 2 f + 1, or of all that there
are with the own model beside theirs. docs/decisions/0037 has the reasons.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from gossip.core.ids import PeerId
from gossip.updates.rounds import swarm_round
from node.events.event_types import Joined, WaitingFor, WarningEvent
from node.swarm.effective_manifest import more_rounds_hint
from node.system.errors import RunError
from node.training.node import Node

JOIN_PATIENCE_S = 60.0
"""How long a joiner waits for its neighbours' snapshots. A 100 MB model over a 20 Mbit/s link takes 40 s."""

NEWCOMERS_S = 10.0
"""Of that, how long for those who have come as it did and have no model yet: they may be waiting for this one. Of fifty
that come at once most have one member among their neighbours, or none."""

WAITED_OUT_S = 20.0
"""After so long a claim that few make is not followed. Chosen: twice NEWCOMERS_S, so that of many newcomers those
beside several members have begun, and are believed by the others. A liar can delay a start by as much."""

ALONE_S = 5.0
"""Who has met nobody else for so long is beside all that there are: hellos bring others' addresses within the first
second, and a dial that succeeds takes no longer than the handshakes of a slow link."""

MANIFEST_S = 5.0
"""How long a newcomer to a private swarm that seems to be over waits for a newer manifest, which may give the run more
rounds. Chosen: members tell each other of it as they connect, and fetch it in two round trips."""

LOOK_AGAIN_S = 0.1
"""Between two looks at who is there and says what: far below the time that anything here takes."""

TELL_S = 5.0
"""Between two words about who is waited for: a person sees that it goes on, and of a minute the log has twelve lines.
Chosen."""

Vote = Callable[[Node], int | None]
"""Where the swarm is, as enough of the neighbours say now; None: too few."""


async def enter(node: Node, *, resumed: bool) -> None:
    """Find the neighbours, then begin or go on. Raises RunError when peers were named and none of them answers."""
    await find_neighbours(node, resumed=resumed)
    vote = await _locate(node, resumed=resumed)
    if vote is None or not await rejoin(node, vote, entering=True):
        snapshot = await node.executor.offload(node.strategy.snapshot) if resumed else None
        await node.service.begin_epoch(epoch=node.next_epoch(), round=node.state.round, snapshot=snapshot)


async def _locate(node: Node, *, resumed: bool) -> Vote | None:
    """By whose word the swarm is ahead of this node; None when it is not. Waits while too few say so. Raises RunError
    when enough say that there is nothing left to train."""
    stale = node.config.network.max_staleness
    level = node.state.round + (stale if resumed else 0)
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
        if not ahead or waited_s >= WAITED_OUT_S:
            if ahead:
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
    """Whose word counts by now, the best first."""
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
    """By neighbour, the round that it has announced; None: nothing yet."""
    return {peer: it.round if it.gives else None for peer, it in node.service.neighbours().items()}


def _of_all(node: Node) -> int | None:
    """Of all neighbours, the silent ones counted as behind."""
    return node.service.swarm_round()


def _of_speakers(node: Node) -> int | None:
    """Of those who have said something: the others are newcomers, too, and wait as long."""
    spoken = {peer: at for peer, at in _said(node).items() if at is not None}
    return swarm_round(spoken, liars=node.config.sync.f)


def _of_few(node: Node) -> int | None:
    """Of all, though they may all be liars: nobody else is there."""
    return swarm_round(_said(node), liars=0)


def _of_trusted(node: Node) -> int | None:
    """Of as many as the operator trusts."""
    rounds = sorted((at for at in _said(node).values() if at is not None), reverse=True)
    least = node.config.node.min_donors or 1
    return rounds[least - 1] if len(rounds) >= least else None


async def await_more_rounds(node: Node) -> None:
    """A member of a private swarm that has trained all rounds asks the others, for `node.wait_timeout_s` at most,
    whether an admin has signed for more: it was not there to hear of it."""
    settings = node.config.node
    done, waited = node.config.train.rounds, f"{settings.wait_timeout_s:g} s"
    message = f"all {done} rounds are done: asking the other members for up to {waited} whether an admin has given more"
    node.journal.emit(WaitingFor(message=message))
    with trio.move_on_after(settings.wait_timeout_s):
        while node.state.finished:  # noqa: ASYNC110  # the manifest applies itself, in a callback
            await trio.sleep(LOOK_AGAIN_S)


async def find_neighbours(node: Node, *, resumed: bool) -> None:
    """Wait for those that are to be there at the start. RunError when peers were named and none of them answers."""
    settings = node.config.node
    found = await _wait(node, settings.wait_for, settings.wait_timeout_s)
    alone = found < min(settings.wait_for, 1) and not node.service.met_bootstrap
    if alone and node.config.network.peers and not resumed:
        raise _nobody(node)
    if found < settings.wait_for:
        message = f"going on with {found} of {settings.wait_for} awaited neighbours"
        node.journal.emit(WarningEvent(message=message))


async def _wait(node: Node, count: int, timeout_s: float) -> int:
    """Until so many neighbours are here, for so long at most; how many there are then. It is told meanwhile."""
    ends_at = trio.current_time() + timeout_s
    while (found := len(node.service.neighbours())) < count and (left := ends_at - trio.current_time()) > 0:
        message = f"waiting for {count} neighbour{'s' * (count != 1)}, {left:.0f} s at most: {found} here so far"
        node.journal.emit(WaitingFor(message=message))
        await node.service.wait_for_neighbours(count, min(TELL_S, left))
    return found


def _nobody(node: Node) -> RunError:
    peers, waited = ", ".join(node.config.network.peers), node.config.node.wait_timeout_s
    if node.refusals:
        return RunError(
            f"no neighbour after {waited:g} s: {peers} refused ({node.refusals[-1]})",
            hint="members need the same --task, model options, --seed and swarm name: run the line that they print",
        )
    return RunError(
        f"no peer answered within {waited:g} s: {peers}",
        hint="check the address, and that the other node runs and can be reached; to begin a swarm, leave out --peer "
        "and this --run-dir",
    )


async def rejoin(node: Node, vote: Vote = _of_all, *, entering: bool = False) -> bool:
    """Take the neighbours' model and round. False, with nothing changed, when too few of them give their model.
    `entering`: others may be about to come."""
    with fetching_models(node):
        return await _rejoin(node, vote, entering=entering)


async def _rejoin(node: Node, vote: Vote, *, entering: bool) -> bool:
    found = await _donors(node, vote, entering=entering)
    if found is None:
        message = "behind the swarm, but too few neighbours gave their model: going on with our own"
        node.journal.emit(WarningEvent(message=message))
        return False
    at, donors = found
    # What they announced they have trained: the round that they train now is the next one. (The last is never over.)
    entered = min(at + 1, node.state.rounds_at(at + 1) - 1)
    async with node.strategy_lock:
        theta_d = await node.executor.offload(lambda: node.strategy.adopt(donors))
        snapshot = await node.executor.offload(node.strategy.snapshot)
        await node.service.begin_epoch(epoch=node.next_epoch(), round=at, snapshot=snapshot)
    node.inner.replace(theta_d, at_step=entered * node.config.train.inner_steps)
    node.state.enter_round(entered)
    node.journal.emit(Joined(round=entered, donors=len(donors), peers=sorted(donors)))
    if len(donors) <= node.config.sync.f:
        there, f = len(node.service.neighbours()), node.config.sync.f
        message = f"took the model of {len(donors)} of {there} neighbours, of which f = {f} may lie"
        node.journal.emit(WarningEvent(message=f"{message}: nobody else is there to tell"))
    return True


@contextmanager
def fetching_models(node: Node) -> Iterator[None]:
    """Where nobody's updates are fetched, models are while there is one to choose."""
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


async def _donors(node: Node, vote: Vote, *, entering: bool) -> tuple[int, dict[str, int]] | None:
    """The swarm's round, and the neighbours whose models are here with how many rounds each is behind it, once these
    are enough; None when they do not come. The round moves on meanwhile, so it is asked for again until what arrived is
    not stale. A donor that leaves, or is left for what it offered, is not waited for any more from that moment on."""
    began, f = trio.current_time(), node.config.sync.f
    while True:
        waited_s = trio.current_time() - began
        at = vote(node)
        donors = {} if at is None else {str(peer): rounds for peer, rounds in node.service.staleness(at).items()}
        if at is not None and _enough(node, len(donors), at, waited_s, entering=entering):
            return at, donors
        if waited_s >= JOIN_PATIENCE_S:
            # With the own model beside theirs these, too, are as many as withstand the liars.
            whole = at is not None and f < len(donors) >= 2 * f and node.config.node.min_donors is None
            return (at, donors) if at is not None and whole else None
        if not any(at is not None for at in _said(node).values()):
            return None
        await trio.sleep(LOOK_AGAIN_S)


def _enough(node: Node, donors: int, at: int, waited_s: float, *, entering: bool) -> bool:
    """Whether so many donors are: 2 f + 1, or as many as the operator asks for; or all that stand where the swarm is,
    once nobody else is to be expected."""
    f, trusted = node.config.sync.f, node.config.node.min_donors
    if donors >= (2 * f + 1 if trusted is None else trusted):
        return True
    said = _said(node).values()
    silent = any(stands is None for stands in said)
    there = sum(stands is not None and stands >= at - node.config.network.max_staleness for stands in said)
    patience_s = (NEWCOMERS_S if silent else ALONE_S) if entering else 0.0
    return donors >= max(1, there) and waited_s >= patience_s
