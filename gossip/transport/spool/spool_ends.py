"""The two ends of a spool folder: a node that opens sessions with the relay, and the relay that serves the folder.

A relay makes sure that it is the only one, by its file alone: it watches one that is there for a sign of life, writes
its own, and stops when it finds another's in its place. Of two that start at once, one stays at most.
"""

import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.spool.segments import DOWN, UP, SpoolAnswer, SpoolTurn
from gossip.transport.spool.spool_folder import (
    BEAT_S,
    DEAD_AFTER_S,
    SpoolFolder,
    SpoolRelay,
    discard,
    perform,
    session_peer,
)
from gossip.transport.spool.spool_stream import SpoolStream
from gossip.transport.wire_bytes import WireBytes

SPOOL: Final = "/spool"
"""What the address of a relay in one's spool folder begins with; `/p2p/` and its id follow."""

MAX_SESSIONS: Final = 64
"""Sessions that a relay serves: one a node. Together they have 256 MiB in the folder at most."""

LOOK_S: Final = 0.5
"""Seconds between two looks for new sessions: a node comes once."""

MAX_THREADS: Final = 8
"""Threads that wait for the disk: one that hangs keeps few others waiting, and 64 sessions take turns in them."""

Result = TypeVar("Result")


class Offload(Protocol):
    """Runs a blocking call where it blocks nobody."""

    async def __call__(self, call: Callable[[], Result]) -> Result:
        """Run `call`, and return its result."""


def spool_address(relay: PeerId) -> str:
    """Return the address of a relay that serves one's spool folder."""
    return f"{SPOOL}/p2p/{relay}"


class ThreadOffload:
    """Worker threads. A call that is cancelled is left behind."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MAX_THREADS)

    async def __call__(self, call: Callable[[], Result]) -> Result:
        """Run `call` in a thread."""
        return await trio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)


class SpoolEnds:
    """A process's use of a spool folder. `spawn` starts a task that outlives the caller; `wire` counts all bytes."""

    def __init__(
        self,
        path: Path,
        me: PeerId,
        *,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        wire: WireBytes,
        offload: Offload,
    ) -> None:
        self._folder = SpoolFolder(path)
        self._me = me
        self._spawn = spawn
        self._wire = wire
        self._offload = offload
        self._mine = SpoolRelay(peer=me, host=socket.gethostname(), pid=os.getpid(), nonce=secrets.token_hex(8), beat=0)
        self._served: dict[str, SpoolStream] = {}
        self._seen: tuple[SpoolRelay | None, float] = (None, 0.0)
        """The relay's newest sign of life that a dial has seen, and when it was first seen."""

    # -- a node

    async def prepare(self) -> None:
        """Remove what an earlier process of this node has left. Raises LocalError for a folder that cannot be used."""
        await self._offload(partial(self._folder.prepare, make=False))
        await self._offload(partial(self._folder.clean, self._me))

    async def dial(self, relay: PeerId) -> SpoolStream:
        """Open a session with the relay. Raises TransportError."""
        found = await self._offload(self._folder.relay)
        if found is None:
            raise TransportError(f"no relay serves the spool folder {self._folder.path}")
        if found.peer != relay:
            raise TransportError(f"another relay serves the spool folder {self._folder.path} than when this node began")
        now, (seen, at) = trio.current_time(), self._seen
        if found != seen:
            self._seen = found, now
        elif now >= at + DEAD_AFTER_S:
            raise TransportError(f"the relay of the spool folder {self._folder.path} gives no sign of life")
        session = await self._offload(partial(self._folder.open, self._me))
        return self._stream(session, relay, UP)

    # -- the relay

    async def claim(self) -> None:
        """Become the folder's relay, and remove what dead processes have left. Raises LocalError when another serves
        it."""
        await self._offload(partial(self._folder.prepare, make=True))
        found = await self._offload(self._folder.relay)
        if found is not None and not found.gone:
            await self._watch(found)
        try:
            await self._offload(partial(self._folder.announce, self._mine))
            await self._offload(self._folder.clean)
        except TransportError as error:
            raise LocalError(str(error)) from error

    async def serve(self, accept: Callable[[SpoolStream], Awaitable[None]]) -> None:
        """Give every new session to `accept`, until cancelled. Raises LocalError when another relay has taken the
        folder, or somebody has removed it."""
        beat, beats_at = 0, trio.current_time()
        try:
            while True:
                if trio.current_time() >= beats_at:
                    beat, beats_at = beat + 1, trio.current_time() + BEAT_S
                    await self._beat(beat)
                await self._accept_new(accept)
                await trio.sleep(LOOK_S)
        finally:
            with trio.move_on_after(1, shield=True):
                await self._offload(self._withdraw)

    async def _watch(self, found: SpoolRelay) -> None:
        ends_at = trio.current_time() + DEAD_AFTER_S
        while trio.current_time() < ends_at:
            await trio.sleep(BEAT_S / 2)
            now = await self._offload(self._folder.relay)
            if now is None:
                return
            if now != found:
                raise LocalError(self._taken_by(now))

    async def _beat(self, beat: int) -> None:
        held = await self._offload(self._folder.relay)
        if held is not None and held.nonce != self._mine.nonce:
            raise LocalError(self._taken_by(held))
        mine = self._mine
        now = SpoolRelay(peer=mine.peer, host=mine.host, pid=mine.pid, nonce=mine.nonce, beat=beat)
        try:
            await self._offload(partial(self._folder.announce, now))
        except TransportError as error:
            if not await self._offload(lambda: self._folder.gone):
                return  # a full disk: the next one may come through
            raise LocalError(f"the spool folder {self._folder.path} is gone: start the relay again") from error

    def _taken_by(self, other: SpoolRelay) -> str:
        whose = f"process {other.pid} of {other.host}"
        return f"another relay serves the spool folder {self._folder.path}: {whose}; give this one a folder of its own"

    def _withdraw(self) -> None:
        held = self._folder.relay()
        if held is not None and held.nonce == self._mine.nonce:
            self._folder.withdraw()
            with suppress(TransportError):
                self._folder.clean()

    async def _accept_new(self, accept: Callable[[SpoolStream], Awaitable[None]]) -> None:
        try:
            names = await self._offload(self._folder.sessions)
        except TransportError:
            return  # a disk that does not answer now
        self._served = {name: it for name, it in self._served.items() if name in names or not it.ended}
        for name, stream in self._served.items():
            if stream.ended:  # a file was written, or read, while its folder was removed
                await self._offload(partial(discard, self._folder.path / name))
        for name in sorted(set(names) - self._served.keys())[: MAX_SESSIONS - len(self._served)]:
            peer = session_peer(name)
            assert peer is not None
            stream = self._served[name] = self._stream(self._folder.path / name, peer, DOWN)
            self._spawn(partial(accept, stream))

    def _stream(self, session: Path, remote: PeerId, outgoing: str) -> SpoolStream:
        async def turn(it: SpoolTurn) -> SpoolAnswer:
            return await self._offload(partial(perform, session, it))

        async def over() -> None:
            with trio.move_on_after(1):
                await self._offload(partial(discard, session))

        stream = SpoolStream(remote, outgoing, turn, over, self._wire)
        self._spawn(stream.pump)
        return stream
