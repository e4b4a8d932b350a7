"""`p2ptrain report`: what runs and sweeps left, as one HTML file."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from node.cli import options


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Run folders, nodes' folders or logs, and folders of results (Parquet)."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    cross_site: Annotated[
        bool, typer.Option("--cross-site", help="Measure each member's model on each member's own test split.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json: options.Json = False,
) -> None:
    """Write one HTML file on runs or sweeps, which loads nothing: losses with intervals, bytes sent, who exchanged with
    whom, a timeline to play, every node.

    It reads, and changes nothing but --out.
    """
    import json as jsonlib
    import time

    from node.cli.telling import on_a_terminal
    from node.reporting.report import make_report
    from node.system.text import plural, size

    _check_is_ours(out)
    begun = time.perf_counter()
    command = shlex.join(
        [
            *("p2ptrain", "report", *map(str, paths)),
            *(["--cross-site"] if cross_site else []),
            *(["--out", str(out)] if str(out) != "report.html" else []),
        ]
    )
    with on_a_terminal("reading", quiet=json) as tell:
        made = make_report(paths, out, command=command, cross_site=cross_site, tell=tell)
    took = time.perf_counter() - begun
    if json:
        typer.echo(
            jsonlib.dumps(
                {
                    "file": str(out),
                    "bytes": made.size,
                    "seconds": round(took, 3),
                    **made.counts,
                    "notes": list(made.notes),
                    **({"cross_site": made.cross_site} if cross_site else {}),
                }
            )
        )
    else:
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        parts = [
            plural(count, noun.removesuffix("s").replace("_", " ")) for noun, count in made.counts.items() if count
        ]
        for line in made.lines:
            typer.echo(line)
        typer.echo(f"{out}: {', '.join(parts)}; {size(made.size)}, made in {took:.1f} s")
    if open_:
        import webbrowser

        webbrowser.open(out.absolute().as_uri())


def _check_is_ours(out: Path) -> None:
    """Refuse to replace a file that is no page: a log or a plan may be what was meant to be read."""
    from node.system.errors import UsageError

    if not out.is_file() or not out.stat().st_size:
        return
    with out.open("rb") as file:
        begins = file.read(64).lstrip().lower()
    if not begins.startswith(b"<!doctype html"):
        raise UsageError(f"{out} is there, and is no report", "give another file with --out")
