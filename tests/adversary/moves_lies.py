"""Moves of lies about others: records, what a witness says, states for newcomers, what bootstrap nodes and relays are
told."""

from contextlib import suppress

import numpy as np
import trio
from adversary_move import Act, move
from hostile_peer import PATIENCE_S, Fault, HostilePeer
from moves_chains import lie, new_epoch, take_part, tell_again
from sim_swarm import key_of

from gossip.bootstrap_state import MAX_RUNS
from gossip.core.digests import digest_of
from gossip.core.envelope import EnvelopeKind as StatementKind
from gossip.core.envelope import Scope, Statement, seal
from gossip.core.errors import GossipError
from gossip.core.ids import Digest, PeerId, RunId
from gossip.core.messages import FindRequest, HelloRequest, PartRequest
from gossip.core.statements import Stage as PartStage
from gossip.core.statements import part_statement, record_statement
from gossip.reachability.circuit import HOP_PROTOCOL, CircuitKind, CircuitMessage, encode_hop

NEWCOMERS = frozenset({"join", "crowd", "resume", "observer", "open"})


def invented(act: Act, number: int, *addresses: str, region: str = "") -> bytes:
    """A record of somebody who is not there, of a region."""
    identity = key_of(f"invented-{act.move.seed}-{number}")
    known = tuple(f"{address}/p2p/{identity.peer_id}" for address in addresses) or (
        f"/memory/9999/p2p/{identity.peer_id}",
    )
    return seal(identity, act.stage.scope, record_statement(epoch=1, version=1, addresses=known, region=region)).raw


@move(
    "records",
    amounts=(5, 300),
    seconds=(10, 60),
    variants=("nobody", "victim", "forged", "others"),
    speaks=("record", "hello"),
)
async def _records(act: Act) -> None:
    """Tell of members that there are not, at addresses of nobody or of a victim."""
    victim = act.targets[0].member.transport.addresses[0].partition("/p2p/")[0] if act.targets else "/memory/1"
    await act.meet()
    told = 0
    while told < act.move.amount:
        batch = range(told, min(told + 32, act.move.amount))
        match act.move.variant:
            case "victim":
                act.peer.records = [invented(act, number, victim) for number in batch]
            case "forged":
                act.peer.records = [invented(act, number)[:-1] + b"x" for number in batch]
            case "others":
                act.peer.records = list(act.peer.heard)[:32]
            case _:
                act.peer.records = [invented(act, number) for number in batch]
        told = batch.stop
        for life in act.targets:
            await act.peer.greet(life.peer)
        await trio.sleep(act.move.seconds * 32 / max(32, act.move.amount))


@move("own_record", amounts=(1, 8), variants=("victim", "none", "many", "old"), speaks=("record",))
async def _own_record(act: Act) -> None:
    """Its own record: at a victim's address, nowhere, everywhere, and an older one again."""
    victim = act.targets[0].member.transport.addresses[0].partition("/p2p/")[0] if act.targets else "/memory/1"
    addresses = {
        "victim": [f"{victim}/p2p/{act.peer.peer}"],
        "none": [],
        "many": [f"/memory/{number}/p2p/{act.peer.peer}" for number in range(8)],
        "old": [act.peer.address],
    }[act.move.variant]
    if act.move.variant == "old":
        act.peer.version = 0
    act.peer.sign_record(*addresses)
    await act.meet()
    for _ in range(act.move.amount):
        for life in act.targets:
            await act.peer.greet(life.peer)
        await trio.sleep(10.0)


@move(
    "hello",
    amounts=(1, 12),
    variants=("swarm", "run", "genesis", "neighbours", "alone", "link", "empty", "version"),
    speaks=("hello",),
)
async def _hello(act: Act) -> None:
    """Hellos that say what is not so."""
    scope, noise = act.stage.scope, act.rng.randbytes(32)
    others = act.peer.heard[-1] if act.peer.heard else b""
    changes: dict[str, dict[str, object]] = {
        "swarm": {"scope": Scope(swarm=noise[:16], run=scope.run)},  # type: ignore[arg-type]
        "run": {"scope": Scope(swarm=scope.swarm, run=RunId(noise[:16]))},
        "genesis": {"genesis": Digest(noise)},
        "neighbours": {"neighbours": 2**53 - 1},
        "alone": {"neighbours": 0},
        "link": {"link": others},
        "empty": {"link": b"", "record": b"", "records": ()},
        "version": {},
    }
    await act.meet()
    for _ in range(act.move.amount):
        for life in act.targets:
            raw = act.peer.hello(**changes[act.move.variant])
            if act.move.variant == "version":
                raw = raw[:1] + b"\x09" + raw[2:]
            await act.peer.greet(life.peer, raw)
        await trio.sleep(3.0)


@move(
    "replay", amounts=(2, 30), seconds=(10, 60), variants=("own", "others", "hello", "late"), speaks=("link", "hello")
)
async def _replay(act: Act) -> None:
    """Links that were true once: its own old ones, others', in broadcasts and in hellos, much later."""
    await act.meet()
    await trio.sleep(act.move.seconds)
    old = [link.raw for link in act.peer.chain.links] if act.move.variant == "own" else list(act.peer.heard)
    if act.move.variant == "late":
        await trio.sleep(60.0)
    for raw in old[: act.move.amount]:
        if act.move.variant == "hello":
            for life in act.targets:
                await act.peer.greet(life.peer, act.peer.hello(link=raw))
        else:
            await act.peer.tell(raw)
        await trio.sleep(0.5)


@move(
    "envelope",
    amounts=(1, 10),
    variants=("kind", "body", "seq", "scope"),
    speaks=("link", "goodbye", "record", "offer", "part"),
)
async def _envelope(act: Act) -> None:
    """Well-signed statements that mean nothing: another body under each kind, numbers at their bounds, another run."""
    await act.meet()
    scope = act.stage.scope
    if act.move.variant == "scope":
        scope = Scope(swarm=scope.swarm, run=RunId(act.rng.randbytes(16)))
    for _ in range(act.move.amount):
        kind = act.rng.choice(list(StatementKind))
        statement = Statement(
            kind=kind,
            epoch=act.rng.choice([0, 1, 2**53 - 1]),
            seq=act.rng.choice([0, 1, 2**53 - 1]),
            prev=Digest(act.rng.choice([bytes(32), act.rng.randbytes(32)])),
            payload=Digest(act.rng.choice([bytes(32), act.rng.randbytes(32)])),
            body=act.rng.choice([b"", b"\x90", act.rng.randbytes(20)]),
        )
        raw = seal(act.peer.identity, scope, statement).raw
        await act.peer.tell(raw)
        for life in act.targets:
            with suppress(GossipError):
                await act.peer.greet(life.peer, act.peer.hello(link=raw, record=raw))
        await trio.sleep(2.0)


@move(
    "first",
    amounts=(1, 300),
    variants=("far", "near", "last"),
    seconds=(20, 120),
    speaks=("snapshot", "offer"),
    among=NEWCOMERS,
    apt=("join", "crowd", "resume", "observer"),
)
async def _first(act: Act) -> None:
    """Be whom a newcomer meets first, with a round and a model of its own."""
    claimed = {"far": act.stage.round + act.move.amount, "near": act.stage.round + 6, "last": 10**9}[act.move.variant]
    model_d = (lie(act, "flip", act.stage.genesis_d) + 5).astype(np.float32)
    link = act.peer.chain.begin(epoch=new_epoch(act), round=claimed, model_d=model_d)
    await act.meet()
    await tell_again(act, link.raw)


@move(
    "donor",
    variants=("other", "dies", "slow", "stale"),
    seconds=(40, 120),
    speaks=("snapshot", "offer", "manifest"),
    among=NEWCOMERS,
    apt=("join", "crowd", "resume", "observer"),
)
async def _donor(act: Act) -> None:
    """Take part well, and give newcomers another state, a part of one, or none."""
    how = {
        "other": ("snapshot", "wrong"),
        "dies": ("manifest", "truncate"),
        "slow": ("manifest", "trickle"),
        "stale": ("snapshot", "late"),
    }
    with act.peer.lying(Fault(*how[act.move.variant], frozenset())):
        await take_part(act, "mean")


@move(
    "witness",
    variants=("wrong", "hang", "garbage"),
    seconds=(40, 160),
    speaks=("state",),
    among=NEWCOMERS,
    apt=("join", "crowd", "resume"),
)
async def _witness(act: Act) -> None:
    """Take part well, and speak against honest donors."""
    with act.peer.lying(Fault("state", act.move.variant, frozenset())):
        await take_part(act, "mean")


@move(
    "part",
    amounts=(1, 20),
    seconds=(20, 160),
    variants=("size", "two", "huge", "missing"),
    speaks=("part",),
    among=frozenset({"meeting"}),
    apt=("meeting",),
)
async def _part(act: Act) -> None:
    """Take part in exchanges, and serve something else than was said, or nothing."""
    chain, stage = act.peer.chain, act.stage
    await act.meet()
    until = trio.current_time() + act.move.seconds
    while trio.current_time() < until and stage.running:
        link = chain.begin(epoch=new_epoch(act), round=stage.round, model_d=lie(act, "mean", stage.genesis_d))
        await act.peer.tell(link.raw)
        for life in act.targets:
            exchange = life.member.node.service._allreducer._exchange
            if exchange is not None:
                await _state_parts(act, life.peer, exchange.name, exchange.group.size)
        await trio.sleep(2.0)


async def _state_parts(act: Act, peer: PeerId, exchange: Digest, size: int) -> None:
    sizes = {"size": [size - 1], "two": [size, size], "huge": [1 << 30], "missing": [size]}[act.move.variant]
    for number, each in enumerate(sizes):
        data = bytes([number]) * size
        address = digest_of(data) if act.move.variant == "missing" else act.peer.chain.hold(data)
        for stage in PartStage:
            statement = part_statement(
                exchange=exchange, round=act.stage.round, stage=stage, address=address, size=each
            )
            with suppress(GossipError):
                await act.peer.ask(peer, PartRequest(envelope=seal(act.peer.identity, act.stage.scope, statement).raw))


# -- a bootstrap node

BOOTSTRAP = frozenset({"bootstrap"})


async def _bootstrap(act: Act, peer: object = None) -> PeerId | None:
    service = act.stage.bootstrap_transport
    if service is None:
        return None
    with suppress(GossipError):
        return await (peer or act.peer).transport.dial(service.addresses[0])  # type: ignore[attr-defined]
    return None


@move(
    "bootstrap.runs", amounts=(4, 16), seconds=(1, 40), speaks=("hello", "record"), among=BOOTSTRAP, apt=("bootstrap",)
)
async def _runs(act: Act) -> None:
    """Invent runs, each with members of its own, until there is no room for the real one."""
    peers = [await act.stage.make(f"bootstrap-{act.move.seed}-{number}") for number in range(act.move.amount)]
    for peer in peers:
        await _say_that_it_is_of(peer, range(MAX_RUNS - 1))
    await trio.sleep(act.move.seconds)  # until all have been probed
    await _say_that_it_is_of(peers[0], range(MAX_RUNS - 1, MAX_RUNS))


async def _say_that_it_is_of(peer: HostilePeer, runs: range) -> None:
    service = peer.stage.bootstrap_transport
    assert service is not None
    with suppress(GossipError):
        there = await peer.transport.dial(service.addresses[0])
        for number in runs:
            scope = Scope(swarm=peer.stage.scope.swarm, run=RunId(digest_of(b"run %d" % number)[:16]))
            record = seal(peer.identity, scope, record_statement(epoch=1, version=1, addresses=(peer.address,))).raw
            await peer.ask(there, HelloRequest(hello=peer.hello(scope=scope, record=record, link=b"", records=())))


@move(
    "bootstrap.victims",
    amounts=(4, 60),
    seconds=(1, 40),
    speaks=("hello", "record"),
    among=BOOTSTRAP,
    apt=("bootstrap",),
)
async def _victims(act: Act) -> None:
    """Records of many names at a victim's address, and of names that never answer."""
    for number in range(act.move.amount):
        peer = await act.stage.make(f"victims-{act.move.seed}-{number}")
        victim = act.rng.choice(act.stage.lives).member.transport.addresses[0].partition("/p2p/")[0]
        peer.sign_record(f"{victim}/p2p/{peer.peer}")
        if (there := await _bootstrap(act, peer)) is not None:
            await peer.greet(there)
        await trio.sleep(act.move.seconds / act.move.amount)
        peer.leave()


@move(
    "bootstrap.ask",
    amounts=(10, 150),
    seconds=(1, 40),
    variants=("hello", "find"),
    speaks=("find", "hello"),
    among=BOOTSTRAP,
)
async def _ask_bootstrap(act: Act) -> None:
    """Ask it more often than anybody needs."""
    there = await _bootstrap(act)
    for _ in range(act.move.amount if there is not None else 0):
        assert there is not None
        with suppress(GossipError):
            if act.move.variant == "hello":
                await act.peer.ask(there, HelloRequest(hello=act.peer.hello()))
            else:
                target = Digest(act.rng.randbytes(32))
                scope = act.stage.scope
                asked = FindRequest(swarm=scope.swarm, run=scope.run, genesis=act.stage.genesis, target=target)
                await act.peer.ask(there, asked)
        await trio.sleep(act.move.seconds / act.move.amount)


# -- a relay

RELAY = frozenset({"relay"})


@move("relay.fill", amounts=(2, 40), seconds=(30, 120), speaks=("hop", "stop"), among=RELAY, apt=("relay",))
async def _fill(act: Act) -> None:
    """Reserve, and hold as many circuits between hostile nodes as are to be had."""
    await act.meet()
    relay = next((life.peer for life in act.stage.running if life.number == 0), None)
    streams = []
    for _ in range(act.move.amount if relay is not None else 0):
        assert relay is not None
        other = act.rng.choice([peer.peer for peer in act.stage.hostile.values()])
        for asked in (CircuitMessage(kind=CircuitKind.RESERVE), CircuitMessage(kind=CircuitKind.CONNECT, peer=other)):
            with suppress(GossipError):
                stream = await act.peer.transport.open_stream(relay, HOP_PROTOCOL)
                raw = encode_hop(asked)
                await stream.send_all(bytes([len(raw)]) + raw)
                with trio.move_on_after(PATIENCE_S / 20):
                    await stream.receive_some(200)
                streams.append(stream)
    await trio.sleep(act.move.seconds)
    for stream in streams:
        await stream.reset()
