"""A dedicated relay's service: it trains nothing, and connects nodes that reach nobody else with the swarm's members.

Its clients call it from networks that the operator allows. A client asks for a circuit to a member by the member's id,
in the messages of libp2p's circuit relay v2 (reachability/relay_task.py). To another client the circuit is that of any
relay. To a member outside the relay makes a TCP connection and carries bytes: the client's handshake with the member
goes over it, so the member needs no support for that, and the relay sees ciphertext. It finds members by asking them
(relay_state.py), and tells its clients of them as a bootstrap node does.
"""

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

import trio

from gossip.bootstrap import BootstrapService
from gossip.bootstrap_state import RunKey
from gossip.core.api import Relaying
from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.errors import GossipError, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, SwarmId
from gossip.core.limits import MAX_FIND_ANSWER_BYTES
from gossip.core.messages import Refused
from gossip.core.networks import parsed_host
from gossip.membership.private_swarm import PrivateMembership
from gossip.reachability.circuit import HOP_PROTOCOL
from gossip.reachability.relay import Circuits
from gossip.reachability.relay_task import Dial, Relay
from gossip.relay_state import RELAY_BOUNDS, RelayState
from gossip.session import ask_once
from gossip.transport.base import Stream, Transport
from gossip.transport.connection_limits import CallerNetworks
from gossip.updates.roles import Roles

CLIENT_STREAMS: Final = 16
"""Streams of one client at once, circuits aside: it stays connected, so its hellos, lookups and questions about the
roster may meet."""

QUESTION_S: Final = 5.0
"""Seconds for a dial, and for the answer's first byte: two lost SYNs."""

LOOK_S: Final = 1.0
"""Seconds between two questions: each takes a dial."""

MAX_QUESTIONS: Final = 3
"""Questions under way at once, as in a lookup: a member that is gone delays a third of them."""

_ENDS_IN_IPV4: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
"""NAT64 (RFC 6052), and what came before mapped addresses (RFC 4291)."""

Connect = Callable[[str, PeerId], Awaitable[Stream]]
"""Connects to what listens at a multiaddr, for an asker; nobody's key is proved."""


class RelayService(BootstrapService):
    """`connect` makes the connections over which bytes are carried. `outside`: whether members may be dialled at an
    address that others named (`dialled_outside`)."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        config: GossipConfig,
        rng: random.Random,
        warn: Callable[[str], None],
        connect: Connect,
        outside: Callable[[str], bool],
        private: PrivateMembership | None = None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """Raises LocalError for an address of the operator's that is malformed, and as BootstrapService does."""
        operators = {peer_in(address): address for address in config.peers}
        super().__init__(
            identity=identity,
            transport=transport,
            config=config,
            rng=rng,
            warn=warn,
            private=private,
            state_of=partial(self._state_of, outside, operators),
            max_streams=CLIENT_STREAMS,
        )
        self._connect = connect
        self._asking: dict[PeerId, trio.Event] = {}
        self._wanted = trio.Event()
        self._relay = Relay(
            transport=transport,
            identity=identity,
            circuits=Circuits(config.relay_bytes_per_s, RELAY_BOUNDS),
            serves=self.is_client,
            direct=lambda peer: True,  # who has dialled us is
            addresses=lambda: transport.addresses or (f"/p2p/{transport.peer_id}",),
            offence=self._charged,
            unix_time=unix_time,
            onward=self._onward,
        )

    def is_client(self, peer: PeerId) -> bool:
        """Return whether a peer has called us: nobody but clients can. Members outside are dialled."""
        return self._transport.dialled_us(peer)

    def relaying(self) -> Relaying:
        """Return what is relayed, for metrics."""
        return self._relay.reading()

    def clients(self) -> int:
        """Return how many clients are connected."""
        return sum(map(self.is_client, self._transport.peers))

    # -- the transport's calls

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        if protocol == HOP_PROTOCOL:
            await self._relay.handle_stream(stream)
        else:
            await super().handle_stream(protocol, stream)

    def peer_lost(self, peer: PeerId) -> None:
        """Drop the reservation of a client that has left."""
        self._relay.circuits.drop(peer)
        super().peer_lost(peer)

    def keeps(self, peer: PeerId) -> bool:
        """Return whether a connection is kept when others need its place: a client's."""
        return self.is_client(peer)

    # -- insides

    def _state_of(
        self,
        outside: Callable[[str], bool],
        operators: Mapping[PeerId, str],
        identity: Identity,
        swarm: SwarmId,
        rng: random.Random,
        roles: Roles | None,
    ) -> RelayState:
        self._state = RelayState(
            identity, swarm, rng, roles, is_client=self.is_client, outside=outside, operators=operators
        )
        return self._state

    def _tasks(self) -> list[Callable[[], Awaitable[None]]]:
        return [*super()._tasks(), self._find_members]

    async def _answer(self, peer: PeerId, raw: bytes) -> bytes:
        if (asking := self._asking.get(peer)) is not None:  # a member hangs up once its hello is answered
            with trio.move_on_after(QUESTION_S):
                await asking.wait()
        return await super()._answer(peer, raw)

    def _onward(self, asker: PeerId, target: PeerId) -> Dial | None:
        """Return how a member is reached that a client asks for; None where it is not known, and is looked up."""
        at = self._state.where(target)
        if at is None:
            self._state.want(target)
            self._wanted.set()
            return None
        return partial(self._connect, at, asker)

    async def _find_members(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                if len(self._asking) < MAX_QUESTIONS:
                    asked = self._state.next_question(trio.current_time())
                    if asked is not None and asked[1] not in self._asking:
                        self._asking[asked[1]] = trio.Event()
                        nursery.start_soon(self._ask, *asked)
                with trio.move_on_after(LOOK_S):
                    await self._wanted.wait()
                self._wanted = trio.Event()

    async def _ask(self, key: RunKey, peer: PeerId, address: str) -> None:
        """Ask a member who else is there. It is connected for that long."""
        transport = self._transport
        connected = peer in transport.peers
        try:
            with trio.move_on_after(2 * QUESTION_S):
                await transport.dial(address)
                question = self._state.question(key)
                if question is None:
                    return
                raw = await ask_once(transport, peer, question, QUESTION_S, MAX_FIND_ANSWER_BYTES)
                self._state.on_find_answer(key, peer, raw, transport.network_of(peer))
                self._newcomer.set()
        except Refused:
            return  # it is of another run
        except RemoteError as error:
            self._charged(peer, error)
        except GossipError:
            return  # it is gone: a probe will find out
        finally:
            self._asking.pop(peer).set()
            if not connected:
                with trio.CancelScope(shield=True), suppress(GossipError):
                    await transport.disconnect(peer)


def dialled_outside(clients: tuple[str, ...], members: tuple[str, ...]) -> Callable[[str], bool]:
    """Return what tells whether a relay may dial an address that others named: an IP address of the internet, or of the
    networks `members`, and none of `clients`. So nobody has it dial the machines around it, nor a name that leads
    there. Raises LocalError for what is no network."""
    inside, more = CallerNetworks(clients), CallerNetworks(members)

    def outside(address: str) -> bool:
        _, kind, host, *_ = (*address.split("/"), "", "")
        parsed = parsed_host(host) if kind in ("ip4", "ip6") else None
        if parsed is None:
            return False
        leads_to = [parsed, *_translated(parsed)]
        if any(inside.include(str(each)) for each in leads_to):
            return False
        return more.include(host) or all(map(_is_public, leads_to))

    return outside


def _translated(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Where gateways take an IPv6 address that has an IPv4 address in it: NAT64, 6to4."""
    if isinstance(address, IPv4Address):
        return []
    last = [IPv4Address(address.packed[-4:])] if any(address in each for each in _ENDS_IN_IPV4) else []
    return [*last, *([] if address.sixtofour is None else [address.sixtofour])]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_local = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not address.is_multicast and not is_local
