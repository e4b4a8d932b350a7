"""The share of updates that arrive in time: over which rounds, when something is said of it, and what."""

import pytest
from typed_events import said, typed

from gossip.core.api import Arrivals
from gossip.core.ids import PeerId
from node.training.in_time import (
    LEAST_ROUNDS,
    WINDOW,
    Apart,
    FarBehind,
    InTime,
    Lengthened,
    Lengths,
    apart_words,
    late_words,
    lengthened_words,
)
from node.up.view import NoteTaker

LENGTHS = Lengths(inner_steps=20, step_seconds=0.005, exchange_s=0.4, longest_s=30.0)


def arrivals(arrived: int, announced: int | None = None, neighbours: int = 5) -> Arrivals:
    return Arrivals(neighbours=neighbours, announced=arrived if announced is None else announced, arrived=arrived)


def fallen(*, announced: int) -> InTime:
    it = InTime()
    for _ in range(WINDOW):
        it.add(arrivals(1, announced))
    return it


def test_the_share_is_of_the_newest_rounds_and_of_all():
    it = InTime()
    assert it.share is None
    assert it.total is None
    for _ in range(WINDOW):
        it.add(arrivals(0))
    for _ in range(WINDOW):
        it.add(arrivals(4))
    assert it.share == 0.8
    assert it.total == 0.4


def test_rounds_without_neighbours_do_not_count():
    it = InTime()
    assert it.add(arrivals(0, neighbours=0)) is None
    assert it.share is None


def test_it_is_told_once_when_it_falls_and_once_when_it_recovers():
    it = InTime()
    turns = [it.add(arrivals(arrived)) for arrived in (5,) * 20 + (0,) * 20 + (5,) * 20 + (2, 3) * 20]
    assert [turn for turn in turns if turn] == ["fell", "recovered"]
    assert turns.index("fell") == 20 + 10, "9 of 20 rounds are left of before"
    assert turns.index("recovered") == 40 + 11, "12 of 20 are"


def test_a_wavering_share_is_told_of_once():
    it = InTime()
    turns = [it.add(arrivals(arrived)) for arrived in (2, 3, 2) * 40]
    assert [turn for turn in turns if turn] == ["fell"]


def test_nothing_is_said_of_the_first_rounds():
    it = InTime()
    assert not any(it.add(arrivals(0)) for _ in range(LEAST_ROUNDS - 1))
    assert it.add(arrivals(0)) == "fell"


def test_the_words_count_the_rounds_that_there_were():
    it = InTime()
    for _ in range(LEAST_ROUNDS):
        it.add(arrivals(0))
    assert f"over the last {LEAST_ROUNDS} rounds" in late_words(it, LENGTHS)


def test_the_words_say_what_to_set():
    late = late_words(fallen(announced=5), LENGTHS)
    assert late == (
        "only 20% of the neighbours' updates arrived in time over the last 20 rounds: "
        "set train.inner_steps=120 or more on all nodes (now 20)"
    )
    slow = late_words(fallen(announced=2), LENGTHS)
    assert "node.pace=dylu" in slow
    assert "p2ptrain doctor" in slow
    capped = Lengths(inner_steps=20, step_seconds=0.005, exchange_s=31.0, longest_s=30.0)
    assert "set network.initial_deadline_s above it (now 30)" in late_words(fallen(announced=5), capped)
    unknown = Lengths(inner_steps=20, step_seconds=0.005, exchange_s=None, longest_s=30.0)
    assert "train.inner_steps=40" in late_words(fallen(announced=5), unknown)
    scheduled = Lengths(inner_steps=5, schedule="qsr", step_seconds=0.005, exchange_s=0.4, longest_s=30.0)
    changing = late_words(fallen(announced=5), scheduled)
    assert changing.endswith("set train.inner_steps_schedule=constant on all nodes (qsr has 5 steps now)")
    assert "train.inner_steps_schedule=constant: qsr has shorter rounds" in lengthened_words(12, scheduled)
    for words in (late, slow, changing):
        assert "\n" not in words


def test_lengthened_rounds_are_told_of_once_and_one_long_round_is_none():
    it = Lengthened()
    assert not any(it.add(20, 20) for _ in range(WINDOW))
    assert it.add(100_000, 20) is None
    told = [it.add(99, 20) for _ in range(3 * WINDOW)]
    assert [steps for steps in told if steps] == [99]
    words = lengthened_words(99, LENGTHS)
    assert words.startswith("rounds last some 99 steps instead of 20")
    assert "(an exchange takes 0.4 s)" in words
    assert "set train.inner_steps=99 and fewer train.rounds" in words


@pytest.mark.parametrize("about", ["updates_in_time", "round_length"])
def test_a_swarm_says_once_what_all_its_nodes_warn_of(about):
    taker, told = NoteTaker(), []

    def say(name: str, message: str, *, recovered: bool = False) -> None:
        event = {"ts": 1.0, "event": "warning", "message": message, "about": about, "recovered": recovered}
        told.append(taker.note(name, typed(event)))

    for name in ("node-0", "node-1", "node-2"):
        say(name, "late")
    for name in ("node-1", "node-0", "node-2"):
        say(name, "again", recovered=True)
    say("node-1", "late")
    assert [line for line in told if line] == ["node-0: late", "node-2: again", "node-1: late"]
    assert taker.note("node-1", said("warning", message="else")) == "node-1: else"


def seen(mine: int, *looks: list[int | None], times: int = LEAST_ROUNDS) -> Apart:
    """What the last of some looks at the neighbours' rounds finds, of `times` in all: the first is repeated."""
    it = FarBehind()
    looks = (looks[0],) * (times - len(looks)) + looks
    for since, rounds in enumerate(looks, start=1 - len(looks)):
        found = it.look(mine + since, {PeerId(f"peer-{place}"): at for place, at in enumerate(rounds)}, 4)
    return found


def test_who_catches_up_does_not_train_apart():
    """Half of a swarm was stopped for a while: it is behind as it goes on, and level some seconds later."""
    assert not seen(71, [60], [62], [65]).most
    assert seen(71, *([at] for at in range(50, 62))).most


def test_who_is_a_little_behind_for_a_moment_does_not_train_apart():
    """Two of one speed on a busy machine: the advice to begin anew would throw a whole run away."""
    behind = [[at] for at in range(66 - LEAST_ROUNDS + 1, 67)]
    assert seen(71, *behind).most
    assert not seen(71, *behind[1:], times=0).most
    assert not seen(71, *behind[:4], [66], *behind[5:]).most, "for one look its updates counted again"


def test_who_trains_apart_is_told_how_to_train_with_the_others():
    most = seen(71, [19, 20, 18, None, 69], [20, 21, 19, None, 70])
    assert most.most
    words = apart_words(most, goes_back=False)
    assert "3 of 5 neighbours are 50 rounds or more behind" in words
    assert "start it with another --run-dir" in words
    assert "node.pace=dylu" in words
    assert "this node takes their model once" in apart_words(most, goes_back=True)
    for others in (
        [67, 20, 19, None, 70],
        [80, 81, 82, 83, 84],
        [None] * 5,
        [],
    ):  # few, ahead, nothing said yet, nobody
        assert not seen(71, [at and at - 1 for at in others], others).most


def test_neighbours_of_which_nothing_is_heard_do_not_train_without_us():
    assert not seen(71, [20, 21, 19], [20, 21, 19]).most, "stopped, or their connections are dead"
    assert not seen(71, [20, 21, 19], [70, 70, 70], [20, 21, 19]).most, "behind for the first time again"
