"""Vouchers: a relay's signed statement that a peer has a reservation with it (libp2p's specs, relay/circuit-v2.md).

It is a signed envelope (RFC 0002 there): the signer, the type of the payload, the payload, and a signature over domain,
type and payload, each with its length. Nobody has to be shown one; the peer that reserves checks that its relay gave it
a true one.
"""

from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity, verify, verify_key_of
from gossip.core.ids import PeerId
from gossip.core.protobuf import ProtobufFields, data_field, number_field, varint
from gossip.reachability.circuit import peer_bytes

VOUCHER_DOMAIN: Final = "libp2p-relay-rsvp"
"""The domain of the signature: it is valid for nothing else."""

_VOUCHER_TYPE: Final = bytes([0x03, 0x02])
"""The multicodec libp2p-relay-rsvp, as go and js write it: two bytes, not a varint."""

_ED25519: Final = 1
"""The key's type in libp2p's protobuf."""


def seal_voucher(relay: Identity, peer: PeerId, expire: int) -> bytes:
    """Return a voucher that `relay` will relay for `peer` until `expire` (Unix seconds)."""
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
    """Raise RemoteError unless `relay` has signed exactly that for `peer`; also for any other key than Ed25519."""
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
