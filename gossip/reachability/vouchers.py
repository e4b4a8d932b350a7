"""Vouchers: a relay's signed word that a peer has a reservation with it (libp2p's specs, relay/circuit-v2.md).

A signed envelope (RFC 0002 there): who signed, what kind of thing, the thing, and a signature over domain, kind and
thing, each with its length. Nobody has to be shown one; who reserves looks that its relay gave it a true one.
"""

from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity, verify, verify_key_of
from gossip.core.ids import PeerId
from gossip.core.protobuf import ProtobufFields, data_field, number_field, varint
from gossip.reachability.circuit import peer_bytes

VOUCHER_DOMAIN: Final = "libp2p-relay-rsvp"
"""What the signature is good for, and for nothing else."""

_VOUCHER_TYPE: Final = bytes([0x03, 0x02])
"""The multicodec libp2p-relay-rsvp, as go and js write it: two bytes, not a varint."""

_ED25519: Final = 1
"""The key's type in libp2p's protobuf."""


def seal_voucher(relay: Identity, peer: PeerId, expire: int) -> bytes:
    """`relay` will relay for `peer` until `expire` (Unix seconds)."""
    payload = _payload(relay.peer_id, peer, expire)
    return b"".join(
        (
            data_field(1, _public_key(relay.public_key)),
            data_field(2, _VOUCHER_TYPE),
            data_field(3, payload),
            data_field(5, relay.sign(_signed(payload))),
        )
    )


def check_voucher(raw: bytes, relay: PeerId, peer: PeerId, expire: int) -> None:
    """Raises RemoteError unless `relay` has signed just that for `peer`; of any other key than Ed25519 as well."""
    key = verify_key_of(relay)
    fields = ProtobufFields(raw)
    payload = fields.data(3) or b""
    if fields.data(1) != _public_key(key) or fields.data(2) != _VOUCHER_TYPE:
        raise RemoteError(Reason.FORGED, "a voucher that is not the relay's")
    if payload != _payload(relay, peer, expire):
        raise RemoteError(Reason.FORGED, "a voucher for another reservation")
    verify(key, _signed(payload), fields.data(5) or b"")


def _payload(relay: PeerId, peer: PeerId, expire: int) -> bytes:
    return data_field(1, peer_bytes(relay)) + data_field(2, peer_bytes(peer)) + number_field(3, expire)


def _public_key(key: bytes) -> bytes:
    return number_field(1, _ED25519) + data_field(2, key)


def _signed(payload: bytes) -> bytes:
    parts = (VOUCHER_DOMAIN.encode("ascii"), _VOUCHER_TYPE, payload)
    return b"".join(varint(len(part)) + part for part in parts)
