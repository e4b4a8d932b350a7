"""A vector that lies in a file without a name, and is read and written a slice at a time.

It is read and written by calls, and not mapped: what a disk refuses is an exception then, on every file system, where
a mapping would end the process by SIGBUS; and no page of it counts as the process's memory. Room for all of it is
reserved when it is made. Where the disk refuses a write all the same (a file system that copies on write may), the
vector goes back to memory, with nothing lost.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.saved.nameless_file import NamelessFile

Raw = npt.NDArray[Any]
"""Values as they are stored: float32, or the bits of bf16 as uint16."""

STORED: Final[dict[torch.dtype, np.dtype[Any]]] = {torch.float32: np.dtype("<f4"), torch.bfloat16: np.dtype("<u2")}

PIECE_NUMEL: Final = 1 << 20
"""Values that are read at a time where all of them are. Chosen: enough that a call costs nothing beside them."""

ESTIMATE: Final = "a neighbour's model"
OPTIMIZER: Final = "the optimizer's state"
"""What vectors in files hold."""

Refused = Callable[[OSError], None]
"""Called when the disk does not take a vector, which is in memory from then on."""


class LostVectorError(Exception):
    """A vector's file cannot be read: the disk fails. `holds`: what the vector is."""

    def __init__(self, message: str, holds: str) -> None:
        super().__init__(message)
        self.holds = holds


class FiledVector:
    """A vector (numel,) of fp32 or bf16. Slices have explicit start and stop. Several threads may use those that do not
    overlap at once."""

    def __init__(
        self, numel: int, dtype: torch.dtype, file: NamelessFile, refused: Refused, *, holds: str = ESTIMATE
    ) -> None:
        """Reserve the room in an empty file: zeros, or anything. Raises OSError where there is too little. `holds`:
        what the vector is, for messages."""
        self._holds = holds
        self.dtype = dtype
        self._numel = numel
        self._stored = STORED[dtype]
        self._refused = refused
        self._file: NamelessFile = file
        self._held: Raw | None = None
        """The values, once the disk has refused one."""
        self._changing = threading.Lock()
        file.reserve(numel * self._stored.itemsize)

    def numel(self) -> int:
        """Return how many values there are."""
        return self._numel

    def read(self, part: slice) -> Raw:
        """Return a slice as it is stored: a copy. Raises LostVectorError."""
        held, size = self._held, self._stored.itemsize
        if held is not None:
            return held[part].copy()
        raw = np.empty(part.stop - part.start, dtype=self._stored)
        try:
            self._file.read_into(part.start * size, raw.view(np.uint8).data)
        except OSError as error:
            message = f"{self._holds} cannot be read from the disk: {error.strerror}"
            raise LostVectorError(message, self._holds) from error
        return raw.astype(raw.dtype.newbyteorder("="), copy=False)

    def write(self, part: slice, raw: Raw) -> None:
        """Set a slice to values as they are stored. What the disk refuses is in memory from then on, and all else too.
        Raises LostVectorError where that cannot be read any more."""
        if self._held is None:
            little = np.ascontiguousarray(raw, dtype=self._stored)
            try:
                self._file.write_at(part.start * self._stored.itemsize, little.view(np.uint8).data)
            except OSError as error:
                self._take_back(error)
        with self._changing:  # where another thread took all back meanwhile, this slice may have come too late for that
            if self._held is not None:
                self._held[part] = raw

    def source(self) -> NamelessFile | memoryview:
        """Return all bytes, little-endian, without a copy: valid until a write."""
        held = self._held
        return self._file if held is None else held.astype(self._stored, copy=False).view(np.uint8).data

    def mapped(self) -> torch.Tensor:
        """Return it as a tensor that is not to be written to: its pages count as memory while somebody holds it."""
        raw = np.frombuffer(self._file.mapped(), dtype=self._stored) if self._held is None else self._held
        native = raw.astype(raw.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(native) if self.dtype == torch.float32 else _as_bf16(native)

    def _take_back(self, error: OSError) -> None:
        with self._changing:
            if self._held is not None:
                return
            held = np.empty(self._numel, dtype=self._stored.newbyteorder("="))
            for start in range(0, self._numel, PIECE_NUMEL):
                part = slice(start, min(start + PIECE_NUMEL, self._numel))
                held[part] = self.read(part)
            self._held = held
        self._refused(error)


def _as_bf16(bits: Raw) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
