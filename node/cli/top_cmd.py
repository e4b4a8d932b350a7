"""`p2ptrain top`: a node or a whole run, live in the terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from node.cli import options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from node.top.source import Source, Watched

EVERY_S = 1.0
"""Between two looks: rounds take seconds, and a look costs each node two milliseconds."""
HINT = "q leaves"


def top(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a node's folder, or a node's status URL.")],
    once: Annotated[bool, typer.Option("--once", help="Print the picture once, and leave.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=86400, metavar="SECONDS", help="Between two looks.")] = EVERY_S,
    token_file: options.TokenFile = None,
    json: options.Json = False,
) -> None:
    """Watch a node or a whole run: rounds, losses, peers and how far they are trusted, bytes, lag.

    q or Ctrl-C leaves. Where stdout is no terminal, it is printed once. With --json, a line at each look until all
    nodes have ended.
    """
    from node.top.remote import token_in
    from node.top.source import source_of

    source = source_of(run, token_in(token_file))
    console = Console()
    if json:
        _lines(source, every, once=once)
    elif once or not console.is_terminal or console.is_dumb_terminal:
        console.print(_picture(source.look(), console, height=0))
    else:
        _live(source, every, console)


def _live(source: "Source", every: float, console: Console) -> None:
    from rich.live import Live

    from node.top.keys import Keys

    first = _picture(source.look(), console, height=console.height)
    live = Live(first, console=console, screen=True, auto_refresh=False)
    with Keys() as keys:
        try:
            live.start(refresh=True)  # not `with`: a Ctrl-C within it would leave the terminal on the second screen
            while "q" not in keys.wait(every).lower():
                live.update(_picture(source.look(), console, height=console.height), refresh=True)
        finally:
            live.stop()


def _lines(source: "Source", every: float, *, once: bool) -> None:
    from node.events.log import to_line
    from node.top.screen import as_json

    while True:
        nodes = source.look()
        typer.echo(to_line({"ts": round(time.time(), 3), "nodes": as_json(nodes)}), nl=False)
        if once or all(node.progress.over for node in nodes):
            return
        time.sleep(every)


def _picture(nodes: "list[Watched]", console: Console, *, height: int) -> "RenderableType":
    """`height` 0: as long as it gets."""
    from node.top.screen import BARS, PLAIN_BARS, screen

    bars = BARS if console.encoding.startswith("utf") else PLAIN_BARS
    endless = 1 << 16
    hint = HINT if height else ""
    return screen(nodes, now=time.time(), width=console.width, height=height or endless, bars=bars, hint=hint)
