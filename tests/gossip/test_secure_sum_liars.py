"""Liars in secure sums, drawn at random: what they tell each member is changed before it is signed, and some leave.

Whatever they do, an honest member ends in time, charges nobody honest, comes to the exact sum of the survivors'
vectors or to none, and never tells its shares of both secrets of one member.
"""

import random
from dataclasses import replace

import pytest
from secure_members import (
    SCOPE,
    Lie,
    Outcome,
    Sum,
    check,
    check_told,
    group_of,
    inputs_of,
    key,
    nothing_opened,
)

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import Statement, open_envelope, seal
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.secure_statements import (
    SEALED_SHARES_BYTES,
    AgreedBody,
    KeysBody,
    OpenedBody,
    SecureStage,
    SharesBody,
    SummedBody,
    ViewBody,
    parse_secure,
)
from gossip.secure_aggregation.masks import public_key
from gossip.secure_aggregation.survivors import agreement
from gossip.updates.hash_chain import EquivocationError

STAGES = list(SecureStage)


def body_of(statement: Statement) -> object:
    return parse_secure(seal(key(99), SCOPE, statement)).body


def at(stage: SecureStage, change: Lie) -> Lie:
    """Lie at one stage alone."""
    return lambda said, to, rng: change(said, to, rng) if said.seq == stage else [said]


def other_keys(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Other keys for one half of the members."""
    keys = KeysBody(channel=public_key(bytes(32)), mask=public_key(bytes([7]) * 32), seed=digest_of(b"another seed"))
    return [replace(said, body=keys.encode())] if to % 2 else [said]


def small_order_keys(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    return [replace(said, body=KeysBody(channel=bytes(32), mask=bytes(32), seed=NO_DIGEST).encode())]


def spoilt_shares(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Sealed under keys that nobody has."""
    body = body_of(said)
    assert isinstance(body, SharesBody)
    return [replace(said, body=SharesBody(holders=body.holders, sealed=bytes(len(body.sealed))).encode())]


def other_vector(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """A vector that is served to nobody, for one half of the members."""
    return [replace(said, payload=digest_of(b"another vector"))] if to % 2 else [said]


def other_view(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Made-up digests of others' statements."""
    body = body_of(said)
    assert isinstance(body, ViewBody)
    return [replace(said, body=ViewBody(view={place: Digest(rng.randbytes(32)) for place in body.view}).encode())]


def fewer_held(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Holds hardly anybody's vector, it says."""
    body = body_of(said)
    assert isinstance(body, ViewBody)
    few = dict(list(body.view.items())[:1])
    return [replace(said, body=ViewBody(view=few).encode())]


def other_survivors(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Other survivors for each member."""
    body = body_of(said)
    assert isinstance(body, AgreedBody)
    fewer = body.survivors - {rng.choice(sorted(body.survivors))}
    return [replace(said, body=AgreedBody(survivors=fewer).encode(), payload=digest_of(b"what it likes"))]


def forged_shares(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Keys that open nothing, and another seed than it has committed itself to."""
    body = body_of(said)
    assert isinstance(body, OpenedBody)
    forged = {place: rng.randbytes(32) for place in body.share_keys}
    return [replace(said, body=replace(body, seed=rng.randbytes(32), share_keys=forged).encode())]


def both_kinds(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Shares of the mask keys of survivors."""
    body = body_of(said)
    assert isinstance(body, OpenedBody)
    return [replace(said, body=replace(body, seeds=body.keys, keys=body.seeds).encode())]


def silent(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    return []


def to_some(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    return [said] if rng.random() < 0.5 else []


def twice(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    return [said, said]


def of_another_round(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    return [replace(said, epoch=said.epoch + 1), replace(said, prev=digest_of(b"another sum")), said]


def with_nobody(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Masked for number 4 as well, it says, who was never there."""
    body = body_of(said)
    assert isinstance(body, ViewBody)
    return [replace(said, body=ViewBody(view={**body.view, 4: digest_of(b"shares of nobody")}).encode())]


LIES: dict[str, tuple[tuple[SecureStage, ...], Lie]] = {
    "other keys": ((SecureStage.KEYS,), other_keys),
    "keys of small order": ((SecureStage.KEYS,), small_order_keys),
    "spoilt shares": ((SecureStage.SHARES,), spoilt_shares),
    "another vector": ((SecureStage.MASKED,), other_vector),
    "another view": ((SecureStage.MASKED, SecureStage.HELD), other_view),
    "masked for nobody": ((SecureStage.MASKED,), with_nobody),
    "holds few": ((SecureStage.HELD,), fewer_held),
    "other survivors": ((SecureStage.AGREED,), other_survivors),
    "forged shares": ((SecureStage.OPENED,), forged_shares),
    "both kinds of share": ((SecureStage.OPENED,), both_kinds),
    "silent": (tuple(STAGES), silent),
    "to some": (tuple(STAGES), to_some),
    "twice": (tuple(STAGES), twice),
    "another round": (tuple(STAGES), of_another_round),
}
"""Each with the stages at which it means something."""


def drawn(seed: int) -> Sum:
    """Seven members, of whom two lie or leave, each in its own way."""
    rng = random.Random(seed)
    group = group_of(7, count=131, owners=rng.choice([1, 1, 3]), round=seed)
    lies, leaves = {}, {}
    for place in rng.sample(range(7), 2):
        if rng.random() < 0.25:
            leaves[place] = rng.choice(STAGES[:-1])
            continue
        stages, lie = LIES[rng.choice(list(LIES))]
        lies[place] = at(rng.choice(stages), lie)
    return Sum(group, inputs_of(group, seed), seed, lies=lies, leaves=leaves)


@pytest.mark.parametrize("seed", range(6))
def test_liars_and_leavers(seed):
    played = drawn(seed)
    check(played, played.play())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_many_liars_and_leavers(seed):
    played = drawn(seed)
    check(played, played.play())


def played_with(name: str) -> dict[int, Outcome]:
    """What becomes of the others of five members, of whom number 2 lies."""
    group = group_of(5, owners=2)
    stages, lie = LIES[name]
    played = Sum(group, inputs_of(group), seed=11, lies={2: at(stages[0], lie)})
    outcomes = played.play()
    check(played, outcomes)
    return {place: it for place, it in outcomes.items() if place != 2}


def charged_with(outcomes: dict[int, Outcome], reason: Reason) -> list[RemoteError]:
    return [error for it in outcomes.values() for place, error in it.charged if place == 2 and error.reason is reason]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("keys of small order", Reason.MALFORMED),
        ("spoilt shares", Reason.FORGED),
        ("forged shares", Reason.FORGED),
        ("both kinds of share", Reason.PROTOCOL),
        ("another round", Reason.PROTOCOL),
    ],
)
def test_a_lie_is_charged_and_costs_the_others_nothing(name, reason):
    outcomes = played_with(name)
    assert charged_with(outcomes, reason)
    for it in outcomes.values():
        assert it.result is not None
        assert it.result.whole
        assert len(it.result.survivors) == (4 if name in ("keys of small order", "spoilt shares") else 5)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("other keys", SecureStage.KEYS), ("another vector", SecureStage.MASKED), ("other survivors", SecureStage.AGREED)],
)
def test_two_statements_of_one_kind_are_proof(name, stage):
    """Honest members that have been told differently show each other, and either statement alone is no lie."""
    lie = LIES[name][1]

    def differs(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        changed = lie(said, 1, rng)
        return [said, *changed] if stage is SecureStage.AGREED else lie(said, to, rng)

    group = group_of(5, owners=2)
    played = Sum(group, inputs_of(group), seed=12, lies={2: at(stage, differs)})
    outcomes = played.play()
    check(played, outcomes)
    outcomes.pop(2)
    proofs = charged_with(outcomes, Reason.EQUIVOCATION)
    assert proofs
    for error in proofs:
        assert isinstance(error, EquivocationError)
        one, two = (parse_secure(open_envelope(raw, SCOPE)) for raw in error.proof)
        assert (one.peer, one.exchange, one.place) == (two.peer, two.exchange, two.place)
        assert one.digest != two.digest


def test_a_dealer_whose_shares_give_another_secret_is_charged_and_ends_the_sum(monkeypatch):
    """Its shares are sealed as they should be, and of nothing: seen only when it has left, and they are combined."""
    group = group_of(5, owners=2)
    played = Sum(group, inputs_of(group), seed=13, leaves={2: SecureStage.AGREED}, tells_all=True)
    dealer = played.members[2]
    honest = dealer._dealt

    def dealt(channels):
        dealer._seed, kept = bytes(32), dealer._seed
        try:
            return honest(channels)
        finally:
            dealer._seed = kept

    monkeypatch.setattr(dealer, "_dealt", dealt)
    outcomes = played.play()
    check_told(played)
    for it in outcomes.values():
        assert it.failure == f"{group.members[2]} dealt shares that do not give its secret"
        assert [(place, error.reason) for place, error in it.charged] == [(2, Reason.FORGED)]


def test_a_share_of_another_round_is_refused():
    first, second = (Sum(group, inputs_of(group), seed=1) for group in (group_of(4), group_of(4, round=2)))
    first.play()
    member = second.members[0]
    for sender, raw in first.frames:
        if raw[:1] == b"\x92" and sender != 0:
            with pytest.raises(RemoteError) as refused:
                member.learn(parse_secure(open_envelope(raw, SCOPE)))
            assert refused.value.reason is Reason.PROTOCOL
    assert not any(member._told.values())


@pytest.mark.parametrize("seed", [14, 15, 16])
def test_one_sum_that_an_owner_makes_up_is_outvoted_by_two(seed):
    """It serves what it says."""
    group = group_of(7, count=131, owners=3)

    def made_up(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        body = body_of(said)
        assert isinstance(body, SummedBody)
        data = bytes(group.parts.part_size(group.members[body.part]))
        address = blob_manifest_of(data, group.parts.chunk_bytes).address
        played.blobs[2, address] = data
        return [replace(said, payload=address)]

    played = Sum(group, inputs_of(group), seed, lies={2: at(SecureStage.SUMMED, made_up)})
    outcomes = played.play()
    check(played, outcomes)
    assert all(it.result is not None and it.result.whole for place, it in outcomes.items() if place != 2)


@pytest.mark.parametrize("stage", STAGES[:5])
def test_two_of_five_that_are_silent_end_it_with_nothing_opened(stage):
    group = group_of(5)
    lies: dict[int, Lie] = dict.fromkeys((1, 4), lambda said, to, rng: [said] if said.seq < stage else [])
    played = Sum(group, inputs_of(group), seed=15, lies=lies)
    outcomes = played.play()
    check(played, outcomes)
    assert nothing_opened(played)
    assert all(it.result is None for place, it in outcomes.items() if place not in lies)


def test_of_how_few_others_colluders_can_have_the_sum():
    """Members that say that they have not another one's vector leave it out, and know their own: of four, two that
    work together have the third one's vector. Never is a sum of fewer than the threshold."""

    def without_the_last(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        body = body_of(said)
        assert isinstance(body, ViewBody)
        view = {place: digest for place, digest in body.view.items() if place != 3}
        return [replace(said, body=ViewBody(view=view).encode())]

    group = group_of(4, owners=2)
    lie = at(SecureStage.HELD, without_the_last)
    played = Sum(group, inputs_of(group), seed=15, lies={0: lie, 1: lie})
    result = played.play()[2].result
    check_told(played)
    assert result is not None
    assert result.survivors == group.members[:3]
    assert len(result.survivors) == group.threshold


def test_who_deals_a_share_to_itself_instead_of_another_and_leaves_ends_no_sum():
    """Its mask key could not be found once it has left: so nobody masks with it."""

    def to_itself(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        body = body_of(said)
        assert isinstance(body, SharesBody)
        kept = [place for place in sorted(body.holders) if place != 4]
        sealed = {place: body.of(place) or b"" for place in kept} | {2: bytes(SEALED_SHARES_BYTES)}
        joined = b"".join(sealed[place] for place in sorted(sealed))
        return [replace(said, body=SharesBody(holders=frozenset(sealed), sealed=joined).encode())]

    group = group_of(5, owners=2)
    lies = {2: at(SecureStage.SHARES, to_itself)}
    played = Sum(group, inputs_of(group), seed=16, lies=lies, leaves={2: SecureStage.HELD}, tells_all=True)
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None, it.failure
        assert it.result.whole
        assert it.result.survivors == tuple(group.members[place] for place in (0, 1, 3, 4))


@pytest.mark.parametrize("seed", [17, 18, 19])
def test_who_says_that_it_masked_for_one_that_was_never_there_is_left_out(seed):
    """Nobody could take that mask away, but the liar: all others would tell their seeds, and have no sum."""
    group = group_of(7, owners=2)
    lies: dict[int, Lie] = {2: at(SecureStage.MASKED, with_nobody), 4: silent}
    played = Sum(group, inputs_of(group), seed, lies=lies)
    outcomes = played.play()
    check(played, outcomes)
    for place in (0, 1, 3, 5, 6):
        result = outcomes[place].result
        assert result is not None, outcomes[place].failure
        assert result.whole
        assert result.survivors == tuple(group.members[each] for each in (0, 1, 3, 5, 6))


@pytest.mark.parametrize("seed", [20, 21, 22])
def test_who_masked_for_one_that_the_others_have_not_heard_shows_them_its_shares_and_stays(seed):
    group = group_of(7, owners=2)

    def to_one(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        return [said] if to == 2 or said.seq == SecureStage.KEYS else []

    played = Sum(group, inputs_of(group), seed, lies={4: to_one})
    outcomes = played.play()
    check(played, outcomes)
    for place in (0, 1, 2, 3, 5, 6):
        result = outcomes[place].result
        assert result is not None, outcomes[place].failure
        assert result.whole
        assert group.members[2] in result.survivors


def to_few(said: Statement, to: int, rng: random.Random) -> list[Statement]:
    """Shares for three of the others alone."""
    body = body_of(said)
    assert isinstance(body, SharesBody)
    few = sorted(body.holders)[:3]
    sealed = b"".join(body.of(place) or b"" for place in few)
    return [replace(said, body=SharesBody(holders=frozenset(few), sealed=sealed).encode())]


@pytest.mark.parametrize("deals", [spoilt_shares, to_few])
def test_who_says_that_it_masked_for_one_whose_key_nobody_can_find_is_left_out(deals):
    """Its accomplice dealt what does not open, or to too few, and left: honest members do not mask for that one."""
    dealt: list[Digest] = []

    def accomplice(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        if said.seq != SecureStage.SHARES:
            return [said] if said.seq == SecureStage.KEYS else []
        changed = deals(said, to, rng)
        dealt.append(parse_secure(seal(key(5), SCOPE, changed[0])).digest)
        return changed

    def with_accomplice(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        body = body_of(said)
        assert isinstance(body, ViewBody)
        return [replace(said, body=ViewBody(view={**body.view, 4: dealt[0]}).encode())]

    group = group_of(7, owners=2)
    lies: dict[int, Lie] = {2: at(SecureStage.MASKED, with_accomplice), 4: accomplice}
    played = Sum(group, inputs_of(group), seed=23, lies=lies)
    outcomes = played.play()
    check(played, outcomes)
    for place in (0, 1, 3, 5, 6):
        result = outcomes[place].result
        assert result is not None, outcomes[place].failure
        assert result.whole
        assert result.survivors == tuple(group.members[each] for each in (0, 1, 3, 5, 6))


def test_nobody_signs_survivors_of_whom_one_masked_for_one_that_was_never_there():
    """The liar is the first to propose, and has itself among them."""
    group = next(
        each
        for each in (group_of(7, owners=2, round=round) for round in range(100))
        if Sum(each, inputs_of(each)).members[0]._turn_of[2] == 0
    )
    masked: list[Digest] = []

    def proposes_itself(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        if said.seq == SecureStage.MASKED:
            changed = with_nobody(said, to, rng)
            masked.append(parse_secure(seal(key(3), SCOPE, changed[0])).digest)
            return changed
        if said.seq != SecureStage.HELD:
            return [said] if said.seq < SecureStage.HELD else []
        survivors = frozenset({0, 1, 2, 3, 5, 6})
        vectors = {**played.members[2]._vector_digests(), 2: masked[0]}
        body = AgreedBody(survivors=survivors).encode()
        payload = agreement(group.name, survivors, vectors)
        return [said, replace(said, seq=SecureStage.AGREED, body=body, payload=payload)]

    played = Sum(group, inputs_of(group), seed=24, lies={2: proposes_itself, 4: silent})
    outcomes = played.play()
    check(played, outcomes)
    for place in (0, 1, 3, 5, 6):
        result = outcomes[place].result
        assert result is not None, outcomes[place].failure
        assert result.survivors == tuple(group.members[each] for each in (0, 1, 3, 5, 6))


@pytest.mark.parametrize("count", [4, 5, 7])
def test_a_first_proposer_of_two_sets_is_proven_to_lie(count):
    """Each half of the others follows one of them; nothing is opened where neither has enough."""
    group = next(
        each
        for each in (group_of(count, owners=2, round=round) for round in range(100))
        if Sum(each, inputs_of(each)).members[0]._turn_of[2] == 0
    )
    everybody = frozenset(range(count))

    def proposes_two(said: Statement, to: int, rng: random.Random) -> list[Statement]:
        if said.seq != SecureStage.AGREED:
            return [said]
        survivors = everybody if to % 2 else everybody - {max(everybody - {2})}
        payload = agreement(group.name, survivors, played.members[2]._vector_digests())
        return [replace(said, body=AgreedBody(survivors=survivors).encode(), payload=payload)]

    played = Sum(group, inputs_of(group), seed=31, lies={2: proposes_two})
    outcomes = played.play()
    check(played, outcomes)
    assert charged_with(outcomes, Reason.EQUIVOCATION)


class TwoSets:
    """So many liars that, with a part of the others each, they could open two sets: some would tell their seeds for one
    of them, and their mask keys would be told for the other. `whole`: one of the sets is of all. `later`: the liars
    sign the second when the first is opened."""

    def __init__(self, count: int, liars: int, seed: int, *, whole: bool, later: bool) -> None:
        self.group = next(
            each
            for each in (group_of(count, owners=2, round=round) for round in range(100))
            if Sum(each, inputs_of(each)).members[0]._turn_of[0] == 0
        )
        everybody, bad = frozenset(range(count)), frozenset(range(liars))
        others = sorted(everybody - bad)
        self.halves = others[: len(others) // 2], others[len(others) // 2 :]
        self._sets = everybody if whole else bad.union(self.halves[0]), bad.union(self.halves[1])
        self.played = Sum(self.group, inputs_of(self.group), seed, lies=dict.fromkeys(bad, self._signs))
        self.played.on_step = self._on_step
        self._waits = later
        self._agreed: Statement | None = None

    def _signs(self, said: Statement, to: int, rng: random.Random) -> list[Statement]:
        if said.seq != SecureStage.AGREED:
            return [said]
        self._agreed = said
        half = int(to in self.halves[1])
        return [] if half and self._waits else [self._of(half, said)]

    def _of(self, half: int, said: Statement) -> Statement:
        survivors = self._sets[half]
        payload = agreement(self.group.name, survivors, self.played.members[0]._vector_digests())
        return replace(said, body=AgreedBody(survivors=survivors).encode(), payload=payload)

    def _on_step(self) -> None:
        if not self._waits or not all(place in self.played.opened for place in self.halves[0]):
            return
        assert self._agreed is not None
        self._waits = False
        for liar in self.played.lies:
            said = seal(key(liar + 1), SCOPE, self._of(1, self._agreed))
            for to in self.halves[1]:
                self.played._send(liar, to, said.raw)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("count", "liars"), [(8, 4), (8, 5), (16, 6), (16, 10)])
def test_who_signs_two_sets_has_nobodys_both_secrets(count: int, liars: int, later: bool, whole: bool) -> None:
    sets = TwoSets(count, liars, seed=41, whole=whole, later=later)
    assert liars >= 2 * sets.group.threshold - count, "with fewer there are no two sets"
    outcomes = sets.played.play()
    check_told(sets.played)
    assert any(error.reason is Reason.EQUIVOCATION for place in sets.halves[1] for _, error in outcomes[place].charged)
    assert not sets._waits, "the first set was opened"
