"""Measures how long what leads from one model to another is, of one host and of two: real nodes in the simulation.

    python scripts/visit_lengths.py --strategy tracked_gossip

Three hosts have a part of the digits each, and offer a model to visitors after every round. Prints one JSON line with
the mean lengths of differences, as parts of a model's bytes, by how many rounds apart the two models are. With
`--visited` the first host counts visitors in every round.
"""

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "sim")]

import torch  # noqa: E402
import trio  # noqa: E402
import trio.testing  # noqa: E402
from sim_swarm import Member, swarm  # noqa: E402
from test_visits import leave  # noqa: E402

from node.system.script_end import ended_in_a_line  # noqa: E402
from node.visits.visitors import ClosedVisits  # noqa: E402
from p2ptrain.visits.model_versions import ModelVersion, difference_between  # noqa: E402

LOOK_EVERY_S = 0.1
APART = (0, 1, 2, 4, 7)
Versions = dict[int, ModelVersion]


def collected(host: Member) -> Versions:
    """Return where each model that the host offers will be, by its round."""
    visitors, versions = host.node.visitors, Versions()
    assert visitors is not None
    finish = visitors.finish_closing

    def noted(closed: ClosedVisits) -> None:
        versions[closed.version.round] = closed.version
        finish(closed)

    visitors.finish_closing = noted  # type: ignore[method-assign]
    return versions


async def versions_of(given: argparse.Namespace, folder: Path) -> tuple[list[Versions], int]:
    """Run the hosts to the end. Return the models that each offered, and the values of a model."""
    train = {"rounds": given.rounds, "inner_steps": 20, "batch_size": 32, "learning_rate": 2e-3, "epsilon": 3e-2}
    async with swarm(folder) as members:
        hosts = []
        for nth in range(given.hosts):
            node = {"shard_count": given.hosts, "shard_index": nth}
            sync, visits = {"strategy": given.strategy}, {"listen": "127.0.0.1:8443"}
            sections = {"train": train, "node": node, "sync": sync, "visits": visits}
            hosts.append(await members.start(f"host {nth}", wait_for=given.hosts - 1, **sections))
        offered = [collected(host) for host in hosts]
        for number in range(1, given.rounds - 1) if given.visited else ():
            while hosts[0].node.state.round < number:  # noqa: ASYNC110  # events of a test's swarm wake nobody
                await trio.sleep(LOOK_EVERY_S)
            for visitor in range(4):
                await leave(hosts[0], f"visitor {visitor}", torch.full((hosts[0].node.inner.trainer.numel,), 0.5))
        await members.finished()
        return offered, hosts[0].node.inner.trainer.numel


def mean_part(older: Versions, newer: Versions, apart: int, numel: int) -> float:
    """Return the mean length of differences over so many rounds, as a part of a model's bytes; 0 for equal models."""
    parts = []
    for round_, version in newer.items():
        before = older.get(round_ - apart)
        if before is not None and round_ > max(newer) // 4:  # the first rounds move further
            same = before.digest == version.digest
            size = 0 if same else len(difference_between(version.payload, before.payload, numel))
            parts.append(size / len(version.payload))
    return round(fmean(parts), 3)


def main() -> None:
    """Print one JSON line."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--hosts", type=int, default=3)
    words.add_argument("--strategy", default="tracked_gossip")
    words.add_argument("--rounds", type=int, default=40)
    words.add_argument("--visited", action="store_true")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = partial(versions_of, given, Path(folder))
        offered, numel = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    told: dict[str, object] = {"strategy": given.strategy, "visited": given.visited}
    told["of_one_host"] = {apart: mean_part(offered[0], offered[0], apart, numel) for apart in APART[1:]}
    told["of_two_hosts"] = {apart: mean_part(offered[1], offered[0], apart, numel) for apart in APART}
    print(json.dumps(told))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
