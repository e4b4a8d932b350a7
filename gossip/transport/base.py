"""What the protocol needs of a network: streams to named peers, and lossy broadcast of small messages.

Two members: `memory` (a whole network inside one process, under any clock) and `libp2p` (TCP, Noise, yamux,
gossipsub). Both pass the suite in `tests/contracts/test_transport.py`. Nothing above this line knows which of them
it runs on. Peer ids are authenticated: a stream's or a message's `PeerId` is the key that the far end proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from gossip.core.errors import GossipError, RemoteError
from gossip.core.ids import PeerId
from gossip.transport.wire_bytes import WireBytes


class TransportError(GossipError):
    """The network failed us: no route, connection lost, stream reset, dial timed out."""


class Stream(Protocol):
    """An ordered, authenticated byte stream to one peer. Not safe for two senders or two readers at once."""

    @property
    def remote(self) -> PeerId:
        """The peer at the other end, as proved by the security handshake."""

    @property
    def pending(self) -> int:
        """Bytes that are here and cannot be handed over yet, as the rest of their record is still to come. Where it is
        not always 0, a cancelled `receive_some` loses nothing."""

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises TransportError when the stream is gone."""

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least 1 and at most `max_bytes` bytes; b"" at the end of the stream. Raises TransportError."""

    async def close(self) -> None:
        """Say that we are done sending and release the stream. Never raises TransportError."""

    async def reset(self) -> None:
        """Abandon the stream at once, also under cancellation. Never raises TransportError."""


class TransportHandlers(Protocol):
    """What a transport calls. None of these may raise: a transport guards against it, and counts it as our bug."""

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """A peer opened `stream` for `protocol`. The transport closes (or, on an exception, resets) it afterwards."""

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """A broadcast arrived. True: valid, pass it on. False: drop it."""

    def peer_connected(self, peer: PeerId) -> None:
        """Handle the first connection to `peer`, by whichever side it was dialled."""

    def peer_lost(self, peer: PeerId) -> None:
        """The last connection to `peer` is gone."""

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Connected peers to which a broadcast, our own or one to pass on, is of no use: it is not sent to them."""

    def keeps(self, peer: PeerId) -> bool:
        """Whether the connection to `peer` must stay when places are short; that of others goes to a newcomer."""

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """`peer` itself, and nobody behind it, did over a proved connection what no sound implementation does."""

    def caller_refused(self, caller: str, why: str) -> None:
        """A private swarm has sent somebody away, as a line for the operator: `caller` is a peer id, an address or
        both. All are counted; of a flood, few are told."""


class Admission(Protocol):
    """Who may connect, decided inside the security handshake, before any protocol is open. A transport that is given
    none lets everybody in: an open swarm."""

    def credentials(self) -> bytes:
        """What we show of our membership: at most `MAX_CREDENTIALS` bytes, asked for anew in every handshake."""

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Decide about the key that the far end has just proved, and what it showed; any bytes whatever.

        Raises RemoteError with the reason when it is not to become a peer: the socket is closed without a word, and the
        transport counts a drop `refused_<reason>`. Raises AnsweredError for one that only asks: it is told the answer,
        at most `MAX_CREDENTIALS` bytes, and the socket is closed. Asked more than once of one connection, so that one
        that takes its time to come up is not there after a `disconnect`: the answer must cost the peer nothing, and be
        quick.
        """

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        """What is said to a peer that `admit` has just refused with `error`, at most `MAX_EXPLANATION` bytes; b"":
        nothing, as to every stranger."""

    def heard(self, peer: PeerId, said: bytes) -> str:
        """What a peer says of why it does not let us in: one that we dialled, or one that dialled us and was admitted;
        any bytes whatever. In words."""


PING_PROTOCOL: Final = "/ipfs/ping/1.0.0"
PING_BYTES: Final = 32
"""libp2p's ping: every transport answers it by itself, with the same bytes, until the far end closes the stream."""

MAX_CREDENTIALS: Final = 4096
"""Bytes that a stranger may show before anything is known of it: two signed links and a key that signs a newer one
take under 700."""

MAX_EXPLANATION: Final = 2**15 - 1
"""Bytes that a refused peer is told: what its frame's length can say. Who dialled reads as many of whom it dialled."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A relay's: others reach us at `address` for `lasts_s` seconds from now, while we are connected to it."""

    address: str
    lasts_s: float


class Transport(Protocol):
    """A node's attachment to a network."""

    @property
    def peer_id(self) -> PeerId:
        """Our own name, that of the identity key."""

    @property
    def addresses(self) -> Sequence[str]:
        """Multiaddrs with `/p2p/<peer id>` at which others can dial us; known once `run` has started."""

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers with at least one live connection."""

    @property
    def drops(self) -> Mapping[str, int]:
        """What was refused, let go or survived since the start, by kind (see drop_reasons.py)."""

    @property
    def wire(self) -> WireBytes:
        """All bytes sent to peers and received from them since the start, framing and handshakes included."""

    def dialled_us(self, peer: PeerId) -> bool:
        """Whether a live connection to `peer` is one that it dialled: it has reached our listening address."""

    def network_of(self, peer: PeerId) -> str | None:
        """The network that a live connection to `peer` leads to, as text: a /24 of IPv4, a /48 of IPv6. "": one of our
        own, where every machine counts for itself (loopback, a LAN, what the operator named). None where it is not
        known: not connected, or only through a third peer, whose network says nothing of the far end's."""

    def address_at(self, peer: PeerId, port: int) -> str | None:
        """The multiaddr of this port on the host that a live connection to `peer` leads to; None where none does, or
        only through a third peer."""

    async def relayed_by(self, peer: PeerId) -> Grant | None:
        """Ask a connected peer to relay for us, or to go on with that; None where it does not. Raises nothing of the
        network's."""

    async def run(
        self, handlers: TransportHandlers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and serve until cancelled; `started()` once listening. Raises LocalError when it cannot listen."""

    async def dial(self, address: str) -> PeerId:
        """Connect to a multiaddr that ends in `/p2p/<peer id>`; idempotent. Raises TransportError or LocalError."""

    async def probe(self, address: str) -> str | None:
        """Find out whether the peer that the multiaddr names answers there, over a connection of its own that is closed
        at once, connected or not; the network it answers from, as `network_of` has it. Raises TransportError or
        LocalError when it does not."""

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = False) -> Stream:
        """A new stream to a connected peer. `bulk`: much will go over it; a transport may have a faster way for that,
        and else does as always. Raises TransportError."""

    async def publish(self, data: bytes) -> None:
        """Broadcast a small message (under 8 KiB) to the swarm, best effort. Raises nothing of the network's."""

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to `peer`, of whatever kind, and let no stream come from one that is just being made.
        Whether it may come again is for `Admission`. Never raises TransportError."""
