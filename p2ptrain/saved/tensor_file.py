"""Write tensors as a safetensors file piece by piece, and keep tensors in a file that has no name.

`safetensors.torch.save_file` makes bytes of all tensors first: a checkpoint would hold everything twice. The format is
a length (8 bytes), a JSON header with type, shape and place of each tensor, and their bytes
(https://github.com/huggingface/safetensors#format); here they go to the file as they are, a piece at a time.
"""

import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import torch
from safetensors import safe_open

from p2ptrain.protocols import implements
from p2ptrain.saved.nameless_file import NamelessFile

DTYPE_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

PIECE_BYTES: Final = 1 << 22
"""Bytes that are read, copied or written at a time. Chosen: enough that a call costs nothing beside them."""

ALIGNMENT: Final = 8
"""Bytes to a multiple of which the header is filled up, so that tensors lie where processors read them whole."""


@runtime_checkable
class InPieces(Protocol):
    """A tensor whose values lie elsewhere."""

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes, little-endian, in the order of its indices."""


@dataclass(frozen=True, kw_only=True)
class FiledTensor:
    """A tensor whose values lie in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    file: NamelessFile
    start: int

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes. Raises OSError."""
        at, stop = self.start, self.start + self.nbytes
        while at < stop:
            yield self.file[at : min(at + PIECE_BYTES, stop)]
            at += PIECE_BYTES


class OpenedFile:
    """A file that was opened once, and is read at any time as it was then: also when its name is another's, or gone."""

    def __init__(self, name: str, *, folder: int | None = None) -> None:
        """Open a file, of the folder with this descriptor where there is one. Raises OSError."""
        # O_NONBLOCK: a pipe in its place would else be waited for.
        self._descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[type["OpenedFile"], tuple[str]]:
        """Have another process of this machine open the same file, whatever its name is by then (Linux), while this
        object is held."""
        return OpenedFile, (f"/proc/{os.getpid()}/fd/{self._descriptor}",)

    @property
    def path(self) -> Path:
        """Return a path that leads to this file in this process, while this object is held."""
        return Path(f"/dev/fd/{self._descriptor}")


class TensorsInFile(Mapping[str, torch.Tensor]):
    """Tensors of a safetensors file, under their names there or others. One takes memory only while somebody holds it:
    it is mapped anew each time that it is asked for, and not kept. What safetensors raises where it is no such file."""

    def __init__(self, file: OpenedFile, names: Mapping[str, str] | None = None) -> None:
        """`names`: those in the file, by those under which the tensors are found here; by default all, as they are."""
        self._file = file
        if names is None:
            with safe_open(self._file.path, framework="pt") as opened:
                names = {name: name for name in opened.keys()}  # noqa: SIM118
        self._names = dict(names)

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._file.path, framework="pt") as opened:
            return opened.get_tensor(self._names[name])  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def renamed(self, names: Mapping[str, str]) -> "TensorsInFile":
        """Return some of them: `names` has those here, by the new ones."""
        return TensorsInFile(self._file, {new: self._names[old] for new, old in names.items()})


Storable = torch.Tensor | FiledTensor


def save_file(tensors: Mapping[str, Storable], path: Path) -> None:
    """Write a new safetensors file. Raises OSError, and ValueError for a type that the format does not have."""
    head = header_of(tensors)
    with path.open("xb") as file:
        file.write(head)
        for name in _ordered(tensors):
            for piece in pieces_of(tensors[name]):
                file.write(piece)


def header_of(tensors: Mapping[str, Storable]) -> bytes:
    """Return the length and the header of a safetensors file that has these tensors in `_ordered`'s order."""
    at, entries = 0, {}
    for name in _ordered(tensors):
        value = tensors[name]
        if value.dtype not in DTYPE_NAMES:
            raise ValueError(f"{name} is {value.dtype}, which no safetensors file holds")
        entries[name] = {
            "dtype": DTYPE_NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def pieces_of(tensor: Storable) -> Iterator[bytes | memoryview]:
    """Yield a tensor's bytes, little-endian, in the order of its indices. What lies on another device, or apart, is
    copied a piece at a time."""
    if implements(tensor, InPieces):
        yield from tensor.pieces()
        return
    assert isinstance(tensor, torch.Tensor), "it is in memory"
    flat = tensor.detach().reshape(-1)
    step = max(1, PIECE_BYTES // tensor.element_size())
    for start in range(0, flat.numel(), step):
        yield _bytes_of(flat[start : start + step])


def keep_in_file(tensors: Mapping[str, torch.Tensor], folder: Path) -> dict[str, FiledTensor]:
    """Write tensors, as they are now, to a nameless file in `folder`. Raises OSError."""
    file = NamelessFile(folder)
    return {name: append(tensor, file) for name, tensor in tensors.items()}


def append(tensor: torch.Tensor, file: NamelessFile) -> FiledTensor:
    """Write a tensor, as it is now, behind what is in a file. Raises OSError."""
    kept = FiledTensor(dtype=tensor.dtype, shape=tuple(tensor.shape), file=file, start=len(file))
    for piece in pieces_of(tensor):
        file.append(piece)
    return kept


def _bytes_of(flat: torch.Tensor) -> memoryview:
    array = flat.cpu().contiguous().view(torch.uint8).numpy()
    return array.data


def _ordered(tensors: Mapping[str, Storable]) -> list[str]:
    """The widest types first, so that each tensor begins at a multiple of its own."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
