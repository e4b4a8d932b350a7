"""Logs as a report reads them: whatever is in them, lines are counted, memory is bounded, and figures are right."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from swarm_folders import MEMBER, make_run, member_events, member_round

from node.events.event_types import Event, kinds, parse
from node.events.log import older, record_in
from node.reporting.fairness import jain
from node.reporting.gathered import Gathered, gather
from node.reporting.log_lines import MAX_LINE, LineCounts, events_of
from node.reporting.loss_curves import BUCKETS, buckets, first_at, levels
from node.reporting.node_story import LISTED, Moments, NodeStory
from node.reporting.partitions import splits
from node.reporting.report import make_report
from node.reporting.report_sources import find
from node.reporting.run_report import run_document
from node.reporting.thinning import PICTURED, Frames, Thinned
from node.system.errors import UsageError
from node.system.run_dir import CONFIG, EVENTS, LOCK

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KINDS = list(kinds())


def written(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(each if isinstance(each, bytes) else f"{json.dumps(each)}\n".encode() for each in lines))
    return path


def read(log: Path) -> tuple[LineCounts, list[Any]]:
    counts = LineCounts()
    return counts, list(events_of(log, counts))


def test_every_line_is_counted_as_what_it_is(tmp_path: Path) -> None:
    log = written(
        tmp_path / EVENTS,
        *member_events(0, rounds=3),
        b"garbage\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b"[" * 100_000 + b"\n",
        {"ts": 1, "event": "of a newer release"},
        {"ts": 1, "event": "round"},
        {"event": "started"},
        b'{"ts": NaN, "event": "started"}\n',
        b"x" * (3 * MAX_LINE) + b"\n",
        b"\n",
        {"ts": 9.0, "event": "warning", "message": "after all that"},
        b'{"ts": 10.0, "event": "warni',
    )
    counts, events = read(log)
    assert counts == LineCounts(lines=17, events=7, strange=6, unknown=2, long=1, cut=True)
    assert len(events) == 7
    assert [note.partition(": ")[2] for note in counts.notes("a")] == [
        "6 lines are no events",
        "1 line was longer than 1 MiB",
        "2 events were unknown to this release, or incomplete",
        "its last line was cut short",
    ]


def test_the_older_file_comes_first_and_a_whole_last_line_needs_no_end(tmp_path: Path) -> None:
    log = written(tmp_path / EVENTS, json.dumps(member_round(2)).encode())
    written(older(log), member_round(1))
    counts, events = read(log)
    assert [event.round for event in events] == [1, 2]
    assert not counts.cut


BROKEN = ("9" * 400, "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" * 16, "1e308", "-1e100")


@pytest.mark.parametrize("number", BROKEN)
def test_numbers_that_are_none_are_nothing(number: str) -> None:
    found = record_in(f'{{"ts": 1, "event": "round", "round": {number}, "loss": 0.12345678901234567}}'.encode())
    assert found == {"ts": 1, "event": "round", "round": None, "loss": 0.12345678901234567}


POOL = st.fixed_dictionaries(
    {
        "dict": st.dictionaries(st.text(max_size=4), JSON, max_size=3),
        "list": st.lists(JSON, max_size=3),
        "float": st.floats() | st.integers(),
        "int": st.integers(),
        "bool": st.booleans(),
        "str": st.text(max_size=8),
    }
)
"""A value for fields of each type, as far as a reader of records looks."""


NOTHINGS: Final = {"dict": {"": None}, "list": [None, {}], "float": 0.0, "int": 0, "bool": False, "str": ""}


@example([(kind, NOTHINGS) for kind in KINDS])
@given(st.lists(st.tuples(st.sampled_from(KINDS), POOL), max_size=6))
def test_no_claim_breaks_a_report(told: list[tuple[type[Event], dict[str, Any]]]) -> None:
    """Every event with any values in its fields, as a liar may write them."""
    frames, moments, story = Frames(), Moments(), NodeStory(0, "a", Path("run"))
    for number, (kind, pool) in enumerate(told):
        values = {each.name: pool[next(name for name in pool if name in str(each.type))] for each in fields(kind)}
        record = record_in(json.dumps({**values, "ts": number, "event": kind.name}).encode())
        event = None if record is None else parse(record)
        if event is not None:
            story.counts.events += 1
            story.take(event, frames, moments)
    document = run_document(Gathered(stories=[story], frames=frames, moments=moments, notes=[]))
    json.dumps(document.as_json(), allow_nan=False)


def test_a_run_in_figures(tmp_path: Path) -> None:
    make_run(tmp_path / "first", 4, rounds=6, finished=True)
    gathered = gather(find([tmp_path / "first"]).logs)
    document = run_document(gathered)
    assert document.title == "first"
    tiles = {tile.title: tile for tile in document.tiles}
    assert next(iter(tiles)) == "Sent by a node"
    assert tiles["Sent by a node"].value == 6 * 125_000
    assert tiles["Sent by a node"].detail == "0.109 bits per parameter and inner step, 0.035 published"
    assert tiles["Sent by all"].value == 4 * 6 * 125_000
    assert tiles["Refused"].value == 0 + 1 + 2 + 3
    loss = document.sections[0].charts[0]
    trained = next(line for line in loss.lines if line.name == "training")
    x, mean, low, high = trained.points[0]
    assert x == 1
    assert mean == pytest.approx(1 + sum(4 / (1 + index) for index in range(4)) / 4)
    assert low is not None
    assert high is not None
    assert low < mean < high
    assert (high - mean) == pytest.approx(mean - low)
    nodes = document.tables[0]
    assert [row[0] for row in nodes.rows] == [f"node-{index}" for index in range(4)]
    timeline = document.timeline
    assert timeline is not None
    counted: dict[tuple[int, int], int] = {}
    for _, edges, _ in timeline.frames:
        for author, reader, count in edges:
            counted[author, reader] = counted.get((author, reader), 0) + count
    assert counted == {(author, reader): 6 for author in range(3) for reader in range(4) if author != reader}
    assert timeline.counts["join"] == 4


def test_of_many_nodes_all_are_counted_and_some_are_drawn(tmp_path: Path) -> None:
    for index in range(PICTURED + 3):
        fails = {"ts": 9.0, "event": "failed", "error": "no room"}
        written(tmp_path / f"node-{index}" / EVENTS, next(member_events(index, rounds=0)), member_round(1), fails)
    document = run_document(gather(find([tmp_path]).logs))
    timeline = document.timeline
    assert timeline is not None
    assert len(timeline.members) == PICTURED
    assert timeline.note == "3 more nodes not drawn."
    assert timeline.counts["leave"] == len(document.tables[0].rows) == PICTURED + 3
    told = [words for _, member, kind, words in timeline.moments if kind == "leave" and member < 0]
    assert told == [f"node-{index} failed: no room" for index in range(PICTURED, PICTURED + 3)]


def test_bytes_go_on_over_restarts(tmp_path: Path) -> None:
    again = {**member_round(7), "bytes_sent": 50_000}
    log = written(tmp_path / "a" / EVENTS, *member_events(0, rounds=6), next(member_events(0, rounds=0)), again)
    (story,) = gather([(log, tmp_path)]).stories
    assert story.sent_bytes == 6 * 125_000 + 50_000


def test_what_an_older_release_did_not_count_is_said(tmp_path: Path) -> None:
    old = {key: value for key, value in member_round(1).items() if key != "bytes_sent"}
    logs = [
        (written(tmp_path / "a" / EVENTS, old), tmp_path),
        (written(tmp_path / "b" / EVENTS, member_round(1)), tmp_path),
    ]
    document = run_document(gather(logs))
    assert "a is of a release that did not count all bytes sent" in document.notes
    assert document.tiles[0].value == 125_000, "the mean of those that counted"


def test_who_is_slow_counts_less(tmp_path: Path) -> None:
    """Two of three rounds of the fast ones have an update of the slow one's."""
    for index in range(3):
        lines = [next(member_events(index, rounds=0))]
        for done in range(1, 4):
            taken = {f"{MEMBER}{other}": 1 for other in range(3) if other != index and (other != 0 or done > 1)}
            speed = 10.0 * (index + 1)
            told = {"staleness": taken, "tokens_per_s": speed, "steps": 2 * (index + 1)}
            lines.append({**member_round(done, index=index), **told})
        written(tmp_path / f"node-{index}" / EVENTS, *lines)
    document = run_document(gather(find([tmp_path]).logs))
    fair = next(section for section in document.sections if section.id == "fairness")
    (table,) = fair.tables
    assert [row[2] for row in table.rows] == [10.0, 20.0, 30.0]
    assert [row[5] for row in table.rows] == pytest.approx([2 / 3, 1, 1])
    assert [row[7] for row in table.rows] == [6, 12, 18]
    # (1 + 2 + 3)^2 / 3 (1 + 4 + 9), and (2/3 + 1 + 1)^2 / 3 (4/9 + 1 + 1)
    assert fair.note.endswith("Jain's index, 1 where all nodes have the same: 0.86 of steps, 0.97 of updates taken.")


def test_loss_on_own_data_and_the_tasks_own_metrics_stand_beside_each_speed(tmp_path: Path) -> None:
    """The slow one alone has what the others have not learned: that shows on its own data, and in the task's metric."""
    for index in range(2):
        told = {"tokens_per_s": 10.0 * (index + 1), "train_loss": 2.0 - index}
        own = {"nines": 0.25 * index, "words": "of the task's"}
        evaluated = {"ts": 99.0, "event": "evaluated", "round": 1, "eval_loss": 0.5, "own": own}
        lines = [next(member_events(index, rounds=0)), {**member_round(1, index=index), **told}, evaluated]
        written(tmp_path / f"node-{index}" / EVENTS, *lines)
    document = run_document(gather(find([tmp_path]).logs))
    fair = next(section for section in document.sections if section.id == "fairness")
    (table,) = fair.tables
    assert table.columns[8:] == ["Training loss", "nines"], "no column of what is no number"
    assert [row[4] for row in table.rows] == [0.5, 0.5], "the held-out loss says nothing of it"
    assert [row[8:] for row in table.rows] == [[2.0, 0.0], [1.0, 0.25]]
    assert [chart.id for chart in fair.charts] == ["fair-taken", "fair-loss", "fair-own-loss"]
    assert [y for _, y in fair.charts[2].lines[0].points] == [2.0, 1.0]


def test_jains_index_is_1_where_all_are_alike_and_1_in_n_where_one_has_all() -> None:
    assert jain([3.0] * 7) == pytest.approx(1)
    assert jain([0.0, 0.0, 0.0, 5.0]) == pytest.approx(1 / 4)
    assert jain([1e200, 1e200]) == pytest.approx(1), "a log may claim any number"
    assert jain([0.0, 0.0]) is None


def test_a_partition_is_seen_and_healed_and_an_orderly_end_is_none(tmp_path: Path) -> None:
    def link(ts: float, other: int, *, up: bool) -> dict[str, object]:
        return {"ts": ts, "event": "neighbour_up" if up else "neighbour_lost", "peer": f"{MEMBER}{other}", "detail": ""}

    for index in range(4):
        side = {0: (2, 3), 1: (2, 3), 2: (0, 1), 3: (0, 1)}[index]
        others = [other for other in range(4) if other != index]
        lines = [
            next(member_events(index, rounds=0)),
            *(link(1.0, other, up=True) for other in others),
            *(link(10.0 + index / 100, other, up=False) for other in side),
            *(link(30.0 + index / 100, other, up=True) for other in side),
            {**member_round(40), "ts": 50.0, "rounds": 40},
            *(link(51.0, other, up=False) for other in others),
            {"ts": 60.0, "event": "finished"},
        ]
        written(tmp_path / f"node-{index}" / EVENTS, *lines)
    gathered = gather(find([tmp_path]).logs)
    numbers = {f"{MEMBER}{index}": index for index in range(4)}
    (split,) = splits(gathered.stories, numbers)
    assert split.parts == ((0, 1), (2, 3))
    assert 10.0 <= split.start < 11.0
    assert split.end == pytest.approx(30.0)
    timeline = run_document(gathered).timeline
    assert timeline is not None
    words = [words for _, _, kind, words in timeline.moments if kind == "partition"]
    assert words == [
        "2 parts without a path to each other: node-0 and node-1; 2 others",
        "one swarm again, after 20.0 s",
    ]


def test_pairs_that_have_not_met_yet_are_no_partition(tmp_path: Path) -> None:
    meets = {0: [(1.0, 1), (9.0, 2)], 1: [(1.0, 0)], 2: [(2.0, 3), (9.0, 0)], 3: [(2.0, 2)]}
    for index, links in meets.items():
        ups = [{"ts": ts, "event": "neighbour_up", "peer": f"{MEMBER}{other}"} for ts, other in links]
        lines = [next(member_events(index, rounds=0)), *ups, member_round(30, index=index)]
        written(tmp_path / f"n{index}" / EVENTS, *lines)
    gathered = gather(find([tmp_path]).logs)
    assert splits(gathered.stories, {f"{MEMBER}{index}": index for index in range(4)}) == []


def test_a_killed_node_is_no_partition(tmp_path: Path) -> None:
    for index in range(3):
        ups = [{"ts": 1.0, "event": "neighbour_up", "peer": f"{MEMBER}{other}"} for other in range(3) if other != index]
        lost = [{"ts": 20.0, "event": "neighbour_lost", "peer": f"{MEMBER}2"}] if index < 2 else []
        last = [member_round(30 if index < 2 else 10, index=index)]
        written(tmp_path / f"n{index}" / EVENTS, next(member_events(index, rounds=0)), *ups, *lost, *last)
    gathered = gather(find([tmp_path]).logs)
    assert splits(gathered.stories, {f"{MEMBER}{index}": index for index in range(3)}) == []


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 3), st.integers(0, 3)), max_size=200))
def test_frames_are_few_and_lose_no_exchange(told: list[tuple[float, int, int]]) -> None:
    frames = Frames(most=10, entries=1000)
    for ts, author, reader in told:
        frames.exchange(ts, str(author), reader)
    found = frames.ordered()
    assert len(found) <= 10
    assert sum(count for _, frame in found for count in frame.exchanges.values()) + frames.left_out == len(told)
    assert [end for end, _ in found] == sorted(end for end, _ in found)


@pytest.mark.parametrize("apart_s", [0.0, 1.0])
def test_frames_without_room_count_what_they_leave_out(apart_s: float) -> None:
    frames = Frames(most=10, entries=5)
    for n in range(20):
        frames.exchange(n * apart_s, str(n), 0)
    assert sum(frame.entries() for _, frame in frames.ordered()) == 5
    assert frames.left_out == 15


@given(st.integers(0, 3000))
def test_of_many_moments_an_even_part_is_kept_and_all_are_counted(count: int) -> None:
    kept = Thinned[int](LISTED)
    for n in range(count):
        kept.add(n)
    assert kept.added == count
    assert len(kept) <= LISTED
    assert not count or next(iter(kept)) == 0
    assert len({b - a for a, b in zip(kept, list(kept)[1:], strict=False)}) <= 1


def test_buckets_take_every_node_once() -> None:
    curves = [[(float(n), 10.0 * n, 100.0 * n, loss) for n in range(1, 1025)] for loss in (1.0, 3.0)]
    told = buckets(curves, 3, 0.0)
    assert len(told) == BUCKETS
    assert {each.loss for each in told} == {2.0}
    assert told[0].seconds == 25.0
    assert told[0].sent == 250.0


def test_time_to_loss() -> None:
    curve = [(float(n), 2.0 * n, 5.0 * n, 10.0 - n) for n in range(6)]
    told = levels(buckets([curve], 3, 0.0))
    assert told == sorted(told, reverse=True)
    assert 5.0 < told[-1] < told[0] < 10.0
    assert first_at(curve, 7.5) == curve[3]
    assert first_at(curve, 1.0) is None
    assert levels(buckets([curve[:1]], 3, 0.0)) == []


# -- what is found


def test_logs_are_found_at_any_depth_and_named_apart(tmp_path: Path) -> None:
    for machine in ("one", "two"):
        make_run(tmp_path / machine / "runs" / "first", 1)
    gathered = gather(find([tmp_path]).logs)
    assert [story.name for story in gathered.stories] == ["one/runs/first/node-0", "two/runs/first/node-0"]
    assert any("logs of the same node" in note for note in gathered.notes)


def test_a_folder_without_its_log_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, 2)
    for name in (CONFIG, LOCK):
        written(tmp_path / "node-7" / name)
    assert find([tmp_path]).notes == [f"{tmp_path / 'node-7'} has no {EVENTS}"]


@pytest.mark.parametrize(("name", "why"), [("nowhere", "there is no such file"), ("empty", "neither events.jsonl nor")])
def test_nothing_to_report_on_is_one_line(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=why):
        make_report([tmp_path / name], tmp_path / "out.html", command="")


def test_a_file_without_an_event_is_none(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("a = 1\nb = 2\n")
    with pytest.raises(UsageError, match="and no event among them"):
        make_report([tmp_path / "plan.toml"], tmp_path / "out.html", command="")
    assert not (tmp_path / "out.html").exists()


def test_a_file_alone_is_a_report(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    made = make_report([tmp_path / "node-0" / EVENTS], tmp_path / "out.html", command="p2ptrain report")
    assert made.counts == {"nodes": 1, "events": 9, "lines": 9}
    with pytest.raises(UsageError, match="cannot be a file"):
        make_report([tmp_path], tmp_path / "nowhere" / "out.html", command="")


def test_a_process_that_sent_more_than_the_one_before_it_is_added_to_that(tmp_path: Path) -> None:
    lines = [next(member_events(0, rounds=0)), member_round(1) | {"bytes_sent": 100}]
    lines += [next(member_events(0, rounds=0)), member_round(2) | {"bytes_sent": 300}]
    story = NodeStory(0, "a", tmp_path, 512)
    story.read(written(tmp_path / EVENTS, *lines), Frames(), Moments())
    assert story.sent_bytes == 400


def test_pauses_spent_privacy_and_shifts_of_data_are_moments(tmp_path: Path) -> None:
    lines = [
        next(member_events(0, rounds=0)),
        {"ts": 2.0, "event": "paused", "reason": "hours", "why": "it trains at 22:00-07:00"},
        {"ts": 3.0, "event": "unpaused", "reason": "hours", "seconds": 3600.0},
        {"ts": 4.0, "event": "privacy_budget_spent", "round": 3, "epsilon": 3.9, "budget": 4.0, "delta": 1e-5},
        {"ts": 5.0, "event": "shift", "round": 3, "where": "here", "signals": ["loss"], "said": 0, "members": 4},
    ]
    moments = Moments()
    NodeStory(0, "a", tmp_path, 512).read(written(tmp_path / EVENTS, *lines), Frames(), moments)
    told = [(kind, words) for _, _, kind, words in moments.listed() if kind in ("pause", "warning")]
    assert told == [
        ("pause", "paused by hours: it trains at 22:00-07:00"),
        ("pause", "trains again after 1 h 00 min"),
        ("pause", "spent its privacy budget of epsilon 4: it serves on"),
        ("warning", "this node's data have shifted (loss)"),
    ]
