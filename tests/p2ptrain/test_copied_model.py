"""Copies of a user's model compute with their own parameters, whatever stands in the place of `forward`."""

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from p2ptrain.tasks import Shard, TaskError
from p2ptrain.training.copied_model import copied, own_forwards
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.user_model import UserModel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)
        nn.init.ones_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.layer(x))
        return found


def put(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    model.forward = forward
    return model


def compiled(model: nn.Module) -> nn.Module:
    return put(model, torch.compile(model.forward, backend="eager"))


def inner_compiled() -> nn.Module:
    model = Net()
    compiled(model.layer)
    return model


def compiled_in_place() -> nn.Module:
    model = Net()
    model.compile(backend="eager")
    return model


def bound() -> nn.Module:
    model = Net()
    return put(model, types.MethodType(lambda self, x: self.norm(self.layer(x)), model))


def of_a_closure() -> nn.Module:
    model = Net()
    before = model.forward
    return put(model, lambda x: before(x) * 2)


def bound_to_a_closure() -> nn.Module:
    model = Net()
    before = model.forward
    return put(model, types.MethodType(lambda self, x: before(x) * 2, model))


def around_a_compiled_one() -> nn.Module:
    model = compiled(Net())
    before = model.forward
    return put(model, lambda x: before(x) * 2)


def with_a_default() -> nn.Module:
    model = Net()
    return put(model, lambda x, before=model.forward: before(x) * 2)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.live = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.live(x)
        return found


live = Around()
"""A program's model, by a global name."""


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "live", Around())


def of_a_global() -> nn.Module:
    return put(live, lambda x: live.live(x))


def around_the_class() -> nn.Module:
    """As accelerate does for mixed precision; a program has a global of an attribute's name."""
    before = Around.forward
    return put(live, types.MethodType(lambda self, x: before(self, x), live))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own import
@pytest.mark.parametrize(
    "build",
    [
        lambda: compiled(Net()),
        lambda: compiled(nn.Sequential(Net())),  # a module of torch's own is wrapped twice
        inner_compiled,
        compiled_in_place,
        bound,
        around_the_class,
        lambda: put(model := Net(), partial(Net.forward, model)),
    ],
)
def test_a_copy_is_evaluated_with_its_own_parameters_and_mode(build: Callable[[], nn.Module]) -> None:
    model, x = build(), torch.ones(4, 2)
    seen: list[torch.Tensor] = []

    def evaluate(given: nn.Module) -> float:
        seen.append(given(x))
        return 0.0

    ours = UserModel(model, None, TrainConfig(), Shard(), data_seed=0, evaluate=evaluate)
    ours.evaluate(torch.zeros(ours.numel))
    assert not seen[0].any()
    (norm,) = (each for each in model.modules() if isinstance(each, nn.BatchNorm1d))
    assert norm.running_mean is not None
    assert not norm.running_mean.any(), "the live model has seen no held-out example"


@pytest.mark.parametrize(
    "build", [of_a_closure, bound_to_a_closure, around_a_compiled_one, with_a_default, of_a_global]
)
def test_a_function_that_computes_with_the_live_model_is_refused(build: Callable[[], nn.Module]) -> None:
    model = build()
    made = copied(model)
    with pytest.raises(TaskError, match="the forward of the model was replaced"):
        own_forwards(made, model)
