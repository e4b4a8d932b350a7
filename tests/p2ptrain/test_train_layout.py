"""A flat vector and a layout are a model's state_dict again, and what names cannot say is told apart."""

import json

import pytest
import torch
from torch import nn

from p2ptrain.tasks import TASKS
from p2ptrain.training import layout as layouts
from p2ptrain.training.layout import LayoutError, StateLayout, layout_of, take_up_untrained, untrained_of
from p2ptrain.training.model import build_model


def vector_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters() if each.requires_grad])


def mixed() -> nn.Module:
    """Tied under two names, frozen, a counter, a buffer that is not saved."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[3].weight.requires_grad_(False)
    model.register_buffer("count", torch.tensor(7))
    model.register_buffer("unsaved", torch.zeros(2), persistent=False)
    return model


@pytest.mark.parametrize("make", [mixed, lambda: build_model(TASKS.get("digits"), 0)])
def test_a_vector_is_the_state_again(make) -> None:
    model = make()
    layout = layout_of(model)
    assert layout is not None
    again = StateLayout.from_meta(json.loads(json.dumps(layout.to_meta())))
    assert again == layout
    state, own = again.state_dict(vector_of(model), untrained_of(model)), model.state_dict()
    assert state.keys() == own.keys()
    for name, value in own.items():
        assert torch.equal(state[name], value)
        assert state[name].dtype == value.dtype
    assert len({value.data_ptr() for value in state.values()}) == len(state), "each has memory of its own"
    make().load_state_dict(state, strict=True)


def test_a_vector_of_another_length_and_a_missing_buffer_are_errors() -> None:
    model = mixed()
    layout = layout_of(model)
    assert layout is not None
    with pytest.raises(LayoutError, match="does not fit names of 29 parameters"):
        layout.state_dict(torch.zeros(28), untrained_of(model))
    with pytest.raises(LayoutError, match=r"count is not trained, and the checkpoint does not hold it"):
        layout.state_dict(vector_of(model), {})


def hooked(model: nn.Module) -> None:
    model.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(count=state["count"] + 1))


def expanded(model: nn.Module) -> None:
    model.register_buffer("wide", torch.zeros(1).expand(4))


def complex_one(model: nn.Module) -> None:
    model.register_buffer("turns", torch.zeros(2, dtype=torch.complex128))


@pytest.mark.parametrize("change", [hooked, None, expanded, complex_one])
def test_names_are_not_enough_where_a_state_is_more_than_tensors_of_its_own(change, monkeypatch) -> None:
    model = mixed()
    if change is None:
        monkeypatch.setattr(nn.Linear, "get_extra_state", lambda _: {"scale": 2})
    else:
        change(model)
    assert layout_of(model) is None
    assert untrained_of(model) == {}


def test_layouts_beyond_their_bounds_are_left_out(monkeypatch) -> None:
    monkeypatch.setattr(layouts, "MAX_LAYOUT_BYTES", 200)
    layout = layout_of(mixed())
    assert layout is not None
    assert layout.to_meta() is None
    monkeypatch.undo()
    assert layout.to_meta() is not None
    long = nn.Sequential()
    long.add_module("x" * layouts.MAX_NAME_CHARS, nn.Linear(2, 2))
    named = layout_of(long)
    assert named is not None
    assert named.to_meta() is None


def test_what_is_not_trained_is_kept_unless_it_is_much(monkeypatch) -> None:
    model = mixed()
    assert untrained_of(model).keys() == {"count", "3.weight"}
    monkeypatch.setattr(layouts, "MAX_UNTRAINED_BYTES", 0)
    assert untrained_of(model).keys() == {"count", "3.weight"}, "less than the trained ones have"
    model.register_buffer("large", torch.zeros(30))
    assert untrained_of(model) == {}


def test_what_does_not_fit_stays_as_it_was_built() -> None:
    model = mixed()
    before = model[3].weight.clone()
    take_up_untrained(model, {"count": torch.tensor(9), "3.weight": torch.ones(3, 3), "1.weight": torch.zeros(3, 3)})
    assert model.state_dict()["count"] == 9
    assert torch.equal(model[3].weight, before)
    assert model[1].weight.any(), "a trained one is not touched"
