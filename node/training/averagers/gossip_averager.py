"""Gossip averaging: publish one update for all neighbours, and aggregate the models tracked from their updates."""

from typing import Final

from gossip.core.api import Fetch, RoundView
from node.selection.chooser import Chooser
from node.training.bandwidth import give_budget, hidden_seconds
from node.training.choosing import choose_next, chosen_event, distances
from node.training.divergence import diverged, why_refused
from node.training.executors import SideWork
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.protocols import implements
from p2ptrain.sync import Message, RoundResult, SyncStrategy
from p2ptrain.sync.base import InPlace, Layered
from p2ptrain.sync.mixing import metropolis_shares


class GossipAverager:
    """Averager of every `SyncStrategy`. Neighbours' updates arrive at any time, in a task beside it
    (sync_loop.follow)."""

    fetches: Final[Fetch] = "updates"
    waits_for_group: Final = False

    def __init__(self, strategy: SyncStrategy) -> None:
        self._strategy = strategy

    def least_s(self, node: Node) -> float:
        """Return how long recent updates took to reach a quorum: a shorter wait would correct by nobody's update."""
        return node.service.exchange_patience(node.state.round)

    async def close(self, node: Node, phase: Phase, *, at_most_s: float) -> tuple[RoundView, RoundResult]:
        """Publish, wait for a quorum or the deadline, and aggregate over the members of the round."""
        with node.closing_times.measure("publish"):
            await self._publish(node, phase)
        if node.chooser is not None:
            await self._choose(node, node.chooser)
        with node.closing_times.measure("collect"):
            if self._layers(node):
                node.service.begin_layers(hidden_seconds(node, phase.step_seconds))
            view = await node.service.close_round(node.state.round, at_most_s=at_most_s)
            if self._layers(node):
                await node.service.finish_layers(wait=node.config.node.overlap)
        with node.closing_times.measure("aggregate"):
            result = await self._aggregate(node, phase, view)
            if node.regions is not None:
                result = await node.regions.close(node, result)
        return view, result

    def _layers(self, node: Node) -> Layered | None:
        """The strategy, where the run's updates have refinements."""
        strategy = self._strategy
        return strategy if node.config.sync.layers and implements(strategy, Layered) else None

    async def _choose(self, node: Node, chooser: Chooser) -> None:
        """Choose whose updates of this round are fetched first, by the models that are here before it closes."""
        live = [str(peer) for peer in node.service.staleness(node.state.round)]
        if chooser.policy.measures:
            async with node.strategy_lock:
                chooser.measured(await node.compute(lambda: distances(self._strategy, live)))
        if choose_next(chooser, node.service, live, node.counts.newest_bytes):
            node.journal.emit(chosen_event(node.state.round, chooser.newest))

    async def _publish(self, node: Node, phase: Phase) -> None:
        """Compress this round's parameters against the tracked estimate, and publish the result."""
        async with node.strategy_lock:
            give_budget(node, phase.step_seconds)
            with node.pace.work():
                message = await self._encode(node, phase)
            layered = self._layers(node)
            await node.service.publish(
                round=node.state.round,
                codec=message.codec,
                payload=message.payload,
                steps=phase.steps,
                tokens=phase.tokens,
                state=lambda: node.compute(node.snapshots.view),
                layers=layered.layers if layered else (),
            )
        node.counts.note_published(len(message.payload))
        node.pace.took(node.peer_id, phase.steps)

    async def _encode(self, node: Node, phase: Phase) -> Message:
        try:
            return await node.compute(
                lambda: self._strategy.encode(phase.theta_d, round=node.state.round),
                node.service.trained,
                SideWork.ENCODE,
            )
        except ValueError as error:
            raise diverged(node, why_refused(error)) from error

    async def _aggregate(self, node: Node, phase: Phase, view: RoundView) -> RoundResult:
        """Aggregate over the members of the closed round and take the outer step. The phase's parameters are used up:
        they may be the correction afterwards."""
        staleness = {str(peer): rounds for peer, rounds in view.staleness.items()}
        shares = metropolis_shares(view.degree, {str(peer): degree for peer, degree in view.degrees.items()})
        if view.arriving and len(staleness) + 1 < node.watch.needed_members:
            staleness = {}  # others are about to arrive: until then the few members here may all be liars
        async with node.strategy_lock:
            # A peer that left after the round was closed still counts in it: at the end all leave within one round.
            node.forget(node.estimates.forget_departed(besides=staleness))
            if layered := self._layers(node):
                layered.refined_by({str(peer): layers for peer, layers in node.service.layers_sent().items()})
            with node.pace.work():
                strategy = self._strategy
                close = strategy.aggregate_ if implements(strategy, InPlace) else strategy.aggregate
                return await node.compute(
                    lambda: close(phase.theta_d, staleness, round=node.state.round, shares=shares),
                    work=SideWork.AGGREGATE,
                )
