"""Measures after how many rounds one who signs two histories is found out, in swarms of every size.

    PYTHONHASHSEED=0 python scripts/equivocation.py [--nodes 16 32 64 128 1000 10000] [--seeds 20]

Prints one JSON line for each size, lie and rule (node/simulation/equivocation.py). `before`: every k-th link goes all
the way, k = 1 up to 48 members and 64 at most, and only those who follow a signer compare its links (decision 81).
`first`: the round, from the first lie on, in which somebody had a proof; `all`: in which all neighbours of the liar's
had one; median and most of those seeds where it came to that, and how often it did.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from gossip.updates.audits import audit_every
from node.simulation.equivocation import AWAY_ROUNDS, EquivocationModel, Found, Lie
from node.system.script_end import ended_in_a_line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[16, 32, 64, 128, 1000, 10000])
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    for nodes in given.nodes:
        for lie in Lie:
            for rule, k in (("before", every_before(nodes)), ("now", audit_every(nodes))):
                began, rounds = time.process_time(), 3 * k + AWAY_ROUNDS
                every = k if rule == "before" else None
                found = [
                    EquivocationModel(nodes, seed, compares=rule == "now", every=every).play(lie, rounds)
                    for seed in range(given.seeds)
                ]
                print(json.dumps({"nodes": nodes, "lie": lie, "rule": rule, "k": k, **summed(found)}), end=" ")
                print(f"{time.process_time() - began:.0f} CPU s", flush=True)


def every_before(members: int) -> int:
    """Return the k of decision 81."""
    k = 1
    while k < 64 and 2 * members > 3 * k * 32:
        k *= 2
    return k


def summed(found: Sequence[Found]) -> dict[str, Any]:
    """Return medians, most and how often, of each."""
    return {
        "first": _summed([each.first for each in found]),
        "all": _summed([each.all for each in found]),
    }


def _summed(rounds: Sequence[int | None]) -> dict[str, Any]:
    known = [each for each in rounds if each is not None]
    share = f"{len(known)}/{len(rounds)}"
    return {"median": statistics.median(known), "most": max(known), "of": share} if known else {"of": share}


if __name__ == "__main__":
    with ended_in_a_line():
        main()
