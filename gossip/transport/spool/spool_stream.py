"""A session of a spool folder as a stream: one task that takes turns, at a pace that follows what comes.

The folder is looked at again after `QUICK_S` while bytes move, and more and more rarely, down to `IDLE_S`, when none
do. A disk that is full is no end: what could not be written waits, for `FULL_S` at most.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.spool.segments import BUFFER_BYTES, SegmentPipe, SessionOverError, SpoolAnswer, SpoolTurn
from gossip.transport.wire_bytes import WireBytes

QUICK_S: Final = 0.002
"""Seconds between two looks while bytes move: a look takes 0.1 ms on a local disk, some milliseconds on others."""

IDLE_S: Final = 0.2
"""The same while nothing does: ten looks a second for both ends of a connection, and as long until a first byte is
seen."""

SLOWER: Final = 1.3
"""By how much the pause grows with each look that found nothing: from the one to the other in a second."""

FULL_S: Final = 10.0
"""Seconds for which a full disk is waited for: then the connection ends, and is made anew when there is room. Half of
the silence after which the far end gives it up: so the reason is known."""

GAP_S: Final = 5.0
"""Seconds for which a segment may be missing while a later one is there: an end that waits for one which somebody
removed would look alive."""

FULL: Final = "the disk of the spool folder is full"

Perform = Callable[[SpoolTurn], Awaitable[SpoolAnswer]]
"""Performs a turn in the folder. Raises TransportError."""

Result = TypeVar("Result")


class SpoolStream:
    """A `gossip.transport.base.Stream` over a session. `remote`: who should be at the far end: nobody's key is proved.
    `over` removes the session. Someone has to run `pump`."""

    def __init__(
        self, remote: PeerId, outgoing: str, perform: Perform, over: Callable[[], Awaitable[None]], wire: WireBytes
    ) -> None:
        self._remote = remote
        self._perform = perform
        self._remove = over
        self._wire = wire
        self._pipe = SegmentPipe(outgoing)
        self._why = self._trouble = ""
        self._changed = trio.Event()
        self._woken = trio.Event()
        self._full_since: float | None = None
        self._gap_since: float | None = None

    @property
    def remote(self) -> PeerId:
        """Return who should be at the other end."""
        return self._remote

    @property
    def trouble(self) -> str:
        """Return what is wrong with the folder; empty where nothing is."""
        return FULL if self._full_since is not None else self._trouble

    @property
    def ended(self) -> bool:
        """Return whether the session is over, and its folder to be removed."""
        return bool(self._why)

    @property
    def pending(self) -> int:
        """Return 0: bytes are handed over as they come."""
        return 0

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises TransportError."""
        await trio.lowlevel.checkpoint()
        view = memoryview(data).cast("B")
        while len(view):
            await self._wait_while(lambda: self._pipe.crowded)
            self._check()
            self._pipe.add(view[:BUFFER_BYTES])
            view = view[BUFFER_BYTES:]
            self._woken.set()

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` bytes; b"" at the end. Raises TransportError."""
        await trio.lowlevel.checkpoint()
        pipe = self._pipe
        await self._wait_while(lambda: not pipe.received and not pipe.over)
        if not pipe.received and not pipe.over:
            self._check()
        was_full = len(pipe.received) >= BUFFER_BYTES
        data = bytes(pipe.received[:max_bytes])
        del pipe.received[:max_bytes]
        if was_full:
            self._woken.set()
        return data

    async def close(self) -> None:
        """Say that no more is sent; `pump` writes what is left, and ends."""
        self._pipe.end()
        self._woken.set()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def reset(self) -> None:
        """Abandon the session at once; `pump` removes it."""
        self._end("the session was abandoned")

    async def pump(self) -> None:
        """Take turns until the session is over, and remove it."""
        try:
            await self._take_turns()
        except SessionOverError as error:
            self._end(str(error))
        except TransportError as error:
            self._trouble = str(error)
            self._end(self._trouble)
        finally:
            self._end("the session is over")
            with trio.CancelScope(shield=True):
                await self._remove()

    async def _take_turns(self) -> None:
        pause_s = QUICK_S
        while not self._why:
            moved = await self._turn()
            pause_s = QUICK_S if moved else min(IDLE_S, pause_s * SLOWER)
            with trio.move_on_after(pause_s):
                await self._woken.wait()
            if self._woken.is_set():
                self._woken, pause_s = trio.Event(), QUICK_S

    async def _turn(self) -> bool:
        turn = self._pipe.plan()
        answer = await self._perform(turn)
        self._note_full(full=answer.written < len(turn.writes))
        moved = self._pipe.took(turn, answer)
        self._note_gap()
        self._wire.sent += sum(len(data) for _, data in turn.writes[: answer.written])
        self._wire.received += sum(map(len, answer.pieces))
        if moved:
            self._beat()
        return moved

    def _note_full(self, *, full: bool) -> None:
        """Raise TransportError when the disk has been full for too long."""
        now = trio.current_time()
        self._full_since = (self._full_since or now) if full else None
        if self._full_since is not None and now > self._full_since + FULL_S:
            raise TransportError(FULL)

    def _note_gap(self) -> None:
        """Raise TransportError when a segment has been missing for too long."""
        now = trio.current_time()
        self._gap_since = (self._gap_since or now) if self._pipe.gap else None
        if self._gap_since is not None and now > self._gap_since + GAP_S:
            raise TransportError("a segment of the spool folder is missing: somebody removed it")

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition() and not self._why:
            await self._changed.wait()

    def _check(self) -> None:
        if self._why:
            raise TransportError(self._why)

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._woken.set()
        self._beat()

    def _beat(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
