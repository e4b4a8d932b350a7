"""All-reduce averaging: each member of a group reduces one part of all their models. No node tracks another's model.

Every round is announced by an update header of the node's hash chain, as in gossip averaging. Neighbours learn from it
how far the node is, and newcomers where to begin. The header's payload is a mark without meaning, which nobody fetches.
A newcomer fetches snapshots of its neighbours' models instead (joining.py), and belongs to a group once it has
announced itself.

The exchange and the closing of the round go on side by side, while the next phase trains.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import trio

from gossip.allreduce.allreduce import Group, ReducedPart
from gossip.core.api import Fetch, RoundView
from gossip.core.ids import PeerId
from node.training.averagers.group_round import MARK, MARK_CODEC, announce, finished, packed
from node.training.executors import SideWork
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.sync import AllReduceStrategy, Reduced, RoundResult, SyncStrategy
from p2ptrain.sync.base import InPlaceAllReduce, TakesInnerState, TakesMissedParts

GATHER_SHARE = 0.5
"""Share of an exchange's time in which the others' models may arrive. In the other half the reduced parts travel, which
are no larger than what was gathered for them."""


LEAST_S = 2.0
"""Seconds that an exchange gets at least, however short phases are: eight round trips (two to announce and two to pull,
twice) of a quarter of a second each between processes that share a core. Shorter phases are for trials: they become as
long as the exchange takes, and a correction may then be older than tau steps."""


MISSED_S = 1.0
"""Seconds in which a part of the last exchange may still come before the next one begins. Chosen: half of LEAST_S. It
was announced a phase ago, and is pulled in two round trips."""


class AllReduceAverager:
    """Averager of an `AllReduceStrategy`. Raises ValueError for any other strategy."""

    fetches: Final[Fetch] = "nothing"
    waits_for_group: Final = True

    def __init__(self, strategy: SyncStrategy) -> None:
        if not isinstance(strategy, AllReduceStrategy):
            raise ValueError(f"the strategy {strategy.name!r} names the averager allreduce, and has no parts to reduce")
        self._strategy = strategy

    def least_s(self, node: Node) -> float:
        """Return `LEAST_S`: nobody fetches updates, so there is nothing to time."""
        return LEAST_S

    async def close(self, node: Node, phase: Phase, *, at_most_s: float) -> tuple[RoundView, RoundResult]:
        """Announce the round, average with its group, and close it."""
        with node.closing_times.measure("collect"):
            return await self._close(node, phase, trio.current_time() + at_most_s)

    async def _close(self, node: Node, phase: Phase, ends_at: float) -> tuple[RoundView, RoundResult]:
        await self._take_missed(node)
        strategy = self._strategy
        vector = await packed(node, partial(self._packed, phase, node.state.round))
        await announce(node, phase, MARK, codec=MARK_CODEC, size=len(vector))
        names = [
            PeerId(name)
            for name in strategy.peer_selection(node.service.members(node.state.round), round=node.state.round)
        ]
        left_s = max(0.0, ends_at - trio.current_time())
        parts: list[Reduced] = []

        async def exchange() -> None:
            if len(names) > 1:
                parts.extend(await self._exchange(node, names, vector, left_s))

        async def gather() -> None:
            with trio.move_on_after(left_s):
                await node.service.wait_for_round(node.state.round, names)
            node.state.gathered()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather)
            nursery.start_soon(exchange)
            view = await node.service.close_round(node.state.round, at_most_s=left_s)
        close = strategy.finish_ if isinstance(strategy, InPlaceAllReduce) else strategy.finish
        return view, await finished(node, partial(close, phase.theta_d, names, parts, round=node.state.round))

    async def _take_missed(self, node: Node) -> None:
        """Take what the last exchange left out for want of time."""
        strategy = self._strategy
        if not isinstance(strategy, TakesMissedParts):
            return
        missed = await node.service.missed_parts(timeout_s=MISSED_S)
        if missed:
            async with node.strategy_lock:
                with node.pace.work():
                    await node.executor.offload(partial(strategy.take_missed, _reduced(missed)), work=SideWork.DECODE)

    def _packed(self, phase: Phase, round: int) -> bytes:
        if phase.inner_state is not None:
            assert isinstance(self._strategy, TakesInnerState), "phases have one for such alone"
            self._strategy.take_inner_state(phase.inner_state)
        return self._strategy.pack(phase.theta_d, round=round)

    async def _exchange(self, node: Node, names: list[PeerId], packed: bytes, seconds: float) -> list[Reduced]:
        width = self._strategy.part_bytes
        group = Group(members=tuple(names), round=node.state.round, size=len(packed), chunk_bytes=width)

        def reduce(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
            told = {str(peer): data for peer, data in vectors.items()}
            return self._strategy.reduce(told, group=names, part=group.part(PeerId(node.peer_id)))

        parts = await node.service.exchange(group, packed, reduce, gather_s=GATHER_SHARE * seconds, timeout_s=seconds)
        return _reduced(parts)


def _reduced(parts: Sequence[ReducedPart]) -> list[Reduced]:
    return [Reduced(part.owner, part.part, part.data) for part in parts]
