"""Latency between regions of the world, for scenarios that bring no table of their own."""

from typing import Final

WORLD: Final[dict[str, dict[str, float]]] = {
    "australia": {"australia": 2},
    "east_asia": {"australia": 110, "east_asia": 4},
    "europe": {"australia": 165, "east_asia": 125, "europe": 2},
    "na_east": {"australia": 150, "east_asia": 140, "europe": 70, "na_east": 2},
    "na_west": {"australia": 110, "east_asia": 100, "europe": 110, "na_east": 60, "na_west": 2},
    "south_africa": {
        "australia": 220,
        "east_asia": 175,
        "europe": 95,
        "na_east": 130,
        "na_west": 160,
        "south_africa": 7,
    },
    "south_america": {
        "australia": 190,
        "east_asia": 175,
        "europe": 140,
        "na_east": 100,
        "na_west": 100,
        "south_africa": 190,
        "south_america": 7,
    },
    "west_asia": {
        "australia": 180,
        "east_asia": 110,
        "europe": 60,
        "na_east": 110,
        "na_west": 150,
        "south_africa": 110,
        "south_america": 145,
        "west_asia": 5,
    },
}
"""One-way latency in ms, each pair once. Source: libp2p/test-plans, gossipsub-interop/network_graph.py (00f6cbd).
Its South Africa - South America is 190 one way and 195 the other; 190 is taken."""

UTC_OFFSET_H: Final[dict[str, float]] = {
    "australia": 10,
    "east_asia": 8,
    "europe": 1,
    "na_east": -5,
    "na_west": -8,
    "south_africa": 2,
    "south_america": -3,
    "west_asia": 3,
}
"""Hours by which local time is ahead of UTC: of Sydney, Shanghai, Berlin, New York, Los Angeles, Johannesburg, Sao
Paulo and Riyadh, without summer time."""
