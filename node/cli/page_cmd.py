"""`p2ptrain page`: all nodes of one or more runs on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.system.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from node.page.status_server import SwarmServer


def page(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run folders, nodes' folders, or a folder of runs.")
    ],
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; another address than loopback wants --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token that the page wants; made with a new one if not there."),
    ] = None,
) -> int:
    """Show all nodes of one or more runs on one page, live or after: members side by side, runs compared, who
    exchanges with whom.

    It reads the runs' folders, changes nothing in them, and is served on loopback until Ctrl-C.
    """
    import trio

    from node.page.status_server import Listening, SwarmServer
    from node.page.swarm_feed import SwarmFeed
    from node.system.page_token import check_exposure, load_or_create

    check_exposure(host, token_file, setting="--host", token_setting="--token-file FILE")
    feed = SwarmFeed(runs)
    count = feed.find()
    token = "" if token_file is None else load_or_create(token_file)
    at = Listening(host=host, port=port, token=token, name="page's port", setting="--port")
    trio.run(_serve, SwarmServer(feed, at), count, token_file)
    return EXIT_INTERRUPTED


async def _serve(server: "SwarmServer", count: int, token_file: Path | None) -> None:
    import trio

    from node.events.page_address import page_words
    from node.system.signals import until_signal
    from node.system.text import plural

    async with trio.open_nursery() as nursery:
        interrupted = await nursery.start(until_signal)
        url = await nursery.start(server.run)
        typer.echo(f"page of {plural(count, 'node')}: {page_words(url, token_file)}")
        typer.echo("Ctrl-C ends it.")
        await interrupted.wait()
        nursery.cancel_scope.cancel()
