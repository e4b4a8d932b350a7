"""Tensors of a device, kept on the host meanwhile: the device's memory is somebody else's until they are back.

A tensor's memory is its storage, which its views share: parameters of a model are views of one vector. The storage is
copied to the host and shrunk to nothing, and later grown and filled again. So all tensors and views stay the objects
that they are, and all that hold them (a module, an optimizer, a compiled loss) notice nothing. Nobody may read them
meanwhile, but by `on_host`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class _Parked:
    """A storage, and its bytes on the host."""

    storage: torch.UntypedStorage
    host: torch.UntypedStorage

    def give(self) -> None:
        self.storage.resize_(0)

    def take(self) -> None:
        """Fill it again. Raises torch.OutOfMemoryError."""
        self.storage.resize_(self.host.nbytes())
        self.storage.copy_(self.host)


class ParkedTensors:
    """Copies the tensors' memory to the host and gives it back to the device's allocator."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._parked: dict[int, _Parked] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._parked and storage.nbytes():
                host = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
                host.copy_(storage)
                self._parked[storage._cdata] = _Parked(storage, host)
        for each in self._parked.values():
            each.give()

    @property
    def nbytes(self) -> int:
        """Return the bytes that were given back."""
        return sum(each.host.nbytes() for each in self._parked.values())

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor that is parked here, as a view of what is kept; any other as it is."""
        parked = self._parked.get(tensor.untyped_storage()._cdata)
        if parked is None:
            return tensor
        found = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return found.set_(parked.host, tensor.storage_offset(), tensor.shape, tensor.stride())

    def bring_back(self) -> None:
        """Give all tensors their memory and values again. Raises torch.OutOfMemoryError, with nothing changed, where
        the device has not as much."""
        for each in self._parked.values():
            try:
                each.take()
            except torch.OutOfMemoryError:
                for it in self._parked.values():
                    it.give()
                raise
