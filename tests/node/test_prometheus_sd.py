"""`p2ptrain monitor targets`: who is to be scraped, by the folders of a run alone."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from swarm_story import node_events

from node.cli import monitor_cmd
from node.cli.app import main
from node.events.log import to_line
from node.system.errors import UsageError
from node.system.run_dir import CONFIG, EVENTS, LOCK
from node.top import prometheus_sd
from node.top.prometheus_sd import FORGET_S, RunTargets, entry

BEGAN = 1000.0
LAST = BEGAN + 40
"""Of `node_events`: the time of the newest event."""
SOON = LAST + 60


def write(folder: Path, index: int, *more: dict, swarm: str = "bees") -> None:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(f'[network]\nswarm = "{swarm}"\n')
    lock(folder, os.getpid())
    append(folder, *node_events(index, began=BEGAN), *more)


def append(folder: Path, *events: dict) -> None:
    with (folder / EVENTS).open("a") as log:
        log.writelines(map(to_line, events))


def ended(event: str, ts: float = LAST) -> dict:
    return {"ts": ts, "event": event, "summary": None, "error": "it fell over", "hint": ""}


def names(entries: list[prometheus_sd.Entry]) -> list[str]:
    return [each["labels"]["node"] for each in entries]


def lock(folder: Path, pid: object) -> None:
    (folder / LOCK).write_text(f"{pid}\n")


def test_each_node_is_one_entry_as_prometheus_reads_it(tmp_path):
    write(tmp_path / "a-run" / "node-0", 0)
    write(tmp_path / "a-run" / "node-1", 1)
    labels = {"swarm": "bees", "run": "a-run"}
    expected = [
        {"targets": [f"127.0.0.1:{9400 + index}"], "labels": {**labels, "node": f"node-{index}"}} for index in range(2)
    ]
    assert RunTargets(tmp_path / "a-run").look(SOON) == expected
    assert RunTargets(tmp_path / "a-run" / "node-1").look(SOON) == expected[1:]
    assert RunTargets(tmp_path / "a-run", "named").look(SOON)[0]["labels"]["run"] == "named"


def test_a_volunteer_that_comes_is_there_at_the_next_look_and_one_that_ends_is_not(tmp_path):
    write(tmp_path / "node-0", 0)
    source = RunTargets(tmp_path)
    assert names(source.look(SOON)) == ["node-0"]
    write(tmp_path / "node-1", 1)
    assert names(source.look(SOON)) == ["node-0", "node-1"]
    append(tmp_path / "node-0", ended("finished"))
    assert names(source.look(SOON)) == ["node-1"]
    append(tmp_path / "node-1", ended("interrupted"))
    assert source.look(SOON) == []
    append(tmp_path / "node-1", next(node_events(7, began=SOON)))
    assert source.look(SOON)[0]["targets"] == ["127.0.0.1:9407"], "restarted, with another port"


@pytest.mark.parametrize("more", [[], [ended("failed")]], ids=["killed", "failed"])
def test_one_that_fell_is_missed_for_an_hour_and_then_forgotten(tmp_path, more):
    write(tmp_path / "node-0", 0, *more)
    lock(tmp_path / "node-0", "no number" if more else 2**70)
    source = RunTargets(tmp_path)
    assert names(source.look(LAST + FORGET_S - 1)) == ["node-0"]
    assert source.look(LAST + FORGET_S + 1) == []


def test_who_fell_before_a_run_was_brought_to_its_end_is_not_missed_any_more(tmp_path):
    for index in range(3):
        write(tmp_path / f"node-{index}", index)
    lock(tmp_path / "node-1", 2**70)
    source = RunTargets(tmp_path)
    assert names(source.look(SOON)) == ["node-0", "node-1", "node-2"]
    append(tmp_path / "node-0", ended("interrupted", LAST + 5))
    assert names(source.look(SOON)) == ["node-1", "node-2"]
    append(tmp_path / "node-2", ended("interrupted", LAST + 6))
    assert source.look(SOON) == []


def test_who_fell_after_the_last_good_end_is_missed(tmp_path):
    write(tmp_path / "node-0", 0, ended("finished", BEGAN + 20))
    write(tmp_path / "node-1", 1)
    for index in range(2):
        lock(tmp_path / f"node-{index}", 2**70)
    assert names(RunTargets(tmp_path).look(SOON)) == ["node-1"]


def test_one_that_lives_is_listed_however_long_it_says_nothing(tmp_path):
    write(tmp_path / "node-0", 0)
    late = LAST + 100 * FORGET_S
    assert names(RunTargets(tmp_path).look(late)) == ["node-0"]
    os.utime(tmp_path / "node-0" / LOCK, (BEGAN, BEGAN))
    assert RunTargets(tmp_path).look(late) == [], "the number belongs to a younger process"


def test_a_process_that_nobody_has_buried_yet_does_not_live(tmp_path):
    write(tmp_path / "node-0", 0)
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    lock(tmp_path / "node-0", child.pid)
    assert RunTargets(tmp_path).look(LAST + 2 * FORGET_S) == []
    child.wait()


def test_who_serves_no_metrics_or_has_not_begun_is_not_listed(tmp_path):
    for index, told in enumerate(({"metrics_url": None}, None)):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        (folder / EVENTS).touch()
        if told is not None:
            append(folder, next(node_events(index, began=BEGAN)) | told)
    assert RunTargets(tmp_path).look(SOON) == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://192.0.2.7:9400", "192.0.2.7:9400"),
        ("http://0.0.0.0:9400", "127.0.0.1:9400"),
        ("http://[::]:9400", "[::1]:9400"),
        ("http://[2001:db8::1]:9400/", "[2001:db8::1]:9400"),
    ],
)
def test_addresses_are_ones_to_dial(url, address):
    assert entry(url, swarm="", run="", node="")["targets"] == [address]


@pytest.mark.parametrize("settings", ["", "network = 3", "[network]\n", "= broken"])
def test_settings_of_no_use_cost_the_label_alone(tmp_path, settings):
    write(tmp_path / "node-0", 0)
    (tmp_path / "node-0" / CONFIG).write_text(settings)
    assert RunTargets(tmp_path).look(SOON)[0]["labels"]["swarm"] == ""


def test_the_command_prints_it_or_writes_it_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(monitor_cmd.time, "time", lambda: SOON)
    run, out = tmp_path / "run", tmp_path / "out.json"
    write(run / "node-0", 0)
    assert main(["monitor", "targets", "--run-dir", str(run)]) == 0
    assert capsys.readouterr().out == "node-0  127.0.0.1:9400\n"
    assert main(["monitor", "targets", "--run-dir", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == RunTargets(run).look(SOON)
    assert main(["monitor", "targets", "--run-dir", str(run), "--json", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(out.read_text()) == printed
    assert list(tmp_path.glob(".*")) == [], "nothing is left of the write"


def test_a_folder_that_is_none_is_said(tmp_path, capsys):
    assert main(["monitor", "targets", "--run-dir", str(tmp_path / "none"), "--json"]) == 2
    assert "there is no run folder" in capsys.readouterr().err
    with pytest.raises(UsageError):
        RunTargets(tmp_path).look(SOON)
    assert RunTargets(tmp_path).look_patiently(SOON) == []


class Clock:
    """Between two looks something happens; after the last of them, Ctrl-C."""

    def __init__(self, *happens) -> None:
        self.happens = list(happens)

    def time(self) -> float:
        return SOON

    def sleep(self, _: float) -> None:
        if not self.happens:
            raise KeyboardInterrupt
        self.happens.pop(0)()


def test_it_goes_on_and_writes_what_has_changed(tmp_path, capsys, monkeypatch):
    run, out = tmp_path / "run", tmp_path / "out.json"
    seen = []

    def look() -> None:
        seen.append((names(json.loads(out.read_text())), out.stat().st_ino))

    happens = (
        look,
        lambda: write(run / "node-0", 0),
        look,
        look,
        lambda: write(run / "node-1", 1),
        look,
    )
    monkeypatch.setattr(monitor_cmd, "time", Clock(*happens))
    assert main(["monitor", "targets", "--run-dir", str(run), "--watch", "--out", str(out)]) == 130
    assert [found for found, _ in seen] == [[], ["node-0"], ["node-0"], ["node-0", "node-1"]]
    assert seen[1] == seen[2], "what has not changed is not written again"
    monkeypatch.setattr(monitor_cmd, "time", Clock(lambda: append(run / "node-0", ended("finished"))))
    assert main(["monitor", "targets", "--run-dir", str(run), "--watch", "--json"]) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [names(line) for line in lines] == [["node-0", "node-1"], ["node-1"]]


@pytest.mark.parametrize("words", [["monitor", "targets", "--run-dir"], ["top", "--once"]])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_no_success(words, more, tmp_path, capsys, monkeypatch):
    write(tmp_path / "run" / "node-0", 0)

    def full(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(sys.stdout, "write", full)
        assert main([*words, str(tmp_path / "run"), *more]) == 1
    assert "No space left" in capsys.readouterr().err


def test_times_that_no_clock_has_are_wrong_usage(tmp_path, capsys):
    for words in (["monitor", "targets", "--watch", "--run-dir"], ["top"]):
        assert main([*words, str(tmp_path), "--every", "inf"]) == 2
        assert "--every" in capsys.readouterr().err


def test_a_disk_that_is_full_for_a_while_does_not_end_it(tmp_path, capsys, monkeypatch):
    run, folder = tmp_path / "run", tmp_path / "targets"
    out = folder / "out.json"
    command = ["monitor", "targets", "--run-dir", str(run), "--watch", "--out", str(out)]
    assert main(command) == 1, "a folder that was never there is a mistake"
    folder.mkdir()

    def away() -> None:
        out.unlink()
        folder.rmdir()
        write(run / "node-0", 0)

    monkeypatch.setattr(monitor_cmd, "time", Clock(away, folder.mkdir, lambda: None))
    capsys.readouterr()
    assert main(command) == 130
    assert capsys.readouterr().err.startswith("warning: cannot write")
    assert names(json.loads(out.read_text())) == ["node-0"]


def test_a_watcher_that_nobody_reads_any_more_ends_though_nothing_changes(tmp_path, monkeypatch):
    write(tmp_path / "node-0", 0)
    monkeypatch.setattr(monitor_cmd, "time", Clock(lambda: None, lambda: None))
    gone = iter([False, True])
    monkeypatch.setattr(monitor_cmd, "reader_is_gone", lambda stream: next(gone))
    assert main(["monitor", "targets", "--run-dir", str(tmp_path), "--watch"]) == 1, "as where a write finds it gone"
