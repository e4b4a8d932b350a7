import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.updates.rounds import LearnedDeadline, swarm_round
from gossip.updates.standing import LEAD_ROUNDS, standing

A, B, C, D = (PeerId(letter) for letter in "ABCD")


def test_live_and_fresh():
    it = standing(10, {A: 10, B: 9, C: 5, D: None}, max_staleness=4)
    assert it.staleness == {A: 0, B: 1}
    assert (it.fresh, it.neighbours) == (1, 4)


@pytest.mark.parametrize(
    ("applied", "quorum", "reached"),
    [
        ({A: 3, B: 3, C: 2}, 2 / 3, True),
        ({A: 3, B: 2, C: 2}, 2 / 3, False),
        ({A: 3}, 1.0, True),
        ({A: 3, B: -9, C: -9}, 1.0, True),  # the dead do not count
        ({A: -9, B: -9}, 0.1, False),  # alone in front: wait
        ({A: None}, 0.1, False),
    ],
)
def test_quorum(applied, quorum, reached):
    assert standing(3, applied, max_staleness=4).quorum_reached(quorum) is reached


def test_who_claims_to_be_far_ahead_is_not_counted():
    it = standing(5, {A: 10**9, B: 5, C: 5}, max_staleness=4)
    assert A not in it.staleness
    assert it.beyond == {A}


def test_who_was_asleep_believes_the_others():
    ahead = 5 + 10 * LEAD_ROUNDS
    applied = {A: ahead, B: ahead, C: ahead + 3}
    assert standing(5, applied, max_staleness=4, swarm=ahead).fresh == 3
    assert standing(5, applied, max_staleness=4).fresh == 0, "as long as too few have said so"


@given(liars=st.integers(0, 3), far=st.integers(0, 6), near=st.integers(0, 6))
def test_of_the_trusted_far_ahead_of_all_others_as_many_count_as_may_lie(liars: int, far: int, near: int) -> None:
    """A liar that ruined a first node, when there were the two of them, would be two wrong models with it."""
    trusted = {PeerId(f"far-{n}"): 40 for n in range(far)}
    applied = trusted | {PeerId("far"): 30} | {PeerId(f"near-{n}"): 9 for n in range(near)}
    it = standing(5, applied, max_staleness=4, liars=liars, trusted=trusted)
    expected = min(far, liars) if liars else far + 1
    assert sum(peer.startswith("far") for peer in it.staleness) == expected
    assert it.neighbours == near + expected
    assert it.fresh == it.neighbours
    assert it.beyond == applied.keys() - it.staleness.keys()
    with_the_swarm = standing(5, applied, max_staleness=4, liars=liars, swarm=36)
    assert with_the_swarm.neighbours == far + 1 + near, "they are where the swarm is"
    assert not with_the_swarm.beyond


def test_who_is_yet_to_come_is_waited_for():
    assert standing(0, {A: 0, B: None, C: None}, max_staleness=4).quorum_reached(1.0)
    it = standing(0, {A: 0, B: None, C: None}, max_staleness=4, beginning=True)
    assert it.arriving == 2
    assert not it.quorum_reached(2 / 3)
    assert standing(0, {A: 0, B: 0, C: None}, max_staleness=4, beginning=True).quorum_reached(2 / 3)


ROUND = st.none() | st.integers(0, 1000)


@given(st.lists(ROUND, max_size=9), st.integers(0, 4), st.integers(0, 2**53 - 1), st.integers(0, 4))
def test_neither_liars_nor_a_minority_move_the_swarms_round_upwards(honest, liars, lie, lying):
    """`lying` liars, and one too few to be a majority, whatever the rest say or do not say."""
    lying = min(lying, liars, max(0, len(honest) - 1))
    rounds = {PeerId(f"h{n}"): at for n, at in enumerate(honest)} | {PeerId(f"l{n}"): lie for n in range(lying)}
    said = swarm_round(rounds, liars=liars)
    spoken = [at for at in honest if at is not None]
    assert said is None or (spoken and said <= max(spoken))


@given(st.lists(st.tuples(ROUND, st.booleans()), max_size=9), st.integers(0, 4), st.integers(0, 2**53 - 1), st.data())
def test_liars_move_the_swarms_round_not_beyond_an_honest_one_whoever_is_paused(honest, liars, lie, data):
    lying = data.draw(st.integers(0, liars))
    rounds = {PeerId(f"h{n}"): at for n, (at, _) in enumerate(honest)} | {PeerId(f"l{n}"): lie for n in range(lying)}
    paused = {PeerId(f"h{n}") for n, (_, paused) in enumerate(honest) if paused}
    said = swarm_round(rounds, liars=liars, paused=paused | data.draw(st.sets(st.sampled_from(sorted(rounds) or [A]))))
    spoken = [at for at, _ in honest if at is not None]
    assert said is None or (spoken and said <= max(spoken))
    alone = swarm_round(rounds, liars=liars)
    assert alone is None or said >= alone, "a word of a pause takes nobody back"


def test_a_majority_of_sleepers_does_not_hold_the_swarms_round_back():
    asleep = {PeerId(f"s{n}"): 20 for n in range(5)}
    assert swarm_round({**asleep, A: 33, B: 34}, liars=1) == 20
    assert swarm_round({**asleep, A: 33, B: 34}, liars=1, paused=asleep) == 33
    assert swarm_round({**asleep, A: 10**9}, liars=1, paused=asleep) == 20, "one alone may lie"


@given(st.lists(ROUND, max_size=9), st.integers(0, 4))
def test_the_swarms_round_is_what_enough_have_reached_and_no_less(rounds, liars):
    said = swarm_round({PeerId(f"{n}"): at for n, at in enumerate(rounds)}, liars=liars)

    def backers(at):
        return sum(each is not None and each >= at for each in rounds)

    def enough(at):
        return backers(at) > liars and 2 * backers(at) > len(rounds)

    assert said == max((at for at in rounds if at is not None and enough(at)), default=None)


def test_the_silent_count_as_behind():
    assert swarm_round({A: 20, B: None, C: None, D: None}, liars=1) is None
    assert swarm_round({A: 20, B: 19, C: None}, liars=1) == 19
    assert swarm_round({A: 10**9}, liars=1) is None
    assert swarm_round({}, liars=0) is None


def deadline() -> LearnedDeadline:
    return LearnedDeadline(initial=30.0, least=0.5, k=4.0)


def test_the_deadline_is_the_initial_one_until_enough_is_known():
    it = deadline()
    it.learn(1.0)
    it.learn(1.0)
    assert it.seconds(100.0) == 30.0
    it.learn(1.0)
    assert it.seconds(100.0) == pytest.approx(1.4)


def test_the_deadline_follows_median_and_mad():
    it = deadline()
    for seconds in (2.0, 4.0, 6.0):
        it.learn(seconds)
    assert it.seconds(100.0) == pytest.approx(4.0 + 4.0 * 2.0)
    assert it.seconds(3.0) == 3.0


def test_the_deadline_has_a_floor_and_a_ceiling():
    low, high = deadline(), deadline()
    for _ in range(5):
        low.learn(0.0)
        high.learn(100.0)
    assert low.seconds(100.0) == 0.5
    assert high.seconds(100.0) == 30.0


def test_a_deadline_set_too_low_grows_until_the_slow_are_heard():
    it = deadline()
    for _ in range(5):
        it.learn(1.0)
    for _ in range(200):
        it.learn(min(8.0, it.seconds(100.0)))
    assert it.seconds(100.0) >= 8.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"degree": 0},
        {"quorum": 0.0},
        {"quorum": 1.5},
        {"max_staleness": -1},
        {"history": 9},
        {"history": 0},
        {"max_payload_bytes": 0},
        {"reannounce_s": 0.0},
        {"min_deadline_s": 31.0},
        {"redial_min_s": 61.0},
        {"heartbeat_s": 1.9},
    ],
)
def test_a_config_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(LocalError):
        GossipConfig(**wrong)
