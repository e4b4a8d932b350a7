"""The relay through which a node reaches all others, and the folder that both share: whether they are there."""

import secrets
import time
from pathlib import Path

import trio

from gossip.transport.spool.spool_folder import SpoolFolder
from node.doctor.finding import Finding, Subject
from node.doctor.peer_checks import connect
from node.system.errors import UsageError
from node.system.spool_check import check_spool, spool_hint


async def relay(subject: Subject) -> list[Finding]:
    """Check the relay that is named, or the spool folder."""
    network = subject.network
    if network.spool is not None:
        return [await trio.to_thread.run_sync(_spool, network.spool, subject.node.role, abandon_on_cancel=True)]
    failed = await connect(network.via)
    seen = f"{network.via} takes connections: all others are reached through it"
    return [failed or Finding(check="relay", level="ok", seen=seen)]


def _spool(path: Path, role: str) -> Finding:
    try:
        check_spool(path, make=False)
    except UsageError as error:
        return Finding(check="spool folder", level="problem", seen=error.message, fix=f"mkdir -m 700 {path}")
    try:
        found, millis = SpoolFolder(path).relay(), 1e3 * _seconds_of_a_file(path)
    except OSError as error:
        seen = f"{path} does not take a file: {error.strerror}"
        return Finding(check="spool folder", level="problem", seen=seen, fix="free some room, or look at its mode")
    if role == "relay":
        return Finding(check="spool folder", level="ok", seen=f"{path}: a file takes {millis:.1f} ms there")
    if found is None or found.gone:
        seen = f"no relay serves {path}" if found is None else f"the relay that served {path} has ended"
        return Finding(check="spool folder", level="problem", seen=seen, fix=spool_hint(path))
    seen = f"a relay on {found.host} serves {path}; a file takes {millis:.1f} ms there"
    return Finding(check="spool folder", level="ok", seen=seen)


def _seconds_of_a_file(folder: Path) -> float:
    """Return how long a file takes to be written, renamed, listed and removed."""
    began = time.perf_counter()
    mine = secrets.token_hex(4)  # a job on every node of a cluster may look at once
    first, second = folder / f".doctor-{mine}.new", folder / f".doctor-{mine}"
    try:
        first.write_bytes(bytes(1024))
        first.rename(second)
        list(folder.iterdir())
    finally:
        for each in (first, second):
            each.unlink(missing_ok=True)
    return time.perf_counter() - began
