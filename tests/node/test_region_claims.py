"""What is believed of the rounds that members of other regions say."""

from types import SimpleNamespace

import pytest

from gossip.core.api import RegionClaim
from node.training.region_joining import regions_further


def further(round: int, announced: int | None) -> int | None:
    node = SimpleNamespace(
        regions=SimpleNamespace(averaging=SimpleNamespace(every=8)),
        service=SimpleNamespace(region_claims=lambda: {"east": RegionClaim(round=round, announced=announced)}),
        state=SimpleNamespace(round=0, rounds_at=lambda round: 48),
    )
    found = regions_further(node).get("east")
    return None if found is None else found.round


@pytest.mark.parametrize(
    ("said", "announced", "believed"),
    [(15, 13, 15), (1000, 13, 21), (1000, None, 8), (3, 13, 13), (0, None, None), (-1, 13, None), (47, 45, None)],
)
def test_a_round_is_believed_within_a_period_of_the_newest_model(said, announced, believed):
    assert further(said, announced) == believed
