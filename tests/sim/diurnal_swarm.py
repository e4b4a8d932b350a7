"""A day of volunteers who lend their machines at some hours: real nodes on a virtual clock, with their policies.

    python tests/sim/diurnal_swarm.py                      # with announced pauses
    python tests/sim/diurnal_swarm.py --silent 1           # the same, and nobody says that it pauses
    python tests/sim/diurnal_swarm.py --killed 0.1         # a tenth of them are killed in place of being paused

Each volunteer lives in one of four time zones, lends its machine for 8 to 12 hours from about 19:00 on (drawn), and now
and then plays in them, for 5 to 60 minutes. One is there all day, and plays fifty times. The policies are those of a
node, `hours` and `gpu`, with a GPU that says when somebody plays. The clock that they read is `SPEED` times as fast as
the nodes'. So a day takes forty minutes, and a round of fifteen minutes 25 s. Else heartbeats and looks at the machine
would be most of the work. What a node does now and then to know other members (`RARER`) it does more rarely, too.
"""

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm

from gossip.core.ids import PeerId
from gossip.core.limits import PAUSE_PROTOCOL
from gossip.discovery import dialler_task, lookup_task
from gossip.transport.memory.traffic_tap import StreamTap
from node.participation.device_state import DeviceState, GpuUseByOthers
from node.participation.policies.local_hours import LocalHours
from node.training.node import Node

SPEED = 36.0
DAY_S = 86_400.0
ROUND_S = 900.0
"""By the clock that policies read."""
LOOK_S = 0.5
"""Between two looks at the machine, and at who waits for whom, by the nodes' clock."""
HEARD_S = 1.0
"""A pause counts as announced so long after it was begun to be told, by the nodes' clock."""
INNER_STEPS = 4
OFTEN = 50
"""Pauses a day of the one who pauses often."""
RARER = (
    (dialler_task, "VISIT_EVERY_S", 600.0),
    (lookup_task, "LOOK_TABLE_S", 60.0),
    (lookup_task, "FIRST_S", 600.0),
    (lookup_task, "REFRESH_S", 3600.0),
)
"""Periods of discovery in seconds, each at least twelve times as long as usual: of a swarm of 200 it is most of the
work, and no part of what is measured."""
ZONES = ("America/Los_Angeles", "America/New_York", "Europe/Berlin", "Asia/Tokyo")
GAMES = 2.0
"""Games a day of each other one, on average, at any hour."""

PLAYS = GpuUseByOthers(share=0.9, memory_bytes=6 << 30)
IDLE = GpuUseByOthers(share=0.0, memory_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Volunteer:
    """When somebody lends a machine: `hours` of the local clock of `zone`, and not in `games` (from, to; seconds)."""

    hours: str
    zone: str
    games: tuple[tuple[float, float], ...]
    dies: bool = False
    """Whether its node is killed where it would be paused, and started again."""

    @staticmethod
    def now() -> float:
        """By the clock that policies read."""
        return SPEED * trio.current_time()

    def read(self) -> DeviceState:
        """The machine now."""
        now = self.now()
        return DeviceState(now=now, gpu=PLAYS if any(begin <= now < end for begin, end in self.games) else IDLE)

    def is_away(self) -> bool:
        """Whether its policies would forbid training now."""
        state = self.read()
        hours = LocalHours(hours=self.hours, zone=self.zone)
        return state.gpu is PLAYS or hours.forbids(state, paused=False) is not None


@dataclass(frozen=True, kw_only=True)
class Day:
    """What came of it. Times in seconds of the nodes' clock, of all nodes together. What is said of steps and of
    utilization leaves out those that are killed."""

    utilization: float
    """Time in steps while not paused, as a share of the time not paused."""
    present: float
    """Nodes that are not paused, on average."""
    rounds: int
    by_deadline: int
    """The others closed by quorum, or alone."""
    few: int
    """Rounds whose members were too few for the liars that they tolerate."""
    close_s: float
    """Mean time of closing a round."""
    waited_announced_s: float
    """In which a quorum would have been reached without neighbours that are paused and had said so."""
    waited_absent_s: float
    """The same of all that are paused or killed."""
    pauses: int
    lost: int
    """Steps that are in no update, but for those that a node still has open at the end."""
    joined: int
    """How often a node took the others' model, each time losing the steps of its open round: mostly one."""
    often: int
    """Pauses of the one who pauses often; the next two are of it, too."""
    often_lost: int
    often_joined: int
    loss: float
    """Newest held-out loss of those that are there at the end."""
    said_bytes: int
    """Of announced pauses, both ways."""
    sent_bytes: int
    """Of everything."""


def volunteers(count: int, rng: random.Random, *, killed: float = 0.0) -> list[Volunteer]:
    """The first is there all day, and pauses often."""
    often_s = DAY_S / OFTEN
    games = tuple((n * often_s + 0.4 * often_s, n * often_s + rng.uniform(0.6, 0.9) * often_s) for n in range(OFTEN))
    people = [Volunteer(hours="00:00-23:59", zone="UTC", games=games)]
    for number in range(1, count):
        begins, lasts = (19 * 60 + rng.randrange(-120, 120)) % (24 * 60), rng.randrange(8 * 60, 12 * 60)
        ends = (begins + lasts) % (24 * 60)
        people.append(
            Volunteer(
                hours=f"{begins // 60:02}:{begins % 60:02}-{ends // 60:02}:{ends % 60:02}",
                zone=ZONES[number % len(ZONES)],
                games=tuple(drawn_games(rng)),
                dies=number <= killed * count,
            )
        )
    return people


def drawn_games(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the games of two days, in order and apart."""
    now = rng.expovariate(GAMES / DAY_S)
    while now < 2 * DAY_S:
        end = now + 60 * rng.uniform(5, 60)
        yield now, end
        now = end + 600 + rng.expovariate(GAMES / DAY_S)


class Observed:
    """What is seen of the nodes from outside: who takes steps, who is paused and has said so, who waits for whom."""

    def __init__(self) -> None:
        self.announced: dict[PeerId, float] = {}
        """Since when each node that is paused tells it."""
        self.steps: dict[str, list[tuple[float, float]]] = {}
        """When each node took its steps."""
        self.ended: dict[str, list[int]] = {}
        """How many steps each node had taken at the end of each of its phases."""
        self.waited_announced_s = self.waited_absent_s = 0.0
        self.said_bytes = 0

    def watch(self, name: str, node: Node, *, silent: bool) -> None:
        """Note its steps and its announcements from now on; or let it pause without a word."""
        step_s = ROUND_S / SPEED / INNER_STEPS
        times, ended, begin = self.steps.setdefault(name, []), self.ended.setdefault(name, []), node.state.begin_closing
        take_step, say_paused = node.inner.trainer.take_step, node.service.say_paused

        def take(*args: Any, **options: Any) -> Any:
            times.append((trio.current_time(), trio.current_time() + step_s))
            return take_step(*args, **options)

        async def say(seconds: Callable[[], float | None]) -> None:
            self.announced[node.peer_id] = trio.current_time()
            try:
                await (says_nothing if silent else say_paused)(seconds)
            finally:
                del self.announced[node.peer_id]

        def begin_closing(*, waits_for_group: bool) -> None:
            ended.append(node.inner.steps)
            begin(waits_for_group=waits_for_group)

        node.state.begin_closing = begin_closing  # type: ignore[method-assign]
        node.inner.trainer.take_step = take  # type: ignore[method-assign]
        node.service.say_paused = say  # type: ignore[method-assign]

    def broadcast(self, sender: PeerId, data: bytes, copies: int, *, own: bool, kept: Callable[[PeerId], bool]) -> None:
        """Ignore it."""

    def stream(self, opener: PeerId, other: PeerId, protocol: str, overhead: int) -> StreamTap:
        """Count what is said of pauses."""

        def count(peer: PeerId, data: bytes | memoryview) -> None:
            self.said_bytes += len(data) if protocol == PAUSE_PROTOCOL else 0

        return count

    async def look(self, members: Mapping[str, Member], silent: frozenset[str]) -> None:
        """Look who waits for whom, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            now = trio.current_time()
            absent = {member.node.peer_id for member in members.values() if member.scope.cancel_called}
            absent |= {peer for peer, since in self.announced.items() if now - since >= HEARD_S}
            mute = {members[name].node.peer_id for name in silent if name in members}
            said = {peer for peer in absent if peer in self.announced and peer not in mute}
            for member in members.values():
                if member.node.state.closing and not member.scope.cancel_called:
                    self.waited_announced_s += LOOK_S * self._waits(member.node, said, now)
                    self.waited_absent_s += LOOK_S * self._waits(member.node, absent, now)

    def _waits(self, node: Node, absent: set[PeerId], now: float) -> bool:
        """Return whether the round that it closes would be over if these were not waited for."""
        engine, round_ = node.service._engine, node.state.round
        paused = engine.paused

        def over() -> bool:
            stands = engine.standing(round_, now)
            return stands.awaits_nobody or stands.quorum_reached(node.config.network.quorum)

        if over():
            return False
        with patch.object(engine, "paused", lambda round_, now: paused(round_, now) | absent):
            return over()


async def a_day(
    members: Swarm, people: list[Volunteer], *, seconds: float, silent: float, tell_at_h: Sequence[float]
) -> Day:
    """Let them train for so long by the nodes' clock. `tell_at_h`: hours after which it is printed what came of it."""
    round_s = ROUND_S / SPEED
    mute = frozenset(f"v{number}" for number in range(1, len(people)) if number <= silent * len(people))
    observed = Observed()
    members.network.tap = observed

    async def start(name: str, one: Volunteer) -> None:
        def change(node: Node) -> None:
            observed.watch(name, node, silent=name in mute)
            if node.pauses is not None:
                node.pauses._look_s = LOOK_S
                left = node.pauses.seconds_left
                node.pauses.seconds_left = lambda: by_nodes_clock(left())  # type: ignore[method-assign]

        await members.start(
            name,
            step_seconds=round_s / INNER_STEPS,
            change=change,
            peers=tuple(member.transport.addresses[0] for key, member in members.members.items() if key != name)[:3],
            machine=one.read,
            participation={}
            if one.dies
            else {
                "policy": ["hours", "gpu"],
                "calm_s": 60 / SPEED,
                "stay_s": 10 / SPEED,
                "hours": {"hours": one.hours, "zone": one.zone},
            },
            network={
                "degree": min(8, len(people) - 1),
                "heartbeat_s": 100.0,
                "silence_s": 350.0,
                "reannounce_s": 30.0,
                "redial_min_s": 30.0,
                "initial_deadline_s": round_s,
            },
            train={"rounds": 100_000, "inner_steps": INNER_STEPS, "eval_every": 12, "batch_size": 8},
            node={"checkpoint_every": 4 if one.dies else 0},
        )

    async def come_and_go(name: str, one: Volunteer) -> None:
        while True:
            await trio.sleep(LOOK_S)
            member = members.members[name]
            if one.is_away() and not member.scope.cancel_called:
                member.kill()
            elif member.scope.cancel_called and not one.is_away():
                await start(name, one)

    for number, one in enumerate(people):
        await start(f"v{number}", one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observed.look, members.members, mute)
        for number, one in enumerate(people):
            if one.dies:
                nursery.start_soon(come_and_go, f"v{number}", one)
        for at in sorted({*(hour * 3600 / SPEED for hour in tell_at_h if hour * 3600 / SPEED < seconds), seconds}):
            await trio.sleep_until(at)
            lasting = [members.members[f"v{number}"] for number, one in enumerate(people) if not one.dies]
            day = summed(list(members.members.values()), lasting, observed, at)
            if at < seconds:
                print(f"after {at * SPEED / 3600:.0f} h: {day}", flush=True)
        nursery.cancel_scope.cancel()
    return day


def by_nodes_clock(seconds: float | None) -> float | None:
    """Seconds of the policies' clock by the nodes' clock."""
    return None if seconds is None else seconds / SPEED


async def says_nothing(seconds: Callable[[], float | None]) -> None:
    """Stand in for a node that does not announce its pause."""
    await trio.sleep_forever()


def summed(members: list[Member], lasting: list[Member], observed: Observed, seconds: float) -> Day:
    """What the nodes tell of the time until now. `lasting`: those that are never killed."""
    there = {member.name: there_s(member, seconds) for member in lasting}
    busy_s = sum(shared_s(observed.steps[name], spans) for name, spans in there.items())
    there_s_all = sum(end - begin for spans in there.values() for begin, end in spans)
    rounds = [fields for member in members for fields in member.told("round")]
    losses = [
        member.told("evaluated")[-1]["eval_loss"]
        for member in lasting
        if there[member.name] and there[member.name][-1][1] >= seconds and member.told("evaluated")
    ]
    often = members[0]
    return Day(
        utilization=busy_s / there_s_all,
        present=there_s_all / seconds,
        rounds=len(rounds),
        by_deadline=sum(fields["closed_by"] == "deadline" for fields in rounds),
        few=sum((fields["robust_margin"] or 0) < 0 for fields in rounds),
        close_s=fmean(fields["close_s"] for fields in rounds),
        waited_announced_s=observed.waited_announced_s,
        waited_absent_s=observed.waited_absent_s,
        pauses=sum(len(member.told("paused")) for member in lasting),
        lost=sum(lost_steps(member, observed.ended[member.name]) for member in lasting),
        joined=sum(len(member.told("joined")) for member in lasting),
        often=len(often.told("paused")),
        often_lost=lost_steps(often, observed.ended[often.name]),
        often_joined=len(often.told("joined")),
        loss=fmean(losses) if losses else math.nan,
        said_bytes=observed.said_bytes,
        sent_bytes=sum(member.transport.wire.sent for member in members),
    )


def there_s(member: Member, seconds: float) -> list[tuple[float, float]]:
    """When it was not paused."""
    begins: float | None = 0.0
    spans = []
    for fields in member.events:
        if fields["event"] == "paused" and begins is not None:
            spans.append((begins, fields["at"]))
            begins = None
        elif fields["event"] == "unpaused":
            begins = fields["at"]
    return spans if begins is None else [*spans, (begins, seconds)]


def shared_s(steps: list[tuple[float, float]], spans: list[tuple[float, float]]) -> float:
    """Seconds of steps that lie in spans; both in order."""
    total, at = 0.0, 0
    for begin, end in spans:
        while at < len(steps) and steps[at][1] <= begin:
            at += 1
        here = at
        while here < len(steps) and steps[here][0] < end:
            total += min(end, steps[here][1]) - max(begin, steps[here][0])
            here += 1
    return total


def lost_steps(member: Member, ended: list[int]) -> int:
    """Steps that are in no update, of the phases that it has ended; but for the one whose round it closes now."""
    if member.node.state.closing:
        ended = ended[:-1]
    return max([0, *ended]) - sum(fields["steps"] for fields in member.told("round"))


def day_of(
    count: int, *, hours: float = 24.0, silent: float = 0.0, killed: float = 0.0, seed: int = 1, tell: bool = False
) -> Day:
    """Play so many hours of a day. `silent`, `killed`: shares of the volunteers. `tell`: print it every hour."""
    tell_at_h = range(1, 24 * 7) if tell else ()

    async def main() -> Day:
        with ExitStack() as stack:
            for module, name, seconds in RARER:
                stack.enter_context(patch.object(module, name, seconds))
            return await play()

    async def play() -> Day:
        with tempfile.TemporaryDirectory() as folder:
            async with swarm(Path(folder), seed=seed) as members:
                people = volunteers(count, random.Random(seed), killed=killed)
                return await a_day(members, people, seconds=3600 * hours / SPEED, silent=silent, tell_at_h=tell_at_h)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--silent", type=float, default=0.0, help="share of the volunteers")
    parser.add_argument("--killed", type=float, default=0.0, help="share of the volunteers")
    told = parser.parse_args()
    if told.nodes < 2 or told.hours <= 0 or not (0 <= told.silent <= 1 and 0 <= told.killed <= 1):
        parser.error("--nodes is 2 or more, --hours above 0, --silent and --killed from 0 to 1")
    began = perf_counter()
    print(day_of(told.nodes, hours=told.hours, silent=told.silent, killed=told.killed, tell=True))
    print(f"{perf_counter() - began:.0f} s")
