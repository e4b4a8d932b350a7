"""The state of any torch optimizer as named tensors, for a checkpoint, and back.

Optimizers keep what they like by parameter: tensors, numbers, None, lists of tensors (LBFGS' history), dicts. All of it
is kept as it is: tensors under names of their own, and around them a tree in JSON. Parameters are named, so that groups
in another order get their own back.
"""

import json
import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from p2ptrain.saved.tensor_file import Storable
from p2ptrain.training.layout import DTYPES
from p2ptrain.training.parameter_vector import is_sharded

TREE: Final = "tree"
"""The tensor, uint8, that holds the JSON: `optimizer` (its class), `parameters` (a name for each), `state`."""

MAX_TREE_BYTES: Final = 64 << 20
"""Names of a million of tensors; chosen."""

MAX_DEPTH: Final = 32
"""Containers within each other. Known optimizers have two; chosen."""

Take = Callable[[torch.Tensor], Storable]
Part = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Makes, of a tensor of a whole state and the sharded parameter that it is like, what this rank holds of it."""
Names = Mapping[int, str]
"""Names of parameters by their `id`."""


def packed(optimizer: torch.optim.Optimizer, names: Names, take: Take) -> tuple[dict[str, Storable], list[str]]:
    """Return the state as tensors, each passed through `take`, and a line for each entry that no file can hold, which
    is left out."""
    pack = _Packer(take)
    held = _names_of(optimizer, names)
    state = {
        str(key): tree
        for key, values in optimizer.state_dict()["state"].items()
        if (tree := pack.of_each(str(key), values) if isinstance(values, Mapping) else pack.of(str(key), values))
    }
    tree = {"optimizer": type(optimizer).__name__, "parameters": held, "state": state}
    encoded = torch.frombuffer(bytearray(json.dumps(tree).encode()), dtype=torch.uint8)
    return {**pack.tensors, TREE: encoded}, pack.left_out


def unpack_into(
    optimizer: torch.optim.Optimizer, names: Names, saved: Mapping[str, torch.Tensor], part: Part | None = None
) -> None:
    """Give `optimizer` the state that `packed` made. `part`: where its parameters are sharded. ValueError, with nothing
    changed, where it is of another optimizer or damaged."""
    tree = _tree_in(saved)
    if tree["optimizer"] != type(optimizer).__name__:
        raise ValueError(f"its optimizer is {tree['optimizer']}, and this one {type(optimizer).__name__}")
    places = {name: index for index, name in enumerate(_names_of(optimizer, names))}
    parameters = _parameters(optimizer)
    state: dict[int | str, Any] = {}
    for key, values in tree["state"].items():
        place = _place(key, tree["parameters"], places)
        like = parameters[place] if isinstance(place, int) else None
        if part is not None and like is not None and is_sharded(like):
            state[place] = _value(values, saved, like, part)
        else:
            state[place] = _value(values, saved, like)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    _put_back_what_was_cast(optimizer, state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _names_of(optimizer: torch.optim.Optimizer, names: Names) -> list[str]:
    """Name and shape of each of its parameters, in its order; what is not the model's is numbered."""
    strangers = count()
    return [
        f"{names.get(id(each)) or next(strangers)}:{'x'.join(map(str, each.shape))}" for each in _parameters(optimizer)
    ]


class _Packer:
    def __init__(self, take: Take) -> None:
        self.tensors: dict[str, Storable] = {}
        self.left_out: list[str] = []
        self._take = take

    def of(self, path: str, value: object) -> dict[str, Any] | None:
        """The tree of one entry; None where it is left out, as part of it can be held by no file."""
        held: dict[str, Storable] = {}
        try:
            tree = self._tree(path, value, held, 0)
        except UnheldError as error:
            self.left_out.append(f"{path} ({error})")
            return None
        self.tensors |= held
        return tree

    def of_each(self, path: str, values: Mapping[Any, object]) -> dict[str, Any]:
        """The tree of a parameter's entries: of those that can be held."""
        return {
            "dict": {str(name): tree for name, value in values.items() if (tree := self.of(f"{path}.{name}", value))}
        }

    def _tree(self, path: str, value: object, held: dict[str, Storable], depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise UnheldError("nested too deep")
        if isinstance(value, torch.Tensor):
            if not _holdable(value.to_local() if is_sharded(value) else value):  # type: ignore[attr-defined]  # a DTensor
                raise UnheldError(f"{type(value).__name__}, {value.dtype}")
            held[path] = self._take(value.detach())
            return {"tensor": path}
        if value is None or isinstance(value, bool | int | str):
            return {"value": value}
        if isinstance(value, float):
            return {"value": float(value)} if math.isfinite(value) else {"float": repr(float(value))}
        if type(value) in (list, tuple):
            assert isinstance(value, list | tuple)
            parts = [self._tree(f"{path}.{index}", each, held, depth + 1) for index, each in enumerate(value)]
            return {type(value).__name__: parts}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._tree(f"{path}.{key}", it, held, depth + 1) for key, it in value.items()}}
        raise UnheldError(type(value).__name__)


class UnheldError(Exception):
    """A value that no file of tensors and JSON holds. A `Take` may raise it."""


def _holdable(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided or value.is_meta or value.dtype not in DTYPES.values():
        return False
    return not is_traceable_wrapper_subclass(value)


def _tree_in(saved: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    encoded = saved.get(TREE)
    if encoded is None or encoded.dtype is not torch.uint8 or encoded.ndim != 1 or encoded.numel() > MAX_TREE_BYTES:
        raise ValueError("its optimizer state is not described")
    try:
        tree = json.loads(encoded.cpu().numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its optimizer state is damaged: {error}") from None
    kinds = {"optimizer": str, "parameters": list, "state": dict}
    if not isinstance(tree, dict) or any(not isinstance(tree.get(key), kind) for key, kind in kinds.items()):
        raise ValueError("its optimizer state is damaged")
    return tree


def _place(key: str, saved_names: list[Any], places: Mapping[str, int]) -> int | str:
    """Where the state of a key belongs: a parameter's place in this optimizer, or a key of the optimizer's own."""
    if not key.isdecimal():
        return key
    name = saved_names[int(key)] if int(key) < len(saved_names) else None
    if not isinstance(name, str) or name not in places:
        raise ValueError(f"its optimizer has a state of {name or key}, which this optimizer does not hold")
    return places[name]


def _value(tree: Any, saved: Mapping[str, torch.Tensor], like: torch.Tensor | None, part: Part | None = None) -> Any:
    match tree:
        case {"tensor": str(path)} if path in saved:
            value = saved[path]
            if part is not None and like is not None and value.ndim and value.shape == like.shape:
                return part(value, like)
            return _as_laid_out(value, None if part is not None else like)
        case {"value": value}:
            return value
        case {"float": str(text)}:
            return float(text)
        case {"list": list(parts)}:
            return [_value(each, saved, like, part) for each in parts]
        case {"tuple": list(parts)}:
            return tuple(_value(each, saved, like, part) for each in parts)
        case {"dict": dict(parts)}:
            return {key: _value(each, saved, like, part) for key, each in parts.items()}
        case _:
            raise ValueError("its optimizer state is damaged")


def _as_laid_out(value: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """A copy of `value`, with the strides of its parameter: fused optimizers go over both as they lie in memory. Memory
    of its own begins where torch has it begin: a file's may not, and sums over it then come to other last bits."""
    if like is None or value.shape != like.shape:
        return value.clone()
    strides = torch.empty_like(like, device="meta").stride()
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _put_back_what_was_cast(optimizer: torch.optim.Optimizer, state: Mapping[int | str, Any]) -> None:
    """Have words, and moments of more bits than their parameter's, as they were: `load_state_dict` casts both."""
    for place, parameter in enumerate(_parameters(optimizer)):
        for name, value in state.get(place, {}).items():
            if isinstance(value, str):
                optimizer.state[parameter][name] = value
            elif isinstance(value, torch.Tensor) and name != "step":  # which has rules of its own
                loaded = optimizer.state[parameter].get(name)
                cast = isinstance(loaded, torch.Tensor) and loaded.dtype != value.dtype
                optimizer.state[parameter][name] = value.to(parameter.device) if cast else loaded
