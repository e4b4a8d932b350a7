"""Which region a newcomer joins, by the round trips to members of each: whom to ask, and what follows from the answers.

A member's round trip is the median of several. The nearest members of one network are one voice, for keys cost nothing
and networks do: a region's round trip is the median of its voices. The newcomer joins the nearest region. Where others
are as near as can be told, it takes the first of them in the order in which the run names its regions, and the first
region of all where no member of any has answered.

A round trip is proved: the far end returns random bytes that it could not know before. So nobody is nearer than it is.
What a member can lie about is its region.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Final, Literal

from gossip.core.backoff import host_of, peer_in
from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.core.networks import group_of, in_turn, network_of
from gossip.core.statements import PeerRecord

PER_REGION: Final = 8
"""Members of a region whose round trips are measured, of as many networks as there are: with f = 2 lying, the median
is an honest one's by far. Chosen."""

MAX_ASKED: Final = 64
"""Peers that are dialled at most: those of eight regions, or the few of two regions among many that have left. Each
names as many as a hello holds, so that 2048 are remembered at most."""

MAX_ADDRESSES_TRIED: Final = 3
"""Addresses of one member that are tried: some may be of a network that does not lead here."""

NEAR_SHARE: Final = 0.25
NEAR_S: Final = 0.002
"""Regions whose round trips are within so much of the nearest are as near: what a busy machine or a home link adds from
one minute to the next, and what tells two machines of one room apart. Chosen."""

Why = Literal["nearest", "as near", "nobody"]
"""nearest: by far enough. as near: the first of those that are as near. nobody: no member of any region answered."""


@dataclass(frozen=True, kw_only=True)
class RegionVoice:
    """One member's answer. `seconds`: its round trip; `group`: under which it is counted (core/networks.py)."""

    peer: PeerId
    region: str
    group: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RegionChoice:
    """What is joined. By region that has answered, `round_trips` (seconds) and how many `members` were measured."""

    region: str
    why: Why
    round_trips: Mapping[str, float]
    members: Mapping[str, int]


def choose_region(regions: Sequence[str], voices: Iterable[RegionVoice]) -> RegionChoice:
    """Return the region to join, of the run's, in its order."""
    heard: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for voice in voices:
        heard[voice.region][voice.group].append(voice.seconds)
    # The lower middle of two: nobody can seem nearer than it is, and everybody further.
    trips = {region: median_low(map(median, heard[region].values())) for region in regions if region in heard}
    members = {region: sum(map(len, heard[region].values())) for region in trips}
    if not trips:
        return RegionChoice(region=regions[0], why="nobody", round_trips={}, members={})
    bound = min(trips.values()) * (1 + NEAR_SHARE) + NEAR_S
    near = [region for region, seconds in trips.items() if seconds <= bound]
    return RegionChoice(
        region=near[0], why="nearest" if len(near) == 1 else "as near", round_trips=trips, members=members
    )


class RegionSurvey:
    """Whom to ask next. Each peer that `next` names must be reported by `answered` or `failed`."""

    def __init__(
        self,
        regions: Sequence[str],
        seeds: Iterable[str],
        rng: random.Random,
        region_of: Callable[[PeerRecord], str],
    ) -> None:
        """`seeds`: addresses of the operator's peers. `region_of`: the region that a record's signer may be of; "" for
        none."""
        self.voices: list[RegionVoice] = []
        self._regions = frozenset(regions)
        self._rng = rng
        self._region_of = region_of
        self._seeds = {peer: address for address in seeds if (peer := _peer_at(address)) is not None}
        self._named: dict[PeerId, PeerRecord] = {}
        self._asked: dict[PeerId, tuple[str, frozenset[str]]] = {}
        """By peer that was asked, the region that it was named with, and its hosts while it has not answered."""
        self._answered_at: set[str] = set()
        """Networks in which members have answered. Those with an address there come last, whatever others they say:
        many keys of one machine, each with a made-up address of its own, would else take all places of a region."""

    def next(self) -> tuple[PeerId, list[str]] | None:
        """Return a peer to ask, and its addresses; None where there is nobody at the moment."""
        if len(self._asked) >= MAX_ASKED:
            return None
        busy = frozenset().union(*(hosts for _, hosts in self._asked.values()))
        for peer, address in self._seeds.items():
            if peer not in self._asked:
                return self._ask(peer, [address], "")
        for region in sorted(self._regions, key=lambda each: (self._count(each), each)):
            if self._count(region) >= PER_REGION:
                break
            there = [each for each in self._named.values() if self._region_of(each) == region]
            free = [each.peer for each in there if each.peer not in self._asked]
            for peer in sorted(in_turn(free, lambda each: _group(self._named[each]), self._rng), key=self._is_known):
                found = _direct(self._named[peer])
                addresses = self._rng.sample(found, min(len(found), MAX_ADDRESSES_TRIED))
                if not busy.intersection(map(host_of, addresses)):
                    return self._ask(peer, addresses, region)
        return None

    def named(self, records: Iterable[PeerRecord]) -> None:
        """Note members that another peer names. Those behind a relay are not asked: it would be measured as well."""
        self._named |= {each.peer: each for each in records if _direct(each) and self._region_of(each) in self._regions}

    def wants(self, record: PeerRecord) -> bool:
        """Return whether the round trip to a member that gave this record is of use."""
        if "/p2p-circuit" in self._seeds.get(record.peer, ""):
            return False  # the relay's way would be measured
        region = self._region_of(record)
        return region in self._regions and sum(voice.region == region for voice in self.voices) < PER_REGION

    def answered(self, record: PeerRecord, network: str | None, seconds: float) -> None:
        """Note a member's round trip. `network`: the one that the connection to it leads to."""
        self.failed(record.peer)
        if network:
            said = map(network_of, record.addresses)
            self._answered_at |= {network} if network in said else {network, "dns"}  # so a name led there
        group = group_of(record.peer, network)
        voice = RegionVoice(peer=record.peer, region=self._region_of(record), group=group, seconds=seconds)
        self.voices.append(voice)

    def failed(self, peer: PeerId) -> None:
        """Note that a peer has nothing more to say."""
        self._asked[peer] = "", frozenset()

    def _ask(self, peer: PeerId, addresses: list[str], region: str) -> tuple[PeerId, list[str]]:
        self._asked[peer] = region, frozenset(map(host_of, addresses))
        return peer, addresses

    def _is_known(self, peer: PeerId) -> bool:
        """Whether a member has an address in a network in which one has answered."""
        return not self._answered_at.isdisjoint(map(network_of, self._named[peer].addresses))

    def _count(self, region: str) -> int:
        """How many members of a region have answered, or are being asked."""
        under_way = sum(named == region for named, _ in self._asked.values())
        return under_way + sum(voice.region == region for voice in self.voices)


def _peer_at(address: str) -> PeerId | None:
    try:
        return peer_in(address)
    except LocalError:
        return None


def _direct(record: PeerRecord) -> list[str]:
    return [address for address in record.addresses if "/p2p-circuit" not in address]


def _group(record: PeerRecord) -> str:
    said = map(network_of, record.addresses)
    return group_of(record.peer, next((network for network in said if network is not None), None))
