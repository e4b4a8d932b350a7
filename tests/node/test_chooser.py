"""Whose updates are fetched first: nobody starves, there are enough, and far models count twice the median at most."""

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from node.selection import SELECTION
from node.selection.base import MeasuredNeighbour
from node.selection.chooser import PATIENCE, WARM_UP, Choice, Chooser, FetchCost
from node.selection.policies.useful import Useful

PEERS = [f"n{number}" for number in range(8)]
MEASURED = FetchCost(lag=0, seconds=1.0)
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

    def worth(self, candidate: MeasuredNeighbour, rng: random.Random) -> float:
        return 0.0 if candidate.peer in self.worthless else 1.0


@settings(max_examples=60, deadline=None)
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
    first = frozenset(peers)
    for round_ in range(1, 3 * longest):
        heard = {peer for peer in first if rng.random() < delivers}
        choice = it.choose(dict.fromkeys(peers, MEASURED), heard)
        first = frozenset(peers) if choice is None else choice.first
        seen.update((peer, round_) for peer in first | heard)
        assert all(round_ - at <= longest for at in seen.values())


@given(seed=st.integers(0, 1 << 30))
def test_one_that_is_explored_and_is_worth_less_gives_its_place_back(seed: int) -> None:
    worthless = frozenset(PEERS[4:])
    it = Chooser(Biased(worthless), most=4, least=2, oldest=OLDEST, explore=1.0, rng=random.Random(seed))
    explored: set[str] = set()
    for _ in range(30):
        choice = it.choose(HERE, PEERS)
        if choice is not None:
            assert not choice.awaited & worthless
            explored |= choice.first & worthless
    assert explored


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), policy=st.sampled_from(SELECTION.names()), least=st.integers(0, 5))
def test_there_are_never_fewer_than_the_aggregator_needs_beside_the_one_that_is_explored(
    seed: int, policy: str, least: int
) -> None:
    rng = random.Random(seed)
    it = chooser(policy, most=2, least=least, explore=0.5, seed=seed)
    first = frozenset(PEERS)
    for round_ in range(1, 100):
        here = {peer: FetchCost(lag=rng.randrange(9), seconds=rng.random()) for peer in PEERS if rng.random() < 0.9}
        heard = {peer for peer in first if rng.random() < 0.7}
        it.measured({peer: rng.random() for peer in heard})
        choice = it.choose(here, heard)
        if choice is None:
            assert round_ <= WARM_UP or len(here) <= max(2, least + 1)
            continue
        first = choice.first
        assert choice.awaited <= first <= here.keys()
        assert max(1, least) <= len(choice.awaited) <= len(first) == max(2, least + 1)


def test_with_no_more_neighbours_than_places_and_at_first_everybody_counts_alike() -> None:
    assert all(chooser(most=8).choose(HERE, PEERS) is None for _ in range(WARM_UP + 1))
    it = chooser()
    assert [it.choose(HERE, PEERS) is None for _ in range(WARM_UP + 1)] == [True] * WARM_UP + [False]


def test_the_same_seed_makes_the_same_choices() -> None:
    one, other = chooser("random", seed=5), chooser("random", seed=5)
    made = [(one.choose(HERE, PEERS[:3]), other.choose(HERE, PEERS[:3])) for _ in range(100)]
    assert all(ours == theirs for ours, theirs in made)
    assert len({ours for ours, _ in made}) > 3


def _chosen(
    it: Chooser, distances: Mapping[str, float], here: Mapping[str, FetchCost] = HERE, rounds: int = WARM_UP + 1
) -> Choice:
    """The choice after some rounds in which all deliver."""
    for _ in range(rounds):
        it.measured(distances)
        choice = it.choose(here, list(here))
    assert choice is not None
    return choice


def test_whose_model_tells_most_is_kept_and_whose_tells_nothing_is_not() -> None:
    choice = _chosen(chooser(explore=0.0), dict.fromkeys(PEERS, 1.0) | {"n6": 1.5, "n7": 0.0})
    assert "n6" in choice.awaited
    assert "n7" not in choice.first


def test_a_liar_as_far_away_as_it_likes_counts_twice_the_median() -> None:
    distances = dict.fromkeys(PEERS, 1.0) | {"n3": 1e30}
    slow = HERE | {"n3": FetchCost(lag=0, seconds=5.0)}
    assert "n3" not in _chosen(chooser(explore=0.0), distances, slow).first, "2 / sqrt(5) is less than 1"
    assert "n3" in _chosen(chooser(explore=0.0), distances).first


def test_no_distance_that_f_neighbours_choose_makes_another_look_useless() -> None:
    """Usefulness is a share of the median, which a minority does not move far."""
    it = chooser(explore=0.0)
    choice = _chosen(it, dict.fromkeys(PEERS, 1.0) | {"n0": 1e30, "n1": 1e30, "n6": 1.5})
    assert "n6" in choice.awaited


def test_the_one_that_is_explored_is_not_waited_for_and_is_kept_once_it_delivers() -> None:
    it = Chooser(Biased(frozenset(PEERS[4:])), most=4, least=2, oldest=OLDEST, explore=1.0, rng=random.Random(1))
    for _ in range(WARM_UP + 1):
        choice = it.choose(HERE, PEERS[:4])
    assert choice is not None
    (explored,) = choice.first - choice.awaited
    (other,) = {*PEERS[:4]} - choice.first
    assert it.choose(HERE, PEERS[:4]) == choice, "it has not delivered yet"
    later = it.choose(HERE, {*PEERS[:4], explored} - {other})
    assert later is not None
    assert explored in later.awaited
    assert other not in later.first


def test_who_is_kept_and_delivers_nothing_is_replaced() -> None:
    it = Chooser(Biased(frozenset(PEERS[4:])), most=4, least=2, oldest=1000, explore=0.0, rng=random.Random(1))
    delivering = [peer for peer in PEERS if peer != "n0"]
    choices = [it.choose(HERE, delivering) for _ in range(WARM_UP + PATIENCE + 1)]
    first = [frozenset() if choice is None else choice.first for choice in choices]
    assert "n0" in first[WARM_UP]
    assert "n0" not in first[-1]


def test_time_to_fetch_counts_less_than_usefulness_and_can_be_left_out() -> None:
    rng = random.Random(1)
    far = MeasuredNeighbour(peer="far", usefulness=1.5, lag=3, seconds=1.0, unheard=0)
    near = MeasuredNeighbour(peer="near", usefulness=1.0, lag=0, seconds=1.0, unheard=0)
    assert Useful().worth(near, rng) > Useful().worth(far, rng)
    assert Useful(link=0.0).worth(far, rng) > Useful(link=0.0).worth(near, rng)
