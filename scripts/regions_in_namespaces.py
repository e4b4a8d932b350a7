"""A swarm in two regions against the same swarm without them, over a slow link between two fast networks.

    sudo .venv/bin/python scripts/regions_in_namespaces.py [--nodes 8] [--rounds 60] [--mbit 20] [--delay-ms 50]

Every second node is behind a second switch, in network namespaces (as in `bench race`). Inside either half links have
1000 Mbit/s, between them --mbit, and a frame takes --delay-ms. In each turn the swarm runs once in two regions and once
flat. What passed between the halves is read off the link: every frame counts. Its other options are below.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from plan_against_up import LIMIT_S, address_in, ended, events_in, start

from node.bench.race.contestants import wait_until
from node.bench.race.crew import Crew
from node.bench.race.namespaces import Hosts, check_possible
from node.config.schema import from_raw
from node.system.script_end import ended_in_a_line

INSIDE_MBIT = 1000.0
LABELS = ("east", "west")


def main(words: Sequence[str]) -> None:
    """Run both in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="byte-lm")
    parser.add_argument("--size", default="pico", help="of the byte-lm")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--mbit", type=float, default=20.0, help="of the link between the halves")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of a frame between the halves, each way")
    parser.add_argument("--every", type=int, default=8, help="rounds between two averagings of regions")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the regions' mean (sync.region_momentum)")
    parser.add_argument("--turns", type=int, default=1)
    given = parser.parse_args(list(words))
    if not 0 <= given.momentum < 1:
        parser.error("--momentum is from 0 to below 1")
    check_possible()
    turns = [{name: run(given, regions=name == "regions") for name in ("regions", "flat")} for _ in range(given.turns)]
    for what in turns[0]["flat"]:
        regions, flat = (statistics.median(turn[name][what] for turn in turns) for name in ("regions", "flat"))
        ratio = f", ratio {regions / flat:.4f}" if flat else ""
        print(f"{what}: regions {regions:.5g}, flat {flat:.5g}{ratio}")


def run(given: argparse.Namespace, *, regions: bool) -> dict[str, float]:
    """One swarm to its end."""
    with tempfile.TemporaryDirectory(prefix="regions-") as name:
        folder = Path(name)
        logs = [folder / f"host-{rank}" / "events.jsonl" for rank in range(given.nodes)]
        between = {"between_mbit": given.mbit, "between_s": given.delay_ms / 1000}
        with Hosts(given.nodes, INSIDE_MBIT, **between) as hosts, Crew() as crew:
            for rank in range(given.nodes):
                peers = (address_in(logs[0]),) if rank else ()
                config = from_raw(settings(given, LABELS[rank % 2] if regions else ""))
                start(config, given, folder, hosts, crew, rank, peers)
                if rank == 0:
                    wait_until(lambda: bool(address_in(logs[0])), crew, "the first node has not started")
            deadline = time.monotonic() + LIMIT_S
            while not all(map(ended, logs)) and time.monotonic() < deadline:
                time.sleep(0.2)
            figures = {"bytes between": float(hosts.bytes_between())} | means(logs)
        print(json.dumps({"regions": regions, **figures}), flush=True)
        return figures


def settings(given: argparse.Namespace, region: str) -> dict[str, dict[str, object]]:
    """What all nodes run with. In regions a node waits for those of its own."""
    task = {"name": given.task} | ({"size": given.size} if given.task == "byte-lm" else {})
    train = {"rounds": given.rounds, "inner_steps": given.inner_steps, "eval_every": given.rounds}
    regional = {"regions": LABELS, "region_momentum": given.momentum} if region else {}
    return {
        "task": task,
        "train": train,
        "sync": {"region_every": given.every, **regional},
        "node": {"region": region},
    }


def means(logs: Sequence[Path]) -> dict[str, float]:
    """Of all nodes: how often they have averaged with other regions, the last losses, utilization, and seconds."""
    finished = [next(event for event in events_in(log) if event["event"] == "finished")["summary"] for log in logs]
    turns = [[event for event in events_in(log) if event["event"] == "regions"] for log in logs]
    return {
        "moves": statistics.mean(sum(turn["moved"] for turn in each) for each in turns),
        "eval loss": statistics.mean(summary["eval_loss_last"] for summary in finished),
        "utilization": statistics.mean(summary["utilization"] for summary in finished),
        "seconds": statistics.mean(summary["wall_s"] for summary in finished),
    }


if __name__ == "__main__":
    with ended_in_a_line():
        main(sys.argv[1:])
