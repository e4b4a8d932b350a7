"""Finds out whether others can dial this node, reports it, and makes it possible.

A few members are asked to dial us back (reachability/dialback.py). An address where enough of them reached us is ours,
even when nobody configured it (a forwarded port). Where none reached us, neighbours are asked to relay (transport).
What they grant is an address of ours for as long as they are connected, and is renewed before it ends. All of these are
in our signed record.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import trio

from gossip.context import Relayed, ServiceContext
from gossip.core.digests import digest_of
from gossip.core.errors import GossipError
from gossip.core.ids import PeerId
from gossip.reachability.dialback import OF_PEER_PER_S, Sighting, ports_in
from gossip.reachability.dialback_task import ask_to_dial_back
from gossip.reachability.reachability import ASK_PEERS
from gossip.reachability.relay import RENEW_AGAIN_S, RENEW_SHARE

LOOK_REACH_S: Final = 5.0
"""Seconds between two looks for somebody new to ask: at a start nobody needs it sooner."""

ASK_AGAIN_S: Final = 600.0
"""Seconds until a peer that did not answer or does not relay is asked again: it may have been busy."""

MAX_ASKED: Final = 64
"""Peers that are remembered as asked, eight times the default degree: neighbours that come in turn would otherwise fill
ten minutes' worth of memory."""

RELAYS: Final = 3
"""Neighbours that relay for us: one may leave and one be far from those who look for us."""


class ReachabilityTask:
    """Asks one peer at a time."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._asked_at: dict[PeerId, float] = {}
        self._relay_at: dict[PeerId, float] = {}
        self._addresses: tuple[str, ...] = ()
        self._told = ""
        self._was_relayed = False
        """Whether the operator was told that others relay for us."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._ask_some()
            self._tell()
            await self._find_relays()
            self._tell_relays()
            await trio.sleep(LOOK_REACH_S)

    async def _ask_some(self) -> None:
        reach, transport = self._context.reach, self._context.transport
        addresses = (*transport.addresses, *self._context.mapped)
        if addresses != self._addresses:
            self._addresses = addresses
            reach.forget()
            self._ask_anew()
        ports = ports_in(self._addresses)
        while ports and len(reach.asked(trio.current_time())) < ASK_PEERS:
            peer = self._next(self._asked_at, reach.asked(trio.current_time()))
            if peer is None:
                return
            await self._ask(peer, ports)

    def _ask_anew(self) -> None:
        """Ask everybody again who would not be asked too often by it: interfaces may come and go."""
        spared = trio.current_time() - 1 / OF_PEER_PER_S
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if at > spared}

    async def _ask(self, peer: PeerId, ports: Sequence[int]) -> None:
        context = self._context
        try:
            patience_s = context.config.request_timeout_s
            sighting = await ask_to_dial_back(context.transport, peer, ports, patience_s)
        except GossipError:
            return  # it may not want to, or be too busy: others are asked
        if (at := context.transport.address_at(peer, ports[0])) is not None:  # otherwise it has disconnected meanwhile
            context.reach.dialled_back(peer, sighting, at, trio.current_time())

    def _next(self, asked_at: dict[PeerId, float], without: frozenset[PeerId]) -> PeerId | None:
        """Return a neighbour that was not asked lately, and note that it is asked now."""
        now = trio.current_time()
        for old in [peer for peer, at in asked_at.items() if now >= at + ASK_AGAIN_S]:
            del asked_at[old]
        there = self._context.transport.peers.intersection(self._context.engine.companions)
        free = there - asked_at.keys() - without
        if not free:
            return None
        # In an order of our own: otherwise all would ask the same few, and an attacker who grinds a small id would be
        # one of them.
        peer = min(free, key=lambda each: digest_of(f"{self._context.engine.me} {each}".encode()))
        asked_at[peer] = now
        while len(asked_at) > MAX_ASKED:
            del asked_at[next(iter(asked_at))]
        return peer

    def _tell(self) -> None:
        reach, now = self._context.reach, trio.current_time()
        sightings = reach.sightings(now)
        if sightings and (words := _in_words(sightings, reach.answering(now))) != self._told:
            self._told = words
            self._context.engine.tell_reachability(words)
            self._context.perform()

    def _tell_relays(self) -> None:
        """Tell when the first neighbour relays for us, and when none does any more."""
        context, relays = self._context, len(self._context.relayed)
        if bool(relays) == self._was_relayed or not context.reach.unreachable(trio.current_time()):
            return
        self._was_relayed = bool(relays)
        words = (
            f"others reach this node through {relays} of its neighbours, which relay for it"
            if relays
            else "nobody relays for this node any more: until a neighbour does, it meets only those that can be dialled"
        )
        context.engine.tell_reachability(words)
        context.perform()

    async def _find_relays(self) -> None:
        context = self._context
        for peer in list(context.relayed):
            if peer not in context.engine.companions or not context.reach.unreachable(trio.current_time()):
                del context.relayed[peer]
        for peer, held in list(context.relayed.items()):
            if trio.current_time() >= held.renew_at:
                await self._reserve(peer)
        while context.reach.unreachable(trio.current_time()) and len(context.relayed) < RELAYS:
            asked = self._next(self._relay_at, frozenset(context.relayed))
            if asked is None:
                return
            await self._reserve(asked)

    async def _reserve(self, peer: PeerId) -> None:
        """Ask a neighbour to relay for us, or to continue."""
        context = self._context
        grant = await context.transport.relayed_by(peer)
        now, held = trio.current_time(), context.relayed.get(peer)
        if grant is not None and peer in context.engine.companions:
            renew_at = now + RENEW_SHARE * grant.lasts_s
            context.relayed[peer] = Relayed(address=grant.address, renew_at=renew_at, until=now + grant.lasts_s)
            self._relay_at.pop(peer, None)  # if it is lost, it is asked again as soon as it is back
        elif held is not None and now + RENEW_AGAIN_S < held.until:
            context.relayed[peer] = replace(held, renew_at=now + RENEW_AGAIN_S)
        elif held is not None:
            del context.relayed[peer]


def _in_words(sightings: Sequence[Sighting], answering: Sequence[str]) -> str:
    """Return what the operator is told. `answering`: addresses where more than half of the asked reached us."""
    if answering:
        return f"others can dial this node at {', '.join(answering)}"
    misses = sum(not it.answered for it in sightings)
    if 2 * misses <= len(sightings):
        reached = ", ".join(sorted({address for it in sightings for address in it.answered}))
        return (
            f"{len(sightings) - misses} of {len(sightings)} members that were asked can dial this node, at {reached}: "
            "each at the address that it sees"
        )
    tried = ", ".join(dict.fromkeys(address for it in sightings if not it.answered for address in it.tried))
    of_all = "" if misses == len(sightings) else f"{misses} of "
    asked = "the member that was asked" if len(sightings) == 1 else f"{of_all}{len(sightings)} members that were asked"
    ports = " and ".join(map(str, dict.fromkeys(ports_in(tried.split(", ")))))
    return (
        f"nobody can dial this node: {asked} got no answer at {tried}; forward TCP port {ports} of the router to "
        "this machine, and open it in its firewall"
    )
