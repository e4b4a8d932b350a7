"""Performs the events of a scenario at their times."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import trio

from gossip.core.ids import PeerId
from gossip.transport.memory.network import MemoryNetwork
from node.config.schema import AttackSection
from node.simulation.derived import rng_of, share_of
from node.simulation.member import Member
from node.simulation.scenario import (
    AttackEvent,
    ClockSkewEvent,
    DiskFullEvent,
    DiskStallEvent,
    HealEvent,
    JoinEvent,
    KillEvent,
    LeaveEvent,
    PartitionEvent,
    RegionLossEvent,
    RestartEvent,
    Scenario,
    SimEvent,
    StallEvent,
)

STARTING = (RestartEvent, JoinEvent, AttackEvent)
"""Events after which nodes run that did not before."""


@dataclass(eq=False)
class _Barrier:
    """Groups of nodes between which nothing passes."""

    groups: list[frozenset[PeerId]]

    def cuts(self) -> Iterable[frozenset[PeerId]]:
        for one, other in combinations(self.groups, 2):
            yield from (frozenset((a, b)) for a in one for b in other if a != b)


@dataclass
class Happenings:
    """The events of one run. `members` by name."""

    scenario: Scenario
    network: MemoryNetwork
    members: dict[str, Member]
    seed: int
    _barriers: list[_Barrier] = field(default_factory=list)
    _begun: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and node, how many events last now: the last one to end lets the node be."""

    def prepare(self) -> None:
        """Before anything runs: who is to join later is not there, and who will be started is waited for."""
        for number, event in enumerate(self.scenario.events):
            if isinstance(event, STARTING):
                for member in self._meant(number, event.nodes, event.share):
                    member.changes_to_come += 1
                    if isinstance(event, JoinEvent):
                        member.down("stop")

    async def run(self) -> None:
        """Perform all of them."""
        async with trio.open_nursery() as nursery:
            for number, event in enumerate(self.scenario.events):
                nursery.start_soon(self._perform, number, event, name=f"event {event.kind}")

    async def _perform(self, number: int, event: SimEvent) -> None:
        await trio.sleep_until(event.at_s)
        match event:
            case PartitionEvent():
                groups = [self._peers(self.scenario.selected(group)) for group in event.groups]
                await self._part(groups, event.for_s)
            case RegionLossEvent():
                await self._lose(self.scenario.selected([f"region:{event.region}"]), event.for_s)
            case HealEvent():
                self._barriers.clear()
                self._cut()
            case _:
                await self._to_nodes(event, self._meant(number, event.nodes, event.share))

    async def _to_nodes(self, event: SimEvent, members: Sequence[Member]) -> None:
        match event:
            case StallEvent():
                await self._for(event.kind, members, event.for_s, self._stall, self._unstall)
            case KillEvent():
                _each(members, lambda member: member.down("kill"))
            case LeaveEvent():
                _each(members, lambda member: member.down("stop"))
            case RestartEvent() | JoinEvent():
                _each(members, _start)
            case AttackEvent():
                attack = AttackSection.model_validate(self.scenario.attack)
                _each(members, lambda member: _turn(member, attack))
            case ClockSkewEvent():
                _each(members, lambda member: setattr(member, "ahead_s", event.ahead_s))
            case DiskFullEvent():
                await self._for(event.kind, members, event.for_s, _fill, _empty)
            case DiskStallEvent():
                await self._for(
                    event.kind,
                    members,
                    event.for_s,
                    lambda member: setattr(member.disk, "takes_s", event.takes_s),
                    lambda member: setattr(member.disk, "takes_s", 0.0),
                )

    async def _for(
        self,
        kind: str,
        members: Sequence[Member],
        seconds: float | None,
        begin: Callable[[Member], None],
        end: Callable[[Member], None],
    ) -> None:
        self._begun.update((kind, member.name) for member in members)
        _each(members, begin)
        if seconds is not None:
            await trio.sleep(seconds)
            self._begun.subtract((kind, member.name) for member in members)
            _each([member for member in members if not self._begun[kind, member.name]], end)

    def _meant(self, number: int, selectors: list[str], share: float) -> list[Member]:
        """The nodes of an event, of which the seed draws its share."""
        names = self.scenario.selected(selectors)
        if share < 1:
            drawn = rng_of(self.seed, "event", str(number)).sample(names, share_of(len(names), share))
            names = [name for name in names if name in drawn]
        return [self.members[name] for name in names]

    def _peers(self, names: Iterable[str]) -> frozenset[PeerId]:
        return frozenset(self.members[name].peer_id for name in names)

    async def _lose(self, names: Sequence[str], seconds: float | None) -> None:
        lost = [self._peers([name]) for name in names]
        others = self._peers(name for name in self.members if name not in names)
        await self._part([*lost, others], seconds)

    async def _part(self, groups: list[frozenset[PeerId]], seconds: float | None) -> None:
        barrier = _Barrier(groups)
        self._barriers.append(barrier)
        self._cut()
        if seconds is not None:
            await trio.sleep(seconds)
            if barrier in self._barriers:
                self._barriers.remove(barrier)
                self._cut()

    def _cut(self) -> None:
        self.network.cut_exactly(pair for barrier in self._barriers for pair in barrier.cuts())

    def _stall(self, member: Member) -> None:
        self.network.stall(member.peer_id)

    def _unstall(self, member: Member) -> None:
        self.network.unstall(member.peer_id)


def _each(members: Iterable[Member], act: Callable[[Member], None]) -> None:
    for member in members:
        act(member)


def _start(member: Member) -> None:
    member.changes_to_come -= 1
    member.up()


def _turn(member: Member, attack: AttackSection) -> None:
    member.changes_to_come -= 1
    member.turn(attack)


def _fill(member: Member) -> None:
    member.disk.full = True


def _empty(member: Member) -> None:
    member.disk.full = False
