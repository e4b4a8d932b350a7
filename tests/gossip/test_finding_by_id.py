"""Real services that look each other up by id over the in-memory network: asked, answered, dialled, charged."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from gossip_liars import Liar
from gossip_samples import BOB, GENESIS, SCOPE, record
from gossip_swarm import CONFIG, FakeRuntime, Swarm, identity, swarm, until
from test_bootstrap import Post
from test_finding_peers import Announcing, Dials, announcing

from gossip.core.errors import Reason
from gossip.core.ids import Digest, PeerId, RunId, SwarmId
from gossip.core.limits import MAX_FIND_ANSWER_BYTES
from gossip.core.messages import FindRequest, Request, encode_answer, parse_find_answer
from gossip.core.statements import PeerRecord
from gossip.discovery import peerstore
from gossip.discovery.dht import FINDS_BURST, named
from gossip.discovery.dialler_task import MAX_LOST
from gossip.discovery.lookup_task import LOOK_TABLE_S, LookupTask
from gossip.discovery.peerstore import RecordTrust
from gossip.discovery.routing_table import BUCKET, MAX_MISSES, nearest, place_of_id
from gossip.session import ask_once
from gossip.transport.memory.link_quality import LinkQuality

SMALL = replace(CONFIG, degree=4, heartbeat_s=20.0, silence_s=90.0, reannounce_s=600.0)
"""Few neighbours, so that a small swarm is one in which most are strangers."""


def question(target: PeerId, **changes: object) -> FindRequest:
    fields = {"swarm": SCOPE.swarm, "run": SCOPE.run, "genesis": GENESIS, "target": named(place_of_id(SCOPE, target))}
    return FindRequest(**{**fields, **changes})


async def told_by(liar: Liar, node: FakeRuntime | Post, request: FindRequest) -> tuple[bytes, tuple[bytes, ...]]:
    return parse_find_answer(await ask_once(liar.transport, node.peer, request, 5.0, MAX_FIND_ANSWER_BYTES))


def knows(node: FakeRuntime, other: FakeRuntime) -> bool:
    return bool(node.service._engine.peerstore.addresses(other.peer))


def in_nobodys_hello(nodes: list[FakeRuntime], seeker: FakeRuntime) -> FakeRuntime | None:
    beside = [node for node in nodes if node.peer in seeker.service.neighbours()]
    others = (each for each in nodes if each is not seeker)
    return next((each for each in others if not any(knows(it, each) for it in [seeker, *beside])), None)


def _learnt_by(node: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> list[tuple[PeerId, bool]]:
    """Whose records come to its book from now on, and whether from themselves."""
    learnt: list[tuple[PeerId, bool]] = []
    learn = node.service._engine.peerstore.learn

    def noting(record: PeerRecord, *, first_hand: bool, **how: Any) -> bool:
        learnt.append((record.peer, first_hand))
        return learn(record, first_hand=first_hand, **how)

    monkeypatch.setattr(node.service._engine.peerstore, "learn", noting)
    return learnt


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("count", [24, 64])
async def test_a_member_that_is_in_no_neighbours_hello_is_found_by_its_id(autojump_clock, monkeypatch, count):
    """Books hold eight: what a book of 256 is in a swarm of a thousand. In swarms of 18 to 39 members four of five
    lookups found whom they sought; without latencies fewer did, as nobody had time to answer before all had asked."""
    monkeypatch.setattr(peerstore, "MAX_RECORDS", 8)
    monkeypatch.setattr(peerstore, "MAX_REACHED", 16)
    async with swarm(replace(SMALL, heartbeat_s=60.0, silence_s=270.0)) as it:
        it.network._default = LinkQuality(latency_s=0.03)
        first = await it.start(1)
        nodes = [first, *[await it.start(number, peers=(first.address,)) for number in range(2, count + 1)]]
        await trio.sleep(40)
        looked_up = found = 0
        for seeker in nodes:  # who knows whom changes while they look
            if looked_up < 8 and (sought := in_nobodys_hello(nodes, seeker)) is not None:
                looked_up += 1
                learnt = _learnt_by(seeker, monkeypatch)
                addresses = await seeker.service.find(sought.peer)
                assert addresses in (None, (sought.address,))
                # It has answered itself; so small a book may have lost it since. It may have come by itself as well.
                assert addresses is None or (sought.peer, True) in learnt
                found += addresses is not None
        assert looked_up == 8
        assert found >= 4
        assert not any(len(node.service._engine.peerstore) > 8 for node in nodes)
        assert await nodes[0].service.find(identity(999).peer_id) is None
        assert {(event.reason, event.detail) for node in nodes for event in node.told("rejected")} == set()


@pytest.mark.slow
async def test_a_full_member_is_not_asked_again_each_time_that_its_record_comes_back(autojump_clock, monkeypatch):
    """Who belongs beside whom changes with every record that so small a book loses and learns again."""
    monkeypatch.setattr(peerstore, "MAX_RECORDS", 5)
    monkeypatch.setattr(peerstore, "MAX_REACHED", 10)
    async with swarm(replace(SMALL, heartbeat_s=60.0, silence_s=270.0)) as it:
        it.network._default = LinkQuality(latency_s=0.03)
        first = await it.start(1)
        nodes = [first, *[await it.start(number, peers=(first.address,)) for number in range(2, 33)]]
        await trio.sleep(20)
        assert {event.detail for node in nodes for event in node.told("rejected")} == set()


async def test_what_is_known_is_not_looked_up(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        asked: list[object] = []
        one.service._finder._look_up = asked.append  # type: ignore[assignment]
        assert await one.service.find(other.peer) == (other.address,)
        assert await one.service.find(one.peer) == (one.address,)
        assert asked == []


@pytest.mark.slow
async def test_full_meshes_look_nobody_up(autojump_clock):
    async with swarm() as it:
        looked_up: list[object] = []
        for node in await it.start_all(5):
            node.service._finder._look_up = looked_up.append  # type: ignore[assignment]
        await trio.sleep(60)
        assert looked_up == []


# -- asked


async def test_an_asker_is_probed_and_then_told_of(autojump_clock):
    """It parts right after its question, as in a lookup: who is not connected was never probed."""
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        node.service._dialler._dial_some = lambda nursery: None  # type: ignore[method-assign]  # has no place for it
        liar, other = await announcing(it, nursery, 66), await announcing(it, nursery, 67)
        own = record(by=liar.identity, version=100, addresses=tuple(liar.transport.addresses))
        for each in (liar, other):
            await each.transport.dial(node.address)
        assert await told_by(liar, node, question(liar.peer, record=own)) == (node.service._engine.dht.record, ())
        assert await told_by(other, node, question(liar.peer)) == (node.service._engine.dht.record, ())
        await liar.transport.disconnect(node.peer)
        await trio.sleep(2 * LOOK_TABLE_S)
        assert (await told_by(other, node, question(liar.peer)))[1] == (own,)
        nursery.cancel_scope.cancel()


async def test_an_asker_that_says_it_lives_where_a_victim_does_is_told_of_to_nobody(autojump_clock):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        dials = Dials(it)
        dials.watch(node)
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(node.address)
        own = record(by=liar.identity, addresses=(f"/memory/victim/p2p/{liar.peer}",))
        await told_by(liar, node, question(liar.peer, record=own))
        await liar.transport.disconnect(node.peer)
        await trio.sleep(600)
        assert liar.peer not in node.service._engine.dht.table
        assert 1 <= len(dials.to("memory/victim")) <= 20, "as often as after a hello, and two probes more"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"swarm": SwarmId(bytes(16))}, Reason.WRONG_SWARM),
        ({"run": RunId(bytes(16))}, Reason.WRONG_RUN),
        ({"genesis": Digest(bytes(32))}, Reason.WRONG_MODEL),
        ({"record": record(by=BOB)}, Reason.FORGED),
        ({"record": b"junk"}, Reason.MALFORMED),
    ],
)
async def test_who_asks_for_another_run_or_with_anothers_record_is_refused_and_charged(autojump_clock, changes, reason):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(node.address)
        with pytest.raises(Exception, match=str(reason)):
            await told_by(liar, node, question(liar.peer, **changes))
        assert node.service.stats.rejected == {(liar.peer, reason): 1}
        nursery.cancel_scope.cancel()


async def test_questions_without_end_are_refused_and_charged(autojump_clock):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(node.address)
        for _ in range(FINDS_BURST):
            await told_by(liar, node, question(liar.peer))
        for _ in range(10):
            with pytest.raises(Exception, match="flooded"):
                await told_by(liar, node, question(liar.peer))
        assert node.service.stats.rejected == {(liar.peer, Reason.FLOODED): 10}
        nursery.cancel_scope.cancel()


async def test_a_bootstrap_node_tells_of_the_nearest_of_the_run_that_is_asked_for(autojump_clock):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        await nursery.start(post.run)
        nodes = [await it.start(number, peers=(post.address,)) for number in range(1, 8)]
        await until(lambda: post.service.bootstrap_state.members == len(nodes))
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(post.address)
        records = list(nodes[0].service._engine.peerstore.known())
        own, told = await told_by(liar, post, question(nodes[3].peer))
        assert own == b""
        assert len(told) == len(nodes)
        assert told[0] == nodes[3].service._engine.dht.record
        near = [each.raw for each in nearest([each for each in records if each.raw in told], SCOPE, _place(nodes[3]))]
        assert [raw for raw in told if raw in near] == near
        with pytest.raises(Exception, match="nobody of that run"):
            await told_by(liar, post, question(nodes[3].peer, genesis=Digest(bytes(32))))
        assert post.service.bootstrap_state.runs == 1
        for _ in range(FINDS_BURST):
            with pytest.raises(Exception, match=r"nobody of that run|flooded"):
                await told_by(liar, post, question(nodes[3].peer, run=RunId(bytes(16))))
        assert post.service.stats.rejected_by_reason[Reason.FLOODED] >= 1
        nursery.cancel_scope.cancel()


def _place(node: FakeRuntime) -> int:
    return place_of_id(SCOPE, node.peer)


# -- asking


class Teller(Announcing):
    """A member that answers find requests as a test wants."""

    words: tuple[bytes, ...] = ()

    async def join(self, node: FakeRuntime) -> None:
        """Become somebody that `node` has reached."""
        self.said = (self.transport.addresses[0].partition("/p2p/")[0],)
        self.answer = self._tell
        await self.transport.dial(node.address)
        await self.say(node)
        await until(lambda: node.service._engine.peerstore.standing(self.peer) is RecordTrust.VERIFIED)

    def _tell(self, request: Request) -> bytes | None:
        if isinstance(request, FindRequest):
            return encode_answer(record(by=self.identity, addresses=tuple(self.transport.addresses)), self.words)
        return None


async def teller(it: Swarm, nursery: trio.Nursery, node: FakeRuntime, *words: bytes) -> Teller:
    key = identity(66)
    liar = Teller(key, it.network.attach(key.peer_id))
    liar.words = words
    await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
    await liar.join(node)
    return liar


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((flipped(record(by=BOB)),), Reason.FORGED),
        ((record(by=BOB), record(by=BOB)), Reason.PROTOCOL),
        ((b"junk",), Reason.MALFORMED),
        ((record(),) * (BUCKET + 1), Reason.OVERSIZE),
    ],
)
async def test_a_lie_in_an_answer_is_charged_and_nobody_is_dialled_for_it(autojump_clock, words, reason):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        liar = await teller(it, nursery, node, *words)
        dials = Dials(it)
        dials.watch(node)
        assert await node.service.find(identity(5).peer_id) is None
        assert node.service.stats.rejected == {(liar.peer, reason): 1}
        assert dials.all == []
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_whom_a_liar_names_at_a_victims_address_is_dialled_by_the_rules_of_hearsay(autojump_clock):
    """Sixteen keys at one host, in one answer after another: one dial at a time of a host, and ever more rarely."""
    keys = [identity(number) for number in range(2000, 2000 + BUCKET)]
    made = {key.peer_id: record(by=key, addresses=(f"/memory/victim/{key.peer_id}/p2p/{key.peer_id}",)) for key in keys}
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        target = place_of_id(SCOPE, identity(5).peer_id)
        words = sorted(made, key=lambda peer: place_of_id(SCOPE, peer) ^ target)
        await teller(it, nursery, node, *(made[peer] for peer in words))
        dials = Dials(it)
        dials.watch(node)
        for _ in range(20):
            assert await node.service.find(identity(5).peer_id) is None
            await trio.sleep(60)
        assert 1 <= len(dials.to("memory/victim")) <= 10
        assert not any(node.service._engine.peerstore.addresses(peer) for peer in made), "nor does it stand in the book"
        nursery.cancel_scope.cancel()


async def test_it_hangs_up_on_whom_it_dialled_for_a_question_alone(autojump_clock):
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        liar = await teller(it, nursery, node)
        node.service._engine.mesh.has_room_for = lambda peer, now: False  # type: ignore[method-assign]
        await liar.transport.disconnect(node.peer)
        assert await node.service.find(identity(5).peer_id) is None
        assert any(isinstance(request, FindRequest) for request in liar.asked)
        assert node.transport.peers == set()
        nursery.cancel_scope.cancel()


async def test_those_that_are_lost_are_remembered_up_to_a_bound(autojump_clock):
    async with swarm() as it:
        one, _ = await it.start_all(2)
        peers = [identity(100 + number).peer_id for number in range(MAX_LOST + 3)]
        one.service._engine.set_anchors(frozenset(peers))
        for peer in peers:
            one.service._dialler._note_lost(peer)
        assert list(one.service._dialler.lost) == peers[3:]


async def test_it_does_not_hang_up_on_who_has_become_a_bridge_meanwhile(autojump_clock, monkeypatch):
    """A member of another region has no place among the neighbours: each lookup that came by it cut the bridge that it
    had just become."""
    async with swarm(SMALL) as it, trio.open_nursery() as nursery:
        node = await it.start(1)
        liar = await teller(it, nursery, node)
        node.service._engine.mesh.has_room_for = lambda peer, now: False  # type: ignore[method-assign]
        monkeypatch.setattr(type(node.service._engine), "partners", property(lambda engine: frozenset({liar.peer})))
        await liar.transport.disconnect(node.peer)
        assert await node.service.find(identity(5).peer_id) is None
        assert any(isinstance(request, FindRequest) for request in liar.asked)
        assert node.transport.peers == {liar.peer}
        nursery.cancel_scope.cancel()


async def test_a_member_whose_record_made_room_in_the_book_keeps_its_place_in_the_table(autojump_clock):
    """Who waits for a place has it from who does not answer. A member that had been here for long was probed at no
    address once the book had lost it, so a crowd that fills the book had the table as well."""
    async with swarm() as it:
        one, other = await it.start_all(2)
        engine = one.service._engine
        await until(lambda: other.peer in engine.dht.table, timeout_s=10)
        engine.peerstore.forget(other.peer)
        probed: list[str] = []

        async def probe(address):
            probed.append(address)
            return await one.transport.probe(address)

        apart = SimpleNamespace(peers={identity(9).peer_id}, probe=probe)  # connected to others, and not to it
        context = SimpleNamespace(transport=apart, engine=engine)
        task = LookupTask(context, engine.dht, engine.peerstore, engine.mesh, one.service._dialler, random.Random(1))
        for _ in range(MAX_MISSES):
            await task._doubt(other.peer)
        assert probed == [other.address] * MAX_MISSES
        assert [each.peer for each in engine.dht.table.closest(0)] == [other.peer]


@pytest.mark.slow
async def test_one_of_the_operators_that_has_moved_is_looked_up_by_its_id(autojump_clock):
    async with swarm(SMALL) as it:
        first = await it.start(1)
        nodes = [first, *[await it.start(number, peers=(first.address,)) for number in range(2, 12)]]
        moved = nodes[5]
        await trio.sleep(30)
        late = await it.start(20, peers=(first.address, f"/memory/777/p2p/{moved.peer}"))
        known, learn = late.service._engine.peerstore, late.service._engine.peerstore.learn
        known.learn = lambda told, *, first_hand, **how: (  # type: ignore[method-assign]
            (first_hand or told.peer != moved.peer) and learn(told, first_hand=first_hand, **how)
        )
        await until(lambda: known.standing(moved.peer) is RecordTrust.VERIFIED, timeout_s=10)
        assert known.addresses(moved.peer) == (moved.address,)
        assert moved.peer not in late.service._dialler.lost
