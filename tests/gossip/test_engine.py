"""The state machine alone: what it says of each message, whom it charges, and what it wants performed."""

import random

import pytest
from gossip_samples import ALICE, BOB, CAROL, GENESIS, ONE_OF_EACH, SCOPE, chain, goodbye, link, offer, record

from gossip.actions import Disconnect, EmitEvent, Follow, Unfollow, WakeSync
from gossip.core.announcement_limit import LINKS_BURST
from gossip.core.api import RegionLayout, RunInfo
from gossip.core.config import GossipConfig
from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import EnvelopeKind, Scope, seal
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import RunId
from gossip.core.messages import Hello, parse_hello
from gossip.core.statements import regional_statement
from gossip.discovery.record_exchange import RECORDS_PER_S
from gossip.engine import MAX_SEEN, TWIN, TWIN_REFUSALS, Connections, Engine, NoConnections
from gossip.hellos.hello import HELLO_BURST
from gossip.updates.hash_chain import EquivocationError
from gossip.updates.mesh import SWAP_EVERY_S
from gossip.updates.seen import REPEAT_S

ME = Identity(b"\x63" * 32)
A, B, C = ALICE.peer_id, BOB.peer_id, CAROL.peer_id


def engine(
    connections: Connections = NoConnections(),
    layout: RegionLayout = RegionLayout(),
    liars: int = 1,
    withstood_by: int = 3,
    **changes,
) -> Engine:
    run, rng = RunInfo(run_id=SCOPE.run, genesis=GENESIS), random.Random(1)
    return Engine(
        identity=ME,
        config=GossipConfig(**changes),
        run=run,
        rng=rng,
        liars=liars,
        withstood_by=withstood_by,
        connections=connections,
        layout=layout,
    )


def hello(by: Identity = ALICE, **changes) -> bytes:
    fields = {"scope": SCOPE, "genesis": GENESIS, "neighbours": 0, "admitted": True, "record": record(by=by)} | changes
    return Hello(**fields).encode()


@pytest.fixture
def it() -> Engine:
    """An engine with Alice and Bob as neighbours."""
    made = engine()
    made.on_hello(A, hello(), 0.0)
    made.on_hello(B, hello(BOB), 0.0)
    made.drain()
    return made


def events(it: Engine) -> list[tuple[str, str, Reason | None]]:
    return [(each.event.name, each.event.peer, each.event.reason) for each in it.drain() if isinstance(each, EmitEvent)]


def test_a_hello_makes_a_neighbour():
    it = engine()
    answer = parse_hello(it.on_hello(A, hello(link=link().raw), 0.0))
    assert answer.admitted
    actions = it.drain()
    assert Follow(peer=A) in actions
    assert WakeSync(peer=A) in actions
    assert it.neighbours[A].chain.announced == link()
    assert it.peerstore.addresses(A) == (f"/memory/1/p2p/{A}",)


OTHER_RUN = Scope(swarm=SCOPE.swarm, run=RunId(b"x" * 16))
OTHER_SWARM = Scope(swarm=swarm_id_of("x"), run=SCOPE.run)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scope": OTHER_SWARM}, Reason.WRONG_SWARM),
        ({"scope": OTHER_RUN}, Reason.WRONG_RUN),
        ({"genesis": digest_of(b"another seed")}, Reason.WRONG_MODEL),
        ({"link": link(by=BOB).raw}, Reason.FORGED),
        ({"link": record()}, Reason.UNKNOWN_KIND),
        ({"record": record(by=BOB)}, Reason.FORGED),
        ({"records": (b"junk",)}, Reason.MALFORMED),
        ({"link": link(genesis=digest_of(b"another seed")).raw}, Reason.WRONG_MODEL),
    ],
)
def test_hellos_that_are_refused(changes, reason):
    with pytest.raises(RemoteError) as caught:
        engine().on_hello(A, hello(**changes), 0.0)
    assert caught.value.reason is reason


def test_records_of_others_are_kept_and_those_of_peers_that_were_reached_passed_on():
    it = engine()
    it.on_hello(A, hello(records=(record(by=BOB), record(by=ME))), 0.0)
    assert {entry.peer for entry in it.peerstore.known()} == {A, B}
    assert record(by=BOB) not in parse_hello(it.hello_for(C, 0.0)).records
    it.on_hello(B, hello(BOB), 0.0)
    assert record(by=BOB) not in parse_hello(it.hello_for(C, 0.0)).records
    it.peerstore.reached(B, it.peerstore.addresses(B)[0])
    assert record(by=BOB) in parse_hello(it.hello_for(C, 0.0)).records


def test_hellos_of_a_peer_are_looked_at_now_and_then_and_nobody_elses_suffer():
    it = engine()
    for _ in range(HELLO_BURST):
        it.on_hello(A, hello(), 0.0)
    with pytest.raises(RemoteError, match="too many hellos"):
        it.on_hello(A, hello(), 0.0)
    it.on_hello(B, hello(BOB), 0.0)
    for second in range(10, 200, 10):
        it.on_hello(A, hello(), float(second))


def test_records_told_beyond_what_a_peer_may_tell_are_not_looked_at():
    it = engine()
    for n in range(4):
        told = [Identity(bytes([10 + n, k]) + bytes(30)) for k in range(32)]
        it.on_hello(A, hello(records=tuple(record(by=each) for each in told)), float(n))
    assert len(it.peerstore) <= 1 + 32 + 3 * RECORDS_PER_S


BAD_BROADCASTS = {
    Reason.MALFORMED: b"junk",
    Reason.OVERSIZE: bytes(9000),
    Reason.FORGED: ONE_OF_EACH[EnvelopeKind.LINK][:-1] + b"\x00",
    Reason.WRONG_SWARM: link(scope=OTHER_SWARM).raw,
    Reason.WRONG_RUN: link(scope=OTHER_RUN).raw,
    Reason.UNKNOWN_KIND: ONE_OF_EACH[EnvelopeKind.OFFER],
    Reason.WRONG_MODEL: link(genesis=digest_of(b"another seed")).raw,
}


@pytest.mark.parametrize("reason", BAD_BROADCASTS)
def test_what_no_honest_node_passes_on_is_charged_to_the_forwarder(it, reason):
    assert it.on_message(B, BAD_BROADCASTS[reason], 0.0) is False
    assert it.peer_scores.stats.rejected == {(B, reason): 1}
    assert it.peer_scores.stats.rejected_by_reason == {reason: 1}
    assert events(it) == [("rejected", B, reason)]
    assert it.peer_scores.scores.points(B, 0.0) > 0
    assert it.peer_scores.scores.points(A, 0.0) == 0


def test_a_link_is_news_once_whoever_brings_it(it):
    raw = link().raw
    assert it.on_message(B, raw, 0.0) is True
    assert it.drain() == [WakeSync(peer=A)]
    assert it.on_message(A, raw, REPEAT_S) is True
    assert it.drain() == []


def test_a_link_is_not_passed_on_again_at_once(it):
    raw = link(by=ALICE).raw
    passed = [it.on_message(B, raw, at / 10) for at in range(21)]
    assert passed.count(True) == 1 + 2.0 // REPEAT_S
    assert passed[0] is True
    assert it.peer_scores.scores.points(B, 2.0) == 0


def longer(raw: bytes) -> bytes:
    """The same envelope in another form of msgpack, which anybody can make of it."""
    assert raw[0] == 0x92
    return b"\xdc\x00\x02" + raw[1:]


def test_a_link_in_another_form_is_the_same_one(it):
    raw = link(by=ALICE).raw
    assert it.on_message(B, longer(raw), 0.0) is True
    assert it.on_message(B, raw, 0.0) is False
    assert it.on_message(B, longer(raw), 0.0) is False
    assert it.peer_scores.scores.points(B, 0.0) == 0


def test_a_regions_model_in_another_form_is_the_same_one_and_had_of_all_who_say_it():
    """Who says it first in a form of its own would else be the only one from whom it is fetched."""
    it = engine(layout=RegionLayout(own="east", regions=("east", "west")))
    it._regional_inbox._region_of = lambda peer: "east"
    stated = regional_statement(region="east", round=1, codec="int8", members=4, address=digest_of(b"manifest"), size=9)
    model = seal(CAROL, SCOPE, stated)
    for forwarder, raw in ((B, longer(model.raw)), (A, model.raw), (C, longer(model.raw))):
        assert it.on_message(forwarder, raw, 0.0) is False
    assert set(it.regional_models.sources_of(model.digest)) == {A, B, C}


def test_links_of_strangers_are_passed_on_and_not_kept(it):
    assert it.on_message(B, link(by=CAROL).raw, 0.0) is True
    assert set(it.neighbours) == {A, B}


def test_a_replay_is_counted_and_nobody_is_charged_for_passing_it_on(it):
    it.on_message(A, link(epoch=5).raw, 0.0)
    assert it.on_message(B, link(epoch=4).raw, 0.0) is False
    assert it.peer_scores.stats.rejected == {(B, Reason.REPLAYED): 1}
    assert it.peer_scores.scores.points(B, 0.0) == 0


def test_equivocation_is_proved_told_and_bans_the_signer_only(it):
    one, other = chain(2)[1], chain(2, content=b"another")[1]
    assert it.on_message(B, one.raw, 0.0) is True
    it.drain()
    assert it.on_message(B, other.raw, 0.0) is True  # others must see it too
    assert it.peer_scores.proofs == {A: (one.raw, other.raw)}
    actions = it.drain()
    names = [each.event.name for each in actions if isinstance(each, EmitEvent)]
    assert names == ["equivocation", "rejected", "banned", "neighbour_lost"]
    assert Unfollow(peer=A) in actions
    assert Disconnect(peer=A) in actions
    assert set(it.neighbours) == {B}
    with pytest.raises(RemoteError) as caught:
        it.on_hello(A, hello(), 1e9)
    assert caught.value.reason is Reason.BANNED


def test_an_announced_payload_beyond_the_limit_is_the_signers_offence():
    it = engine(max_payload_bytes=100)
    it.on_hello(A, hello(), 0.0)
    big = link(seq=1, prev=link().digest, size=101).raw
    assert it.on_message(B, big, 0.0) is True
    assert it.peer_scores.stats.rejected == {(A, Reason.OVERSIZE): 1}
    with pytest.raises(RemoteError) as caught:
        it.on_offer(A, offer(chain(2)[1], size=101).raw, (0, 0))
    assert caught.value.reason is Reason.OVERSIZE


def test_an_offer_must_be_as_new_as_asked_for(it):
    with pytest.raises(RemoteError) as caught:
        it.on_offer(A, offer(chain(2)[1]).raw, (1, 2))
    assert caught.value.reason is Reason.STALE


def test_a_flood_is_counted_fully_and_told_sparsely(it):
    it.on_message(A, link(epoch=2000).raw, 0.0)
    it.drain()
    for epoch in range(1000):
        it.on_message(B, link(epoch=epoch).raw, 0.0)
    assert it.peer_scores.stats.rejected[B, Reason.REPLAYED] == LINKS_BURST
    assert it.peer_scores.stats.rejected[B, Reason.FLOODED] == 1000 - LINKS_BURST
    assert len(events(it)) < 60


def test_repeated_offences_ban_and_a_banned_forwarder_is_not_even_read(it):
    for n in range(2):
        it.on_message(B, ONE_OF_EACH[EnvelopeKind.LINK][:-1] + bytes([n]), 0.0)
    assert ("banned", B, Reason.FORGED) in events(it)
    assert set(it.neighbours) == {A}
    counted = dict(it.peer_scores.stats.rejected)
    assert it.on_message(B, b"junk", 1.0) is False
    assert it.peer_scores.stats.rejected == counted
    assert not it.mesh.dialable(B, 1.0)


def test_a_full_node_says_so_and_makes_room_for_the_lonely_now_and_then():
    it, late = engine(degree=2), Identity(b"\x07" * 32)
    for key in (ALICE, BOB, CAROL, late):
        it.peerstore.reached(key.peer_id, f"/memory/1/p2p/{key.peer_id}")
    for key in (ALICE, BOB):
        it.on_hello(key.peer_id, hello(key, neighbours=2), 0.0)
    assert parse_hello(it.on_hello(C, hello(CAROL, neighbours=2), 1.0)).admitted is False
    assert parse_hello(it.on_hello(C, hello(CAROL, neighbours=0), 1.0)).admitted is True
    assert len(it.neighbours) == 2
    lost = [each.peer for each in it.drain() if isinstance(each, Disconnect)]
    assert len(lost) == 1
    for peer in list(it.neighbours):
        it.neighbours[peer].neighbours = 2
    assert parse_hello(it.on_hello(late.peer_id, hello(late), 2.0)).admitted is False
    assert parse_hello(it.on_hello(late.peer_id, hello(late), 2.0 + SWAP_EVERY_S)).admitted is True


def test_a_full_node_makes_no_room_for_one_that_only_says_hello():
    it = engine(degree=2)
    for key in (ALICE, BOB):
        it.on_hello(key.peer_id, hello(key, neighbours=2), 0.0)
    assert parse_hello(it.on_hello(C, hello(CAROL, neighbours=0), 1.0)).admitted is False
    it.peerstore.reached(C, f"/memory/1/p2p/{C}")
    assert parse_hello(it.on_hello(C, hello(CAROL, neighbours=0), 2.0)).admitted is True
    assert set(it.neighbours) == {A, C}, "the newest of those that only said hello goes for one that was reached"


def test_who_has_no_room_for_us_is_no_neighbour(it):
    it.on_hello_answer(A, hello(admitted=False), 0.0)
    assert A not in it.neighbours
    assert Disconnect(peer=A, hurried=False) in it.drain()


def test_a_refusal_for_another_run_names_all_that_a_run_is_made_of(it):
    with pytest.raises(RemoteError, match="task, model, base model, or strategy and its options differ"):
        it.on_hello(C, hello(CAROL, scope=OTHER_RUN), 0.0)


TOO_OLD = RemoteError(Reason.REPLAYED, "a hello with an old link")


def warnings(it: Engine) -> list[str]:
    told = [each.event for each in it.drain() if isinstance(each, EmitEvent)]
    return [event.detail for event in told if event.name == "warning"]


def test_refusals_of_our_newest_link_as_an_old_one_tell_of_another_process_with_our_key_once(it):
    for peer in (A, B):
        it.hello_refused(peer, TOO_OLD)
    assert warnings(it) == [], "a connection that was held up brings an old link too"
    for peer in (A, B, A, B):
        it.hello_refused(peer, TOO_OLD)
    assert warnings(it) == [TWIN]


def test_one_liar_cannot_tell_of_another_process_with_our_key_while_others_welcome_us(it):
    for at in range(2 * TWIN_REFUSALS):
        it.hello_refused(A, TOO_OLD)
        it.on_hello_answer(B, hello(BOB), at / 10)
    assert warnings(it) == []


def test_a_goodbye_ends_it_and_is_not_dialled_after(it):
    it.on_goodbye(A, goodbye(), 0.0)
    assert A not in it.neighbours
    assert not it.mesh.dialable(A, 1.0)
    assert it.mesh.dialable(A, 61.0)
    with pytest.raises(RemoteError) as caught:
        it.on_goodbye(B, goodbye(), 0.0)
    assert caught.value.reason is Reason.FORGED


def test_who_comes_back_after_a_goodbye_may_be_dialled_when_it_is_lost_again(it):
    it.on_goodbye(A, goodbye(), 0.0)
    it.on_hello(A, hello(), 1.0)
    it.peer_lost(A, 2.0)
    assert A not in it.neighbours
    assert it.mesh.dialable(A, 2.0)


def test_a_liars_round_moves_nothing(it):
    it.on_hello(C, hello(CAROL), 0.0)
    for key, at in ((ALICE, 3), (BOB, 4), (CAROL, 10**9)):
        it.on_message(A, link(by=key, round=at).raw, 0.0)
        it.accepted(link(by=key, round=at), 0.0)
    assert it.swarm_round(0.0) == 4
    assert set(it.standing(4, 0.0).staleness) == {A, B}


@pytest.mark.parametrize(("liars", "withstood_by", "expected"), [(1, 3, 3), (2, 5, 5), (0, 1, 0), (1, 0, 0)])
def test_rounds_have_to_withstand_liars_where_there_may_be_any_and_one_did(liars, withstood_by, expected):
    it = engine(liars=liars, withstood_by=withstood_by)
    assert it.least_members == 0
    it.round_outvoted_liars([A, B, C])
    assert it.least_members == expected


def test_another_node_with_our_key_is_noticed_once(it):
    it.publisher.begin(epoch=1, round=0, base=GENESIS)
    for epoch in (5, 6):
        it.on_message(A, link(by=ME, epoch=epoch).raw, 0.0)
    assert [name for name, *_ in events(it)] == ["warning"]


def test_what_was_seen_is_bounded(it):
    for n in range(MAX_SEEN + 50):
        it._seen.add(digest_of(b"%d" % n), A, 0.0)
    it.on_message(A, link().raw, 0.0)
    assert len(it._seen) == MAX_SEEN


def test_a_new_connection_is_greeted_unless_its_peer_is_banned(it):
    assert it.peer_connected(C, 0.0)
    assert it.drain() == []
    it.offence(C, EquivocationError(b"", b""), 0.0)
    it.drain()
    assert not it.peer_connected(C, 1.0)
    assert it.drain() == [Disconnect(peer=C)]


def test_a_neighbour_whose_last_connection_is_lost_is_none_any_more(it):
    it.peer_lost(A, 0.0)
    assert set(it.neighbours) == {B}
    assert it.drain()[0] == Unfollow(peer=A)
    it.peer_lost(A, 0.0)
    assert it.drain() == []


def test_who_leaves_has_no_neighbours_and_knows_whom_to_tell(it):
    it.goodbye()
    assert it.left() == [A, B]
    assert not it.neighbours
    assert [action.peer for action in it.drain() if isinstance(action, Unfollow)] == [A, B]
    it.on_hello(A, hello(), 0.0)
    assert not it.neighbours, "a hello brings nobody back"


def test_records_are_probed_of_who_is_there_and_was_never_reached():
    class There(NoConnections):
        peers = frozenset({A, C})

    it = engine(connections=There())
    for key in (ALICE, BOB):
        it.on_hello(key.peer_id, hello(key), 0.0)
    assert [each.peer for each in it.to_probe(0.0)] == [A]
    it.peer_reached(A, it.peerstore.addresses(A)[0], "")
    assert it.to_probe(0.0) == []


def test_an_exchange_is_timed_from_the_first_word_of_an_update_until_it_is_applied(it):
    first, second = chain(2)
    it.on_message(A, first.raw, 1.0)
    it.accepted(first, 2.0)
    it.on_message(A, second.raw, 3.0)
    it.set_fetch("updates", 4.0)  # its follower is woken once more
    it.accepted(second, 7.0)
    assert it.exchange_times.seconds(quorum=1.0, liars=0) == 4.0


def test_who_has_a_seat_on_probation_has_stood_with_nobody(it):
    """New keys have a seat in turn. All that ever had one would be in the checkpoint, and count in full after it."""
    it.round_closed()
    it.on_hello(C, hello(CAROL), 0.0)
    it.round_outvoted_liars([A, B, C])
    assert it.outvoted_liars
    assert it.stood_with() == {A, B}


def test_with_whom_it_stood_before_a_restart_is_no_newcomer_after_it():
    it = engine()
    it.stood_before([A, C])
    it.round_closed()
    assert it.outvoted_liars
    assert it.stood_with() == {A, C}
    many = [Identity(bytes([100 + number]) * 32).peer_id for number in range(8)]
    assert it.seated_of([*many, A, C]) == [many[0], A, C]


def test_new_keys_that_wait_for_a_restart_have_stood_with_nobody():
    """None of them counts in full, or may vote to have a member of a swarm that stood go back, before it has served."""
    it = engine()
    it.stood_before([A])
    for peer, identity in ((B, BOB), (C, CAROL)):
        it.on_hello(peer, hello(identity), 0.0)
    it.round_outvoted_liars([A, B, C])
    it.round_closed()
    it.round_outvoted_liars([A, B, C])
    assert it.stood_with() == {A}
    assert it.seated_of([A, B, C]) == [A, B]


@pytest.mark.parametrize(
    ("liars", "withstands", "stood", "members"),
    [(0, True, [], 5), (1, True, [], 3), (1, True, [A, B], 4), (2, True, [B], 4), (1, False, [], 4), (2, False, [], 5)],
)
def test_of_those_far_ahead_with_whom_we_stood_as_many_are_members_as_may_lie(liars, withstands, stood, members):
    """The two at round 40 would be two wrong models, where one lies and has ruined the other before we came."""
    it = engine(liars=liars, withstood_by=2 * liars + 1 if withstands else 0)
    near = [CAROL, *(Identity(bytes([n]) * 32) for n in (21, 22))]
    if stood:
        it.stood_before([*stood, *(each.peer_id for each in near)])
    for who, round_ in ((ALICE, 40), (BOB, 40), *((each, 0) for each in near)):
        fields = {"record": record(by=who), "link": link(by=who, round=round_).raw}
        it.on_hello(who.peer_id, hello(who, **fields), 0.0)
        it.accepted(link(by=who, round=round_), 0.0)
    it.round_closed()
    assert len(it.standing(1, 0.0).staleness) == members


def test_one_far_ahead_is_a_member_where_there_is_nobody_else():
    """Of a pair with an f of 1 the slower one has nobody else to average with."""
    it = engine()
    it.on_hello(A, hello(ALICE, record=record(by=ALICE), link=link(by=ALICE, round=40).raw), 0.0)
    it.accepted(link(by=ALICE, round=40), 0.0)
    assert it.standing(1, 0.0).staleness == {A: 0}
    it.on_hello(B, hello(BOB, record=record(by=BOB)), 0.0)
    assert it.standing(1, 0.0).beyond == {A}
    it.mesh.drop(B, "it left")
    assert not it.standing(1, 0.0).beyond
    it.stood_before([C])
    assert it.standing(1, 0.0).beyond == {A}, "there were members enough once"


def test_who_is_far_ahead_may_be_a_donor_and_is_no_member():
    """Of two that say later rounds than all others, each of another one, the nearer one alone would be taken."""
    it = engine()
    it.set_fetch("nothing", 0.0)
    for who, round_ in ((ALICE, 40), (BOB, 400)):
        it.on_hello(who.peer_id, hello(who, link=link(by=who, round=round_).raw), 0.0)
    assert it.standing(40, 0.0).staleness == {A: 0}
    assert it.donors(40) == {A: 0, B: 0}
    assert it.donors(43) == {A: 3, B: 0}
    assert it.donors(45) == {B: 0}
