"""What the service's tasks share: the engine, the transport, and a way to perform the engine's actions."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from gossip.blobs.hashing_task import Hasher
from gossip.core.api import Tracked
from gossip.core.config import GossipConfig
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.engine import Engine
from gossip.reachability.reachability import ReachabilityTracker
from gossip.transport.base import Transport


class Notifier:
    """Wakes all tasks that wait for a change; a waiter checks itself what has changed."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        """Of those who wait; None while nobody does, as at nearly every beat."""

    def beat(self) -> None:
        """Wake all waiters."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait until the next beat."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


@dataclass(frozen=True, kw_only=True)
class Relayed:
    """Our address through a neighbour, and the times (seconds) at which it is requested again, and ends."""

    address: str
    renew_at: float
    until: float


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """Shared by all tasks of one service. `perform` performs the actions that the engine left: call it after each
    event. A task that works with a part of the engine is given that part beside the context."""

    engine: Engine
    transport: Transport
    config: GossipConfig
    hasher: Hasher
    perform: Callable[[], None]
    changed: Notifier
    quiet: Callable[[], bool]
    """Whether quiet hours hold now: nothing large is begun."""
    tracked: Tracked | None = None
    """What the runtime holds of the neighbours; None where it gives none."""
    reach: ReachabilityTracker = field(default_factory=ReachabilityTracker)
    relayed: dict[PeerId, Relayed] = field(default_factory=dict)
    """Our addresses through neighbours that relay for us. A lost one is to be dropped at once."""

    mapped: list[str] = field(default_factory=list)
    """Addresses (without `/p2p/`) that a router says it forwards here."""

    def addresses(self) -> tuple[str, ...]:
        """Return where others can dial us: through relays, where peers reached us, and by the transport's own
        addresses, of which a machine may have more than a record holds."""
        found = self.reach.confirmed(trio.current_time(), self.mapped, self.liars)
        seen = (f"{address}/p2p/{self.engine.me}" for address in found)
        return tuple(dict.fromkeys((*(it.address for it in self.relayed.values()), *seen, *self.transport.addresses)))

    @property
    def liars(self) -> int:
        """How many liars may be among the neighbours."""
        return self.tracked.liars if self.tracked else 1

    def greeted(self, peer: PeerId) -> None:
        """Note that hellos were exchanged with `peer`, which is of our run. (A twin with our key does not count.)"""
        if peer != self.engine.me:
            self.reach.greeted(dialled_us=self.transport.dialled_us(peer), now=trio.current_time())

    def offence(self, peer: PeerId, error: RemoteError) -> None:
        """Charge `peer`, and perform what follows from it."""
        self.engine.offence(peer, error, trio.current_time())
        self.perform()

    def warn(self, message: str) -> None:
        """Tell the operator of something that is no peer's offence."""
        self.engine.warn(message)
        self.perform()
