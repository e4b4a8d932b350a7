"""A day of volunteers who lend their machines at some hours: real nodes on a virtual clock, with their policies.

    python tests/sim/diurnal_swarm.py           # with announced pauses
    python tests/sim/diurnal_swarm.py --silent  # the same, and nobody says that it pauses

Each volunteer has hours of its own (8 to 16 a day, drawn), and unplugs its machine now and then. One of them unplugs
fifty times a day. The policies are those of a node. The clock that they read is `SPEED` times as fast as the nodes'. So
a day takes two hours, and a round of fifteen minutes 75 s. Else heartbeats and looks at the machine would be most of
the work.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm

from node.participation.device_state import Battery, DeviceState
from node.training.node import Node

SPEED = 12.0
DAY_S = 86_400.0
ROUND_S = 900.0
"""By the clock that policies read."""
LOOK_S = 1.0
"""Between two looks at the machine, by the nodes' clock."""
INNER_STEPS = 10
OFTEN = 50
"""Pauses a day of the one who pauses often."""


@dataclass(frozen=True, kw_only=True)
class Volunteer:
    """When somebody lends a machine: `hours` as in the policy of that name; unplugged for `off_s` of every
    `every_s`."""

    hours: str
    every_s: float
    off_s: float
    phase_s: float

    def read(self) -> DeviceState:
        """The machine now."""
        now = SPEED * trio.current_time()
        off = (now + self.phase_s) % self.every_s < self.off_s
        return DeviceState(now=now, battery=Battery(percent=100.0, plugged=not off))


@dataclass(frozen=True, kw_only=True)
class Day:
    """What came of it. `lost`: steps of the one who pauses often that were in no update and are not of its open
    round, the one under way among them; `joined`: how often it took the others' model, each time losing a step."""

    utilization: float
    """Time in steps, as a share of the time not paused, of all nodes together."""
    rounds: int
    by_deadline: int
    """Of all nodes; the others closed by quorum, or alone."""
    close_s: float
    """Mean time of closing a round."""
    pauses: int
    often: int
    """Pauses of the one who pauses often."""
    lost: int
    joined: int


def volunteers(count: int, rng: random.Random) -> list[Volunteer]:
    """The first is there all day, and pauses often."""
    often_s = DAY_S / OFTEN
    people = [Volunteer(hours="00:00-23:59", every_s=often_s, off_s=0.3 * often_s, phase_s=rng.uniform(0, often_s))]
    for _ in range(count - 1):
        begins, lasts, every_s = rng.randrange(24 * 60), rng.randrange(8 * 60, 16 * 60), rng.uniform(2, 6) * 3600
        ends = (begins + lasts) % (24 * 60)
        hours = f"{begins // 60:02}:{begins % 60:02}-{ends // 60:02}:{ends % 60:02}"
        people.append(Volunteer(hours=hours, every_s=every_s, off_s=0.15 * every_s, phase_s=rng.uniform(0, every_s)))
    return people


async def a_day(members: Swarm, people: list[Volunteer], *, seconds: float, silent: bool) -> Day:
    """Let them train for so long by the nodes' clock."""
    round_s = ROUND_S / SPEED

    def change(node: Node) -> None:
        assert node.pauses is not None
        node.pauses._look_s = LOOK_S
        if silent:
            node.service.say_paused = says_nothing  # type: ignore[method-assign]

    for number, one in enumerate(people):
        await members.start(
            f"v{number}",
            step_seconds=round_s / INNER_STEPS,
            change=change,
            peers=tuple(member.transport.addresses[0] for member in list(members.members.values())[:3]),
            machine=one.read,
            participation={
                "policy": ["hours", "plugged"],
                "calm_s": 2.5,
                "hours": {"hours": one.hours, "zone": "UTC"},
            },
            network={
                "degree": min(8, len(people) - 1),
                "heartbeat_s": 60.0,
                "silence_s": 200.0,
                "reannounce_s": 30.0,
                "initial_deadline_s": round_s,
            },
            train={"rounds": 100_000, "inner_steps": INNER_STEPS, "eval_every": 100_000, "batch_size": 4},
        )
    await trio.sleep_until(seconds)
    return summed(list(members.members.values()), seconds)


async def says_nothing(seconds: Callable[[], float | None]) -> None:
    """Stand in for a node that does not announce its pause."""
    await trio.sleep_forever()


def summed(members: list[Member], seconds: float) -> Day:
    """What the nodes tell of the time until now."""
    paused_s = [sum(member.node.pauses.seconds_now().values()) for member in members if member.node.pauses is not None]
    rounds = [fields for member in members for fields in member.told("round")]
    often, inner = members[0], members[0].node.inner
    closed = often.told("round")
    newest = often.node.service._engine.publisher.newest
    being_closed = newest.body.steps if newest is not None and newest.body.round >= closed[-1]["round"] else 0
    published = sum(fields["steps"] for fields in closed) + being_closed
    return Day(
        utilization=sum(member.node.inner.compute_seconds for member in members)
        / (seconds * len(members) - sum(paused_s)),
        rounds=len(rounds),
        by_deadline=sum(fields["closed_by"] == "deadline" for fields in rounds),
        close_s=fmean(fields["close_s"] for fields in rounds),
        pauses=sum(len(member.told("paused")) for member in members),
        often=len(often.told("paused")),
        lost=inner.steps - published - inner.phase_steps,
        joined=len(often.told("joined")),
    )


def day_of(count: int, *, hours: float = 24.0, silent: bool = False, seed: int = 1) -> Day:
    """Play so many hours of a day."""

    async def main() -> Day:
        with tempfile.TemporaryDirectory() as folder:
            async with swarm(Path(folder), seed=seed) as members:
                people = volunteers(count, random.Random(seed))
                return await a_day(members, people, seconds=3600 * hours / SPEED, silent=silent)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--silent", action="store_true")
    told = parser.parse_args()
    began = perf_counter()
    print(day_of(told.nodes, hours=told.hours, silent=told.silent))
    print(f"{perf_counter() - began:.0f} s")
