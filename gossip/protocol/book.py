"""Who we have heard of: signed peer records, the newest of each peer, at most 256 of them, and how far to trust each.

A record says where its signer can be dialled, and a signer may name any address: that of a victim, for a whole swarm to
dial. So a record is handed on only when its signer gave it to us over its own connection and has proved its key at one
of its addresses, to us; and in a random order, so that a stranger cannot fill everybody's books at the price of one
hello. Such records are worth keeping: `dump` and `recall` carry them over a restart. When the book is full, the least
trusted goes first, of those the one that was refreshed longest ago.
"""

import base64
import binascii
import json
import random
from collections import OrderedDict
from enum import IntEnum
from typing import Final

from gossip.errors import LocalError, RemoteError
from gossip.ids import PeerId
from gossip.protocol.envelope import Scope, open_envelope
from gossip.protocol.limits import MAX_ENVELOPE_BYTES, MAX_HELLO_RECORDS
from gossip.protocol.statements import PeerRecord, parse_record
from gossip.protocol.topology import Rings

MAX_RECORDS: Final = 256
"""32 times the default degree; at 2.4 KiB a record 600 KiB at most."""

MAX_REACHED: Final = 2 * MAX_RECORDS
"""Peers whose address of the last success is known; more than records, as a peer is reached before its record comes."""

NEAR_DEPTH: Final = 2
"""Records told of each side of a peer's place on each ring: its neighbour there, and who comes after when that one has
left. Half of what a hello may tell at most, so that views stay mixed."""

FORMAT: Final = 1
"""Of `dump`."""

MAX_DUMP_BYTES: Final = 2 * MAX_RECORDS * MAX_ENVELOPE_BYTES
"""The largest dump that is read: base64 makes four bytes of three."""


class Standing(IntEnum):
    """How far a record is trusted."""

    HEARSAY = 0
    """Somebody told us of it."""
    FIRST_HAND = 1
    """Its signer gave it to us. Anybody may sign any address."""
    KEPT = 2
    """It was VERIFIED in an earlier life of this node."""
    VERIFIED = 3
    """Its signer gave it to us, and answered at one of its addresses."""


class Book:
    """The newest signed record of each peer that we know. `changed`: since the last dump."""

    def __init__(self) -> None:
        self.changed = False
        self._records: OrderedDict[PeerId, PeerRecord] = OrderedDict()
        self._first_hand: set[PeerId] = set()
        self._kept: set[PeerId] = set()
        self._reached: OrderedDict[PeerId, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def learn(self, record: PeerRecord, *, first_hand: bool) -> bool:
        """Keep a record unless a newer one of the same peer is known; True when it tells something new."""
        known = self._records.get(record.peer)
        before = self.standing(record.peer)
        if known is not None and (known.epoch, known.version) > (record.epoch, record.version):
            return False
        if first_hand:
            self._first_hand.add(record.peer)
        if known is not None and (known.epoch, known.version) == (record.epoch, record.version):
            self.changed = self.changed or self.standing(record.peer) is not before
            return False
        if known is None or set(known.addresses) != set(record.addresses):  # else it is as far trusted as it was
            if not first_hand:
                self._first_hand.discard(record.peer)
            self._kept.discard(record.peer)
        self._put(record)
        self.changed = True
        return True

    def reached(self, peer: PeerId, address: str) -> None:
        """`peer` has proved its key at this address."""
        self._reached[peer] = address
        self._reached.move_to_end(peer)
        while len(self._reached) > MAX_REACHED:
            self._reached.popitem(last=False)
        self.changed = True

    def forget(self, peer: PeerId) -> None:
        """Drop a peer's record: banned, or unreachable for too long."""
        self.changed = self.changed or peer in self._records
        self._records.pop(peer, None)
        self._reached.pop(peer, None)
        self._first_hand.discard(peer)
        self._kept.discard(peer)

    def standing(self, peer: PeerId) -> Standing:
        """How far the record of a peer is trusted; HEARSAY when there is none."""
        answered = self._reached.get(peer) in self.addresses(peer)
        if peer in self._first_hand:
            return Standing.VERIFIED if answered else Standing.FIRST_HAND
        if peer in self._kept:
            return Standing.VERIFIED if answered else Standing.KEPT
        return Standing.HEARSAY

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where the peer says it can be dialled; empty when unknown."""
        record = self._records.get(peer)
        return record.addresses if record else ()

    def reached_at(self, peer: PeerId) -> str:
        """The address at which the peer last proved its key to us; "" when it has not."""
        return self._reached.get(peer, "")

    def known(self) -> tuple[PeerRecord, ...]:
        """Every record, the longest known first."""
        return tuple(self._records.values())

    def of_standing(self, *standings: Standing) -> list[PeerRecord]:
        """The records of these standings, the longest known first."""
        return [record for peer, record in self._records.items() if self.standing(peer) in standings]

    def sample(self, rng: random.Random, without: PeerId, rings: Rings | None = None) -> tuple[bytes, ...]:
        """Signed records to hand on to `without`, verified ones alone: at most MAX_HELLO_RECORDS. Where there are more,
        those that it belongs beside come first; the others are drawn."""
        others = {record.peer: record.raw for record in self.of_standing(Standing.VERIFIED) if record.peer != without}
        if len(others) <= MAX_HELLO_RECORDS:
            return tuple(rng.sample(list(others.values()), len(others)))
        near = rings.beside(without, others, NEAR_DEPTH)[: MAX_HELLO_RECORDS // 2] if rings else []
        rest = rng.sample([raw for peer, raw in others.items() if peer not in near], MAX_HELLO_RECORDS - len(near))
        return (*(others[peer] for peer in near), *rest)

    def dump(self) -> bytes:
        """What is worth keeping, for `recall` in a later life; nothing is `changed` any more."""
        self.changed = False
        worth = self.of_standing(Standing.VERIFIED, Standing.KEPT)
        records = [base64.b64encode(record.raw).decode("ascii") for record in worth]
        return json.dumps({"format": FORMAT, "records": records}, indent=0).encode("ascii") + b"\n"

    def recall(self, data: bytes, scope: Scope) -> int:
        """Take up a dump; how many records of this swarm and run it held. LocalError when it is none: nothing is taken.

        Signatures are checked again: the file may be anybody's.
        """
        found = [record for raw in _raws_in(data) if (record := _record_in(raw, scope)) is not None]
        for record in found[:MAX_RECORDS]:
            self._put(record)
            self._kept.add(record.peer)
        return len(self)

    def _put(self, record: PeerRecord) -> None:
        self._records[record.peer] = record
        self._records.move_to_end(record.peer)
        if len(self._records) > MAX_RECORDS:
            # Who has come itself is not the first to go: it may be reached yet, and pushes out others like it first.
            newcomer = record.peer if record.peer in self._first_hand else None
            self.forget(min((peer for peer in self._records if peer != newcomer), key=self.standing))


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
    """A record of our swarm and run; None for what is something else: of another run, or of another version."""
    try:
        return parse_record(open_envelope(raw, scope))
    except RemoteError:
        return None
