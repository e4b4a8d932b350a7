"""A child's side: `python -m node.bench.network.child ROLE` does what it is told on stdin until that closes."""

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from node.system import gc_tuning
from node.system.errors import translate

Order = Mapping[str, Any]

READ_BYTES: Final = 1 << 16

ROLES: Final = {
    "publisher": ("node.bench.network.ends", "publisher"),
    "fetcher": ("node.bench.network.ends", "fetcher"),
    "averager": ("node.bench.network.averager", "averager"),
}


class Orders:
    """Orders of the parent, one at a time."""

    def __init__(self, received: "trio.MemoryReceiveChannel[Order]") -> None:
        self._received = received

    async def next(self) -> Order:
        """Wait for the next order."""
        return await self._received.receive()

    async def expect(self, do: str) -> Order:
        """Wait for the next order, which can only be this."""
        order = await self.next()
        assert order["do"] == do, order
        return order


Role = Callable[[Orders], Awaitable[None]]


def say(said: str, **fields: object) -> None:
    """Answer the parent."""
    sys.stdout.write(json.dumps({"said": said, **fields}) + "\n")
    sys.stdout.flush()


def now() -> float:
    """Return the seconds of the clock that all processes of this machine share."""
    return time.monotonic()


def main(role: str) -> None:
    """Run the role `role` until the parent closes stdin. Errors are reported to it."""
    gc_tuning.starting()
    sys.setswitchinterval(gc_tuning.SWITCH_INTERVAL_S)
    module, name = ROLES[role]
    run: Role = getattr(importlib.import_module(module), name)
    gc_tuning.running()
    try:
        trio.run(_obey, run)
    except Exception as error:  # all of them end in one line of the parent's
        say("failed", why=translate(error).line())
        raise


async def _obey(role: Role) -> None:
    given, received = trio.open_memory_channel[Order](math.inf)  # a few: the parent waits for answers
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_listen, given, nursery.cancel_scope)
        await role(Orders(received))


async def _listen(given: "trio.MemorySendChannel[Order]", scope: trio.CancelScope) -> None:
    pending = b""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        async for data in stdin:
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                given.send_nowait(json.loads(line))
    scope.cancel()


if __name__ == "__main__":
    main(sys.argv[1])
