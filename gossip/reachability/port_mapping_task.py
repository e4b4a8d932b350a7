"""Keeps our port forwarded by the router for as long as the node runs: found, mapped, renewed, removed.

The router is asked in a worker thread, so that the event loop waits for nothing, and each time with a deadline, after
which the thread is abandoned. There is one such thread: a device that answers as a router may block it for minutes, so
it takes no place from the node's hashing threads, and miniupnpc's object must not be used by two threads at once. The
router's answer is no proof that others can dial us: peers are asked that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from gossip.reachability.upnp import Router, RouterError

LEASE_S: Final = 1200
"""Seconds for which the port of a killed node stays open. Half an hour is common; some routers refuse a shorter
lease."""

RENEW_S: Final = LEASE_S / 2
"""Half of the lease, so that one renewal may fail; and for a router's restart."""

FIND_S: Final = 8.0
"""Seconds. Twice two seconds of listening for answers (IPv4's two searches), and the fetching of two documents."""

MAP_S: Final = 5.0
"""Seconds for a request over a LAN; home routers take up to a second."""

UNMAP_S: Final = 2.0
"""Seconds at the end, of the five that a stop may take."""

T = TypeVar("T")


class PortMapper:
    """`mapped` is called with the addresses that lead here now: `/ip4/OUTSIDE/tcp/PORT`, none when the router fails
    us."""

    def __init__(
        self,
        router: Router,
        ports: Sequence[int],
        *,
        mapped: Callable[[tuple[str, ...]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._router = router
        self._ports = ports
        self._mapped = mapped
        self._tell = tell
        self._outer: dict[int, int] = {}
        self._thread = trio.CapacityLimiter(1)
        self._told = ""

    async def run(self) -> None:
        """Run until cancelled, then remove the mappings."""
        try:
            while True:
                await self._renew()
                await trio.sleep(RENEW_S)
        finally:
            with trio.move_on_after(UNMAP_S, shield=True):
                await self._in_thread(self._unmap)

    async def _renew(self) -> None:
        try:
            outside = await self._within(FIND_S, self._router.find)
            for port in self._ports:
                await self._within(MAP_S, partial(self._map, port))
        except RouterError as error:
            self._mapped(())
            self._say(f"the router forwards no port by itself: {error}")
            return
        addresses = tuple(f"/ip4/{outside}/tcp/{self._outer[port]}" for port in self._ports)
        self._mapped(addresses)
        self._say(f"the router forwards {', '.join(addresses)} to this machine")

    def _map(self, port: int) -> None:
        """Map a port in the thread. It is noted there, so that a mapping made after the deadline or the stop is removed
        too."""
        self._outer[port] = self._router.map(port, LEASE_S)

    def _unmap(self) -> None:
        for port in self._outer.values():
            self._router.unmap(port)

    async def _within(self, seconds: float, call: Callable[[], T]) -> T:
        """Return the call's result. Raises RouterError, also when it takes too long, or the call before it still
        does."""
        with trio.move_on_after(seconds):
            return await self._in_thread(call)
        raise RouterError("the router takes too long")

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._thread)

    def _say(self, words: str) -> None:
        if words != self._told:
            self._told = words
            self._tell(words)
