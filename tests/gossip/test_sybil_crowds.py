"""Twenty keys of one person among real services: the places that they hold, and whom they push out.

What holds, and what does not, as docs/security.md says; `python sybil_crowd.py` prints the figures of more seeds.
"""

from typing import Final

import pytest
from sybil_crowd import Held, besieged, networks_of_their_own, one_network
from trio.testing import MockClock

CROWD: Final = 20
SETTLED_FOR_S: Final = 90.0
"""Nobody who has been a neighbour for a minute is pushed out for the rings (SETTLED_S)."""

FREE: Final = 2
"""Places of the default degree of 8 that change hands; a network's share is as large."""


async def stands(honest: int, networks: list[str | None], after_s: float) -> Held:
    seen, watch = await besieged(honest, networks, after_s=after_s, looks=(40.0, 120.0))
    assert seen[-1].evicted == len(watch.evictions())
    return seen[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("after_s", [0.0, SETTLED_FOR_S])
async def test_a_crowd_of_one_network_has_its_share_and_takes_nobody_s_place(
    after_s: float, autojump_clock: MockClock
) -> None:
    held = await stands(6, one_network(CROWD), after_s)
    assert max(held.sybils) <= FREE
    assert set(held.honest) == {5}
    assert held.evicted == 0


@pytest.mark.thorough
async def test_a_crowd_of_as_many_networks_that_comes_later_has_what_is_free(autojump_clock: MockClock) -> None:
    held = await stands(6, networks_of_their_own(CROWD), SETTLED_FOR_S)
    assert max(held.sybils) == 8 - 5, "six nodes have three places of eight free"
    assert set(held.honest) == {5}
    assert held.evicted == 0


@pytest.mark.thorough
async def test_a_crowd_of_as_many_networks_that_is_there_first_has_most_places(autojump_clock: MockClock) -> None:
    """What docs/security.md says does not hold: who starts among strangers has no way to tell."""
    held = await stands(6, networks_of_their_own(CROWD), 0.0)
    assert max(held.sybils) > 4
    assert min(held.honest) < 4
