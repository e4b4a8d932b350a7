"""Whose updates are fetched first: nobody starves, there are enough, and far models count twice the median at most."""

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from node.selection import SELECTION
from node.selection.base import Candidate
from node.selection.chooser import HOLD, PATIENCE, Chooser, Measured
from node.selection.policies.useful import Useful

PEERS = [f"n{number}" for number in range(8)]
MEASURED = Measured(lag=0, seconds=1.0)
HERE = dict.fromkeys(PEERS, MEASURED)
OLDEST = 20


def chooser(policy: str = "useful", *, most: int = 4, least: int = 2, explore: float = 0.1, seed: int = 1) -> Chooser:
    return Chooser(
        SELECTION.get(policy), most=most, least=least, oldest=OLDEST, explore=explore, rng=random.Random(seed)
    )


class Biased:
    """Finds some neighbours worth nothing, for ever."""

    measures = False

    def __init__(self, worthless: frozenset[str]) -> None:
        self.worthless = worthless

    def worth(self, candidate: Candidate, rng: random.Random) -> float:
        return 0.0 if candidate.peer in self.worthless else 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(5, 10),
    delivers=st.floats(0, 1),
    explore=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_nobody_starves_whatever_the_policy_thinks_and_the_others_do(
    seed: int, count: int, delivers: float, explore: float
) -> None:
    rng = random.Random(seed)
    peers = [f"n{number}" for number in range(count)]
    biased = Biased(frozenset(rng.sample(peers, count // 2)))
    it = Chooser(biased, most=4, least=2, oldest=OLDEST, explore=explore, rng=random.Random(seed))
    longest, seen = OLDEST + count * PATIENCE, dict.fromkeys(peers, 0)
    first: frozenset[str] = frozenset()
    for round_ in range(1, 3 * longest):
        heard = {peer for peer in first if rng.random() < delivers}
        chosen = it.choose(dict.fromkeys(peers, MEASURED), heard)
        assert chosen is not None
        first = chosen
        seen.update((peer, round_) for peer in first | heard)
        assert all(round_ - at <= longest for at in seen.values())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), policy=st.sampled_from(SELECTION.names()), least=st.integers(0, 5))
def test_there_are_never_fewer_than_the_aggregator_needs_beside_the_one_that_is_explored(
    seed: int, policy: str, least: int
) -> None:
    rng = random.Random(seed)
    it = chooser(policy, most=1, least=least, explore=0.5, seed=seed)
    first: frozenset[str] = frozenset()
    for _ in range(100):
        here = {peer: Measured(lag=rng.randrange(9), seconds=rng.random()) for peer in PEERS if rng.random() < 0.9}
        heard = {peer for peer in first if rng.random() < 0.7}
        it.measured({peer: rng.random() for peer in heard})
        chosen = it.choose(here, heard)
        if chosen is None:
            assert len(here) <= max(2, least + 1)
            continue
        first = chosen
        assert first <= here.keys()
        assert max(1, least) <= len(first) <= max(2, least + 1)


def test_with_no_more_neighbours_than_places_everybody_counts_alike() -> None:
    assert chooser(most=8).choose(HERE, PEERS) is None


def test_the_same_seed_makes_the_same_choices() -> None:
    one, other = chooser("random", seed=5), chooser("random", seed=5)
    made = [(one.choose(HERE, PEERS[:3]), other.choose(HERE, PEERS[:3])) for _ in range(100)]
    assert all(ours == theirs for ours, theirs in made)
    assert len({ours for ours, _ in made}) > 3


def _settled(it: Chooser, distances: Mapping[str, float], here: Mapping[str, Measured] = HERE) -> frozenset[str]:
    """Who is kept once everybody was measured and a choice was made since; all deliver."""
    for _ in range(2 * HOLD):
        it.measured(distances)
        first = it.choose(here, list(here))
    assert first is not None
    return first


def test_whose_model_tells_most_is_kept_and_whose_tells_nothing_is_not() -> None:
    it = chooser(explore=0.0)
    assert _settled(it, dict.fromkeys(PEERS, 1.0) | {"n6": 1.5, "n7": 0.0}) >= {"n6"}
    assert "n7" not in _settled(chooser(explore=0.0), dict.fromkeys(PEERS, 1.0) | {"n7": 0.0})


def test_a_liar_as_far_away_as_it_likes_counts_twice_the_median() -> None:
    it = chooser(explore=0.0)
    distances = dict.fromkeys(PEERS, 1.0) | {"n3": 1e30}
    slow = HERE | {"n3": Measured(lag=0, seconds=5.0)}
    assert "n3" not in _settled(it, distances, slow), "2 / sqrt(5) is less than 1"
    assert "n3" in _settled(chooser(explore=0.0), distances)


def test_who_is_kept_and_delivers_nothing_comes_last_at_the_next_choice() -> None:
    it = Chooser(
        Biased(frozenset(PEERS[3:])), most=4, least=2, oldest=OLDEST, explore=0.0, rng=random.Random(1)
    )
    delivering = [peer for peer in PEERS if peer != "n0"]
    at_first = it.choose(HERE, [])
    for _ in range(HOLD + 1):
        later = it.choose(HERE, delivering)
    assert at_first is not None
    assert "n0" in at_first
    assert later is not None
    assert "n0" not in later


def test_time_to_fetch_counts_less_than_usefulness_and_can_be_left_out() -> None:
    rng = random.Random(1)
    far = Candidate(peer="far", usefulness=1.5, lag=3, seconds=1.0, unheard=0)
    near = Candidate(peer="near", usefulness=1.0, lag=0, seconds=1.0, unheard=0)
    assert Useful().worth(near, rng) > Useful().worth(far, rng)
    assert Useful(link=0.0).worth(far, rng) > Useful(link=0.0).worth(near, rng)
