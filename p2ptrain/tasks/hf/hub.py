"""Names of Hugging Face's hub, `user/name` or `user/name@revision`, as folders of this machine.

What is in the hub's cache is taken from there, and nobody is asked: so a run that goes on has the files that it began
with, though a branch of that name has moved on meanwhile (`hf download user/name` takes the newer ones). What is not,
is fetched whole. Code and pickles are never fetched.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from p2ptrain.faults import MAX_REASON_CHARS
from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.extras import require

MAX_NAME_CHARS: Final = 200
"""The hub's own are at most 96 for each part."""

_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME: Final = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>{_PART}(?:/{_PART})*))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

MODEL_FILES: Final = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")
"""Configuration, weights, vocabularies and chat templates."""
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "*.jinja", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class HubName:
    """A repository of the hub, and a branch, tag or commit of it."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(word: str) -> HubName | None:
    """Return the name of the hub that `word` is; None for what lies on this machine, and for what can be no such
    name."""
    found = _NAME.fullmatch(word) if len(word) <= MAX_NAME_CHARS else None
    if found is None or Path(word).exists():
        return None
    return HubName(repo=found["repo"], revision=found["revision"])


def commit_of(folder: Path) -> str | None:
    """Return the commit whose files lie in a folder of the hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else None


def folder_of(
    name: HubName, files: Sequence[str], is_whole: Callable[[Path], bool], *, what: str, kind: str = "model"
) -> Path:
    """Return the folder with the `files` (patterns) of a model or dataset, fetched where what the cache has is not
    whole. TaskError, in one line that says what to do, where it cannot be fetched, or is not `what` it should be."""
    with suppress(TaskError):
        found = _snapshot(name, files, kind, local_files_only=True)
        if is_whole(found):
            return found
    found = _snapshot(name, files, kind)
    if not is_whole(found):
        raise TaskError(
            f"{name} of the hub is not {what}, or was not fetched whole: hf download {name.repo} mends that"
        )
    return found


def _snapshot(name: HubName, files: Sequence[str], kind: str, **how: Any) -> Path:
    hub, errors = require("huggingface_hub"), require("huggingface_hub.errors")
    try:
        options = {"repo_type": kind, "revision": name.revision, "allow_patterns": list(files), **how}
        return Path(hub.snapshot_download(name.repo, **options))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        hint = "look at its name, or, where it is a private or gated one, log in: hf auth login"
        raise TaskError(f"there is no {name}, neither as a folder here nor on the hub: {hint}") from error
    except Exception as error:  # of the hub, of its client for HTTP, and of the disk: two dozen kinds
        of = "" if kind == "model" else f" --repo-type {kind}"
        hint = f"where there is a network: hf download {name.repo}{of} --local-dir FOLDER; then give that folder"
        why = _why(error)
        raise TaskError(f"{name} is not here, and cannot be fetched from the hub ({why}): {hint}") from error


def _why(error: Exception) -> str:
    """Return the first sentence of what the hub's library says, whole where it is of a usual length: what follows
    are keywords of calls that nobody here makes."""
    words = " ".join(str(error).split()) or type(error).__name__
    sentence = words.partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= MAX_REASON_CHARS else f"{sentence[: MAX_REASON_CHARS - 3]}..."
