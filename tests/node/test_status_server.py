"""The status page over real sockets on loopback."""

import socket

import httpx
import pytest
import trio
from swarm_story import node_events
from typed_events import typed

from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed
from node.page.status_server import StatusServer, bind
from node.system.errors import RunError, UsageError


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_the_page_serves_metrics_status_and_health():
    metrics, progress = Metrics(), NodeProgress("node-0")
    for event in node_events(0):
        metrics.observe(typed(event))
        progress.observe(typed(event))
    progress.observe(typed({"ts": 2000.0, "event": "checkpoint", "round": 10, "path": "/runs/x"}))
    progress.train_loss = float("nan")
    async with trio.open_nursery() as nursery:
        url = await nursery.start(StatusServer(metrics, Feed(progress)).run)
        assert url.startswith("http://127.0.0.1:")
        scraped = await get(f"{url}/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")
        assert "p2ptrain_round 10.0" in scraped.text
        status = (await get(f"{url}/status")).json()
        assert (status["name"], status["rounds_done"], status["eval_loss"]) == ("node-0", 10, 2.5)
        assert (status["checkpoint"], status["train_loss"]) == ("/runs/x", None)
        assert (await get(f"{url}/healthz")).json() == {"ok": True}
        assert (await get(f"{url}/nothing")).status_code == 404
        nursery.cancel_scope.cancel()


async def test_the_port_is_free_again_after_the_stop():
    server = None
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            port = 0 if server is None else server
            url = await nursery.start(StatusServer(Metrics(), Feed(NodeProgress()), port=port).run)
            server = int(url.rpartition(":")[2])
            nursery.cancel_scope.cancel()


async def test_a_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"127.0.0.1:{port} is in use") as caught:
            await StatusServer(Metrics(), Feed(NodeProgress()), port=port).run()
    assert "metrics_port" in caught.value.hint


async def test_an_address_of_another_machine_is_one_clear_error():
    with pytest.raises(UsageError, match="cannot listen"):
        await StatusServer(Metrics(), Feed(NodeProgress()), host="203.0.113.1", token="a token of the test").run()


async def test_the_system_keeps_little_of_what_a_client_does_not_read(monkeypatch):
    """Else it keeps megabytes for each connection, and a client that reads nothing is noticed late."""
    monkeypatch.setattr("node.page.serving.SEND_BUFFER_BYTES", 1 << 15)
    with (
        bind("127.0.0.1", 0, name="port", setting="--port") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 1 << 16, "Linux takes it twice"
