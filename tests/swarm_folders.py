"""Folders of runs for the tests of the swarm's page, as real nodes leave them, and the events in them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from typed_events import typed

from node.events.event_types import Record
from node.events.log import EventLog
from node.system.run_dir import EVENTS, LOCK

MEMBER = "12D3KooWBqR1mAqEDv1Gd8S1bMbM1iV9pJ2YzPCf7oY8Zf7M8cM"


def member_events(index: int, *, rounds: int) -> Iterator[Record]:
    """What member `index` tells: it starts, is evaluated, and closes so many rounds, a second each."""
    yield {
        "ts": 0.0,
        "event": "started",
        "peer_id": f"{MEMBER}{index}",
        "metrics_url": f"http://127.0.0.1:{9400 + index}",
        "parameters": 459_776,
        "device": "cpu",
        "aggregator": "trimmed_mean",
        "compressor": "q2",
    }
    yield {"ts": 0.0, "event": "evaluated", "round": 0, "eval_loss": 5.5}
    for done in range(1, rounds + 1):
        yield member_round(done, index=index)
    yield {"ts": float(rounds), "event": "evaluated", "round": rounds, "eval_loss": 2.5}


def member_round(done: int, *, index: int = 0) -> Record:
    """A closed round, for which the updates of the first three members were taken."""
    return {
        "ts": float(done),
        "event": "round",
        "round": done,
        "rounds": 10_000,
        "steps": 20,
        "train_loss": 1 + 4 / (done + index),
        "consensus_distance": 1.25,
        "tokens_per_s": 6_800.0 + done % 7,
        "tokens": 6_800 * done,
        "neighbours": 3,
        "members": 4,
        "payload_bytes_sent": 120_000 * done,
        "payload_bytes_received": 360_000 * done,
        "bytes_sent": 125_000 * done,
        "bytes_received": 375_000 * done,
        "sent_bits": 0.109,
        "published_bits": 0.035,
        "accepted": 3 * done,
        "rejected": index,
        "updates_in_time": 0.97,
        "utilization": 0.94,
        "cpu_s": 1.5 * done,
        "rss_bytes": (300 << 20) + done,
        "learning_rate": 0.003,
        "staleness": {f"{MEMBER}{other}": other for other in range(3)},
    }


def tell(log: EventLog, record: Record) -> None:
    """Log an event that has its name already; the log gives it its time."""
    log(typed({"ts": 0.0} | record))


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def make_run(run: Path, count: int, *, rounds: int = 6, dead: int = 0, finished: bool = False) -> Path:
    """`count` members, the last `dead` of them killed; the others live in this process, or have finished."""
    killed = gone() if dead else 0
    for index in range(count):
        folder = run / f"node-{index}"
        folder.mkdir(parents=True)
        with EventLog(folder / EVENTS) as log:
            for event in member_events(index, rounds=rounds):
                tell(log, event)
            if finished:
                tell(log, {"event": "finished", "summary": None})
        (folder / LOCK).write_text(f"{killed if index >= count - dead else os.getpid()}\n")
    return run
