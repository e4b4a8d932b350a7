"""Batches of any form: tensors in dicts, lists, tuples and dataclasses, in any nesting."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from p2ptrain.tasks.base import Batch


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with all its tensors on `device`. What is no container and has no `to` (a number, a string)
    stays."""
    if type(batch) is tuple and all(type(leaf) is torch.Tensor for leaf in batch):  # as nearly all are: no walk
        return tuple(leaf.to(device, non_blocking=True) for leaf in batch)
    return pytree.tree_map(lambda leaf: _leaf_on(leaf, device), batch, is_leaf=_moves_itself)


def tensors_in(batch: Batch) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of the batch with the words that lead to it, such as `['inputs'][0]`."""
    found: list[tuple[str, torch.Tensor]] = []
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        where = pytree.keystr(path)
        if isinstance(leaf, torch.Tensor):
            found.append((where, leaf))
        elif _is_record(leaf):
            found += [(f"{where}.{name}{rest}", it) for name, value in _fields(leaf) for rest, it in tensors_in(value)]
    return found


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of one form as one, each tensor put behind the other along its first dimension. What is no tensor is
    that of the first one. ValueError where their forms differ."""
    leaves, form = zip(*map(pytree.tree_flatten, batches), strict=True)
    if any(each != form[0] for each in form):
        raise ValueError("batches of different forms cannot be joined")
    whole = [torch.cat(same) if isinstance(same[0], torch.Tensor) else same[0] for same in zip(*leaves, strict=True)]
    return pytree.tree_unflatten(whole, form[0])


def examples_in(batch: Batch) -> int | None:
    """Return how many examples the batch has: what all its tensors have in their first dimension. None where they
    differ in it, and for a batch that is more than tensors in containers: it cannot be cut."""
    leaves = pytree.tree_leaves(batch, is_leaf=_moves_itself)
    counts = {_length(leaf) for leaf in leaves if _moves_itself(leaf) or _is_record(leaf)}
    return counts.pop() if len(counts) == 1 else None


def pieces(batch: Batch, size: int) -> list[Batch]:
    """Return the batch cut into pieces of `size` examples, of which the last may have fewer; a batch that cannot be cut
    as it is. What is no tensor is in all of them."""
    count = examples_in(batch)
    if count is None or count <= size:
        return [batch]
    return [_part(batch, slice(start, start + size)) for start in range(0, count, size)]


def share_of(batch: Batch, index: int, count: int) -> Batch | None:
    """Return part `index` of `count` parts of the batch, as even as can be, none of them empty. None where the batch
    cannot be cut so."""
    examples = examples_in(batch)
    if examples is None or examples < count:
        return None
    return _part(batch, slice(index * examples // count, (index + 1) * examples // count))


def pair_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the batch as inputs and targets; None when it is of another form."""
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(it, torch.Tensor) for it in batch):
        return batch[0], batch[1]
    return None


def _leaf_on(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(device, non_blocking=True)
    if _moves_itself(leaf):
        return leaf.to(device)
    if _is_record(leaf):
        return dataclasses.replace(leaf, **{name: moved(value, device) for name, value in _fields(leaf)})
    return leaf


def _part(batch: Batch, span: slice) -> Batch:
    def part_of(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf[span]
        if _is_record(leaf):
            return dataclasses.replace(leaf, **{name: _part(value, span) for name, value in _fields(leaf)})
        return leaf

    return pytree.tree_map(part_of, batch)


def _length(leaf: Any) -> int | None:
    """Examples of a tensor, or of a record of tensors; None where that is not known."""
    if isinstance(leaf, torch.Tensor):
        return len(leaf) if leaf.dim() else None
    return examples_in([value for _, value in _fields(leaf)]) if _is_record(leaf) else None


def _moves_itself(leaf: Any) -> bool:
    """A tensor; a packed sequence, an encoding of transformers, a batch of graphs."""
    return callable(getattr(leaf, "to", None))


def _is_record(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _fields(leaf: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(leaf, field.name)) for field in dataclasses.fields(leaf) if field.init]
