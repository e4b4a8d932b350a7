"""The cross-site table, from folders as nodes leave them."""

import json
from pathlib import Path

import pytest
import torch
from half_counted_digits import NOT_COUNTED, create

from node.config.schema import load
from node.reporting.cross_site import OWN_MODEL, cross_site
from node.training.checkpoint import Checkpoint, CheckpointStore
from p2ptrain.saved.models import models_of
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer


def left(folder: Path, index: int) -> Trainer:
    """What a node leaves; return what trained its model."""
    sets = ("task.name=half_counted_digits:create", "train.rounds=4", "train.inner_steps=20", "train.device=cpu")
    config = load([], (*sets, f"node.shard_index={index}", "node.shard_count=2"))
    trainer = Trainer(create(), config.train, Shard(index=index, count=2))
    for _ in range(60):
        trainer.step()
    layout = trainer.layout()
    assert layout is not None
    meta = {"config": config.model_dump(mode="json"), "model": layout.to_meta()}
    tensors = {"trainer.parameters": trainer.vector()}
    CheckpointStore(folder / "checkpoint").save(Checkpoint(round=4, meta=meta, tensors=tensors))
    (folder / "events.jsonl").touch()
    return trainer


def test_predictions_that_do_not_count_are_no_wrong_ones_and_no_class(tmp_path: Path) -> None:
    trainers = [left(tmp_path / f"n{index}", index) for index in range(2)]
    found = cross_site(tmp_path)
    assert found.classes == list(range(10))
    for place, split in enumerate(found.splits):
        assert sum(split.counts.values()) == split.predictions
        model = trainers[place].model_with()
        right = there = 0
        for images, labels in split.batches:
            counted = labels != NOT_COUNTED
            right += int((model(images).argmax(1) == labels)[counted].sum())
            there += int(counted.sum())
        assert found.accuracies[OWN_MODEL][place][place] == pytest.approx(right / there)
        assert right / there > 0.6


def test_a_loss_that_is_no_number_is_none_in_json(tmp_path: Path) -> None:
    """Of parameters that are finite, and too large to compute with."""
    for index in range(2):
        left(tmp_path / f"n{index}", index)
    found = models_of(tmp_path, "n1").models[0]
    tensors = {"trainer.parameters": torch.full_like(found.vector_d, 1e30)}
    CheckpointStore(tmp_path / "n1" / "checkpoint").save(Checkpoint(round=4, meta=found.meta, tensors=tensors))
    told = cross_site(tmp_path).as_json()
    json.dumps(told, allow_nan=False)
    assert told["losses"][OWN_MODEL][1] == [None, None]
    assert None not in told["losses"][OWN_MODEL][0]
