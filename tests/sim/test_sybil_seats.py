"""A crowd of new keys in an open swarm: until they have served as members do, they count for f of them.

Twenty sybils come to six and to twelve honest nodes in the middle of a run, say hello to everybody, keep up with the
rounds, and hold a model that is a lie. The run ends before anybody's probation of them does: some nodes are a round or
two behind the first.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import trio
import trio.testing
from claimants import Claimant, claim
from sim_swarm import STEP_SECONDS, Member, swarm

F = 1
CROWD = 20
ARRIVE = 10
PROBATION = 8
ROUNDS = ARRIVE + PROBATION - 3
SETTINGS: dict[str, Any] = {
    "train": {"rounds": ROUNDS, "eval_every": ROUNDS},
    "sync": {"f": F},
    "network": {"probation_rounds": PROBATION},
}
PHASE_S = 5 * STEP_SECONDS
LIE = 1e3


@dataclass
class Outcome:
    honest: list[Member]
    crowd: set[str]

    @property
    def loss(self) -> float:
        return fmean(member.eval_loss for member in self.honest)

    def seats(self) -> list[int]:
        """Of the crowd, in each honest node's rounds."""
        every = (fields for member in self.honest for fields in member.told("round"))
        return [len(self.crowd.intersection(fields["staleness"])) for fields in every]

    def places(self) -> int:
        """The most that the crowd ever had at an honest node."""
        most = 0
        for member in self.honest:
            held: set[str] = set()
            for fields in member.events:
                if fields.get("peer") in self.crowd and fields["event"] in {"neighbour_up", "neighbour_lost"}:
                    (held.add if fields["event"] == "neighbour_up" else held.discard)(fields["peer"])
                    most = max(most, len(held))
        return most


async def play(folder: Path, honest: int, networks: list[str | None]) -> Outcome:
    with trio.fail_after(2000):
        async with swarm(folder) as members, trio.open_nursery() as nursery:
            nodes = [
                await members.start(f"n{number}", wait_for=min(5, honest - 1), **SETTINGS) for number in range(honest)
            ]
            while max(node.node.state.round for node in nodes) < ARRIVE:  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            crowd: list[Claimant] = []
            for number, network in enumerate(networks):
                crowd.append(await claim(members, nursery, nodes[0], number, value=LIE, network=network))
                nursery.start_soon(lambda it=crowd[-1]: it.keep_up(nodes[0], every_s=PHASE_S / 5))
            await members.finished()
            for it in crowd:
                it.scope.cancel()
            nursery.cancel_scope.cancel()
    return Outcome(nodes, {str(it.peer) for it in crowd})


_clean: dict[int, float] = {}


async def clean_loss(folder: Path, honest: int) -> float:
    """Of so many honest nodes without a crowd, which is the same in every run: played once."""
    if honest not in _clean:
        _clean[honest] = (await play(folder, honest, [])).loss
    return _clean[honest]


@pytest.mark.thorough
@pytest.mark.parametrize("honest", [6, pytest.param(12, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("networks", [["203.0.113.0/24"] * CROWD, [f"198.51.{n}.0/24" for n in range(CROWD)]])
async def test_a_crowd_has_the_seats_of_f_and_the_loss_is_that_of_the_clean_run(
    honest: int, networks: list[str | None], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "clean").mkdir()
    (tmp_path / "crowd").mkdir()
    outcome = await play(tmp_path / "crowd", honest, networks)
    assert outcome.places() >= 1, "they are there, and have to be borne"
    assert max(outcome.seats()) <= F
    assert outcome.loss <= 1.05 * await clean_loss(tmp_path / "clean", honest)
