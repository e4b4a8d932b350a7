"""Known peers: signed peer records, the newest of each peer, some hundreds at most, and how far to trust each.

A record says where its signer can be dialled, and a signer may name any address: that of a victim, for a whole swarm to
dial. So a record is passed on only when its signer gave it to us over its own connection and has proved its key at one
of its addresses, to us. Records are passed on in a random order, so that a stranger cannot fill everybody's peerstores
at the price of one hello. Such records are worth keeping: `dump` and `recall` save them over a restart. When the
peerstore is full, what one network has beyond its share is dropped first, then the least trusted, and in a run with
regions first of those that are neither ours nor beside ours. Of records that
others reported, the group that reported most loses one; of the verified the newest, so that a crowd that comes later
displaces nobody. What one peer reports of others takes the places of verified ones up to a quarter of all: it costs
nothing to say, and may name any network. And in what is passed on networks take turns: a crowd of keys on one host is
one of many to a newcomer."""

import base64
import binascii
import json
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Final, TypeAlias

from gossip.core.digests import digest_of
from gossip.core.envelope import Scope, open_envelope
from gossip.core.errors import LocalError, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_ENVELOPE_BYTES, MAX_HELLO_RECORDS
from gossip.core.networks import NOT_SAID, PARTS, bounded, group_of, in_turn, largest_share, network_of, share_of
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.topology import Rings

MAX_RECORDS: Final = 256
"""32 times the default degree; at 2.4 KiB a record 600 KiB at most. In a run without regions."""

MAX_OF_NETWORK: Final = MAX_RECORDS // PARTS
"""Records of one network that are kept when the peerstore is full and others need the places."""

MAX_HEARSAY: Final = MAX_RECORDS // 4
"""Records that others reported for which the surplus of a network makes room though it is verified. A quarter, so that
one liar's words leave three quarters to a swarm whose members share a network. It is not none, so that a crowd of one
network cannot keep a full peerstore from learning of anybody else: who is learned of is dialled, and verified then."""

MAX_FAR: Final = MAX_RECORDS // 8
"""Records of members of regions that are not beside ours, in a run with regions, that are kept where others need the
places: enough to bring together who asks. Chosen."""

MAX_RECORDS_OF_REGIONS: Final = MAX_RECORDS + MAX_FAR
"""The same in a run with regions. Of one's own and those beside it a node needs all, 250 of five regions of fifty: who
publishes a model is heard only where its record is known."""

MAX_REACHED: Final = 2 * MAX_RECORDS
"""Peers whose last proved address is known; more than records, as a peer is reached before its record comes."""

NEAR_DEPTH: Final = 2
"""Records passed on from each side of a peer's place on each ring: its neighbour there, and the next one in case that
one has left. At most half of what a hello may hold, so that views stay mixed."""

REMINDED: Final = 2
"""Records in a hello of those that a neighbour was told before: it may have dropped one since. Eight neighbours that
say hello every ten seconds, and are answered, bring all of 256 again in a few minutes."""

OF_OWN_REGION: Final = 4
OF_REGIONS_BESIDE: Final = 1
OF_FAR_REGIONS: Final = 1
"""New records in a hello, in a run with regions, beside those of members that the receiver belongs beside: of its own
region, of those beside that, and of all others, which it needs to bring together who asks. So a hello costs the same in
every swarm. Eight neighbours and as many members of other regions say some two and a half a second: they tell of a
region of fifty in half a minute, and of 250 members of others in some minutes, though most tell what others have told.
Chosen."""

FORMAT: Final = 1
"""Version of the format of `dump`."""

MAX_DUMP_BYTES: Final = 2 * MAX_RECORDS_OF_REGIONS * MAX_ENVELOPE_BYTES
"""The largest dump that is read: base64 makes four bytes from three."""


class RecordTrust(IntEnum):
    """How far a record is trusted."""

    HEARSAY = 0
    """Another peer passed it on."""
    FIRST_HAND = 1
    """Its signer gave it to us. Anybody may sign any address."""
    KEPT = 2
    """It was VERIFIED before this node's restart."""
    VERIFIED = 3
    """Its signer gave it to us, and answered at one of its addresses."""


def takes_all(record: PeerRecord) -> bool:
    """Return True: every record may be kept."""
    return True


NeedsRecord: TypeAlias = Callable[[PeerRecord], bool]
"""Whether a record is of a member beside which we may belong, in a run with regions."""


def nobody_first(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return nobody."""
    return ()


@dataclass(slots=True)
class _Known:
    """What is known of a peer beside its newest record: a node has some hundreds. `first_hand`: it gave the record
    itself. `kept`: it was VERIFIED before this node's restart. `calls_from`: the network from which it called when it
    gave a record. `network`: where it counts. `told_by`: the group of who reported it. `rank`: when it was verified, or
    kept, among all."""

    record: PeerRecord
    first_hand: bool = False
    kept: bool = False
    calls_from: str | None = NOT_SAID
    network: str | None = None
    told_by: str = ""
    rank: int | None = None


class PeerStore:
    """The newest signed record of each known peer. `changed`: since the last dump. `takes`: whether a new record may be
    kept. `needs`: None in a run without regions, where every member may become a neighbour."""

    def __init__(self, takes: Callable[[PeerRecord], bool] = takes_all, needs: NeedsRecord | None = None) -> None:
        self.changed = False
        self.met_changes = 0
        """How often it has changed whose records are held that their signers gave us, or that were kept."""
        self._takes = takes
        self._needs = needs
        self._most = MAX_RECORDS if needs is None else MAX_RECORDS_OF_REGIONS
        self._known: dict[PeerId, _Known] = {}
        self._reached: dict[PeerId, tuple[str, str | None]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._known)

    def learn(
        self, record: PeerRecord, *, first_hand: bool, calls_from: str | None = NOT_SAID, teller: str = ""
    ) -> bool:
        """Keep a record unless a newer one of the same peer is known; return True when it is new. `calls_from`: the
        network from which its signer called when it gave the record, None behind a relay. `teller`: the group of the
        peer that reported it."""
        known = self._known.get(record.peer)
        before = self.standing(record.peer)
        if known is not None and _age(known.record) > _age(record):
            return False
        if not self._takes(record):
            return False
        is_new = known is None or _age(known.record) < _age(record)
        known = known or _Known(record)
        if first_hand:
            self.met_changes += not known.first_hand
            known.first_hand = True
            known.told_by = ""
            if calls_from != NOT_SAID:
                known.calls_from = calls_from
        if not is_new:
            self._note(record.peer)
            self.changed = self.changed or self.standing(record.peer) is not before
            return False
        is_moved = set(known.record.addresses) != set(record.addresses)
        if record.peer not in self._known or is_moved:  # otherwise its trust stays as it was
            self.met_changes += known.first_hand or known.kept
            if not first_hand:
                known.first_hand = False
                known.told_by = teller
            known.kept = False
        known.record = record
        self._put(known)
        self.changed = True
        return True

    def reached(self, peer: PeerId, address: str, network: str | None = "") -> None:
        """Note that `peer` has proved its key at this address, in this network (None: through a relay)."""
        self._reached.pop(peer, None)
        self._reached[peer] = (address, network)
        while len(self._reached) > MAX_REACHED:  # at least one of two has no record
            del self._reached[next(each for each in self._reached if each not in self._known)]
        self._note(peer)
        self.changed = True

    def forget(self, peer: PeerId) -> None:
        """Drop a peer's record: banned, or unreachable for too long."""
        known = self._known.pop(peer, None)
        self._reached.pop(peer, None)
        if known is not None:
            self.changed = True
            self.met_changes += known.first_hand or known.kept

    def standing(self, peer: PeerId) -> RecordTrust:
        """Return how far the record of a peer is trusted; the lowest trust when there is none."""
        known = self._known.get(peer)
        if known is None or not (known.first_hand or known.kept):
            return RecordTrust.HEARSAY
        if self.reached_at(peer) in known.record.addresses:
            return RecordTrust.VERIFIED
        return RecordTrust.FIRST_HAND if known.first_hand else RecordTrust.KEPT

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return where the peer says it can be dialled; empty when unknown."""
        known = self._known.get(peer)
        return known.record.addresses if known else ()

    def region_of(self, peer: PeerId) -> str | None:
        """Return which region a peer says it is of, "" where it names none; None where nothing is known of it."""
        known = self._known.get(peer)
        return known.record.region if known else None

    def reached_at(self, peer: PeerId) -> str:
        """Return the address at which the peer last proved its key to us; "" when it has not."""
        return self._reached.get(peer, ("", None))[0]

    def relayed(self, peer: PeerId) -> bool:
        """Return whether the peer last proved its key through a relay, which says nothing of where it is."""
        return self._reached.get(peer, ("", ""))[1] is None

    def network_of(self, peer: PeerId) -> str | None:
        """Return the network of a peer with a record: where it proved its key, or called from, or says that it is. Who
        was reached through a relay and called without one is where it called from."""
        known = self._known.get(peer)
        return known.network if known else None

    def group_of(self, peer: PeerId) -> str:
        """Return the group under which a peer is counted: its network (core/networks.py)."""
        return group_of(peer, self.network_of(peer))

    def count_of(self, group: str) -> int:
        """Return how many records a group has."""
        return sum(self.group_of(peer) == group for peer in self._known)

    def established(self) -> list[PeerRecord]:
        """Return the records that are VERIFIED, or KEPT from before a restart, in the order in which they became so."""
        return sorted(self.of_standing(RecordTrust.VERIFIED, RecordTrust.KEPT), key=lambda it: self._rank(it.peer))

    def known(self) -> tuple[PeerRecord, ...]:
        """Return every record; the one that was refreshed longest ago comes first."""
        return tuple(known.record for known in self._known.values())

    def of_standing(self, *standings: RecordTrust) -> list[PeerRecord]:
        """Return the records of these standings; the one that was refreshed longest ago comes first."""
        return [known.record for peer, known in self._known.items() if self.standing(peer) in standings]

    def sample(
        self,
        rng: random.Random,
        without: PeerId,
        rings: Rings | None = None,
        told: Container[Digest] = frozenset(),
        regions: Container[str] | None = None,
        first: Callable[[Iterable[PeerId]], Iterable[PeerId]] = nobody_first,
    ) -> tuple[bytes, ...]:
        """Return signed records to send to `without`, verified ones only: at most MAX_HELLO_RECORDS. Where there are
        more, those that it belongs beside come first; the others are drawn, network by network. Of those that it was
        `told` already, by digest, REMINDED are drawn at most. `regions`: in a run with regions, its own and those
        beside that. `first`: chooses more that it belongs beside."""
        others = {
            record.peer: record.raw for record in self.of_standing(RecordTrust.VERIFIED) if record.peer != without
        }
        known = {peer for peer, raw in others.items() if digest_of(raw) in told}
        drawn = in_turn(others, self.group_of, rng)
        reminded = [peer for peer in drawn if peer in known][:REMINDED]
        beside: list[PeerId] = []
        if rings is not None and (regions is not None or len(others) > MAX_HELLO_RECORDS):
            half = MAX_HELLO_RECORDS // 2
            most = share_of(half, len({self.group_of(peer) for peer in others}))
            region = self.region_of(without)
            ring = [peer for peer in others if region is None or self.region_of(peer) == region]
            near = bounded(rings.beside(without, ring, NEAR_DEPTH), self.group_of, most)[:half]
            beside = list(dict.fromkeys([*near, *first(others)]))
            drawn = list(dict.fromkeys([*beside, *drawn]))
        fresh = [peer for peer in drawn if peer not in known]
        if regions is not None:
            rest = [(peer, self._known[peer].record.region) for peer in fresh if peer not in beside]
            own = [peer for peer, region in rest if region == self.region_of(without)]
            elsewhere = [(peer, region) for peer, region in rest if region != self.region_of(without)]
            near = [peer for peer, region in elsewhere if region in regions]
            far = [peer for peer, region in elsewhere if region not in regions]
            needed = (peer for peer in fresh if peer in beside)
            fresh = [*needed, *own[:OF_OWN_REGION], *near[:OF_REGIONS_BESIDE], *far[:OF_FAR_REGIONS]]
        fresh = fresh[: MAX_HELLO_RECORDS - len(reminded)]
        return tuple(others[peer] for peer in (*fresh, *reminded))

    def dump(self) -> bytes:
        """Return what is worth keeping for `recall` after a restart; then nothing is `changed` any more."""
        self.changed = False
        records = [base64.b64encode(record.raw).decode("ascii") for record in self.established()]
        return json.dumps({"format": FORMAT, "records": records}, indent=0).encode("ascii") + b"\n"

    def recall(self, data: bytes, scope: Scope) -> int:
        """Load a dump; return how many records of this swarm and run it held. Raises LocalError, and loads nothing, on
        damage.

        Signatures are checked again: anybody may have written the file.
        """
        found = [record for raw in _raws_in(data) if (record := _record_in(raw, scope)) is not None]
        for record in found[: self._most]:
            self._put(_Known(record, kept=True))
            self.met_changes += 1
        return len(self)

    def _note(self, peer: PeerId) -> None:
        """Update what is derived for a peer: its network, and its rank. The rank of the peer that was verified first
        stays first, also after a restart."""
        known = self._known.get(peer)
        if known is None:
            return
        standing = self.standing(peer)
        if standing is RecordTrust.VERIFIED and not self.relayed(peer):
            known.network = self._reached[peer][1]
        elif known.calls_from != NOT_SAID:
            known.network = known.calls_from
        else:
            said = map(network_of, known.record.addresses)
            known.network = next((network for network in said if network is not None), None)
        if known.rank is None and standing >= RecordTrust.KEPT:
            known.rank = next(self._numbers)

    def _rank(self, peer: PeerId) -> int:
        return self._known[peer].rank or 0

    def _put(self, known: _Known) -> None:
        peer = known.record.peer
        self._known.pop(peer, None)
        self._known[peer] = known
        self._note(peer)
        if len(self._known) > self._most:
            # A signer that gave its own record is not the first to go: it may still be reached, and displaces others
            # like it first.
            self.forget(self._least_worth(peer if known.first_hand else None))

    def _least_worth(self, newcomer: PeerId | None) -> PeerId:
        """Return whose record makes room for the newcomer's."""
        groups = {peer: self.group_of(peer) for peer in self._known}
        most = largest_share(Counter(groups.values()).values(), MAX_OF_NETWORK)
        ranked = sorted(self._known, key=lambda peer: (-self.standing(peer), self._rank(peer)))
        within = set(bounded(ranked, groups.__getitem__, most))
        far = {peer for peer, known in self._known.items() if self._needs is not None and not self._needs(known.record)}
        drops_far = len(far) > MAX_FAR
        surplus = [peer for peer in reversed(ranked) if peer not in within and peer != newcomer]
        if newcomer is None and sum(self.standing(peer) is RecordTrust.HEARSAY for peer in self._known) > MAX_HEARSAY:
            surplus = [peer for peer in surplus if self.standing(peer) < RecordTrust.KEPT]
        if surplus:  # the least trusted, and of those the newest
            return next((peer for peer in surplus if drops_far and peer in far), surplus[0])
        rest = [peer for peer in ranked if peer != newcomer]
        if drops_far:
            rest = [peer for peer in rest if peer in far]
        lowest = self.standing(rest[-1])
        if lowest >= RecordTrust.KEPT:
            return rest[-1]
        rest = [peer for peer in rest if self.standing(peer) is lowest]
        tellers = Counter(self._known[peer].told_by for peer in rest)
        most_told = max(tellers.values())
        return next(peer for peer in rest if tellers[self._known[peer].told_by] == most_told)


def _age(record: PeerRecord) -> tuple[int, int]:
    return record.epoch, record.version


def _raws_in(data: bytes) -> list[bytes]:
    if len(data) > MAX_DUMP_BYTES:
        raise LocalError(f"it has {len(data)} bytes")
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise LocalError("it is of another format")
        return [base64.b64decode(text, validate=True) for text in list(document["records"])]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise LocalError("it is damaged") from error


def _record_in(raw: bytes, scope: Scope) -> PeerRecord | None:
    """Return the record if it is of our swarm, run and protocol version; None for any other."""
    try:
        return parse_record(open_envelope(raw, scope))
    except RemoteError:
        return None
