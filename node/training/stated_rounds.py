"""The rounds after which a node has stated its region's model, on disk before the statement leaves the process.

Two statements of one round are a proof of two histories, and others ban the key for it, for good. A node that was
killed goes on from a checkpoint, or joins the others, and may close a round again after which it has stated a model.
Then it leaves the model to the others that are drawn.
"""

import json
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import write_atomic
from gossip.core.errors import LocalError

MAX_ROUNDS: Final = 64
"""Rounds that are remembered; of older ones the highest is, up to which none is stated any more. Chosen: who goes on
from a checkpoint repeats few."""

_MOST_BYTES: Final = 4096
"""Three times as many as the longest file has."""


class StatedRounds:
    """Kept in `path`, or without one in memory alone, as in simulations."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._stated: list[int] | None = None

    def state(self, round: int) -> bool:
        """Note that a model is stated after a round; it is on disk when this returns True. False where one was stated
        before, or may have been. Raises LocalError where the file cannot be read or written."""
        if self._stated is None:
            self._stated = self._read()
        if round in self._stated or (len(self._stated) >= MAX_ROUNDS and round < self._stated[0]):
            return False
        stated = sorted([*self._stated, round])[-MAX_ROUNDS:]
        self._write(stated)
        self._stated = stated
        return True

    def _read(self) -> list[int]:
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                said = json.loads(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LocalError(f"cannot read {self._path}: {error.strerror}") from error
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, list) or not all(type(each) is int for each in said):
            raise LocalError(f"{self._path} does not say after which rounds it was published: remove it")
        return sorted(said)[-MAX_ROUNDS:]

    def _write(self, stated: list[int]) -> None:
        if self._path is None:
            return
        try:
            write_atomic(self._path, json.dumps(stated).encode("ascii"))
        except OSError as error:
            raise LocalError(f"cannot write {self._path}: {error.strerror}") from error
