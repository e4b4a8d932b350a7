"""Which links of members that we do not follow are passed on: of small swarms all, of large ones every k-th.

All that a node needs is its neighbours' links. It passes on others' so that one who signs two histories is found out
by those whom it tells them to, however far apart they are. Where every node passes on everything, that is a cost that
grows with the swarm: 1,000 members who close a round in 30 s send 77 kB/s of other members' headers each.

A link names the one before it, so a link shows all of its history. It is enough that every k-th of each chain goes all
the way: two histories are still two when the next such link is signed, and are seen then. k grows with the swarm as
seen from here, by powers of two: of those who believe in different ones each passes on what the others do, or more.
"""

from typing import Final

WHOLE_SWARM: Final = 32
"""Members up to whom, and somewhat beyond, every link goes all the way: they cost each of them as much as they may
always cost, in links of others a round."""

MOST_APART: Final = 64
"""Links from one that goes all the way to the next, at most: for so many rounds a member of a swarm of thousands may
tell two neighbours two things before both know. Chosen: half an hour of rounds of 30 s."""


def audit_every(members: int) -> int:
    """Return k for a swarm of so many members: 1, or a power of two."""
    k = 1
    while k < MOST_APART and 2 * members > 3 * k * WHOLE_SWARM:  # from one and a half times on, the next one is nearer
        k *= 2
    return k


def goes_all_the_way(seq: int, members: int) -> bool:
    """Return whether the link at this place of a chain is passed on by those who do not follow its signer."""
    return seq % audit_every(members) == 0
