"""A liar among honest nodes, and what these make of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from gossip_samples import SCOPE
from gossip_swarm import RUN, FakeRuntime, Swarm, all_follow, identity, play, until

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import (
    Hello,
    HelloRequest,
    Request,
    encode_answer,
    encode_refusal,
    parse_bytes_answer,
    parse_request,
)
from gossip.session import ask_once, serve
from gossip.transport.base import Stream, TransportError
from gossip.transport.memory.network import MemoryTransport


@dataclass
class Liar:
    """A node without a service: it says hello, and answers requests as a test wants."""

    identity: Identity
    transport: MemoryTransport
    answer: Callable[[Request], bytes | None] = lambda request: None
    link: bytes = b""
    asked: list[Request] = field(default_factory=list)

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        try:
            await serve(stream, self._reply, 10.0)
        except (RemoteError, TransportError):
            await stream.reset()

    async def _reply(self, raw: bytes) -> bytes:
        request = parse_request(raw)
        self.asked.append(request)
        given = self.answer(request)
        if given is None:
            return encode_answer(self.hello()) if isinstance(request, HelloRequest) else refused()
        return given

    def hello(self) -> bytes:
        return Hello(scope=SCOPE, genesis=RUN.genesis, neighbours=1, admitted=True, link=self.link).encode()

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        return True

    def peer_connected(self, peer: PeerId) -> None:
        pass

    def peer_lost(self, peer: PeerId) -> None:
        pass

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True

    async def greet(self, node: FakeRuntime) -> None:
        await self.transport.dial(node.address)
        request = HelloRequest(hello=self.hello())
        raw = await ask_once(self.transport, node.peer, request, 10.0, MAX_HELLO_BYTES + 64)
        parse_bytes_answer(raw, MAX_HELLO_BYTES)


def refused() -> bytes:
    return encode_refusal(Reason.UNAVAILABLE, "")


async def join(it: Swarm, nursery: trio.Nursery, nodes: list[FakeRuntime], *, number: int = 66, **fields) -> Liar:
    """A liar that is a neighbour of every honest node."""
    key = identity(number)
    liar = Liar(key, it.network.attach(key.peer_id), **fields)
    await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
    for node in nodes:
        await liar.greet(node)
    await until(lambda: all(liar.peer in node.service.neighbours() for node in nodes))
    return liar


def counted(nodes: list[FakeRuntime], liar: Liar) -> list[set[Reason]]:
    """Why each node refused the liar, apart from its ban: a hello may be under way when that falls."""
    refused = [{reason for peer, reason in node.service.stats.rejected if peer == liar.peer} for node in nodes]
    return [reasons - {Reason.BANNED} for reasons in refused]


def banned(nodes: list[FakeRuntime], liar: Liar) -> bool:
    return all(liar.peer in {event.peer for event in node.told("banned")} for node in nodes)


async def life_goes_on(nodes: list[FakeRuntime], rounds=range(1, 4)) -> None:
    views = await play(nodes, rounds)
    assert {view.closed_by for row in views for view in row} == {"quorum"}
    await until(lambda: all_follow(nodes))
    honest = {node.peer for node in nodes}
    assert not any(peer in honest for node in nodes for peer, _ in node.service.stats.rejected)
