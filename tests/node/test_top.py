"""`p2ptrain top`: what it draws, and where it looks."""

import io
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from page_harness import served
from rich.console import Console
from swarm_story import PEER, node_events, round_event
from typed_events import said, typed

from node.cli.app import main
from node.events.event_types import ENDLESS
from node.events.log import EventLog
from node.events.progress import NodeProgress
from node.system.errors import RunError, UsageError
from node.system.run_dir import CONFIG, EVENTS, locked
from node.top import source as sources
from node.top.remote import MAX_BYTES, fetch, token_of
from node.top.screen import BARS, screen, sparkline
from node.top.source import AddressSource, FolderSource, Watched, source_of

TOKEN = "a-token-of-the-test"


def write(folder: Path, index: int, *, rounds: int = 6, max_bytes: int = 1 << 28) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with EventLog(folder / EVENTS, max_bytes=max_bytes) as log:
        for event in node_events(index, rounds=rounds):
            tell(log, event | ({"metrics_url": None} if event["event"] == "started" else {}))


def tell(log: EventLog, event: dict) -> None:
    log(typed(event))


def drawn(nodes: list[Watched], width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(screen(nodes, now=1019.0, width=width, height=height, hint="q leaves"))
    return console.export_text().rstrip("\n").splitlines()


def watched(count: int) -> list[Watched]:
    nodes = [Watched(NodeProgress(f"node-{index}")) for index in range(count)]
    for index, node in enumerate(nodes):
        for event in node_events(index, rounds=6 - index % 2):
            node.progress.observe(typed(event))
            node.measured()
    return nodes


def test_a_sparkline_has_the_lowest_and_the_highest_as_its_ends():
    assert sparkline([1.0, 2.0, 3.0], 8, "abc") == "abc"
    assert sparkline([float(n) for n in range(100)], 10, BARS)[0] == BARS[0]
    assert sparkline([float(n) for n in range(100)], 10, BARS)[-1] == BARS[-1]
    assert len(sparkline([float(n) for n in range(100)], 10)) == 10
    assert sparkline([5.0, 5.0], 4, "abc") == "aa"
    assert sparkline([], 4) == ""


def test_a_run_fits_a_small_terminal_and_says_what_is_left_out():
    lines = drawn(watched(4))
    assert lines[0].startswith("4 nodes  round 5/10")
    assert "97% in time" in lines[0]
    assert lines[1] == "a node sends 0.109 bits per parameter and inner step, 0.035 published"
    assert lines[3].split() == [
        *("node", "round", "behind", "loss", "eval", "trend", "sent", "recv", "peers", "rej", "state")
    ]
    assert lines[5].split()[:5] == ["node-1", "5/10", "1", "4.000", "2.500"]
    assert lines[-1] == "q leaves"
    for count in (1, 4, 64):
        lines = drawn(watched(count))
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
    assert lines[-2].endswith("nodes more")
    assert len(drawn(watched(64), height=10)) <= 10


@pytest.mark.parametrize("width", [40, 60, 76, 80, 100, 132])
def test_long_numbers_take_the_room_of_other_columns_and_are_never_cut(width):
    nodes = watched(2)
    for node in nodes:
        it = node.progress
        it.name, it.state, it.rounds, it.rounds_done = "a-long-name-of-a-node", "interrupted", 1_000_000, 123_456
        it.bytes_sent, it.bytes_received, it.neighbours, it.rejected = 999_400_000, 888_800_000, 128, 99_949
        it.loop_lag_s, it.tokens_per_s, it.rss_bytes, it.learning_rate = 123.4567, 99_949.0, 99_900_000_000, 0.00015
    lines = drawn(nodes, width=width)
    at = next(number for number, line in enumerate(lines) if line.startswith("node  "))
    table = lines[at : at + 3]
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(table)
    assert all(row.split()[:2] == ["a-long-...", "123456/1000000"] for row in table[1:])
    assert all(row.rstrip().endswith("interrupted") or width >= 100 for row in table[1:])
    least = {"sent": 60, "loss": 60, "behind": 76, "recv": 100, "trend": 100, "util": 132}
    assert {name: name in table[0].split() for name in least} == {name: width >= at for name, at in least.items()}


def test_a_wide_terminal_has_more():
    lines = drawn(watched(2), width=120)
    assert lines[3].split()[-5:] == ["in", "time", "util", "lag", "tok/s"]
    assert "97%" in lines[4]
    assert "94%" in lines[4]


def test_who_is_least_trusted_stands_first():
    nodes = watched(2)
    liar = f"{PEER}7"
    nodes[0].progress.peers[liar] = {"here": True, "score": 40.0, "rejected": {"stale": 2}, "tracked": False}
    nodes[1].progress.observe(typed({"ts": 1.0, "event": "banned", "peer": liar, "reason": "forged"}))
    lines = drawn(nodes)
    at = next(number for number, line in enumerate(lines) if line.startswith("peer"))
    assert lines[at + 1].split() == ["..Zf7M8cV7", "banned", "40", "-", "-", "0/1", "-", "2", "0"]
    assert all("gone" in line or "no offence" in line for line in lines[at + 2 : -1])


PAUSED = {"here": True, "score": 0.0, "rejected": {}, "tracked": True, "paused": True}


def test_a_peer_that_says_that_it_is_paused_is_shown_so_and_hides_no_charge(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (node,) = watched(1)
    node.progress.peers = {
        "until-later": PAUSED | {"returns_at": 7 * 3600.0},
        "for-days": PAUSED | {"returns_at": 3 * 86_400.0 + 3600.0},
        "unknown": PAUSED | {"returns_at": None},
        "no-time": PAUSED | {"returns_at": 1e300},
        "charged": PAUSED | {"returns_at": 7 * 3600.0, "score": 40.0},
        "here": PAUSED | {"paused": False, "returns_at": None},
        "gone": PAUSED | {"returns_at": 7 * 3600.0, "here": False},
    }
    shown = {
        name: line.removeprefix(name).strip() for line in drawn([node], width=120) if (name := line.partition(" ")[0])
    }
    monkeypatch.undo()
    time.tzset()
    for name, words in (
        ("until-later", "paused until 07:00 "),
        ("for-days", "paused until Sun 01:00 "),
        ("unknown", "paused  "),
        ("no-time", "paused  "),
        ("charged", "charged, paused until 07:00 "),
        ("here", "no offence "),
        ("gone", "gone "),
    ):
        assert shown[name].startswith(words)


def test_a_peer_is_paused_if_most_of_those_say_so_that_were_asked():
    nodes = watched(3)
    for node, paused in zip(nodes, (True, True, False), strict=True):
        node.progress.peers = {"peer": PAUSED | {"paused": paused, "returns_at": None}}
    assert "peer paused " in "\n".join(drawn(nodes))
    nodes[0].progress.peers["peer"]["paused"] = False
    assert "peer no offence " in "\n".join(drawn(nodes))


def test_the_headline_of_a_node_that_never_trained_says_why():
    node = Watched(NodeProgress("n", state="running", paused="hours: it trains at 22:00-07:00, and it is 14:05"))
    lines = drawn([node])
    assert lines[0].startswith("n  paused by hours")
    assert "n: paused by hours: it trains at 22:00-07:00, and it is 14:05" in lines


def test_a_run_whose_end_nobody_knows_has_no_end_and_no_time_left():
    node = Watched(NodeProgress("node"))
    for event in node_events(0, rounds=3):
        node.progress.observe(typed(event | ({"rounds": ENDLESS} if event["event"] == "round" else {})))
    head, *rest = drawn([node])
    assert head.startswith("node  round 3   ")
    assert "left" not in head
    assert any(line.split()[:2] == ["node", "3"] for line in rest)


def test_the_headline_of_a_run_names_the_pause_once_all_are_paused():
    nodes = watched(2)
    nodes[0].progress.paused = "gpu: another program uses the GPU"
    assert "paused by" not in drawn(nodes)[0]
    nodes[1].progress.paused = "hours: it trains at 22:00-07:00, and it is 14:05"
    assert drawn(nodes)[0].startswith("2 nodes  round 5/10   paused by gpu, hours   ")


def test_privacy_that_is_spent_is_in_the_headline_and_its_end_pauses():
    nodes = watched(2)
    assert "epsilon" not in drawn(nodes, width=160)[0]
    nodes[0].progress.epsilon = 1.5
    nodes[1].progress.epsilon, nodes[1].progress.epsilon_budget = 2.345, 4.0
    assert "epsilon 1.5" in drawn(nodes, width=160)[0]
    spent = said("privacy_budget_spent", round=4, epsilon=3.98, budget=4.0, delta=1e-5, would_be=4.1)
    for node in nodes:
        node.progress.observe(spent)
    assert "paused by privacy" in drawn(nodes, width=160)[0]
    assert "epsilon 3.98 of 4" in drawn(nodes, width=160)[0]
    assert "visitors'" not in drawn(nodes, width=160)[0]
    nodes[0].progress.visits_epsilon = 0.75
    assert "epsilon 3.98 of 4   visitors' epsilon 0.75" in drawn(nodes, width=160)[0]
    assert nodes[0].progress.shown_state == "paused"


def test_what_others_say_does_nothing_to_the_terminal():
    node = Watched(NodeProgress("\x1b]0;owned\x07[bold]\n" * 9, state="\x1b[2J\x1b[31m" * 9))
    node.progress.peers["\x1b[31mx\n\u202e"] = {
        "here": "yes",
        "score": "9",
        "rejected": ["a"],
        "tracked": 1,
        "round": None,
    }
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(screen([node], now=1.0))
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown


@pytest.mark.parametrize("told", [{"state": "running", "paused": "{}: {}"}, {"state": "failed", "error": "{}"}])
def test_why_others_are_paused_or_failed_does_nothing_to_the_terminal(told):
    hostile = "\x1b[2J\x1b]0;owned\x07\u202e"
    lines = drawn(
        [Watched(NodeProgress("n", **{name: words.format(hostile, hostile) for name, words in told.items()}))]
    )
    assert any("owned" in line for line in lines)
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(lines))


def test_long_words_of_a_pause_cut_no_name_and_no_number():
    (node,) = watched(1)
    charged = PAUSED | {"returns_at": 1e9, "score": 40.0, "round": 123_456, "rejected": {"forged": 12_345}}
    node.progress.peers = {f"peer-{number}-long": charged for number in range(3)}
    for width, numbers in ((80, ["40", "123456"]), (60, ["40"])):
        rows = [line for line in drawn([node], width=width) if line.startswith("peer-")]
        assert [row.split()[0] for row in rows] == sorted(node.progress.peers)
        assert all(row.split()[1].startswith("charged") for row in rows)
        assert all(set(numbers) <= set(row.split()) for row in rows)


def test_a_folder_is_followed_and_not_read_again(tmp_path, monkeypatch):
    for index in range(2):
        write(tmp_path / f"node-{index}", index)
    source = FolderSource(tmp_path)
    assert [(node.progress.name, node.progress.rounds_done) for node in source.look()] == [("node-0", 6), ("node-1", 6)]
    assert [len(node.losses()) for node in source.look()] == [6, 6]
    taken = []
    monkeypatch.setattr(sources, "event_in", lambda line: taken.append(line))
    source.look()
    assert not any(taken)
    monkeypatch.undo()
    write(tmp_path / "node-2", 2)
    with EventLog(tmp_path / "node-0" / EVENTS) as log:
        tell(log, round_event(7, ts=2000.0))
    assert [node.progress.rounds_done for node in source.look()] == [7, 6, 6]


def test_a_log_that_was_full_goes_on_in_the_next_one(tmp_path):
    folder = tmp_path / "node-0"
    write(folder, 0, rounds=3)
    source = FolderSource(folder)
    assert source.look()[0].progress.rounds_done == 3
    with EventLog(folder / EVENTS, max_bytes=(folder / EVENTS).stat().st_size + 10) as log:
        for done in (4, 5):
            tell(log, round_event(done, ts=2000.0))
    assert source.look()[0].progress.rounds_done == 5
    assert len(source.look()[0].losses()) == 5
    assert FolderSource(folder).look()[0].progress.rounds_done == 5


async def test_a_node_that_runs_is_asked_for_what_no_log_has(tmp_path):
    folder, token = tmp_path / "node-0", tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    async with served(token=TOKEN) as page:
        page.progress.peers[f"{PEER}1"] |= {"score": 12, "here": True}
        page.progress.loop_lag_s = 0.004
        write(folder, 0)
        with EventLog(folder / EVENTS) as log:
            tell(log, next(node_events(0)) | {"metrics_url": page.url})
        look = FolderSource(folder).look
        assert (await trio.to_thread.run_sync(look))[0].progress.peers == {}
        (folder / CONFIG).write_text(f'[node]\nstatus_token_file = "{token}"\n')
        node = (await trio.to_thread.run_sync(FolderSource(folder).look))[0]
        assert node.progress.peers[f"{PEER}1"]["score"] == 12
        page.progress.peer_id = "somebody else who has this port now"
        node = (await trio.to_thread.run_sync(FolderSource(folder).look))[0]
        assert node.progress.peers == {}


def test_a_node_that_starts_again_is_not_asked_at_its_last_address(tmp_path, monkeypatch):
    """Whoever has that port by now would be given the token."""
    asked = []
    monkeypatch.setattr(sources, "fetch", lambda *words, **_: asked.append(words) or NodeProgress())
    folder = tmp_path / "node-0"
    write(folder, 0)
    with EventLog(folder / EVENTS) as log:
        tell(log, next(node_events(0)) | {"metrics_url": "http://127.0.0.1:9400", "pid": os.getpid() + 1})
    look = FolderSource(folder).look
    with locked(folder):
        assert look()[0].progress.state == "starting"
        assert asked == []
        with EventLog(folder / EVENTS) as log:
            tell(log, next(node_events(0)) | {"metrics_url": "http://127.0.0.1:9401", "pid": os.getpid()})
        assert look()[0].progress.state == "running"
    assert asked == [("http://127.0.0.1:9401", "")]


def test_a_token_that_is_not_for_us_is_none(tmp_path):
    assert token_of(tmp_path / CONFIG) == ""
    for text in ("no toml", "[node]\n", '[node]\nstatus_token_file = "/nowhere"', "node = 3"):
        (tmp_path / CONFIG).write_text(text)
        assert token_of(tmp_path / CONFIG) == ""


async def test_an_address_is_asked_each_time_and_may_fall_silent(monkeypatch):
    async with served(token=TOKEN) as page:
        source = AddressSource(page.url, TOKEN)
        assert (await trio.to_thread.run_sync(source.look))[0].progress.rounds_done == 3
        page.tell(round_event(4, ts=2000.0))
        node = (await trio.to_thread.run_sync(source.look))[0]
        assert (node.progress.rounds_done, len(node.losses())) == (4, 2)
        with pytest.raises(RunError, match="wants its token"):
            await trio.to_thread.run_sync(fetch, page.url)
        with pytest.raises(RunError, match="takes another token than this"):
            await trio.to_thread.run_sync(fetch, page.url, "a-wrong-token-of-the-test")
    node = (await trio.to_thread.run_sync(source.look))[0]
    assert (node.progress.state, node.progress.rounds_done) == ("silent", 4)
    with pytest.raises(RunError, match="no node answers"):
        await trio.to_thread.run_sync(AddressSource(page.url).look)


async def test_what_is_no_node_is_one_clear_error():
    async with served() as page:
        page.progress.peers = "nonsense"  # type: ignore[assignment]
        page.feed.status = lambda: {"peers": "nonsense"}  # type: ignore[method-assign]
        with pytest.raises(RunError, match="it says something else"):
            await trio.to_thread.run_sync(fetch, page.url)


ANSWERS = {
    "libp2p": b"\x13/multistream/1.0.0\n",
    "ssh": b"SSH-2.0-OpenSSH_9\r\n",
    "broken": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    "deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_port_of_another_program_is_no_node_and_ends_nothing(answer, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            for _ in range(2):
                caller, _ = listener.accept()
                with caller:
                    caller.recv(4096)
                    caller.sendall(answer)

        other = threading.Thread(target=serve, daemon=True)
        other.start()
        with pytest.raises(RunError, match=r"no node answers at .* \(it says something else\)"):
            fetch(url, timeout_s=5.0)
        (tmp_path / "node-0").mkdir()
        with EventLog(tmp_path / "node-0" / EVENTS) as log:
            tell(log, next(node_events(0)) | {"metrics_url": url})
        (node,) = FolderSource(tmp_path / "node-0").look()
        assert node.progress.metrics_url == url, "what the log has is shown"
        other.join(5.0)


async def test_the_words_of_a_page_elsewhere_do_nothing_to_the_terminal(capsys):
    async with served() as page:
        hostile = "\x1b[2J\x1b]0;owned\x07\u202e[/x]"
        page.progress.metrics_url, page.progress.name = f"http://{hostile}", hostile
        page.progress.state = "running"
        page.progress.paused = f"hours: {hostile}"
        assert await trio.to_thread.run_sync(main, ["status", page.url]) == 0
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_of_a_page_elsewhere_that_never_ends_only_so_much_is_read(monkeypatch):
    answer = b'{"name": "' + b"x" * MAX_BYTES + b'"}'
    monkeypatch.setattr("node.top.remote.open_page", lambda *_, **__: io.BytesIO(answer))
    with pytest.raises(RunError, match="it says something else"):
        fetch("http://127.0.0.1:1")
    answer = b'{"name": "short"}' + b" " * MAX_BYTES
    assert fetch("http://127.0.0.1:1").name == "short"


NOT_FINITE = ["1e999", "-1e999", "Infinity", "-Infinity", "NaN", "1" + 400 * "0"]


@pytest.mark.parametrize("number", NOT_FINITE, ids=range(len(NOT_FINITE)))
def test_numbers_of_a_page_elsewhere_that_are_none_end_nothing(number, monkeypatch):
    peer = {"here": True, "rejected": {"late": number}, "score": number, "accepted": number, "returns_at": number}
    node = {"name": "n", "state": "failed", "rounds": 9, "rounds_done": 2, "first_round": 0, "updated_at": 2.0}
    for fields in (
        {"ended_at": number},
        {"heartbeat": number, "state": "silent"},
        {"last_round_at": number, "state": "running"},
        {"first_round_at": number, "state": "running"},
        {"bytes_sent": number, "train_loss": number, "epsilon": number},
        {"peers": {"p": peer}},
    ):
        text = json.dumps(node | fields).replace(f'"{number}"', number)
        monkeypatch.setattr("node.top.remote.open_page", lambda *_, text=text, **__: io.BytesIO(text.encode()))
        with suppress(RunError):  # where there must be a number it says something else
            assert drawn([Watched(fetch("http://127.0.0.1:1"))])[0].startswith("n  round 2/9")


def test_own_metrics_that_are_no_numbers_are_left_out():
    nodes = watched(2)
    for node, own in zip(nodes, ({"accuracy": None, "words": [1], "f1": 0.5}, {"accuracy": 0.25}), strict=True):
        node.progress.observe(said("evaluated", round=6, eval_loss=1.0, own=own))
    assert nodes[0].progress.own == {"f1": 0.5}
    assert "f1 0.5   accuracy 0.25" in "\n".join(drawn(nodes))


def test_a_pipe_gets_the_picture_once(tmp_path, capsys):
    write(tmp_path / "node-0", 0)
    for words in (["top", str(tmp_path)], ["top", "--once", str(tmp_path)]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "node-0" in shown
        assert "q leaves" not in shown


def test_json_is_a_line_with_every_field(tmp_path, capsys):
    write(tmp_path / "node-0", 0)
    with EventLog(tmp_path / "node-0" / EVENTS) as log:
        log(said("finished"))
    assert main(["top", "--json", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1  # all have ended
    (node,) = json.loads(lines[0])["nodes"]
    assert (node["rounds_done"], node["state"]) == (6, "finished")
    assert main(["status", "--json", str(tmp_path)]) == 0
    (same,) = json.loads(capsys.readouterr().out)
    assert same == node
    assert {"peers", "rejected_by", "utilization", "train_loss", "payload_bytes_sent", "loop_lag_s"} <= same.keys()


def test_where_there_is_no_run_it_says_so(tmp_path, capsys):
    assert main(["top", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    with pytest.raises(UsageError):
        source_of(str(tmp_path / "nothing")).look()


@pytest.mark.parametrize("ts", ["Infinity", "NaN", "1e300", "-1", '"12"', "true", "9" * 400])
def test_a_line_whose_time_is_none_ends_nothing(ts, tmp_path, capsys):
    write(tmp_path / "node-0", 0)
    with (tmp_path / "node-0" / EVENTS).open("a") as log:
        log.write(f'{{"ts": {ts}, "event": "finished"}}\n')
        log.write(
            f'{{"ts": 1050.0, "event": "round", "round": 7, "rounds": 9, "bytes_sent": {"9" * 30}, "rejected": 1}}\n'
        )
        log.write('{"ts": 1051.0, "event": "round", "round": 8, "rounds": 9, "steps": 2, "tokens_per_s": Infinity}\n')
    for command in ("status", "top"):
        assert main([command, str(tmp_path)]) == 0, command
        shown = capsys.readouterr().out
        assert "8/9" in shown, "the lines after it are read"
        assert "inf" not in shown
        assert "finished" not in shown


def test_the_words_of_trust_are_whole_on_a_narrow_terminal():
    text = "\n".join(drawn(watched(2), 40))
    assert "gone" in text
    assert "\u2026" not in text


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n{", b"HTTP/1.1 200 OK\r\nX: "], ids=["body", "head"])
def test_a_page_that_sends_a_byte_now_and_then_has_no_more_time_than_another(head):
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            caller, _ = listener.accept()
            with caller, suppress(OSError):
                caller.recv(4096)
                caller.sendall(head)
                while not over.wait(0.02):
                    caller.sendall(b" ")

        other = threading.Thread(target=drip, daemon=True)
        other.start()
        threading.Timer(5.0, over.set).start()
        with pytest.raises(RunError, match="it is too slow"):
            fetch(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
        assert not over.is_set()
        over.set()
        other.join()
