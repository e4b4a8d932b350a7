"""Every parser of membership against every bit, every truncation, and bytes that somebody made up.

One test with a million inputs is marked `thorough`.
"""

import gc
import random
import time
from itertools import islice

import pytest
from hurt import Format, formats, mutations, processor_s, refused

from node.system.gc_tuning import left_out

ALL = formats()
EXACT = [each for each in ALL if each.name not in ("settings", "page", "sealed", "short invite")]
"""Those whose every byte is signed, checked by a digest or has one spelling. Settings, pages and
short invites are only carried in what is; sealed files have tests of their own."""

MOST_S = 0.05
"""What one input may take: the event loop is held no longer."""


@pytest.mark.parametrize("format_", ALL, ids=lambda each: each.name)
def test_what_is_valid_is_taken(format_: Format) -> None:
    assert not any(refused(format_.parse, each) for each in format_.valid)


@pytest.mark.slow
@pytest.mark.parametrize("format_", EXACT, ids=lambda each: each.name)
def test_every_single_bit_counts(format_: Format) -> None:
    for valid in format_.lean:
        taken = []
        for bit in range(8 * len(valid)):
            hurt = bytearray(valid)
            hurt[bit // 8] ^= 1 << bit % 8
            if not refused(format_.parse, bytes(hurt)):
                taken.append(bit)
        # The plain form of a certificate is the swarm's id and nothing else: another id is another swarm's.
        assert taken == ([] if len(valid) > 20 else list(range(8 * (len(valid) - 16), 8 * len(valid))))


@pytest.mark.parametrize("format_", ALL, ids=lambda each: each.name)
def test_every_truncation_and_every_byte_more_is_refused(format_: Format) -> None:
    for valid in format_.valid:
        assert all(refused(format_.parse, valid[:size]) for size in range(len(valid)))
        assert all(refused(format_.parse, valid + more) for more in (b"\x00", b"\xc0", b"A", valid))


def run(count: int, seed: int) -> dict[str, float]:
    """`count` inputs over all parsers: each raises our own errors or nothing. The slowest of each, in seconds."""
    gc.collect()
    slowest = {}
    with left_out():  # else a collection that falls into a parse walks everything that the tests before have left
        for format_ in ALL:
            rng = random.Random(f"{seed} {format_.name}")
            inputs = islice(mutations(rng, format_.valid), count // len(ALL))
            slowest[format_.name] = max(processor_s(format_.parse, data) for data in inputs)
    return slowest


@pytest.mark.slow
def test_thousands_of_hurt_inputs() -> None:
    slowest = run(9_000, seed=1)
    assert max(slowest.values()) < MOST_S, slowest


@pytest.mark.thorough
def test_a_million_hurt_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    slowest = run(1_000_008, seed=2)
    with capsys.disabled():
        times = ", ".join(f"{name} {1000 * each:.1f}" for name, each in slowest.items())
        print(f"\na million inputs in {time.monotonic() - start:.0f} s; slowest of each, ms: {times}")
    assert max(slowest.values()) < MOST_S, slowest
