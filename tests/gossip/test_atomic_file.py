"""Small files are replaced whole: whatever call fails, whenever the process is killed or the power is cut."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from disk_crashes import failing_disk

from gossip.core.atomic_file import PRIVATE, sync_folder, write_atomic
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.secret_file import write_private
from gossip.discovery.peerstore import PeerStore
from gossip.discovery.peerstore_file_task import save_peerstore
from gossip.membership.membership_files import MembershipFiles
from gossip.transport.pnet import PresharedKey

MOST_CALLS = 100


def hand_over(folder: Path) -> Path:
    return MembershipFiles(folder).hand_over(b"an item")


def saved_roster(folder: Path) -> Path:
    MembershipFiles(folder).save_roster_dump(b"a roster")
    return folder / "roster"


def saved_identity(folder: Path) -> Path:
    Identity.generate().save(folder / "key")
    return folder / "key"


def saved_psk(folder: Path) -> Path:
    PresharedKey(bytes(32)).write(folder / "swarm.key")
    return folder / "swarm.key"


def saved_book(folder: Path) -> Path:
    save_peerstore(folder / "book", PeerStore())
    return folder / "book"


def plain(folder: Path) -> Path:
    write_atomic(folder / "file", b"new")
    return folder / "file"


@pytest.mark.parametrize("write", [plain, hand_over, saved_roster, saved_identity, saved_psk, saved_book])
def test_a_file_is_synced_before_its_rename_and_its_folder_after(write: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    with failing_disk(tmp_path) as disk:
        path = write(tmp_path)
    beside = next(what for call, what in disk.calls if call == "open")
    assert beside.startswith(f".{path.name}.")
    folder = path.parent.name
    assert [(call, what) for call, what in disk.calls if call != "mkdir"] == [
        ("open", beside),
        ("write", beside),
        ("fsync", beside),
        ("rename", f"{beside} {path.name}"),
        ("open", folder),
        ("fsync", folder),
    ]


@pytest.mark.parametrize("how", ["error", "kill"])
@pytest.mark.parametrize("power", [True, False])
def test_whatever_call_fails_there_are_the_old_bytes_or_the_new_ones(how, power: bool, tmp_path: Path) -> None:
    for number in range(MOST_CALLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "file"
        write_atomic(path, b"old")
        raised = True
        with failing_disk(folder, fails_at=number, how=how) as disk:
            try:
                write_atomic(path, b"new")
                raised = False
            except OSError as error:
                assert error.errno == 5  # noqa: PT017
        if not power:
            disk.cut_power()
        assert path.read_bytes() in ({b"old", b"new"} if raised else {b"new"})
        if how == "error" and power:
            assert [entry.name for entry in folder.iterdir()] == ["file"]
        if not raised:
            assert number == len(disk.calls) == 6
            return
    pytest.fail("it never ended")


def test_permissions_are_those_that_were_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "ordinary", b"")
        write_atomic(tmp_path / "private", b"", mode=PRIVATE)
        write_private(tmp_path / "below" / "secret", b"", "the secret")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {"ordinary": 0o640, "private": 0o600, "secret": 0o600}


def test_a_file_system_that_syncs_no_folders_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, raised = os.fsync, []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raised.append(descriptor)
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(raised) == 1


def test_a_folder_that_fails_to_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)


def test_what_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    it = PeerStore()
    with failing_disk(tmp_path, fails_at=2), pytest.raises(LocalError, match=r"address book .*book: Input/output"):
        save_peerstore(tmp_path / "book", it)
    with failing_disk(tmp_path, fails_at=2), pytest.raises(LocalError, match=r"the secret .*key: Input/output"):
        write_private(tmp_path / "key", b"", "the secret")
    assert not list(tmp_path.iterdir())


def test_nobody_else_writes_beside_and_renames() -> None:
    """Others that may: checkpoints and exports are folders, the event log rotates, a benchmark's results and a privacy
    ledger are appended; a spool folder's files are messages."""
    root = Path(__file__).parents[2]
    found = {
        str(path.relative_to(root))
        for folder in ("gossip", "node")
        for path in (root / folder).rglob("*.py")
        if re.search(r"os\.fsync|\.rename\(|os\.replace|(beside|temporary|path|source)\.replace\(", path.read_text())
    }
    assert found == {
        "gossip/core/atomic_file.py",
        "node/training/checkpoint.py",
        "node/training/model_export.py",
        "node/training/replaced_folder.py",
        "node/events/log.py",
        "node/bench/swarm/results.py",
        "node/doctor/relay_checks.py",
        "node/privacy/chained_log.py",
        "gossip/transport/spool/spool_folder.py",
    }


@pytest.mark.parametrize("kind", ["pipe", "device", "output"])
def test_what_is_no_file_is_not_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(path)
    else:  # a name for it: a test that fails must not cost the machine its /dev/null
        path.symlink_to({"device": "/dev/null", "output": "/proc/self/fd/1"}[kind])
    before = path.lstat()
    with pytest.raises(FileExistsError, match="is not replaced"):
        write_atomic(path, b"new")
    assert os.path.samestat(before, path.lstat())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", [".", "/", ".."])
def test_a_folder_without_a_name_is_told_as_a_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(OSError, match=r"directory|busy"):
        write_atomic(Path(path), b"new")
    assert [each.name for each in tmp_path.rglob("*")] == ["in"]


def test_a_link_to_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("link", "dangling"):
        write_atomic(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"
    assert (tmp_path / "old").read_bytes() == b"old"
