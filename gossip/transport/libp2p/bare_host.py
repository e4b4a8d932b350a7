"""The installed library as it comes, Noise and yamux over TCP: ours is measured against it, and never uses it.

No class of ours stands between a caller and the socket. A writer does well to hand over pieces of `PIECE_BYTES`; stock
code cuts anything larger so that each frame becomes two Noise messages (trap 12).
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import libp2p
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from gossip.core.ids import PeerId
from gossip.transport.libp2p.multiaddrs import dialable
from gossip.transport.libp2p.yamux_stream import PIECE_BYTES

__all__ = ["PIECE_BYTES", "BareHost", "bare_host"]

PROTOCOL: Final = TProtocol("/p2ptrain/1/bare")
LISTEN: Final = "/ip4/127.0.0.1/tcp/0"


class BareHost:
    """A stock host that listens on loopback."""

    def __init__(self, host: Any) -> None:
        self._host = host

    @property
    def addresses(self) -> Sequence[str]:
        """Where it can be dialled, with `/p2p/<peer id>`."""
        return dialable(self._host.get_transport_addrs(), PeerId(str(self._host.get_id())))

    async def connect(self, address: str) -> None:
        """Dial another one."""
        await self._host.connect(info_from_p2p_addr(Multiaddr(address)))

    async def open_stream(self, address: str) -> Any:
        """A libp2p stream (`read(n)`, `write(data)`, `close()`) to a host that was dialled."""
        return await self._host.new_stream(info_from_p2p_addr(Multiaddr(address)).peer_id, [PROTOCOL])


@asynccontextmanager
async def bare_host(serve: Callable[[Any], Awaitable[None]]) -> AsyncIterator[BareHost]:
    """A stock host, Noise alone and yamux alone, while the block lasts. `serve` gets each stream that is opened."""
    key_pair = create_new_key_pair(os.urandom(32))
    noise = NoiseTransport(key_pair, noise_privkey=create_new_noise_key_pair().private_key)
    host = libp2p.new_host(
        key_pair=key_pair,
        sec_opt={NOISE_ID: noise},
        muxer_opt={YAMUX_ID: Yamux},
        connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
    )
    host.set_stream_handler(PROTOCOL, serve)
    async with host.run([Multiaddr(LISTEN)]):
        try:
            yield BareHost(host)
        finally:  # stock code leaks the sockets that it dialled
            with trio.move_on_after(1, shield=True):
                for connection in host.get_network().get_connections():
                    await connection.close()
