"""Run folders as nodes leave them, made without running one."""

import json
from pathlib import Path

from node.config.schema import Config, load
from node.training.checkpoint import Checkpoint, CheckpointStore
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer

DIGITS = ("task.name=digits", "train.rounds=150", "train.seed=3")


def digits(*sets: str) -> Config:
    """Settings that differ from the defaults in what a run may change, and in what it may not."""
    return load([], [*DIGITS, *sets])


def node_folder(
    folder: Path, config: Config, *, checkpoint: bool = True, file: bool = True, drop: tuple[str, str] | None = None
) -> Path:
    """A node's folder after a crash at round 6. `drop`: a setting that its release did not know yet."""
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("")
    if file:
        (folder / "config.toml").write_text(config.to_toml())
    if checkpoint:
        raw = json.loads(config.model_dump_json())
        raw["network"]["address_book"] = "/where/it/was/addresses.json"
        if drop is not None:
            del raw[drop[0]][drop[1]]
        trainer = Trainer(tasks.get(config.task.name, **config.task.options), config.train, Shard())
        tensors = {"trainer.parameters": trainer.vector()}
        CheckpointStore(folder / "checkpoint").save(Checkpoint(round=6, meta={"config": raw}, tensors=tensors))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
