"""Who is probed at once: a crowd from one network, whatever it names, leaves places to others."""

import random
from types import SimpleNamespace

import trio
from gossip_samples import SCOPE, record
from gossip_swarm import identity

from gossip.core.backoff import Backoff, host_of
from gossip.core.envelope import open_envelope
from gossip.core.statements import parse_record
from gossip.reachability.probe_task import MAX_PROBES, AddressProber


def at(number, address):
    key = identity(number)
    return parse_record(open_envelope(record(by=key, addresses=(f"{address}/p2p/{key.peer_id}",)), SCOPE))


def prober(records, networks):
    """A prober for these records, whose peers call from these networks; and the addresses that it probes. None
    answers."""
    probed = []

    async def probe(address):
        probed.append(address)
        await trio.sleep_forever()

    transport = SimpleNamespace(
        probe=probe, network_of=lambda peer: networks.get(peer), address_at=lambda peer, port: None
    )
    engine = SimpleNamespace(to_probe=lambda now: records, may_dial=lambda address: True)
    context = SimpleNamespace(engine=engine, transport=transport, config=SimpleNamespace(dial_timeout_s=60.0))
    backoffs = [Backoff(least=1.0, most=60.0, rng=random.Random(1)) for _ in range(2)]
    return AddressProber(context, *backoffs), probed


async def probed_at_once(records, networks):
    it, probed = prober(records, networks)
    async with trio.open_nursery() as nursery:
        it.start_some(nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return probed


async def test_a_crowd_of_one_network_that_names_silent_hosts_anywhere_leaves_half_of_the_probes(autojump_clock):
    """Four at once had all four, for a quarter of a minute each: addresses of a LAN, or of as many networks as it
    liked."""
    crowd = [at(number, f"/ip4/{host}/tcp/1") for number, host in enumerate(("10.0.0.1", "10.0.0.2", "8.8.8.8"), 1)]
    crowd += [at(number + 10, f"/ip4/{number}.8.8.8/tcp/1") for number in (9, 11, 12)]
    honest = at(50, "/ip4/9.9.9.9/tcp/1")
    networks = {each.peer: "203.0.113.0/24" for each in crowd} | {honest.peer: "198.51.100.0/24"}
    probed = await probed_at_once([*crowd, honest], networks)
    assert honest.addresses[0] in probed
    assert len(probed) == MAX_PROBES // 2 + 1


async def test_those_who_have_hung_up_are_of_one_network_and_those_of_a_lan_of_none(autojump_clock):
    gone = [at(number, f"/ip4/10.0.0.{number}/tcp/1") for number in range(1, 7)]
    near = [at(number, f"/ip4/10.0.1.{number}/tcp/1") for number in range(11, 17)]
    assert len(await probed_at_once(gone, {})) == MAX_PROBES // 2
    assert len(await probed_at_once(near, {each.peer: "" for each in near})) == MAX_PROBES


async def test_a_liars_name_that_never_answers_keeps_no_other_domain_from_being_probed(autojump_clock):
    """All names had one back-off: who had one was verified by nobody for up to an hour at a time."""
    liar, honest = at(1, "/dns4/a.liar.example.net/tcp/1"), at(2, "/dns4/home.example.org/tcp/1")
    it, probed = prober([liar, honest], {liar.peer: "203.0.113.0/24", honest.peer: "198.51.100.0/24"})
    for _ in range(20):
        it._hosts.failed(host_of(liar.addresses[0]), trio.current_time())
    async with trio.open_nursery() as nursery:
        it.start_some(nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert probed == [honest.addresses[0]]


async def test_nobody_is_probed_where_we_may_not_dial(autojump_clock):
    """A region's policy says through whose relays its members may be reached."""
    kept, free = at(1, "/ip4/8.8.8.8/tcp/1"), at(2, "/ip4/9.9.9.9/tcp/1")
    it, probed = prober([kept, free], {})
    it._context.engine.may_dial = lambda address: address != kept.addresses[0]
    async with trio.open_nursery() as nursery:
        it.start_some(nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert probed == [free.addresses[0]]
