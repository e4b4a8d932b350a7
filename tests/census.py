"""Counts what an object holds: every container that can be reached from it, by the way that leads there.

A store that grows shows as a longer container under the same name, wherever it is and whatever it is called; nobody has
to think of it beforehand.
"""

import types
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

FOREIGN = frozenset({"trio", "torch", "numpy", "logging", "threading", "_thread", "weakref", "random", "hypothesis"})
"""Packages into which nobody looks: what is ours is not kept there."""

LEAVES = (str, bytes, bytearray, int, float, type(None), type, types.ModuleType, types.BuiltinFunctionType)


def census(root: object, without: Collection[str] = ()) -> dict[str, int]:
    """The sizes of all containers (their sum, where several have one name), from attributes, items and closures.
    `without`: the last part of names that are not entered."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([("", root)])
    while waiting:
        name, held = waiting.popleft()  # the shortest way to each
        if id(held) in seen or isinstance(held, LEAVES) or name.rpartition(".")[2] in without:
            continue
        seen.add(id(held))
        if isinstance(held, dict | list | set | frozenset | deque):
            sizes[name] = sizes.get(name, 0) + len(held)
        waiting.extend((name + step, each) for step, each in _within(held))
    return sizes


def _within(held: object) -> Iterator[tuple[str, Any]]:
    if isinstance(held, dict):
        yield from (("[]", value) for value in list(held.values()))
    elif isinstance(held, list | tuple | set | frozenset | deque):
        yield from (("[]", value) for value in list(held))
    elif isinstance(held, types.FunctionType):
        names = held.__code__.co_freevars
        yield from ((f"<{name}>", cell.cell_contents) for name, cell in zip(names, held.__closure__ or (), strict=True))
    elif isinstance(held, types.MethodType):
        yield "", held.__self__
    elif type(held).__module__.split(".")[0] not in FOREIGN:
        yield from ((f".{name}", value) for name, value in getattr(held, "__dict__", {}).items())
        slots = (each for kind in type(held).__mro__ for each in kind.__dict__.get("__slots__", ()))
        yield from ((f".{name}", getattr(held, name)) for name in slots if hasattr(held, name))
