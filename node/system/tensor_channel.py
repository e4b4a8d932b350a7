"""Messages between two processes of one machine, with tensors in shared memory.

A message is any object that pickles. Its tensors, and what is too long for a datagram, go in a nameless piece of memory
(memfd) that is handed over with the message: written once by the sender, read in place by the receiver, and freed with
the last tensor that looks into it. Nobody else can open it. Both ends are ours: a process and a child that it started.

Its pages are not locked for a GPU. Locking those of one message takes longer than to copy it through the buffers that
stay locked, as p2ptrain/training/device_copies.py does (scripts/page_locks.py).

A datagram arrives whole or not at all (SOCK_SEQPACKET): Ctrl-C in the midst of sending leaves the channel whole.
"""

import errno
import io
import mmap
import os
import pickle
import socket
import sys
from contextlib import suppress
from typing import Any, Final

import torch

MAX_INLINE_BYTES: Final = 1 << 14
"""Of a message without shared memory: far below what a socket's buffer takes at once."""

_INLINE, _SHARED = b"i", b"s"
_ALIGNED: Final = 64
"""Bytes: a cache line."""


class ChannelClosedError(Exception):
    """The other process has ended, or closed its end."""


class TensorChannel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send `message`. Tensors in it are on the CPU. Raises ChannelClosedError; OSError where memory is out."""
        body, tensors = _pickled(message)
        try:
            if not tensors and len(body) <= MAX_INLINE_BYTES:
                self._socket.send(_INLINE + body)
                return
            shared = _memory_with(body, tensors)
            try:
                socket.send_fds(self._socket, [_SHARED + len(body).to_bytes(8, "little")], [shared])
            finally:
                os.close(shared)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):  # the last: this end was closed
                raise ChannelClosedError from error
            raise

    def receive(self) -> Any:
        """Wait for the next message and return it. Its tensors may be written to: nobody else sees them. Raises
        ChannelClosedError."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, 1 + MAX_INLINE_BYTES, 1)
        except ConnectionResetError as error:
            raise ChannelClosedError from error
        if not packet:
            raise ChannelClosedError
        if packet[:1] == _INLINE:
            return pickle.loads(packet[1:])
        try:
            memory = mmap.mmap(descriptors[0], 0)
        finally:
            os.close(descriptors[0])
        length = int.from_bytes(packet[1:9], "little")
        return _Reader(memory, length).load()

    def close(self) -> None:
        """Close both directions: who waits at either end finds out."""
        with suppress(OSError):  # the other end has gone first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def supported() -> bool:
    """Return whether this system has what a channel needs."""
    return sys.platform == "linux"


def channel_pair() -> tuple[TensorChannel, socket.socket]:
    """Return a channel, and the socket that the other process makes its end of."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return TensorChannel(ours), theirs


def channel_on(descriptor: int) -> TensorChannel:
    """Return the end on a socket that this process was given."""
    return TensorChannel(socket.socket(fileno=descriptor))


def _pickled(message: object) -> tuple[bytes, list[torch.Tensor]]:
    """Return the message without its tensors, and those. In place of each: where it will be, its type and its shape."""
    out, tensors, size = io.BytesIO(), list[torch.Tensor](), 0

    class Writer(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            nonlocal size
            if not isinstance(found, torch.Tensor):
                return None
            offset, size = size, _aligned(size + found.numel() * found.element_size())
            tensors.append(found.detach())
            return offset, found.dtype, tuple(found.shape)

    Writer(out).dump(message)
    return out.getvalue(), tensors


class _Reader(pickle.Unpickler):
    def __init__(self, memory: mmap.mmap, length: int) -> None:
        super().__init__(io.BytesIO(memory[:length]))
        self._memory, self._begins = memory, _aligned(length)

    def persistent_load(self, found: Any) -> torch.Tensor:
        offset, dtype, shape = found
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._begins + offset)
        return flat.view(shape)


def _memory_with(body: bytes, tensors: list[torch.Tensor]) -> int:
    """Return the descriptor of a memory with the body and, after it, the tensors."""
    descriptor = os.memfd_create("p2ptrain")
    try:
        begins = _aligned(len(body))
        os.ftruncate(descriptor, begins + sum(_aligned(it.numel() * it.element_size()) for it in tensors))
        memory = mmap.mmap(descriptor, 0)
        memory[: len(body)] = body
        for tensor in tensors:
            if tensor.numel():
                place = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=begins)
                place.view(tensor.shape).copy_(tensor)
            begins += _aligned(tensor.numel() * tensor.element_size())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
