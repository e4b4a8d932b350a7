"""The privacy ledger: a line is on the disk before what it covers; it never goes back; damage is told from a cut."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from node.privacy.chained_log import NOTHING, LedgerMark, check_mark
from node.privacy.ledger import PrivacyLedger, read_ledger
from node.system.errors import RunError
from node.system.run_dir import locked
from p2ptrain.privacy.base import Release


def release(count: int = 20, *, noise: float = 1.0, rate: float = 0.01) -> Release:
    return Release(mechanism="example", noise=noise, rate=rate, count=count)


def written(path: Path, *counts: int) -> Path:
    ledger = PrivacyLedger(path, clock=lambda: 5.0)
    for count in counts:
        ledger.append(release(count))
    ledger.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "privacy.jsonl"


def test_entries_are_lines_that_the_next_process_goes_on_from(path: Path) -> None:
    written(path, 20, 7)
    ledger = PrivacyLedger(path)
    assert ledger.contents.releases == {("example", 1.0, 0.01): 27}
    ledger.append(release(3, noise=2.0))
    ledger.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["entry"], each["count"], each["what"]) for each in lines] == [
        (1, 20, "released"),
        (2, 7, "released"),
        (3, 3, "released"),
    ]
    assert sum(each.count for each in read_ledger(path).all_releases()) == 30


def test_a_line_is_synced_before_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PrivacyLedger(path)
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.stat().st_size), real(descriptor)))
    ledger.append(release())
    assert synced == [path.stat().st_size]
    assert synced[0] > 0


def test_a_new_file_is_durable_before_the_first_entry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("node.privacy.chained_log.sync_folder", synced.append)
    PrivacyLedger(path).close()
    assert synced == [path.parent]


def test_wherever_a_file_was_cut_nothing_before_it_is_lost_and_the_cut_is_charged(path: Path) -> None:
    whole = written(path, 20, 30, 7).read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for size in range(ends[1], ends[2]):
        path.write_bytes(whole[:size])
        ledger = PrivacyLedger(path)
        cut = ends[1] < size < ends[2] - 1  # without its line break alone, a line is whole
        assert ledger.contents.torn == cut
        ledger.append(release(1))
        ledger.close()
        counts = [json.loads(line)["count"] for line in path.read_bytes().splitlines() if line.endswith(b"}")]
        last = [30] if cut else [7] if size == ends[2] - 1 else []
        assert counts == [20, 30, *last, 1], "the costliest entry before stands for the line that was cut"
        assert path.read_bytes().startswith(whole[: ends[1]])
        again = read_ledger(path)
        assert (again.torn, again.mark.entries) == (0, len(counts))


def test_a_cut_line_costs_as_much_as_what_is_asked_for_where_that_is_more(path: Path) -> None:
    path.write_bytes(written(path, 20).read_bytes()[:-9])
    ledger = PrivacyLedger(path)
    assert ledger.with_torn(release(50)) == [release(50), release(50)]
    ledger.append(release(50))
    ledger.close()
    assert read_ledger(path).releases == {("example", 1.0, 0.01): 100}


def test_a_cut_while_a_cut_line_is_charged_is_charged_as_well(path: Path) -> None:
    first = written(path, 20).read_bytes()
    path.write_bytes(first + b'{"entry": 2, "mech')
    ledger = PrivacyLedger(path)
    ledger.append(release(1))
    ledger.close()
    both = path.read_bytes()
    for size in range(len(first) + 18, len(both) + 1):
        path.write_bytes(both[:size])
        contents = read_ledger(path)
        assert sum(each.count for each in contents.all_releases()) >= 40
        written(path, 1)
        assert sum(each.count for each in read_ledger(path).all_releases()) >= 41


def test_each_of_several_cut_lines_is_charged_wherever_charging_them_was_cut(path: Path) -> None:
    before = written(path, 20).read_bytes() + b"cut\nand cut\n"
    path.write_bytes(before)
    whole = written(path, 1).read_bytes()
    assert whole.startswith(before)
    for size in range(len(before), len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        assert sum(each.count for each in read_ledger(path).all_releases()) >= 60
        written(path, 1)
        assert sum(each.count for each in read_ledger(path).all_releases()) >= 61


@pytest.mark.parametrize("line", [1, 2])
@pytest.mark.parametrize("how", ["a byte", "gone", "twice", "another before it"])
def test_a_damaged_or_missing_line_in_the_middle_is_refused(line: int, how: str, path: Path) -> None:
    lines = written(path, 20, 30, 7).read_bytes().splitlines(keepends=True)
    at = line - 1
    if how == "a byte":
        lines[at] = lines[at].replace(b'"count": ', b'"count": 1')
    elif how == "gone":
        del lines[at]
    elif how == "twice":
        lines.insert(at, lines[at])
    else:  # the digests still follow each other; whoever wrote it may have written over others
        lines.insert(at, b"no entry\n")
    path.write_bytes(b"".join(lines))
    for open_ in (PrivacyLedger, PrivacyLedger, read_ledger):  # the first one held it no longer
        with pytest.raises(RunError, match="is damaged, or lines") as refused:
            open_(path)
        assert "put the whole file back" in refused.value.hint
    assert path.read_bytes() == b"".join(lines)


def test_a_second_process_is_refused_and_a_killed_one_holds_nothing(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def hold() -> None:
        PrivacyLedger(path).append(release())
        theirs.send("held")
        theirs.recv()

    holder = context.Process(target=hold)
    holder.start()
    assert ours.recv() == "held"
    with pytest.raises(RunError, match="in use by another process"):
        PrivacyLedger(path)
    holder.kill()
    holder.join()
    PrivacyLedger(path).close()
    assert read_ledger(path).mark.entries == 1


@pytest.mark.parametrize("how", ["full", "cut", "unsynced"])
def test_on_a_full_disk_nothing_is_allowed_from_then_on(how: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PrivacyLedger(path)
    ledger.append(release())
    real = os.write

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if how == "full":
            patched.setattr(os, "write", full)
        elif how == "cut":
            patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:30]))
        else:
            patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="No space left on device; without it no private step may be taken"):
            ledger.append(release())
    with pytest.raises(RunError, match="No space left"):  # though there is room again
        ledger.append(release())
    assert ledger.mark.entries == 1
    ledger.close()
    written(path, 1)
    assert sum(each.count for each in read_ledger(path).all_releases()) >= (21 if how == "full" else 41)


def test_a_checkpoints_mark_is_found_or_refused(path: Path) -> None:
    written(path, 20, 30)
    mark = read_ledger(path).mark
    written(path, 7)
    check_mark(read_ledger(path), mark, path)
    check_mark(read_ledger(path), NOTHING, path)
    with pytest.raises(RunError, match="has other ones"):
        check_mark(read_ledger(path), LedgerMark(2, "0" * 32), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    with pytest.raises(RunError, match="has 1 entries, and the checkpoint beside it was made after 2"):
        check_mark(read_ledger(path), mark, path)
    path.unlink()
    with pytest.raises(RunError, match="is not there, or is empty"):
        check_mark(read_ledger(path), mark, path)


def test_a_file_system_without_locks_is_one_clear_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(RunError, match=r"privacy\.jsonl cannot be locked: No locks available") as caught:
        PrivacyLedger(path, clock=lambda: 5.0)
    assert "a file system that has locks" in caught.value.hint
    with pytest.raises(RunError, match="cannot be locked"), locked(path.parent):
        pass
