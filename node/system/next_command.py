"""The command that goes on with a run, or takes its model home, as a person types it again."""

import shlex
import tomllib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from node.system import text
from node.system.errors import P2PTrainError
from node.system.ranks import site_process
from node.system.run_dir import CONFIG, LOCK, PEERS, node_dirs

OF_TRANSFORMERS: Final = frozenset({"hf-lm", "hf-vision"})
"""Tasks whose models go home as a folder of transformers', with their configuration and tokenizer."""


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
    """Return the command that takes the model of a run's or a node's folder home."""
    return _line(*export_words(run))


def export_words(run: Path) -> list[str]:
    """Return the same without the program: a folder of transformers' for a task that has one, else a file."""
    return ["export", str(run), *export_options(_task_in(run))]


def export_options(task: str) -> list[str]:
    """Return the options of `p2ptrain export` by which the models of a task go home."""
    return ["--to", "hf", "--out", "model"] if task in OF_TRANSFORMERS else ["--out", "model.safetensors"]


def _task_in(run: Path) -> str:
    """The task's name in the settings of a run's first node; empty where none can be read, yet."""
    with suppress(OSError, LookupError, TypeError, ValueError, P2PTrainError):
        return _task_of(node_dirs(run)[0] / CONFIG)
    return ""


@lru_cache(maxsize=256)
def _task_of(settings: Path) -> str:
    """The task's name in a file of settings, which does not change: pages ask every second. Errors are not kept."""
    return str(tomllib.loads(settings.read_text(encoding="utf-8"))["task"]["name"])


def of_swarm(folder: Path) -> bool:
    """Return whether `p2ptrain up` made the folder: it holds a lock of its own above its nodes', and lists their
    addresses."""
    return (folder.parent / PEERS).is_file() and (folder.parent / LOCK).is_file()


def _line(*words: str) -> str:
    return f"{text.program()} {shlex.join(words)}"
