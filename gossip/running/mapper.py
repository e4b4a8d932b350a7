"""Keeps our port forwarded by the router for as long as the node lives: found, mapped, renewed, taken back.

The router is asked in a worker thread, so that the event loop waits for nothing, and each time with a deadline, after
which the thread is left to itself. What the router says is no proof that others can dial us: peers are asked that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from gossip.transport.upnp import Router, RouterError

LEASE_S: Final = 1200
"""A node that is killed leaves its port open so long. Half an hour is common; shorter, and some routers refuse."""

RENEW_S: Final = LEASE_S / 2
"""Once again before the lease is over, should one renewal fail; and after a router's restart."""

FIND_S: Final = 8.0
"""Two seconds of listening for answers, twice (IPv4's two searches), and the fetching of two documents."""

MAP_S: Final = 5.0
"""For a request over a LAN; home routers take up to a second."""

UNMAP_S: Final = 2.0
"""At the end, of the five seconds that a stop may take."""

T = TypeVar("T")


class Mapper:
    """`mapped` is told the addresses that lead here now: `/ip4/OUTSIDE/tcp/PORT`, none when the router fails us."""

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
        self._outer: tuple[int, ...] = ()
        self._told = ""

    async def run(self) -> None:
        """Until cancelled; then the mappings are removed."""
        try:
            while True:
                await self._renew()
                await trio.sleep(RENEW_S)
        finally:
            with trio.move_on_after(UNMAP_S, shield=True):
                for port in self._outer:
                    await trio.to_thread.run_sync(self._router.unmap, port, abandon_on_cancel=True)

    async def _renew(self) -> None:
        try:
            outside = await _within(FIND_S, self._router.find)
            outer = [await _within(MAP_S, partial(self._router.map, port, LEASE_S)) for port in self._ports]
        except RouterError as error:
            self._mapped(())
            self._say(f"the router forwards no port by itself: {error}")
            return
        self._outer = tuple(outer)
        kind = "ip6" if ":" in outside else "ip4"
        addresses = tuple(f"/{kind}/{outside}/tcp/{port}" for port in outer)
        self._mapped(addresses)
        self._say(f"the router forwards {', '.join(addresses)} to this machine")

    def _say(self, words: str) -> None:
        if words != self._told:
            self._told = words
            self._tell(words)


async def _within(seconds: float, call: Callable[[], T]) -> T:
    """What the call comes to, in a thread. Raises RouterError, also when it takes too long."""
    with trio.move_on_after(seconds):
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)
    raise RouterError("the router takes too long")
