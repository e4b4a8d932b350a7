"""What a report is made of: logs of nodes and tables of results, found under the paths that a person gave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from node.system.errors import UsageError
from node.system.run_dir import CONFIG, EVENTS, LOCK, SUMMARY, natural
from node.system.text import plural

MAX_NODES: Final = 1000
"""Most logs in one report, as on the page of a swarm."""

PARQUET: Final = ".parquet"


@dataclass
class Sources:
    """Logs with the run folder of each, Parquet files, and what is missing, in sentences."""

    logs: list[tuple[Path, Path]] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(paths: Sequence[Path]) -> Sources:
    """Return what there is under the paths: files, or folders of any depth. UsageError where one has nothing."""
    found = Sources()
    logs: dict[Path, Path] = {}
    for path in paths:
        new, tables = _under(path)
        if not new and not tables:
            why = f"neither {EVENTS} nor *{PARQUET} in it" if path.exists() else "there is no such file or folder"
            raise UsageError(f"{path} is nothing to report on: {why}", "look under runs/, or where --out was")
        logs |= {log: _run_of(log) for log in new}
        found.tables += [table for table in tables if table not in found.tables]
        found.notes += [f"{folder} has no {EVENTS}" for folder in _silent(path)]
    found.logs = list(logs.items())[:MAX_NODES]
    if len(logs) > MAX_NODES:
        found.notes.append(f"{plural(len(logs) - MAX_NODES, 'more log')} left out: {MAX_NODES} is the most in a report")
    return found


def _under(path: Path) -> tuple[list[Path], list[Path]]:
    if path.is_file():
        return ([], [path]) if path.suffix == PARQUET else ([path], [])
    logs = sorted(path.rglob(EVENTS), key=lambda log: [natural(each) for each in (*log.parents, log)][::-1])
    return logs, sorted(path.rglob(f"*{PARQUET}"))


def _run_of(log: Path) -> Path:
    return log.absolute().parent.parent


def _silent(path: Path) -> Iterator[Path]:
    """Yield folders of nodes, by what else nodes write, that have no log."""
    if path.is_dir():
        for folder in sorted(path.glob("*/"), key=natural):
            marks = (folder / CONFIG, folder / SUMMARY)
            if any(map(Path.is_file, marks)) and (folder / LOCK).exists() and not any(folder.rglob(EVENTS)):
                yield folder
