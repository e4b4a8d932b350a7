"""The privacy ledger: what a node's data have told so far, in `privacy.jsonl` of its folder (chained_log.py).

    mechanism, noise, rate, count    the releases that an entry covers (p2ptrain/privacy/base.py)

It is a file of its own, for a checkpoint goes back and this must not; each checkpoint names the entry that it has seen.
The sum of its first entries has in the file (chained_log.py)

    releases     mechanism, noise, rate and count of all that differ in the first three
    costliest    the fields of the entry that spends most

A line that was cut is charged as the costliest entry that the file has, or as what is asked for next if that costs
more.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.privacy.chained_log import ChainContents, ChainedLog, Fields, LedgerMark, What, read_lines
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

MOST_COMPARED: Final = 1024
"""Entries that differ which are known to be no costlier; then they are compared anew, at two milliseconds each."""

COMPARED_AT: Final = 1e-5
"""Delta at which two entries are compared by what they cost."""


@dataclass
class LedgerContents(ChainContents):
    """What a privacy ledger holds."""

    releases: dict[tuple[str, float, float], int] = field(default_factory=dict)
    """How many, by mechanism, noise and rate."""
    costliest: Release | None = None
    """The entry that spends most."""
    _compared: set[Release] = field(default_factory=set)

    def whole_releases(self) -> list[Release]:
        """Return what the whole lines have spent."""
        return [
            Release(mechanism=mechanism, noise=noise, rate=rate, count=count)
            for (mechanism, noise, rate), count in self.releases.items()
        ]

    @property
    def mechanisms(self) -> set[str]:
        """Return by what data were protected."""
        return {mechanism for mechanism, _, _ in self.releases}

    def all_releases(self) -> list[Release]:
        """Return what was spent, as far as it is known of torn lines."""
        return [*self.whole_releases(), *([] if self.costliest is None else [self.costliest] * self.torn)]

    def take(self, fields: Fields) -> None:
        """Count an entry's releases."""
        release = _release(fields)
        key = (release.mechanism, release.noise, release.rate)
        if release not in self._compared:  # a run has few that differ
            self.costliest = _costlier(self.costliest, release)
            if len(self._compared) >= MOST_COMPARED:
                self._compared.clear()
            self._compared.add(release)
        self.releases[key] = self.releases.get(key, 0) + release.count

    def total(self) -> dict[str, Any]:
        """Return how many of each, and the costliest entry."""
        return {
            "releases": [[*key, count] for key, count in self.releases.items()],
            "costliest": None if self.costliest is None else _fields(self.costliest),
        }

    def take_total(self, fields: Fields) -> None:
        """Begin with what `total` returned."""
        costliest = fields["costliest"]
        self.costliest = None if costliest is None else _release(costliest)
        for mechanism, noise, rate, count in fields["releases"]:
            self.releases[str(mechanism), float(noise), float(rate)] = int(count)


class PrivacyLedger:
    """A ledger that this process alone writes. Close it; the kernel lets go of its lock when the process ends."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open the file, or make it. Raises RunError where another process has it, or it is damaged."""
        self.path, self.contents = path, LedgerContents()
        self._log = ChainedLog(path, self.contents, clock=clock, without="no private step may be taken")

    @property
    def mark(self) -> LedgerMark:
        """Return the newest entry."""
        return self.contents.mark

    def with_torn(self, release: Release) -> list[Release]:
        """Return what `append` would write for `release`: before it what is owed for torn lines."""
        costliest = _costlier(self.contents.costliest, release)
        return [*[costliest] * self.contents.torn, release]

    def append(self, release: Release) -> None:
        """Write that `release` is about to be made. When it returns, that is on the disk. Raises RunError where it is
        not: then nothing may be released by this process any more."""
        torn: list[What] = ["torn"] * self.contents.torn
        self._log.append(
            [(_fields(each), what) for each, what in zip(self.with_torn(release), [*torn, "released"], strict=True)]
        )

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()


def read_ledger(path: Path) -> LedgerContents:
    """Return what a ledger holds; nothing where there is none. Raises RunError where it is damaged."""
    with suppress(FileNotFoundError), path.open("rb") as lines:
        return read_lines(lines, path, LedgerContents())
    return LedgerContents()


def _release(fields: Fields) -> Release:
    return Release(
        mechanism=str(fields["mechanism"]),
        noise=float(fields["noise"]),
        rate=float(fields["rate"]),
        count=int(fields["count"]),
    )


def _fields(release: Release) -> dict[str, Any]:
    return {
        "mechanism": release.mechanism,
        "noise": release.noise,
        "rate": release.rate,
        "count": release.count,
    }


def _costlier(one: Release | None, other: Release) -> Release:
    if one is None:
        return other
    return max((one, other), key=lambda it: epsilon_of([it], COMPARED_AT))
