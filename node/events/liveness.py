"""Whether a node is alive: by the lock that its process holds, and by the heartbeat of its event loop.

The kernel releases a lock when its process ends, however it ends. So a log that says "running" beside a free lock is of
a process that was killed. A live process sets its lock's time every few seconds from its event loop. Where that has
stopped, the loop hangs, or the process was stopped. Both signs are for nodes of this machine: for a node on another
machine see its status page.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import trio

from node.events.progress import NodeProgress
from node.system import text
from node.system.disk import disk_free
from node.system.next_command import command, export_command, node_command, of_swarm
from node.system.run_dir import LOCK, is_held

HEARTBEAT_S: Final = 5.0
"""Seconds between two heartbeats: each is a system call of microseconds. Chosen."""

SILENT_S: Final = 20.0
"""Seconds without a heartbeat after which a node is called silent: four heartbeats, so that a machine that is busy for
some seconds raises no alarm. Chosen."""

FULL_BYTES: Final = 1 << 16
"""Free bytes below which a disk counts as full: the last events of a node do not fit. Chosen."""

MAX_TOLD: Final = 8
"""Most nodes of a run whose ends are listed one by one. Chosen: more push the table off a screen."""


CLOCK_SLACK_S: Final = 60.0
"""Seconds by which a clock that was set meanwhile may make a process look younger than its lock."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What a node's folder shows about its process."""

    held: bool | None = None
    """Whether a process holds the folder; None: there is no lock file."""
    beat: float | None = None
    """The newest heartbeat, in Unix seconds."""
    pid: int | None = None
    """The process that holds the folder, or held it last."""


def look(folder: Path) -> Signs:
    """Return the signs of life in a node's folder."""
    path = folder / LOCK
    try:
        beat, words = path.stat().st_mtime, path.read_bytes()[:32]
        held = is_held(folder)
    except OSError:
        return Signs()
    return Signs(held=held, beat=beat, pid=int(words) if words.strip().isdigit() else None)


def judge(node: NodeProgress, signs: Signs, now: float) -> None:
    """Correct a node's state, as its events give it, by the signs of its process."""
    node.heartbeat = max((each for each in (node.updated_at, signs.beat) if each is not None), default=None)
    if signs.held and node.pid is not None and signs.pid not in (None, node.pid):
        node.state = "starting"  # another process than the one that wrote these events
    elif node.state == "dead" and signs.held:
        node.state = "starting"
    elif node.over:
        return
    elif signs.held is False:
        node.state, node.ended_at = "dead", node.heartbeat
    elif node.state in {"running", "silent"}:
        news = node.heartbeat is None or now - node.heartbeat <= SILENT_S
        node.state = "running" if news else "silent"


async def beat(folder: Path) -> None:
    """Give a heartbeat every HEARTBEAT_S, until cancelled. The caller holds the folder."""
    while True:
        with suppress(OSError):  # without a lock file there is no heartbeat
            os.utime(folder / LOCK)
        await trio.sleep(HEARTBEAT_S)


def words(node: NodeProgress, now: float) -> str:
    """Return how and when a node ended, since when it is silent, or why it is paused; empty where it trains or
    starts."""
    done = f"round {node.rounds_done} of {node.rounds}" if node.rounds else f"round {node.rounds_done}"
    at = f" {ago(now - node.ended_at)}" if node.ended_at is not None else ""
    why = "; ".join(part for part in (node.error, node.hint) if part)
    return {
        "dead": f"ended without a word (killed?){at} at {done}",
        "finished": f"finished{at} after {done}",
        "interrupted": f"interrupted{at} at {done}",
        "failed": f"failed{at} at {done}: {why}",
        "running": f"paused by {node.paused}" if node.paused else "",
        "silent": f"no news for {text.duration(now - (node.heartbeat or now))}",
    }.get(node.state, "")


def lines(nodes: Iterable[tuple[Path | None, NodeProgress]], now: float) -> Iterator[str]:
    """Yield how each node that does not train ended, or why it is paused, and what is not saved, and then the commands
    that resume those that ended. Each node comes with its folder, if that is on this machine."""
    nodes = list(nodes)
    told = [(node.name, its) for _, node in nodes for its in (words(node, now), _unsaved(node)) if its]
    for name, its in told[:MAX_TOLD]:
        yield f"{text.printable(name)}: {text.printable(its)}"  # of a log that may be another machine's
    if len(told) > MAX_TOLD:
        yield f"and {len(told) - MAX_TOLD} more"
    yield from _full_disks({folder for folder, node in nodes if folder is not None and node.state == "dead"})
    yield from _commands([(folder, node) for folder, node in nodes if folder is not None])


def _unsaved(node: NodeProgress) -> str:
    """Return what a node that runs would lose if it were killed; empty where that is no more than usual."""
    if node.over or not node.unsaved:
        return ""
    newest = "none" if node.checkpoint_round is None else f"the newest is of round {node.checkpoint_round}"
    return f"cannot write a checkpoint ({node.unsaved}): {newest}, of {node.rounds_done} done"


def _full_disks(folders: set[Path]) -> Iterator[str]:
    """Yield a line for each full disk: a node that ended for it could say so on its terminal only, and in no file."""
    for folder in sorted(folders)[:MAX_TOLD]:
        if 0 <= disk_free(folder) < FULL_BYTES:
            yield f"the disk of {folder} is full: free some space first"


def _commands(nodes: list[tuple[Path, NodeProgress]]) -> Iterator[str]:
    over = bool(nodes) and all(node.over for _, node in nodes)
    if over and all(node.state == "finished" for _, node in nodes):
        run = nodes[0][0].parent if of_swarm(nodes[0][0]) or len(nodes) > 1 else nodes[0][0]
        yield f"the model, taken home: {export_command(run)}"
        return
    ended = [folder for folder, node in nodes if node.state in {"dead", "interrupted", "failed"}]
    again = dict.fromkeys(command(folder) if over else node_command(folder) for folder in ended)
    for line in list(again)[:MAX_TOLD]:
        yield f"go on with: {line}"


def ago(seconds: float) -> str:
    """`9 s ago`, `3 min ago`, `5 h ago`, `4 days ago`."""
    whole = max(0, int(seconds))
    for unit, size, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if whole < most * size:
            return f"{whole // size} {unit} ago"
    return f"{whole // 86400} days ago"


def lives(lock: Path) -> bool:
    """Return whether the process that took the lock is alive. The lock itself is not tried: a node that starts at that
    moment would find it taken. The process id may belong to a younger process by now, or to an ended one that its
    parent has not yet waited for."""
    try:
        process = psutil.Process(int(lock.read_text()))
        young = process.create_time() > lock.stat().st_mtime + CLOCK_SLACK_S
        return not young and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False
