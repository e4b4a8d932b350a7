"""Averaging with other regions, beside the rounds of our own: publish our region's model, and move by what has come.

Nothing is waited for. A region moves every `sync.region_every` rounds, and after the last one. A few rounds before each
move the members that are drawn for it publish the region's model. What is here by then counts, and what comes later
counts the next time. So all members of a region move in the same round of theirs, but for one to which nothing has come
by then: it moves as many rounds later, at most, as models have to come.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from gossip.core.api import RegionalPayload, RegionalView
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError
from gossip.core.said_once import SaidOnce
from node.events.event_types import RegionsAveraged, WarningEvent
from node.training.executors import SideWork
from p2ptrain.sync import Message, RoundResult
from p2ptrain.sync.regional import RegionalAveraging, RegionalShift, RegionalStrategy, RegionModels

if TYPE_CHECKING:  # a node holds this
    from node.training.node import Node

SILENT_MOVES: Final = 3
"""Moves of ours without a new model of a region after which it is said to be lost. Chosen: a broadcast that is lost
costs one, rounds that are longer there another."""

MEETING_MOVES: Final = 2
"""Moves of ours, from when a lost region is heard again, in which regions do not take their mean. Chosen: it may hear
us one move later than we hear it."""


def stated_models(path: Path | None) -> SaidOnce:
    """Return what remembers, in `path`, after which rounds a node has stated its region's model."""
    return SaidOnce(path, "after which rounds it has stated its region's model")


class RegionTurns:
    """One node's part in the averaging of regions. State: the newest model of each region that was used, by its
    round."""

    def __init__(
        self, averaging: RegionalAveraging, strategy: RegionalStrategy, stated: SaidOnce | None = None
    ) -> None:
        """`stated`: after which rounds this node has stated its region's model, in this life and those before."""
        self.averaging = averaging
        self._strategy = strategy
        self._stated = stated_models(None) if stated is None else stated
        self._used: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        """Moves of ours since a new model of a region came."""
        self._turn: int | None = None
        """The round of a turn of which we have not moved yet."""
        self._untold = False
        """Whether no event about the newest turn was emitted yet."""
        self._apart: dict[str, int] = {}
        """Moves of ours for which a region that was lost counts as one that has grown apart."""

    async def close(self, node: "Node", result: RoundResult) -> RoundResult:
        """Publish our region's model after this round, or move by the others', where it is time. Return what the round
        does to the model then."""
        round_, rounds = node.state.round, node.config.train.rounds
        if self.averaging.moves_after(round_, rounds):
            self._turn, self._untold = round_, True
            result = await self._move(node, result)
        elif round_ <= self._turn_end():
            result = await self._move(node, result, late=True)
            if round_ == self._turn_end():
                self._tell_missed(node)
        if self.averaging.publishes_after(round_, rounds) and node.service.publishes_regional(round_):
            await self._publish(node, result.averaged)
        return result

    async def begin_at(self, node: "Node", views: Sequence[RegionalView]) -> torch.Tensor | None:
        """Begin at the mean of other regions' models; at the initial model where none are given. Return it (d,), valid
        until the next round is closed; None, with nothing changed, where too few can be read. Call it under the
        strategy's lock."""
        if not views:
            return self._strategy.regional_model(0)
        theirs, beside = [_models(view) for view in views], len(node.service.regions_beside)
        opening = await node.compute(lambda: self.averaging.opening(theirs, beside=beside), work=SideWork.AGGREGATE)
        _refuse(node, views, opening)
        shift_d = opening.shift_d
        if shift_d is None:
            return None
        self._used |= {view.region: view.round for view in views}
        return await node.compute(lambda: self._strategy.begin_at(shift_d), work=SideWork.AGGREGATE)

    async def _publish(self, node: "Node", averaged: int) -> None:
        async with node.strategy_lock:
            model_d = self._strategy.regional_model(node.state.round)
            try:
                message = await node.compute(lambda: self.averaging.encode(model_d), work=SideWork.ENCODE)
                stated, round_ = self._stated, node.state.round
                name = digest_of(b"%d" % round_)
                if not await node.executor.offload(lambda: stated.first(name, round_)):  # it syncs a file
                    return  # a second model of one round is a second history
                await node.service.publish_regional(
                    round=node.state.round, codec=message.codec, payload=message.payload, averaged=averaged
                )
            except (ValueError, LocalError) as error:
                node.journal.emit(
                    WarningEvent(message=f"our region's model was not published for other regions: {error}")
                )

    async def _move(self, node: "Node", result: RoundResult, *, late: bool = False) -> RoundResult:
        """Move by what has come. `late`: the turn is over, and what it takes was not here. By now our region has moved,
        and without that we would be apart from it for a whole period."""
        views, beside = node.service.regional_views(), node.service.regions_beside
        own = views.pop(node.config.node.region, None)
        fresh = [view for region, view in views.items() if view.round != self._used.get(region)]
        heard = frozenset(view.region for view in fresh)
        unheard = frozenset(region for region in heard if self._silent.get(region, 0) > 0)
        self._note_silent(node, heard, unheard if late else frozenset({*self._silent, *beside}))
        if own is None or not fresh:
            return result
        assert self._turn is not None, "who calls has set it"
        if own.round != self._turn - self.averaging.lag:
            # An earlier model of our own would have us move by what we have moved by before.
            if not late:
                self._told(node, RegionalShift(shift_d=None, regions=0, lying=0), fresh, len(beside))
            return result
        self._turn = None
        ours, theirs = _models(own), [_models(view) for view in fresh]
        apart = any(view.region in self._apart for view in fresh)
        async with node.strategy_lock:
            shift = await node.compute(
                lambda: self.averaging.shift(ours, theirs, beside=len(beside), apart=apart), work=SideWork.AGGREGATE
            )
            if shift.shift_d is not None:
                move = partial(self._strategy.move_, result, shift.shift_d)
                result = await node.compute(move, work=SideWork.AGGREGATE)
                self._used |= {view.region: view.round for view in fresh}
        _refuse(node, [own, *fresh], shift)
        self._told(node, shift, fresh, len(beside))
        return result

    def _turn_end(self) -> int:
        """Return the last round in which we may move at the newest turn; -1 where we have."""
        return -1 if self._turn is None else self._turn + self.averaging.lag

    def _tell_missed(self, node: "Node") -> None:
        """Tell that a turn has passed without a model to move by: a region that is cut off went on showing what it
        averaged last."""
        beside = node.service.regions_beside
        if self._untold and (beside or self._silent):  # in a run of one region nothing is missed
            self._told(node, RegionalShift(shift_d=None, regions=0, lying=0), [], len(beside))

    def _told(self, node: "Node", shift: RegionalShift, fresh: list[RegionalView], beside: int) -> None:
        self._untold = False
        node.journal.emit(
            RegionsAveraged(
                round=node.state.round + 1,
                regions=shift.regions,
                beside=beside,
                region_margin=shift.regions - (2 * shift.lying + 1) if shift.lying else -1,
                models={view.region: view.round for view in fresh},
                moved=shift.shift_d is not None,
            )
        )

    def _meet(self, region: str, silent: int, *, heard: bool) -> None:
        """Note whether a region has grown apart from ours, by the moves without it before this one."""
        if heard and silent >= SILENT_MOVES:
            self._apart[region] = MEETING_MOVES
        elif self._apart.get(region, 0) > 1:
            self._apart[region] -= 1
        else:
            self._apart.pop(region, None)

    def _note_silent(self, node: "Node", heard: frozenset[str], regions: frozenset[str]) -> None:
        """Tell the operator of a region that has fallen silent, and of one that is back, of these."""
        for region in sorted(regions):
            before = self._silent.get(region, 0)
            self._meet(region, before, heard=region in heard)
            self._silent[region] = 0 if region in heard else before + 1
            name = f"region {region}"
            if self._silent[region] == SILENT_MOVES:
                message = f"too few models of {name} have come for {SILENT_MOVES} turns: training goes on without it"
                node.journal.emit(WarningEvent(message=message, about=name))
            elif before >= SILENT_MOVES and region in heard:
                message = f"{name} is heard again"
                node.journal.emit(WarningEvent(message=message, about=name, recovered=True))


def _refuse(node: "Node", views: Sequence[RegionalView], shift: RegionalShift) -> None:
    for view, whys in zip(views, shift.refused, strict=False):
        for place, why in whys.items():
            node.service.reject_regional(view.models[place].peer, view.region, view.round, why)


def _models(view: RegionalView) -> RegionModels:
    return RegionModels(
        models=[Message(model.codec, _bytes_of(model)) for model in view.models],
        needed=view.needed,
        members=view.members,
        round=view.round,
        name=view.region,
    )


def _bytes_of(model: RegionalPayload) -> bytes:
    data = model.payload
    return data if isinstance(data, bytes) else data[0 : len(data)]
