"""How two histories of one signer are found out, though of members that we do not follow few links are passed on.

All that a node needs is its neighbours' links. It passes on others' so that one who signs two histories is found out
by those whom it tells them to, however far apart they are. Where every node passes on everything, that is a cost that
grows with the swarm. A link names the one before it, so a link shows all of its history: it is enough that every k-th
of a chain goes all the way. k grows so that links of others cost as much as a few times log2 n members' do.

Three things make up for a long k. Every valid link that a node hears is compared with what it has heard of that signer,
whether or not it follows it: members two steps apart know at once. Two links that contradict each other go all the way
together, by everybody who has both. And a chain that is begun anew does not forget: who holds a link of the old one
that has not gone all the way shows it, and it does then.
"""

import hashlib
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final

from gossip.core.envelope import digests_in
from gossip.core.ids import Digest, PeerId
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import UpdateHeader

LOG_SHARE: Final = 2
"""Links of others cost a node as much in a round as so many times log2 n members' at most, and half as much at least.
So up to 16 members all are passed on; a round has 40 of a thousand members', and 53 of ten thousand's."""

LOG_SHARE_OF_REGION: Final = 1
"""The same in a run with regions, of the members of one's own, which no link of another's enters: among up to a hundred
members two histories come out at once, whatever is passed on. Chosen."""

MAX_FOLLOWED: Final = 64
LINKS_OF_FOLLOWED: Final = 32
"""Signers whose links are kept because they are or were neighbours, eight times the default degree, and how many of
each: as many as a neighbour's chain has to compare with."""

MAX_HEARD: Final = 512
LINKS_OF_HEARD: Final = 4
"""The same of all others: those two steps away are some 56, and announce in every round; those of whom a single link
goes all the way come and go. Four links are as many rounds as two histories may be apart and count (max_staleness)."""

MAX_CONVICTED: Final = 256
"""Signers of two histories that are remembered, with the proof."""

BASES_BURST: Final = 8
BASES_PER_S: Final = 0.02
"""New chains of a signer that go all the way, and that its neighbours follow: a machine that cannot stay up may
restart once a minute. More often nobody need follow it, since each costs a model. Chosen."""

SHOWN_BURST: Final = 4 * BASES_BURST
SHOWN_PER_S: Final = 4 * BASES_PER_S
"""Links of a signer's earlier chains that go all the way: of each chain that ends its two histories, and two more, as
neighbours were not all equally far."""


def audit_every(members: int, share: int = LOG_SHARE) -> int:
    """Return k for a swarm, or a region, of so many members: 1, or the least power of two with
    members / k <= share log2 n."""
    k = 1
    while members > share * k * math.log2(max(2, members)):
        k *= 2
    return k


@lru_cache(maxsize=MAX_HEARD)
def phase_of(signer: PeerId) -> int:
    """Return where in the k rounds this signer's links go all the way. Chains that begin together would else all do so
    in the same round, and be more than anybody takes at once (transport/libp2p/pubsub_limit.py)."""
    return int.from_bytes(hashlib.blake2b(signer.encode(), digest_size=4).digest(), "big")


def goes_all_the_way(signer: PeerId, seq: int, members: int, share: int = LOG_SHARE) -> bool:
    """Return whether the link at this place of a chain is passed on by those who do not follow its signer. The first
    one is, so that who begins anew is seen by all."""
    return seq == 0 or (seq + phase_of(signer)) % audit_every(members, share) == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class HeardLink:
    """What is kept of a link to compare others with: a node holds four of each member that it hears. What is seldom
    asked is read from its bytes again."""

    epoch: int
    seq: int
    raw: bytes

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in its signer's chains."""
        return self.epoch, self.seq

    @property
    def digest(self) -> Digest:
        """Its name."""
        return digests_in(self.raw)[0]

    @property
    def prev(self) -> Digest:
        """The name of the link before it."""
        return digests_in(self.raw)[1]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a link means beside its own content. `against`: a link of the same signer's with which it cannot both hold.
    `shows`: links to broadcast, so that others can compare too. `passes`: whether it is passed on by those who do not
    follow its signer. `late`: it is of a chain that has ended, and is passed on by all. `too_soon`: it begins a chain
    anew after too many others, and is neither followed nor passed on."""

    against: HeardLink | None = None
    shows: tuple[HeardLink, ...] = ()
    passes: bool = False
    late: bool = False
    too_soon: bool = False


class LinkAudit:
    """The newest links of each signer that was heard, and what they prove. `share`: how many links of others go all
    the way, in log2 n."""

    def __init__(self, share: int = LOG_SHARE) -> None:
        self._share = share
        self._followed = _Histories(MAX_FOLLOWED, LINKS_OF_FOLLOWED)
        self._heard = _Histories(MAX_HEARD, LINKS_OF_HEARD)
        self._bases = KeyedTokenBucket(burst=BASES_BURST, per_s=BASES_PER_S)
        self._shown = KeyedTokenBucket(burst=SHOWN_BURST, per_s=SHOWN_PER_S)
        self._convicted: OrderedDict[PeerId, tuple[bytes, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._followed) + len(self._heard)

    def proof_against(self, signer: PeerId) -> tuple[bytes, bytes] | None:
        """Return two links that prove two histories; None where none are known."""
        return self._convicted.get(signer)

    def followed(self, signer: PeerId) -> bool:
        """Return whether a signer is or was a neighbour, as far as that is remembered."""
        return signer in self._followed

    def hear(self, link: UpdateHeader, *, follows: bool, members: int, now: float) -> Heard:
        """Take in a validly signed link. `follows`: its signer is a neighbour. `members`: how many the swarm has."""
        history = self._history(link.peer, follows)
        against = history.against(link)
        if against is not None:
            self._convict(link.peer, (against.raw, link.raw))
            return Heard(against=against, shows=(against,), passes=True)
        if link.place in history:
            return Heard()
        newest = history.newest
        if newest is None or link.epoch <= newest.epoch:
            history.add(link)
            if newest is not None and link.epoch < newest.epoch:
                late = link.seq > 0 and self._shown.take(link.peer, now)  # its base has gone all the way already
                return Heard(passes=late, late=late)
            return Heard(passes=goes_all_the_way(link.peer, link.seq, members, self._share))
        if not self._bases.take(link.peer, now):
            return Heard(too_soon=True)
        history.add(link)
        # What goes all the way is known everywhere. Strangers show too: who is beside a neighbour has seen the rest.
        untold = link.peer in self._followed or not goes_all_the_way(link.peer, newest.seq, members, self._share)
        passes = goes_all_the_way(link.peer, link.seq, members, self._share)
        return Heard(shows=(newest,) if untold else (), passes=passes)

    def _history(self, signer: PeerId, follows: bool) -> "_History":
        """A signer's links; those of one that becomes a neighbour are taken over."""
        if signer in self._followed or not follows:
            return (self._followed if signer in self._followed else self._heard).of(signer)
        history = self._followed.of(signer)
        history.take_over(self._heard.pop(signer))
        return history

    def _convict(self, signer: PeerId, proof: tuple[bytes, bytes]) -> None:
        self._convicted.setdefault(signer, proof)
        while len(self._convicted) > MAX_CONVICTED:
            self._convicted.popitem(last=False)


_place = attrgetter("place")


class _History:
    """The newest links of one signer, at most `most`, in the order of their places. A node has one of each member that
    it hears, most of them of one link or a few: a list of so few is as fast as a table, and a third of its size."""

    __slots__ = ("_links", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._links: list[HeardLink] = []

    def __contains__(self, place: tuple[int, int]) -> bool:
        return self._at(place) is not None

    def __len__(self) -> int:
        return len(self._links)

    @property
    def newest(self) -> HeardLink | None:
        """The link at the highest place."""
        return self._links[-1] if self._links else None

    def against(self, link: UpdateHeader) -> HeardLink | None:
        """Return a link that contradicts this one: at its place, or one that does not lead to it or from it."""
        same = self._at(link.place)
        if same is not None and same.digest != link.digest:
            return same
        before = self._at((link.epoch, link.seq - 1))
        if before is not None and before.digest != link.prev:
            return before
        after = self._at((link.epoch, link.seq + 1))
        return after if after is not None and after.prev != link.digest else None

    def add(self, link: UpdateHeader) -> None:
        """Keep a link, unless it is older than all that are kept and there is no room."""
        self._put(HeardLink(epoch=link.epoch, seq=link.seq, raw=link.raw))

    def take_over(self, other: "_History") -> None:
        """Keep the links of another history of the same signer."""
        for link in other._links:
            self._put(link)

    def _at(self, place: tuple[int, int]) -> HeardLink | None:
        at = bisect_left(self._links, place, key=_place)
        return self._links[at] if at < len(self._links) and self._links[at].place == place else None

    def _put(self, link: HeardLink) -> None:
        if link.place not in self:
            insort(self._links, link, key=_place)
            del self._links[: -self._most]


class _Histories:
    """Histories of at most `signers` signers, of `links` links each; the one that was not heard for longest goes."""

    def __init__(self, signers: int, links: int) -> None:
        self._signers = signers
        self._links = links
        self._by_signer: dict[PeerId, _History] = {}

    def __len__(self) -> int:
        return len(self._by_signer)

    def __contains__(self, signer: PeerId) -> bool:
        return signer in self._by_signer

    def of(self, signer: PeerId) -> _History:
        """Return a signer's, new or kept."""
        history = self._by_signer[signer] = self.pop(signer)
        while len(self._by_signer) > self._signers:
            del self._by_signer[next(iter(self._by_signer))]
        return history

    def pop(self, signer: PeerId) -> _History:
        """Forget a signer; return its links, or none."""
        return self._by_signer.pop(signer, _History(self._links))
