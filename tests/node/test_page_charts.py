"""What the page's charts are fed with, and by what they are drawn: rows of a log's rounds, and a vendored library."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from swarm_story import PEER, round_event
from typed_events import said, typed

from node.events.log import EventLog, older
from node.events.progress import NodeProgress
from node.metrics.gpu_metrics import GpuMemory, GpuUse, gpu_use
from node.page.columns import COLUMNS, MAX_NAME, MAX_OWN, Columns, own_of
from node.page.feed import Feed, FeedPosition, export_command
from node.page.names import MAX_FOLDERS, Names
from node.page.replay import earlier_rounds
from node.page.status_server import FOLDER
from node.system.run_dir import EVENTS

VERSION = "1.6.32"
DIGESTS = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Of the files of uPlot VERSION on npm, as scripts/vendor_uplot.sh fetches them."""


@pytest.mark.parametrize("name", DIGESTS)
def test_the_library_is_the_pinned_one(name):
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == DIGESTS[name]


def test_the_script_that_fetches_it_has_the_same_version():
    script = (Path(__file__).parents[2] / "scripts" / "vendor_uplot.sh").read_text(encoding="utf-8")
    assert f"version={VERSION}\n" in script
    assert f"(v{VERSION})" in (FOLDER / "uplot.js").read_text(encoding="utf-8")
    assert "MIT License" in (FOLDER / "uplot.LICENSE").read_text(encoding="utf-8")


def test_the_library_asks_nobody_and_makes_no_markup_out_of_text():
    text = (FOLDER / "uplot.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|document\.write|\beval\b|Function\(|fetch\(|XMLHttp|cssText", text)


def column(row, name):
    return row[1 + COLUMNS.index(name)]


def test_rates_come_of_two_rounds_and_never_over_a_restart():
    columns = Columns()
    first = columns.row(typed(round_event(1, ts=10.0) | {"cpu_s": 5.0}))
    second = columns.row(typed(round_event(2, ts=14.0) | {"cpu_s": 11.0}))
    again = columns.row(typed(round_event(3, ts=15.0) | {"cpu_s": 0.5, "bytes_sent": 0}))
    assert column(first, "sent_bytes_per_s") is None
    assert column(second, "sent_bytes_per_s") == pytest.approx(125_000 / 4), "all bytes"
    assert column(second, "received_bytes_per_s") == pytest.approx(375_000 / 4)
    assert column(second, "cpu_cores") == pytest.approx(1.5)
    assert column(second, "tokens_per_s") == 6_800.0
    assert column(again, "cpu_cores") is None
    assert column(again, "sent_bytes_per_s") is None


@pytest.mark.parametrize("value", [None, "1", float("nan"), True, [1]])
def test_what_is_no_number_is_a_hole(value):
    columns = Columns()
    for done in (1, 2):
        row = columns.row(said("round", round=done, train_loss=value, cpu_s=value, rss_bytes=value))
    assert [column(row, name) for name in ("train_loss", "cpu_cores", "rss_bytes", "gpu_share")] == [None] * 4


def test_a_gpu_that_does_not_say_how_busy_it_is_has_its_memory_told(monkeypatch):
    """In the place of a driver: no GPU is needed, and nvidia-ml-py may be there or not."""

    def silent(device: object) -> int:
        raise ModuleNotFoundError("no module named pynvml")

    device = torch.device("cuda:0")
    memory = GpuMemory(allocated=1 << 30, reserved=5 << 30, free=9 << 30)
    assert gpu_use(torch.device("cpu"), None) == GpuUse(None, None)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    assert gpu_use(device, memory) == GpuUse(0.87, 5 << 30)
    monkeypatch.setattr(torch.cuda, "utilization", silent)
    assert gpu_use(device, memory) == GpuUse(None, 5 << 30)


def test_own_metrics_are_told_by_name_and_bounded():
    feed = Feed(NodeProgress("node"))
    many = {f"{n} {'x' * 100}": float(n) for n in range(MAX_OWN + 9)}
    feed.observe(
        typed({"ts": 1.0, "event": "evaluated", "round": 0, "eval_loss": 1.0, "own": {"accuracy": 0.5, "bad": "x"}})
    )
    feed.observe(said("evaluated", round=1, eval_loss=1.0, own={"accuracy": 0.75} | many))
    place = feed.place()
    told = json.loads(feed.news(place))["own"]
    assert told["accuracy"]["rows"] == [[0, 0.5], [1, 0.75]]
    assert told["bad"]["rows"] == [[0, None]]
    assert len(told) == MAX_OWN
    assert max(map(len, told)) <= MAX_NAME
    feed.observe(said("evaluated", round=2, eval_loss=1.0, own={"accuracy": 0.8}))
    assert json.loads(feed.news(place))["own"] == {"accuracy": {"start": 1, "rows": [[1, 0.75], [2, 0.8]]}}
    assert own_of(said("evaluated", round=3, own="nonsense")) == {}


async def test_own_metrics_of_earlier_rounds_are_read_back(tmp_path):
    path = tmp_path / EVENTS
    with EventLog(path) as log:
        for done in (1, 2):
            log(said("evaluated", round=done, eval_loss=1.0, own={"accuracy": done / 10}))
    assert earlier_rounds(path, path.stat().st_size).own == {"accuracy": [(1, 0.1), (2, 0.2)]}
    feed = Feed(NodeProgress("node"), log=path)
    await feed.replay()
    assert json.loads(feed.news(FeedPosition()))["own"]["accuracy"]["rows"] == [[1, 0.1], [2, 0.2]]


def test_a_page_is_told_settings_commands_and_the_names_of_columns():
    progress = NodeProgress("node", run_dir="/runs/my run/node")
    feed = Feed(progress, settings={"train": {"rounds": 60}})
    told = json.loads(feed.news(FeedPosition()))
    assert told["columns"] == list(COLUMNS)
    assert told["settings"] == {"train": {"rounds": 60}}
    assert told["state"]["export_command"] == "p2ptrain export '/runs/my run/node' --out model.safetensors"
    assert export_command(NodeProgress("node", run_dir="/runs/node", role="bootstrap")) is None


def test_peers_have_the_names_of_folders_and_of_certificates(tmp_path):
    for index in range(2):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        with EventLog(folder / EVENTS) as log:
            log(said("reachability", detail="before"))
            log(said("started", peer_id=f"{PEER}{index}"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / EVENTS).write_bytes(b"\xff\n[]\n")
    names = Names(tmp_path, lambda: [(f"{PEER}1", "Ada's GPU"), (f"{PEER}7", ""), (f"{PEER}8", "Bo")])
    assert names.known() == {f"{PEER}0": "node-0", f"{PEER}1": "Ada's GPU", f"{PEER}8": "Bo"}
    feed = Feed(NodeProgress("node"), names=names.known)
    feed._progress.observe(typed({"ts": 1.0, "event": "neighbour_up", "peer": f"{PEER}1"}))
    assert feed.status()["peers"][f"{PEER}1"]["name"] == "Ada's GPU"


def test_of_very_many_folders_some_are_read(tmp_path):
    for index in range(MAX_FOLDERS + 5):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        (folder / EVENTS).write_text(f'{{"ts": 1, "event": "started", "peer_id": "p{index}"}}\n')
    names = Names(tmp_path)
    names.known()
    names._next_look = 0.0
    assert len(names.known()) == MAX_FOLDERS


def test_a_folder_that_is_gone_names_nobody_and_a_log_that_is_begun_anew_keeps_its_name(tmp_path):
    names = Names(tmp_path)

    def start(index: int, peer: str) -> Path:
        folder = tmp_path / f"node-{index}"
        folder.mkdir(exist_ok=True)
        (folder / EVENTS).write_text(f'{{"ts": 1, "event": "started", "peer_id": "{peer}"}}\n')
        return folder

    def known() -> dict[str, str]:
        names._next_look = 0.0
        return names.known()

    folders = [start(index, f"p{index}") for index in range(MAX_FOLDERS)]
    assert len(known()) == MAX_FOLDERS
    log = folders[0] / EVENTS
    log.replace(older(log))
    log.write_text('{"ts": 2, "event": "warning", "message": "the start is in the other file"}\n')
    shutil.rmtree(folders[1])
    start(MAX_FOLDERS, "late")
    assert {"p1", "p0", "late"} & known().keys() == {"p0", "late"}
    (folders[2] / EVENTS).replace(older(folders[2] / EVENTS))
    start(2, "another node, with a key of its own")
    assert known()["another node, with a key of its own"] == "node-2"
    assert "p2" not in known()
