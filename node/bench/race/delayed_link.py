"""A link between two network namespaces on which every frame takes some time: where the kernel has no netem.

A TAP device at either end, and a thread between them that hands frames on when they are due, in order.
"""

import ctypes
import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from node.system.errors import RunError

TUN: Final = Path("/dev/net/tun")
SPACES: Final = Path("/var/run/netns")
TUNSETIFF: Final = 0x400454CA
TAP_WITHOUT_HEADERS: Final = 0x0002 | 0x1000
"""IFF_TAP and IFF_NO_PI, of linux/if_tun.h."""
CLONE_NEWNET: Final = 0x40000000
MOST_FRAME_BYTES: Final = 65_536


class DelayedLink:
    """The link named `device` in the namespaces `one` and `other`; each frame takes `delay_s` seconds. Runs until
    `close`. RunError where there are no TAP devices."""

    def __init__(self, one: str, other: str, device: str, delay_s: float) -> None:
        self._delay_s = delay_s
        with ExitStack() as until_whole:
            self._ends = []
            for space in (one, other):
                self._ends.append(_in_space(space, lambda: _tap(device)))
                until_whole.callback(os.close, self._ends[-1])
            until_whole.pop_all()
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run, name="delayed link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove it. No-op the second time."""
        if self._ends:
            os.write(self._stopped, b".")
            self._thread.join()
            for each in (*self._ends, self._stop, self._stopped):
                os.close(each)
            self._ends = []

    def _run(self) -> None:
        under_way: deque[tuple[float, int, bytes]] = deque()
        one, other = self._ends
        with selectors.DefaultSelector() as selector:
            for end in (one, other, self._stop):
                selector.register(end, selectors.EVENT_READ)
            while True:
                wait = None if not under_way else max(0.0, under_way[0][0] - time.monotonic())
                ready = [key.fd for key, _ in selector.select(wait)]
                if self._stop in ready:
                    return
                now = time.monotonic()
                while under_way and under_way[0][0] <= now:
                    _, end, frame = under_way.popleft()
                    _write(end, frame)
                for end in ready:
                    under_way.append((now + self._delay_s, other if end == one else one, _read(end)))


def _read(end: int) -> bytes:
    return os.read(end, MOST_FRAME_BYTES)


def _write(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except OSError:  # the device is not up yet, or no more: a link loses what is sent then
        return


def _tap(device: str) -> int:
    with ExitStack() as until_made:
        try:
            end = os.open(TUN, os.O_RDWR)
            until_made.callback(os.close, end)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", device.encode("ascii"), TAP_WITHOUT_HEADERS))
        except OSError as error:
            raise RunError(f"no delayed link can be made here: {TUN}: {error.strerror}") from error
        until_made.pop_all()
    return end


def _in_space(space: str, make: Callable[[], int]) -> int:
    """Return what `make` returns in a network namespace: a thread goes there, and ends."""
    made: list[int] = []
    failed: list[BaseException] = []

    def there() -> None:
        try:
            with (SPACES / space).open("rb") as opened:
                if ctypes.CDLL(None, use_errno=True).setns(opened.fileno(), CLONE_NEWNET) != 0:
                    raise RunError(f"no way into the namespace {space}: {os.strerror(ctypes.get_errno())}")
            made.append(make())
        except BaseException as error:  # it is the caller's
            failed.append(error)

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
