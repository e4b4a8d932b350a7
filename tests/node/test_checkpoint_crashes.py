"""A save that is killed, or fails, at any system call leaves a whole checkpoint of that round or of an earlier one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from disk_crashes import failing_disk
from sizes import thorough_but

from node.training.checkpoint import Checkpoint, CheckpointStore

MOST_CALLS = 200
WRITERS = ("node.training.checkpoint.save_file",)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync does to a real disk is not asked here, and thousands of them take a minute."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def make(round: int, version: int) -> Checkpoint:
    """Two of one round differ in their contents."""
    tensors = {"trainer.parameters": torch.full((50,), float(version)), "sync.anchor": torch.ones(3)}
    return Checkpoint(round=round, meta={"config": {"version": version}}, tensors=tensors)


def seen(found: Checkpoint | None) -> tuple[int, int] | None:
    """The round and the version, which must be the same in both files."""
    if found is None:
        return None
    (version,) = set(found.part("trainer")["parameters"].tolist())
    assert found.meta["config"] == {"version": version}
    return found.round, int(version)


def leave_of_an_older_release(folder: Path, round: int, version: int) -> None:
    """What the releases before left when they were killed while they saved a round again."""
    path = CheckpointStore(folder).save(make(round, version))
    path.rename(folder / ".writing-old-123")


def nothing(_: Path) -> None:
    """A first save."""


def earlier(folder: Path) -> None:
    CheckpointStore(folder).save(make(1, 0))


def same(folder: Path) -> None:
    earlier(folder)
    CheckpointStore(folder).save(make(2, 0))


def same_cut_short_before(folder: Path) -> None:
    """A save of round 2 was killed when the new one had a name, and the old one was there still."""
    earlier(folder)
    CheckpointStore(folder).save(make(2, 0)).rename(folder / "elsewhere")
    CheckpointStore(folder).save(make(2, 8))
    (folder / "elsewhere").rename(folder / "round-00000002.1")


def left_by_an_older_release(folder: Path) -> None:
    earlier(folder)
    leave_of_an_older_release(folder, 2, 0)


BEFORE = {
    "a first one": (nothing, None),
    "a later round": (earlier, (1, 0)),
    "the same round": (same, (2, 0)),
    "the same round, of which two are there": (same_cut_short_before, (2, 0)),
    "the same round, as an older release left it": (left_by_an_older_release, (2, 0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("keep", thorough_but({1}, [1, 3]))
@pytest.mark.parametrize(
    ("how", "power"), thorough_but({("kill", False)}, [("error", True), ("kill", True), ("kill", False)])
)
@pytest.mark.parametrize("before", BEFORE, ids=list(BEFORE))
def test_wherever_a_save_ends_there_is_a_whole_checkpoint(
    before: str, how: Any, power: bool, keep: int, tmp_path: Path
) -> None:
    prepare: Callable[[Path], None]
    prepare, held = BEFORE[before]
    for number in range(MOST_CALLS):
        folder = tmp_path / str(number) / "checkpoint"
        folder.parent.mkdir()
        prepare(folder)
        assert seen(CheckpointStore(folder).newest()) == held
        raised: OSError | None = None
        with failing_disk(folder.parent, fails_at=number, how=how, writers=WRITERS) as disk:
            try:
                CheckpointStore(folder, keep=keep).save(make(2, 1))
            except OSError as error:
                raised = error
        if not power:
            disk.cut_power()
        found = seen(CheckpointStore(folder).newest())
        assert found in {held, (2, 1)}, f"call {number}: {disk.calls[number]}"
        done = len(disk.calls) <= number
        if how == "error" and raised is None:
            assert found == (2, 1), "a save that succeeded counts"
        # And the next one is not in its way.
        CheckpointStore(folder, keep=keep).save(make(2, 2))
        assert seen(CheckpointStore(folder).newest()) == (2, 2)
        CheckpointStore(folder, keep=1).save(make(4, 0))
        assert [path.name for path in folder.iterdir()] == ["round-00000004"], "nothing is left lying about"
        if done:
            assert number > 10
            return
    pytest.fail("it never ended")


def test_what_an_older_release_left_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    leave_of_an_older_release(store.folder, 5, 1)
    assert seen(store.newest()) == (5, 1)
    store.save(make(4, 0))
    assert seen(store.newest()) == (5, 1), "it counts as any other one"
    store.save(make(5, 2))
    assert seen(store.newest()) == (5, 2)
    assert sorted(path.name for path in store.folder.iterdir()) == ["round-00000004", "round-00000005"]


def test_an_older_release_s_leftover_yields_to_what_has_its_round(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    leave_of_an_older_release(store.folder, 5, 1)
    (store.folder / ".writing-old-123").rename(store.folder / "kept")
    store.save(make(5, 2))
    (store.folder / "kept").rename(store.folder / ".writing-old-123")
    assert seen(store.newest()) == (5, 2)
    (store.folder / "round-00000005" / "meta.json").write_bytes(b"")
    skipped: list[str] = []
    assert seen(store.newest(lambda path, _: skipped.append(path.name))) == (5, 1)
    assert skipped == ["round-00000005"]


def test_an_older_release_s_leftover_that_is_damaged_is_told_of_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    leave_of_an_older_release(store.folder, 5, 1)
    (store.folder / ".writing-old-123" / "meta.json").write_bytes(b"{")
    skipped: list[Path] = []
    assert store.newest(lambda path, _: skipped.append(path)) is None
    store.set_aside(skipped[0])
    assert [path.name for path in store.folder.iterdir()] == ["damaged-writing-old-123"]


def test_rounds_are_ordered_by_their_number(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    for round in (99_999_999, 100_000_000, 100_000_001):
        store.save(make(round, 0))
    assert seen(store.newest()) == (100_000_001, 0)


def test_the_one_that_was_just_saved_is_never_pruned(tmp_path: Path) -> None:
    """Damaged ones of later rounds that could not be set aside take its place under no setting."""
    store = CheckpointStore(tmp_path / "checkpoint", keep=1)
    later = CheckpointStore(store.folder, keep=3)
    for round in (8, 9):
        (later.save(make(round, 0)) / "meta.json").write_bytes(b"")
    store.save(make(3, 0))
    assert seen(store.newest()) == (3, 0)


def test_a_copy_that_somebody_made_is_neither_read_nor_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=1)
    store.save(make(9, 0)).rename(store.folder / "round-00000009.bak")
    store.save(make(1, 0))
    store.save(make(2, 0))
    assert seen(store.newest()) == (2, 0)
    assert sorted(path.name for path in store.folder.iterdir()) == ["round-00000002", "round-00000009.bak"]


def test_the_same_round_twice_in_a_row_keeps_its_name_and_its_neighbours(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=3)
    for round, version in ((1, 0), (2, 0), (3, 0), (3, 1), (3, 2)):
        path = store.save(make(round, version))
    assert path.name == "round-00000003"
    assert seen(store.newest()) == (3, 2)
    assert sorted(each.name for each in store.folder.iterdir()) == [f"round-{n:08d}" for n in (1, 2, 3)]
