"""Finds out whether peers can be dialled at their addresses, before these are passed on to anybody else.

A peer that we dialled has shown it. A peer that dialled us has not: its record is probed, address by address, until one
answers. A probe is a dial that a stranger asks for, so they are limited by peer, by host, by network, and in number at
once. Until it has answered a peer has no right to a place (updates/mesh_admission.py), so a crowd must not keep others
waiting. Nor must what others report of its host: where a peer calls from, it is probed whatever failed there before.
"""

from collections import Counter
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.backoff import Backoff, host_of
from gossip.core.errors import GossipError
from gossip.core.ids import PeerId
from gossip.core.networks import network_of
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import PeerRecord
from gossip.reachability.dialback import ports_in
from gossip.transport.base import Transport

MAX_PROBES: Final = 4
"""Probes under way; at most half of them lead to one network, or are of peers that call from one: its silent hosts, or
those that it names elsewhere, would keep all others waiting."""

PROBES_BURST: Final = 8
PROBES_PER_S: Final = 1 / 30
"""Probes per second of a peer: each address of its record once, and two a minute when it changes them all the time."""


def calls_from(transport: Transport, peer: PeerId, address: str) -> bool:
    """Return whether a connection to the peer leads to the host of this address."""
    port = next(iter(ports_in([address])), None)
    at = None if port is None else transport.address_at(peer, port)
    return at is not None and host_of(at) == host_of(address)


class AddressProber:
    """Starts probes in the dialler's nursery. `hosts`: back-off by host, shared with dials of unverified addresses."""

    def __init__(self, context: ServiceContext, attempts: Backoff, hosts: Backoff) -> None:
        self._context = context
        self._attempts = attempts
        self._hosts = hosts
        self._quota = KeyedTokenBucket(burst=PROBES_BURST, per_s=PROBES_PER_S)
        self._probing: dict[PeerId, str] = {}

    def start_some(self, nursery: trio.Nursery) -> None:
        """Probe the peers that the engine names, as far as each may be probed now."""
        now = trio.current_time()
        for record in self._context.engine.to_probe(now):
            if len(self._probing) >= MAX_PROBES:
                return
            address = self._next(record, now)
            if address is not None and self._quota.take(record.peer, now):
                self._probing[record.peer] = address
                nursery.start_soon(self._probe, record.peer, address)

    def _next(self, record: PeerRecord, now: float) -> str | None:
        if record.peer in self._probing or self._crowded(record.peer):
            return None
        busy = {host_of(address) for address in self._probing.values()}
        networks = Counter(map(network_of, self._probing.values()))
        return next(
            (
                address
                for address in record.addresses
                if self._context.engine.may_dial(address)
                and self._attempts.due(address, now)
                and (
                    self._hosts.due(host_of(address), now) or calls_from(self._context.transport, record.peer, address)
                )
                and host_of(address) not in busy
                and (not (network := network_of(address)) or networks[network] < MAX_PROBES // 2)
            ),
            None,
        )

    def _crowded(self, peer: PeerId) -> bool:
        """Return whether peers that call from its network have half of the probes. Those whose network is not known,
        as they have hung up or are behind a relay, are of one."""
        network_of = self._context.transport.network_of
        network = network_of(peer)
        return network != "" and sum(network_of(each) == network for each in self._probing) >= MAX_PROBES // 2

    async def _probe(self, peer: PeerId, address: str) -> None:
        try:
            with trio.fail_after(self._context.config.dial_timeout_s):
                network = await self._context.transport.probe(address)
        except (GossipError, trio.TooSlowError):
            self._attempts.failed(address, trio.current_time())
            self._hosts.failed(host_of(address), trio.current_time())
        else:
            self._attempts.succeeded(address)
            self._hosts.succeeded(host_of(address))
            self._context.engine.peer_reached(peer, address, network)
        finally:
            del self._probing[peer]
