"""A fault of a user's task is said to be theirs, with file and line; what a swarm would trip over is said before."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from node.roles.task_check import check_task
from node.system.errors import EXIT_FAILED, RunError, translate
from p2ptrain import faults
from p2ptrain.attacks.label_flip import LabelFlip
from p2ptrain.faults import bytes_asked
from p2ptrain.registry import Registry
from p2ptrain.tasks import Batch, Shard, TaskError, TaskFaultError, get
from p2ptrain.tasks.batches import joined, moved, tensors_in
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.preflight import preflight

SOURCE = """
import random
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 4)
        self.head = nn.Linear(4, 3)
        self.spare = nn.Linear(1, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Mine:
    name, metric = "mine", "nats"

    def build_model(self):
        return Net()

    def train_batch(self, step, *, seed, shard, size):
        rng = torch.Generator().manual_seed(step)
        x = torch.randn(size, 2, generator=rng)
        return {"inputs": [x, None], "labels": {"of": (x[:, 0] > 0).long()}, "note": "text", "weight": 1.0}

    def eval_batches(self, limit):
        return [self.train_batch(10**6, seed=0, shard=None, size=8)]

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch["inputs"][0]), batch["labels"]["of"])

    def tokens(self, batch):
        return len(batch["labels"]["of"])


"""
CONFIG = TrainConfig(device="cpu", threads=1, batch_size=4)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a module with the class `Broken(Mine)` of the given body, and gives an object of it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    made: list[str] = []

    def make(body: str = "    pass\n") -> Any:
        name = f"a_users_task_{len(made)}"
        (tmp_path / f"{name}.py").write_text(f"{SOURCE}class Broken(Mine):\n{body}")
        importlib.invalidate_caches()
        made.append(name)
        return get(f"{name}:Broken")

    yield make
    for name in made:
        sys.modules.pop(name, None)


def line_of(task: Any, words: str) -> str:
    """Where in the task's file the words stand."""
    file = Path(sys.modules[type(task).__module__].__file__ or "")
    lines = file.read_text().splitlines()
    return f"{file}:{next(at for at, line in enumerate(lines, 1) if words in line)}"


def shown(error: BaseException) -> str:
    """What the command line prints of it; it is no bug of ours and no wrong usage."""
    known = translate(error)
    assert type(known) is RunError
    assert known.exit_code == EXIT_FAILED
    assert "bug of p2ptrain" not in known.line()
    return known.line()


def test_a_batch_of_dicts_lists_and_tuples_is_trained_on(mine) -> None:
    trainer = Trainer(mine(), CONFIG, Shard())
    first = trainer.evaluate()
    for _ in range(3):
        trainer.step()
    assert trainer.skipped_steps == 0
    assert trainer.tokens == 12
    assert trainer.evaluate() != first
    assert trainer.divergence(trainer.vector(), [trainer.vector()]) is None


@pytest.mark.parametrize(
    ("body", "place", "says"),
    [
        ("    def loss(self, model, batch):\n        return batch['gone']\n", "batch['gone']", "KeyError: 'gone'"),
        (
            "    def loss(self, model, batch):\n        return model(batch['inputs'][0][:, :1]).sum()\n",
            "self.body(x).relu()",
            "mat1 and mat2",
        ),
        ("    def train_batch(self, step, **rest):\n        raise OSError('no')\n", "raise OSError", "OSError: no"),
        ("    def tokens(self, batch):\n        return batch.size\n", "batch.size", "AttributeError"),
        ("    def eval_batches(self, limit):\n        return 1 / 0\n", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_a_task_raises_is_said_with_its_place(mine, body: str, place: str, says: str) -> None:
    task = mine(body)
    trainer = Trainer(task, CONFIG, Shard())
    with pytest.raises(TaskFaultError) as caught:
        trainer.evaluate() if "eval" in body else trainer.step()
    assert shown(caught.value).startswith(f"{line_of(task, place)} raised")
    assert says in shown(caught.value)


def test_what_a_factory_or_a_module_raises_is_said_with_its_place(mine, tmp_path) -> None:
    with pytest.raises(TaskFaultError, match=r"a_users_task_0\.py:\d+ raised ValueError: never"):
        mine("    def __init__(self):\n        raise ValueError('never')\n")
    (tmp_path / "a_users_broken_module.py").write_text("x = 1\nprint(y)\n")
    with pytest.raises(TaskFaultError, match=r"a_users_broken_module\.py:2 raised NameError"):
        get("a_users_broken_module:create")
    with pytest.raises(TaskFaultError, match=r"raised KeyError: 'model'"):
        Trainer(mine("    def build_model(self):\n        return {}['model']\n"), CONFIG, Shard())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("functional.cross_entropy(model(x), y, reduction='none')", "shape (4,), which is no scalar; return the mean"),
        ("functional.cross_entropy(model(x), y).item()", "returned a float; return a tensor"),
        ("functional.cross_entropy(model(x), y).detach()", "does not depend on any parameter"),
        ("torch.ones((), requires_grad=True) * 2", "does not depend on any parameter"),
        ("model(x).argmax()", "a number of type torch.int64"),
        ("functional.cross_entropy(model(x), y) / 0", "the loss of the first batch is inf"),
    ],
)
def test_a_loss_that_is_none_says_so_before_the_launch(mine, value: str, says: str) -> None:
    task = mine(
        f"    def loss(self, model, batch):\n        x, y = batch['inputs'][0], batch['labels']['of']\n"
        f"        return {value}\n"
    )
    with pytest.raises(TaskFaultError) as caught:
        preflight(task, CONFIG, Shard())
    assert shown(caught.value).startswith(line_of(task, "class Broken").rpartition(":")[0])
    assert says in shown(caught.value)


def test_an_unreduced_loss_is_named_while_training_and_evaluating_too(mine) -> None:
    task = mine(
        "    def loss(self, model, batch):\n        return model(batch['inputs'][0]).square().sum(1)\n",
    )
    trainer = Trainer(task, CONFIG, Shard())
    for use in (trainer.step, trainer.evaluate):
        with pytest.raises(TaskFaultError, match="which is no scalar"):
            use()


def test_an_out_of_memory_says_how_much_and_what_to_lower(mine) -> None:
    task = mine("    def loss(self, model, batch):\n        return torch.zeros(10**14).sum()\n")
    with pytest.raises(TaskFaultError) as caught:
        Trainer(task, CONFIG, Shard()).step()
    line = shown(caught.value)
    assert line.startswith(
        f"out of memory: 400.0 TB more were asked for at {line_of(task, '10**14')}, with one example at a time; take"
    )


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 79.18 GiB", 20.5 * 2**20),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12", 4096),
        ("Unable to allocate 7.28 TiB for an array with shape (10, ) and data type float64", 7.28 * 2**40),
        ("out of memory", None),
    ],
)
def test_what_was_asked_for_is_read_from_the_allocators_words(words: str, asked: float | None) -> None:
    assert bytes_asked(RuntimeError(words)) == asked
    assert translate(RuntimeError(words)).message.startswith("out of memory") or "Unable" in words


def test_a_model_that_is_built_otherwise_each_time_names_the_first_parameter(mine) -> None:
    task = mine(
        "    def build_model(self):\n        net = Net()\n        with torch.no_grad():\n"
        "            net.head.weight += random.random()\n        return net\n"
    )
    with pytest.raises(TaskFaultError) as caught:
        preflight(task, CONFIG, Shard())
    assert "head.weight of the initial model is another one each time" in shown(caught.value)


def test_a_batch_that_is_drawn_otherwise_each_time_names_the_tensor(mine) -> None:
    task = mine(
        "    def train_batch(self, step, *, seed, shard, size):\n"
        "        return {'inputs': [torch.ones(size, 2)], 'labels': {'of': torch.randint(0, 3, (size,))}}\n"
    )
    with pytest.raises(TaskFaultError, match=r"batch\['labels'\]\['of'\] differs"):
        preflight(task, CONFIG, Shard())


def test_a_good_task_is_let_through_and_parameters_without_a_gradient_are_named(mine) -> None:
    task, before = mine(), torch.get_rng_state()
    found = preflight(task, CONFIG, Shard())
    assert torch.equal(torch.get_rng_state(), before)
    assert found.untouched == ("spare.weight", "spare.bias")
    assert found.kept_bytes > 0
    assert "spare.weight" in found.doubts()[0]


def test_memory_that_is_not_there_is_told_before_the_launch(mine, monkeypatch) -> None:
    from node.config.schema import Config

    class Little:
        available = 1_000_000

    monkeypatch.setattr("node.roles.task_check.psutil.virtual_memory", Little)
    doubts = check_task(Config(train=CONFIG), mine(), Shard(), nodes=3)
    assert any(
        doubt.startswith("3 nodes of this task will want about 1.4 GB of memory, and 1.0 MB") for doubt in doubts
    )


def test_a_built_in_task_is_not_tried(monkeypatch) -> None:
    from node.config.schema import Config

    task = get("digits")
    monkeypatch.setattr(task, "train_batch", lambda *_, **__: pytest.fail("it was tried"))
    assert check_task(Config(train=CONFIG), task, Shard()) == []


@dataclass
class Record:
    x: torch.Tensor
    rest: dict[str, list[torch.Tensor]]
    note: str = "stays"


def test_batches_of_any_nesting_are_moved_looked_through_and_joined() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    batch: Batch = {"a": (Record(torch.ones(2), {"b": [torch.zeros(3)]}), 5), "packed": packed, "c": None}
    meta = moved(batch, torch.device("meta"))
    assert [str(tensor.device) for _, tensor in tensors_in(meta)] == ["meta", "meta", "meta", "cpu"]
    assert str(meta["packed"].data.device) == "meta"
    assert (meta["a"][1], meta["c"], meta["a"][0].note) == (5, None, "stays")
    assert [name for name, _ in tensors_in(batch)][:2] == ["['a'][0].x", "['a'][0].rest['b'][0]"]
    two = joined([{"x": [torch.ones(2)], "n": 1}, {"x": [torch.zeros(1)], "n": 1}])
    assert two["x"][0].tolist() == [1.0, 1.0, 0.0]


def test_labels_are_flipped_only_where_there_are_labels(mine) -> None:
    with pytest.raises(TaskError, match="label_flip needs batches of inputs and labels"):
        LabelFlip().poison(mine())


def test_a_fault_of_an_installed_plug_in_is_its_authors(tmp_path, monkeypatch) -> None:
    (tmp_path / "a_plug_in_of_somebodys.py").write_text("def make():\n    return {}['gone']\n")
    (tmp_path / "it-1.dist-info").mkdir()
    (tmp_path / "it-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: it\nVersion: 1\n")
    points = "[p2ptrain.outer_optimizers]\nbroken = a_plug_in_of_somebodys:make\n"
    (tmp_path / "it-1.dist-info/entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(faults, "_LIBRARIES", (*faults._LIBRARIES, tmp_path))  # as if it were installed
    importlib.invalidate_caches()
    with pytest.raises(KeyError) as caught:
        Registry[object]("outer_optimizers").get("broken")
    assert shown(caught.value).startswith(f"{tmp_path / 'a_plug_in_of_somebodys.py'}:2 raised KeyError")


def test_a_fault_of_a_built_in_task_stays_ours(monkeypatch) -> None:
    task = get("digits")
    trainer = Trainer(task, CONFIG, Shard())
    monkeypatch.setattr(task, "train", task.held_out._replace(images=torch.empty(0)))  # type: ignore[attr-defined]
    with pytest.raises(IndexError) as caught:
        trainer.step()
    assert "bug of p2ptrain" in translate(caught.value).line()
