"""The model of a run, taken home: names as the task's own state_dict, numbers as in the evaluation, to the last bit."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import take_home_tasks
import torch
import trio
import trio.testing
from safetensors import safe_open
from safetensors.torch import load_file
from sim_swarm import swarm
from sizes import thorough_but

import p2ptrain
from node.cli import main
from node.training.checkpoint import Checkpoint, CheckpointStore
from p2ptrain import tasks
from p2ptrain.saved import models
from p2ptrain.tasks import Task
from p2ptrain.training import TrainConfig
from p2ptrain.training.layout import MAX_UNTRAINED_BYTES

ROOT = Path(__file__).parents[2]
ROUNDS = 4
MEMBERS = ("node-0", "node-1", "node-2")

TEXT = "the quick brown fox jumps over the lazy dog. " * 400

KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "byte-lm": lambda folder: {"name": "byte-lm", "size": "pico", "data": str(folder / "text.txt")},
    "digits": lambda folder: {"name": "digits"},
    "my_task": lambda folder: {"name": "examples.my_task:create", "width": 8},
    "tied": lambda folder: {"name": "take_home_tasks:create", "kind": "tied"},
    "adapter": lambda folder: {"name": "take_home_tasks:create", "kind": "adapter"},
    "renamed": lambda folder: {"name": "take_home_tasks:create", "kind": "renamed"},
}


def train(folder: Path, options: dict[str, Any], *, liar: bool = False) -> None:
    """What three nodes leave that have finished, and a fourth that lies."""

    async def live() -> None:
        async with swarm(folder) as members:
            shared: dict[str, Any] = {
                "task": options,
                "train": {"rounds": ROUNDS, "inner_steps": 3},
                "node": {"checkpoint_every": 2},
            }
            for name in MEMBERS:
                await members.start(name, wait_for=len(members.members), **shared)
            if liar:
                await members.start("node-3", wait_for=3, attack={"name": "sign_flip"}, **shared)
            await members.finished()

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    for each in folder.iterdir():
        if each.is_dir():
            (each / "events.jsonl").touch()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Folders of runs by kind, made when they are first asked for, and never changed."""
    made: dict[str, Path] = {}
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(ROOT))

    def run_of(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("run")
            (made[kind] / "text.txt").write_text(TEXT)
            train(made[kind], KINDS[kind](made[kind]), liar=kind == "digits")
        return made[kind]

    yield run_of
    patch.undo()


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def exported(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> dict[str, torch.Tensor]:
    code, _, err = said(capsys, "export", *arguments, "--out", out)
    assert code == 0, err
    return load_file(out)


def task_of(kind: str, run: Path) -> Task:
    options = KINDS[kind](run)
    return tasks.get(options.pop("name"), **options)


def loss_of(task: Task, state: dict[str, torch.Tensor]) -> float:
    """The held-out loss in plain torch: a model of the task's, `load_state_dict`, and a mean over examples."""
    model = task.build_model()
    model.load_state_dict(state, strict=True)
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in task.eval_batches(TrainConfig().eval_examples):
            tokens = task.tokens(batch)
            total, count = total + float(task.loss(model.eval(), batch)) * tokens, count + tokens
    return total / count


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", thorough_but({"digits", "adapter"}, KINDS))
def test_the_export_is_the_averaged_model_s_evaluation_to_the_last_bit(
    kind: str, runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, task = runs(kind), task_of(kind, runs(kind))
    _, told, _ = said(capsys, "evaluate", run, "--json")
    evaluated = json.loads(told)
    assert evaluated["models"] == 3
    state = exported(capsys, tmp_path / "model.safetensors", run)
    if kind != "renamed":  # such a model cannot take up its own state either
        assert loss_of(task, state) == evaluated["eval_loss"]
    assert state.keys() == task.build_model().state_dict().keys()
    assert same(state, p2ptrain.load(run))

    _, told, _ = said(capsys, "evaluate", run / "node-1", "--json")
    alone = exported(capsys, tmp_path / "one.safetensors", run, "--node", "node-1")
    if kind != "renamed":
        assert loss_of(task, alone) == json.loads(told)["eval_loss"]
    assert same(alone, exported(capsys, tmp_path / "same.safetensors", run / "node-1"))
    assert same(alone, p2ptrain.load(run, "node-1"))
    assert not same(alone, state)


PLAIN = """
import importlib.util, sys
import torch
from torch import nn
from safetensors.torch import load_file

def byte_lm():
    spec = importlib.util.spec_from_file_location("plain_model", sys.argv[3])
    module = sys.modules["plain_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ByteGPT(module.SIZES["pico"])

def digits():
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))

def my_task():
    return nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))

def tied():
    model = nn.Module()
    model.embedding, model.middle = nn.Embedding(12, 6), nn.Linear(6, 6)
    model.head = nn.Linear(6, 12, bias=False)
    model.head.weight = model.embedding.weight
    model.scale = nn.Parameter(torch.zeros(6), requires_grad=False)
    model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    model.register_buffer("mask", torch.zeros(6))
    return model

model = {"byte-lm": byte_lm, "digits": digits, "my_task": my_task, "tied": tied}[sys.argv[2]]()
print(model.load_state_dict(load_file(sys.argv[1]), strict=True))
assert not any(name.split(".")[0] in ("p2ptrain", "node", "gossip") for name in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", thorough_but({"digits"}, ["byte-lm", "digits", "my_task", "tied"]))
def test_it_loads_in_plain_torch_in_a_fresh_process(
    kind: str, runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(capsys, tmp_path / "model.safetensors", runs(kind))
    source = ROOT / "p2ptrain" / "tasks" / "byte_lm" / "gpt.py"
    command = [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "model.safetensors"), kind, str(source)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "All keys matched" in result.stdout


@pytest.mark.slow
def test_the_header_says_what_it_is(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.safetensors"
    code, told, err = said(capsys, "export", runs("digits"), "--out", out)
    assert (code, err) == (0, "left out: node-3: it was told to lie\n")
    assert "digits after round 4, the mean of node-0, node-1, node-2; 10 tensors, 9.2k trained parameters" in told
    assert f"load_file('{out}')" in told
    with safe_open(out, framework="pt") as file:
        header = file.metadata()
    release = header.pop("release")
    assert header == {"format": "pt", "task": "digits", "round": "4", "nodes": "node-0,node-1,node-2"}
    assert release == "" or release[0].isdigit()
    _, told, _ = said(
        capsys, "export", runs("digits"), "--node", "node-3", "--out", tmp_path / "a.safetensors", "--json"
    )
    assert json.loads(told)["nodes"] == "node-3"


def test_tied_and_untrained_ones_are_there_under_all_their_names(runs: Callable[[str], Path]) -> None:
    state = p2ptrain.load(runs("tied"))
    assert torch.equal(state["head.weight"], state["embedding.weight"])
    assert state["head.weight"].data_ptr() != state["embedding.weight"].data_ptr()
    assert state["seen"] == ROUNDS * 3 * 16, "as the first node had it when it wrote its checkpoint"
    assert torch.equal(state["scale"], torch.full((6,), 0.5))
    assert "cache" not in state


@pytest.mark.thorough
@pytest.mark.slow
def test_names_need_neither_the_task_s_module_nor_its_data(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose text is gone, and one whose module is nowhere: in a fresh process, with no runtime."""
    run = shutil.copytree(runs("byte-lm"), tmp_path / "run")
    meta = json.loads((run / "node-0" / "checkpoint" / "round-00000004" / "meta.json").read_text())
    assert meta["model"]["parameters"][0] == {"name": "embedding.weight", "shape": [256, 32], "dtype": "float32"}
    for file in run.glob("*/checkpoint/*/meta.json"):
        fields = {key: value for key, value in json.loads(file.read_text()).items() if key != "meta_digest"}
        fields["config"]["task"]["data"] = "/no/such/text"
        file.write_text(json.dumps(fields))
    code = (
        "import sys, p2ptrain; print(sum(v.numel() for v in p2ptrain.load(sys.argv[1]).values()));"
        "assert not {'node', 'gossip', 'trio', 'take_home_tasks'}.intersection(sys.modules)"
    )
    for each in (run, runs("tied")):
        command = [sys.executable, "-c", code, str(each)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        assert int(result.stdout) == sum(value.numel() for value in p2ptrain.load(each).values())


def older(run: Path) -> None:
    """As a release left it that wrote no names."""
    for checkpoint in run.glob("*/checkpoint/round-*"):
        meta = json.loads((checkpoint / "meta.json").read_text())
        kept = {key: value for key, value in meta.items() if key not in ("model", "meta_digest")}
        (checkpoint / "meta.json").write_text(json.dumps(kept))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-lm", "digits", "my_task"])
def test_an_older_checkpoint_is_exported_by_building_the_task(
    kind: str, runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs(kind), tmp_path / "run")
    older(run)
    assert same(exported(capsys, tmp_path / "model.safetensors", run), p2ptrain.load(runs(kind)))


async def test_an_older_checkpoint_is_gone_on_from(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with swarm(tmp_path) as members:
        await members.start("n0", train={"rounds": 3})
        await members.finished()
        older(tmp_path)
        again = await members.start("n0", train={"rounds": 5})
        await members.finished()
        assert again.told("resumed")[0]["round"] == 3
        assert not again.told("checkpoint_skipped")
    assert len(p2ptrain.load(tmp_path / "n0")) == 10


async def test_what_is_not_trained_comes_back_with_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Before, a buffer that training changes began anew at every restart."""
    task = KINDS["tied"](tmp_path)
    async with swarm(tmp_path) as members:
        for rounds in (3, 5):
            again = await members.start("n0", task=task, train={"rounds": rounds, "inner_steps": 3})
            await members.finished()
        assert again.resumed
    assert p2ptrain.load(tmp_path / "n0")["seen"] == 5 * 3 * 16


@pytest.mark.slow
def test_a_large_frozen_base_is_not_in_every_checkpoint(runs: Callable[[str], Path]) -> None:
    folder = runs("adapter") / "node-0" / "checkpoint" / "round-00000004"
    assert (folder / "state.safetensors").stat().st_size < 100_000
    base = p2ptrain.load(runs("adapter"))["base.weight"]
    assert base.nbytes > MAX_UNTRAINED_BYTES


# -- which models belong together


def make_run(folder: Path, held: dict[str, tuple[int, ...]], *, rounds: int = 60, **sections: Any) -> None:
    """Nodes with checkpoints of some rounds, of which the numbers are the model; none for `()`."""
    layout = {"parameters": [{"name": "w", "shape": [2], "dtype": "float32"}], "tied": {}, "untrained": []}
    for index, (name, numbers) in enumerate(held.items()):
        (folder / name).mkdir(parents=True)
        (folder / name / "events.jsonl").touch()
        config = {"task": {"name": "numbers"}, "train": {"rounds": rounds, "seed": 0}, **sections.get(name, {})}
        store = CheckpointStore(folder / name / "checkpoint", keep=9)
        for number in numbers:
            tensors = {"trainer.parameters": torch.tensor([float(index), float(number)])}
            store.save(Checkpoint(round=number, meta={"config": config, "model": layout}, tensors=tensors))


TOGETHER: dict[str, tuple[dict[str, tuple[int, ...]], list[float]]] = {
    "all finished": ({"a": (50, 60), "b": (50, 60)}, [0.5, 60]),
    "one was lost early": ({"a": (50, 60), "b": (10, 20), "c": (60,)}, [1, 60]),
    "only one finished": ({"a": (60,), "b": (20,), "c": (20,)}, [0, 60]),
    "stopped at once": ({"a": (40, 50, 53), "b": (40, 50, 55), "c": (40, 50, 54)}, [1, 50]),
    "one was behind": ({"a": (40, 50), "b": (40, 50), "c": (10,)}, [0.5, 50]),
    "half of them": ({"a": (40, 50), "b": (50,), "c": (40,), "d": (40,)}, [5 / 3, 40]),
    "nothing in common": ({"a": (10,), "b": (30,), "c": (20,)}, [1, 30]),
    "one never saved": ({"a": (20,), "b": (20,), "c": ()}, [0.5, 20]),
    "node-10 after node-9": ({"n10": (20,), "n9": (30,)}, [1, 30]),
}


@pytest.mark.parametrize(("held", "model"), TOGETHER.values(), ids=list(TOGETHER))
def test_models_of_one_round_are_averaged(held: dict[str, tuple[int, ...]], model: list[float], tmp_path: Path) -> None:
    make_run(tmp_path, held)
    assert p2ptrain.load(tmp_path)["w"].tolist() == pytest.approx(model)


def test_those_who_lie_or_watch_have_no_part(tmp_path: Path) -> None:
    told = {"b": {"attack": {"name": "alie"}}, "c": {"node": {"role": "observer"}}}
    make_run(tmp_path, {"a": (50,), "b": (60,), "c": (60,)}, **told)
    assert p2ptrain.load(tmp_path)["w"].tolist() == [0, 50]
    assert p2ptrain.load(tmp_path, "b")["w"].tolist() == [1, 60]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    make_run(tmp_path, {"a": (40, 50, 53), "b": (40, 50, 54), "c": (40, 50, 55)})
    for name in ("a", "b"):
        (tmp_path / name / "checkpoint" / "round-00000050" / "state.safetensors").write_bytes(b"rubbish")
    assert p2ptrain.load(tmp_path)["w"].tolist() == [1, 40]
    for file in tmp_path.glob("a/*/*/meta.json"):
        file.write_bytes(b"{")
    assert p2ptrain.load(tmp_path)["w"].tolist() == [1.5, 40]


def test_nodes_of_two_releases_are_averaged_and_two_models_are_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, {"a": (60,), "b": (60,)})
    meta = run / "b" / "checkpoint" / "round-00000060" / "meta.json"
    fields = {key: value for key, value in json.loads(meta.read_text()).items() if key != "meta_digest"}
    meta.write_text(json.dumps({key: value for key, value in fields.items() if key != "model"}))
    assert p2ptrain.load(run)["w"].tolist() == [0.5, 60]
    fields["model"]["parameters"][0]["name"] = "v"
    meta.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="a and b hold models of two kinds"):
        p2ptrain.load(run)


def test_a_checkpoint_that_is_pruned_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run trains on: all but what was read already may be gone at any moment."""
    make_run(tmp_path, {"a": (40, 50, 53), "b": (40, 50, 55)})
    monkeypatch.setattr(models, "_of_round", lambda folder, round: None)
    assert p2ptrain.load(tmp_path)["w"].tolist() == [1, 55]


def test_a_run_that_goes_on_further_is_not_finished_by_its_old_end(tmp_path: Path) -> None:
    longer = {"a": {"train": {"rounds": 80, "seed": 0}}}
    make_run(tmp_path, {"a": (65, 70), "b": (50, 60)}, **longer)
    assert p2ptrain.load(tmp_path)["w"].tolist() == [0, 70]


# -- what cannot be


def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), {"node-0": (60,), "node-1": (60,)})
    Path("there.safetensors").write_bytes(b"mine")
    Path("folder.safetensors").mkdir()
    Path("empty").mkdir()
    mistakes = {
        ("/no/run",): "there is no run folder /no/run",
        ("empty",): "empty is not a run folder",
        ("run", "--node", "node-7"): "run has no node 'node-7' with a checkpoint; there are: node-0, node-1",
        ("run", "--node", "node-0", "--average"): "--node and --average contradict each other",
        ("run/node-0", "--average"): "run/node-0 is the folder of one node",
        ("run", "--out", "there.safetensors"): "there.safetensors is there already; --force replaces it",
        ("run", "--out", "folder.safetensors"): "folder.safetensors is a folder",
        ("run", "--out", "model.pt"): "give a name that ends in .safetensors",
        ("run", "--out", "no/folder/model.safetensors"): "there is no folder no/folder",
        (): "missing argument",
    }
    for arguments, line in mistakes.items():
        code, out, err = said(capsys, "export", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert err.startswith("error: ")
        assert line in err.lower() if not arguments else line in err
    assert Path("there.safetensors").read_bytes() == b"mine"
    assert not Path("model.safetensors").exists()

    code, _, _ = said(capsys, "export", "run", "--out", "there.safetensors", "--force", "--average")
    assert code == 0
    assert load_file("there.safetensors")["w"].tolist() == [0.5, 60]
    assert said(capsys, "export", "run/node-1")[0] == 0
    assert load_file("model.safetensors")["w"].tolist() == [1, 60]


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, {"a": ()})
    code, _, err = said(capsys, "export", tmp_path, "--out", tmp_path / "model.safetensors")
    assert (code, err.count("\n")) == (1, 1)
    assert "has written a checkpoint yet; they come every node.checkpoint_every rounds" in err
    with pytest.raises(ValueError, match="has written a checkpoint yet"):
        p2ptrain.load(tmp_path)


def test_a_model_that_diverged_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, {"a": (60,), "b": (60,)})
    config = {"task": {"name": "numbers"}, "train": {"rounds": 61, "seed": 0}}
    CheckpointStore(tmp_path / "b" / "checkpoint").save(
        Checkpoint(round=61, meta={"config": config}, tensors={"trainer.parameters": torch.tensor([1.0, torch.nan])})
    )
    code, _, err = said(capsys, "export", tmp_path, "--out", tmp_path / "model.safetensors")
    assert (code, err.count("\n")) == (1, 1)
    assert "the model of b after round 61 is not finite: its training diverged" in err
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.safetensors"
    out.write_bytes(b"mine")
    run = runs("digits")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code, told, err = said(capsys, "export", run, "--out", out, "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (code, told) == (1, "")
    how = "raise the limit on the size of files (ulimit -f), or give another --out"
    assert err == f"error: cannot write {out}: File too large; {how}\n"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.read_bytes() == b"mine"


def test_a_task_that_is_gone_is_named_where_it_is_needed(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs("tied"), tmp_path / "run")
    older(run)
    for file in run.glob("*/checkpoint/*/meta.json"):
        file.write_text(file.read_text().replace(take_home_tasks.__name__, "no_such_module"))
    code, _, err = said(capsys, "export", run, "--out", tmp_path / "model.safetensors")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no module 'no_such_module'" in err
