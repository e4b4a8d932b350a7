"""Refinements between services: who fetches which, what a round waits for, and what a liar gains."""

from collections.abc import Callable

import pytest
import trio
from gossip_liars import Liar, counted, join, life_goes_on, refused
from gossip_samples import ALICE, GENESIS, SCOPE, link, sealed
from gossip_swarm import FakeRuntime, Swarm, identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CODEC_CHARS, MAX_LAYERS
from gossip.core.messages import ChunkRequest, HeadersRequest, ManifestRequest, Request, SnapshotRequest, encode_answer
from gossip.core.statements import Layer, UpdateHeader, UpdateHeaderBody, parse_update_header, update_header_statement
from gossip.session import open_session
from gossip.updates.fetcher_task import Fetcher
from gossip.updates.hash_chain import EquivocationError, HashChain
from gossip.updates.layer_places import RESTS_ROUNDS
from gossip.updates.layer_plan import ONE_SIDED, FetchLayer, LayerPlan
from gossip.updates.neighbour import Neighbour
from gossip.updates.publisher import Payload, Publisher
from gossip.updates.throughput import Throughput

LAYERS = (("q2", b"coarse"), ("int8", b"finer still"))
HIDDEN_S = 5.0
KEY = identity(66)


def deltas(node: FakeRuntime, other: FakeRuntime | Liar) -> list[tuple[int, int, str, bytes | None]]:
    updates = [update for update in node.received if update.peer == other.peer and update.kind == "delta"]
    return [(update.seq, update.layer, update.codec, update.payload) for update in updates]


async def close(node: FakeRuntime, round_: int, hidden_s: float = HIDDEN_S) -> float:
    """Close a round as a runtime does; return how long it waited for refinements after the quorum."""
    node.service.begin_layers(hidden_s)
    await node.service.close_round(round_, at_most_s=60.0)
    began = trio.current_time()
    await node.service.finish_layers(wait=True)
    return trio.current_time() - began


async def test_refinements_follow_their_update_in_order_and_both_ends_know_it(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        two.service.begin_layers(HIDDEN_S)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: len(deltas(two, one)) == 3)
        assert deltas(two, one) == [(1, 0, "none", b"base"), (1, 1, "q2", b"coarse"), (1, 2, "int8", b"finer still")]
        await until(lambda: two.service.layers_taken() == {one.peer: 2})
        assert one.service.layers_sent() == {two.peer: 2}
        assert two.follows(one)


async def test_without_time_that_is_hidden_the_update_alone_is_fetched(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: two.follows(one))
        await trio.sleep(30)
        assert deltas(two, one) == [(1, 0, "none", b"base")]
        assert one.service.layers_sent() == {}


async def test_a_link_takes_the_layers_that_it_hides_and_holds_no_round_up(autojump_clock):
    """At 40 kB/s the first layer takes a quarter of a second, the second one 25."""
    layers = (("q2", bytes(10_000)), ("int8", bytes(1_000_000)))
    async with swarm() as it:
        one, two = await it.start_all(2, degree=2, down_bytes_per_s=40_000)
        waits = []
        for round_ in range(1, 8):
            await one.publish(round_, bytes(1_000), layers)
            await two.publish(round_, bytes(1_000), layers)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close, one, round_)
                waits.append(await close(two, round_))
        assert max(waits) <= HIDDEN_S + 1e-6
        assert [number for number, wait_s in enumerate(waits) if wait_s > 1.0] == [0, 2, 6], "tried now and then"
        assert {layer for _, layer, _, _ in deltas(two, one)} == {0, 1}
        assert one.service.layers_sent() == {two.peer: 1}


async def test_a_newer_update_comes_before_the_refinement_that_is_being_pulled(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2, degree=2, down_bytes_per_s=40_000)
        two.service.begin_layers(1000.0)
        await one.publish(1, b"base", (("int8", bytes(1_000_000)),))
        await until(lambda: two.follows(one))
        await trio.sleep(1)
        began = trio.current_time()
        await one.publish(2, b"next")
        await until(lambda: two.follows(one))
        assert trio.current_time() - began < 5
        assert [layer for _, layer, _, _ in deltas(two, one)] == [0, 0]


async def test_a_refinement_that_the_runtime_refuses_costs_its_author_and_the_update_stays(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        two.verdict = lambda update: Reason.NONFINITE if update.layer else None
        two.service.begin_layers(HIDDEN_S)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: two.service.stats.rejected == {(one.peer, Reason.NONFINITE): 1})
        await one.publish(2, b"next")
        await until(lambda: two.follows(one))
        assert [update.kind for update in two.received if update.peer == one.peer].count("snapshot") == 0
        assert [layer for _, layer, _, _ in deltas(two, one)] == [0, 1, 0], "nothing more of a link that lied"


async def test_a_bug_while_a_refinement_is_fetched_ends_nothing(autojump_clock, monkeypatch):
    async def fails(self: Fetcher, work: FetchLayer) -> bytes:
        raise KeyError("a bug")

    monkeypatch.setattr(Fetcher, "layer", fails)
    async with swarm() as it:
        one, two = await it.start_all(2)
        two.service.begin_layers(HIDDEN_S)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: bool(two.told("warning")))
        await one.publish(2, b"next")
        await until(lambda: two.follows(one))
        assert {"a bug" in event.detail for event in two.told("warning")} == {True}
        two.events.clear()  # or the swarm would find them


async def test_who_had_the_refinements_of_the_link_before_has_them_while_its_own_round_closes(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        two.service.begin_layers(HIDDEN_S)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: one.service.layers_sent() == {two.peer: 2})
        two.service.begin_layers(0.0)
        await one.publish(2, b"next", LAYERS)
        assert one.service.layers_sent() == {two.peer: 2}
        await one.publish(3, b"after", LAYERS)
        assert one.service.layers_sent() == {}


async def test_what_is_on_its_way_when_a_round_closes_is_given_up(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2, degree=2, down_bytes_per_s=40_000)
        two.service.begin_layers(1000.0)
        await one.publish(1, b"base", (("int8", bytes(1_000_000)),))
        await until(lambda: two.follows(one))
        await trio.sleep(1)
        await two.service.finish_layers(wait=False)
        await trio.sleep(100)
        assert [layer for _, layer, _, _ in deltas(two, one)] == [0]


async def test_who_takes_a_piece_of_a_refinement_does_not_have_it(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        await one.publish(1, b"base", (("int8", bytes(2 * CHUNK_BYTES)),))
        await until(lambda: two.follows(one))
        newest = one.service._context.engine.publisher.newest
        assert newest is not None
        address = newest.body.layers[0].address
        for pieces, sent in (((0,), {}), ((0, 1), {two.peer: 1})):
            async with open_session(two.transport, one.peer, 5.0) as session:
                await session.ask(ManifestRequest(address=address))
                for index in pieces:
                    await session.ask(ChunkRequest(address=address, index=index), 2 * CHUNK_BYTES)
            await trio.sleep(1.0)
            assert one.service.layers_sent() == sent


def test_of_a_neighbour_that_came_back_nothing_is_refined_before_its_estimate_is_here():
    """Its newest link is the one that was applied before it left; what the runtime held of it is gone."""
    links = refined(b"data")
    neighbours = {KEY.peer_id: Neighbour(KEY.peer_id, 0.0)}
    plan = LayerPlan(neighbours, Throughput(neighbours))
    for each in links:
        neighbours[KEY.peer_id].chain.learn(each)
        neighbours[KEY.peer_id].accepted(each)
        plan.applied(each, 0.0)
    plan.begin_closing(HIDDEN_S, 0.0)
    assert plan.next_layer(KEY.peer_id, 0.0) == FetchLayer(link=links[1], layer=1)
    neighbours[KEY.peer_id] = back = Neighbour(KEY.peer_id, 1.0)
    assert plan.next_layer(KEY.peer_id, 1.0) is None, "nothing of it was heard"
    back.chain.learn(links[1])
    assert plan.next_layer(KEY.peer_id, 1.0) is None


async def test_nothing_is_held_of_an_update_whose_follower_was_refused(autojump_clock):
    async with swarm() as it:
        one, two = await it.start_all(2)
        two.service.begin_layers(HIDDEN_S)
        await one.publish(1, b"base", LAYERS)
        await until(lambda: two.service.layers_taken() == {one.peer: 2})
        two.verdict = lambda update: Reason.NONFINITE if update.seq == 2 else None
        await one.publish(2, b"next")
        await until(lambda: two.service.stats.rejected == {(one.peer, Reason.NONFINITE): 1})
        assert two.service.layers_taken() == {}


# -- liars


def refined(data: bytes, size: int | None = None, layer: bytes = b"the layer") -> list[UpdateHeader]:
    """A genesis of the liar's, and a delta with a refinement."""
    base = link(by=KEY)
    layers = (Layer(codec="q2", size=size or len(layer), address=blob_manifest_of(layer).address),)
    body = UpdateHeaderBody(round=1, kind="delta", codec="none", size=len(data), layers=layers)
    address = blob_manifest_of(data).address
    statement = update_header_statement(epoch=1, seq=1, prev=base.digest, address=address, body=body)
    return [base, parse_update_header(sealed(statement, KEY))]


def replies(data: bytes, links: list[UpdateHeader], layer: bytes) -> Callable[[Request], bytes | None]:
    """Serves the update honestly, and `layer` whatever refinement is asked for."""

    def answer(request: Request) -> bytes | None:
        if isinstance(request, HeadersRequest):
            return encode_answer([each.raw for each in links])
        if isinstance(request, SnapshotRequest):
            return refused()
        if isinstance(request, ManifestRequest):
            told = data if request.address == links[1].address else layer
            return encode_answer(blob_manifest_of(told).encode(), told)
        return None

    return answer


async def told_of(it: Swarm, nursery: trio.Nursery, links: list[UpdateHeader], layer: bytes) -> tuple[list, Liar]:
    nodes = await it.start_all(3)
    for node in nodes:
        node.service.begin_layers(HIDDEN_S)
    liar = await join(it, nursery, nodes, answer=replies(b"data", links, layer))
    for each in links:
        await liar.transport.publish(each.raw)
    return nodes, liar


@pytest.mark.parametrize(
    ("size", "reason"), [(None, Reason.DIGEST_MISMATCH), (3, Reason.OVERSIZE), (50, Reason.PROTOCOL)]
)
async def test_a_forged_refinement_is_refused_and_charged_and_the_update_counts(autojump_clock, size, reason):
    links = refined(b"data", size)
    forged = b"another layer" if size is None else b"the layer"
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes, liar = await told_of(it, nursery, links, forged)
        await until(lambda: counted(nodes, liar) == [{reason}] * 3)
        assert deltas(nodes[0], liar) == [(1, 0, "none", b"data")]
        assert nodes[0].service.neighbours()[liar.peer].tracked
        assert all(liar.peer not in node.service.layers_taken() for node in nodes)
        await life_goes_on(nodes)
        nursery.cancel_scope.cancel()


async def test_a_withheld_refinement_delays_a_round_by_no_more_than_its_hidden_time(autojump_clock):
    links = refined(b"data")
    async with swarm() as it, trio.open_nursery() as nursery:
        honest = replies(b"data", links, b"the layer")
        nodes = await it.start_all(2)

        class Withholds(Liar):
            async def _reply(self, raw: bytes) -> bytes:
                answer = await super()._reply(raw)
                asked = self.asked[-1]
                if isinstance(asked, ManifestRequest) and asked.address != links[1].address:
                    await trio.sleep_forever()
                return answer

        liar = Withholds(KEY, it.network.attach(KEY.peer_id), honest)
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        for node in nodes:
            await liar.greet(node)
        for each in links:
            await liar.transport.publish(each.raw)
        await until(lambda: all(node.service.neighbours()[liar.peer].tracked for node in nodes))
        for node in nodes:
            await node.publish(1)
        assert await close(nodes[0], 1) <= HIDDEN_S
        await nodes[0].publish(2)
        await nodes[1].publish(2)
        assert await close(nodes[0], 2) == 0, "it is not asked again for the same link"
        nursery.cancel_scope.cancel()


ROUNDS = 12


def refined_rounds() -> tuple[list[UpdateHeader], dict[Digest, bytes]]:
    """A chain of the liar's with a refinement in each link but the genesis, and its blobs by address."""
    links, blobs = [link(by=KEY)], {}
    for number in range(1, ROUNDS + 1):
        data, layer = b"data %d" % number, b"layer %d" % number
        layers = (Layer(codec="q2", size=len(layer), address=blob_manifest_of(layer).address),)
        body = UpdateHeaderBody(round=number, kind="delta", codec="none", size=len(data), layers=layers)
        address = blob_manifest_of(data).address
        prev = links[-1].digest
        statement = update_header_statement(epoch=1, seq=number, prev=prev, address=address, body=body)
        links.append(parse_update_header(sealed(statement, KEY)))
        blobs |= {address: data, layers[0].address: layer}
    return links, blobs


@pytest.mark.parametrize("held_s", [0.9 * HIDDEN_S, 2 * HIDDEN_S])
@pytest.mark.parametrize("resets", [True, False])
async def test_who_refuses_late_or_withholds_delays_fewer_and_fewer_rounds(autojump_clock, held_s, resets):
    links, blobs = refined_rounds()
    refinements = {layer.address for each in links for layer in each.body.layers}

    def answer(request: Request) -> bytes | None:
        if isinstance(request, HeadersRequest):
            return encode_answer([it.raw for it in links[request.first : request.first + request.count]])
        if isinstance(request, ManifestRequest) and request.address not in refinements:
            data = blobs[request.address]
            return encode_answer(blob_manifest_of(data).encode(), data)
        return None

    class Holds(Liar):
        async def _reply(self, raw: bytes) -> bytes:
            answer = await super()._reply(raw)
            asked = self.asked[-1]
            if isinstance(asked, ManifestRequest) and asked.address in refinements:
                await trio.sleep(held_s)
                if resets:
                    raise trio.BrokenResourceError
            return answer

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = Holds(KEY, it.network.attach(KEY.peer_id), answer)
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        for node in nodes:
            await liar.greet(node)
        await liar.transport.publish(links[0].raw)
        waits = []
        for round_ in range(1, ROUNDS + 1):
            await liar.transport.publish(links[round_].raw)
            for node in nodes:
                await node.publish(round_)
            waits.append(await close(nodes[0], round_))
            await trio.sleep(1.0)
        late = [number for number, wait_s in enumerate(waits) if wait_s > 0.1]
        assert late == [0, 2, 6], "after two rounds, four, and then eight"
        assert max(waits) <= HIDDEN_S + 1e-6
        nursery.cancel_scope.cancel()


def test_a_late_refinement_rests_for_rounds_of_ours_and_not_for_as_many_links():
    links, _ = refined_rounds()
    neighbours = {KEY.peer_id: Neighbour(KEY.peer_id, 0.0)}
    plan = LayerPlan(neighbours, Throughput(neighbours))
    asked = []
    for each in links:
        neighbours[KEY.peer_id].chain.learn(each)
        neighbours[KEY.peer_id].accepted(each)
        plan.applied(each, 0.0)
        if each.seq == 1:
            plan.begin_closing(HIDDEN_S, 0.0)
        if (work := plan.next_layer(KEY.peer_id, 0.0)) is not None:
            asked.append(each.seq)
            plan.given_up(work, "late")
    assert asked == [1]
    for rounds in (2, 4, RESTS_ROUNDS, RESTS_ROUNDS):
        for _ in range(rounds):
            assert plan.next_layer(KEY.peer_id, 0.0) is None
            assert not plan.asked(KEY.peer_id, 1)
            plan.begin_closing(HIDDEN_S, 0.0)
        plan.applied(links[-1], 0.0)
        work = plan.next_layer(KEY.peer_id, 0.0)
        assert work is not None
        plan.given_up(work, "late")


def asked_of(
    rounds: int, *, has_ours: Callable[[int], bool], closes_every: int = 1, more_of_ours: int = 0
) -> list[int]:
    """In which rounds the layer of a neighbour is fetched, which comes at once. `has_ours`: in which of them, by
    number from 1, it takes ours. `closes_every`: its rounds in one of ours. `more_of_ours`: rounds of ours after each,
    of which it takes nothing."""
    links, _ = refined_rounds()
    neighbours = {KEY.peer_id: Neighbour(KEY.peer_id, 0.0)}
    plan = LayerPlan(neighbours, Throughput(neighbours))
    asked = []
    for each in links[: rounds + 1]:
        neighbours[KEY.peer_id].chain.learn(each)
        neighbours[KEY.peer_id].accepted(each)
        plan.applied(each, 0.0)
        closes = each.seq % closes_every == 0
        if closes:
            plan.published()
            plan.begin_closing(HIDDEN_S, 0.0)
        if (work := plan.next_layer(KEY.peer_id, 0.0)) is not None:
            asked.append(each.seq)
            plan.took(work, 0.1, 0.1)
            plan.accepted(work)
        if has_ours(each.seq):
            plan.sent(KEY.peer_id, 1, 7, 0.1, 0.1)
        if closes:
            plan.end_closing()
        for _ in range(more_of_ours):
            plan.published()
            plan.begin_closing(HIDDEN_S, 0.0)
            plan.end_closing()
    return asked


def test_what_a_neighbour_does_not_take_of_ours_is_not_fetched_for_long():
    """An edge is averaged by as many layers as both ends have: one more at one end is of no use."""
    assert asked_of(ROUNDS, has_ours=lambda round_: False) == [1, 2, 3, 11, 12]
    assert ONE_SIDED == 3


def test_who_takes_ours_in_every_second_round_or_later_than_we_its_own_is_fetched_from_in_all():
    every = list(range(1, ROUNDS + 1))
    assert asked_of(ROUNDS, has_ours=lambda round_: round_ % 2 == 0) == every
    assert asked_of(ROUNDS, has_ours=lambda round_: round_ >= ONE_SIDED) == every


def test_a_faster_neighbour_that_takes_ours_is_fetched_from_in_all_rounds_of_its_own():
    """Most of its updates are followed by another before a round of ours closes."""
    assert asked_of(ROUNDS, has_ours=lambda round_: True, closes_every=4) == list(range(1, ROUNDS + 1))
    assert asked_of(ROUNDS, has_ours=lambda round_: False, closes_every=4) == [1, 2, 3]


def test_a_slower_neighbour_that_takes_one_of_several_updates_of_ours_is_fetched_from_in_all_rounds_of_its_own():
    assert asked_of(ROUNDS, has_ours=lambda round_: True, more_of_ours=3) == list(range(1, ROUNDS + 1))


def test_what_a_neighbour_asks_of_ours_is_tried_where_its_short_updates_took_long():
    links, _ = refined_rounds()
    neighbours = {KEY.peer_id: Neighbour(KEY.peer_id, 0.0)}
    speeds = Throughput(neighbours)
    plan = LayerPlan(neighbours, speeds)
    speeds.end(speeds.begin(KEY.peer_id, "received", 1, 0.0), 10.0, whole=True)  # a byte in ten seconds
    for each in links[:2]:
        neighbours[KEY.peer_id].chain.learn(each)
        neighbours[KEY.peer_id].accepted(each)
        plan.applied(each, 0.0)
    plan.published()
    plan.begin_closing(HIDDEN_S, 10.0)
    assert plan.next_layer(KEY.peer_id, 10.0) is None
    assert plan.asked(KEY.peer_id, 1)
    assert plan.next_layer(KEY.peer_id, 10.0 + HIDDEN_S * 0.6) is None, "less than half of the time is left"
    work = plan.next_layer(KEY.peer_id, 10.0)
    assert work is not None
    plan.given_up(work, "late")
    plan.applied(links[1], 0.0)
    assert plan.next_layer(KEY.peer_id, 10.0) is None, "and not in every round where it comes too late"


def test_two_links_that_differ_in_a_refinement_alone_prove_a_lie():
    base, one = refined(b"data")
    _, other = refined(b"data", layer=b"what others are shown")
    chain = HashChain()
    chain.learn(base)
    chain.learn(one)
    with pytest.raises(EquivocationError):
        chain.learn(other)


# -- what we publish


def payload(data: bytes) -> Payload:
    return Payload(manifest=blob_manifest_of(data), data=data)


def publisher() -> Publisher:
    made = Publisher(ALICE, SCOPE, history=4, max_payload_bytes=1000)
    made.begin(epoch=7, round=0, base=GENESIS)
    return made


def test_the_refinements_of_the_newest_link_alone_are_held():
    it = publisher()
    for number in range(1, 9):
        layers = [(name, payload(f"{name} {number}".encode())) for name in ("q2", "int8")]
        made = it.extend(round=number, codec="topk", payload=payload(b"%d" % number), steps=1, tokens=1, layers=layers)
        assert [layer.codec for layer in made.body.layers] == ["q2", "int8"]
        assert [it.layer_at(layer.address) for layer in made.body.layers] == [1, 2]
        assert it.blobs.chunk(made.body.layers[1].address, 0) == f"int8 {number}".encode()
        assert len(it.blobs) == min(number, 4) + 2
    it.begin(epoch=8, round=9, base=GENESIS)
    assert len(it.blobs) == 0
    with pytest.raises(RemoteError):
        it.blobs.manifest(made.body.layers[0].address)


def test_refinements_of_equal_bytes_are_let_go_and_are_no_update():
    """A model that has not moved is told by zeros alone, in each codec."""
    it, zeros = publisher(), payload(bytes(8))
    made = it.extend(round=1, codec="q2", payload=zeros, steps=1, tokens=1, layers=[("q2", zeros), ("q2", zeros)])
    assert it.layer_at(made.address) == 0, "who was sent it has the update"
    it.begin(epoch=8, round=2, base=GENESIS)
    assert len(it.blobs) == 0


def test_a_refinement_that_nobody_may_take_is_not_published():
    it, head = publisher(), publisher().head()
    for layers in ([("q2", payload(bytes(1001)))], [("", payload(b"x"))], [("q2", payload(b"x"))] * (MAX_LAYERS + 1)):
        with pytest.raises(LocalError):
            it.extend(round=1, codec="topk", payload=payload(b"base"), steps=1, tokens=1, layers=layers)
    assert it.head() == head
    assert len(it.blobs) == 0


LAYER = st.builds(
    Layer,
    codec=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=MAX_CODEC_CHARS),
    size=st.integers(1, MAX_BLOB_BYTES),
    address=st.binary(min_size=32, max_size=32).filter(any).map(Digest),
)


@given(st.lists(LAYER, max_size=MAX_LAYERS).map(tuple), st.integers(0, 1 << 53), st.booleans())
def test_headers_come_back_whatever_refinements_they_name(layers, round_, marked):
    state = digest_of(b"the state") if marked else None
    body = UpdateHeaderBody(round=round_ // 2, kind="delta", codec="q2", size=7, state=state, layers=layers)
    statement = update_header_statement(epoch=1, seq=4, prev=digest_of(b"3"), address=digest_of(b"4"), body=body)
    assert parse_update_header(sealed(statement)).body == body


def test_a_header_without_refinements_has_the_bytes_that_it_had():
    body = UpdateHeaderBody(round=1, kind="delta", codec="q2", size=7, steps=20, tokens=320)
    assert body.encode().hex() == "9701a564656c7461a271320714cd0140c400"
    layer = Layer(codec="int8", size=9, address=digest_of(b"9"))
    assert UpdateHeaderBody(round=1, kind="delta", layers=(layer,)).encode()[0] == 0x98
