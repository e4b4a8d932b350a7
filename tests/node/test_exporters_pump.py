"""An exporter that is slow, stuck or broken costs a warning, and training nothing."""

import threading
import time

import pytest
from typed_events import said

from node.events.log import EventLog, read_records
from node.exporters import exporting
from node.exporters.pump import Pump, close_all

EVENTS = [said("round", round=number) for number in range(10)]


class Recorder:
    """Keeps what it is given; `failing` events raise."""

    needs = ""

    def __init__(self, failing=(), admission=None):
        self.heard, self.failing, self.admission, self.closed = [], failing, admission, 0

    def export(self, event):
        if self.admission is not None:
            self.admission.wait()
        if event["round"] in self.failing:
            raise OSError(28, "No space\nleft on device")
        self.heard.append(event["round"])

    def close(self):
        self.closed += 1


def pumped(exporter, *, bound=1024, within_s=5.0, events=EVENTS):
    warnings = []
    pump = Pump("disk", lambda: exporter, warnings.append, bound=bound)
    for event in events:
        pump(event)
    close_all([pump], within_s=within_s)
    return warnings


def test_every_event_comes_in_order_and_the_end_too():
    exporter = Recorder()
    assert pumped(exporter) == []
    assert exporter.heard == list(range(10))
    assert exporter.closed == 1


def test_a_full_disk_warns_once_and_is_tried_again():
    exporter = Recorder(failing={2, 3, 9})
    warnings = pumped(exporter)
    assert exporter.heard == [0, 1, 4, 5, 6, 7, 8]
    said = "exporter disk: OSError: [Errno 28] No space left on device; training goes on, with gaps in what it tells"
    assert warnings == [said]


@pytest.mark.slow
def test_one_that_is_stuck_holds_nobody_up_and_its_queue_has_an_end():
    admission, warnings = threading.Event(), []
    exporter = Recorder(admission=admission)
    pump = Pump("stuck", lambda: exporter, warnings.append, bound=3)
    began = time.monotonic()
    for event in EVENTS:
        pump(event)
    assert pump._waiting.qsize() <= 3
    said = "it is too slow, or stuck: more than 3 events wait; training goes on, with gaps in what it tells"
    assert warnings == [f"exporter stuck: {said}"]
    close_all([pump], within_s=0.05)
    assert time.monotonic() - began < 2.0  # a bound of the test's: it would hang for good without the defence
    assert pump._thread.daemon
    admission.set()
    pump._thread.join(5)
    assert exporter.heard == [0, 1, 2, 3][: len(exporter.heard)]
    assert len(warnings) == 1


def test_one_that_is_stuck_takes_no_others_end_along():
    admission, patient = threading.Event(), Recorder()
    pumps = [
        Pump("stuck", lambda: Recorder(admission=admission), lambda _: None),
        Pump("well", lambda: patient, pytest.fail),
    ]
    for event in EVENTS:
        for pump in pumps:
            pump(event)
    close_all(pumps, within_s=0.5)
    admission.set()
    assert (patient.heard, patient.closed) == (list(range(10)), 1)
    pumps[0]._thread.join(5)


def test_one_that_cannot_be_built_is_tried_again():
    tries = []

    def build():
        tries.append(1)
        if len(tries) < 3:
            raise PermissionError("not yours")
        return exporter

    exporter, warnings = Recorder(), []
    pump = Pump("shy", build, warnings.append)
    for event in EVENTS:
        pump(event)
    close_all([pump], within_s=5.0)
    assert exporter.heard == list(range(2, 10))
    assert len(warnings) == 1


def test_what_comes_after_the_end_is_left_out():
    exporter = Recorder()
    pump = Pump("late", lambda: exporter, pytest.fail)
    close_all([pump])
    pump(EVENTS[0])
    assert exporter.heard == []
    assert exporter.closed == 0, "it was never built"


def test_trouble_is_an_event_like_any_other(tmp_path, monkeypatch):
    from node.exporters import EXPORTERS

    monkeypatch.setitem(EXPORTERS._factories, "broken", lambda about: Recorder(failing={0, 1, 2}))
    with EventLog(tmp_path / "events.jsonl") as emit, exporting(["broken", "broken"], emit, tmp_path):
        for number in range(3):
            emit(said("round", round=number))
    told = list(read_records(tmp_path / "events.jsonl"))
    assert [event["event"] for event in told if event["event"] != "warning"] == ["round"] * 3
    assert [event["message"].split(":")[0] for event in told if event["event"] == "warning"] == ["exporter broken"]


@pytest.mark.parametrize("finished", [True, False])
def test_a_node_whose_rounds_are_done_waits_for_one_that_is_slow_to_begin(tmp_path, monkeypatch, finished: bool):
    """wandb takes seconds to import: a short run is over before it has told anything."""
    from node.exporters import EXPORTERS, Ending

    admission, exporter = threading.Event(), Recorder()

    def build(about):
        assert admission.wait(30)
        return exporter

    monkeypatch.setitem(EXPORTERS._factories, "slow", build)
    monkeypatch.setattr("node.exporters.pump.CLOSE_S", 0.01)
    monkeypatch.setattr("node.exporters.Ending", lambda: Ending(within_s=0.01))
    heard = []
    with EventLog(tmp_path / "events.jsonl", sinks=[heard.append]) as emit:
        emit.add_sink(lambda event: admission.set() if event.name == "waiting" else None)
        with exporting(["slow"], emit, tmp_path) as ending:
            for number in range(3):
                emit(said("round", round=number))
            if finished:
                ending.finished()
    admission.set()
    words = [event.message for event in heard if event.name in {"waiting", "warning"}]
    if finished:
        assert (exporter.heard, exporter.closed) == ([0, 1, 2], 1)
        assert [each.partition(" to write")[0] for each in words] == ["waiting for the exporter slow"]
    else:  # Ctrl-C has five seconds
        assert words == ["exporter slow: it did not come to its end in time: its last events may be missing"]
