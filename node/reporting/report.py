"""A report from paths to a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.reporting import html_file, report_sources
from node.reporting.document import ReportDocument
from node.reporting.gathered import gather
from node.reporting.run_report import run_document
from node.reporting.sweep_report import sweep_document
from node.reporting.table_rows import read_rows
from node.system.build import version
from node.system.errors import UsageError
from node.system.text import plural

if TYPE_CHECKING:
    from node.reporting.cross_site import CrossSite


@dataclass(frozen=True, kw_only=True)
class MadeReport:
    """What was written, and what a reader should know of it."""

    size: int
    counts: Mapping[str, int]
    notes: Sequence[str]
    cross_site: Mapping[str, Any] = field(default_factory=dict)
    """Of each run, by its folder: its cross-site evaluation as JSON values."""
    lines: Sequence[str] = ()
    """The same as text."""


def make_report(
    paths: Sequence[Path],
    out: Path,
    *,
    command: str,
    cross_site: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> MadeReport:
    """Read what the paths hold and write the report. `cross_site`: with the models of the runs measured on their
    members' test splits. UsageError on what cannot be one, RunError on what fails."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out: {out} cannot be a file", "give a file's name in a folder that there is")
    found = report_sources.find(paths)
    document, counts = _document(found, tell)
    measured = _cross_sites(found, tell) if cross_site else {}
    document, lines = _with_cross_sites(document, measured)
    document = replace(document, command=command, version=version(), made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    return MadeReport(
        size=html_file.write(document, out),
        counts=counts,
        notes=document.notes,
        cross_site={str(run): each.as_json() for run, each in measured.items()},
        lines=lines,
    )


def _cross_sites(found: report_sources.Sources, tell: Callable[[str], None]) -> dict[Path, "CrossSite"]:
    from node.reporting.cross_site import cross_site  # with it torch, which no other report waits for

    if not found.logs:
        raise UsageError("--cross-site: tables of results have no models", "give run folders")
    return {run: cross_site(run, tell=tell) for run in dict.fromkeys(run for _, run in found.logs)}


def _with_cross_sites(
    document: ReportDocument, measured: Mapping[Path, "CrossSite"]
) -> tuple[ReportDocument, list[str]]:
    if not measured:
        return document, []
    from node.reporting.cross_site import cross_site_lines, cross_site_section

    sections = [
        cross_site_section(each, run=run.name if len(measured) > 1 else "", number=number)
        for number, (run, each) in enumerate(measured.items())
    ]
    document = replace(document, sections=[*document.sections, *sections])
    return document, [line for section in sections for line in cross_site_lines(section)]


def _document(found: report_sources.Sources, tell: Callable[[str], None]) -> tuple[ReportDocument, dict[str, int]]:
    if found.logs and found.tables:
        raise UsageError(
            f"logs of nodes ({found.logs[0][0]}) and tables of results ({found.tables[0]}) are two reports",
            "make one of each",
        )
    if found.logs:
        tell(f"reading {plural(len(found.logs), 'log')}")
        gathered = gather(found.logs, found.notes)
        counts = {
            "nodes": len(gathered.stories),
            "events": sum(story.counts.events for story in gathered.stories),
            "lines": sum(story.counts.lines for story in gathered.stories),
        }
        if not counts["events"]:
            what = f"{plural(counts['lines'], 'line')} of {found.logs[0][0]} and no event among them"
            raise UsageError(what, "give a run folder, a node's folder, or its events.jsonl")
        return run_document(gathered), counts
    tell(f"reading {plural(len(found.tables), 'table')}")
    rows = read_rows(found.tables)
    return sweep_document(rows, found.notes), {"rows": len(rows), "tables": len(found.tables)}
