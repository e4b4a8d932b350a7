"""Folders of runs for the tests of the swarm's page, as real nodes leave them."""

import os
import subprocess
from pathlib import Path

from swarm_story import PEER, node_events

from node.events import EventLog
from node.run_dir import EVENTS, LOCK


def tell(log: EventLog, event: dict) -> None:
    log(event["event"], **{key: value for key, value in event.items() if key not in {"ts", "event"}})


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
            for event in node_events(index, rounds=rounds):
                tell(log, event | ({"peer_id": f"{PEER}{index}"} if event["event"] == "started" else {}))
            if finished:
                tell(log, {"event": "finished", "summary": None})
        (folder / LOCK).write_text(f"{killed if index >= count - dead else os.getpid()}\n")
    return run
