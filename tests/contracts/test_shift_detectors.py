"""What every shift detector must hold: a function of its values, quiet where nothing changes, and not deaf."""

import random

import pytest

from node.shift import SHIFT_DETECTORS
from node.shift.base import ShiftDetector
from node.shift.signal_stream import REFERENCE, SignalStream
from p2ptrain.registry import BadOptionError

pytest.importorskip("river")

every_detector = pytest.mark.parametrize("name", SHIFT_DETECTORS.names())

JUMP, AT, ROUNDS = 8.0, 100, 200


def detector(name: str) -> ShiftDetector:
    return SHIFT_DETECTORS.get(name)


def values(seed: int, *, jump: float = 0.0, count: int = ROUNDS) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(jump if number >= AT else 0.0, 1.0) for number in range(count)]


def alarms(name: str, seen: list[float]) -> list[int]:
    stream = SignalStream(lambda: detector(name))
    return [number for number, value in enumerate(seen) if stream.add(value)]


@every_detector
def test_it_is_quiet_where_nothing_changes(name: str) -> None:
    loud = [seed for seed in range(20) if alarms(name, values(seed, count=120))]
    assert len(loud) <= 1, "of 20 runs of 120 rounds"


@every_detector
@pytest.mark.parametrize("jump", [JUMP, -JUMP])
def test_it_notices_a_jump_either_way_and_not_before(name: str, jump: float) -> None:
    for seed in range(5):
        first = alarms(name, values(seed, jump=jump))[0]
        assert AT <= first <= AT + 40


@every_detector
def test_scale_and_place_of_a_signal_say_nothing(name: str) -> None:
    seen = values(1, jump=JUMP)
    assert alarms(name, seen) == alarms(name, [30.0 + 0.2 * value for value in seen])


@every_detector
def test_the_same_values_make_the_same_detector_again(name: str) -> None:
    """So a node that is stopped and started alarms in the round in which it would have."""
    seen = values(2, jump=JUMP)
    whole = alarms(name, seen)[0]
    for cut in (REFERENCE - 3, REFERENCE + 5, AT - 1, whole):
        before, after = SignalStream(lambda: detector(name)), SignalStream(lambda: detector(name))
        for value in seen[:cut]:
            assert not before.add(value)
        after.load(before.state())
        assert next(cut + number for number, value in enumerate(seen[cut:]) if after.add(value)) == whole


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adwin", {"delta": 0.0}),
        ("kswin", {"alpha": 2.0}),
        ("kswin", {"window": 10.0, "newest": 9}),
        ("page_hinkley", {"threshold": 0.0}),
        ("page_hinkley", {"allowed": -1.0}),
    ],
)
def test_an_option_that_cannot_be_is_refused(name: str, options: dict[str, float]) -> None:
    with pytest.raises((BadOptionError, ValueError)):
        SHIFT_DETECTORS.get(name, **options)
