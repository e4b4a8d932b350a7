"""A checkpoint is whole or skipped, whatever happened to the disk."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from node.training.checkpoint import Checkpoint, CheckpointError, CheckpointStore, read


def make(number: int) -> Checkpoint:
    tensors = {"trainer.parameters": torch.arange(100.0) + number, "sync.phi": torch.ones(3)}
    return Checkpoint(round=number, meta={"config": {"a": 1}}, tensors=tensors)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoint", keep=3)


def test_what_is_saved_is_read_back(store: CheckpointStore) -> None:
    path = store.save(make(7))
    found = read(path)
    assert found.round == 7
    assert found.meta["config"] == {"a": 1}
    assert torch.equal(found.part("trainer")["parameters"], torch.arange(100.0) + 7)
    assert list(found.part("sync")) == ["phi"]


def test_the_newest_wins_and_the_oldest_are_pruned(store: CheckpointStore) -> None:
    for number in (1, 2, 9, 10):
        store.save(make(number))
    newest = store.newest()
    assert newest is not None
    assert newest.round == 10
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "round-00000002",
        "round-00000009",
        "round-00000010",
    ]


@pytest.mark.parametrize("file", ["state.safetensors", "meta.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_one_cut_short_is_skipped_for_the_one_before(store: CheckpointStore, file: str, share: float) -> None:
    store.save(make(1))
    victim = store.save(make(2)) / file
    whole = victim.read_bytes()
    victim.write_bytes(whole[: int(len(whole) * share)])
    skipped: list[tuple[Path, str]] = []
    newest = store.newest(lambda path, why: skipped.append((path, why)))
    assert newest is not None
    assert newest.round == 1
    assert [path.name for path, _ in skipped] == ["round-00000002"]
    assert file in skipped[0][1] or "round-00000002" in skipped[0][1]


def test_a_flipped_bit_is_seen(store: CheckpointStore) -> None:
    victim = store.save(make(2)) / "state.safetensors"
    damaged = bytearray(victim.read_bytes())
    damaged[-5] ^= 1
    victim.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="digest"):
        read(victim.parent)
    assert store.newest() is None


def test_a_disk_that_fails_leaves_the_old_ones(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(make(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("node.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space"):
        store.save(make(2))
    newest = store.newest()
    assert newest is not None
    assert newest.round == 1
    assert [path.name for path in store.folder.iterdir()] == ["round-00000001"]


def test_what_a_crash_left_half_written_is_no_checkpoint_and_goes(store: CheckpointStore) -> None:
    (store.folder / ".writing-00000005-123").mkdir(parents=True)
    assert store.newest() is None
    store.save(make(6))
    assert [path.name for path in store.folder.iterdir()] == ["round-00000006"]


def test_saving_a_round_again_replaces_it(store: CheckpointStore) -> None:
    store.save(make(3))
    again = Checkpoint(round=3, meta={"config": {"a": 2}}, tensors={"x": torch.zeros(1)})
    store.save(again)
    newest = store.newest()
    assert newest is not None
    assert newest.meta["config"] == {"a": 2}


def test_a_damaged_one_that_was_set_aside_takes_no_place(store: CheckpointStore) -> None:
    for number in (8, 9):
        (store.save(make(number)) / "state.safetensors").write_bytes(b"rubbish")
        store.set_aside(store.folder / f"round-{number:08d}")
    for number in (1, 2, 3, 4):
        store.save(make(number))
    names = sorted(path.name for path in store.folder.iterdir())
    assert names == ["damaged-round-00000008", "damaged-round-00000009", *(f"round-{n:08d}" for n in (2, 3, 4))]
    newest = store.newest()
    assert newest is not None
    assert newest.round == 4


def test_the_newest_whole_one_is_kept_aside_where_another_model_goes_on(store: CheckpointStore) -> None:
    for number in (7, 8, 9):
        saved = store.save(make(number))
    (saved / "state.safetensors").write_bytes(b"rubbish")
    assert store.set_all_aside() == store.folder / "alone-round-00000008"
    assert store.newest() is None
    store.save(make(2))
    assert sorted(path.name for path in store.folder.iterdir()) == ["alone-round-00000008", "round-00000002"]
    newest = store.newest()
    assert newest is not None
    assert newest.round == 2
    assert torch.equal(
        read(store.folder / "alone-round-00000008").part("trainer")["parameters"], torch.arange(100.0) + 8
    )


def test_no_more_are_kept_aside_than_others_are(store: CheckpointStore) -> None:
    for number in range(10, 15):
        os.utime(store.save(make(number)), (number, number))
        store.set_all_aside()
    assert sorted(path.name for path in store.folder.iterdir()) == [f"alone-round-000000{n}" for n in (12, 13, 14)]


def test_where_there_is_no_checkpoint_none_is_kept_aside(store: CheckpointStore) -> None:
    assert store.set_all_aside() is None


def test_what_cannot_be_kept_aside_stays_as_it_is(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    for number in (7, 8):
        store.save(make(number))
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(PermissionError):
        store.set_all_aside()
    assert sorted(path.name for path in store.folder.iterdir()) == ["round-00000007", "round-00000008"]


def test_a_full_disk_is_an_os_error_and_leaves_the_old_ones(store: CheckpointStore) -> None:
    store.save(make(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"I/O error|too large|os error"):
            store.save(make(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    newest = store.newest()
    assert newest is not None
    assert newest.round == 1


def test_a_round_that_is_no_number_is_passed_over(store: CheckpointStore) -> None:
    store.save(make(1))
    meta = store.save(make(2)) / "meta.json"
    meta.write_text(meta.read_text().replace('"round": 2', '"round": "two"'))
    newest = store.newest()
    assert newest is not None
    assert newest.round == 1
