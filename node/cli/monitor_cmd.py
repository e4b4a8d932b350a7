"""`p2ptrain monitor`: what monitoring programs need to know of a run."""

import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.system.errors import RunError
from node.system.run_dir import write_atomic
from node.system.safe_io import reader_is_gone

if TYPE_CHECKING:
    from node.top.prometheus_sd import Entry, RunTargets

app = typer.Typer(help="For Prometheus and Grafana.", no_args_is_help=True)

EVERY_S = 5.0
"""Between two looks: as often as Prometheus scrapes, and half of what it waits between two looks at its files."""


@app.callback()
def monitor() -> None:
    """List a run's nodes for Prometheus and Grafana."""


@app.command()
def targets(
    run_dir: Annotated[Path, typer.Option(metavar="FOLDER", help="A run's folder, or one node's.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON there, whole or not at all, not to stdout.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and write anew whenever a node comes or goes.")
    ] = False,
    run: Annotated[str, typer.Option(help="The label `run`. (default: the run folder's name)")] = "",
    every: Annotated[float, typer.Option(min=0.1, max=86400, metavar="SECONDS", help="Between two looks.")] = EVERY_S,
    json: options.Json = False,
) -> None:
    """List where the nodes of a run serve their metrics, for Prometheus' service discovery (file_sd and http_sd).

    Nodes that have ended are left out; one that was killed is listed for an hour, so that it is missed.
    """
    from node.top.prometheus_sd import RunTargets

    source = RunTargets(run_dir, run)
    if watch:
        _watch(source, out, every, json=json)
    else:
        _tell(source.look(time.time()), out, json=json, watching=False)


def _watch(source: "RunTargets", out: Path | None, every: float, *, json: bool) -> None:
    """Until Ctrl-C, or until nobody reads it any more."""
    told: list[Entry] | None = None
    while True:
        seen = source.look_patiently(time.time())
        if seen != told:
            try:
                _tell(seen, out, json=json, watching=True)
            except RunError as error:
                if told is None:  # the file was never written: its folder is not there, or not ours
                    raise
                print(f"warning: {error.line()}", file=sys.stderr)  # a full disk: the next look tries again
            else:
                told = seen
        if out is None and reader_is_gone(sys.stdout):  # nothing may be written for days
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        time.sleep(every)


def _tell(entries: "list[Entry]", out: Path | None, *, json: bool, watching: bool) -> None:
    from node.top.prometheus_sd import to_line, to_text

    if out is not None:
        write_atomic(out, to_text(entries).encode())
        return
    lines = "".join(f"{each['labels']['node']}  {each['targets'][0]}\n" for each in entries)
    if json:
        lines = to_line(entries) if watching else to_text(entries)
    typer.echo(lines, nl=False)  # a reader that is gone and a full disk end the command, each with its exit code
