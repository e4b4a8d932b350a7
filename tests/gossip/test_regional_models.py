"""The table of regions' models, without a network: what is taken in, what counts, and what is fetched next."""

from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest
from gossip_swarm import RUN, identity

from gossip.blobs.blob import blob_manifest_of
from gossip.core.api import RegionLayout
from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import Scope, seal
from gossip.core.ids import PeerId
from gossip.core.statements import RegionalModel, parse_regional, regional_statement
from gossip.discovery.peerstore import RecordTrust
from gossip.regions.bridges import Bridges
from gossip.regions.regional_models import (
    FETCHES_BURST,
    LEAST_COST,
    NEXT_BYTES_PER_S,
    OUTDATED_S,
    SETTLED_S,
    Announced,
    RegionalModels,
    RegionalVerdict,
)
from gossip.updates.publisher import Payload

SCOPE = Scope(swarm=swarm_id_of("test"), run=RUN.run_id)
LAYOUT = RegionLayout(own="east", regions=("east", "west"))
ME, *EAST = [identity(number).peer_id for number in range(1, 5)]
WEST = [identity(number).peer_id for number in range(5, 9)]
NUMBERS = {identity(number).peer_id: number for number in range(1, 300)}


@dataclass
class Table:
    """Four of us and four of the others, all of whom we have met, unless it is said otherwise."""

    f: int = 1
    trust: dict[PeerId, RecordTrust] = field(default_factory=dict)
    east: list[PeerId] = field(default_factory=lambda: list(EAST))
    west: list[PeerId] = field(default_factory=lambda: list(WEST))

    def __post_init__(self) -> None:
        self.bridges = Bridges(ME, SCOPE, LAYOUT, self._region_of, self._is_met, count().__next__)
        self.models = RegionalModels(ME, SCOPE, self.bridges, self.f, self._standing)
        self.meet()

    def meet(self) -> None:
        self.bridges.look_round([*self.east, *self.west], lambda peer: True)

    def hear(
        self, author: PeerId, round: int, payload: bytes = b"", *, region: str = "west", now: float = 0.0, size: int = 0
    ) -> tuple[RegionalVerdict, RegionalModel]:
        model = statement(author, round, payload or author.encode(), region=region, size=size)
        verdict, _ = self.models.hear(digest_of(model.raw), model, WEST[0], now)
        return verdict, model

    def bring(self, author: PeerId, round: int, *, region: str = "west", now: float = 0.0) -> None:
        """Announce a model, and have its blob."""
        verdict, model = self.hear(author, round, region=region, now=now)
        assert verdict is RegionalVerdict.NEWS
        self.models.fetched(self.found(model), payload_of(author.encode()), now)

    def found(self, model: RegionalModel) -> Announced:
        return next(it for it in self.models.announced() if it.model.digest == model.digest)

    def _region_of(self, peer: PeerId) -> str | None:
        return "east" if peer in (ME, *self.east) else "west" if peer in self.west else None

    def _standing(self, peer: PeerId) -> RecordTrust:
        return self.trust.get(peer, RecordTrust.VERIFIED)

    def _is_met(self, peer: PeerId) -> bool:
        return self._standing(peer) >= RecordTrust.FIRST_HAND


def payload_of(data: bytes) -> Payload:
    return Payload(manifest=blob_manifest_of(data), data=data)


def statement(author: PeerId, round: int, payload: bytes, *, region: str = "west", size: int = 0) -> RegionalModel:
    stated = regional_statement(
        region=region,
        round=round,
        codec="int8",
        members=4,
        address=blob_manifest_of(payload).address,
        size=size or len(payload),
    )
    return parse_regional(seal(identity(NUMBERS[author]), SCOPE, stated))


def test_a_round_counts_once_enough_models_are_here() -> None:
    it = Table()
    for number, author in enumerate(WEST[:3]):
        assert len(it.models.newest_round("west")) == 0, number
        it.bring(author, 8)
    assert {each.model.peer for each in it.models.newest_round("west")} == set(WEST[:3])


def test_of_more_models_than_are_published_those_of_members_that_were_met_count() -> None:
    strangers = [identity(number).peer_id for number in range(100, 104)]
    it = Table(trust=dict.fromkeys(strangers, RecordTrust.HEARSAY))
    for author in (*strangers, *WEST):
        it.bring(author, 8)
    assert {each.model.peer for each in it.models.newest_round("west")} == set(WEST)


def test_a_contradiction_voids_both_and_neither_is_taken_again() -> None:
    it = Table()
    assert it.hear(WEST[0], 8, b"one")[0] is RegionalVerdict.NEWS
    assert it.hear(WEST[0], 8, b"two")[0] is RegionalVerdict.CONTRADICTION
    for payload in (b"one", b"two", b"three"):
        assert it.hear(WEST[0], 8, payload)[0] is RegionalVerdict.OLD
    assert len(it.models) == 0
    assert it.hear(WEST[0], 16)[0] is RegionalVerdict.NEWS, "another round is another matter"


def test_one_author_has_its_models_fetched_at_a_pace() -> None:
    it = Table()
    most = int(FETCHES_BURST / LEAST_COST)
    told = [it.hear(WEST[0], round_, b"%d" % round_)[0] for round_ in range(2 * most)]
    assert told.count(RegionalVerdict.NEWS) == most - 1, "each costs a little more than the least"
    assert it.hear(WEST[0], 999, b"later", now=2.0)[0] is RegionalVerdict.NEWS
    assert it.hear(WEST[1], 8)[0] is RegionalVerdict.NEWS, "others are not held back by it"


def test_the_models_of_the_quickest_rounds_are_all_fetched() -> None:
    """Digits on one machine: a turn of eight rounds in half a second, 40 kB a model."""
    it = Table()
    told = [it.hear(WEST[0], turn, b"%d" % turn, size=40_000, now=turn / 2)[0] for turn in range(200)]
    assert set(told) == {RegionalVerdict.NEWS}


def test_a_large_model_costs_as_much_as_many_small_ones() -> None:
    it = Table()
    large = 100 * NEXT_BYTES_PER_S
    told = [it.hear(WEST[0], round_, b"%d" % round_, size=large)[0] for round_ in range(3)]
    assert told == [RegionalVerdict.NEWS, RegionalVerdict.OLD, RegionalVerdict.OLD]


def test_made_up_members_do_not_push_us_out_of_the_draw() -> None:
    made_up = [identity(number).peer_id for number in range(100, 200)]
    it = Table(trust=dict.fromkeys(made_up, RecordTrust.HEARSAY))
    it.east = [*EAST, *made_up]
    it.meet()
    assert all(it.models.publishes(round_) for round_ in range(20)), "four of four publish with f = 1"


def test_who_says_that_it_is_paused_takes_no_place_in_the_draw() -> None:
    """Of eight members five sleep: the other three are as many as make a round whole."""
    it = Table()
    it.east = [identity(number).peer_id for number in (2, 3, 4, 10, 11, 12, 13)]
    it.meet()
    asleep = it.east[2:]
    assert not all(it.models.publishes(round_) for round_ in range(20))
    assert all(it.models.publishes(round_, asleep) for round_ in range(20))


def test_made_up_members_do_not_put_off_what_we_fetch() -> None:
    made_up = [identity(number).peer_id for number in range(100, 200)]
    it = Table(trust=dict.fromkeys(made_up, RecordTrust.HEARSAY))
    it.east = [*EAST, *made_up]
    it.meet()
    it.hear(WEST[0], 8)
    assert it.models.next_fetches(7.0, WEST), "after the three others that there are"


@pytest.mark.parametrize(("now", "needed"), [(1.0, 3), (SETTLED_S + 1.0, 1)])
def test_a_region_of_one_known_member_is_believed_to_be_one_after_a_while(now: float, needed: int) -> None:
    it = Table()
    it.west = WEST[:1]
    it.meet()
    it.models.look(0.0)
    it.models.look(now)
    assert it.models.needed("west") == needed


def test_a_region_whose_members_do_not_answer_is_not_taken_for_one_of_few() -> None:
    """It is cut off, and a liar of it has another way here."""
    it = Table()
    it.models.look(0.0)
    for author in WEST[:3]:
        it.bring(author, 8, now=SETTLED_S + 1.0)
    it.bridges.look_round([*it.east, *it.west], lambda peer: peer not in WEST[1:])
    assert it.bridges.members_of("west") == {WEST[0]}
    it.bring(WEST[0], 16, now=SETTLED_S + 60.0)
    assert it.models.needed("west") == 3
    assert {each.model.round for each in it.models.newest_round("west")} == {8}
    for author in WEST[1:3]:
        it.bring(author, 16, now=SETTLED_S + 600.0)
    assert {each.model.round for each in it.models.newest_round("west")} == {16}, "it is back"


def test_an_early_lie_of_a_far_round_does_not_make_later_rounds_old() -> None:
    it = Table()
    it.west = WEST[:1]
    it.meet()
    it.models.look(0.0)
    it.bring(WEST[0], 10**6, now=SETTLED_S + 1.0)
    it.west = WEST
    it.meet()
    assert it.hear(WEST[1], 8, now=SETTLED_S + 2.0)[0] is RegionalVerdict.NEWS


@pytest.mark.parametrize(("region", "authors"), [("west", WEST), ("east", EAST)])
def test_old_statements_that_somebody_says_again_take_nobody_back(region: str, authors: list[PeerId]) -> None:
    """Turns take longer than ten minutes. Anybody may hold what was stated before, with its blobs."""
    it = Table()
    for author in authors:
        it.bring(author, 80, region=region)
    it.bridges.admit(WEST[0], 0.0)
    it.bridges.says_round(WEST[0], 83)
    told = [it.hear(author, at, region=region, now=OUTDATED_S + 1.0)[0] for at in (8, 16) for author in authors]
    assert set(told) == {RegionalVerdict.OLD}
    assert {each.model.round for each in it.models.newest_round(region)} == {80}


def test_a_region_that_went_back_is_heard_again() -> None:
    it = Table()
    for author in WEST[:3]:
        it.bring(author, 80)
    it.bridges.admit(WEST[0], 0.0)
    it.bridges.says_round(WEST[0], 83)
    it.bridges.lose(WEST[0])
    assert it.hear(WEST[0], 48, now=OUTDATED_S + 1.0)[0] is RegionalVerdict.OLD, "nobody of it is here"
    it.bridges.admit(WEST[1], OUTDATED_S)
    it.bridges.says_round(WEST[1], 46)
    assert it.hear(WEST[0], 48, now=OUTDATED_S - 1.0)[0] is RegionalVerdict.OLD
    for at in (48, 56):
        for author in WEST[:3]:
            it.bring(author, at, now=OUTDATED_S + 1.0)
    assert {each.model.round for each in it.models.newest_round("west")} == {56}


def test_what_is_forgotten_is_held_no_more() -> None:
    it = Table()
    _, model = it.hear(WEST[0], 8)
    announced = it.found(model)
    assert it.models.holds(announced)
    it.models.forget(WEST[0])
    assert not it.models.holds(announced)
    assert not it.models.awaits(model.address, model.size)


def test_a_second_source_is_asked_when_the_first_takes_too_long_and_one_model_of_an_author_at_a_time() -> None:
    it = Table()
    _, model = it.hear(WEST[0], 8)
    announced = it.found(model)
    it.models.has_it(digest_of(model.raw), EAST[0])
    it.models.has_it(digest_of(model.raw), EAST[1])
    it.models.has_it(digest_of(model.raw), EAST[2])
    ((first, source),) = it.models.next_fetches(0.0, EAST)
    assert first is announced
    announced.fetches[source] = 0.0
    assert not it.models.next_fetches(1.0, EAST)
    ((again, other),) = it.models.next_fetches(3.0, EAST)
    assert again is announced
    assert other != source
    announced.fetches[other] = 3.0
    assert not it.models.next_fetches(60.0, EAST), "two at most"
    _, later = it.hear(WEST[0], 16, b"the next one")
    it.models.has_it(digest_of(later.raw), EAST[0])
    assert not it.models.next_fetches(60.0, EAST), "while one of this author's is fetched"


def test_a_model_that_nobody_has_any_more_does_not_keep_its_authors_next_one_waiting() -> None:
    """What two regions had announced before they were cut off is gone from both when they meet again."""
    it = Table()
    _, earlier = it.hear(WEST[0], 5, b"before")
    it.models.failed(it.found(earlier), WEST[0], 0.0, lied=False)
    _, newer = it.hear(WEST[0], 69, b"after", now=100.0)
    (first, _), *rest = it.models.next_fetches(200.0, set(WEST))
    assert first.model.digest == newer.digest
    assert rest == [], "one at a time"
    it.models.failed(first, WEST[0], 200.0, lied=False)
    ((next_, _),) = it.models.next_fetches(200.0, set(WEST))
    assert next_.model.digest == earlier.digest, "one that cannot be had yet holds up none"


def test_our_own_regions_model_is_not_fetched_from_another_region() -> None:
    it = Table()
    _, model = it.hear(EAST[0], 8, region="east")  # said by a member of the other region
    assert not it.models.next_fetches(1000.0, [*EAST, *WEST])
    it.models.has_it(digest_of(model.raw), EAST[1])
    assert [source for _, source in it.models.next_fetches(0.0, [*EAST, *WEST])] == [EAST[1]]


def test_a_flat_swarm_and_other_regions_are_not_listened_to() -> None:
    bridges = Bridges(ME, SCOPE, RegionLayout(), lambda peer: "west", lambda peer: True, lambda: 0)
    flat = RegionalModels(ME, SCOPE, bridges, 1, lambda peer: RecordTrust.VERIFIED)
    model = statement(WEST[0], 8, b"x")
    assert flat.hear(digest_of(model.raw), model, WEST[0], 0.0)[0] is RegionalVerdict.ELSEWHERE
    assert Table().hear(WEST[0], 8, region="south")[0] is RegionalVerdict.ELSEWHERE


def test_it_tells_who_has_said_a_statement() -> None:
    it = Table()
    _, model = it.hear(WEST[0], 8)
    it.models.has_it(digest_of(model.raw), EAST[0])
    assert set(it.models.sources_of(model.digest)) == {WEST[0], EAST[0]}
    assert not it.models.sources_of(digest_of(b"another"))


def test_a_round_is_announced_once_as_many_have_announced_it_as_make_it_whole() -> None:
    it = Table()
    for author in WEST[:2]:
        it.hear(author, 8)
    it.hear(WEST[2], 10**6)
    assert it.models.announced_round("west") is None
    it.hear(WEST[3], 8)
    assert it.models.announced_round("west") == 8
    assert it.models.newest_round("west") == []
    it.models.refuse(WEST[3], "west", 8)
    assert it.models.announced_round("west") is None


def test_where_a_region_is_its_connected_members_say() -> None:
    it = Table()
    assert it.bridges.said_rounds == {}
    it.bridges.says_round(WEST[0], 5)
    assert it.bridges.said_rounds == {}, "it is no bridge"
    for at, peer in enumerate(WEST):
        it.bridges.admit(peer, 0.0)
        it.bridges.says_round(peer, 10 * at)
    it.bridges.says_round(WEST[1], 3)
    assert it.bridges.said_rounds == {"west": 10}, "the lower median; an earlier link that comes late is no news"
    it.bridges.lose(WEST[0])
    assert it.bridges.said_rounds == {"west": 20}
    assert set(it.bridges.rounds) == set(WEST[1:])


def test_a_link_of_an_unknown_signer_is_of_where_it_came_from() -> None:
    it, stranger, other = Table(), identity(200).peer_id, identity(201).peer_id
    elsewhere = partial(it.bridges.is_from_elsewhere, is_neighbour=False)
    assert not elsewhere(EAST[0], EAST[1])
    assert not elsewhere(EAST[0], WEST[0]), "one of ours may come by another region"
    assert elsewhere(WEST[0], EAST[0])
    assert elsewhere(stranger, WEST[0])
    assert not elsewhere(stranger, EAST[0])
    assert elsewhere(stranger, stranger), "who has said nothing may be of any region, and nobody of ours knows it"
    assert elsewhere(stranger, other)
    assert not it.bridges.is_from_elsewhere(stranger, stranger, is_neighbour=True), (
        "it is of no region, and we follow it"
    )
    assert it.bridges.is_from_elsewhere(WEST[0], WEST[0], is_neighbour=True)
    flat = Bridges(ME, SCOPE, RegionLayout(), lambda peer: None, lambda peer: True, lambda: 0)
    assert not flat.is_from_elsewhere(stranger, other, is_neighbour=False)


def test_a_model_that_is_said_again_is_of_no_use_to_who_has_said_it() -> None:
    it = Table()
    _, model = it.hear(WEST[0], 8)
    name = digest_of(model.raw)
    it.models.has_it(name, EAST[0])
    assert not it.models.have_heard(name), "who says it first tells all that it has the blob"
    it.models.say_again(model.digest)
    assert it.models.have_heard(name) == {WEST[0], EAST[0]}
    it.models.has_it(name, EAST[1])
    assert it.models.have_heard(name) == {WEST[0], *EAST[:2]}
    assert not it.models.have_heard(digest_of(b"unknown"))
    it.models.lose(EAST[0])
    assert it.models.have_heard(name) == {WEST[0], EAST[1]}, "who is back may be another process, which has nothing"
    assert EAST[0] in it.models.sources_of(model.digest)


def test_who_says_a_model_is_of_interest_until_it_is_here_or_refused() -> None:
    it = Table()
    _, model = it.hear(WEST[0], 8)
    _, refused = it.hear(WEST[1], 8)
    names = [digest_of(each.raw) for each in (model, refused)]
    assert all(map(it.models.is_awaited, names))
    it.models.refuse(WEST[1], "west", 8)
    it.models.fetched(it.found(model), payload_of(WEST[0].encode()), 1.0)
    assert not any(map(it.models.is_awaited, names))
    assert not it.models.next_fetches(1000.0, [*EAST, *WEST])
    it.models.refuse(WEST[0], "west", 8)
    assert not any(map(it.models.is_awaited, names)), "what the runtime could not read is not fetched again"
    _, dropped = it.hear(WEST[2], 8)
    it.models.drop(held := it.found(dropped))
    assert not it.models.is_awaited(digest_of(dropped.raw))
    assert not it.models.holds(held)
