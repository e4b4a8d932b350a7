"""`p2ptrain status`: where a run stands, from its folder or from a node's status page."""

import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from node.cli import options
from node.system.run_dir import EVENTS, node_dirs

if TYPE_CHECKING:
    from node.events.progress import NodeProgress


def status(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a node's folder, or a node's status URL.")],
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Show where a run stands, while it runs or after."""
    from node.events.liveness import lines
    from node.events.page_address import page_lines
    from node.system.text import printable
    from node.top.remote import fetch, token_in
    from node.top.table import nodes_table, sent_lines

    is_url = run.startswith(("http://", "https://"))
    now = time.time()
    folders = [] if is_url else node_dirs(Path(run))
    nodes = [fetch(run, token_in(token_file))] if is_url else [replayed(folder, now) for folder in folders]
    if json:
        typer.echo(jsonlib.dumps([node.as_dict() for node in nodes], default=str))
    else:
        console = Console()
        console.print(nodes_table(nodes, width=console.width), *sent_lines(nodes, console.width), sep="\n")
        for words in lines(zip(folders, nodes, strict=False), now):
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        for line in page_lines(nodes):
            console.print(printable(line), soft_wrap=True, highlight=False, markup=False)


def replayed(folder: Path, now: float) -> "NodeProgress":
    """Return a node's state by its folder. Raises OSError where it has no events."""
    from node.events.liveness import judge, look
    from node.events.log import read_events
    from node.events.progress import NodeProgress

    progress = NodeProgress(folder.name)
    for event in read_events(folder / EVENTS):
        progress.observe(event)
    judge(progress, look(folder), now)
    return progress
