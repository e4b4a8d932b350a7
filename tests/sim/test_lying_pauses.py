"""Liars that say that they are paused and are not: two of seven, beside two honest nodes that pause at the same time.

So two thirds of an honest node's neighbours say at once that they are paused, and those that are waited for are fewer
than the liars that it tolerates and their like. What holds is what would hold had the liars said nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import trio
import trio.testing
from sim_swarm import Member, swarm
from sizes import thorough_but

from gossip.service import GossipService
from node.participation.device_state import DeviceState, GpuUseByOthers

NODES, F = 7, 2
LIARS = ("n5", "n6")
LENT = ("n3", "n4")
ROUNDS, INNER_STEPS, STEP_S = 12, 5, 0.2
AWAY_S = (5.0, 10.0)
"""When the two honest ones are paused."""
KNOWN_SOON_S = 0.5

Says = Literal["nothing", "for_ever", "every_second", "with_the_others"]


@dataclass(frozen=True)
class Story:
    """What came of it for the honest nodes that were there all the time."""

    there: list[Member]
    words: int
    """How often a liar began to say that it is paused."""

    @property
    def loss(self) -> float:
        return fmean(member.eval_loss for member in self.there)


def machine() -> DeviceState:
    share = 0.9 if AWAY_S[0] <= trio.current_time() < AWAY_S[1] else 0.0
    return DeviceState(now=trio.current_time(), gpu=GpuUseByOthers(share=share, memory_bytes=0))


async def lie(service: GossipService, says: Says, began: Callable[[], None]) -> None:
    """Say that it is paused, while its node trains and publishes its lies as before."""
    if says == "every_second":
        while True:
            began()
            with trio.move_on_after(1.0):
                await service.say_paused(lambda: 3600.0)
    if says == "with_the_others":
        await trio.sleep_until(AWAY_S[0])
    began()
    await service.say_paused(lambda: None)


@cache
def played(says: Says) -> Story:
    words = []

    async def main() -> Story:
        with TemporaryDirectory() as folder:
            async with swarm(Path(folder)) as members, trio.open_nursery() as nursery:
                for number in range(NODES):
                    name = f"n{number}"
                    member = await members.start(
                        name,
                        wait_for=NODES - 1,
                        step_seconds=STEP_S * (1.0 if name in LIARS else 1.05),
                        machine=machine if name in LENT else None,
                        participation={"policy": ["gpu"], "calm_s": 0.5} if name in LENT else {},
                        sync={"f": F},
                        attack={"name": "sign_flip" if name in LIARS else "none"},
                        train={"rounds": ROUNDS, "inner_steps": INNER_STEPS, "eval_every": ROUNDS, "batch_size": 16},
                        node={"linger_s": 2.0},
                    )
                    if name in LIARS and says != "nothing":
                        nursery.start_soon(lie, member.node.service, says, lambda: words.append(1))
                there = [it for name, it in members.members.items() if name not in LIARS + LENT]
                for member in there:
                    await member.done.wait()
                nursery.cancel_scope.cancel()
                return Story(there, len(words))

    trio._core._run._r.seed(1)
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("says", thorough_but({"with_the_others"}, ["for_ever", "every_second", "with_the_others"]))
def test_liars_that_say_that_they_are_paused_gain_nothing_by_it(says: Says) -> None:
    silent, lied = played("nothing"), played(says)
    assert lied.words >= (2 * ROUNDS if says == "every_second" else len(LIARS))
    assert lied.loss < 1.05 * silent.loss
    for before, after in zip(silent.there, lied.there, strict=True):
        mine, its = ([fields["members"] for fields in member.told("round")] for member in (after, before))
        assert len(mine) == len(its) == ROUNDS
        assert min(mine) >= min(its) >= 2 * F + 1, "no quorum of the liars leaves honest members out"
        assert min(fields["robust_margin"] for fields in after.told("round")) >= 0
        assert not after.told("banned")
