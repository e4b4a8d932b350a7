"""Steps through torch.compile are the steps without it, and where it fails they go on."""

import shutil
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from p2ptrain.tasks import TaskFaultError
from p2ptrain.tasks.base import Batch, Shard, Task
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer, compiled_loss


def trainer_of(task: Task, **changed: Any) -> Trainer:
    return Trainer(task, TrainConfig(batch_size=16, warmup_steps=0, device="cpu", threads=1, **changed), Shard())


def fails(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    raise RuntimeError("no compiler was found")


def fails_in_the_backward_pass(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no kernel for the backward pass")

    def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(Passes.apply(each) for each in graph(*args))

    return run


@pytest.fixture(autouse=True)
def forgets() -> Any:
    """What torch has compiled is the process's."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("kind", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_steps_are_those_without_compiling(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own compiler
    if kind == "inductor" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(compiled_loss, "BACKEND", kind)
    plain, compiled = trainer_of(Digits(), grad_accumulation=2), trainer_of(Digits(), grad_accumulation=2, compile=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(4):
        assert compiled.step() == pytest.approx(plain.step(), rel=1e-4)
    torch.testing.assert_close(compiled.vector(), plain.vector(), rtol=1e-3, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    assert compiled.compile_fault == ""
    assert compiled.fingerprint == plain.fingerprint


@pytest.mark.parametrize("backend", [fails, fails_in_the_backward_pass])
def test_where_compiling_fails_the_step_is_taken_without(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    monkeypatch.setattr(compiled_loss, "BACKEND", backend)
    plain, compiled = trainer_of(Digits()), trainer_of(Digits(), compile=True)
    losses = [(compiled.step(), plain.step()) for _ in range(3)]
    assert all(ours == theirs for ours, theirs in losses)
    assert torch.equal(compiled.vector(), plain.vector())
    assert compiled.tokens == plain.tokens
    assert compiled.compile_fault.endswith(("no compiler was found", "no kernel for the backward pass"))


def test_a_task_at_fault_is_told_with_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Digits):
        def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
            raise KeyError("no such column")

    monkeypatch.setattr(compiled_loss, "BACKEND", "eager")
    with pytest.raises(TaskFaultError, match=r"test_train_compiled\.py:\d+ raised KeyError"):
        trainer_of(Broken(), compile=True).step()


def test_want_of_memory_is_no_reason_to_give_compiling_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def run(*args: torch.Tensor) -> Any:
            if any(isinstance(each, torch.Tensor) and each.shape[:1] == (16,) for each in args):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")
            return graph(*args)

        return run

    monkeypatch.setattr(compiled_loss, "BACKEND", narrow)
    trainer = trainer_of(Digits(), compile=True)
    trainer.step()
    assert trainer.micro_batch == 8
    assert trainer.compile_fault == ""
