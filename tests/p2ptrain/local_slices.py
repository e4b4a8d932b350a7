"""Slices of a strategy's vectors in one process, called as if each were in another one."""

import pickle
from collections.abc import Sequence
from typing import Any

from p2ptrain.sync.model_slice import ModelSlice
from p2ptrain.sync.sliced_vectors import LostSliceError


class LocalSlices:
    """`SliceHolders` of slices that are here. `lost`: the number of one that does not answer any more."""

    def __init__(self, cuts: Sequence[slice]) -> None:
        self.cuts = cuts
        self.slices = [ModelSlice(at) for at in cuts]
        self.lost: int | None = None

    def each(self, name: str, *common: Any, own: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call all."""
        args = own or [()] * len(self.slices)
        return [self.one(index, name, *mine, *common) for index, mine in enumerate(args)]

    def one(self, index: int, name: str, *arguments: Any) -> Any:
        """Call one: what travels is copied."""
        if index == self.lost:
            raise LostSliceError("lost")
        found = getattr(self.slices[index], name)(*pickle.loads(pickle.dumps(arguments)))
        return pickle.loads(pickle.dumps(found))
