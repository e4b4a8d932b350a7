"""The names, shapes and types of a model's `state_dict`, as a checkpoint keeps them beside the flat vector.

With them the vector becomes a `state_dict` again, with no task, no data and none of the user's code at hand. A state
has the trained parameters, other names of the same ones (tied), and what is not trained: buffers and frozen parameters.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import torch
from torch import nn

from p2ptrain.training.flat import Named, trainable

DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
"""What safetensors files hold in all its releases that we take, by torch's names."""

MAX_NAME_CHARS: Final = 1024
"""Of a parameter's name. The longest of torchvision's and transformers' models have some 100; chosen."""

MAX_DIMENSIONS: Final = 64
"""torch's own bound."""

MAX_ELEMENTS: Final = 2**53 - 1
"""Of a tensor: exact in every language's JSON."""

MAX_LAYOUT_BYTES: Final = 1 << 19
"""Half of what a meta.json may have: names of some 4,000 tensors. Larger layouts are left out; chosen."""

MAX_UNTRAINED_BYTES: Final = 16 << 20
"""Of buffers and frozen parameters in a checkpoint, or as many bytes as the trained parameters have, if these are more.
The frozen model under an adapter would make every checkpoint a copy of itself. Chosen."""


class LayoutError(ValueError):
    """A layout that is none, or that does not fit the tensors."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of a state."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """What a model's `state_dict` consists of."""

    parameters: tuple[Entry, ...]
    """The trained parameters, in the order of the flat vector."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further names of trained parameters, with the names that these have in `parameters`."""
    untrained: tuple[Entry, ...] = ()
    """Buffers, parameters that are not trained, and those that are trained for this node alone (`train.local`)."""

    @property
    def numel(self) -> int:
        """The length d of the flat vector."""
        return sum(entry.numel for entry in self.parameters)

    def state_dict(self, x_d: torch.Tensor, untrained: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the state of the model whose trained parameters are `x_d` (d,): CPU tensors, each with memory of its
        own, so that tied ones are there under all their names. LayoutError when the vector does not fit, or one of
        `untrained` is missing."""
        if x_d.shape != (self.numel,):
            raise LayoutError(f"a vector of shape {tuple(x_d.shape)} does not fit names of {self.numel} parameters")
        state: dict[str, torch.Tensor] = {}
        pieces = torch.split(x_d.detach().to("cpu"), [entry.numel for entry in self.parameters])
        for entry, piece in zip(self.parameters, pieces, strict=True):
            state[entry.name] = piece.view(entry.shape).to(DTYPES[entry.dtype], copy=True)
        for alias, name in self.tied.items():
            state[alias] = state[name].clone()
        for entry in self.untrained:
            if entry.name not in untrained:
                raise LayoutError(f"{entry.name} is not trained, and the checkpoint does not hold it")
            state[entry.name] = untrained[entry.name].detach().to("cpu", copy=True).contiguous()
        return state

    def to_meta(self) -> dict[str, Any] | None:
        """As JSON; None where it has more than `from_meta` takes, or more than MAX_LAYOUT_BYTES."""
        meta = {
            "parameters": [_entry_to_meta(entry) for entry in self.parameters],
            "tied": dict(self.tied),
            "untrained": [_entry_to_meta(entry) for entry in self.untrained],
        }
        try:
            StateLayout.from_meta(meta)
        except LayoutError:
            return None
        return meta if len(json.dumps(meta, indent=2)) <= MAX_LAYOUT_BYTES else None

    @staticmethod
    def from_meta(meta: object) -> "StateLayout":
        """Return what `to_meta` made. LayoutError for everything else."""
        if not isinstance(meta, dict) or meta.keys() != {"parameters", "tied", "untrained"}:
            raise LayoutError("the model's names are none")
        parameters, untrained = (_entries(meta[key]) for key in ("parameters", "untrained"))
        tied = meta["tied"]
        if not isinstance(tied, dict) or not all(_is_name(name) for pair in tied.items() for name in pair):
            raise LayoutError("the names of tied parameters are none")
        names = [*(entry.name for entry in (*parameters, *untrained)), *tied]
        if len(names) != len(set(names)) or not {entry.name for entry in parameters}.issuperset(tied.values()):
            raise LayoutError("the model's names contradict each other")
        layout = StateLayout(parameters=parameters, tied=tied, untrained=untrained)
        if not 0 < layout.numel <= MAX_ELEMENTS:
            raise LayoutError("the model's names have no parameter, or too many")
        return layout


def layout_of(model: nn.Module, trained: Named | None = None) -> StateLayout | None:
    """Return the layout of `model`'s state; None where names are not enough: a hook or an extra state makes something
    of its own out of the parameters, or a tensor is of a kind that no file holds. `trained`: where these are not
    those that need gradients now. TaskError when nothing can be trained."""
    named = trainable(model) if trained is None else trained
    names = {id(parameter): name for name, parameter in named}
    own = {id(tensor) for tensor in chain(model.parameters(), model.buffers())}
    state = model.state_dict(keep_vars=True)
    if any(state.get(name) is not parameter for name, parameter in named):
        return None
    tied: dict[str, str] = {}
    untrained: list[Entry] = []
    for name, value in state.items():
        if id(value) in names:
            if names[id(value)] != name:
                tied[name] = names[id(value)]
        elif id(value) in own and _storable(value):
            untrained.append(_entry(name, value))
        else:
            return None
    parameters = tuple(_entry(name, parameter) for name, parameter in named)
    return StateLayout(parameters=parameters, tied=tied, untrained=tuple(untrained))


def untrained_of(model: nn.Module, trained: Named | None = None, kept: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Copies on the CPU of the state's buffers and frozen parameters, by name. None of them where names are not enough
    (`layout_of`), or, but for those `kept`, where they are too large to be kept in every checkpoint
    (MAX_UNTRAINED_BYTES)."""
    named = trainable(model) if trained is None else trained
    layout, state = layout_of(model, named), model.state_dict()
    if layout is None:
        return {}
    values = {entry.name: state[entry.name] for entry in layout.untrained}
    trained_bytes = sum(parameter.numel() * parameter.element_size() for _, parameter in named)
    if sum(value.nbytes for name, value in values.items() if name not in kept) > max(
        MAX_UNTRAINED_BYTES, trained_bytes
    ):
        values = {name: value for name, value in values.items() if name in kept}
    return {name: value.to("cpu", copy=True) for name, value in values.items()}


def take_up_untrained(model: nn.Module, values: Mapping[str, torch.Tensor], trained: Named | None = None) -> None:
    """Set buffers and frozen parameters to `values`. One that `model` does not have like that stays as it was built."""
    layout, state = layout_of(model, trained), model.state_dict()
    for entry in () if layout is None else layout.untrained:
        value = values.get(entry.name)
        if value is not None and value.shape == entry.shape and value.dtype == DTYPES[entry.dtype]:
            state[entry.name].copy_(value)  # `state_dict` detaches: these are the model's own numbers


def _storable(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.is_contiguous() and value.dtype in DTYPES.values()


def _entry(name: str, value: torch.Tensor) -> Entry:
    return Entry(name=name, shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))


def _entry_to_meta(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype}


def _entries(value: object) -> tuple[Entry, ...]:
    if not isinstance(value, list):
        raise LayoutError("the model's names are no list")
    return tuple(map(_entry_from_meta, value))


def _entry_from_meta(value: object) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"name", "shape", "dtype"}:
        raise LayoutError("one of the model's tensors is not described")
    name, shape, dtype = value["name"], value["shape"], value["dtype"]
    is_shape = (
        isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in shape)
    )
    if not _is_name(name) or not is_shape or not isinstance(dtype, str) or dtype not in DTYPES:
        raise LayoutError("one of the model's tensors has no name, no shape or no type")
    return Entry(name=name, shape=tuple(shape), dtype=dtype)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS
