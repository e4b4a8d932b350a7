"""Messages about circuits: libp2p's circuit relay v2 (its specs, relay/circuit-v2.md), parsed and written.

A message is protobuf after its length (a varint). RESERVE or CONNECT goes to a relay, CONNECT from it to the far end of
a circuit; each is answered by a STATUS. The two protocols number their fields differently, so one `CircuitMessage`
stands for both. relay.py and its callers decide which message is allowed where.
"""

import ipaddress
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

import base58

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.protobuf import ProtobufFields, data_field, number_field, varint
from gossip.core.wire import malformed

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
"""The protocol towards a relay: for a reservation, or a circuit."""

STOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/stop"
"""The protocol from a relay to the far end of a circuit."""

MAX_MESSAGE_BYTES: Final = 4096
"""Bytes of one message, the bound of go and rust; ours have under 500."""

MAX_SIZE_BYTES: Final = 2
"""Bytes of the length before it: two digits of seven bits go to 16,383."""

MAX_RELAY_ADDRESSES: Final = 8
"""Addresses that a relay names in a reservation: more than a record may have."""

_IDENTITY, _SHA256 = 0x00, 0x12
_DIGEST_BYTES: Final = {_IDENTITY: range(1, 43), _SHA256: range(32, 33)}
"""Sizes of what a peer id holds (libp2p's specs, peer-ids): a key of up to 42 bytes as it is, a longer one by
SHA-256."""

_CODES: Final = {"ip4": 4, "ip6": 41, "tcp": 6, "dns": 53, "dns4": 54, "dns6": 55, "p2p": 421}
"""Codes of the parts that an address of ours has, from the table of multiaddr."""


class CircuitKind(StrEnum):
    """The type of a message."""

    RESERVE = "reserve"
    CONNECT = "connect"
    STATUS = "status"


class CircuitStatus(IntEnum):
    """The result of a request."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401

    @property
    def label(self) -> str:
        """The status as text, for people and for metrics."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A relay's grant. `expire`: Unix seconds. `addresses`: multiaddrs of the relay in binary. `voucher`: see
    vouchers.py."""

    expire: int
    addresses: tuple[bytes, ...] = ()
    voucher: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class CircuitLimit:
    """The relay's limit for each circuit: `duration_s` in seconds, `data_bytes` each way; None (or 0 on the wire): no
    limit."""

    duration_s: int | None = None
    data_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CircuitMessage:
    """One message. `peer`: the other end, in every CONNECT. `status`: in every STATUS; a CircuitStatus, or a newer
    number."""

    kind: CircuitKind
    peer: PeerId | None = None
    reservation: Reservation | None = None
    limit: CircuitLimit | None = None
    status: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """How a protocol numbers its kinds and fields; type and peer are 1 and 2 in both."""

    kinds: tuple[CircuitKind, ...]
    reservation: int | None
    limit: int
    status: int


_TYPE, _PEER = 1, 2
_HOP: Final = _Shape(
    kinds=(CircuitKind.RESERVE, CircuitKind.CONNECT, CircuitKind.STATUS), reservation=3, limit=4, status=5
)
_STOP: Final = _Shape(kinds=(CircuitKind.CONNECT, CircuitKind.STATUS), reservation=None, limit=3, status=4)


def encode_hop(message: CircuitMessage) -> bytes:
    """Return a message to a relay, or from it; without its length."""
    return _encode(_HOP, message)


def parse_hop(raw: bytes) -> CircuitMessage:
    """Parse any bytes. Raises RemoteError: UNKNOWN_KIND for an unknown kind, else MALFORMED."""
    return _parse(_HOP, raw)


def encode_stop(message: CircuitMessage) -> bytes:
    """Return a message to a far end, or from it; without its length."""
    return _encode(_STOP, message)


def parse_stop(raw: bytes) -> CircuitMessage:
    """Parse any bytes. Raises RemoteError as `parse_hop` does."""
    return _parse(_STOP, raw)


def delimited(message: bytes) -> bytes:
    """Return the message with its length before it."""
    assert len(message) <= MAX_MESSAGE_BYTES
    return varint(len(message)) + message


def status_for(error: RemoteError) -> CircuitStatus:
    """Return the status that answers a message which could not be read."""
    unknown = error.reason is Reason.UNKNOWN_KIND
    return CircuitStatus.UNEXPECTED_MESSAGE if unknown else CircuitStatus.MALFORMED_MESSAGE


def words_for(status: int | None) -> str:
    """Return the status as text, also one that a newer peer has."""
    return CircuitStatus(status).label if status in set(CircuitStatus) else f"status {status}"


def peer_bytes(peer: PeerId) -> bytes:
    """Return a peer id in binary: a multihash."""
    raw: bytes = base58.b58decode(peer)
    return raw


def is_peer(peer: PeerId) -> bool:
    """Return whether the text is a peer id that may be used in a message."""
    try:
        return parse_peer_bytes(peer_bytes(peer)) == peer
    except (ValueError, RemoteError):  # no base58, no multihash
        return False


def parse_peer_bytes(raw: bytes) -> PeerId:
    """Parse a peer id from the wire. Raises RemoteError(MALFORMED)."""
    kind, size = raw[:2] if len(raw) > 2 else (-1, 0)
    if size != len(raw) - 2 or size not in _DIGEST_BYTES.get(kind, ()):
        raise malformed("a peer id is the multihash of a key")
    return PeerId(base58.b58encode(raw).decode("ascii"))


def binary_address(address: str) -> bytes | None:
    """Return a multiaddr in binary; None where it has another form than those that a node listens at."""
    parts = address.split("/")[1:]
    names, values = parts[::2], parts[1::2]
    if not parts or len(names) != len(values) or not all(name in _CODES for name in names):
        return None
    try:
        return b"".join(varint(_CODES[name]) + _binary(name, value) for name, value in zip(names, values, strict=True))
    except (ValueError, OverflowError):  # no number, no port, no IP address, no base58
        return None


def _binary(name: str, value: str) -> bytes:
    if name == "ip4":
        return ipaddress.IPv4Address(value).packed
    if name == "ip6":
        return ipaddress.IPv6Address(value).packed
    if name == "tcp":
        return int(value).to_bytes(2, "big")
    raw = peer_bytes(PeerId(value)) if name == "p2p" else value.encode("ascii")
    return varint(len(raw)) + raw


def _encode(shape: _Shape, message: CircuitMessage) -> bytes:
    parts = [number_field(_TYPE, shape.kinds.index(message.kind))]
    if message.peer is not None:
        parts.append(data_field(_PEER, data_field(1, peer_bytes(message.peer))))
    if message.reservation is not None and shape.reservation is not None:
        parts.append(data_field(shape.reservation, _encode_reservation(message.reservation)))
    if message.limit is not None:
        limit = number_field(1, message.limit.duration_s) + number_field(2, message.limit.data_bytes)
        parts.append(data_field(shape.limit, limit))
    return b"".join((*parts, number_field(shape.status, message.status)))


def _encode_reservation(it: Reservation) -> bytes:
    addresses = b"".join(data_field(2, address) for address in it.addresses[:MAX_RELAY_ADDRESSES])
    return number_field(1, it.expire) + addresses + data_field(3, it.voucher)


def _parse(shape: _Shape, raw: bytes) -> CircuitMessage:
    fields = ProtobufFields(raw)
    number = fields.number(_TYPE)
    if number is None:
        raise malformed("a message without a type")
    if number >= len(shape.kinds):
        raise RemoteError(Reason.UNKNOWN_KIND, f"a message of type {number}")
    kind = shape.kinds[number]
    peer = _parse_peer(fields.within(_PEER)) if kind is CircuitKind.CONNECT else None
    status = fields.number(shape.status)
    if kind is CircuitKind.STATUS and status is None:
        raise malformed("a status that says nothing")
    reservation = None if shape.reservation is None else _parse_reservation(fields.within(shape.reservation))
    limit = _parse_limit(fields.within(shape.limit))
    return CircuitMessage(kind=kind, peer=peer, reservation=reservation, limit=limit, status=status)


def _parse_peer(fields: ProtobufFields | None) -> PeerId:
    """The addresses beside it are passed over: nobody is dialled on another's word."""
    if fields is None:
        raise malformed("a circuit with nobody")
    return parse_peer_bytes(fields.data(1) or b"")


def _parse_reservation(fields: ProtobufFields | None) -> Reservation | None:
    if fields is None:
        return None
    addresses = tuple(fields.every(2)[:MAX_RELAY_ADDRESSES])
    return Reservation(expire=fields.number(1) or 0, addresses=addresses, voucher=fields.data(3))


def _parse_limit(fields: ProtobufFields | None) -> CircuitLimit | None:
    if fields is None:
        return None
    return CircuitLimit(duration_s=fields.number(1) or None, data_bytes=fields.number(2) or None)
