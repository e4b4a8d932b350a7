"""An inner optimizer whose vectors lie in files: the same bits as in memory, checkpoints that go on either way, no file
left behind, and nothing lost where the disk refuses them."""

import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from p2ptrain.inner import filed_optimizer
from p2ptrain.inner.filed_optimizer import FiledOptimizer
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.byte_lm.task import ByteLM
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer

STEPS = 5
BLOCK = 1024
"""Parameters of a block here: digits then have several."""

every_optimizer = pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw"},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "schedule_free"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_optimizer, "BLOCK_NUMEL", BLOCK)


def trainer_of(options: dict[str, Any], folder: Path | None = None, refused: list[OSError] | None = None) -> Trainer:
    config = TrainConfig(batch_size=8, warmup_steps=2, device="cpu", **options)
    trainer = Trainer(Digits(), config, Shard())
    if folder is not None:
        told: list[OSError] = [] if refused is None else refused
        trainer.keep_optimizer_in(partial(NamelessFile, folder), told.append)
    return trainer


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def assert_same(one: Trainer, other: Trainer) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@every_optimizer
def test_steps_come_to_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    in_memory, in_files = trainer_of(options), trainer_of(options, tmp_path)
    assert in_memory.numel > 2 * BLOCK
    for _ in range(STEPS):
        assert in_memory.step() == in_files.step()
        assert_same(in_memory, in_files)


@every_optimizer
@pytest.mark.parametrize("first_in_files", [False, True], ids=["into-files", "out-of-files"])
def test_a_checkpoint_goes_on_either_way(options: dict[str, Any], first_in_files: bool, tmp_path: Path) -> None:
    first = trainer_of(options, tmp_path if first_in_files else None)
    for _ in range(STEPS):
        first.step()
    second = trainer_of(options, None if first_in_files else tmp_path)
    second.load_state_dict(first.state_view())
    for _ in range(STEPS):
        assert first.step() == second.step()
    assert_same(first, second)


def test_a_state_that_is_there_is_taken_along(tmp_path: Path) -> None:
    in_memory, moved = trainer_of({}), trainer_of({})
    for trainer in (in_memory, moved):
        trainer.step()
    moved.keep_optimizer_in(partial(NamelessFile, tmp_path), [].append)
    for trainer in (in_memory, moved):
        trainer.step()
    assert_same(in_memory, moved)


def test_no_file_has_a_name_and_all_are_closed_with_the_trainer(tmp_path: Path) -> None:
    gc.collect()
    before = open_files()
    trainer = trainer_of({}, tmp_path)
    trainer.step()
    assert list(tmp_path.iterdir()) == []
    assert len(open_files() - before) == 2  # two moments
    del trainer
    gc.collect()
    assert open_files() <= before


def test_a_disk_that_refuses_a_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[OSError] = []
    in_memory, in_files = trainer_of({}), trainer_of({}, tmp_path, refused)
    for trainer in (in_memory, in_files):
        trainer.step()

    def full(self: NamelessFile, start: int, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NamelessFile, "write_at", full)
    for _ in range(STEPS):
        for trainer in (in_memory, in_files):
            trainer.step()
    assert len(refused) == 2
    assert_same(in_memory, in_files)


def test_an_optimizer_of_whole_matrices_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of({"optimizer": "muon"})
    with pytest.raises(ValueError, match="muon wants whole matrices"):
        trainer.keep_optimizer_in(partial(NamelessFile, tmp_path), [].append)
    assert not isinstance(trainer.optimizer, FiledOptimizer)


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_a_large_model_come_to_the_same_bits(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the blocks of real use, in several threads."""
    monkeypatch.undo()
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 200)
    files = tmp_path / "files"
    files.mkdir()

    def trainer() -> Trainer:
        config = TrainConfig(batch_size=1, warmup_steps=0, device="cpu", threads=threads)
        return Trainer(ByteLM(size="micro", data=text), config, Shard())

    in_memory, in_files = trainer(), trainer()
    in_files.keep_optimizer_in(partial(NamelessFile, files), [].append)
    assert in_memory.numel > 3 * filed_optimizer.BLOCK_NUMEL
    for _ in range(3):
        assert in_memory.step() == in_files.step()
    assert_same(in_memory, in_files)


def test_fewer_examples_at_a_time_come_to_the_same_step_within_rounding() -> None:
    whole, pieces = trainer_of({}), trainer_of({})
    pieces.take_at_a_time(2)
    for _ in range(STEPS):
        assert whole.step() == pytest.approx(pieces.step(), rel=1e-5)
    assert pieces.micro_batch == 2
    torch.testing.assert_close(whole.vector(), pieces.vector(), rtol=0, atol=1e-4)
    assert whole.evaluate() == pytest.approx(pieces.evaluate(), rel=1e-4)
