"""The round of a graph that is due: which pass, which of its rounds, and who stands where in it."""

import hashlib
from collections.abc import Collection
from functools import partial

from p2ptrain.graphs.base import Graph, Mixing


def drawn(seed: bytes, number: int, *names: str) -> bytes:
    """Return the number that names draw in a round or pass: who has the same seed finds the same."""
    # Names have their lengths before them, so that no two lists of names read alike.
    told = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (name.encode() for name in names))
    return hashlib.blake2b(number.to_bytes(8, "big") + told, key=seed, digest_size=16).digest()


def mixing_at(graph: Graph, members: Collection[str], seed: bytes, round: int) -> Mixing:
    """Return the mixing matrix of a round, the same whatever order the members come in."""
    number, index = divmod(round, graph.period(len(members)))
    draw = partial(drawn, seed, number)
    return graph.mixing(sorted(members, key=draw), index, draw)
