"""What comes over /events: everything at first, then what is new; to a bounded number of pages, and none that hangs."""

import json
import socket
from contextlib import suppress

import pytest
import trio
from page_harness import PATIENCE_S, ROUNDS_TOLD, Served, ask, listening, served
from swarm_story import PEER, round_event
from typed_events import typed

from node.events.log import EventLog
from node.events.peers_seen import MAX_PEERS
from node.events.progress import NodeProgress
from node.page import feed as feeds
from node.page import http1, serving
from node.page import stream as streams
from node.page.feed import MAX_CHARACTERS, MAX_DRAWN, MAX_LINES, Feed, FeedPosition, LiveSnapshot
from node.page.stream import MAX_PAGES

MOMENT = LiveSnapshot(
    peers={f"{PEER}1": {"here": True, "score": 7, "accepted": 3}},
    graph={b"me": frozenset({b"one"}), b"one": frozenset({b"me", b"two"}), b"two": frozenset({b"one"})},
    tags={f"{PEER}0": b"me", f"{PEER}1": b"one"},
    loop_lag_s=0.002,
)


async def test_a_page_is_told_all_and_then_what_is_new():
    async with served(moment=MOMENT) as page, listening(page.url) as messages:
        first = await messages.next()
        assert first["state"]["rounds_done"] == ROUNDS_TOLD
        assert first["state"]["loop_lag_s"] == 0.002
        assert (
            first["peers"][f"{PEER}1"] | {"score": 7, "accepted": 3, "averages": ROUNDS_TOLD}
            == first["peers"][f"{PEER}1"]
        )
        assert [row[0] for row in first["train"]["rows"]] == [1, 2, 3]
        assert first["held_out"]["rows"] == [[0, 5.5], [3, 2.5]]
        assert first["graph"] == {
            "members": [f"{PEER}0", f"{PEER}1", b"two".hex()],
            "edges": [[0, 1], [1, 2]],
            "left_out": 0,
        }
        assert any("round 3/10" in text for _, _, text in first["log"]["lines"])
        page.tell(round_event(4, ts=2000.0))
        new = await messages.next()
        assert (new["state"]["rounds_done"], new["train"]["rows"][-1][0]) == (4, 4)
        assert new["train"]["start"] == 2
        assert [text.split("  ")[1] for _, _, text in new["log"]["lines"]] == ["round 4/10"]
        assert "graph" not in new
        assert "held_out" not in new


async def test_a_page_is_told_for_longer_than_an_answer_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http1, "ANSWER_S", 1.0)
    monkeypatch.setattr(streams, "QUIET_S", 0.3)
    async with served() as page, listening(page.url) as messages:
        began = trio.current_time()
        while trio.current_time() < began + 2.5:
            await messages.next()


async def test_a_page_that_comes_back_is_told_all_again():
    async with served() as page:
        for _ in range(2):
            async with listening(page.url) as messages:
                assert len((await messages.next())["train"]["rows"]) == ROUNDS_TOLD


async def test_there_are_only_so_many_pages_and_those_that_close_make_room():
    async with served() as page, trio.open_nursery() as nursery:

        async def stay(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with listening(page.url) as messages:
                    await messages.next()
                    task_status.started(scope)
                    await trio.sleep_forever()

        stays = [await nursery.start(stay) for _ in range(MAX_PAGES)]
        refused = await ask(f"{page.url}/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert (await ask(f"{page.url}/status")).status_code == 200
        stays[0].cancel()
        with trio.fail_after(PATIENCE_S):
            while (await ask(f"{page.url}/events", "HEAD")).status_code == 503:
                await trio.lowlevel.checkpoint()
        for scope in stays:
            scope.cancel()


async def frozen(page: Served) -> trio.SocketStream:
    """A reader that asks for /events and never reads."""
    client = trio.socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.connect(("127.0.0.1", page.port))
    await client.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return trio.SocketStream(client)


def long_state(page: Served, number: int) -> None:
    """Some 2 MB of news: beyond what the kernel keeps for a reader."""
    page.progress.device = str(number) + "x" * (2 << 20)
    page.tell(round_event(ROUNDS_TOLD + 1 + number, ts=2000.0))


@pytest.mark.slow
async def test_a_reader_that_does_not_read_is_let_go_of_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(http1, "STALL_S", 0.3)
    async with served() as page:
        stream = await frozen(page)
        async with listening(page.url) as messages:
            await messages.next()
            long_state(page, 0)
            assert (await messages.next())["state"]["rounds_done"] == ROUNDS_TOLD + 1
        received, rest = 0, b"none"
        with trio.fail_after(PATIENCE_S):
            await trio.sleep(1.0)  # real sockets, the real clock: longer than STALL_S
            while rest:
                try:
                    rest = await stream.receive_some(1 << 16)
                except trio.BrokenResourceError:  # cut off in the middle
                    break
                received += len(rest)
        assert received < 2 << 20
        await stream.aclose()


@pytest.mark.slow
async def test_a_reader_that_does_not_read_does_not_hold_the_node_up():
    async with served() as page:
        stream = await frozen(page)
        async with listening(page.url) as messages:
            await messages.next()
            long_state(page, 0)
            await messages.next()
        began = trio.current_time()
    assert trio.current_time() - began < 2.0 < http1.STALL_S
    await stream.aclose()


async def test_connections_are_bounded_and_the_oldest_makes_room(monkeypatch):
    monkeypatch.setattr(serving, "MAX_STRANGERS", 2)
    async with served() as page:
        idle = [await trio.open_tcp_stream("127.0.0.1", page.port) for _ in range(3)]
        with trio.fail_after(http1.HEAD_S / 2):
            with suppress(trio.BrokenResourceError):  # closed, or cut off
                assert await idle[0].receive_some() == b""
            await idle[2].send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await idle[2].receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in idle:
            await stream.aclose()


def test_lines_are_bounded_and_hold_nothing_that_acts():
    feed, place = Feed(NodeProgress("node")), FeedPosition()
    hostile = "<img src=x onerror=alert(1)>\x1b[31m\u202e\n" + "y" * 1000
    for number in range(MAX_LINES + 50):
        feed.observe(typed({"ts": 1.0, "event": "warning", "message": f"{number} {hostile}"}))
    lines = json.loads(feed.news(place))["log"]["lines"]
    assert len(lines) == MAX_LINES
    assert lines[-1][1] == "warn"
    for _, _, text in lines:
        assert len(text) <= MAX_CHARACTERS
        assert text.isprintable()
    assert f"{MAX_LINES + 49} <img" in lines[-1][2]
    assert feed.news(place) == ""


def test_a_great_swarm_is_drawn_in_part_and_counted_whole():
    tags = [number.to_bytes(8, "big") for number in range(MAX_DRAWN + 200)]
    graph = {tag: frozenset({tags[0]} - {tag}) for tag in tags} | {tags[0]: frozenset(tags[1:])}
    feed = Feed(NodeProgress("node"), moment=lambda: LiveSnapshot(graph=graph, tags={"me": tags[0]}))
    told = json.loads(feed.news(FeedPosition()))["graph"]
    assert (len(told["members"]), told["left_out"]) == (MAX_DRAWN, 200)
    assert told["members"][0] == "me"
    assert told["edges"] == [[0, number] for number in range(1, MAX_DRAWN)]


def test_what_is_told_whole_is_made_once_for_all_pages(monkeypatch):
    asked = []
    feed = Feed(NodeProgress("node"), moment=lambda: asked.append(1) or MOMENT)
    monkeypatch.setattr(feeds, "FRESH_S", 1e9)
    for _ in range(MAX_PAGES):
        assert feed.news(FeedPosition())
    assert len(asked) == 1
    feed.observe(typed(round_event(1, ts=1.0)))
    feed.news(FeedPosition())
    assert len(asked) == 2


async def test_a_restarted_node_shows_the_rounds_before(tmp_path):
    path, progress = tmp_path / "events.jsonl", NodeProgress("node")
    with EventLog(path) as log:
        for done in range(1, 6):
            log(typed(round_event(done, ts=1.0)))
    feed = Feed(progress, log=path)
    with EventLog(path, sinks=[feed.observe]) as log:
        log(typed(round_event(5, ts=1.0)))
        log(typed(round_event(6, ts=1.0)))
    await feed.replay()
    await feed.replay()
    rows = json.loads(feed.news(FeedPosition()))["train"]["rows"]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("event", ["round", "evaluated", "warning"])
def test_an_event_with_fields_missing_is_no_end_of_it(event):
    feed = Feed(NodeProgress("node"))
    feed.observe(typed({"ts": 1.0, "event": event, "round": 1}))
    assert feed.news(FeedPosition())


def test_a_name_does_nothing_to_the_page():
    feed = Feed(NodeProgress("node"), names=lambda: {PEER: "a\x1b[2J\u202eb" + "c" * 999})
    feed.watch(lambda: LiveSnapshot(peers={PEER: {"here": True}}))
    name = feed.status()["peers"][PEER]["name"]
    assert name.startswith("a [2J bc")
    assert len(name) == MAX_CHARACTERS


def test_the_peers_that_are_forgotten_first_are_those_that_left():
    node = NodeProgress("node")
    for number in range(MAX_PEERS + 2):
        node.observe(typed({"ts": 1.0, "event": "neighbour_up", "peer": f"p{number}", "detail": ""}))
        if number in (1, 2):
            node.observe(typed({"ts": 1.0, "event": "neighbour_lost", "peer": f"p{number}", "detail": ""}))
    assert len(node.peers) == MAX_PEERS
    assert {"p1", "p2"} & node.peers.keys() == set()
    assert {"p0", f"p{MAX_PEERS + 1}"} <= node.peers.keys()
