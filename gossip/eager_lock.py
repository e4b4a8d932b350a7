"""A lock that is taken at once where it is free."""

import trio


class EagerLock:
    """A `trio.Lock` lets others run first even where nobody holds it; this one only where it has to wait. First come,
    first served, as there: a lock that is given back belongs to who waits longest. Use it with `async with`."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        """Return whether somebody holds it."""
        return self._lock.locked()

    @property
    def waiting(self) -> int:
        """How many tasks wait for it."""
        return self._lock.statistics().tasks_waiting
