import io
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed_events import said

from node.events.event_types import CheckpointWritten, WaitingFor, WarningEvent
from node.events.log import EventLog, JsonSink, from_line, read_records, to_line
from node.system.errors import RunError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_an_event_is_one_line_and_comes_back(fields):
    event = {**fields, "event": "round", "ts": 1.0}
    line = to_line(event)
    assert line.count("\n") == 1
    assert from_line(line) == event


@given(st.binary(max_size=80))
def test_any_bytes_are_an_event_or_none(line):
    event = from_line(line)
    assert event is None or isinstance(event["event"], str)


DEEP = '{"event": "round", "ts": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"event": 3}', '{"event": "round", "ts"', DEEP])
def test_what_is_no_event_is_none(line):
    assert from_line(line) is None


def test_numbers_that_json_lacks_become_null():
    line = to_line({"event": "round", "loss": math.nan, "inner": [math.inf, {"x": -math.inf}]})
    assert json.loads(line) == {"event": "round", "loss": None, "inner": [None, {"x": None}]}


def test_the_log_appends_and_tells_its_sinks(tmp_path):
    heard = []
    path = tmp_path / "events.jsonl"
    for number in range(2):
        with EventLog(path, sinks=[heard.append], clock=lambda: 12.3456) as emit:
            emit(CheckpointWritten(round=number, path="/x"))
    assert [event["round"] for event in read_records(path)] == [0, 1]
    assert next(read_records(path)) == {"ts": 12.346, "event": "checkpoint", "round": 0, "path": "/x"}
    assert len(heard) == 2


def test_each_event_is_on_disk_at_once(tmp_path):
    with EventLog(tmp_path / "e.jsonl") as emit:
        emit(said("interrupted"))
        assert len(list(read_records(tmp_path / "e.jsonl"))) == 1


def test_a_line_cut_short_by_a_crash_costs_only_itself(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"ts": 1, "event": "round", "rou\n{"ts": 2, "event": "finished"}\n\xff\xff')
    assert [event["event"] for event in read_records(path)] == ["finished"]


def test_a_restart_after_a_torn_line_loses_nothing_of_its_own(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"ts": 1, "event": "round", "rou')
    with EventLog(path) as emit:
        emit(said("started"))
    assert [event["event"] for event in read_records(path)] == ["started"]


def test_a_full_log_is_set_aside_and_one_is_kept(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=lambda: 1.0, max_bytes=200) as emit:
        for number in range(30):
            emit(CheckpointWritten(round=number, path="x"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.1.jsonl", "events.jsonl"]
    assert all(file.stat().st_size <= 200 for file in tmp_path.iterdir())
    kept = [event["round"] for event in read_records(path)]
    assert kept == list(range(30 - len(kept), 30))
    assert len(kept) > 4


def test_a_next_file_that_cannot_be_opened_at_once_is_opened_later(tmp_path, monkeypatch, capsys):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=lambda: 1.0, max_bytes=200) as emit:
        with monkeypatch.context() as busy:
            busy.setattr(EventLog, "_open", lambda _: (_ for _ in ()).throw(OSError(24, "Too many open files")))
            for number in range(8):
                emit(CheckpointWritten(round=number, path="x"))
        assert not path.exists()
        emit(CheckpointWritten(round=8, path="x"))
    assert [event["round"] for event in read_records(path)] == [0, 1, 2, 8]
    assert capsys.readouterr().err.count("Too many open files") == 1


def test_a_name_that_is_no_text_ends_no_run_and_comes_back(tmp_path):
    """A folder's name may hold any bytes, and stands in events and in what a failure says."""
    path, odd = tmp_path / "events.jsonl", os.fsdecode(b"/data/caf\xe9 \xc3\xa9")
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with EventLog(path, sinks=[JsonSink(shown)]) as emit:
        emit(WarningEvent(message=odd))
        emit(WarningEvent(message="and on"))
    assert [event["message"] for event in read_records(path)] == [odd, "and on"]
    shown.seek(0)
    assert shown.read() == path.read_text(encoding="utf-8")


def test_a_log_that_was_full_before_the_start_is_set_aside(tmp_path):
    path = tmp_path / "events.jsonl"
    for number in range(3):
        with EventLog(path, clock=lambda: 1.0, max_bytes=50) as emit:
            emit(CheckpointWritten(round=number, path="x"))
    assert [event["round"] for event in read_records(path)] == [1, 2]


@pytest.mark.parametrize("most", [100, 150, 151, 152, 400, 1000])
def test_a_log_that_is_given_less_keeps_its_newest_lines(tmp_path, most):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=lambda: 1.0, max_bytes=600) as emit:
        for number in range(20):
            emit(CheckpointWritten(round=number, path="x"))
        before = [event["round"] for event in read_records(path)]
        line = path.stat().st_size // len(path.read_text().splitlines())
        emit.bound(most)
        emit(CheckpointWritten(round=20, path="x"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.1.jsonl", "events.jsonl"]
    assert all(file.stat().st_size <= most for file in tmp_path.iterdir())
    kept = [event["round"] for event in read_records(path)]
    assert kept == list(range(21 - len(kept), 21))
    assert len(kept) >= min(most // line, len(before)), "no more is dropped than must be"


def test_a_full_disk_keeps_a_log_that_was_to_be_shortened_and_nothing_beside_it(tmp_path, monkeypatch, capsys):
    older, whole = tmp_path / "events.1.jsonl", b"".join(b"%098d\n" % number for number in range(9))
    older.write_bytes(whole)

    def half(_log, kept):
        kept.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", half)
    with EventLog(tmp_path / "events.jsonl") as emit:
        emit.bound(300)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.1.jsonl", "events.jsonl"]
    assert older.read_bytes() == whole
    assert capsys.readouterr().err.count("No space left") == 1


def test_a_log_is_read_line_by_line(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"ts": 1, "event": "started"}\n')
    events = read_records(path)
    assert next(events)["event"] == "started"
    assert list(events) == []
    assert list(read_records(tmp_path / "none.jsonl")) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_where_stderr_lies_on_the_full_disk_as_well_nothing_ends(monkeypatch):
    """As with `up`, whose nodes' stderr is a file in their folders."""
    heard = []
    with Path("/dev/full").open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        emit = EventLog(Path("/dev/full"), sinks=[heard.append])
        emit(WarningEvent(message="one"))
        emit(WarningEvent(message="two"))
        emit.close()
    assert [event.message for event in heard] == ["one", "two"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_warns_once_and_goes_on(capsys):
    heard = []
    emit = EventLog(Path("/dev/full"), sinks=[heard.append])
    for number in range(3):
        emit(CheckpointWritten(round=number, path="x"))
    emit.close()
    assert len(heard) == 3
    assert capsys.readouterr().err.count("No space left") == 1


def test_a_log_that_cannot_be_opened_says_so(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        EventLog(tmp_path / "missing" / "e.jsonl")


def test_a_reader_that_has_gone_away_ends_only_its_sink():
    stream = io.StringIO()
    sink = JsonSink(stream)
    sink(WaitingFor(ts=1, message="a"))
    assert from_line(stream.getvalue()) == {"ts": 1, "event": "waiting", "message": "a"}
    stream.close()
    sink(WaitingFor(ts=2, message="b"))
    assert sink._stream is None
