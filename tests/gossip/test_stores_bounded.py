"""Every store of a node's network is bounded, whoever comes in turn: looked for, not listed.

The bounds that have a name are lowered, many more peers than that come one after another, each with all that a peer
can leave behind, and no container that can be reached from the service may be longer than the bounds allow. A store
that somebody adds without a bound fails here without being named.
"""

import random

import pytest
import trio
from census import census
from gossip_liars import Liar, refused
from gossip_samples import SCOPE
from gossip_swarm import CONFIG, RUN, FakeRuntime, Swarm, identity, play, swarm, until

from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import seal
from gossip.core.identity import Identity
from gossip.core.limits import CHUNK_BYTES, KIB
from gossip.core.messages import ChunkRequest, FindRequest, ManifestRequest
from gossip.core.statements import UpdateHeaderBody, update_header_statement
from gossip.session import ask_once
from gossip.transport.base import TransportError

LOW = 24
"""What every named bound is lowered to."""

IDENTITIES = 120
"""Five times as many: a store without a bound is far beyond what the others may have."""

MOST = 2 * LOW
"""Twice the bound: the book remembers two addresses for each record (book.MAX_REACHED)."""

BOUNDS = (
    "gossip.core.api.MAX_COUNTED_PEERS",
    "gossip.core.backoff.MAX_TARGETS",
    "gossip.discovery.peerstore.MAX_RECORDS",
    "gossip.discovery.peerstore.MAX_REACHED",
    "gossip.updates.hash_chain.RECENT_LINKS",
    "gossip.updates.audits.MAX_FOLLOWED",
    "gossip.updates.audits.MAX_HEARD",
    "gossip.updates.audits.MAX_CONVICTED",
    "gossip.updates.peer_score.MAX_PROOFS",
    "gossip.discovery.dht.MAX_CALLERS",
    "gossip.engine.MAX_SEEN",
    "gossip.discovery.routing_table.MAX_ENTRIES",
    "gossip.updates.mesh.MAX_DEPARTED",
    "gossip.updates.mesh.MAX_MET",
    "gossip.updates.probation.MAX_REMEMBERED",
    "gossip.updates.round_closer_task.LEAD_ROUNDS",
    "gossip.core.rate_limit.MAX_NAMES",
    "gossip.updates.score_table.MAX_SCORED_PEERS",
    "gossip.discovery.topology.MAX_PLACES",
    "gossip.discovery.dialler_task.MAX_HINTS",
    "gossip.reachability.reachability_task.MAX_ASKED",
    "gossip.transport.memory.network.MAX_OVER_CIRCUITS",
)

THE_TESTS = (
    "transport",
    "_transport",
    "_connections",
    "_network_of",
    "dialled_us",
    "quiet",
    "tracked",
    "_source",
    "_observer",
    "observer",
)
"""What a service leads to and is none of its own: the network in memory, and what `FakeRuntime` writes down."""


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BOUNDS:
        monkeypatch.setattr(name, LOW)
    monkeypatch.setattr("gossip.updates.mesh.DEPARTED_S", 0.0)
    for links in ("LINKS_OF_FOLLOWED", "LINKS_OF_HEARD"):  # of each signer: what is counted is all of them together
        monkeypatch.setattr(f"gossip.updates.audits.{links}", 1)


def too_long(node: FakeRuntime, most: int = MOST) -> dict[str, int]:
    """Every container of a node's service that is longer than allowed."""
    sizes = census(node.service, without=THE_TESTS)
    assert len(sizes) > 50, "hardly anything was looked at"
    return {name: size for name, size in sizes.items() if size > most}


async def behave(it: Swarm, node: FakeRuntime, number: int) -> None:
    """A member as there are many: it is greeted, has its model tracked and a download begun, and is gone."""
    peer = await it.start(1000 + number, peers=(node.address,), up_bytes_per_s=64.0 * KIB * KIB)
    await peer.begin(round=number)
    await until(lambda: node.peer in peer.service.neighbours() and peer.peer in node.service.neighbours())
    await peer.publish(number)
    await until(lambda: node.follows(peer))
    await peer.begin(epoch=2000, snapshot=random.Random(number).randbytes(2 * CHUNK_BYTES + 9))
    await trio.sleep(0.01)
    if number % 2:
        await peer.service.say_goodbye(1.0)
    peer.scope.cancel()
    await until(lambda: not node.service.neighbours())


async def misbehave(it: Swarm, node: FakeRuntime, number: int) -> None:
    """All that a stranger can do to be remembered: questions, forgeries, announcements of keys that nobody follows,
    two stories of one place."""
    key = identity(5000 + number)
    liar = Liar(key, it.network.attach(key.peer_id), answer=lambda request: refused())
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        await liar.greet(node)
        for request in (
            FindRequest(swarm=SCOPE.swarm, run=SCOPE.run, genesis=RUN.genesis, target=digest_of(b"x"), record=b""),
            ManifestRequest(address=digest_of(b"nothing")),
            ChunkRequest(address=digest_of(b"nothing"), index=number),
        ):
            try:
                await ask_once(liar.transport, node.peer, request, 10.0, 256 * KIB)
            except TransportError:
                break
        for other in (key, identity(9000 + number)):
            for story in (b"one", b"another"):
                await liar.transport.publish(link(other, number, story))
        await liar.transport.publish(b"forged" + number.to_bytes(4, "big"))
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    await until(lambda: not node.service.neighbours())


def link(key: Identity, round_: int, story: bytes) -> bytes:
    body = UpdateHeaderBody(round=round_, kind="snapshot", size=9)
    return seal(
        key, SCOPE, update_header_statement(epoch=7, seq=0, prev=NO_DIGEST, address=digest_of(story), body=body)
    ).raw


@pytest.mark.slow
@pytest.mark.parametrize(
    "visit",
    [
        pytest.param(behave, id="members", marks=pytest.mark.thorough),
        pytest.param(misbehave, id="strangers that misbehave"),
    ],
)
async def test_no_store_grows_with_the_peers_that_come_in_turn(autojump_clock, visit):
    async with swarm() as it:
        node = await it.start(1)
        await node.begin()
        for number in range(IDENTITIES):
            await visit(it, node, number)
        assert too_long(node) == {}


@pytest.mark.slow
async def test_no_store_grows_with_rounds(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        await play(nodes, range(1, IDENTITIES))
        for node in nodes:
            assert too_long(node) == {}


async def test_a_store_without_a_bound_is_found(autojump_clock):
    async with swarm() as it:
        node = await it.start(1)
        node.service._engine.peer_scores.everybody = {}  # type: ignore[attr-defined]
        for number in range(MOST + 1):
            node.service._engine.peer_scores.everybody[number] = number  # type: ignore[attr-defined]
        assert list(too_long(node)) == ["._engine.peer_scores.everybody"]
        assert CONFIG.degree < MOST
