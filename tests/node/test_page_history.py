"""Curves in bounded memory, and a run's earlier rounds read back from its log."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from swarm_story import round_event
from typed_events import typed

from node.events.log import older, to_line
from node.page.columns import COLUMNS, Columns
from node.page.history import MAX_POINTS, Cursor, Curve
from node.page.replay import READ_BYTES, Earlier, earlier_rounds


def test_a_short_curve_is_every_measurement():
    curve = Curve()
    for done in range(1, 4):
        curve.add(done, 1 / done, None)
    assert curve.rows == [(1, 1.0, None), (2, 0.5, None), (3, 1 / 3, None)]


def test_a_long_curve_is_bounded_whole_and_its_points_are_means():
    curve = Curve(limit=8)
    for done in range(1, 101):
        curve.add(done, float(done))
        assert len(curve.rows) <= 8
    stride = 16
    assert curve.rows[0] == (stride, (1 + stride) / 2)
    assert curve.rows[-1] == (100, pytest.approx((97 + 100) / 2))  # the newest point is not full yet
    assert [row[0] for row in curve.rows[:-1]] == [stride * n for n in range(1, len(curve.rows))]


def test_ten_thousand_rounds_fit_the_default():
    curve = Curve()
    for done in range(10_000):
        curve.add(done, 0.0)
    assert MAX_POINTS / 2 <= len(curve.rows) <= MAX_POINTS


def test_what_is_no_number_is_a_gap_and_spoils_no_mean():
    curve = Curve(limit=2)
    for done, loss in enumerate((math.nan, 2.0, math.inf, None)):
        curve.add(done, loss)
    assert curve.rows == [(1, 2.0), (3, None)]


def test_a_node_that_goes_back_draws_those_rounds_again():
    curve = Curve()
    for done in (1, 2, 3, 2):
        curve.add(done, float(done) / 10)
    assert curve.rows == [(1, 0.1), (2, 0.2)]


def test_a_reader_that_takes_what_is_new_has_the_curve_whatever_happens_to_it():
    curve, have, cursor = Curve(limit=8), [], Cursor()
    for step in range(60):
        curve.add(step if step != 30 else 20, float(step))
        if step == 40:
            curve.put_before([(-2, 1.0), (-1, 2.0), (7, 3.0)])
        if step % 3 == 0:
            news = curve.since(cursor)
            assert news is not None
            have[news.start :], cursor = news.rows, news.cursor
            assert have == curve.rows
            assert curve.since(cursor) is None


def test_new_points_alone_are_told():
    curve = Curve()
    for done in range(50):
        curve.add(done, 0.0)
    news = curve.since(Cursor())
    assert news is not None
    curve.add(50, 0.0)
    newer = curve.since(news.cursor)
    assert newer is not None
    assert len(newer.rows) == 2  # the newest might have grown


def test_earlier_rounds_come_before_and_never_twice():
    curve = Curve()
    for done in (40, 41):
        curve.add(done, 1.0)
    curve.put_before([(38, 5.0), (39, 5.0), (40, 5.0), (41, 5.0), (45, 5.0)])
    assert curve.rows == [(38, 5.0), (39, 5.0), (40, 1.0), (41, 1.0)]


def log_of(path: Path, rounds: range) -> None:
    with path.open("a", encoding="utf-8") as file:
        for done in rounds:
            file.write(to_line(round_event(done, ts=float(done))))
        file.write(to_line({"ts": 1.0, "event": "evaluated", "round": rounds[-1], "eval_loss": 2.5}))


def test_the_log_gives_the_earlier_rounds_and_those_done_again_once(tmp_path):
    path = tmp_path / "events.jsonl"
    log_of(path, range(1, 48))
    log_of(path, range(41, 60))
    end = path.stat().st_size
    log_of(path, range(60, 70))  # of this process: it knows them
    earlier = earlier_rounds(path, end)
    assert [row[0] for row in earlier.rounds] == list(range(1, 60))
    assert earlier.rounds[0][:3] == (1.0, pytest.approx(5.2), 1.25)
    assert earlier.held_out == [(47, 2.5), (59, 2.5)]


def test_of_a_log_that_is_too_long_evenly_spaced_parts_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("node.page.replay.READ_BYTES", 1 << 18)
    path = tmp_path / "events.jsonl"
    log_of(older(path), range(1, 1000))
    log_of(path, range(1000, 2000))
    assert READ_BYTES > 1 << 18
    at = [row[0] for row in earlier_rounds(path, path.stat().st_size).rounds]
    assert at == sorted(set(at))
    assert 150 < len(at) < 400
    assert at[0] < 30
    assert at[-1] > 1970
    assert max(later - before for before, later in pairwise(at)) < 200


def test_a_log_of_something_else_is_no_curve(tmp_path):
    path = tmp_path / "events.jsonl"
    assert earlier_rounds(path, 100) == Earlier()
    path.write_bytes(b'{"event": "round", "round": "x", "ts": 1}\n\xff\n{"event": "evaluated", "round": 1, "ts": 1}\n')
    assert earlier_rounds(path, 100) == Earlier(held_out=[(1, None)])
    assert earlier_rounds(tmp_path, 100) == Earlier()


def test_a_restart_whose_totals_begin_anew_is_no_negative_rate() -> None:
    columns = Columns()
    at = 1 + COLUMNS.index("sent_bytes_per_s")
    told = ((1, 1.0, 1000), (2, 2.0, 3000), (3, 3.0, 500), (4, 3.0, 900), (5, 4.0, 1900))
    rows = [columns.row(typed(round_event(done, ts=ts) | {"bytes_sent": sent})) for done, ts, sent in told]
    assert [row[at] for row in rows] == [None, 2000.0, None, None, 1000.0]
