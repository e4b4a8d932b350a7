"""Measure how much memory a strategy adds while it closes a round, beyond the vectors that it keeps.

    python scripts/round_memory.py [--parameters 25305600] [--strategy diloco ...] [--set estimates=bf16]

One process a strategy, one thread, three neighbours, no network. The model's own vectors and what the strategy keeps
are there before; the kernel's peak of resident memory is read around each part of the last of five rounds (in the
first ones buffers begin). Prints a JSON line for each strategy: bytes a parameter of each part, and what stays between
rounds, the libraries' own memory included.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.system.script_end import ended_in_a_line
from p2ptrain.sync import SYNC_STRATEGIES, SyncConfig, SyncStrategy, averages_gradients, build
from p2ptrain.sync.base import AllReduceStrategy, InPlace, Reduced

PEERS = ("one", "two", "three")
ROUNDS = 5
"""Of four fragments each has had its turn once, and the first one twice: all buffers have begun."""


def status(field: str) -> int:
    """A number of the kernel's about this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def settle() -> None:
    """Give what is free back to the kernel."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def peak(work: Callable[[], object]) -> int:
    """Return the bytes by which the peak while `work` runs is above what was resident before."""
    settle()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    kept = work()
    del kept
    return status("VmHWM") - before


def gossiped(node: SyncStrategy, theta_d: torch.Tensor, round_: int) -> dict[str, int]:
    """Bytes that each part of a round with three neighbours adds."""
    messages: list[Any] = []
    parts = {"encode": peak(lambda: messages.append(node.encode(theta_d, round=round_)))}

    def apply() -> None:
        for peer in PEERS:
            node.apply(peer, messages[0].codec, messages[0].payload)

    parts["apply"] = peak(apply)
    close = node.aggregate_ if isinstance(node, InPlace) else node.aggregate
    parts["close"] = peak(lambda: close(theta_d, dict.fromkeys(PEERS, 0), round=round_))
    return parts


def exchanged(node: AllReduceStrategy, theta_d: torch.Tensor, round_: int) -> dict[str, int]:
    """Bytes that each part of an exchange in a pair adds, in which the other one's model is our own."""
    packed: list[bytes] = []
    parts = {"pack": peak(lambda: packed.append(node.pack(theta_d, round=round_)))}
    half = (len(packed[0]) >> 21) << 20
    spans = (slice(0, half), slice(half, len(packed[0])))
    views = [memoryview(packed[0])[span] for span in spans]
    reduced: list[bytes] = []

    def reduce() -> bytes:
        return node.reduce({"own": views[0], "one": views[0]}, group=["own", "one"], part=spans[0])

    parts["reduce"] = peak(lambda: reduced.append(reduce()))
    came = [Reduced("own", spans[0], reduced[0]), Reduced("one", spans[1], bytes(views[1]))]
    close = getattr(node, "finish_", node.finish)
    parts["close"] = peak(lambda: close(theta_d, ["own", "one"], came, round=round_))
    return parts


def measure(config: SyncConfig, numel: int) -> dict[str, float]:
    """Bytes a parameter that the parts of the last round add."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    before = status("VmRSS")
    node = build(config, torch.randn(numel, generator=generator), "own")
    for peer in PEERS:
        node.track(peer, None)
    parts: dict[str, int] = {}
    for round_ in range(ROUNDS):
        theta_d = torch.randn(numel, generator=generator)
        one_round = exchanged if isinstance(node, AllReduceStrategy) else gossiped
        parts = one_round(node, theta_d, round_)  # type: ignore[arg-type]
        del theta_d
    settle()
    return {name: round(value / numel, 2) for name, value in {**parts, "kept": status("VmRSS") - before}.items()}


def main() -> None:
    """Measure each strategy in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_305_600)
    parser.add_argument(
        "--strategy", nargs="+", default=[n for n in SYNC_STRATEGIES.names() if not averages_gradients(n)]
    )
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--here", action="store_true", help="measure one strategy in this process")
    given = parser.parse_args()
    for strategy in given.strategy:
        if not given.here:
            words = [word for setting in given.set for word in ("--set", setting)]
            again = [sys.executable, __file__, "--here", "--parameters", str(given.parameters), "--strategy", strategy]
            subprocess.run([*again, *words], check=True)
            continue
        options = dict(setting.split("=", 1) for setting in given.set)
        found = measure(SyncConfig(strategy=strategy, **options), given.parameters)
        print(json.dumps({"strategy": strategy, "parameters": given.parameters, **found}), flush=True)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
