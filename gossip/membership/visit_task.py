"""Asks members for what a short invite leaves out (membership/visit.py), at one address after the other, repeatedly.

A bootstrap node may be about to start, so all addresses are tried in turn until the time is over. It ends earlier with
the whole invite, a revocation that the invite's own admin has signed, a refusal by all nodes, or `CLAIMED_S` after a
refusal by some: one node may lie, or know less than the next.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.membership_limits import MAX_PIECES
from gossip.membership import InviteBundle
from gossip.membership.visit import TurnedAwayError, Visitor
from gossip.transport.base import Transport, TransportError
from gossip.transport.client_handlers import ClientHandlers

KNOCK_S: Final = 10.0
"""Seconds for a connection and its handshake: a lost SYN is repeated after 1, 3 and 7 s, and a busy member answers
within one second. Chosen."""

EACH_S: Final = 20.0
"""Seconds for all pieces of one node, so that a node that sends slowly leaves time for the others. A usual swarm needs
one visit, the largest 66. Chosen."""

PAUSE_S: Final = 1.0
"""Seconds before all addresses are tried again. Chosen: a node takes some seconds to start."""

CLAIMED_S: Final = 10.0
"""Seconds for which others are asked after a first claim that the invite is invalid. Chosen: nodes that answer at all
have had several turns by then."""

_MOST_ADDRESSES: Final = 8
"""Addresses that are tried: those of a line and as many given by hand."""


class FetchError(GossipError):
    """Nobody gave what the invite leaves out. `tried`: the result by address. `final`: an admin's signed statement that
    the invite is void, "" without one. `turned_away`: some node gave a reason."""

    def __init__(self, tried: dict[str, str], *, final: str = "", turned_away: bool = False) -> None:
        super().__init__("; ".join(f"{address}: {why}" for address, why in tried.items()) or "no address to ask at")
        self.tried = tried
        self.final = final
        self.turned_away = turned_away


async def fetch(
    visitor: Visitor, transport: Transport, addresses: Sequence[str], *, within_s: float, once: bool = False
) -> InviteBundle:
    """Return the whole invite, whose parts are checked; `transport` is the visitor's own, and is run meanwhile. `once`:
    each address has one turn. Raises FetchError after `within_s` seconds at the latest, LocalError where the transport
    cannot run."""
    asking = _Asking(visitor, transport, tuple(dict.fromkeys(addresses))[:_MOST_ADDRESSES])
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, ClientHandlers(keeps_peers=False))
        with trio.move_on_after(within_s):
            await asking.all(trio.current_time, once=once)
        nursery.cancel_scope.cancel()
    if asking.found is None:
        raise FetchError(asking.tried, final=asking.final, turned_away=asking.turned_away_at is not None)
    return asking.found


class _Asking:
    def __init__(self, visitor: Visitor, transport: Transport, addresses: tuple[str, ...]) -> None:
        self.found: InviteBundle | None = None
        self.final = ""
        self.turned_away_at: float | None = None
        self.tried = dict.fromkeys(addresses, "it was not its turn")
        self._visitor = visitor
        self._transport = transport

    async def all(self, now: Callable[[], float], *, once: bool) -> None:
        """Try each address in turn, until there is nothing left to wait for."""
        while True:
            away = 0
            for address in self.tried:
                away += await self._one(address, now)
                if self.found is not None or self.final:
                    return
            if once or away == len(self.tried) or self._is_over(now()):
                return
            await trio.sleep(PAUSE_S)

    def _is_over(self, now: float) -> bool:
        return self.turned_away_at is not None and now >= self.turned_away_at + CLAIMED_S

    async def _one(self, address: str, now: Callable[[], float]) -> bool:
        """Return whether a node has said that the invite is void."""
        self.tried[address] = "no answer"
        try:
            with trio.fail_after(EACH_S):
                self.found = await _ask(self._visitor, self._transport, address)
        except TurnedAwayError as refused:
            self.tried[address] = refused.detail
            self.final = refused.detail if refused.signed else ""
            if self.turned_away_at is None:
                self.turned_away_at = now()
            return True
        except RemoteError as error:
            self.tried[address] = error.detail or str(error)
        except trio.TooSlowError:
            self.tried[address] = "no answer, or one that trickles"
        except GossipError as error:
            self.tried[address] = str(error).rpartition(": ")[2]
        return False


async def _ask(visitor: Visitor, transport: Transport, address: str) -> InviteBundle:
    """Fetch from one node. Raises RemoteError, TransportError or LocalError."""
    visitor.begin()
    for _ in range(MAX_PIECES):
        await _knock(transport, address, visitor)
        found = visitor.take()
        if found is not None:
            return found
    raise RemoteError(Reason.OVERSIZE, "more manifests than a line may stand for")


async def _knock(transport: Transport, address: str, visitor: Visitor) -> None:
    """Make one visit; the connection ends with it, and the visitor keeps the answer. Raises the transport's error where
    there was no answer."""
    try:
        with trio.fail_after(KNOCK_S):
            await transport.dial(address)
    except TransportError:
        if not visitor.answered:
            raise
