"""A dedicated relay: nodes that reach nobody else take part through it, and nobody has it dial what it should not."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from gossip_samples import ALICE, BOB, CAROL, GENESIS, SCOPE, record
from gossip_swarm import CONFIG, FakeRuntime, Swarm, all_follow, identity, play, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from relay_swarm import RESERVE, Quiet, asked, circuit_to, status_of

from gossip.core.digests import swarm_id_of
from gossip.core.errors import GossipError, LocalError, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.messages import Hello, encode_answer, parse_hello
from gossip.discovery.routing_table import place_of_id
from gossip.reachability.circuit import CircuitStatus
from gossip.reachability.relay import CircuitBounds, Circuits, circuit_address
from gossip.relay_service import RelayService, dialled_outside
from gossip.relay_state import ASK_EVERY_S, MAX_WANTED, RelayState

ME = Identity(b"\x63" * 32)


class Login:
    """A relay on the in-memory network. Whoever dials it is a client, as where `network.allow` holds."""

    def __init__(self, it: Swarm, number: int, peers: tuple[str, ...], **changes: object) -> None:
        key = identity(number)
        self.transport = it.network.attach(key.peer_id)
        self.scope = trio.CancelScope()
        self.warnings: list[str] = []
        self.service = RelayService(
            identity=key,
            transport=self.transport,
            config=CONFIG.__class__(**({"hash_in_thread_above": 1 << 40, "peers": peers} | changes)),
            rng=random.Random(number),
            warn=self.warnings.append,
            connect=self.transport.connect_bare,
            outside=lambda address: True,
            unix_time=trio.current_time,
        )

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.service.run(task_status=task_status)


async def cluster(it: Swarm, nursery: trio.Nursery, **changes: object) -> tuple[Login, list[FakeRuntime]]:
    """Two members, a relay that knows the first, and two clients that know nothing but the relay."""
    first = await it.start(1)
    second = await it.start(2, peers=(first.address,))
    login = Login(it, 900, (first.address,), **changes)
    await nursery.start(login.run)
    clients = [await it.start(number, via=login.address) for number in (3, 4)]
    nodes = [first, second, *clients]
    for node in nodes:
        await node.begin()
    return login, nodes


def connected(nodes: list[FakeRuntime]) -> bool:
    return all(len(node.service.neighbours()) == len(nodes) - 1 for node in nodes)


@pytest.mark.slow
async def test_clients_train_with_members_and_with_each_other_and_go_on_when_the_relay_is_back(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        login, nodes = await cluster(it, nursery)
        await until(lambda: connected(nodes))
        await until(lambda: all_follow(nodes))
        views = await play(nodes, range(1, 4))
        assert {view.neighbours for row in views for view in row} == {3}
        assert login.service.clients() == 2
        assert login.service.relaying().circuits == 5, "two clients with two members each, and with each other"
        assert {node.transport.linked for node in nodes[2:]} == {frozenset({login.peer})}, "they dial nobody else"
        assert login.peer not in {peer for node in nodes for peer in node.service.neighbours()}

        login.scope.cancel()
        await until(lambda: all(not node.service.neighbours() for node in nodes[2:]))
        await trio.sleep(600)
        assert connected(nodes[:2]), "the others go on"
        again = Login(it, 900, (nodes[0].address,))
        again.transport._address = login.address
        await nursery.start(again.run)
        began = trio.current_time()
        await until(lambda: connected(nodes), timeout_s=180)
        told = [event.detail for event in nodes[2].told("reachability")]
        assert [words.split()[0:4] for words in told] == [
            ["this", "node", "reaches", "the"],
            ["the", "relay", login.peer, "is"],
            ["this", "node", "reaches", "the"],
        ]
        assert trio.current_time() - began < 120
        assert not [event for node in nodes for event in node.told("rejected")]
        nursery.cancel_scope.cancel()


async def test_it_serves_clients_alone_and_names_members_alone(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        login, nodes = await cluster(it, nursery)
        await until(lambda: connected(nodes))
        member, client = nodes[1], nodes[2]
        await login.transport.dial(member.address)
        for ask in (RESERVE, circuit_to(client.peer)):
            assert await status_of(member, login, ask) == CircuitStatus.PERMISSION_DENIED
        for unknown in (identity(77).peer_id, client.peer):
            assert await status_of(client, login, circuit_to(unknown)) == CircuitStatus.NO_RESERVATION
        nursery.cancel_scope.cancel()


async def test_bytes_to_members_keep_to_the_bound(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        login, nodes = await cluster(it, nursery, relay_bytes_per_s=20_000.0)
        await until(lambda: connected(nodes))
        await until(lambda: all_follow(nodes))
        before, began = login.service.relaying().carried_bytes, trio.current_time()
        await nodes[0].publish(1, random.Random(1).randbytes(200_000))
        await until(lambda: all(node.follows(nodes[0]) for node in nodes[1:]))
        carried, took_s = login.service.relaying().carried_bytes - before, trio.current_time() - began
        assert carried >= 2 * 200_000
        assert carried / took_s <= 1.1 * 20_000
        nursery.cancel_scope.cancel()


# -- what it decides


def relay_state(
    *clients: Identity, outside: Callable[[str], bool] = lambda address: True, operators: tuple[Identity, ...] = ()
) -> RelayState:
    inside = {each.peer_id for each in clients}
    named = {each.peer_id: f"/memory/1/p2p/{each.peer_id}" for each in operators}
    return RelayState(
        ME, swarm_id_of("p2ptrain"), random.Random(1), is_client=inside.__contains__, outside=outside, operators=named
    )


def hello(by: Identity, raw: bytes) -> bytes:
    return Hello(scope=SCOPE, genesis=GENESIS, neighbours=0, admitted=True, record=raw).encode()


def found(*records: bytes, own: bytes = b"") -> bytes:
    return encode_answer(own, list(records))


def only_run(state: RelayState):
    (key,) = state._runs
    return key


def test_a_client_that_names_an_address_has_it_dialled_by_nobody():
    state = relay_state(ALICE)
    state.on_hello(ALICE.peer_id, hello(ALICE, record(by=ALICE)), 0.0)
    assert state.to_try(0.0) == []
    assert state.peers_known == 0
    through_us = record(by=ALICE, addresses=(circuit_address(ME.peer_id, ALICE.peer_id),))
    state.on_hello(ALICE.peer_id, hello(ALICE, through_us), 0.0)
    assert state.to_try(0.0) == [(ALICE.peer_id, circuit_address(ME.peer_id, ALICE.peer_id))]


def test_a_member_is_where_it_proved_its_key_and_no_longer_when_it_does_not_answer():
    state = relay_state(ALICE)
    state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)
    state.on_find_answer(only_run(state), CAROL.peer_id, found(record(by=BOB)), "")
    ((peer, address),) = state.to_try(0.0)
    assert (peer, state.where(BOB.peer_id)) == (BOB.peer_id, None), "another's word alone"
    state.answered(BOB.peer_id, address, 0.0)
    assert state.where(BOB.peer_id) == address
    assert state.to_try(1.0) == []
    state.missed(BOB.peer_id)
    assert state.where(BOB.peer_id) is None


def test_what_members_name_inside_is_not_dialled():
    state = relay_state(ALICE, outside=lambda address: False)
    state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)
    state.on_find_answer(only_run(state), CAROL.peer_id, found(record(by=BOB)), "")
    assert state.peers_known == 1
    assert state.to_try(0.0) == []


def test_whom_the_operator_named_is_dialled_wherever_it_is():
    state = relay_state(ALICE, outside=lambda address: False, operators=(BOB,))
    assert state.where(BOB.peer_id) == f"/memory/1/p2p/{BOB.peer_id}"
    state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)
    state.on_find_answer(only_run(state), BOB.peer_id, found(record(by=CAROL), own=record(by=BOB)), "")
    assert state.to_try(0.0) == [(BOB.peer_id, f"/memory/1/p2p/{BOB.peer_id}")], "clients are told of who answers"


def test_members_are_told_to_clients_alone():
    state = relay_state(ALICE)
    state.on_hello(BOB.peer_id, hello(BOB, record(by=BOB)), 0.0)
    state.answered(BOB.peer_id, f"/memory/1/p2p/{BOB.peer_id}", 0.0)
    assert parse_hello(state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)).records == (record(by=BOB),)
    assert parse_hello(state.on_hello(CAROL.peer_id, hello(CAROL, b""), 0.0)).records == ()


def test_members_are_asked_in_turn_and_for_whom_a_client_wants():
    state = relay_state(ALICE, operators=(BOB, CAROL))
    assert state.next_question(0.0) is None, "in whose run?"
    state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)
    asked_now = [state.next_question(0.0) for _ in range(3)]
    assert {each[1] for each in asked_now[:2]} == {BOB.peer_id, CAROL.peer_id}
    assert asked_now[2] is None
    state.want(identity(7).peer_id)
    key, _, _ = state.next_question(2.0)
    assert int.from_bytes(state.question(key).target, "big") == place_of_id(SCOPE, identity(7).peer_id)
    assert state.next_question(3.0) is None
    assert state.next_question(2.0 + ASK_EVERY_S) is not None


def test_what_clients_want_is_bounded():
    state = relay_state(ALICE)
    for number in range(3 * MAX_WANTED):
        state.want(identity(number + 100).peer_id)
    assert len(state._wanted) == MAX_WANTED


@given(st.binary(max_size=300))
def test_an_answer_of_any_bytes_is_an_answer_or_a_fault(raw):
    state = relay_state(ALICE)
    state.on_hello(ALICE.peer_id, hello(ALICE, b""), 0.0)
    with suppress(RemoteError):
        state.on_find_answer(only_run(state), CAROL.peer_id, raw, "")
    assert state.peers_known == 0


@pytest.mark.parametrize(
    ("address", "dialled"),
    [
        ("/ip4/8.8.8.8/tcp/4001", True),
        ("/ip6/2606:4700::1/tcp/4001", True),
        ("/ip4/172.20.1.2/tcp/4001", True),
        ("/ip4/192.168.1.2/tcp/22", False),
        ("/ip4/127.0.0.1/tcp/6379", False),
        ("/ip6/::ffff:127.0.0.1/tcp/6379", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("/ip4/10.20.0.7/tcp/4001", False),
        ("/ip6/64:ff9b::808:808/tcp/4001", True),
        ("/ip6/64:ff9b::a14:7/tcp/4001", False),
        ("/ip6/64:ff9b::7f00:1/tcp/22", False),
        ("/ip6/2002:a14:7::1/tcp/4001", False),
        ("/ip6/::10.20.0.7/tcp/4001", False),
        ("/ip6/fec0::1/tcp/22", False),
        ("/ip4/224.0.0.1/tcp/4001", False),
        ("/dns4/inside.example/tcp/22", False),
        ("/ip4/8.8.8.8.example/tcp/22", False),
        ("", False),
    ],
)
def test_a_relay_dials_the_internet_and_what_its_operator_named(address, dialled):
    outside = dialled_outside(("10.20.0.0/16",), ("172.20.0.0/16", "10.0.0.0/8"))
    assert outside(address) is dialled


def test_what_is_no_network_is_refused():
    with pytest.raises(LocalError, match=r"one looks like 192\.0\.2\.0/24"):
        dialled_outside(("10.20.0.1/16",), ())


def test_circuits_onward_count_for_the_asker_alone():
    circuits = Circuits(1e6, CircuitBounds(circuits=3, of_peer=2))
    one, other = ALICE.peer_id, BOB.peer_id
    taken = [circuits.take_onward(peer) for peer in (one, one, one, other, other)]
    assert taken == [
        CircuitStatus.OK,
        CircuitStatus.OK,
        CircuitStatus.RESOURCE_LIMIT_EXCEEDED,
        CircuitStatus.OK,
        CircuitStatus.RESOURCE_LIMIT_EXCEEDED,
    ]
    circuits.leave(one)
    assert len(circuits) == 2
    assert circuits.take_onward(other) is CircuitStatus.OK


@pytest.mark.slow
async def test_a_client_that_breaks_the_wire_costs_itself(autojump_clock):
    """Garbage, floods and circuits to nobody: the others' circuits stay."""
    async with swarm() as it, trio.open_nursery() as nursery:
        login, nodes = await cluster(it, nursery)
        await until(lambda: connected(nodes))
        liar = it.network.attach(identity(66).peer_id)
        await nursery.start(liar.run, Quiet())
        await liar.dial(login.address)
        for _ in range(400):
            with suppress(GossipError):
                await asked(liar, login, b"\x08\x07")
        assert login.service.stats.rejected
        await trio.sleep(60)
        assert connected(nodes)
        nursery.cancel_scope.cancel()


async def test_a_run_that_makes_room_while_one_of_its_members_is_asked_is_asked_nothing(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        login, nodes = await cluster(it, nursery)
        await until(lambda: connected(nodes))
        state = login.service._state
        key = next(iter(state._runs))
        question = state.question(key)
        assert question is not None
        gone = dict(state._runs)
        state._runs.clear()
        assert state.question(key) is None
        login.service._asking[nodes[0].peer] = trio.Event()
        await login.service._ask(key, nodes[0].peer, nodes[0].address)  # with no run, it ends and harms nobody
        state._runs.update(gone)
        nursery.cancel_scope.cancel()
