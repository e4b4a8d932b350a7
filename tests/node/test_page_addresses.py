"""The page's address is told wherever somebody looks at a node: by `node`, `status` and `top`."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from swarm_story import node_events, round_event
from typed_events import said, typed

from node.cli.app import main
from node.events.event_types import JoinCommand
from node.events.lines import describe
from node.events.log import EventLog
from node.events.page_address import MAX_LISTED, page_lines, page_of, page_words
from node.events.progress import NodeProgress
from node.system.run_dir import EVENTS
from node.top.screen import screen
from node.top.source import Watched


def told(index: int, **fields: object) -> NodeProgress:
    progress = NodeProgress(f"node-{index}")
    for event in node_events(index):
        progress.observe(typed(event | fields if event["event"] == "started" else event))
    return progress


def test_an_address_to_listen_on_becomes_one_to_open():
    assert page_of("http://127.0.0.1:9400") == "http://127.0.0.1:9400/"
    assert page_of("http://0.0.0.0:9400") == "http://127.0.0.1:9400/"
    assert page_of("http://[::]:9400/") == "http://[::1]:9400/"


def test_the_token_is_named_by_its_file():
    assert "/etc/p2ptrain/token" in page_words("http://0.0.0.0:9400", Path("/etc/p2ptrain/token"))
    assert "token" not in page_words("http://127.0.0.1:9400")


@pytest.mark.parametrize(
    ("address", "who"),
    [
        ("/ip4/192.0.2.2/tcp/4001", "Another machine joins with:"),
        ("/ip4/127.0.0.1/tcp/4001", "Another node of this machine joins with:"),
        ("/ip6/::1/tcp/4001", "Another node of this machine joins with:"),
    ],
)
def test_a_line_with_a_loopback_address_is_not_called_another_machines(address: str, who: str) -> None:
    event = JoinCommand(command=f"p2ptrain node --peer {address}/p2p/12D3KooW")
    assert str(describe(event)[1]) == who


def test_hundreds_of_addresses_are_no_wall_of_text() -> None:
    started = next(node_events(0))
    some = [f"/ip4/10.0.0.{number}/tcp/4001/p2p/12D3KooW" for number in range(20)]
    (listens,) = (str(line) for line in describe(typed(started | {"addresses": some})) if "listens" in str(line))
    assert listens.endswith(f"{some[7]}  and 12 more")


def test_a_node_prints_its_page_and_no_json():
    started = next(node_events(0))
    lines = [line.plain for line in describe(typed(started | {"token_file": None}))]
    assert "page     http://127.0.0.1:9400/" in lines
    assert not any("/status" in line for line in lines)
    lines = [line.plain for line in describe(typed(started | {"token_file": "/t"}))]
    assert any(line.endswith("/t says)") for line in lines)


def test_status_prints_the_pages_of_those_that_run(tmp_path, capsys):
    for index in range(2):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        with EventLog(folder / EVENTS) as log:
            for event in node_events(index):
                log(typed(event))
            if index:
                log(said("finished"))
    assert main(["status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "page of node-0: http://127.0.0.1:9400/\n" in shown
    assert "page of node-1" not in shown


def test_of_many_pages_the_first_are_listed():
    lines = list(page_lines([told(index) for index in range(MAX_LISTED + 3)]))
    assert len(lines) == MAX_LISTED + 1
    assert lines[-1].startswith("and 3 pages more; p2ptrain page RUN")


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (140, 45)])
def test_top_cuts_no_number_short(width, height):
    nodes = [Watched(told(index)) for index in range(4)]
    for node in nodes:
        node.progress.observe(
            typed(round_event(9, ts=2000.0) | {"learning_rate": 0.003, "rss_bytes": 3 << 28, "rounds": 400})
        )
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(screen(nodes, now=2019.0, width=width, height=height, hint="q leaves"))
    lines = console.export_text().splitlines()
    assert not any("\u2026" in line for line in lines)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert lines[1].startswith("a node sends 0.109 bits")
    assert lines[1].endswith(", 0.035 published")
    assert lines[4].split()[:2] == ["node-0", "9/400"]
    assert ("0.003" in lines[4] and "805 MB" in lines[4]) == (width == 140)


def test_top_has_a_line_of_pages_at_any_width():
    for width, count in ((80, 1), (80, 4), (60, 4), (140, 12)):
        nodes = [Watched(told(index)) for index in range(count)]
        console = Console(file=io.StringIO(), width=width, record=True)
        console.print(screen(nodes, now=1019.0, width=width, height=24))
        line = console.export_text().splitlines()[2]
        assert line.startswith("page  http://127.0.0.1:9400/" if count == 1 else "pages  node-0 http://127.0.0.1:9400/")
        assert len(line) <= width
