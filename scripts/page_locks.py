"""Time to lock the pages of a message in shared memory, against a copy of it through a buffer that stays locked.

    python scripts/page_locks.py [--mib 256]

With the lock of the operating system (mlock), the least that registering memory with a GPU's driver can take: the
driver also makes the pages known to the device. A new piece of memory each time, as a message has; both in turns.
"""

import argparse
import ctypes
import mmap
import os
import statistics
import time

import torch

from node.system.script_end import ended_in_a_line

STAGED_BYTES = 8 << 20
"""As in p2ptrain/training/device_copies.py."""


def main() -> None:
    """Print both medians in milliseconds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    turns = [turn(arguments.mib << 20) for _ in range(arguments.turns)]
    locks, copies = (statistics.median(each) for each in zip(*turns, strict=True))
    print(f"locked and unlocked {1000 * locks:.0f} ms, copied {1000 * copies:.0f} ms, ratio {locks / copies:.1f}")


def turn(size: int) -> tuple[float, float]:
    """Return the seconds to lock and unlock a new memory of so many bytes, and those to copy it by parts."""
    system = ctypes.CDLL(None, use_errno=True)
    descriptor = os.memfd_create("page_locks")
    os.ftruncate(descriptor, size)
    memory_b = torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
    os.close(descriptor)
    memory_b.fill_(1)  # its sender has written it
    place = ctypes.c_void_p(memory_b.data_ptr()), ctypes.c_size_t(size)
    began = time.perf_counter()
    if system.mlock(*place) or system.munlock(*place):
        raise SystemExit(f"not allowed to lock so much: {os.strerror(ctypes.get_errno())}; raise ulimit -l")
    locked = time.perf_counter()
    staged_b = torch.ones(STAGED_BYTES, dtype=torch.uint8)
    copying = time.perf_counter()
    for part_b in memory_b.split(STAGED_BYTES):
        staged_b[: len(part_b)].copy_(part_b)
    return locked - began, time.perf_counter() - copying


if __name__ == "__main__":
    with ended_in_a_line():
        main()
