"""What a pause of several nodes costs the others' rounds: real nodes on a virtual clock.

    python tests/sim/paused_rounds.py --nodes 8 --paused 3 --strategy allreduce           # with announced pauses
    python tests/sim/paused_rounds.py --nodes 8 --paused 3 --strategy allreduce --silent  # nobody says that it pauses

The last of the nodes are paused from the thirtieth to the sixtieth second. The figures are of the first node: seconds a
round and mean seconds of closing one, before, in the first ten seconds of the pause, in the rest of it, and after.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import trio
import trio.testing
from diurnal_swarm import says_nothing
from sim_swarm import swarm

from node.participation.device_state import Battery, DeviceState
from node.training.node import Node

PAUSED_S = (30.0, 60.0)
SPANS_S = {"before": (10.0, 30.0), "at first": (30.0, 40.0), "then": (40.0, 60.0), "after": (63.0, 80.0)}
STEP_S = 0.2
INNER_STEPS = 10


def machine() -> DeviceState:
    """Read a machine that is off its charger in between."""
    now = trio.current_time()
    return DeviceState(now=now, battery=Battery(percent=100.0, plugged=not PAUSED_S[0] <= now < PAUSED_S[1]))


async def rounds_of_the_first(told: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Play it, and return what the first node tells of its rounds."""

    def change(node: Node) -> None:
        if told.silent:
            node.service.say_paused = says_nothing  # type: ignore[method-assign]

    async with swarm(folder) as members:
        for number in range(told.nodes):
            pauses = number >= told.nodes - told.paused
            await members.start(
                f"n{number}",
                wait_for=told.nodes - 1,
                step_seconds=STEP_S * (1 + 0.05 * number / told.nodes),
                change=change,
                machine=machine if pauses else None,
                participation={"policy": ["plugged"], "calm_s": 0.5} if pauses else {},
                sync={"strategy": told.strategy} if told.strategy else {},
                network={"degree": told.nodes - 1},
                train={"rounds": 1000, "inner_steps": INNER_STEPS, "eval_every": 1000, "batch_size": 4},
                node={"overlap": not told.waits},
            )
        await trio.sleep_until(max(end for _, end in SPANS_S.values()))
        return members.members["n0"].told("round")


def main() -> None:
    """Print a line a span."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--paused", type=int, default=3)
    parser.add_argument("--strategy", default="", help="of sync.strategy; the default one where none is named")
    parser.add_argument("--waits", action="store_true", help="node.overlap = false")
    parser.add_argument("--silent", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clock = trio.testing.MockClock(autojump_threshold=0)
        rounds = trio.run(rounds_of_the_first, told, Path(folder), clock=clock)
    for span, (begins, ends) in SPANS_S.items():
        there = [each for each in rounds if begins <= each["at"] < ends]
        seconds = (there[-1]["at"] - there[0]["at"]) / (len(there) - 1)
        by = "/".join(sorted({each["closed_by"] for each in there}))
        print(f"{span:9} {seconds:5.2f} s a round, closed in {fmean(each['close_s'] for each in there):.2f} s by {by}")


if __name__ == "__main__":
    main()
