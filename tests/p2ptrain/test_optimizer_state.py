"""States of real optimizers through tensors and back, bit for bit."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, UserModel
from p2ptrain.training.optimizer_state import TREE, packed, unpack_into

Make = Callable[[nn.Module], torch.optim.Optimizer]


def model_of(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    return net.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def plain_of(seed: int = 0) -> nn.Module:
    return model_of(seed).to(memory_format=torch.contiguous_format)  # all that LBFGS takes


class SparseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(x.flatten().mul(10).long().abs() % 50)
        return rows


def sparse_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return SparseNet()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(number))

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x.to(next(model.parameters()).dtype)).float().square().mean()
        loss.backward()
        return loss.item()

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


class KeepsMuch(torch.optim.Optimizer):
    """Steps by the mean of its newest gradients, and keeps all that an optimizer may think of."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["of all"] = {"steps": self.state.get("of all", {}).get("steps", 0) + 1}
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                history = [parameter.grad.float().clone(), *state.get("history", [])][:3]
                slot = {"best": float("-inf"), "pair": (1, None, 0.5), "none": None, "flag": True}
                state |= {"history": history, "slot": slot, "kind": "mean", "count": state.get("count", 0) + 1}
                state["moment"] = sum(history) / len(history)  # fp32, whatever the parameter is
                parameter.sub_((group["lr"] * state["moment"]).to(parameter.dtype))


OPTIMIZERS: dict[str, tuple[Callable[[int], nn.Module], Make]] = {
    "lbfgs": (plain_of, lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)),
    "line search": (plain_of, lambda model: torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")),
    "fused": (model_of, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)),
    "foreach": (model_of, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True, amsgrad=True)),
    "sgd": (model_of, lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)),
    "plain sgd": (model_of, lambda model: torch.optim.SGD(model.parameters(), lr=1e-2)),
    "asgd": (model_of, lambda model: torch.optim.ASGD(model.parameters(), lr=1e-2)),
    "sparse": (sparse_of, lambda model: torch.optim.SparseAdam(model.parameters(), lr=1e-2)),
    "much": (model_of, lambda model: KeepsMuch(model.parameters())),
    "much of bf16": (lambda seed: model_of(seed, torch.bfloat16), lambda model: KeepsMuch(model.parameters())),
}


def learner(model: nn.Module, optimizer: torch.optim.Optimizer) -> UserModel:
    return UserModel(model, optimizer, TrainConfig(), Shard(), data_seed=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_bit_for_bit(name: str) -> None:
    build, make = OPTIMIZERS[name]
    model = build(0)
    ours = learner(model, make(model))
    assert ours.optimizer is not None
    for number in range(4):
        step(model, ours.optimizer, number)
    state = {key: value.clone() for key, value in ours.state_dict().items()}
    other = build(7)
    theirs = learner(other, make(other))
    assert theirs.optimizer is not None
    step(other, theirs.optimizer, 99)  # what it has of its own is replaced
    theirs.load_state_dict(state)
    assert not any("fits into no checkpoint" in doubt for doubt in ours.doubts())
    for number in range(4, 8):
        step(model, ours.optimizer, number)
        step(other, theirs.optimizer, number)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert same(ours.optimizer.state_dict()["state"], theirs.optimizer.state_dict()["state"])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.stride() == other.stride()
        return alike and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def test_groups_in_another_order_get_their_own_state() -> None:
    def made(model: nn.Sequential, order: list[int]) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": list(model[part].parameters())} for part in order], lr=1e-2)

    model, other = model_of(), model_of(seed=3)
    ours, theirs = learner(model, made(model, [0, 2])), learner(other, made(other, [2, 0]))
    assert ours.optimizer is not None
    assert theirs.optimizer is not None
    for number in range(3):
        step(model, ours.optimizer, number)
    theirs.load_state_dict(ours.state_dict())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.optimizer.state[one]["exp_avg"], theirs.optimizer.state[two]["exp_avg"])


def test_a_group_that_was_added_after_the_join_goes_on_too() -> None:
    def made(model: nn.Sequential, *, whole: bool) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model[2].parameters(), lr=1e-2)
        if whole:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
        return optimizer

    model, other, less = model_of(), model_of(seed=3), model_of(seed=3)
    ours = learner(model, made(model, whole=False))
    assert ours.optimizer is not None
    step(model, ours.optimizer, 0)
    ours.optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
    step(model, ours.optimizer, 1)
    state = ours.state_dict()
    theirs = learner(other, made(other, whole=True))
    theirs.load_state_dict(state)
    assert theirs.optimizer is not None
    step(model, ours.optimizer, 2)
    step(other, theirs.optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"a state of 0\.weight:4x3x3x3, which this optimizer does not hold"):
        learner(less, made(less, whole=False)).load_state_dict(state)


def test_another_optimizer_is_refused_and_nothing_changes() -> None:
    model, other = model_of(), model_of(seed=3)
    ours = learner(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    theirs = learner(other, torch.optim.SGD(other.parameters(), lr=1e-2))
    assert ours.optimizer is not None
    step(model, ours.optimizer, 0)
    before_d = theirs.vector()
    with pytest.raises(ValueError, match="its optimizer is AdamW, and this one SGD"):
        theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs.vector(), before_d)


def test_what_no_file_holds_is_left_out_and_told_once() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model[0].weight] = {"how": print, "fine": torch.ones(2), "list": [torch.ones(1), object()]}  # type: ignore[index]
    ours = learner(model, optimizer)
    state = ours.state_dict()
    doubts = ours.doubts()
    assert [doubt.split(" fits")[0] for doubt in doubts] == [
        "the optimizer's state 0.how (builtin_function_or_method)",
        "the optimizer's state 0.list (object)",
    ]
    ours.state_dict()
    assert ours.doubts() == []
    other = model_of()
    theirs = learner(other, torch.optim.SGD(other.parameters(), lr=0.1))
    theirs.load_state_dict(state)
    assert theirs.optimizer is not None
    assert list(theirs.optimizer.state[other[0].weight]) == ["fine"]  # type: ignore[index]


def test_what_no_file_holds_of_an_optimizers_own_state_is_left_out() -> None:
    """It stood in the file as nothing, and the checkpoint could not be gone on from."""
    optimizer = torch.optim.SGD(model_of().parameters(), lr=0.1)
    optimizer.state["ours"] = object()  # type: ignore[index]
    optimizer.state["counted"] = 3  # type: ignore[index]
    saved, left_out = packed(optimizer, {}, torch.clone)
    assert left_out == ["ours (object)"]
    again = torch.optim.SGD(model_of().parameters(), lr=0.1)
    unpack_into(again, {}, {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)})
    assert dict(again.state) == {"counted": 3}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=values)
def test_any_value_of_json_comes_back_as_it_was(value: Any) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer, theirs = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    optimizer.state["own"] = value
    tensors, left_out = packed(optimizer, {}, lambda tensor: tensor)
    assert left_out == []
    unpack_into(theirs, {}, tensors)
    assert same(theirs.state["own"], value)


def spoilt(tree: Any) -> torch.Tensor:
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)


@given(
    tree=st.binary(max_size=40)
    | st.fixed_dictionaries(
        {
            "optimizer": st.just("SGD"),
            "parameters": st.lists(values, max_size=2),
            "state": st.dictionaries(st.sampled_from(["0", "1", "7", "own"]), values, min_size=1, max_size=2),
        }
    )
)
def test_a_damaged_tree_is_refused_and_nothing_changes(tree: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="its optimizer"):
        unpack_into(optimizer, {}, {TREE: spoilt(tree)})
    assert not optimizer.state
