"""Moves against a dedicated relay and its clients. Whoever dials it in memory is a client: the hostile nodes are, and
outside they are members as everywhere."""

from contextlib import suppress

import trio
from adversary_move import Act, move
from adversary_scenario import LOGIN
from hostile_peer import PATIENCE_S

from gossip.core.envelope import seal
from gossip.core.errors import GossipError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_FIND_ANSWER_BYTES, MAX_HELLO_BYTES
from gossip.core.messages import FindRequest, Hello, HelloRequest
from gossip.core.statements import record_statement
from gossip.discovery.dht import named
from gossip.reachability.circuit import (
    HOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    encode_hop,
    parse_hop,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import circuit_address
from gossip.session import ask_once
from gossip.transport.base import Stream


async def _there(act: Act) -> str:
    """The relay's address, once it is there."""
    while act.stage.relay_transport is None:  # noqa: ASYNC110  # it starts in the first seconds
        await trio.sleep(0.5)
    return str(act.stage.relay_transport.addresses[0])


async def _called(act: Act) -> PeerId:
    """The relay, connected."""
    return await act.peer.transport.dial(await _there(act))


async def _hop(act: Act, relay: PeerId, raw: bytes) -> tuple[Stream, bool]:
    """A stream on which something was asked, and whether it was granted."""
    stream = await act.peer.transport.open_stream(relay, HOP_PROTOCOL)
    await send_message(stream, raw, PATIENCE_S)
    answer = await receive_message(stream, PATIENCE_S)
    return stream, answer is not None and parse_hop(answer).status == CircuitStatus.OK


def _someone(act: Act) -> PeerId:
    """A member, a client, a hostile node, or nobody."""
    lives = [life.peer for life in act.stage.lives]
    hostile = [peer.peer for peer in act.stage.hostile.values()]
    return act.rng.choice([*lives, *hostile, Identity(act.rng.randbytes(32)).peer_id])


@move(
    "login.ask",
    amounts=(4, 400),
    seconds=(2, 60),
    variants=("reserve", "connect", "junk", "find"),
    speaks=("hop", "find"),
    among=LOGIN,
)
async def _ask(act: Act) -> None:
    """Asks for reservations, for circuits to everybody, for members, or for nothing that there is; again and again."""
    for _ in range(act.move.amount):
        asked = {
            "reserve": encode_hop(CircuitMessage(kind=CircuitKind.RESERVE)),
            "connect": encode_hop(CircuitMessage(kind=CircuitKind.CONNECT, peer=_someone(act))),
            "junk": act.rng.randbytes(30),
        }
        with suppress(GossipError):
            relay = await _called(act)
            if act.move.variant == "find":
                scope, place = act.stage.scope, named(act.rng.getrandbits(256))
                request = FindRequest(swarm=scope.swarm, run=scope.run, genesis=act.stage.genesis, target=place)
                await ask_once(act.peer.transport, relay, request, PATIENCE_S, MAX_FIND_ANSWER_BYTES)
            else:
                stream, _ = await _hop(act, relay, asked[act.move.variant])
                await stream.reset()
        await trio.sleep(act.move.seconds / act.move.amount)


@move("login.hold", amounts=(2, 60), seconds=(20, 120), variants=("mute", "garbage"), speaks=("hop",), among=LOGIN)
async def _hold(act: Act) -> None:
    """Holds as many circuits to members as are to be had, and says nothing over them, or what is no handshake."""
    held: list[Stream] = []
    for _ in range(act.move.amount):
        with suppress(GossipError):
            relay = await _called(act)
            raw = encode_hop(CircuitMessage(kind=CircuitKind.CONNECT, peer=act.rng.choice(act.stage.lives).peer))
            stream, granted = await _hop(act, relay, raw)
            held.append(stream)
            if granted and act.move.variant == "garbage":
                await stream.send_all(act.rng.randbytes(200))
    await trio.sleep(act.move.seconds)
    for stream in held:
        await stream.reset()


@move(
    "login.name",
    amounts=(1, 40),
    seconds=(5, 60),
    variants=("victim", "nobody", "client"),
    speaks=("hello", "record"),
    among=LOGIN,
)
async def _name(act: Act) -> None:
    """As a client, gives records that name somebody else's address, nobody's, or another client's place."""
    login = PeerId((await _there(act)).rpartition("/p2p/")[2])
    victim = act.rng.choice(act.stage.lives)
    for version in range(act.move.amount):
        address = {
            "victim": f"/memory/{act.rng.randrange(9)}/p2p/{act.peer.peer}",
            "nobody": f"/memory/999/p2p/{act.peer.peer}",
            "client": circuit_address(login, victim.peer),
        }[act.move.variant]
        if not address.endswith(act.peer.peer):
            address = f"{address}/p2p/{act.peer.peer}"
        statement = record_statement(epoch=1, version=version + 1, addresses=(address,))
        raw = seal(act.peer.identity, act.stage.scope, statement).raw
        hello = Hello(scope=act.stage.scope, genesis=act.stage.genesis, neighbours=0, admitted=True, record=raw)
        with suppress(GossipError):
            relay = await _called(act)
            request = HelloRequest(hello=hello.encode())
            await ask_once(act.peer.transport, relay, request, PATIENCE_S, MAX_HELLO_BYTES + 64)
        await trio.sleep(act.move.seconds / act.move.amount)
