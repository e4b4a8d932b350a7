"""What each exporter wrote or sent, read back by the library's own reader or by the format's own rules."""

import json
import math
import os
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from exporters_story import BEGAN, about, built, story
from typed_events import typed

from node.exporters.base import numbers
from node.exporters.otel import parts_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def exported(name, folder, events):
    exporter = built(name, folder)
    for event in events:
        exporter.export(event)
    exporter.close()


def test_numbers_are_the_events_own_and_no_labels():
    event = story()[3]
    told = dict(numbers(event))
    assert told["train_loss"] == 2.0
    assert told["rejected/oversize"] == 1.0
    assert told["staleness"] == 1.0
    assert not {"ts", "round", "rounds", "closed_by", "utilization", "weights", "event"} & told.keys()


def test_tensorboard_shows_each_round(tmp_path):
    exported("tensorboard", tmp_path, story())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(tmp_path / "node-0" / "tensorboard")).Reload()
    loss = shown.Scalars("train_loss")
    assert [(each.step, each.value) for each in loss] == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert [each.wall_time for each in loss] == [BEGAN + 10, BEGAN + 20, BEGAN + 30]
    assert [each.step for each in shown.Scalars("eval_loss")] == [0, 1, 2, 3]
    assert "12D3KooW" in shown.Tensors("started/text_summary")[0].tensor_proto.string_val[0].decode()


def test_tensorboard_goes_on_when_a_full_disk_has_room_again(tmp_path, monkeypatch):
    exporter = built("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

    def full(*_):
        raise OSError(28, "No space left on device")

    exporter.export({"event": "round", "round": 1, "train_loss": 1.0, "ts": BEGAN})
    with monkeypatch.context() as disk:
        disk.setattr(LocalFileSystem, "append", full)
        disk.setattr(LocalFileSystem, "write", full)
        for number in (2, 3, 4):
            with pytest.raises(OSError, match="No space left"):
                exporter.export({"event": "round", "round": number, "train_loss": 1.0, "ts": BEGAN})
    exporter.export({"event": "round", "round": 5, "train_loss": 1.0, "ts": BEGAN})
    exporter.close()
    files = sorted((tmp_path / "node-0" / "tensorboard").iterdir())
    assert len(files) <= 3, "those of tries that failed do not pile up"
    shown = [EventAccumulator(str(file)).Reload() for file in files]
    steps = [each.step for it in shown if "train_loss" in it.Tags()["scalars"] for each in it.Scalars("train_loss")]
    assert sorted(steps) == [1, 5]


def test_tensorboard_shows_a_round_at_once(tmp_path):
    exporter = built("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for event in story(1):
        exporter.export(event)
    shown = EventAccumulator(str(tmp_path / "node-0" / "tensorboard")).Reload()
    assert len(shown.Scalars("train_loss")) == 1
    exporter.close()


def records(data):
    """Of a `.wandb` file: LevelDB's log format, blocks of 32 KiB with records in pieces (crc, length, kind)."""
    at, whole = 7, b""  # after the file's own header
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield whole
            whole = b""


@pytest.mark.thorough
def test_wandb_keeps_each_round_and_sends_nothing(tmp_path, monkeypatch):
    """With the mode and the address that would call home in its surroundings, and nobody but us there to be called."""
    with listening() as (url, asked):
        for name, value in {"WANDB_MODE": "online", "WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40}.items():
            monkeypatch.setenv(name, value)
        exported("wandb", tmp_path, story())
    assert asked == []
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (tmp_path / "node-0" / "wandb").rglob("*.wandb")
    kept = [Record.FromString(record) for record in records(file.read_bytes())]
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in kept
        if record.HasField("history")
    ]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3]
    assert [row.get("train_loss") for row in rows] == [None, 2.0, 1.0, pytest.approx(2 / 3)]
    assert [row["eval_loss"] for row in rows] == [2.5, 2.5, 1.25, pytest.approx(2.5 / 3)]
    (run,) = [record.run for record in kept if record.HasField("run")][:1]
    assert (run.display_name, run.run_group, run.project) == ("node-0", tmp_path.name, "p2ptrain")


@pytest.mark.thorough
def test_wandb_loses_no_round_of_a_node_that_went_back(tmp_path):
    exporter = built("wandb", tmp_path)
    for event, round in (("round", 4), ("round", 5), ("evaluated", 5), ("evaluated", 4), ("round", 2), ("round", 3)):
        exporter.export({"ts": 0.0, "event": event, "round": round, f"{event}_loss": float(round)})
    exporter.close()
    from wandb.proto.wandb_internal_pb2 import Record

    found: list[list[float]] = []
    until = time.monotonic() + 20
    while sum(map(len, found)) < 4 and time.monotonic() < until:  # a process of wandb's writes them
        time.sleep(0.05)
        found = []
        for file in (tmp_path / "node-0" / "wandb").rglob("*.wandb"):
            kept = [Record.FromString(record) for record in records(file.read_bytes())]
            items = [item for record in kept if record.HasField("history") for item in record.history.item]
            found.append([json.loads(item.value_json) for item in items if "round_loss" in item.nested_key])
    assert sorted(found) == [[2.0, 3.0], [4.0, 5.0]]


@pytest.mark.thorough
def test_wandb_writes_down_neither_the_command_line_nor_the_surroundings(tmp_path):
    built("wandb", tmp_path / "see").close()
    (tmp_path / "it" / "node-0").mkdir(parents=True)
    script = (
        "from pathlib import Path; from node.exporters import EXPORTERS, About\n"
        "where = Path.cwd() / 'it' / 'node-0'\n"
        "EXPORTERS.get('wandb', about=About(folder=where, run='it', node='node-0')).close()\n"
    )
    context = {**os.environ, "P2PTRAIN_INVITE": "hidden-in-env"}
    words = [sys.executable, "-c", script, "--invite", "hidden-in-argv"]
    done = subprocess.run(words, cwd=tmp_path, env=context, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    written = [path for path in (tmp_path / "it").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert not [path for path in written if b"hidden-in" in path.read_bytes()]


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_):
        pass


class listening:
    """An HTTP server on loopback that takes everything: its URL, and what it was asked."""

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        self.server.asked = []
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}", self.server.asked

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_a_round_is_a_trace_with_its_parts(tmp_path, monkeypatch):
    with listening() as (url, asked):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        exported("otel", tmp_path, story(2))
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert [path for path, _ in asked] == ["/v1/traces"] * 2
    (told,) = ExportTraceServiceRequest.FromString(asked[0][1]).resource_spans
    resource = {each.key: each.value.string_value for each in told.resource.attributes}
    assert resource["service.name"] == "p2ptrain"
    assert resource["service.instance.id"] == "12D3KooW"
    assert (resource["p2ptrain.node"], resource["p2ptrain.run"]) == ("node-0", tmp_path.name)
    spans = {span.name: span for span in told.scope_spans[0].spans}
    whole = spans.pop("round")
    assert list(spans) == ["train", "publish", "collect", "aggregate"]
    assert {span.parent_span_id for span in spans.values()} == {whole.span_id}
    assert {span.trace_id for span in spans.values()} == {whole.trace_id}
    times = {name: seconds(span) for name, span in [("round", whole), *spans.items()]}
    expected = {"round": (0, 10), "train": (0, 8), "publish": (8, 8.5), "collect": (8.5, 9.75), "aggregate": (9.75, 10)}
    assert times == {name: pytest.approx(each, abs=1e-5) for name, each in expected.items()}
    assert [(event.name, event.time_unix_nano / 1e9 - BEGAN) for event in whole.events] == [("rejected", 1.0)]
    attributes = {each.key: each.value for each in whole.attributes}
    assert attributes["p2ptrain.round"].int_value == 1
    assert attributes["p2ptrain.closed_by"].string_value == "quorum"


def seconds(span):
    return span.start_time_unix_nano / 1e9 - BEGAN, span.end_time_unix_nano / 1e9 - BEGAN


def test_parts_that_an_event_does_not_tell_are_left_out():
    event = {
        "ts": BEGAN,
        "event": "round",
        "round": 1,
        "close_s": 2.0,
        "collect_s": 2.0,
        "publish_s": None,
        "step_s": math.nan,
        "steps": 3,
    }
    assert list(parts_of(typed(event))) == ["train", "collect"]


def test_two_nodes_of_a_run_write_into_folders_of_their_own(tmp_path):
    assert about(tmp_path, "a").folder != about(tmp_path, "b").folder
