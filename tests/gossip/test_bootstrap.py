"""A bootstrap node: members find each other through it, never mistake it for one of them, and go on without it."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from gossip_liars import Liar
from gossip_samples import ALICE, BOB, CAROL, GENESIS, ONE_OF_EACH, SCOPE, record
from gossip_swarm import CONFIG, FakeRuntime, Swarm, all_follow, identity, play, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.bootstrap import MAX_PROBES, MAX_STREAMS, BootstrapService
from gossip.bootstrap_state import FRESH_S, MAX_OF_NETWORK, MAX_RUNS, MISSES, BootstrapState
from gossip.core.backoff import host_of
from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import EnvelopeKind, Scope, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.core.limits import MAX_HELLO_BYTES, STREAM_PROTOCOL
from gossip.core.messages import (
    FindRequest,
    GoodbyeRequest,
    HeadersRequest,
    Hello,
    Refused,
    parse_bytes_answer,
    parse_empty_answer,
    parse_hello,
)
from gossip.core.request_limit import STRANGER_BURST, STRANGER_PER_S
from gossip.core.statements import record_statement
from gossip.discovery.peerstore_file_task import SAVE_EVERY_S
from gossip.hellos.hello import HELLO_BURST
from gossip.session import ask_once, open_session
from gossip.transport.base import TransportError
from gossip.transport.memory.network import MemoryTransport

ME = Identity(b"\x63" * 32)


def hello(by: Identity = ALICE, **changes) -> bytes:
    fields = {"scope": SCOPE, "genesis": GENESIS, "neighbours": 0, "admitted": True, "record": record(by=by)} | changes
    return Hello(**fields).encode()


def address_of(key: Identity) -> str:
    return f"/memory/1/p2p/{key.peer_id}"


@pytest.fixture
def it() -> BootstrapState:
    return BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1))


# -- what it decides


def test_the_answer_admits_nobody_and_has_no_record_of_its_own(it):
    answer = parse_hello(it.on_hello(ALICE.peer_id, hello(), 0.0))
    assert (answer.scope, answer.genesis, answer.admitted, answer.neighbours) == (SCOPE, GENESIS, False, 0)
    assert (answer.record, answer.link, answer.records) == (b"", b"", ())


def test_a_record_is_told_once_its_signer_answered_and_no_more_when_it_does_not(it):
    it.on_hello(ALICE.peer_id, hello(), 0.0)
    assert it.to_try(0.0) == [(ALICE.peer_id, address_of(ALICE))]
    assert parse_hello(it.on_hello(BOB.peer_id, hello(BOB), 0.0)).records == ()
    it.answered(ALICE.peer_id, address_of(ALICE), 1.0)
    assert parse_hello(it.on_hello(BOB.peer_id, hello(BOB), 1.0)).records == (record(by=ALICE),)
    assert it.members == 1
    assert ALICE.peer_id not in dict(it.to_try(1.0))
    assert ALICE.peer_id in dict(it.to_try(1.0 + FRESH_S))
    for _ in range(MISSES):
        it.missed(ALICE.peer_id)
    assert it.members == 0
    assert ALICE.peer_id not in dict(it.to_try(1.0 + FRESH_S))


def test_records_of_one_run_are_not_told_to_another(it):
    other = Scope(swarm=SCOPE.swarm, run=RunId(b"o" * 16))
    for raw in (hello(), hello(BOB, genesis=digest_of(b"another model"))):
        it.on_hello(ALICE.peer_id if raw == hello() else BOB.peer_id, raw, 0.0)
    it.answered(ALICE.peer_id, address_of(ALICE), 0.0)
    it.answered(BOB.peer_id, address_of(BOB), 0.0)
    carol = {"record": b""}
    assert parse_hello(it.on_hello(CAROL.peer_id, hello(CAROL, **carol), 0.0)).records == (record(by=ALICE),)
    assert parse_hello(it.on_hello(CAROL.peer_id, hello(CAROL, **carol, scope=other), 0.0)).records == ()
    assert it.runs == 3


def test_runs_are_bounded_and_the_one_with_members_stays(it):
    it.on_hello(ALICE.peer_id, hello(), 0.0)
    it.answered(ALICE.peer_id, address_of(ALICE), 0.0)
    for number in range(3 * MAX_RUNS):
        scope = Scope(swarm=SCOPE.swarm, run=RunId(bytes([number]) * 16))
        it.on_hello(identity(number + 500).peer_id, hello(CAROL, scope=scope, record=b""), 0.0)
    assert it.runs == MAX_RUNS
    assert it.members == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scope": Scope(swarm=swarm_id_of("x"), run=SCOPE.run)}, Reason.WRONG_SWARM),
        ({"record": record(by=BOB)}, Reason.FORGED),
        ({"record": ONE_OF_EACH[EnvelopeKind.LINK]}, Reason.UNKNOWN_KIND),
        ({"record": b"junk"}, Reason.MALFORMED),
    ],
)
def test_hellos_that_are_refused(it, changes, reason):
    with pytest.raises(RemoteError) as caught:
        it.on_hello(ALICE.peer_id, hello(**changes), 0.0)
    assert caught.value.reason is reason
    assert it.peers_known == 0


def test_a_flood_of_hellos_is_charged_and_bans_in_the_end(it):
    for _ in range(HELLO_BURST):
        it.on_hello(ALICE.peer_id, hello(), 0.0)
    for _ in range(500):
        with pytest.raises(RemoteError):
            it.on_hello(ALICE.peer_id, hello(), 0.0)
    assert it.peer_scores.scores.banned(ALICE.peer_id, 0.0)
    assert it.peers_known == 0
    it.on_hello(BOB.peer_id, hello(BOB), 0.0)


def test_what_it_knows_outlives_it_but_is_told_only_when_it_answers_again(it):
    it.on_hello(ALICE.peer_id, hello(), 0.0)
    it.answered(ALICE.peer_id, address_of(ALICE), 0.0)
    it.on_hello(BOB.peer_id, hello(BOB), 0.0)
    again = BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1))
    assert it.changed
    assert again.recall(it.dump()) == 1
    assert not it.changed
    assert (again.members, again.runs) == (0, 1)
    assert again.to_try(0.0) == [(ALICE.peer_id, address_of(ALICE))]
    again.answered(ALICE.peer_id, address_of(ALICE), 0.0)
    assert parse_hello(again.on_hello(BOB.peer_id, hello(BOB), 0.0)).records == (record(by=ALICE),)


@given(st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)))
@pytest.mark.parametrize("prefix", [b"", b'{"format": 1, "runs": [{"run": "00", "genesis": "", "book": "'])
def test_any_bytes_are_a_dump_or_a_plain_refusal(prefix, data):
    with pytest.raises(LocalError):
        BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1)).recall(prefix + data)


def test_who_is_banned_finds_nobody(it):
    it.on_hello(ALICE.peer_id, hello(), 0.0)
    question = FindRequest(
        swarm=SCOPE.swarm, run=SCOPE.run, genesis=GENESIS, target=digest_of(b"anywhere"), record=record(by=BOB)
    )
    assert it.on_find(BOB.peer_id, question, 0.0) == []
    assert it.peers_known == 2
    while not it.charge(BOB.peer_id, RemoteError(Reason.FORGED, "a lie"), 0.0):
        pass
    with pytest.raises(RemoteError) as caught:
        it.on_find(BOB.peer_id, question, 0.0)
    assert caught.value.reason is Reason.BANNED
    assert it.peers_known == 1, "nor is its record kept again"


def test_askers_of_one_network_have_its_share_of_records_in_all_runs_together(it):
    scopes = [SCOPE, Scope(swarm=SCOPE.swarm, run=RunId(b"o" * 16))]
    for scope in scopes:
        it.on_hello(ALICE.peer_id, hello(scope=scope, record=b""), 0.0, "198.51.100.0/24")
    for number in range(MAX_OF_NETWORK + 20):
        key, scope = identity(1000 + number), scopes[number % 2]
        own = seal(key, scope, record_statement(epoch=1, version=1, addresses=(address_of(key),))).raw
        question = FindRequest(swarm=scope.swarm, run=scope.run, genesis=GENESIS, target=digest_of(b"x"), record=own)
        it.on_find(key.peer_id, question, 0.0, "203.0.113.0/24")
    assert it.peers_known == MAX_OF_NETWORK


async def test_silent_hosts_of_one_network_have_a_quarter_of_the_probes(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        probed: list[str] = []

        async def probe(address: str) -> str:
            probed.append(address)
            await trio.sleep_forever()

        post.transport.probe = probe  # type: ignore[method-assign]
        crowd = [f"/ip4/8.8.8.{number}/tcp/1" for number in range(2 * MAX_PROBES)]
        others = [f"/ip4/9.9.{number}.9/tcp/1" for number in range(2)]
        found = [(identity(number).peer_id, address) for number, address in enumerate([*crowd, *others], 1)]
        post.service.bootstrap_state.to_try = lambda now: found  # type: ignore[method-assign]
        post.service._probe_some(nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert len(probed) == MAX_PROBES // 4 + len(others)
        assert {*others} <= {*probed}
        nursery.cancel_scope.cancel()


# -- among members


class Post:
    """A running bootstrap node, and what it told its operator."""

    def __init__(self, it: Swarm, number: int, path: Path | None = None) -> None:
        key = identity(number)
        self.transport: MemoryTransport = it.network.attach(key.peer_id)
        self.warnings: list[str] = []
        config = replace(CONFIG, address_book=path)
        self.service = BootstrapService(
            identity=key, transport=self.transport, config=config, rng=random.Random(1), warn=self.warnings.append
        )
        self.scope = trio.CancelScope()

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.service.run(task_status=task_status)


async def members(it: Swarm, post: Post, count: int) -> list[FakeRuntime]:
    """So many that know nothing but the bootstrap node, each with a chain."""
    nodes = [await it.start(number, peers=(post.address,)) for number in range(1, count + 1)]
    for node in nodes:
        await node.begin()
    return nodes


async def test_an_address_book_that_could_not_be_written_is_written_when_it_can(tmp_path, autojump_clock):
    """After a full disk what was known was not written before somebody new came, and the warning came every time."""
    path = tmp_path / "away" / "book"
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900, path)
        await nursery.start(post.run)
        state = post.service.bootstrap_state
        for turn, key in enumerate((ALICE, BOB)):
            state.on_hello(key.peer_id, hello(key), trio.current_time())
            state.answered(key.peer_id, address_of(key), trio.current_time())
            await trio.sleep(2 * SAVE_EVERY_S)
            assert not state.changed
            assert len(post.warnings) == 1, turn
        path.parent.mkdir()
        await trio.sleep(2 * SAVE_EVERY_S)
        assert BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1)).recall(path.read_bytes()) == 2
        path.unlink()
        path.parent.rmdir()
        state.on_hello(CAROL.peer_id, hello(CAROL), trio.current_time())
        await trio.sleep(2 * SAVE_EVERY_S)
        assert len(post.warnings) == 2, "another outage"
        path.parent.mkdir()
        nursery.cancel_scope.cancel()
    assert path.exists(), "written at the end at the latest"


@pytest.mark.slow
async def test_members_that_know_only_the_bootstrap_node_find_each_other_and_go_on_without_it(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        await nursery.start(post.run)
        nodes = await members(it, post, 4)
        await until(lambda: all(len(node.service.neighbours()) == 3 for node in nodes), timeout_s=30)
        assert all(node.service.met_bootstrap for node in nodes)
        await until(lambda: all_follow(nodes))
        views = await play(nodes, range(1, 4))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        assert {view.neighbours for row in views for view in row} == {3}
        for node in nodes:
            assert post.peer not in node.service.neighbours()
            assert post.peer not in {known.peer for known in node.service._engine.peerstore.known()}
            assert not [event for event in node.told("rejected") if event.reason is not Reason.UNAVAILABLE]
        post.scope.cancel()
        await trio.sleep(120)
        assert all(len(node.service.neighbours()) == 3 for node in nodes)
        late = await it.start(9, peers=(nodes[0].address, post.address))
        await until(lambda: len(late.service.neighbours()) == 4)
        nursery.cancel_scope.cancel()


async def test_a_restarted_bootstrap_node_tells_of_those_it_knew(autojump_clock, tmp_path):
    path = tmp_path / "addresses.json"
    async with swarm() as it, trio.open_nursery() as nursery:
        first = Post(it, 900, path)
        await nursery.start(first.run)
        nodes = await members(it, first, 2)
        await until(lambda: first.service.bootstrap_state.members == 2)
        first.scope.cancel()
        await trio.sleep(0.1)
        for node in nodes:
            node.service._context.transport.dial = _nowhere  # they do not come back by themselves
        again = Post(it, 900, path)
        await nursery.start(again.run)
        await until(lambda: again.service.bootstrap_state.members == 2, timeout_s=30)
        late = await it.start(9, peers=(again.address,))
        await until(lambda: len(late.service.neighbours()) == 2, timeout_s=30)
        assert not again.warnings
        nursery.cancel_scope.cancel()


async def _nowhere(address: str) -> None:
    raise TransportError("nobody there")


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_member_that_is_gone_is_not_told_of_for_ever(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        await nursery.start(post.run)
        nodes = await members(it, post, 3)
        await until(lambda: post.service.bootstrap_state.members == 3)
        nodes[2].scope.cancel()
        await until(lambda: post.service.bootstrap_state.members == 2, timeout_s=3600)
        await trio.sleep(2 * FRESH_S)
        assert post.service.bootstrap_state.members == 2, "those that are there stay"
        nursery.cancel_scope.cancel()


async def test_a_host_of_which_lies_were_told_is_probed_when_its_member_calls_from_there(autojump_clock):
    """Made-up members at the host of somebody who comes later, or others of its link that cannot be reached: newcomers
    were not told of it for up to an hour."""
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        await nursery.start(post.run)
        newcomer = it.make(9, peers=(post.address,))
        host = newcomer.address.partition("/p2p/")[0]
        for number in range(80):
            key = Identity(number.to_bytes(2, "big") + bytes(30))
            lie = record(by=key, addresses=(f"{host}/{number}/p2p/{key.peer_id}",))
            post.service.bootstrap_state.on_hello(key.peer_id, hello(key, record=lie), trio.current_time())
            await trio.sleep(12)
        assert not post.service._hosts.due(host_of(newcomer.address), trio.current_time())
        await it.launch(newcomer)
        await until(lambda: post.service.bootstrap_state.members == 1, timeout_s=5)
        nursery.cancel_scope.cancel()


async def test_a_damaged_book_is_told_of_and_nothing_but_hellos_is_served(autojump_clock, tmp_path):
    path = tmp_path / "addresses.json"
    path.write_bytes(b"{")
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900, path)
        await nursery.start(post.run)
        assert "cannot be used" in post.warnings[0]
        liar = Liar(identity(66), it.network.attach(identity(66).peer_id))
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        await liar.transport.dial(post.address)
        with pytest.raises(Refused, match="trains nothing"):
            parse_bytes_answer(
                await ask_once(liar.transport, post.peer, HeadersRequest(epoch=1, first=0, count=1), 5.0, 1 << 20),
                MAX_HELLO_BYTES,
            )
        streams = [await liar.transport.open_stream(post.peer, STREAM_PROTOCOL) for _ in range(4)]
        await trio.sleep(1)
        assert post.service.serving <= MAX_STREAMS
        for stream in streams:
            await stream.reset()
        for _ in range(3):
            stream = await liar.transport.open_stream(post.peer, STREAM_PROTOCOL)
            await stream.send_all((3).to_bytes(4, "big") + b"\xc1\xc1\xc1")
            with pytest.raises(TransportError):
                await stream.receive_some(10)
        await until(lambda: liar.peer not in post.transport.peers)
        assert post.service.stats.rejected_by_reason[Reason.MALFORMED] >= 1
        with pytest.raises((RemoteError, TransportError)):
            await liar.greet(post)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


async def test_requests_without_end_are_answered_at_a_pace(autojump_clock):
    """Goodbyes cost nothing to say, and nothing was charged: two streams of them took a core."""
    requests = 5 * STRANGER_BURST
    async with swarm() as it, trio.open_nursery() as nursery:
        post = Post(it, 900)
        await nursery.start(post.run)
        liar = Liar(identity(66), it.network.attach(identity(66).peer_id))
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        await liar.transport.dial(post.address)
        began = trio.current_time()
        async with open_session(liar.transport, post.peer, 5.0) as session:
            for _ in range(requests):
                parse_empty_answer(await session.ask(GoodbyeRequest(envelope=b"")))
        assert trio.current_time() - began >= (requests - STRANGER_BURST) / STRANGER_PER_S - 0.1
        nursery.cancel_scope.cancel()
