"""What a swarm is: a manifest that its admins signed, and newer versions of it.

    manifest = [fields: bin, signatures: [[key: bin(32), signature: bin(64)]]]

A manifest is named by the digest of its fields. The signatures are outside the fields, so that admins can sign one
after another. The chain checks whether enough of them did (manifest_chain.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gossip.core.digests import NO_DIGEST, SWARM_ID_BYTES, digest_of
from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import KEY_BYTES, SIGNATURE_BYTES, peer_id_of, verify, verify_key_of
from gossip.core.ids import Digest, PeerId, SwarmId
from gossip.core.limits import MAX_BLOB_BYTES
from gossip.core.membership_limits import (
    MAX_ADDRESS_CHARS,
    MAX_ADMINS,
    MAX_ALLOWED,
    MAX_APP_CHARS,
    MAX_BOOTSTRAP,
    MAX_MANIFEST_BYTES,
    MAX_NAME_CHARS,
    MAX_SETTINGS_BYTES,
    MAX_SIGNATURES,
    MAX_VERSION,
)
from gossip.core.wire import Fields, malformed, pack
from gossip.membership.settings import Settings, pack_settings, parse_settings
from gossip.membership.signed import NONCE_BYTES, SignedKind, Signer, domain, keys_of, ours, sorted_keys, unpack_exact

PSK_BYTES: Final = 32
FINGERPRINT_BYTES: Final = 16
_FOUNDING: Final = b"p2ptrain-swarm-1\x00"
_PSK: Final = b"p2ptrain-psk-1\x00"
_MAX_POLICY_CHARS: Final = 16


class Policy(StrEnum):
    """Who may be a member."""

    OPEN = "open"
    """Everybody who is not revoked."""
    INVITE_ONLY = "invite_only"
    """Peers that show an invite, or were appointed."""
    ALLOW = "allow"
    """Peers that are on the list, or were appointed; an invite alone is not enough."""


@dataclass(frozen=True, kw_only=True)
class ManifestBody:
    """What admins decide: everything in a manifest except its place in the chain.

    `admins`: public keys, of which `threshold` sign the next version. `min_protocol`, `min_app`: the least versions
    that a node needs. `max_payload_bytes`, `max_members` (0: no limit): of those that joined with a certificate.
    `settings`: what is trained and how, for the runtime.
    """

    name: str
    admins: tuple[bytes, ...]
    threshold: int = 1
    run: str = ""
    policy: Policy = Policy.INVITE_ONLY
    allow: frozenset[PeerId] = frozenset()
    bootstrap: tuple[str, ...] = ()
    min_protocol: int = 0
    min_app: str = ""
    max_payload_bytes: int = MAX_BLOB_BYTES
    max_members: int = 0
    settings: Settings = field(default_factory=dict)
    psk_fingerprint: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version. `applies_at`: the round from which it holds. `signers`: the keys that signed it, of admins or
    not."""

    swarm: SwarmId
    version: int
    previous: Digest
    nonce: bytes
    applies_at: int
    terms: ManifestBody
    digest: Digest
    fields: bytes = field(repr=False)
    signatures: Mapping[bytes, bytes] = field(repr=False)

    @property
    def signers(self) -> frozenset[bytes]:
        """The public keys of its signatures."""
        return frozenset(self.signatures)

    @property
    def raw(self) -> bytes:
        """The wire form."""
        return pack((self.fields, sorted(self.signatures.items())))

    def signed_by(self, *signers: Signer) -> "Manifest":
        """Return the manifest with more signatures."""
        added = {each.public_key: each.sign(domain(SignedKind.MANIFEST) + self.fields) for each in signers}
        return replace(self, signatures={**self.signatures, **added})

    def with_signatures_of(self, other: "Manifest") -> "Manifest":
        """The signatures of two copies together. Raises LocalError when they are not of one manifest."""
        if other.digest != self.digest:
            raise LocalError("these are two manifests, not two copies of one")
        return replace(self, signatures={**self.signatures, **other.signatures})


def create_manifest(terms: ManifestBody, nonce: bytes) -> Manifest:
    """Return the first version, unsigned; `nonce`: 16 random bytes, so that two swarms of one name differ. Raises
    LocalError."""
    return _make(terms, version=1, previous=NO_DIGEST, nonce=nonce, applies_at=0, swarm=None)


def next_version(last: Manifest, terms: ManifestBody, *, applies_at: int, version: int | None = None) -> Manifest:
    """Return the next version, unsigned; the admins of `last` have to sign it. Raises LocalError.

    `version`: a number beyond the next heals a fork, since a gap does not depend on a particular version before it.
    """
    number = last.version + 1 if version is None else version
    if number <= last.version:
        raise LocalError(f"version {number} does not follow version {last.version}")
    return _make(terms, version=number, previous=last.digest, nonce=b"", applies_at=applies_at, swarm=last.swarm)


def parse_manifest(raw: bytes) -> Manifest:
    """Parse a manifest and check every signature. Raises RemoteError(OVERSIZE | MALFORMED | FORGED)."""
    outer = unpack_exact(raw, MAX_MANIFEST_BYTES)
    packed, signatures = outer.binary(MAX_MANIFEST_BYTES), outer.array(MAX_SIGNATURES)
    outer.end()
    manifest = _parse_fields(packed)
    pairs = [_signature(signatures.array(2)) for _ in range(signatures.left)]
    if pairs != sorted(dict(pairs).items()):
        raise malformed("signatures rise by their keys, none twice")
    for key, signature in pairs:
        verify(key, domain(SignedKind.MANIFEST) + packed, signature)
    return replace(manifest, signatures=dict(pairs))


def swarm_id_of(terms: ManifestBody, nonce: bytes) -> SwarmId:
    """Return a swarm's id: 16 bytes of a hash over its founders, their threshold, its name and a nonce."""
    founders = pack((b"".join(terms.admins), terms.threshold, terms.name, nonce))
    return SwarmId(digest_of(_FOUNDING + founders)[:SWARM_ID_BYTES])


def psk_fingerprint(psk: bytes) -> bytes:
    """Return 16 bytes that name a pre-shared key without revealing it: the key itself is 32 random bytes."""
    return digest_of(_PSK + psk)[:FINGERPRINT_BYTES]


def _make(
    terms: ManifestBody, *, version: int, previous: Digest, nonce: bytes, applies_at: int, swarm: SwarmId | None
) -> Manifest:
    sorted_terms = replace(terms, admins=tuple(sorted(set(terms.admins))))
    try:
        fields = (
            swarm_id_of(sorted_terms, nonce) if swarm is None else swarm,
            version,
            previous,
            nonce,
            applies_at,
            *_pack_terms(sorted_terms),
        )
    except RemoteError as error:
        raise LocalError(f"a manifest cannot say this: {error.detail}") from error
    return ours(parse_manifest, pack((pack(fields), ())))


def _pack_terms(terms: ManifestBody) -> tuple[object, ...]:
    return (
        terms.name,
        b"".join(terms.admins),
        terms.threshold,
        terms.run,
        terms.policy.value,
        b"".join(sorted_keys(terms.allow)),
        terms.bootstrap,
        terms.min_protocol,
        terms.min_app,
        terms.max_payload_bytes,
        terms.max_members,
        pack_settings(terms.settings),
        terms.psk_fingerprint or b"",
    )


def _signature(pair: Fields) -> tuple[bytes, bytes]:
    key, signature = pair.exactly(KEY_BYTES), pair.exactly(SIGNATURE_BYTES)
    pair.end()
    return key, signature


def _parse_fields(packed: bytes) -> Manifest:
    fields = unpack_exact(packed, MAX_MANIFEST_BYTES)
    swarm, version = SwarmId(fields.exactly(SWARM_ID_BYTES)), fields.integer(MAX_VERSION)
    previous, nonce, applies_at = fields.digest(), fields.binary(NONCE_BYTES), fields.integer()
    manifest = Manifest(
        swarm=swarm,
        version=version,
        previous=previous,
        nonce=nonce,
        applies_at=applies_at,
        terms=_parse_terms(fields),
        digest=digest_of(packed),
        fields=packed,
        signatures={},
    )
    fields.end()
    _check_place(manifest)
    return manifest


def _check_place(manifest: Manifest) -> None:
    first = manifest.version == 1
    if manifest.version == 0 or first != (manifest.previous == NO_DIGEST) or first != bool(manifest.nonce):
        raise malformed("a first version, and no other, has a nonce and nothing before it")
    if first and (len(manifest.nonce) != NONCE_BYTES or manifest.applies_at):
        raise malformed("a first version has a whole nonce and applies at once")
    if first and manifest.swarm != swarm_id_of(manifest.terms, manifest.nonce):
        raise malformed("the swarm's id is not its founders'")


def _parse_terms(fields: Fields) -> ManifestBody:
    name, admins = fields.text(MAX_NAME_CHARS), keys_of(fields.binary(MAX_ADMINS * KEY_BYTES), MAX_ADMINS)
    threshold = fields.integer(MAX_ADMINS)
    if not name or not 1 <= threshold <= len(admins):
        raise malformed("a swarm has a name, admins, and as many of them sign as there are at most")
    run, policy = fields.text(MAX_NAME_CHARS), fields.text(_MAX_POLICY_CHARS)
    if policy not in {each.value for each in Policy}:
        raise malformed(f"no policy {policy}")
    allow = frozenset(_peers(fields.binary(MAX_ALLOWED * KEY_BYTES)))
    if allow and policy != Policy.ALLOW:
        raise malformed("a list of peers without the policy to keep to it")
    places = fields.array(MAX_BOOTSTRAP)
    return ManifestBody(
        name=name,
        admins=admins,
        threshold=threshold,
        run=run,
        policy=Policy(policy),
        allow=allow,
        bootstrap=tuple(_address(places) for _ in range(places.left)),
        min_protocol=fields.integer(),
        min_app=fields.text(MAX_APP_CHARS),
        max_payload_bytes=fields.integer(MAX_BLOB_BYTES),
        max_members=fields.integer(),
        settings=parse_settings(fields.binary(MAX_SETTINGS_BYTES)),
        psk_fingerprint=_fingerprint(fields.binary(FINGERPRINT_BYTES)),
    )


def _peers(packed: bytes) -> Iterable[PeerId]:
    return map(peer_id_of, keys_of(packed, MAX_ALLOWED))


def _address(places: Fields) -> str:
    address = places.text(MAX_ADDRESS_CHARS)
    host, _, peer = address.rpartition("/p2p/")
    if not host.startswith("/"):
        raise malformed("a bootstrap address is a multiaddr that names its peer")
    verify_key_of(PeerId(peer))
    return address


def _fingerprint(create_manifest: bytes) -> bytes | None:
    if len(create_manifest) not in (0, FINGERPRINT_BYTES):
        raise malformed("a fingerprint is whole, or none")
    return create_manifest or None
