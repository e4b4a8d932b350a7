"""A table of members by the distance of their ids from ours, so that any of them is found by its id in a few steps.

It is Kademlia's (Maymounkov and Mazieres 2002). A peer's place is a hash of 256 bits, distance is the exclusive or of
two places, and bucket i has members at a distance of 2^i to 2^(i+1) - 1: a few far members stand for half of the swarm,
and of the nearest all are known. Places depend on the run and the swarm, so that an attacker who grinds an id beside a
victim's has it for that run only.

Only a peer that has proved its key at an address is added. A full bucket keeps its old members while they answer: a
crowd of newcomers cannot displace them, and a member that has been there for long mostly stays. And one network has at
most two members in a bucket, or an attacker with a network of its own would fill all buckets.
"""

import hashlib
import random
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from typing import Final

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_FOUND
from gossip.core.networks import network_of
from gossip.core.statements import PeerRecord

DOMAIN: Final = b"p2ptrain-kad-v1\x00"

PLACE_BITS: Final = 256
"""Bits of a place: those of a digest."""

BUCKET: Final = MAX_FOUND
"""Members of a bucket, and of an answer. A bucket fails when all of its members leave within the hour after which it is
looked up again; when each of 16 leaves with even odds, once in 65,536 times. Kademlia's own 20 makes answers longer."""

PER_NETWORK: Final = 2
"""Members of one /24 (IPv6: /48) in a bucket: two at one provider are no accident, three of 16 begin to be a share.
libp2p's go table has the same number."""

MAX_ENTRIES: Final = 512
"""Members in all. A swarm of a million fills 16 buckets of 16; the rest is room for ids that were ground beside ours,
and this is its limit. At 3 KiB a record 1.5 MiB."""

MAX_MISSES: Final = 3
"""Failed probes or questions in a row after which a member is dropped, even when nobody waits for its place."""

STALE_S: Final = 3600.0
"""Seconds. A bucket that no lookup has gone to for so long is looked up again: Kademlia's own hour."""

_REMEMBERED: Final = 4096
"""Places remembered: those of a table, of a peerstore and of some lookups."""


@lru_cache(maxsize=_REMEMBERED)
def place_of_id(scope: Scope, peer: PeerId) -> int:
    """Return a peer's place: BLAKE2b-256 of the domain, the scope and its id, as a number of 256 bits."""
    named = DOMAIN + scope.swarm + scope.run + peer.encode("ascii")
    return int.from_bytes(hashlib.blake2b(named, digest_size=PLACE_BITS // 8).digest(), "big")


def nearest(records: Collection[PeerRecord], scope: Scope, target: int, count: int = BUCKET) -> list[PeerRecord]:
    """Return those of these records whose signers are nearest to `target`, nearest first."""
    return nsmallest(count, records, key=lambda record: place_of_id(scope, record.peer) ^ target)


@dataclass
class _Entry:
    record: PeerRecord
    network: str
    place: int
    address: str
    """Where it proved its key."""
    misses: int = 0


@dataclass
class _Bucket:
    entries: OrderedDict[PeerId, _Entry] = field(default_factory=OrderedDict)
    """The member that was seen least recently comes first."""
    waiting: _Entry | None = None
    """The newest peer that found the bucket full."""
    looked_at: float = float("-inf")

    def has_room_for(self, network: str) -> bool:
        return len(self.entries) < BUCKET and not self.crowded(network)

    def crowded(self, network: str) -> bool:
        return network != "" and sum(each.network == network for each in self.entries.values()) >= PER_NETWORK


class RoutingTable:
    """The buckets of one node, which is never in them itself."""

    def __init__(self, me: PeerId, scope: Scope) -> None:
        self._scope = scope
        self._mine = place_of_id(scope, me)
        self._buckets: dict[int, _Bucket] = {}

    def __len__(self) -> int:
        return sum(len(bucket.entries) for bucket in self._buckets.values())

    def __contains__(self, peer: PeerId) -> bool:
        bucket = self._bucket_of(peer)
        return bucket is not None and peer in bucket.entries

    def has_room_for(self, peer: PeerId, address: str) -> bool:
        """Return whether `see` would add a peer that is not here yet without a probe of another."""
        network, bucket = network_of(address), self._bucket_of(peer)
        if network is None or len(self) >= MAX_ENTRIES or place_of_id(self._scope, peer) == self._mine:
            return False
        return bucket is None or bucket.has_room_for(network)

    def see(self, record: PeerRecord, address: str) -> PeerId | None:
        """Note that the record's signer has just proved its key at `address`. Where its bucket is full it waits for the
        place of the member that was seen least recently, which is returned to be probed: then call `alive` or
        `failed`."""
        place, network = place_of_id(self._scope, record.peer), network_of(address)
        if place == self._mine or network is None:
            return None
        bucket = self._buckets.setdefault((place ^ self._mine).bit_length() - 1, _Bucket())
        known = bucket.entries.pop(record.peer, None)
        entry = _Entry(_newer(record, known), network, place, address)
        if bucket.has_room_for(network) and len(self) < MAX_ENTRIES:
            bucket.entries[record.peer] = entry
        elif len(bucket.entries) >= BUCKET and not bucket.crowded(network):
            bucket.waiting = entry
            return next(iter(bucket.entries))
        return None

    def reached_at(self, peer: PeerId) -> str:
        """Return the address at which a member proved its key when it was last seen; "" for who is not here."""
        bucket = self._bucket_of(peer)
        entry = None if bucket is None else bucket.entries.get(peer)
        return "" if entry is None else entry.address

    def update(self, record: PeerRecord) -> None:
        """Update the record of a peer that may be in the table; a newer record is no sign of life."""
        bucket = self._bucket_of(record.peer)
        if bucket is not None and (entry := bucket.entries.get(record.peer)):
            entry.record = _newer(record, entry)

    def alive(self, peer: PeerId) -> None:
        """Note an answer: the member keeps its place."""
        bucket = self._bucket_of(peer)
        if bucket is not None and (entry := bucket.entries.get(peer)):
            entry.misses = 0
            bucket.entries.move_to_end(peer)
            bucket.waiting = None

    def failed(self, peer: PeerId) -> None:
        """Note that a member did not answer. It is not passed on until it answers; its place goes to a peer that waits
        for it."""
        bucket = self._bucket_of(peer)
        if bucket is None or peer not in bucket.entries:
            return
        bucket.entries[peer].misses += 1
        if bucket.waiting is not None or bucket.entries[peer].misses >= MAX_MISSES:
            self._remove(bucket, peer)

    def forget(self, peer: PeerId) -> None:
        """Remove a member that is banned, or has left."""
        bucket = self._bucket_of(peer)
        if bucket is not None:
            if bucket.waiting is not None and bucket.waiting.record.peer == peer:
                bucket.waiting = None
            self._remove(bucket, peer)

    def closest(self, target: int, count: int = BUCKET, without: Collection[PeerId] = ()) -> list[PeerRecord]:
        """Return the members nearest to `target` that answered when last asked, nearest first."""
        there = (entry for bucket in self._buckets.values() for entry in bucket.entries.values() if not entry.misses)
        found = nsmallest(count + len(without), there, key=lambda entry: entry.place ^ target)
        return [entry.record for entry in found if entry.record.peer not in without][:count]

    def peers(self) -> list[PeerId]:
        """Return all members."""
        return [peer for bucket in self._buckets.values() for peer in bucket.entries]

    def looked_up(self, target: int, now: float) -> None:
        """Note a lookup towards `target`."""
        if target != self._mine:
            self._buckets.setdefault((target ^ self._mine).bit_length() - 1, _Bucket()).looked_at = now

    def stale(self, now: float, rng: random.Random) -> int | None:
        """Return a random place in the bucket that was looked up longest ago; None when none is stale. Buckets nearer
        to us than our nearest member are really empty, and are not looked up."""
        lowest = min((index for index, bucket in self._buckets.items() if bucket.entries), default=PLACE_BITS)
        never = _Bucket()
        due = [(self._buckets.get(index, never).looked_at, index) for index in range(lowest, PLACE_BITS)]
        due = [(at, -index) for at, index in due if at + STALE_S <= now]
        if not due:
            return None
        index = -min(due)[1]
        return self._mine ^ (1 << index | rng.getrandbits(index) if index else 1)

    def _bucket_of(self, peer: PeerId) -> _Bucket | None:
        return self._buckets.get((place_of_id(self._scope, peer) ^ self._mine).bit_length() - 1)

    def _remove(self, bucket: _Bucket, peer: PeerId) -> None:
        if bucket.entries.pop(peer, None) is not None and (waiting := bucket.waiting):
            bucket.waiting = None
            if bucket.has_room_for(waiting.network):
                bucket.entries[waiting.record.peer] = waiting


def _newer(record: PeerRecord, known: _Entry | None) -> PeerRecord:
    if known is None or (known.record.epoch, known.record.version) <= (record.epoch, record.version):
        return record
    return known.record
