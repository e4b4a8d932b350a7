"""A full disk never costs the newest checkpoint: older ones make room, and a write that fails leaves what was there."""

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from node.cli import main
from node.config.schema import Config, from_raw
from node.events import library_logs
from node.events.redaction import Redactor
from node.roles.assembly import own_trainer
from node.system.errors import RunError
from node.training import checkpoint as checkpoints
from node.training import checkpoint_room
from node.training.budget_meter import folder_bytes
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.estimates import MAX_DEPARTED
from p2ptrain.training import Trainer

PARAMETERS = 1 << 18
"""A checkpoint of 1 MiB: what a small file system tells of."""


def make(number: int) -> Checkpoint:
    vector_d = torch.full((PARAMETERS,), float(number))
    return Checkpoint(round=number, meta={"config": {}}, tensors={"trainer.parameters": vector_d})


def rounds(store: CheckpointStore) -> list[int]:
    found = store.newest()
    names = sorted(folder.name for folder in store.folder.iterdir())
    assert not any(name.startswith(".") for name in names), "nothing half written is left"
    assert found is None or found.round == max(int(name[6:]) for name in names)
    return [int(name[6:]) for name in names]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["save_file", "sync_file", "write_atomic"])
def test_a_disk_full_at_any_write_costs_older_checkpoints_and_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=3)
    for number in (1, 2, 3):
        store.save(make(number))
    monkeypatch.setattr(checkpoints, where, full)
    with pytest.raises(OSError, match="No space"):
        store.save(make(4))
    assert rounds(store) == [3]


def test_as_many_older_ones_go_as_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=3)
    for number in (1, 2, 3):
        store.save(make(number))

    def fails_with_three(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if len(list(store.folder.glob("round-*"))) > 2:
            path.write_bytes(b"cut short")
            full()
        save_file(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", fails_with_three)
    store.save(make(4))
    assert rounds(store) == [2, 3, 4]


def test_a_newer_one_that_is_damaged_is_not_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=3)
    for number in (1, 2, 3):
        store.save(make(number))
    (tmp_path / "checkpoint/round-00000003/state.safetensors").write_bytes(b"rubbish")
    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        store.save(make(4))
    found = store.newest()
    assert found is not None
    assert found.round == 2


def test_room_is_asked_for_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    store.save(make(1))
    needed = checkpoint_room.bytes_of(make(2).tensors)
    monkeypatch.setattr(checkpoint_room, "disk_free", lambda _: needed - 1)

    def never(*_: object) -> None:
        raise AssertionError("a file cut short would take what room others have")

    monkeypatch.setattr(checkpoints, "save_file", never)
    with pytest.raises(OSError, match="No space"):
        store.save(make(2))
    assert rounds(store) == [1]


def test_a_budget_of_disk_costs_older_checkpoints_then_the_next_one_and_never_the_newest(tmp_path: Path) -> None:
    most = 3 * checkpoint_room.bytes_of(make(1).tensors)
    store = CheckpointStore(tmp_path / "checkpoint", keep=3, room=lambda: most - folder_bytes(tmp_path))
    for number in (1, 2, 3):
        store.save(make(number))
    others = tmp_path / "others"
    others.write_bytes(bytes(most - checkpoint_room.bytes_of(make(4).tensors) - folder_bytes(store.folder) // 2))
    store.save(make(4))
    assert rounds(store) == [3, 4]
    others.write_bytes(bytes(most))
    with pytest.raises(OSError, match=r"budget\.disk leaves no room for it: raise it, or move files out of"):
        store.save(make(5))
    assert rounds(store) == [4]


@pytest.mark.parametrize(
    "beside",
    [{}, {"shift": {"detector": "page_hinkley"}}, {"personal": {"strength": 0.1}}],
    ids=["none", "shift", "personal"],
)
def test_a_checkpoint_takes_what_it_is_said_to_with_local_parameters_and_a_model_beside(beside: dict[str, Any]) -> None:
    pytest.importorskip("river")
    train = {"local": ["6.*"], "optimizer": "adamw"}
    config = from_raw({"task": {"name": "digits"}, "train": train, **beside})
    trainer = own_trainer(config, "peer")
    assert isinstance(trainer, Trainer)
    state = trainer.state_dict()
    held = sum(each.nbytes for each in state.values()) + 4 * trainer.numel * config.shift.on
    anchor, outer_momentum = 4 * trainer.trained_numel, 4 * trainer.trained_numel
    said = checkpoint_room.checkpoint_bytes(config, trainer.trained_numel) - checkpoint_room.MARGIN_BYTES
    assert said == pytest.approx(held + anchor + outer_momentum, rel=0.02)


@pytest.mark.parametrize("in_memory", [False, True], ids=["on-disk", "in-memory"])
def test_what_is_kept_for_a_later_checkpoint_takes_disk_or_memory(tmp_path: Path, in_memory: bool) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", in_memory=in_memory)
    moment_d = torch.arange(4.0)
    kept = store.keep_apart({"moment": moment_d})["moment"]
    moment_d.zero_()
    assert isinstance(kept, torch.Tensor) == in_memory
    checkpoint = make(1)
    if isinstance(kept, torch.Tensor):
        checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, "trainer.moment": kept})
    else:
        checkpoint = replace(checkpoint, filed={"trainer.moment": kept})
    store.save(checkpoint)
    read = store.newest()
    assert read is not None
    assert read.tensors["trainer.moment"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_start_counts_on_what_older_checkpoints_would_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = checkpoint_room.expected_bytes(PARAMETERS)
    monkeypatch.setattr(checkpoint_room, "disk_free", lambda _: needed // 2)
    checkpoint_room.check(tmp_path, PARAMETERS, Config(), spare=needed)
    with pytest.raises(RunError, match="no room for a checkpoint:"):
        checkpoint_room.check(tmp_path, PARAMETERS, Config())
    with pytest.raises(RunError, match="of each of 3 nodes"):
        checkpoint_room.check(tmp_path, PARAMETERS, Config(), spare=needed, nodes=3)
    monkeypatch.setattr(checkpoint_room, "disk_free", lambda _: -1)
    checkpoint_room.check(tmp_path, PARAMETERS, Config())


def test_a_start_counts_the_mean_of_late_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = checkpoint_room.expected_bytes(PARAMETERS) + 4 * PARAMETERS - 1
    monkeypatch.setattr(checkpoint_room, "disk_free", lambda _: free)
    checkpoint_room.check(tmp_path, PARAMETERS, Config())
    with pytest.raises(RunError, match="no room for a checkpoint"):
        checkpoint_room.check(tmp_path, PARAMETERS, from_raw({"train": {"late_average": 0.1}}))


@pytest.mark.parametrize(("estimates", "size"), [("fp32", 4), ("bf16", 2)])
def test_a_start_counts_the_neighbours_models_where_they_lie_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimates: str, size: int
) -> None:
    held = (3 + MAX_DEPARTED) * size * PARAMETERS
    free = checkpoint_room.expected_bytes(PARAMETERS) + held - 1
    monkeypatch.setattr(checkpoint_room, "disk_free", lambda _: free)
    sections = {"sync": {"estimates": estimates}, "network": {"degree": 3}}
    checkpoint_room.check(tmp_path, PARAMETERS, from_raw(sections))
    on_disk = from_raw({**sections, "node": {"estimates_on": "disk"}})
    with pytest.raises(RunError, match="a checkpoint and its neighbours' models") as refused:
        checkpoint_room.check(tmp_path, PARAMETERS, on_disk)
    assert "node.estimates_on" in refused.value.hint
    free += 1
    checkpoint_room.check(tmp_path, PARAMETERS, on_disk)


def test_a_checkpoint_that_is_not_finite_is_passed_over_and_never_taken_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older releases wrote them, and said that all was well."""
    store = CheckpointStore(tmp_path / "checkpoint")
    store.save(make(1))
    state: dict[str, Any] = {"trainer.parameters": torch.full((4,), torch.nan)}
    store.save(Checkpoint(round=2, meta={"config": {}}, tensors=state))
    skipped: list[str] = []
    newest = store.newest(lambda _, why: skipped.append(why))
    assert newest is not None
    assert newest.round == 1
    assert "not finite" in skipped[0]
    shutil.rmtree(tmp_path / "checkpoint/round-00000001")
    (tmp_path / "events.jsonl").touch()
    for command in ("evaluate", "generate", "export"):
        assert main([command, str(tmp_path)]) == 1
        assert "not finite: its training diverged" in capsys.readouterr().err
    import p2ptrain

    with pytest.raises(ValueError, match="not finite"):
        p2ptrain.load(tmp_path)


def test_a_log_on_a_full_disk_prints_no_traceback_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers.clear()  # `configure` closes those that it finds
    try:
        library_logs.configure(Path("/dev/full"), Redactor())
        logging.getLogger("somebody").error("in vain")
        assert capsys.readouterr() == ("", "")
    finally:
        for handler in root.handlers:
            with suppress(OSError):
                handler.close()
        root.handlers[:] = before
        root.setLevel(level)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of room for two checkpoints and the margin, and not for three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = 2 * 4 * PARAMETERS + checkpoint_room.MARGIN_BYTES + (1 << 18)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_on_a_small_disk_the_newest_model_is_always_there(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "checkpoint", keep=3)
    for number in range(1, 6):
        store.save(make(number))
        assert rounds(store)[-1] == number
        assert len(rounds(store)) <= 2
    (small_disk / "filler").write_bytes(b"\0" * shutil.disk_usage(small_disk).free)
    with pytest.raises(OSError, match="No space"):
        store.save(make(6))
    assert rounds(store) == [5]
    (small_disk / "filler").unlink()
    store.save(make(6))
    assert rounds(store)[-1] == 6
