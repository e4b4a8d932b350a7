"""When a node that nobody lets in stops: by a proof at once, by claims only where more make them than may lie."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gossip.core.errors import Reason
from gossip.core.ids import PeerId
from gossip.membership.refusal import ASK, Refusal
from node.training.former_member import ALONE_S, CHECK_CLOCK, CLAIM_LASTS_S, MAX_CLAIMS, TELL_S, Outside, until_told

A, B, C, STRANGER = (PeerId(name) for name in "abcx")
CLAIM = Refusal(reason=Reason.USED_UP)


class Knows:
    """As much of a gate as is asked: who is a member by the roster, and whether we have ended."""

    def __init__(self, *members: PeerId) -> None:
        self.members = frozenset(members)
        self.over: str | None = None

    def ended(self) -> str | None:
        return self.over

    def advice(self) -> str:
        return ASK

    def members_among(self, peers: Any) -> frozenset[PeerId]:
        return self.members & frozenset(peers)


def outside(admission: Knows, *named: PeerId, liars: int = 1) -> tuple[Outside, list[str]]:
    told: list[str] = []
    real: Any = admission
    return Outside(real, named=named, liars=liars, told=lambda peer, words: told.append(f"{peer}: {words}")), told


def claims(one: Outside, *peers: PeerId, at: float = 0.0) -> None:
    for peer in peers:
        one.refused(peer, CLAIM, False, at)


def test_what_we_know_ourselves_ends_it_at_once_whoever_is_there() -> None:
    admission = Knows(A)
    one, _ = outside(admission)
    assert one.why(0.0, [A], resumed=True) is None
    admission.over = "your membership was revoked by admin 12 on 2027-01-15 08:00 UTC"
    error = one.why(1.0, [A], resumed=True)
    assert error is not None
    assert error.line().startswith(f"{admission.over}; ask an admin for a new invite")


@pytest.mark.parametrize(("who", "over"), [((A,), False), ((A, A), False), ((A, STRANGER), False), ((A, B), True)])
def test_more_members_than_may_lie_have_to_say_so(who: tuple[PeerId, ...], over: bool) -> None:
    one, told = outside(Knows(A, B, C))
    assert one.why(0.0, [], resumed=True) is None
    claims(one, *who)
    assert one.why(ALONE_S - 1, [], resumed=True) is None, "it may be about to be let in"
    error = one.why(ALONE_S, [], resumed=True)
    assert (error is not None) is over
    assert told == [f"{peer}: all uses of the invite are taken, or the swarm is full" for peer in dict.fromkeys(who)]
    if error is not None:
        assert "2 of them say that all uses of the invite are taken" in str(error)


@pytest.mark.parametrize(
    ("reason", "advice"), [(Reason.EXPIRED, CHECK_CLOCK), (Reason.USED_UP, ASK), (Reason.NO_MEMBER, ASK)]
)
def test_members_that_take_our_time_for_another_one_are_no_reason_for_a_new_invite(reason: Reason, advice: str) -> None:
    """By our own clock the membership holds: an invite taken up with the same wrong clock would be refused as well."""
    one, told = outside(Knows(A, B))
    one.why(0.0, [], resumed=True)
    for peer in (A, B):
        one.refused(peer, Refusal(reason=reason), False, 0.0)
    error = one.why(ALONE_S, [], resumed=True)
    assert error is not None
    assert error.hint == advice
    assert ("ahead of its clock" in told[0]) is (reason is Reason.EXPIRED)


def test_as_long_as_one_lets_us_in_nobody_else_s_word_counts() -> None:
    one, _ = outside(Knows(A, B, C))
    claims(one, A, B)
    for now in range(0, 100, 5):
        assert one.why(now, [C], resumed=True) is None
    assert one.why(100 + ALONE_S - 10, [], resumed=True) is None
    assert one.why(100 + ALONE_S, [], resumed=True) is not None


def test_old_claims_do_not_wait_for_a_network_that_fails() -> None:
    one, _ = outside(Knows(A, B))
    claims(one, A, B)
    one.why(0.0, [], resumed=True)
    assert one.why(CLAIM_LASTS_S, [], resumed=True) is None


def test_a_newcomer_stops_when_all_that_it_was_told_of_refuse_it() -> None:
    one, _ = outside(Knows(), A, B)
    one.why(0.0, [], resumed=False)
    claims(one, A)
    assert one.why(ALONE_S, [], resumed=False) is None
    claims(one, B)
    assert one.why(ALONE_S, [], resumed=True) is None
    assert one.why(ALONE_S, [], resumed=False) is not None


def test_one_that_was_inside_is_no_newcomer_any_more() -> None:
    one, _ = outside(Knows(), A)
    one.why(0.0, [B], resumed=False)
    claims(one, A)
    assert one.why(ALONE_S + 1, [], resumed=False) is None


def test_what_is_proved_is_no_claim_and_claims_are_bounded() -> None:
    one, told = outside(Knows(A, B))
    one.refused(A, SimpleNamespace(reason=Reason.REVOKED), True, 0.0)  # type: ignore[arg-type]
    assert not told
    claims(one, *(PeerId(f"p{number}") for number in range(MAX_CLAIMS + 9)))
    assert len(one._claims) == MAX_CLAIMS


async def test_it_stays_until_its_neighbours_know_and_no_longer_than_that(
    autojump_clock: trio.testing.MockClock,
) -> None:
    neighbours, began = [A, B], trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_told, lambda: neighbours)
        await trio.sleep(1.0)
        del neighbours[0]
        await trio.sleep(1.0)
        neighbours.clear()
    assert 2.0 <= trio.current_time() - began < 2.0 + TELL_S / 10
    neighbours.append(B)
    began = trio.current_time()
    await until_told(lambda: neighbours)
    assert trio.current_time() - began == TELL_S
