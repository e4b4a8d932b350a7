"""Finding peers again, and not being sent to strangers: the book on disk, outages, probes, dials at others' word."""

import random
from dataclasses import replace

import pytest
import trio
from gossip_liars import Liar
from gossip_samples import ALICE, BOB, SCOPE, record
from gossip_swarm import RUN, FakeRuntime, Swarm, identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.backoff import host_of
from gossip.core.envelope import Scope, open_envelope
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import Hello, HelloRequest, parse_bytes_answer
from gossip.core.statements import parse_record
from gossip.discovery.dialler_task import MAX_DIALS, MAX_DIALS_ALONE
from gossip.discovery.peerstore import MAX_DUMP_BYTES, MAX_RECORDS, PeerStore, RecordTrust, _Known
from gossip.discovery.peerstore_file_task import load_peerstore, save_peerstore
from gossip.reachability.probe_task import PROBES_BURST
from gossip.session import ask_once
from gossip.transport.base import TransportError
from gossip.transport.memory.network import LinkQuality

PERIOD_S = 60.0
"""The longest back-off, network.redial_max_s."""


def reached(it: PeerStore, key: Identity, address: str = "/memory/1") -> None:
    it.learn(
        parse_record(open_envelope(record(by=key, addresses=(f"{address}/p2p/{key.peer_id}",)), SCOPE)), first_hand=True
    )
    it.reached(key.peer_id, f"{address}/p2p/{key.peer_id}")


# -- the book on disk


def test_a_dump_brings_back_those_who_were_reached_and_nobody_else(tmp_path):
    it, again = PeerStore(), PeerStore()
    reached(it, ALICE)
    it.learn(parse_record(open_envelope(record(by=BOB), SCOPE)), first_hand=True)
    assert again.recall(it.dump(), SCOPE) == 1
    assert again.standing(ALICE.peer_id) is RecordTrust.KEPT
    assert again.sample(random.Random(1), without=PeerId("")) == (), "it must be reached again to be told of"
    third = PeerStore()
    assert third.recall(again.dump(), SCOPE) == 1, "also after a life in which it was not reached"


def test_a_dump_of_another_run_is_empty_and_one_that_was_tampered_with_too():
    it = PeerStore()
    reached(it, ALICE)
    assert PeerStore().recall(it.dump(), Scope(swarm=SCOPE.swarm, run=RunId(b"o" * 16))) == 0
    raw = bytearray(record(by=BOB))
    raw[-1] ^= 1
    it.learn(parse_record(open_envelope(record(by=BOB), SCOPE)), first_hand=True)
    it._known[BOB.peer_id].record = replace(it._known[BOB.peer_id].record, raw=bytes(raw))
    it.reached(BOB.peer_id, it.addresses(BOB.peer_id)[0])
    again = PeerStore()
    assert again.recall(it.dump(), SCOPE) == 1
    assert again.standing(BOB.peer_id) is RecordTrust.HEARSAY


@given(st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)))
def test_any_bytes_are_a_dump_or_a_plain_refusal(data):
    it = PeerStore()
    try:
        assert it.recall(data, SCOPE) == 0
    except LocalError:
        assert len(it) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format": 2, "records": []}',
        b'{"format": 1}',
        b'{"format": 1, "records": 7}',
        b'{"format": 1, "records": [7]}',
        b'{"format": 1, "records": ["*"]}',
        b"[" * 100_000,
        b'{"format": 1, "records": []}' + b" " * MAX_DUMP_BYTES,
    ],
    ids=range(9),
)
def test_what_is_no_dump_is_said_to_be_none(data):
    with pytest.raises(LocalError):
        PeerStore().recall(data, SCOPE)


def test_a_dump_cut_short_anywhere_is_refused():
    it = PeerStore()
    reached(it, ALICE)
    data = it.dump().rstrip()
    for size in range(len(data)):
        with pytest.raises(LocalError):
            PeerStore().recall(data[:size], SCOPE)


def test_the_largest_book_fits_its_file(tmp_path):
    it = PeerStore()
    for number in range(MAX_RECORDS + 5):
        key = identity(number + 1)
        reached(it, key, "/dns4/" + "a" * 150 + "/tcp/4001")
    save_peerstore(tmp_path / "book", it)
    assert not it.changed
    again = PeerStore()
    load_peerstore(tmp_path / "book", again, SCOPE)
    assert len(again) == MAX_RECORDS
    assert [path.name for path in tmp_path.iterdir()] == ["book"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    it = PeerStore()
    reached(it, ALICE)
    with pytest.raises(LocalError, match="cannot write"):
        save_peerstore(tmp_path / "nowhere" / "book", it)
    load_peerstore(tmp_path / "none", it, SCOPE)  # no file is no mistake


async def test_a_restarted_node_finds_the_swarm_though_its_bootstrap_peer_is_gone(autojump_clock, tmp_path):
    path = tmp_path / "addresses.json"
    async with swarm() as it:
        first, other = await it.start_all(2)
        node = await it.start(3, peers=(first.address,), address_book=path)
        await until(lambda: len(node.service.neighbours()) == 2)
        await trio.sleep(20)
        node.scope.cancel()
        first.scope.cancel()
        await until(lambda: not other.service.neighbours())
        again = await it.start(3, peers=(first.address,), address_book=path)
        await until(lambda: other.peer in again.service.neighbours(), timeout_s=5)
        assert not again.told("warning")


async def test_a_damaged_book_is_told_of_and_the_node_starts_without_it(autojump_clock, tmp_path):
    path = tmp_path / "addresses.json"
    path.write_bytes(b'{"format": 1, "reco')
    async with swarm() as it:
        first = await it.start(1)
        node = await it.start(3, peers=(first.address,), address_book=path)
        (warning,) = node.told("warning")
        assert "damaged" in warning.detail
        assert "starting with an empty one" in warning.detail
        await until(lambda: len(node.service.neighbours()) == 1)
        await trio.sleep(60)
        assert PeerStore().recall(path.read_bytes(), SCOPE) == 1, "it is written anew"


# -- outages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "config"),
    [(10, {}), pytest.param(180, {"heartbeat_s": 60.0, "silence_s": 300.0}, marks=pytest.mark.thorough)],
)
async def test_a_node_cut_from_all_is_back_within_two_back_off_periods(autojump_clock, minutes, config):
    """The three hours with few heartbeats, which are most of the work: redialling does not go by them."""
    async with swarm() as it:
        nodes = await it.start_all(4, **config)
        cut, *others = nodes
        it.network.part([cut.peer], [node.peer for node in others])
        await trio.sleep(60 * minutes)
        assert not cut.service.neighbours()
        it.network.heal()
        await until(lambda: len(cut.service.neighbours()) == 3, timeout_s=2 * PERIOD_S)


@pytest.mark.slow
async def test_so_it_is_when_its_bootstrap_peer_is_gone_and_it_alone_dials(autojump_clock):
    """It knows the others from the book alone, and they have dropped it: nobody but it can mend this."""
    async with swarm() as it:
        first, *rest = await it.start_all(4)
        cut, *others = rest
        await trio.sleep(30)
        first.scope.cancel()
        it.network.part([cut.peer], [node.peer for node in others])
        for node in others:
            node.service._engine.peerstore.forget(cut.peer)
            node.service._engine.peerstore.learn = lambda record, **how: False  # type: ignore[method-assign]
        await trio.sleep(600)
        it.network.heal()
        await until(lambda: len(cut.service.neighbours()) == 2, timeout_s=2 * PERIOD_S)


@pytest.mark.slow
async def test_who_alone_can_dial_is_back_soon_after_an_outage_between_two(autojump_clock, monkeypatch):
    """The other names addresses that its own network alone has, too, as most do: their failed dials counted against it,
    and it was left alone for an hour."""
    async with swarm() as it:
        first = await it.start(1)
        other = it.make(2, peers=(first.address,))
        inside = tuple(f"/memory/{number}/p2p/{other.peer}" for number in (90, 91, 92))
        announced = property(lambda self: (self._address, *(inside if self is other.transport else ())))
        monkeypatch.setattr(type(other.transport), "addresses", announced)
        await it.launch(other)
        cut = it.make(3, peers=(first.address,))
        it.network.hide(cut.peer)
        await it.launch(cut)
        await until(lambda: other.peer in cut.service.neighbours())
        await trio.sleep(60)
        it.network.cut(cut.peer, other.peer)
        await trio.sleep(180)
        assert set(cut.service.neighbours()) == {first.peer}
        it.network.heal()
        await until(lambda: other.peer in cut.service.neighbours(), timeout_s=2 * PERIOD_S)


async def test_every_address_of_a_peer_is_tried(autojump_clock):
    """Seven that hang until they are given up, and one that answers; the library tries two."""
    async with swarm() as it:
        first, other = it.make(1), it.make(2)
        dead = [f"/memory/{number}/p2p/{first.peer}" for number in range(90, 97)]
        addresses = (*dead, first.address)
        node = await it.start(3, peers=(other.address,))
        peerstore = node.service._engine.peerstore
        peerstore.learn(
            parse_record(open_envelope(record(by=identity(1), addresses=addresses), SCOPE)), first_hand=True
        )
        peerstore.reached(first.peer, dead[0])
        dials = Dials(it)
        dials.watch(node)
        it.network.stall(first.peer)
        await trio.sleep(200)
        assert {address for _, _, address in dials.all} >= set(addresses)
        it.network.unstall(first.peer)
        await it.launch(first)
        await until(lambda: first.peer in node.service.neighbours(), timeout_s=2 * PERIOD_S)


async def test_after_an_outage_many_dead_addresses_do_not_stand_before_a_live_one(autojump_clock):
    """Each takes a dial's whole time: a hundred of them, four at once, were six minutes."""
    async with swarm() as it:
        node = it.make(1)
        for number in range(100, 200):
            key = identity(number)
            dead = _Known(parse_record(open_envelope(record(by=key), SCOPE)), kept=True)
            node.service._engine.peerstore._put(dead)
            it.network.stall(key.peer_id)
        under_way: list[str] = []
        most = [0, 0]
        real = node.transport.dial

        async def noted(address: str) -> PeerId:
            under_way.append(address)
            alone = not node.transport.peers
            most[alone] = max(most[alone], len(under_way))
            try:
                return await real(address)
            finally:
                under_way.remove(address)

        node.transport.dial = noted  # type: ignore[method-assign]
        await it.launch(node)
        await trio.sleep(20)
        assert most == [0, MAX_DIALS_ALONE]
        other = await it.start(2, peers=(node.address,))
        await until(lambda: other.peer in node.service.neighbours())
        await until(lambda: not under_way)
        await trio.sleep(60)
        assert 1 <= most[0] <= MAX_DIALS


@pytest.mark.slow
async def test_a_record_that_never_answers_while_others_do_is_dropped(autojump_clock):
    async with swarm() as it:
        first, other = await it.start_all(2)
        await trio.sleep(30)
        other.scope.cancel()
        third = await it.start(3, peers=(first.address,))
        await until(lambda: first.peer in third.service.neighbours())
        await trio.sleep(600)
        assert other.peer not in {known.peer for known in third.service._engine.peerstore.known()}
        assert other.peer not in {known.peer for known in first.service._engine.peerstore.known()}


# -- addresses that somebody else is to dial


class Dials:
    """What every node of a swarm dials and probes, and when."""

    def __init__(self, it: Swarm) -> None:
        self.all: list[tuple[float, PeerId, str]] = []
        self._it = it

    def watch(self, node: FakeRuntime) -> None:
        for name in ("dial", "probe"):
            self._wrap(node, name)

    def _wrap(self, node: FakeRuntime, name: str) -> None:
        real = getattr(node.transport, name)

        async def noted(address: str) -> object:
            self.all.append((trio.current_time(), node.peer, address))
            return await real(address)

        setattr(node.transport, name, noted)

    def to(self, host: str) -> list[tuple[float, PeerId, str]]:
        return [call for call in self.all if host_of(call[2]) == host]


class Announcing(Liar):
    """Says that it lives where a victim does; `told`: what it says of others."""

    said: tuple[str, ...] = ()
    told: tuple[bytes, ...] = ()
    version = 0

    def hello(self) -> bytes:
        self.version += 1
        addresses = tuple(f"{address}/p2p/{self.peer}" for address in self.said)
        own = record(by=self.identity, version=self.version, addresses=addresses)
        return Hello(
            scope=SCOPE, genesis=RUN.genesis, neighbours=1, admitted=True, link=b"", record=own, records=self.told
        ).encode()

    async def say(self, node: FakeRuntime) -> None:
        request = HelloRequest(hello=self.hello())
        raw = await ask_once(self.transport, node.peer, request, 10.0, MAX_HELLO_BYTES + 64)
        parse_bytes_answer(raw, MAX_HELLO_BYTES)


async def announcing(it: Swarm, nursery: trio.Nursery, number: int) -> Announcing:
    key = identity(number)
    liar = Announcing(key, it.network.attach(key.peer_id))
    await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
    return liar


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_crowd_is_not_sent_to_an_address_that_nobody_answers_at(autojump_clock):
    """One hello, and every node of the swarm dialled the victim: only who was told it at first hand probes it now."""
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(6)
        dials = Dials(it)
        for node in nodes:
            dials.watch(node)
        liar = await announcing(it, nursery, 66)
        liar.said = ("/memory/victim",)
        await liar.transport.dial(nodes[0].address)
        await liar.say(nodes[0])
        await trio.sleep(600)
        callers = {caller for _, caller, _ in dials.to("memory/victim")}
        assert callers == {nodes[0].peer}
        assert len(dials.to("memory/victim")) <= 12
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_who_changes_its_address_all_the_time_has_few_of_them_probed(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        dials = Dials(it)
        dials.watch(nodes[0])
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(nodes[0].address)
        for number in range(100):
            liar.said = tuple(f"/memory/victim-{number}-{each}" for each in range(8))
            await liar.say(nodes[0])
            await trio.sleep(3)
        assert PROBES_BURST <= len(dials.all) <= PROBES_BURST + 300 / 30 + 1
        nursery.cancel_scope.cancel()


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_host_that_does_not_answer_is_dialled_more_and_more_rarely_whatever_is_told_of_it(autojump_clock):
    """Tellers that lie: each a new key at the same host, at a new port. A minute was the longest pause."""
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        dials = Dials(it)
        dials.watch(nodes[0])
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(nodes[0].address)
        for number in range(300):
            key = Identity(number.to_bytes(2, "big") + bytes(30))
            liar.told = (record(by=key, addresses=(f"/memory/victim/{number}/p2p/{key.peer_id}",)),)
            await liar.say(nodes[0])
            await trio.sleep(12)
        assert 5 <= len(dials.to("memory/victim")) <= 14, "an hour of it: about as many as doublings from 1 s to 1 h"
        nursery.cancel_scope.cancel()


async def test_an_honest_newcomer_is_told_of_once_it_was_reached(autojump_clock):
    async with swarm() as it:
        first = await it.start(1)
        second = await it.start(2, peers=(first.address,))
        await until(lambda: first.peer in second.service.neighbours())
        await until(lambda: first.service._engine.peerstore.standing(second.peer) is RecordTrust.VERIFIED, timeout_s=3)
        third = await it.start(3, peers=(first.address,))
        await until(lambda: second.peer in third.service.neighbours(), timeout_s=5)


async def test_a_host_of_which_lies_were_told_is_probed_when_its_peer_calls_from_there(autojump_clock):
    """Made-up members at the host of somebody who comes later: it was not verified for up to an hour."""
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await announcing(it, nursery, 66)
        await liar.transport.dial(nodes[0].address)
        newcomer = it.make(9, peers=(nodes[0].address,))
        host = newcomer.address.partition("/p2p/")[0]
        for number in range(80):
            key = Identity(number.to_bytes(2, "big") + bytes(30))
            liar.told = (record(by=key, addresses=(f"{host}/{number}/p2p/{key.peer_id}",)),)
            await liar.say(nodes[0])
            await trio.sleep(12)
        assert not nodes[0].service._dialler._hosts.due(host_of(newcomer.address), trio.current_time())
        await it.launch(newcomer)
        store = nodes[0].service._engine.peerstore
        await until(lambda: store.standing(newcomer.peer) is RecordTrust.VERIFIED, timeout_s=5)
        nursery.cancel_scope.cancel()


async def test_members_that_start_at_once_know_each_other_before_a_heartbeat(autojump_clock):
    """Nobody has been reached yet when the first hellos are said: who has places left asks again."""
    rare = {"heartbeat_s": 600.0, "silence_s": 3000.0}
    async with swarm() as it:
        it.network._default = LinkQuality(latency_s=0.05)
        first = await it.start(1, **rare)
        rest = [await it.start(number, peers=(first.address,), **rare) for number in range(2, 8)]
        await until(lambda: all(len(node.service.neighbours()) == 6 for node in [first, *rest]), timeout_s=8)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("a.example.org", "dns/example.org"),
        ("b.c.EXAMPLE.org.", "dns/example.org"),
        ("a.b.example.co.uk.", "dns/example.co.uk"),
        ("example.co.uk", "dns/example.co.uk"),
        ("co.uk", "dns/co.uk"),
        ("xyz.duckdns.org", "dns/duckdns.org"),
        ("192.0.2.1.nip.io", "dns/nip.io"),
        ("example.org", "dns/example.org"),
        ("localhost", "dns"),
        ("192.0.2.1", "dns"),
        ("192.0.2.01", "dns"),
        ("0300.0.0x2.1", "dns"),
        ("192.0.0x201", "dns"),
        ("3221225985", "dns"),
        ("a.\uff45xample.org", "dns"),
        ("a\u3002example.org", "dns"),
        ("a.example.org..", "dns"),
        ("a_b.example.org", "dns"),
        ("", "dns"),
    ],
)
def test_all_names_of_a_domain_are_one_host_and_so_is_what_can_be_spelled_in_many_ways(name, host):
    """One wildcard makes a million names of a victim, and a resolver reads many spellings of its number."""
    assert {host_of(f"/{protocol}/{name}/tcp/1/p2p/x") for protocol in ("dns", "dns4", "dns6")} == {host}


def test_a_host_is_one_at_every_port():
    assert host_of("/ip4/192.0.2.1/tcp/1/p2p/x") == host_of("/ip4/192.0.2.1/tcp/2/p2p/y") == "ip4/192.0.2.1"
    assert host_of("/ip6/::1/tcp/1/p2p/x") == "ip6/::1"


def test_a_machine_is_one_host_whichever_of_its_ipv6_addresses_is_named_and_however():
    """A victim had as many hosts as its link has addresses, each with a back-off of its own."""
    link = ["2606:4700:1:2::1", "2606:4700:1:2:3:4:5:6", "2606:4700:0001:0002::1", "2606:4700:1:2:0:0:0:A"]
    assert {host_of(f"/ip6/{each}/tcp/1/p2p/x") for each in link} == {"ip6/2606:4700:1:2::/64"}
    assert host_of("/ip6/2606:4700:1:3::1/tcp/1/p2p/x") != host_of(f"/ip6/{link[0]}/tcp/1/p2p/x")
    assert host_of("/ip6/::ffff:192.0.2.1/tcp/1/p2p/x") == "ip4/192.0.2.1"
    assert host_of("/ip6/fd00::1/tcp/1/p2p/x") != host_of("/ip6/fd00::2/tcp/1/p2p/x"), "machines of a LAN"
    assert host_of("/ip6/fd00:0::1/tcp/1/p2p/x") == "ip6/fd00::1"


async def test_a_probe_says_whether_somebody_answers(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        before = one.transport.peers
        await one.transport.probe(other.address)
        assert one.transport.peers == before
        with pytest.raises(TransportError):
            await one.transport.probe(f"/memory/99/p2p/{other.peer}")
