"""What a region with a policy gives to whom: strangers without a label, members outside, relays outside, and aggregates
of too few members."""

import pytest
import trio
from gossip_swarm import FakeRuntime, Swarm, swarm, until
from test_regions import as_raw, identity_of, models_of, publish_models, two_regions, view_of

from gossip.core.api import Crossing, RegionLayout
from gossip.core.envelope import seal
from gossip.core.errors import LocalError, Reason
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import (
    HeadersRequest,
    ManifestRequest,
    Refused,
    parse_empty_answer,
    parse_manifest_answer,
)
from gossip.core.statements import regional_statement
from gossip.reachability.circuit import HOP_PROTOCOL
from gossip.reachability.relay import circuit_address
from gossip.regions.regional_models_task import SENDINGS
from gossip.regions.residency import Residency
from gossip.session import ask_once
from gossip.transport.memory.traffic_tap import StreamTap

LABELS = ("east", "west")


def layout(own: str, **residency: int) -> RegionLayout:
    return RegionLayout(own=own, regions=LABELS, residency=residency)


async def in_regions(it: Swarm, each: int, **residency: int) -> tuple[list[FakeRuntime], list[FakeRuntime]]:
    """Full meshes of so many nodes in the east and in the west."""
    nodes: dict[str, list[FakeRuntime]] = {label: [] for label in LABELS}
    first: FakeRuntime | None = None
    for number in range(1, 2 * each + 1):
        label = LABELS[number % 2]
        peers = () if first is None else (first.address,)
        node = await it.start(number, peers=peers, layout=layout(label, **residency))
        first = first or node
        nodes[label].append(node)
        await node.begin()
    await until(lambda: all(len(node.service.neighbours()) == each - 1 for here in nodes.values() for node in here))
    await until(lambda: all(node.service.bridge_ids for here in nodes.values() for node in here))
    whole = dict.fromkeys(LABELS, each)
    await until(lambda: all(node.service.regions == whole for here in nodes.values() for node in here))
    return nodes["east"], nodes["west"]


async def test_a_closed_region_hears_the_others_and_they_hear_nothing_of_it(autojump_clock):
    async with swarm() as it:
        east, west = await in_regions(it, 4, east=0)
        await publish_models(east, 8)
        await publish_models(west, 8)
        await models_of(east, "west", 4)
        await models_of([*east], "east", 4)
        await models_of(west, "west", 4)
        await trio.sleep(30.0)
        assert not any(view_of(node, "east") for node in west)
        assert {node.service.regions_beside for node in west} == {frozenset()}
        assert {node.service.regions_beside for node in east} == {frozenset({"west"})}
        assert not any(node.service.stats.crossed_bytes_sent for node in east)
        assert not any(node.service.stats.rejected for node in (*east, *west)), "statements of closed regions pass by"


async def test_a_blob_of_a_closed_region_is_not_given_to_who_has_its_digest(autojump_clock):
    async with swarm() as it:
        east, west = await in_regions(it, 4, east=0)
        await publish_models(east, 8)
        await models_of(east, "east", 4)
        asker = west[0]
        addresses = {it.model.address for it in east[0].service._context.engine.regional_models.whole()}
        assert len(addresses) == 4
        # Said to be the west's own model: what is held as the east's stays that.
        for round_, address in enumerate(sorted(addresses), 9):
            statement = regional_statement(
                region="west", round=round_, codec="int8", members=4, address=address, size=len(b"of 123456")
            )
            await asker.transport.publish(seal(identity_of(asker), asker.service._context.engine.scope, statement).raw)
        await trio.sleep(20.0)
        await until(lambda: any(asker.peer in node.service.bridge_ids for node in east))
        asked = next(node for node in east if asker.peer in node.service.bridge_ids)
        table = asked.service._context.engine.regional_models
        for said in [it for it in table.announced() if it.model.region == "west"]:
            # As where another member of the east gave it.
            said.payload = next(it.payload for it in table.whole() if it.model.address == said.model.address)
        assert {it.model.region for it in table.whole()} == {"east", "west"}
        for address in addresses:
            raw = await ask_once(asker.transport, asked.peer, ManifestRequest(address=address), 5.0, 1 << 16)
            with pytest.raises(Refused, match="another region"):
                parse_empty_answer(raw)


@pytest.mark.parametrize("guarded", [True, False])
async def test_who_says_nothing_of_its_region_gets_no_update_where_there_is_a_policy(autojump_clock, guarded):
    async with swarm() as it:
        east, _ = await in_regions(it, 3, **({"east": 0} if guarded else {}))
        stranger = it.make(9, peers=tuple(node.address for node in east))
        stranger.service._context.engine.set_record = lambda *addresses, **more: None  # type: ignore[method-assign]
        await it.launch(stranger)
        await stranger.begin()
        await trio.sleep(60.0)
        await east[0].publish(1, b"an update")
        await trio.sleep(20.0)
        assert all((stranger.peer in node.service.neighbours()) is not guarded for node in east)
        assert any(update.payload for update in stranger.received) is not guarded


async def test_a_neighbour_that_names_another_region_gets_nothing_from_then_on(autojump_clock):
    async with swarm() as it:
        east, _ = await in_regions(it, 3, east=0)
        turncoat, honest = east[0], east[1]
        newest = honest.service._context.engine.publisher.newest
        store = honest.service._context.engine.peerstore
        record = store._known[turncoat.peer].record
        object.__setattr__(record, "region", "west")
        asked = HeadersRequest(epoch=newest.epoch, first=0, count=1)
        raw = await ask_once(turncoat.transport, honest.peer, asked, 5.0, 1 << 16)
        with pytest.raises(Refused, match="another region"):
            parse_empty_answer(raw)


async def test_an_aggregate_of_too_few_members_is_neither_published_nor_taken(autojump_clock):
    async with swarm() as it:
        east, west = await in_regions(it, 4, west=3)
        drawn = [node for node in west if node.service.publishes_regional(8)]
        with pytest.raises(LocalError, match="an average of 2 members' models, and 3 are wanted"):
            await drawn[0].service.publish_regional(round=8, codec="int8", payload=b"of two", averaged=2)
        for liar in west:
            await liar.transport.publish(as_raw(liar, 8, b"of nobody knows whom", "west"))
        await trio.sleep(20.0)
        assert not any(view_of(node, "west") for node in (*east, *west))
        assert any(node.service.stats.rejected_by_reason.get(Reason.PROTOCOL) for node in east)
        for node in drawn:
            await node.service.publish_regional(round=8, codec="int8", payload=node.peer.encode(), averaged=3)
        await models_of([*east, *west], "west", 4)
        models = west[0].service._context.engine.regional_models
        assert {it.model.averaged for it in models.whole() if it.model.region == "west"} == {3}


async def test_who_asks_for_a_model_again_and_again_does_not_fill_the_record(autojump_clock):
    async with swarm() as it:
        east, west = await two_regions(it, 4)
        await publish_models(west, 8)
        await models_of(east, "west", 4)
        asker = next(node for node in east if node.service.bridge_ids)
        asked = next(node for node in west if asker.peer in node.service.bridge_ids)
        recorded: list[Crossing] = []
        asked.service._regional._recorder = lambda crossing: recorded.append(crossing) is None
        address = view_addresses(asked, "west")[0]
        refused = 0
        for _ in range(3 * SENDINGS):
            raw = await ask_once(asker.transport, asked.peer, ManifestRequest(address=address), 5.0, 1 << 16)
            try:
                parse_manifest_answer(raw)
            except Refused:
                refused += 1
        assert len(recorded) <= SENDINGS
        assert refused == 3 * SENDINGS - len(recorded)
        other = view_addresses(asked, "west")[1]
        raw = await ask_once(asker.transport, asked.peer, ManifestRequest(address=other), 5.0, 1 << 16)
        assert parse_manifest_answer(raw)[1], "another model is another matter"


def view_addresses(node: FakeRuntime, region: str) -> list[Digest]:
    models = node.service._context.engine.regional_models.whole()
    return sorted(it.model.address for it in models if it.model.region == region)


async def test_what_cannot_be_recorded_is_not_sent(autojump_clock):
    async with swarm() as it:
        refused: list[Crossing] = []

        full = True

        def full_disk(crossing: Crossing) -> bool:
            if full:
                refused.append(crossing)
            return not full

        east, west = await two_regions(it, 4)
        for node in west:
            node.service._regional._recorder = full_disk
        await publish_models(west, 8)
        await models_of(west, "west", 4)
        await trio.sleep(60.0)
        assert refused
        assert not any(view_of(node, "west") for node in east)
        assert sum(node.service.stats.crossed_bytes_sent for node in west) == 0

        def warnings() -> int:
            return sum("cannot be recorded" in event.detail for node in west for event in node.told("warning"))

        first = warnings()
        assert 1 <= first <= len(west), "once for each"
        full = False
        await publish_models(west, 16, b"with room ")
        await models_of(east, "west", 4)
        full = True
        await publish_models(west, 24, b"without ")
        await trio.sleep(60.0)
        assert warnings() > first, "the next time is told as well"


class HopsTo:
    """Counts what is written to streams that ask one peer for a circuit."""

    def __init__(self, relay: PeerId) -> None:
        self.asked: dict[PeerId, int] = {}
        self._relay = relay

    def broadcast(self, *told: object, **more: object) -> None:
        return

    def stream(self, opener: PeerId, other: PeerId, protocol: str, overhead: int) -> StreamTap:
        def count(sender: PeerId, data: bytes | memoryview) -> None:
            if other == self._relay and protocol == HOP_PROTOCOL:
                self.asked[opener] = self.asked.get(opener, 0) + len(data)

        return count


def name_relay(node: FakeRuntime, relay: FakeRuntime) -> None:
    """From now on a node's record says that it is reached through this relay."""
    engine = node.service._context.engine
    sign, circuit = engine.set_record, circuit_address(relay.peer, node.peer)

    def signed(addresses: tuple[str, ...], beside: tuple[bytes, ...], **numbers: int) -> None:
        sign((circuit, *addresses), beside, **numbers)

    engine.set_record = signed  # type: ignore[method-assign]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_relay_outside_carries_nothing_between_members_of_a_region_with_a_policy(autojump_clock, guarded):
    """It serves everybody, and a member that does not keep to the policy has it relay for itself."""
    async with swarm() as it:
        residency = {"east": 0} if guarded else {}
        relay = await it.start(1, layout=layout("west", **residency), relay=True)
        relay.service._relay._serves = lambda peer: True  # type: ignore[assignment]
        caller, hidden = (
            it.make(number, peers=(relay.address,), layout=layout("east", **residency)) for number in (2, 3)
        )
        name_relay(hidden, relay)
        for node in (caller, hidden):
            it.network.hide(node.peer)
            await it.launch(node)
        for node in (relay, caller, hidden):
            await node.begin()
        await until(lambda: {caller.peer, hidden.peer} <= relay.service.bridge_ids)
        hops = HopsTo(relay.peer)
        it.network.tap = hops  # type: ignore[assignment]
        assert await hidden.transport.relayed_by(relay.peer) is not None
        if guarded:
            await trio.sleep(300.0)
            assert hops.asked.get(caller.peer, 0) == 0
            assert not caller.service.neighbours()
        else:
            await until(lambda: hidden.peer in caller.service.neighbours(), 300.0)
            assert hops.asked[caller.peer] > 1000


def regions_of(**labels: str) -> Residency:
    """As a member of the east sees them; it goes through `via`."""
    return Residency(layout("east", east=0), lambda peer: labels.get(peer), {PeerId("via")})


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("/ip4/192.0.2.1/tcp/4001/p2p/home", True),
        ("/p2p/neighbour/p2p-circuit/p2p/home", True),
        ("/p2p/outsider/p2p-circuit/p2p/home", False),
        ("/p2p/outsider/p2p-circuit/p2p/nobody", False),
        ("/p2p/nobody/p2p-circuit/p2p/home", False),
        ("/p2p/outsider/p2p-circuit/p2p/abroad", True),
        ("/p2p/via/p2p-circuit/p2p/home", True),
    ],
)
def test_a_circuit_between_members_of_a_region_is_relayed_there(address: str, may: bool) -> None:
    residency = regions_of(home="east", neighbour="east", outsider="west", abroad="west")
    assert residency.may_dial(address) is may


def test_without_a_policy_any_relay_will_do() -> None:
    residency = Residency(layout("west", east=0), lambda peer: {"home": "west"}.get(peer))
    assert residency.may_dial("/p2p/nobody/p2p-circuit/p2p/home")
    assert residency.admits(PeerId("anybody"))
