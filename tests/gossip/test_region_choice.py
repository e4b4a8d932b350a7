"""Which region a newcomer joins: by round trips over the in-memory network, and what a liar can change about it."""

import random
from collections.abc import Iterator

import pytest
import trio
from gossip_swarm import RUN, FakeRuntime, Swarm, identity, swarm, until
from sizes import thorough_but

from gossip.core.api import RegionLayout
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.core.networks import network_of
from gossip.core.statements import PeerRecord
from gossip.regions.region_choice import (
    MAX_ASKED,
    PER_REGION,
    RegionChoice,
    RegionSurvey,
    RegionVoice,
    choose_region,
)
from gossip.regions.region_survey_task import WITHIN_S, SurveyedRun, ping, run_survey
from gossip.transport.memory.network import LinkQuality, MemoryTransport

LABELS = ("east", "west")
FAR = LinkQuality(latency_s=0.05)
NEAR = LinkQuality(latency_s=0.001)


def far_from(it: Swarm, peer: PeerId, region: str, nodes: list[FakeRuntime]) -> None:
    """Put a newcomer into a region: a round trip of 100 ms from the other one, and of 2 ms from its own."""
    for node in nodes:
        it.network.set_link(peer, node.peer, NEAR if node.service._context.engine.bridges.own == region else FAR)


async def two_sites(it: Swarm, each: int) -> list[FakeRuntime]:
    """Two regions, 100 ms apart, whose members have met."""
    nodes: list[FakeRuntime] = []
    for number in range(1, 2 * each + 1):
        own = LABELS[number % 2]
        far_from(it, identity(number).peer_id, own, nodes)
        peers = (nodes[0].address,) if nodes else ()
        node = await it.start(number, peers=peers, layout=RegionLayout(own=own, regions=LABELS))
        await node.begin()
        nodes.append(node)
    await until(lambda: all(node.service.regions == {"east": each, "west": each} for node in nodes))
    return nodes


async def asked(it: Swarm, transport: MemoryTransport, seeds: list[str], seed: int = 1) -> RegionChoice:
    scope = it.nodes[0].service._context.engine.scope if it.nodes else None
    survey = RegionSurvey(LABELS, seeds, random.Random(seed), lambda record: record.region)
    if scope is not None:
        run = SurveyedRun(scope=scope, genesis=RUN.genesis)
        await run_survey(survey, transport, run, random.Random(seed).randbytes)
    return choose_region(LABELS, survey.voices)


@pytest.mark.parametrize("own", thorough_but({LABELS[0]}, LABELS))
async def test_a_newcomer_lands_in_the_near_region(autojump_clock, own: str) -> None:
    """It is given one address, which is in east, and hears of the others there."""
    async with swarm() as it:
        nodes = await two_sites(it, 4)
        newcomer = identity(50).peer_id
        far_from(it, newcomer, own, nodes)
        choice = await asked(it, it.network.attach(newcomer), [nodes[1].address])
        assert (choice.region, choice.why) == (own, "nearest")
        assert choice.members == {"east": 4, "west": 4}
        other = next(label for label in LABELS if label != own)
        assert choice.round_trips[own] == pytest.approx(0.002)
        assert choice.round_trips[other] == pytest.approx(0.1)
        await trio.sleep(60.0)
        assert not any(newcomer in node.transport.peers or node.service.stats.rejected for node in nodes)


async def test_one_that_is_as_far_from_all_takes_the_first_of_the_run(autojump_clock) -> None:
    async with swarm() as it:
        nodes = await two_sites(it, 3)
        choice = await asked(it, it.network.attach(identity(50).peer_id), [nodes[0].address])
        assert (choice.region, choice.why, set(choice.round_trips)) == ("east", "as near", set(LABELS))


async def test_one_that_reaches_nobody_takes_the_first_of_the_run_in_time(autojump_clock) -> None:
    async with swarm() as it:
        nodes = await two_sites(it, 2)
        newcomer = identity(50).peer_id
        for node in nodes:
            it.network.cut(newcomer, node.peer)
        began = trio.current_time()
        choice = await asked(it, it.network.attach(newcomer), [node.address for node in nodes])
        assert choice == RegionChoice(region="east", why="nobody", round_trips={}, members={})
        assert trio.current_time() - began <= WITHIN_S


# -- what a liar gains


async def test_quick_liars_of_a_far_region_move_no_newcomer_while_they_are_fewer(autojump_clock) -> None:
    """Two of seven that are said to be in west are beside the newcomer in east. With as many as the honest it would be
    another matter."""
    async with swarm() as it:
        nodes = await two_sites(it, 5)
        newcomer = identity(50).peer_id
        far_from(it, newcomer, "east", nodes)
        for number in (30, 31):
            layout = RegionLayout(own="west", regions=LABELS)
            liar = await it.start(number, peers=(nodes[0].address,), layout=layout)
            await liar.begin()
            it.network.set_link(newcomer, liar.peer, LinkQuality(latency_s=0.0))
        await until(lambda: all(node.service.regions == {"east": 5, "west": 7} for node in nodes))
        choice = await asked(it, it.network.attach(newcomer), [nodes[0].address, nodes[1].address])
        assert (choice.region, choice.why) == ("east", "nearest")
        assert choice.round_trips["west"] == pytest.approx(0.1)


def voices(region: str, *seconds: float, group: str = "") -> Iterator[RegionVoice]:
    for number, each in enumerate(seconds):
        peer = PeerId(f"{region} {group} {number}")
        yield RegionVoice(peer=peer, region=region, group=group or peer, seconds=each)


def test_a_crowd_in_one_network_is_one_voice() -> None:
    honest = [*voices("east", 0.020, 0.021), *voices("west", 0.1, 0.1)]
    crowd = [*voices("west", *[0.001] * 8, group="198.51.100.0/24")]
    choice = choose_region(LABELS, [*honest, *crowd])
    assert (choice.region, choice.round_trips["west"]) == ("east", 0.1)
    scattered = [voice for each in range(3) for voice in voices("west", 0.001, group=f"203.0.{each}.0/24")]
    assert choose_region(LABELS, [*honest, *scattered]).region == "west", "as many networks as the honest do it"


@pytest.mark.parametrize(
    ("east", "west", "chosen"),
    [
        (0.050, 0.010, ("west", "nearest")),
        (0.010, 0.050, ("east", "nearest")),
        (0.012, 0.010, ("east", "as near")),
        (0.0009, 0.0001, ("east", "as near")),
        (0.0030, 0.0001, ("west", "nearest")),
        (0.130, 0.100, ("west", "nearest")),
        (0.126, 0.100, ("east", "as near")),
    ],
)
def test_what_cannot_be_told_apart_is_as_near(east: float, west: float, chosen: tuple[str, str]) -> None:
    found = choose_region(LABELS, [*voices("west", west), *voices("east", east)])
    assert (found.region, found.why) == chosen


def test_a_slow_answer_does_not_put_off_a_region_of_two_voices() -> None:
    voices = [
        RegionVoice(peer=PeerId("honest"), region="east", group="a", seconds=0.01),
        RegionVoice(peer=PeerId("liar"), region="east", group="b", seconds=0.79),
        RegionVoice(peer=PeerId("far"), region="west", group="c", seconds=0.2),
    ]
    assert choose_region(LABELS, voices).region == "east"


def test_a_region_of_which_nobody_answers_is_none_to_join() -> None:
    choice = choose_region(("north", *LABELS), voices("west", 0.3))
    assert (choice.region, choice.why, choice.members) == ("west", "nearest", {"west": 1})


class Echo:
    """A stream whose far end says what it says, whatever it was sent."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def send_all(self, data: bytes) -> None:
        return

    async def receive_some(self, max_bytes: int) -> bytes:
        piece, self._answer = self._answer[:max_bytes], self._answer[max_bytes:]
        return piece


async def test_an_answer_that_was_sent_before_the_question_is_none(autojump_clock) -> None:
    assert await ping(Echo(b"x" * 32), b"x" * 32) == 0.0  # type: ignore[arg-type]
    for early in (b"y" * 32, b"", b"x" * 31):
        with pytest.raises(RemoteError):
            await ping(Echo(early), b"x" * 32)  # type: ignore[arg-type]


# -- whom it asks


def record(number: int, region: str, *addresses: str) -> PeerRecord:
    peer = PeerId(f"peer {number}")
    found = addresses or (f"/ip4/198.51.{number // 200}.{number % 200}/tcp/1/p2p/{peer}",)
    return PeerRecord(peer=peer, epoch=1, version=1, addresses=found, raw=b"", region=region)


def survey_of(*records: PeerRecord) -> RegionSurvey:
    it = RegionSurvey(LABELS, [], random.Random(1), lambda each: each.region)
    it.named(records)
    return it


def test_of_each_region_as_many_are_asked_as_are_of_use() -> None:
    it = survey_of(*(record(number, LABELS[number % 2]) for number in range(200)))
    known = {record(number, "").peer: number for number in range(200)}
    while (found := it.next()) is not None:
        number = known[found[0]]
        it.answered(record(number, LABELS[number % 2]), "", 0.01)
    assert choose_region(LABELS, it.voices).members == {"east": PER_REGION, "west": PER_REGION}
    assert not it.wants(record(999, "east"))


@pytest.mark.parametrize("real", ["/ip4/203.0.114.9/tcp/1", "/dns/liar.example/tcp/1"])
def test_many_keys_of_one_machine_with_made_up_networks_take_no_places_of_others(real: str) -> None:
    """They are near, and say that they are of the region that is far. Each names a network of its own first."""
    far = [record(number, "east", f"/ip4/{20 + number}.1.1.1/tcp/1") for number in range(6)]
    near = [record(number, "west", f"/ip4/{20 + number}.1.1.1/tcp/1") for number in range(6, 12)]
    crowd = [record(number, "east", f"/ip4/{100 + number // 2}.{number}.1.1/tcp/1", real) for number in range(12, 72)]
    for seed in range(10):
        it = RegionSurvey(LABELS, [], random.Random(seed), lambda each: each.region)
        it.named([*far, *near, *crowd])
        there = {each.peer: each for each in (*far, *near, *crowd)}
        while (asked := it.next()) is not None:
            said = there[asked[0]]
            if not it.wants(said):
                it.failed(said.peer)
            elif said in crowd:
                it.answered(said, "203.0.114.0/24", 0.001)
            else:
                it.answered(said, network_of(said.addresses[0]), 0.1 if said in far else 0.02)
        choice = choose_region(LABELS, it.voices)
        assert (choice.region, choice.round_trips["east"]) == ("west", 0.1), seed


def test_who_names_many_that_are_not_there_costs_so_many_dials() -> None:
    it = survey_of(*(record(number, "west") for number in range(1000)))
    asked_ = 0
    while (found := it.next()) is not None:
        it.failed(found[0])
        asked_ += 1
    assert asked_ == MAX_ASKED


def test_one_host_is_asked_once_at_a_time_and_relayed_or_other_regions_members_never() -> None:
    there = "/ip4/198.51.100.1/tcp"
    it = survey_of(
        record(1, "west", f"{there}/1/p2p/peer 1"),
        record(2, "west", f"{there}/2/p2p/peer 2"),
        record(3, "west", "/ip4/198.51.100.2/tcp/3/p2p/relay/p2p-circuit/p2p/peer 3"),
        record(4, "mars"),
    )
    first = it.next()
    assert first is not None
    assert it.next() is None
    it.failed(first[0])
    second = it.next()
    assert second is not None
    assert {first[0], second[0]} == {"peer 1", "peer 2"}
    it.failed(second[0])
    assert it.next() is None


def test_the_operators_peer_behind_a_relay_is_asked_for_others_and_not_measured() -> None:
    direct, relayed = f"/ip4/192.0.2.1/tcp/1/p2p/{identity(1).peer_id}", identity(2).peer_id
    survey = RegionSurvey(LABELS, [f"{direct}/p2p-circuit/p2p/{relayed}"], random.Random(1), lambda each: each.region)
    assert survey.next() is not None
    record = PeerRecord(peer=relayed, epoch=1, version=1, addresses=(), region="east", raw=b"")
    assert not survey.wants(record)
