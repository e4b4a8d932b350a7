"""`p2ptrain distill` and `export --int8`: a run folder in, a student's folder out, which every other command takes."""

import errno
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from node.cli import main
from node.config.schema import load
from node.training.checkpoint import Checkpoint, CheckpointStore
from p2ptrain import tasks
from p2ptrain.saved.models import models_of
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

TEXT = "the quick brown fox jumps over the lazy dog. " * 400
DIGITS = ("task.name=digits", "train.rounds=4", "train.inner_steps=20", "train.device=cpu")


def teacher(folder: Path, *sets: str, steps: int = 0, data_seed: int = 0) -> Path:
    """What a node leaves after so many steps."""
    config = load([], sets)
    trainer = Trainer(tasks.get(config.task.name, **config.task.options), config.train, Shard(), data_seed=data_seed)
    for _ in range(steps):
        trainer.step()
    layout = trainer.layout()
    assert layout is not None
    meta = {"config": config.model_dump(mode="json"), "model": layout.to_meta()}
    tensors = {"trainer.parameters": trainer.vector()}
    CheckpointStore(folder / "checkpoint").save(Checkpoint(round=4, meta=meta, tensors=tensors))
    (folder / "events.jsonl").touch()
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def distilled(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = said(capsys, "distill", *arguments, "--json")
    assert code == 0, err
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes of one run, trained on different batches."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    for number in range(2):
        teacher(folder / f"node-{number}", *DIGITS, steps=80, data_seed=number)
    return folder


def test_a_student_is_measured_as_it_is_evaluated_and_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "student"
    found = distilled(capsys, run, "--out", out, "--steps", 60, "--seed", 7)
    assert found["steps"] == 60
    assert found["teachers"] == 1
    assert found["eval_loss"] < 0.7 * found["before"]
    assert found["teacher_loss"] == pytest.approx(json.loads(said(capsys, "evaluate", run, "--json")[1])["eval_loss"])
    assert json.loads(said(capsys, "evaluate", out, "--json")[1])["eval_loss"] == pytest.approx(found["eval_loss"])
    file = tmp_path / "student.safetensors"
    assert said(capsys, "export", out, "--out", file)[0] == 0
    meta = models_of(out).models[0].meta
    assert meta["distilled"]["teachers"] == [{"node": "node-0", "round": 4}, {"node": "node-1", "round": 4}]
    assert meta["distilled"]["temperature"] == 2.0


def test_the_same_command_gives_the_same_student_and_alpha_0_one_without_a_teacher(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, alpha in (("one", 0.5), ("two", 0.5), ("alone", 0.0)):
        distilled(capsys, run, "--out", tmp_path / name, "--steps", 5, "--alpha", alpha)
    one, two, alone = (models_of(tmp_path / name).models[0].vector_d for name in ("one", "two", "alone"))
    assert torch.equal(one, two)
    trainer = Trainer(tasks.get("digits"), TrainConfig(rounds=1, inner_steps=5, warmup_steps=1, device="cpu"), Shard())
    for _ in range(5):
        trainer.step()
    assert torch.equal(alone, trainer.vector())
    assert not torch.equal(alone, one)


def test_every_node_of_a_run_or_several_runs_are_an_ensemble(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = distilled(capsys, run, "--ensemble", "--out", tmp_path / "a", "--steps", 2)
    runs = distilled(capsys, run / "node-0", run / "node-1", "--out", tmp_path / "b", "--steps", 2)
    assert each["teachers"] == runs["teachers"] == 2
    assert each["teacher_loss"] == runs["teacher_loss"]
    apart = [json.loads(said(capsys, "evaluate", run / f"node-{n}", "--json")[1])["eval_loss"] for n in range(2)]
    assert each["teacher_loss"] < sum(apart) / 2  # -log is convex: Jensen
    assert torch.equal(*(models_of(tmp_path / name).models[0].vector_d for name in "ab"))


def test_a_smaller_model_of_text_can_speak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    sets = ("task.name=byte-lm", "task.size=nano", f"task.data={tmp_path / 'text.txt'}", "train.device=cpu")
    big = teacher(tmp_path / "big", *sets, "train.eval_examples=8")
    out = tmp_path / "small"
    found = distilled(capsys, big, "--task-set", "size=pico", "--out", out, "--steps", 3)
    assert found["parameters"] < found["teacher_parameters"] / 10
    code, spoken, _ = said(capsys, "generate", out, "--prompt", "the", "--length", 5)
    assert code == 0
    assert spoken.startswith("the")
    code, _, err = said(capsys, "distill", big, "--task-set", "context=32", "--out", tmp_path / "other")
    assert code == 2
    assert "other held-out examples" in err
    assert not (tmp_path / "other").exists()


def test_a_private_run_is_distilled_only_where_a_person_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = teacher(tmp_path / "private", *DIGITS, "privacy.privatizer=example")
    code, out, err = said(capsys, "distill", private, "--out", tmp_path / "student", "--steps", 2)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: private trained with privacy.privatizer=example")
    assert "ledger would not cover" in err
    assert not (tmp_path / "student").exists()
    distilled(capsys, private, "--out", tmp_path / "student", "--steps", 2, "--without-privacy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--temperature", 0), "temperature must be above 0"),
        (("--alpha", 1.5), "alpha must be between 0 and 1"),
        (("--task-set", "size"), "no option of the task"),
        (("--task-set", "name=quadratic"), "no option of the task"),
        (("--task-set", "size=pico"), "takes no option 'size'"),
        (("--steps", 0), "steps"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[object, ...], words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "distill", run, "--out", tmp_path / "student", "--json", *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "student").exists()


def test_a_folder_that_is_there_is_kept(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("dear")
    assert said(capsys, "distill", run, "--out", tmp_path / "mine")[0] == 2
    assert said(capsys, "distill", run, "--out", tmp_path / "no" / "such")[0] == 2
    assert (tmp_path / "mine").read_text() == "dear"


def test_runs_of_two_tasks_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = teacher(tmp_path / "other", "task.name=quadratic", "train.device=cpu")
    code, _, err = said(capsys, "distill", run, other, "--out", tmp_path / "student", "--json")
    assert code == 2
    assert "different tasks: digits, quadratic" in err
    code, _, err = said(capsys, "distill", other, "--out", tmp_path / "student", "--json")
    assert code == 2
    assert "nothing to distil" in err


@pytest.mark.parametrize("after", [0, 3])
def test_ctrl_c_keeps_what_was_learned(
    after: int, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps, and before the first one."""
    taken: list[int] = []
    true_step, true_evaluate = Trainer.step, Trainer.evaluate

    def step(self: Trainer, *given: Any, **named: Any) -> float:
        taken.append(1)
        if len(taken) == after:
            signal.raise_signal(signal.SIGINT)
        return true_step(self, *given, **named)

    def evaluate(self: Trainer, x_d: torch.Tensor | None = None) -> float:
        loss = true_evaluate(self, x_d)
        monkeypatch.setattr(Trainer, "evaluate", true_evaluate)
        if after == 0:
            signal.raise_signal(signal.SIGINT)
        return loss

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    out = tmp_path / "student"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test's process may ignore it
    try:
        code, told, err = said(capsys, "distill", run, "--out", out, "--steps", 50, "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert len(taken) == after
    assert out.exists() == bool(after)
    if after:
        assert json.loads(told)["steps"] == models_of(out).models[0].meta["distilled"]["steps"] == after
        assert said(capsys, "evaluate", out)[0] == 0
    assert "Traceback" not in err


@pytest.mark.thorough
def test_a_graph_of_8_bit_numbers_is_smaller_and_nearly_as_good(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "small.onnx"
    code, told, err = said(capsys, "export", run, "--to", "onnx", "--int8", "--out", out, "--json")
    assert code == 0, err
    found = json.loads(told)
    it = found["int8"]
    assert it["bytes"] == found["bytes"] == out.stat().st_size
    assert it["bytes"] < it["bytes_before"] / 2
    assert 0 < it["logit_error"] < 0.03 * it["largest_logit"]
    assert it["loss"] == pytest.approx(it["loss_before"], rel=0.02)
    evaluated = json.loads(said(capsys, "evaluate", run, "--json")[1])["eval_loss"]
    assert it["loss_before"] == pytest.approx(evaluated, rel=1e-4)
    images, _ = tasks.get("digits").eval_batches(5)[0]
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert session.run(["logits"], {"inputs": images.numpy()})[0].shape == (5, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.onnx"]


@pytest.mark.thorough
def test_a_large_graph_has_its_weights_beside_it_by_a_name_of_its_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from torch.onnx._internal.exporter import _onnx_program

    monkeypatch.setattr(_onnx_program, "_LARGE_MODEL_THRESHOLD", 0)  # bytes; else 1.5 GiB
    out, weights = tmp_path / "large.onnx", tmp_path / "large.onnx.data"
    weights.write_text("somebody's")
    code, _, err = said(capsys, "export", run, "--to", "onnx", "--out", out)
    assert (code, weights.read_text()) == (2, "somebody's")
    assert f"{weights} is there already" in err
    weights.unlink()
    code, told, err = said(capsys, "export", run, "--to", "onnx", "--out", out)
    assert code == 0, err
    assert f"its weights are in {weights}, which has to stay beside it" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    images, _ = tasks.get("digits").eval_batches(5)[0]
    (tmp_path / "moved").mkdir()
    for path in (out, weights):
        path.rename(tmp_path / "moved" / path.name)
    session = onnxruntime.InferenceSession(tmp_path / "moved" / out.name, providers=["CPUExecutionProvider"])
    assert session.run(["logits"], {"inputs": images.numpy()})[0].shape == (5, 10)
    for path in (out, weights):
        (tmp_path / "moved" / path.name).rename(path)
    code, told, err = said(capsys, "export", run, "--to", "onnx", "--int8", "--out", out, "--force", "--json")
    assert code == 0, err
    found = json.loads(told)
    assert found["int8"]["bytes"] == found["bytes"] == sum(path.stat().st_size for path in (out, weights))
    assert found["int8"]["bytes_before"] > 30_000, "all weights are counted"
    monkeypatch.undo()
    assert said(capsys, "export", run, "--to", "onnx", "--out", out, "--force")[0] == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["large.onnx"], "no weights of another"


@pytest.mark.thorough
def test_a_disk_that_is_full_is_not_taken_for_a_model_that_cannot_be_a_graph(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", full)
    code, _, err = said(capsys, "export", run, "--to", "onnx", "--out", tmp_path / "model.onnx")
    assert code == 1
    assert "No space left on device; free some disk space" in err
    assert list(tmp_path.iterdir()) == []


def test_8_bits_are_for_a_graph_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "export", run, "--int8", "--out", tmp_path / "model.safetensors")
    assert code == 2
    assert "--int8 is for --to onnx" in err


def test_a_student_whose_training_diverged_is_not_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "student"
    code, said_, err = said(capsys, "distill", run, "--out", out, "--steps", 8, "--learning-rate", "1e30")
    assert (code, said_) == (1, "")
    assert "the student's training diverged: its held-out loss is nan, and nothing is written" in err
    assert not out.exists()


def test_a_teacher_that_says_no_numbers_teaches_nobody(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its parameters are finite, and too large to compute with."""
    found = models_of(run / "node-0").models[0]
    tensors = {**found.tensors, "trainer.parameters": torch.full_like(found.vector_d, 1e30)}
    broken = tmp_path / "broken"
    CheckpointStore(broken / "checkpoint").save(Checkpoint(round=4, meta=found.meta, tensors=tensors))
    (broken / "events.jsonl").touch()
    out = tmp_path / "student"
    code, said_, err = said(capsys, "distill", broken, "--out", out, "--steps", 4)
    assert (code, said_) == (1, "")
    assert "the teacher's held-out loss is nan" in err
    assert not out.exists()
