import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from disk_crashes import failing_disk

from node.events.log import opened
from node.system import run_dir
from node.system.errors import RunError, UsageError
from node.system.run_dir import (
    CHECKPOINTS,
    CONFIG,
    KeptSettings,
    fresh_run_dir,
    locked,
    make_dir,
    make_node_dir,
    node_dirs,
    write_atomic,
)


def test_every_name_of_a_run_folder_is_given_once():
    lines = Path(run_dir.__file__).read_text().splitlines()
    names = [line.partition(" = ")[0] for line in lines if re.match(r"[A-Z]+ = ", line)]
    assert len(names) == len(set(names)) >= 10


HOLDER = """
import sys, time
from pathlib import Path
from node.system.run_dir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_folder_in_use_names_the_process(tmp_path, holder):
    with pytest.raises(RunError, match=f"in use by process {holder.pid}") as caught, locked(tmp_path):
        pass
    assert "--run-dir" in caught.value.hint


def test_a_killed_process_leaves_no_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_is_let_go(tmp_path):
    for _ in range(2):
        with locked(tmp_path):
            pass
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        pass


def test_a_lock_in_a_missing_folder_is_one_clear_error(tmp_path):
    with pytest.raises(RunError, match="cannot write in"), locked(tmp_path / "none"):
        pass


def test_checkpoints_of_another_user_end_a_start_before_it_trains(tmp_path, monkeypatch):
    (tmp_path / CHECKPOINTS).mkdir()
    with opened(tmp_path, None, ()):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / CHECKPOINTS)  # root may do anything
    with pytest.raises(RunError, match=r"cannot write in .*checkpoint.*sudo chown -R USER"), opened(tmp_path, None, ()):
        pytest.fail("it began")


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below" / "that"):
        with pytest.raises(UsageError, match="taken is a file, not a folder"):
            make_dir(path)
    with pytest.raises(RunError, match="cannot create"):
        make_dir(Path("/proc/none"))


def test_a_link_to_a_disk_that_is_not_mounted_is_named(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    for path in (tmp_path / "runs", tmp_path / "runs" / "first"):
        with pytest.raises(UsageError, match=r"runs is a link to .*disk, which is not there; mount or make"):
            make_dir(path)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/abs", "x" * 65, "a\nb"])
def test_a_name_cannot_leave_the_run_folder(tmp_path, name):
    with pytest.raises(UsageError, match="not usable"):
        make_node_dir(tmp_path, name)


def test_two_runs_of_one_second_have_two_folders():
    now = datetime(2026, 1, 2, 3, 4, 5)
    assert fresh_run_dir(now) != fresh_run_dir(now)
    assert fresh_run_dir(now).name.startswith("20260102-030405-")


def test_a_write_that_fails_leaves_the_old_bytes_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        write_atomic(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_bytes() == b"old"


def test_a_write_is_synced_before_its_rename_and_its_folder_after(tmp_path):
    with failing_disk(tmp_path) as disk:
        write_atomic(tmp_path / "summary.json", b"new")
    assert [call for call, _ in disk.calls] == ["open", "write", "fsync", "rename", "open", "fsync"]
    assert disk.calls[-1][1] == tmp_path.name


def test_node_folders_are_found_in_their_natural_order(tmp_path):
    for name in ("node-10", "node-9", "other"):
        (tmp_path / name).mkdir()
    for name in ("node-10", "node-9"):
        (tmp_path / name / "events.jsonl").write_text("")
    assert [folder.name for folder in node_dirs(tmp_path)] == ["node-9", "node-10"]
    assert node_dirs(tmp_path / "node-9") == [tmp_path / "node-9"]


@pytest.mark.parametrize("path", ["none", "."])
def test_what_is_no_run_folder_is_said_to_be_none(tmp_path, path):
    with pytest.raises(UsageError, match="run folder"):
        node_dirs(tmp_path / Path(path))


@pytest.mark.parametrize("before", [None, "old = 1"])
def test_the_settings_of_a_refused_start_are_not_the_next_ones(tmp_path, before):
    file = tmp_path / CONFIG
    if before is not None:
        file.write_text(before)
    kept = KeptSettings(tmp_path, "wrong = 1")
    kept.keep()
    assert file.read_text() == "wrong = 1"
    kept.refused()
    assert (file.read_text() if file.exists() else None) == before


def test_settings_that_a_node_ran_with_stay_where_it_is_refused_later(tmp_path):
    kept = KeptSettings(tmp_path, "right = 1")
    kept.fit()
    kept.refused()
    assert (tmp_path / CONFIG).read_text() == "right = 1"


def test_a_lock_file_that_was_removed_since_it_was_opened_is_no_lock(tmp_path, monkeypatch):
    real, removed = run_dir._open_lock, []

    def opened(folder):
        descriptor = real(folder)
        if not removed:  # by another command, which has just ended
            (folder / "lock").unlink()
            removed.append(folder)
        return descriptor

    monkeypatch.setattr(run_dir, "_open_lock", opened)
    with locked(tmp_path):
        assert run_dir.is_held(tmp_path)
    assert removed
