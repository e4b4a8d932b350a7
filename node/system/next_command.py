"""The command that goes on with a run, or takes its model home, as a person types it again."""

import shlex
from pathlib import Path

from node.system import text
from node.system.ranks import site_process
from node.system.run_dir import LOCK, PEERS


def command(folder: Path) -> str:
    """Return the command that goes on in a node's folder: for a node of `p2ptrain up` the whole swarm's. The folder
    knows all settings."""
    if of_swarm(folder):
        return _line("up", "--run-dir", str(folder.parent))
    return node_command(folder)


def node_command(folder: Path) -> str:
    """Return the command that goes on with this node alone, by as many ranks where it is a site's."""
    words = ["node", "--run-dir", str(folder.parent)]
    if folder.name != "node":
        words += ["--name", folder.name]
    ranks = site_process()
    return _line(*words) if ranks is None else shlex.join([*ranks.launcher(), *words])


def export_command(run: Path) -> str:
    """Return the command that writes the model of a run's folder into a file."""
    return _line("export", str(run), "--out", "model.safetensors")


def of_swarm(folder: Path) -> bool:
    """Return whether `p2ptrain up` made the folder: it holds a lock of its own above its nodes', and lists their
    addresses."""
    return (folder.parent / PEERS).is_file() and (folder.parent / LOCK).is_file()


def _line(*words: str) -> str:
    return f"{text.program()} {shlex.join(words)}"
