"""The page of a whole swarm: what it reads of folders, what it tells, and to whom."""

import io
import json
import shutil
from pathlib import Path

import pytest
import trio
from page_harness import ask
from rich.console import Console
from swarm_folders import MEMBER, make_run, member_round, tell
from typed_events import typed

from node.cli import up_cmd
from node.cli.app import main
from node.config.schema import from_raw
from node.events.log import EventLog, older, to_line
from node.page import members as logs
from node.page.guard import HEADERS
from node.page.members import NodeLog, find, points_for
from node.page.status_server import Listening, SwarmServer
from node.page.swarm_feed import SwarmFeed, SwarmPlace
from node.system.run_dir import EVENTS, LOCK
from node.up.plan import make_plan
from node.up.supervisor import Outcome

TOKEN = "a-token-of-the-test"


async def looked(*runs: Path) -> SwarmFeed:
    feed = SwarmFeed(runs)
    await feed.replay()
    return feed


async def again(feed: SwarmFeed) -> None:
    feed._looked = None
    await feed.replay()


def test_runs_are_found_at_any_of_three_depths(tmp_path):
    first, second = make_run(tmp_path / "runs" / "first", 11), make_run(tmp_path / "runs" / "second", 1)
    assert [folder.name for _, folder in find([first])] == [f"node-{n}" for n in range(11)]
    assert find([first / "node-3"]) == [(first, first / "node-3")]
    assert {run for run, _ in find([tmp_path / "runs"])} == {first, second}
    assert len(find([first, first / "node-3", tmp_path / "runs"])) == 12


async def test_members_stand_side_by_side_and_the_dead_are_dead(tmp_path):
    feed = await looked(make_run(tmp_path / "run", 4, dead=1), make_run(tmp_path / "other", 1, finished=True))
    told = json.loads(feed.news(feed.place()))
    members = list(told["members"].values())
    assert [it["state"] for it in members] == ["running", "running", "running", "dead", "finished"]
    assert members[0]["page"] == "http://127.0.0.1:9400/"
    assert members[3]["page"] is None
    assert members[4]["page"] is None
    assert (members[1]["rounds_done"], members[1]["eval_loss"], members[1]["rejected"]) == (6, 2.5, 1)
    assert [run["name"] for run in told["runs"]] == ["run", "other"]
    assert told["runs"][0]["export_command"] == f"p2ptrain export {tmp_path / 'run'} --out model.safetensors"
    rounds = [each for each in told["curves"] if each["curve"] == "rounds"]
    assert [row[0] for row in rounds[0]["rows"]] == [1, 2, 3, 4, 5, 6]
    # Members of the recorded swarm take the updates of the first three; nobody exchanges with another run, or itself.
    assert sorted(told["exchanges"])[:3] == [[0, 1, 0], [0, 2, 0], [0, 3, 0]]
    assert {reader for _, reader, _ in told["exchanges"]} == {0, 1, 2, 3}


async def test_what_is_new_is_told_and_nothing_twice(tmp_path):
    run = make_run(tmp_path / "run", 3)
    feed = await looked(run)
    place = feed.place()
    assert feed.news(place)
    seen = feed.events
    await again(feed)
    assert (feed.events, feed.news(place)) == (seen, "")
    with EventLog(run / "node-1" / EVENTS) as log:
        tell(log, member_round(7))
    await again(feed)
    told = json.loads(feed.news(place))
    assert list(told["members"]) == ["1"]
    assert told["members"]["1"]["rounds_done"] == 7
    assert [(each["member"], each["rows"][-1][0]) for each in told["curves"]] == [(1, 7)]
    (run / "node-1" / LOCK).write_text("no number\n")
    make_run(tmp_path / "fourth", 1)
    (tmp_path / "fourth" / "node-0").rename(run / "node-9")
    await again(feed)
    told = json.loads(feed.news(place))
    assert {n: it["state"] for n, it in told["members"].items()} == {"1": "dead", "3": "running"}


async def test_a_run_that_is_removed_leaves_the_page_and_hides_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("node.page.swarm_feed.MAX_MEMBERS", 4)
    first, second = make_run(tmp_path / "first", 2), make_run(tmp_path / "second", 2)
    feed = await looked(first, second)
    place, late = feed.place(), feed.place()
    assert "anew" not in json.loads(feed.news(place))
    feed.news(late)
    shutil.rmtree(first)
    seen = feed.events
    await again(feed)
    assert feed.events > seen
    told = json.loads(feed.news(place))
    assert (told["anew"], told["left_out"], [run["name"] for run in told["runs"]]) == (True, 0, ["second"])
    assert {n: it["run"] for n, it in told["members"].items()} == {"0": str(second), "1": str(second)}
    assert {(each["member"], each["start"]) for each in told["curves"] if each["rows"]} == {(0, 0), (1, 0)}
    assert all({author, reader} <= {0, 1} for author, reader, _ in told["exchanges"])
    assert feed.news(place) == "", "nothing is told twice"
    # The one run that is gone hides no new node of the other, and takes no place from it.
    make_run(tmp_path / "third", 2)
    for n in range(2):
        (tmp_path / "third" / f"node-{n}").rename(second / f"node-{n + 7}")
    await again(feed)
    told = json.loads(feed.news(place))
    assert ("anew" in told, sorted(told["members"])) == (False, ["2", "3"])
    assert sorted(json.loads(feed.news(late))["members"]) == ["0", "1", "2", "3"]
    assert "anew" not in json.loads(feed.news(feed.place()))
    assert feed.status()["left_out"] == 0


async def test_a_page_that_waits_is_woken_by_a_round(tmp_path, autojump_clock):
    run = make_run(tmp_path / "run", 1)
    feed = await looked(run)
    seen = feed.events
    with trio.move_on_after(5):
        await feed.changed(seen)
    assert feed.events == seen
    with EventLog(run / "node-0" / EVENTS) as log:
        tell(log, member_round(7))
    with trio.fail_after(60):
        await feed.changed(seen)


def test_a_log_that_was_full_goes_on_in_the_next_one(tmp_path):
    folder = make_run(tmp_path / "run", 1) / "node-0"
    (member,) = logs.read([(folder.parent, folder)], among=1)
    (folder / EVENTS).rename(older(folder / EVENTS))
    with EventLog(folder / EVENTS) as log:
        tell(log, member_round(7))
    events, place = logs.news_of(folder, member.place)
    assert [event.round for event in events] == [7]
    assert logs.news_of(folder, place) == ([], place)


def test_half_a_line_is_read_when_it_is_whole(tmp_path):
    folder = make_run(tmp_path / "run", 1) / "node-0"
    (member,) = logs.read([(folder.parent, folder)], among=1)
    with (folder / EVENTS).open("a") as file:
        file.write('{"ts": 1, "event": "round"')
    events, place = logs.news_of(folder, member.place)
    assert events == []
    with (folder / EVENTS).open("a") as file:
        file.write(', "round": 9}\n')
    assert [event.round for event in logs.news_of(folder, place)[0]] == [9]


def test_half_a_line_at_the_first_reading_is_read_when_it_is_whole(tmp_path):
    folder = make_run(tmp_path / "run", 1) / "node-0"
    with (folder / EVENTS).open("a") as file:
        file.write('{"ts": 1, "event": "round"')
    (member,) = logs.read([(folder.parent, folder)], among=1)
    with (folder / EVENTS).open("a") as file:
        file.write(', "round": 9}\n')
    assert [event.round for event in logs.news_of(folder, member.place)[0]] == [9]


def test_a_log_that_was_cut_short_is_read_from_its_beginning(tmp_path):
    folder = make_run(tmp_path / "run", 1) / "node-0"
    (member,) = logs.read([(folder.parent, folder)], among=1)
    (folder / EVENTS).write_text('{"ts": 1, "event": "round", "round": 1}\n')
    events, place = logs.news_of(folder, member.place)
    assert [event.round for event in events] == [1]
    assert place.offset == (folder / EVENTS).stat().st_size


async def test_looks_that_take_long_are_further_apart(tmp_path, monkeypatch, mock_clock):
    feed = SwarmFeed([make_run(tmp_path / "run", 1)])
    look, looks = feed._look, []

    def slow():
        looks.append(mock_clock.current_time())
        mock_clock.jump(3.0)
        return look()

    monkeypatch.setattr(feed, "_look", slow)
    for later, count in ((0.0, 1), (29.0, 1), (1.5, 2)):
        mock_clock.jump(later)
        await feed.replay()
        assert len(looks) == count


def test_of_much_news_the_end_is_read(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", 1) / "node-0"
    (member,) = logs.read([(folder.parent, folder)], among=1)
    monkeypatch.setattr(logs, "NEWS_BYTES", 4096)
    with EventLog(folder / EVENTS) as log:
        for done in range(7, 60):
            tell(log, member_round(done))
    events, place = logs.news_of(folder, member.place)
    assert 1 <= len(events) < 10
    assert events[-1].round == 59
    assert place.offset == (folder / EVENTS).stat().st_size


async def test_members_are_bounded_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("node.page.swarm_feed.MAX_MEMBERS", 3)
    feed = await looked(make_run(tmp_path / "run", 5, rounds=1))
    told = json.loads(feed.news(SwarmPlace()))
    assert (len(told["members"]), told["left_out"]) == (3, 2)
    assert points_for(4) > points_for(40) > points_for(1000)


@pytest.mark.parametrize(
    "record",
    [
        {"ts": 1.0, "event": "round", "round": "x"},
        {"ts": 1.0, "event": "round", "round": 1, "staleness": {"a": "b"}},
        {"event": "round", "round": 1},
        {"ts": 1.0, "event": "evaluated", "round": None, "eval_loss": "x"},
    ],
)
def test_an_event_that_makes_no_sense_is_no_end_of_it(record, tmp_path):
    (tmp_path / EVENTS).write_text(to_line(record))
    ((member,)) = logs.read([(tmp_path.parent, tmp_path)], among=1)
    assert member.exchanges == {}
    assert member.as_dict()["state"] == "dead"


def test_what_a_log_names_is_bounded():
    member = NodeLog(Path("/runs/a/node"), Path("/runs/a"))
    member.take(typed(member_round(1) | {"staleness": {f"{MEMBER}{n}": n for n in range(1000)}}))
    assert len(member.exchanges) == logs.MAX_EXCHANGES


@pytest.mark.slow
async def test_it_is_served_as_a_node_s_page_is(tmp_path):
    feed = SwarmFeed([make_run(tmp_path / "run", 2)])
    async with trio.open_nursery() as nursery:
        open_url = await nursery.start(SwarmServer(feed, Listening()).run)
        for path in ("/", "/swarm.js", "/page.css", "/status", "/healthz", "/nothing"):
            answer = await ask(open_url + path)
            assert answer.status_code == (404 if path == "/nothing" else 200)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            assert (await ask(open_url + path, headers={"host": "evil.example"})).status_code == 421
            assert (await ask(open_url + path, "POST")).status_code == 405
        assert len((await ask(f"{open_url}/status")).json()["members"]) == 2
        url = await nursery.start(SwarmServer(feed, Listening(token=TOKEN)).run)
        for path in ("/", "/status", "/events"):
            assert (await ask(url + path)).status_code == 401
        assert (await ask(f"{url}/status", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200
        nursery.cancel_scope.cancel()


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run = make_run(tmp_path / "run", 1)
    for words, said in (
        ([str(tmp_path / "nowhere")], "is not a run folder: there is no such folder"),
        ([str(tmp_path / "empty")], "is not a run folder: no events.jsonl in it"),
        ([str(run), str(tmp_path / "empty")], "is not a run folder"),
        ([str(run), "--host", "0.0.0.0"], "--host 0.0.0.0 is not loopback, and there is no token"),
        ([], "missing argument"),
    ):
        assert main(["page", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_up_serves_the_page_of_its_run_and_says_where(tmp_path):
    run = make_run(tmp_path / "run", 2)
    plan = make_plan(from_raw({"task": {"name": "digits"}}), run_dir=run, nodes=2, byzantine=0, cores=2)
    console = Console(file=io.StringIO(), width=40)

    class Asks:
        """In the place of the supervisor: while the swarm runs, its page is asked for."""

        async def run(self) -> Outcome:
            url = console.file.getvalue().split("page: ")[1].split()[0]  # type: ignore[attr-defined]
            answer = await ask(f"{url}status")
            assert len(answer.json()["members"]) == 2
            return Outcome(seconds=1.0)

    assert up_cmd._run(Asks(), plan, console).seconds == 1.0  # type: ignore[arg-type]
    assert console.file.getvalue().startswith("The swarm's page: http://127.0.0.1:")  # type: ignore[attr-defined]
    off = make_plan(from_raw({"node": {"metrics_port": -1}}), run_dir=run, nodes=2, byzantine=0, cores=2)
    assert up_cmd._server(off) is None
    assert up_cmd._server(plan) is not None
