"""A copy of somebody's model that computes with its own parameters.

`deepcopy` copies whatever a module holds, but functions: one that was put in the place of `forward`, as by
`module.forward = torch.compile(module.forward)`, goes on with the parameters of the model that it was made for. A copy
that is evaluated would then be measured as the live model, in its mode of training, and would change its buffers.
"""

import copy
import dis
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError

_COMPILER: Final = Path(torch.__file__).parent / "_dynamo"
"""Where the functions are written that `torch.compile` returns."""


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of what `model` holds. `own_forwards` has it compute with that."""
    return copy.deepcopy(model, _activations(model))


def own_forwards(made: nn.Module, model: nn.Module) -> nn.Module:
    """Return `made`, a copy of `model`, which computes with nothing of it from now on: a compiled `forward` is a plain
    one in it. TaskError where another function in its place would go on with the parameters of `model`."""
    own = {id(module) for module in model.modules()}
    for (name, module), theirs in zip(model.named_modules(), made.modules(), strict=True):
        forward = vars(theirs).get("forward")
        if forward is None or not _reaches(forward, own, set()):
            continue
        plain = _before_compiling(forward)
        if not isinstance(plain, MethodType) or plain.__self__ is not module or _reaches(plain.__func__, own, set()):
            raise TaskError(
                f"the forward of {name or 'the model'} was replaced by a function that computes with the model itself, "
                "and evaluate is given a copy: bind it (types.MethodType(function, module)), or leave evaluate out"
            )
        theirs.forward = MethodType(plain.__func__, theirs)
    return made


def _before_compiling(forward: Any) -> Any:
    """What `torch.compile` has made a function of; any other function as it is."""
    while isinstance(forward, FunctionType) and Path(forward.__code__.co_filename).is_relative_to(_COMPILER):
        forward = getattr(forward, "__wrapped__", None)
    return forward


def _reaches(value: object, modules: set[int], seen: set[int]) -> bool:
    """Whether a function, as far as it holds what it calls, calls one of the modules of these ids."""
    if isinstance(value, nn.Module):
        return id(value) in modules
    if id(value) in seen or not callable(value) or isinstance(value, type):
        return False
    seen.add(id(value))
    return any(_reaches(each, modules, seen) for each in _held(value))


def _held(value: Any) -> Iterator[object]:
    if isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # it is empty
                yield cell.cell_contents
        # Not `co_names`: they name attributes too, and a program's `model` is none of `self.model`.
        names = {each.argval for each in dis.get_instructions(value) if each.opname == "LOAD_GLOBAL"}
        known = (value.__globals__.get(name) for name in names)
        yield from (each for each in known if isinstance(each, nn.Module | MethodType))  # not all of a program
    else:
        yield from getattr(value, "__dict__", {}).values()


def _activations(model: nn.Module) -> dict[int, Any]:
    """A memo for `deepcopy`, which refuses tensors with a history, such as modules keep from their last pass."""
    found: dict[int, Any] = {}
    values: list[object] = [value for module in model.modules() for value in vars(module).values()]
    for value in values:
        within = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
        found |= {id(it): it.detach() for it in within if isinstance(it, torch.Tensor) and not it.is_leaf}  # type: ignore[attr-defined]
    return found
