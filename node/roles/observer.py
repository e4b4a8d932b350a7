"""An observer: it follows the members' updates, regularly takes the swarm's model, and evaluates it.

It trains nothing and publishes nothing. It holds the same estimate of each neighbour as every neighbour does, and
checks it as a newcomer does (witnesses, signed chains). Of these it takes the robust aggregate that a newcomer begins
with, at the rounds at which trainers evaluate (`train.eval_every`). Its checkpoints have a trainer's format, so
everything that reads a run can read them.

Only members that are present have a vote on the swarm's round and its model. As everywhere, more than `sync.f` of them
have to agree, and more than half. A member that left with the last round done still counts where those present were
near the end as well. The observer waits when only few agree, as training/joining.py does.

Updates are followed all the time: ten compressed ones are smaller than the whole models of as many neighbours, and the
last one has arrived when everybody leaves. With group averaging no updates can be followed: models are fetched then.
"""

from dataclasses import dataclass
from typing import Final

import torch
import trio

from gossip.core.api import Update
from gossip.core.ids import PeerId
from gossip.updates.rounds import swarm_round
from node.config.schema import Config
from node.events.event_types import Joined, RoundClosed, WarningEvent
from node.training import round_report
from node.training.executors import SideWork
from node.training.joining import ALONE_S, JOIN_PATIENCE_S, LOOK_AGAIN_S, NEWCOMERS_S, fetching_models, find_neighbours
from node.training.node import Node
from node.training.sync_loop import follow

LOOK_S: Final = 0.1
"""Seconds between two checks of the swarm's round: a tenth of the shortest rounds that are useful over a network."""


def observes(config: Config) -> bool:
    """Return whether this node is an observer."""
    return config.node.role == "observer"


async def observe(node: Node, *, resumed: bool) -> None:
    """Observe until the state after the run's last round is taken, or no peer is left that has it. Raises RunError as
    `joining.enter` does."""
    observer = _Observer(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, node, observer.took, name="follow")
        await observer.run(resumed=resumed)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, kw_only=True)
class _State:
    """The swarm's state: the rounds that it has closed, and by member how many of those its model lacks."""

    done: int
    behind: dict[str, int]
    seconds: float
    """Seconds that it took to obtain."""

    @property
    def fresh(self) -> int:
        """Return how many members' models lack no round."""
        return sum(rounds == 0 for rounds in self.behind.values())


class _Observer:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._held: dict[str, int] = {}
        """The rounds behind each model held: those of neighbours, and of `_finished`."""
        self._finished: set[str] = set()
        """Peers that left at the end of the run with all its rounds done. At most as many as a node has neighbours."""
        self._heard = 0
        """The most rounds that enough of the neighbours had done."""
        self._doubtful_since: float | None = None
        """Since when models are held, but of too few neighbours."""
        self._kept = node.state.round
        node.estimates.counted = self._last_models

    def took(self, update: Update) -> None:
        """Note that a neighbour's update has been applied. Some departed peers may have been forgotten for it."""
        self._held[str(update.peer)] = 0 if update.kind == "genesis" else update.round + 1
        self._held = {peer: done for peer, done in self._held.items() if peer in self._node.estimates}

    def _last_models(self) -> set[str]:
        """Return the peers whose model is of the run's end: it may count although the peer has left."""
        return {peer for peer, done in self._held.items() if done == self._node.config.train.rounds}

    async def run(self, *, resumed: bool) -> None:
        """Observe the run to its end."""
        node = self._node
        if resumed:
            node.journal.training_began()
        await find_neighbours(node, resumed=resumed)
        while not node.state.finished and await self._due():
            if (state := await self._take()) is None:
                await trio.sleep(LOOK_AGAIN_S)
            else:
                await self._look_at(state)
        if not node.state.finished:
            message = (
                f"the others have left, and what is here is their model of round {node.state.round}, not of the last"
            )
            node.journal.emit(WarningEvent(message=message))
            await self._keep(last=True)
        node.journal.training_ended()

    async def _due(self) -> bool:
        """Wait for the next round at which the model is evaluated. Return False when the run is over and nobody is
        left."""
        node = self._node
        while True:
            announced, models = node.service.swarm_round(), self._models()
            done = self._vote(models)
            heard = max(self._heard, done or 0, 0 if announced is None else announced + 1)
            if heard > self._heard and node.journal.has_begun:
                node.service.round_closed()
            self._heard = heard
            here = announced is not None or done is not None
            if here and heard >= self._wanted:
                return True
            if not here and not node.service.neighbours() and heard >= node.config.train.rounds:
                return False
            await trio.sleep(LOOK_S)

    def _vote(self, models: dict[str, int]) -> int | None:
        """Return how many rounds enough of these models have done; None when too few say so, or not for long enough.

        A neighbour whose model has not arrived counts as at round 0, until it may be another observer or one that
        waits."""
        f, now = self._node.config.sync.f, trio.current_time()
        spoken = {PeerId(peer): done for peer, done in models.items()}
        silent = dict.fromkeys(self._node.service.neighbour_ids - spoken.keys())
        voted = swarm_round(silent | spoken, liars=f)
        if voted is not None or not spoken:
            self._doubtful_since = None
            return voted
        self._doubtful_since = now if self._doubtful_since is None else self._doubtful_since
        waited_s = now - self._doubtful_since
        if len(spoken) > f:
            return swarm_round(spoken, liars=f) if len(spoken) > 2 * f and waited_s >= NEWCOMERS_S else None
        few = swarm_round(spoken, liars=0)
        # A few liars that connect first must not end the run.
        over = few is not None and few >= self._node.config.train.rounds
        return few if waited_s >= (JOIN_PATIENCE_S if silent or over else ALONE_S) else None

    @property
    def _wanted(self) -> int:
        train = self._node.config.train
        if not self._node.journal.has_begun:
            return 0
        return min(train.rounds, (self._node.state.round // train.eval_every + 1) * train.eval_every)

    def _models(self) -> dict[str, int]:
        """Return the models that have a vote, with the rounds behind each: those of the neighbours, and of peers that
        left at the end."""
        node = self._node
        self._part_with({str(peer) for peer in node.service.neighbours()})
        # Nobody can have done more rounds than there are.
        known = [PeerId(peer) for peer, done in self._held.items() if done <= node.config.train.rounds]
        return {str(peer): self._held[peer] for peer in node.service.seated(known)}

    def _part_with(self, here: set[str]) -> None:
        """Keep only those departed peers that still count: their last round is done, those present are near it, and no
        update of theirs was refused."""
        node, gone = self._node, self._held.keys() - here - self._finished
        if not gone:
            return
        rounds, degree = node.config.train.rounds, node.config.network.degree
        near = self._heard >= rounds - node.config.network.max_staleness
        refused = {str(peer) for peer, _ in node.service.stats.rejected}
        for peer in sorted(gone):
            if near and self._held[peer] == rounds and peer not in refused and len(self._finished) < degree:
                self._finished.add(peer)
            else:
                del self._held[peer]

    def _members(self) -> tuple[int, dict[str, int]]:
        """Return how many rounds the swarm has done, and the models that are not stale then."""
        models = self._models()
        done = self._vote(models)
        least = None if done is None else done - self._node.config.network.max_staleness
        return done or 0, {peer: its for peer, its in models.items() if least is not None and its >= least}

    async def _take(self) -> _State | None:
        """Take the swarm's state; None when no peer has it now, or it is not newer than the one held."""
        node, began = self._node, trio.current_time()
        with fetching_models(node):
            done, members = await self._agreed()
            if not members or (done <= node.state.round and node.journal.has_begun):
                return None
            behind = {peer: max(0, done - its) for peer, its in members.items()}
            async with node.strategy_lock:
                theta_d = await node.executor.offload(lambda: node.strategy.adopt(behind), work=SideWork.AGGREGATE)
                self._forget_all_but({*members, *self._finished, *map(str, node.service.neighbours())})
        if node.averager.fetches != "updates":
            self._held.clear()
        node.inner.replace(theta_d, at_step=node.config.train.first_step(done))
        await node.executor.offload(node.inner.settle)
        return _State(done=done, behind=behind, seconds=trio.current_time() - began)

    async def _agreed(self) -> tuple[int, dict[str, int]]:
        """Wait until most neighbours' models are here, as many as the promise about f liars needs, and a quorum of them
        has reached the round that is due; or until that takes too long. Return the swarm's rounds and the members; no
        members where they are too few."""
        node, began = self._node, trio.current_time()
        # Models that are fetched whole are some rounds old: waiting for fresh ones would never end.
        quorum = 0.0 if node.averager.fetches != "updates" else node.config.network.quorum
        while True:
            (done, members), here = self._members(), sum(it.gives for it in node.service.neighbours().values())
            level = sum(its >= self._wanted for its in members.values())
            waited_s = trio.current_time() - began
            over = waited_s >= JOIN_PATIENCE_S or not here
            enough = len(members) >= max(1, min(here, max(node.watch.needed_members, here // 2 + 1)))
            if not node.journal.has_begun and len(members) < node.watch.needed_members:
                enough = enough and waited_s >= ALONE_S  # the first to connect may be the liars
            if enough and (over or level >= quorum * len(members)):
                return done, members
            if over:
                return 0, {}
            await trio.sleep(LOOK_S)

    def _forget_all_but(self, kept: set[str]) -> None:
        node = self._node
        node.forget(node.estimates.forget_all_but(kept))
        self._held = {peer: done for peer, done in self._held.items() if peer in kept}

    async def _look_at(self, state: _State) -> None:
        node, begins = self._node, not self._node.journal.has_begun
        if begins:
            node.journal.training_began()
            peers = sorted(state.behind)
            node.journal.emit(Joined(round=state.done, donors=len(peers), peers=peers))
        node.state.neighbours = len(node.service.neighbours())
        node.watch.check_margin(len(state.behind))
        node.journal.emit(_round(node, state))
        node.state.enter_round(state.done)
        await round_report.evaluate(node, rounds=state.done)
        every = node.config.node.checkpoint_every
        due = every and state.done // every > self._kept // every
        if begins or node.state.finished or node.state.owes_checkpoint or due:
            await self._keep(last=node.state.finished)

    async def _keep(self, *, last: bool) -> None:
        node = self._node
        if node.journal.has_begun:
            self._kept, state = node.state.round, node.inner.trainer.state_view()  # nobody trains
            theta_d = state["parameters"]
            assert isinstance(theta_d, torch.Tensor), "a model is a vector"
            await round_report.save(node, theta_d, state, next_round=node.state.round, last=last)


def _round(node: Node, state: _State) -> RoundClosed:
    """Return the event `round` without the fields that only training gives."""
    stats, wire = node.service.stats, node.service.wire
    return RoundClosed(
        round=state.done,
        rounds=node.config.train.rounds,
        neighbours=node.state.neighbours,
        members=len(state.behind),
        fresh=state.fresh,
        closed_by="quorum" if state.fresh >= node.config.network.quorum * len(state.behind) else "deadline",
        payload_bytes_sent=stats.payload_bytes_sent,
        payload_bytes_received=stats.payload_bytes_received,
        snapshot_bytes_sent=stats.snapshot_bytes_sent,
        snapshot_bytes_received=stats.snapshot_bytes_received,
        accepted=stats.updates_accepted,
        rejected=sum(stats.rejected_by_reason.values()),
        rejected_by_reason={str(reason): count for reason, count in stats.rejected_by_reason.items()},
        robust_margin=node.watch.robust_margin(len(state.behind)),
        round_s=node.journal.lap(),
        collect_s=state.seconds,
        staleness=state.behind,
        peers_known=node.service.peers_known,
        rss_bytes=node.use.rss_bytes(),
        bytes_sent=wire.sent,
        bytes_received=wire.received,
    )
