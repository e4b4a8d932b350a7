"""The feed of a whole swarm's page: members, their curves, and who exchanges with whom.

Folders are read only while a page is open: on a thread, at most once a second for all pages together.
"""

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from node.events.event_types import Event
from node.events.liveness import lives
from node.events.log import to_line
from node.page import members as logs
from node.page.feed import points_of
from node.page.history import Cursor
from node.page.members import CURVE, MAX_MEMBERS, NodeLog
from node.system.errors import UsageError
from node.system.next_command import export_words
from node.system.run_dir import LOCK

LOOK_S: Final = 1.0
"""Least seconds between two looks at the folders: rounds take seconds. A look at 1,000 logs took 0.2 s (measured, on a
busy machine of 2 cores)."""

LOOK_SHARE: Final = 0.1
"""Largest share of time spent looking: longer looks are further apart. Chosen."""


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What a look at the folders has found. `news`: of members that are known, with positions and whether they are
    alive; `gone`: members whose folders were deleted; `folders`: how many there are."""

    new: list[NodeLog]
    news: dict[Path, tuple[list[Event], logs.LogPosition, bool]]
    gone: list[Path]
    folders: int


@dataclass
class SwarmPlace:
    """How much one page has received."""

    generation: int = 0
    """Of the numbers by which it knows the members."""
    cursors: dict[tuple[Path, str], Cursor] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)


class SwarmFeed:
    """The nodes under some folders. `find` checks the folders at the start (UsageError)."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.events = 0
        self._runs = tuple(runs)
        self._members: dict[Path, NodeLog] = {}
        self._folders = 0
        self._looked: float | None = None
        self._apart_s = LOOK_S
        self._looking = trio.Lock()
        self._texts: dict[str, str] = {}
        self._rows: dict[Path, str] = {}
        """Each member as JSON, in the members' order; made again where something has changed."""
        self._generation = 0
        """Rises when a member's folder was deleted: then others have its number, and pages are told all anew."""

    def find(self) -> int:
        """Return how many nodes there are. Raises UsageError where a folder holds none."""
        return len(logs.find(self._runs))

    def place(self) -> SwarmPlace:
        """Return the position of a page that has received nothing yet."""
        return SwarmPlace(generation=self._generation)

    async def replay(self) -> None:
        """Look now, unless another page just has."""
        async with self._looking:
            if self._looked is not None and trio.current_time() - self._looked < self._apart_s:
                return
            began = trio.current_time()
            self._take(await trio.to_thread.run_sync(self._look))
            self._looked = trio.current_time()
            self._apart_s = max(LOOK_S, (self._looked - began) / LOOK_SHARE)

    async def changed(self, since: int) -> None:
        """Look until there is something new."""
        while self.events == since:
            await self.replay()
            if self.events == since:
                await trio.sleep(LOOK_S)

    def status(self) -> dict[str, Any]:
        """Return every member as JSON values, for `/status`."""
        return {"members": [member.as_dict() for member in self._members.values()], "left_out": self._left_out}

    def news(self, place: SwarmPlace) -> str:
        """Return what is new to a page, as one line of JSON, and advance its place; empty when nothing is."""
        told: dict[str, str] = {}
        if place.generation != self._generation:
            place.generation, told["anew"] = self._generation, "true"
            for known in (place.cursors, place.members, place.told):
                known.clear()
        for key, text in self._texts.items():
            if place.told.get(key) != text:
                place.told[key] = told[key] = text
        rows = {n: row for n, row in enumerate(self._rows.values()) if place.members.get(n) != row}
        if rows:
            place.members |= rows
            told["members"] = "{" + ", ".join(f'"{n}": {row}' for n, row in rows.items()) + "}"
        curves = self._curves(place)
        if curves:
            told["curves"] = json.dumps(curves)
        return "{" + ", ".join(f'"{key}": {text}' for key, text in told.items()) + "}" if told else ""

    @property
    def _left_out(self) -> int:
        return max(0, self._folders - len(self._members))

    def _curves(self, place: SwarmPlace) -> list[dict[str, Any]]:
        """Return the news of each member's curves: only the new points of a curve that was sent whole before."""
        told = []
        for n, member in enumerate(self._members.values()):
            for name, curve in (("rounds", member.rounds), ("held_out", member.held_out)):
                news = curve.since(place.cursors.get((member.folder, name), Cursor()))
                if news is not None and (news.rows or (member.folder, name) in place.cursors):
                    told.append({"member": n, "curve": name} | points_of(news))
                if news is not None:
                    place.cursors[member.folder, name] = news.cursor
        return told

    def _look(self) -> _Look:
        """Read the folders. It runs on a thread, and changes nothing that is shown."""
        folders: dict[Path, Path] = {}
        for run in self._runs:
            with suppress(UsageError):  # removed meanwhile, and the others are not
                folders |= {folder: of_run for of_run, folder in logs.find([run])}
        known = {folder: member for folder, member in self._members.items() if folder.is_dir()}
        gone = [folder for folder in self._members if folder not in known]
        new = [(run, folder) for folder, run in folders.items() if folder not in known][: MAX_MEMBERS - len(known)]
        members = logs.read(new, among=len(known) + len(new))
        news = {folder: (*logs.news_of(folder, member.place), lives(folder / LOCK)) for folder, member in known.items()}
        return _Look(new=members, news=news, gone=gone, folders=len(folders))

    def _take(self, look: _Look) -> None:
        self._folders = look.folders
        for folder in look.gone:
            del self._members[folder], self._rows[folder]
        self._generation += bool(look.gone)
        before, changed = self._texts, list(look.new)
        for folder, (events, place, alive) in look.news.items():
            member = self._members[folder]
            if events or alive != member.lives:
                changed.append(member)
            member.place, member.lives = place, alive
            for event in events:
                member.take(event)
        self._members |= {member.folder: member for member in look.new}
        self._rows |= {member.folder: to_line(member.as_dict()).rstrip("\n") for member in changed}
        self._texts = {
            "columns": json.dumps(CURVE),
            "left_out": str(self._left_out),
            "runs": json.dumps(self._of_runs()),
            "exchanges": json.dumps(self._exchanges()),
        }
        if changed or look.gone or self._texts != before:
            self.events += 1

    def _of_runs(self) -> list[dict[str, Any]]:
        runs = dict.fromkeys(member.run for member in self._members.values())
        return [
            {
                "path": str(run),
                "name": run.absolute().name,
                "export_command": shlex.join(["p2ptrain", *export_words(run.absolute())]),
            }
            for run in runs
        ]

    def _exchanges(self) -> list[list[int]]:
        """Return (author, reader, rounds of staleness), by the numbers of members of one run."""
        members = list(self._members.values())
        numbers = {(member.run, member.progress.peer_id): n for n, member in enumerate(members)}
        return [
            [author, n, stale]
            for n, member in enumerate(members)
            for peer, stale in member.exchanges.items()
            if (author := numbers.get((member.run, peer))) is not None and author != n
        ]
