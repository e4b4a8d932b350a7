"""hivemind's averaging of the same tensors, by the Python that has hivemind: one order a line, one answer a line.

`PYTHON hivemind_peer.py PEERS MIB`. Nothing here is imported by p2ptrain, nor imports it. Every peer holds one fp32
tensor; a step averages them, matchmaking included, without compression. Settings are those of hivemind's own
benchmarks: a group is closed as soon as all are there.
"""

import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
STEP_S = 120
"""For a step; one that takes longer has not found its group."""
MATCHMAKING_S = 3.0
REQUEST_S = 2.0


def main(peers: int, mib: int) -> None:
    """Average once for each `average` on stdin; end with all that was started when stdin closes."""
    orders = _orders()
    hivemind, torch = importlib.import_module("hivemind"), importlib.import_module("torch")
    torch.set_num_threads(1)
    first = hivemind.DHT(start=True, host_maddrs=LOOPBACK)
    known = first.get_visible_maddrs()
    dhts = [first, *(hivemind.DHT(start=True, initial_peers=known, host_maddrs=LOOPBACK) for _ in range(peers - 1))]
    averagers = [_averager(hivemind, torch.randn(mib << 18), dht, peers) for dht in dhts]
    _say("ready")
    while orders.get() == "average":
        before = [_values(averager) for averager in averagers]
        began = time.perf_counter()
        for step in [averager.step(wait=False, timeout=STEP_S) for averager in averagers]:
            step.result()
        seconds = time.perf_counter() - began
        mean = sum(before[1:], before[0]) / peers
        wrong = max(float((_values(averager) - mean).abs().max()) for averager in averagers)
        _say("averaged", seconds=seconds, error=wrong)


def _averager(hivemind: Any, held: Any, dht: Any, peers: int) -> Any:
    return hivemind.averaging.DecentralizedAverager(
        [held],
        dht,
        prefix="bench",
        target_group_size=peers,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=REQUEST_S,
        compression=hivemind.compression.NoCompression(),
        start=True,
    )


def _values(averager: Any) -> Any:
    with averager.get_tensors() as tensors:
        return tensors[0].clone()


def _orders() -> "queue.Queue[str]":
    """What the parent says. When it has gone, this whole process group goes: hivemind has processes of its own."""
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        # Not sys.stdin: its lock, held here, would be copied into every process that hivemind forks, which close it.
        with os.fdopen(os.dup(0)) as stdin:
            for line in stdin:
                orders.put(json.loads(line)["do"])
        if os.getpgid(0) == os.getpid():  # else it is a person's shell that started this
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return orders


def _say(said: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"said": said, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
