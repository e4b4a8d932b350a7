"""Swarms of real nodes that sum their differences under masks: what they learn, and what the missing cost."""

from pathlib import Path
from typing import Any

import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm

ROUNDS = 8


def settings(rounds: int = ROUNDS, **sync: object) -> dict[str, Any]:
    return {
        "sync": {"strategy": "secure_average", **sync},
        "train": {"rounds": rounds, "eval_every": rounds},
        "node": {"checkpoint_every": 1},
    }


async def start_all(members: Swarm, count: int, **sections: Any) -> list[Member]:
    return [await members.start(f"n{number}", wait_for=count - 1, **sections) for number in range(count)]


async def test_a_group_of_four_learns(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        nodes = await start_all(members, 4, **settings())
        await members.finished()
        for node in nodes:
            for each in node.told("secure_round"):
                print(each)
            print(node.told("round")[-1])
            print([x for x in node.events if x["event"] not in ("round", "secure_round")][-6:])
            print(node.eval_loss, node.node.journal.first["eval_loss"])
