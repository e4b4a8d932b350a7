"""Beside a running node a model is read once, and is that of one checkpoint, whatever the node writes meanwhile."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import digits

from node.cli import main
from node.training import evaluation, model_export
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.evaluation import LoadedModel
from node.training.model_export import Exported
from p2ptrain import tasks
from p2ptrain.saved import files, models
from p2ptrain.saved.models import RunModels
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer


def checkpoint(round_: int, value: float) -> Checkpoint:
    config = digits()
    trainer = Trainer(tasks.get("digits"), config.train, Shard())
    tensors = {"trainer.parameters": torch.full((trainer.numel,), value)}
    return Checkpoint(round=round_, meta={"config": json.loads(config.model_dump_json())}, tensors=tensors)


def replaced(folder: Path, value: float) -> None:
    """As a node does that saves the same round again, and prunes what was there."""
    shutil.rmtree(folder)
    CheckpointStore(folder.parent, keep=1).save(checkpoint(6, value))


def test_a_checkpoint_replaced_while_it_is_read_is_not_seen(tmp_path: Path) -> None:
    folder = CheckpointStore(tmp_path).save(checkpoint(6, 1.0))

    def parse(data: bytes) -> files.Meta:  # both files are open now, and neither is read to its end
        replaced(folder, 2.0)
        return files.parse(data)

    meta, tensors = files.mapped(folder, parser=parse)
    assert meta["round"] == 6
    assert bool((tensors["trainer.parameters"] == 1.0).all())
    replaced(folder, 3.0)
    assert bool((tensors["trainer.parameters"] == 1.0).all()), "also when it is asked for again, later"
    assert bool((files.read(folder)[1]["trainer.parameters"] == 3.0).all())


def test_who_is_sent_opened_tensors_reads_the_same_file(tmp_path: Path) -> None:
    """As the process that trains is sent a checkpoint's: whatever the node has written by then."""
    folder = CheckpointStore(tmp_path).save(checkpoint(6, 1.0))
    _, opened = files.mapped(folder)
    replaced(folder, 2.0)
    received = pickle.loads(pickle.dumps(opened))
    del opened
    assert bool((received["trainer.parameters"] == 1.0).all()), "and it holds the file open itself"


def test_whoever_finds_all_checkpoints_gone_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoint", keep=1)
    old = store.save(checkpoint(6, 1.0))
    read = models._read

    def late(folder: Path) -> Any:
        if folder == old and old.exists():  # listed, and then pruned by the node
            store.save(checkpoint(7, 2.0))
            assert not old.exists()
        return read(folder)

    monkeypatch.setattr(models, "_read", late)
    (found,) = models.models_of(tmp_path).models
    assert found.round == 7


def test_what_is_told_of_an_export_is_what_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    store = CheckpointStore(run / "checkpoint", keep=1)
    (run / "events.jsonl").parent.mkdir(exist_ok=True)
    (run / "events.jsonl").touch()
    store.save(checkpoint(6, 0.25))
    find, written = evaluation.models_of, []

    def find_and_train_on(*given: Any) -> RunModels:
        found = find(*given)
        store.save(checkpoint(found.round + 1, 0.5))
        return found

    def export_graph(loaded: list[LoadedModel], out: Path, *, int8: bool) -> Exported:
        assert not int8
        written.extend(loaded)
        out.touch()
        return Exported(tensors=1, parameters=1)

    monkeypatch.setattr(evaluation, "models_of", find_and_train_on)
    monkeypatch.setattr(model_export, "export_graph", export_graph)
    assert main(["export", str(run), "--to", "onnx", "--out", str(tmp_path / "model.onnx"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (model,) = written
    assert told["round"] == "6"
    assert model.round == 6
    assert bool((model.vector_d == 0.25).all())
