"""The vectors of secure sums for make_vectors.py: statements, keys, masks, shares and packed sums."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from Crypto.Protocol import SecretSharing
from make_vectors_parts import ALICE, BOB, CAROL

from gossip.core.digests import digest_of
from gossip.core.envelope import Statement
from gossip.core.identity import Identity
from gossip.core.ids import Digest
from gossip.core.secure_statements import (
    AgreedBody,
    KeysBody,
    OpenedBody,
    SecureBody,
    SecureStage,
    SharesBody,
    SummedBody,
    ViewBody,
    secure_statement,
)
from gossip.secure_aggregation.masks import (
    MaskStream,
    MaskTerm,
    masked_bytes,
    pair_term,
    public_key,
    shared_secret,
    unmasked_sum,
)
from gossip.secure_aggregation.packing import pack_values
from gossip.secure_aggregation.secret_shares import Secret, commitment, seal_share, share_key, split
from gossip.secure_aggregation.secure_group import SecureGroup
from gossip.secure_aggregation.survivors import agreement

DAVE = Identity(bytes([4]) * 32)
EXCHANGE = digest_of(b"a secure sum")
PRIVATE = [bytes([number]) * 32 for number in range(1, 5)]
"""X25519 keys of four members."""


def statements() -> Iterator[tuple[Statement, dict[str, Any]]]:
    """One statement of each stage, with the fields of its body as they stand on the wire."""
    holders, view = frozenset({0, 2}), {1: digest_of(b"one"), 9: digest_of(b"nine")}
    opened = {0: bytes([10]) * 32, 3: bytes([13]) * 32}
    channel, mask = map(public_key, PRIVATE[:2])
    bodies: list[tuple[SecureBody, dict[str, Any]]] = [
        (
            KeysBody(channel=channel, mask=mask, seed=commitment(PRIVATE[2])),
            {"channel": channel, "mask": mask, "seed": commitment(PRIVATE[2])},
        ),
        (
            SharesBody(holders=holders, sealed=bytes(range(192))),
            {"holders": _bits(holders), "sealed": bytes(range(192))},
        ),
        (ViewBody(view=view), {"places": _bits(view), "digests": view[1] + view[9]}),
        (ViewBody(view=view), {"places": _bits(view), "digests": view[1] + view[9]}),
        (AgreedBody(survivors=holders), {"places": _bits(holders)}),
        (
            OpenedBody(seed=PRIVATE[2], seeds=frozenset({0}), keys=frozenset({3}), share_keys=opened),
            {"seed": PRIVATE[2], "seeds": _bits({0}), "keys": _bits({3}), "share_keys": opened[0] + opened[3]},
        ),
        (SummedBody(part=63), {"part": 63}),
    ]
    for stage, (body, fields) in zip(SecureStage, bodies, strict=True):
        named = {} if stage in (SecureStage.KEYS, SecureStage.HELD) else {"payload": digest_of(b"what it is about")}
        yield secure_statement(exchange=EXCHANGE, round=7, stage=stage, body=body, **named), fields


def _bits(places: Any) -> bytes:
    return sum(1 << place for place in places).to_bytes(8, "little")


def secure_sums() -> dict[str, object]:
    """All that two implementations must compute alike. Values are those of `values`."""
    return {
        "groups": [_group(10, 12), _group(1000, 32, threshold=3, owners=2, chunk_bytes=96)],
        "packed": [{"bits": bits, "packed": pack_values(values(11, bits), bits)} for bits in (8, 12, 13, 20, 32)],
        "masks": [{"seed": PRIVATE[0], "start": start, "values": _draw(start)} for start in (0, 16, 1 << 20)],
        "commitments": [{"secret": each, "commitment": commitment(each)} for each in PRIVATE[:2]],
        "pairs": [_pair(me, other) for me, other in ((0, 1), (1, 0), (2, 3))],
        "shares": [_shares(3, 4), _shares(11, 16)],
        "sealed": [_sealed(secret) for secret in Secret],
        "agreements": [_agreement()],
        "sums": [_sum(bits) for bits in (12, 32)],
    }


def values(count: int, bits: int, first: int = 0) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Values without randomness: i times 2654435761, modulo 2^32, cut to the bits."""
    drawn = [(place + first) * 2654435761 % (1 << 32) % (1 << bits) for place in range(count)]
    return np.array(drawn, np.uint32)


def _group(count: int, bits: int, **sizes: int) -> dict[str, object]:
    members = (BOB.peer_id, ALICE.peer_id, CAROL.peer_id, DAVE.peer_id)
    group = SecureGroup(members=members, round=7, count=count, bits=bits, **sizes)
    parts = [group.values_of(member) for member in members]
    return {
        "members": members,
        "round": 7,
        "count": count,
        "bits": bits,
        "threshold": group.threshold,
        "owners": group.owners,
        "chunk_bytes": group.chunk_bytes,
        "exchange": group.name,
        "packed_bytes": group.packed_bytes,
        "values": [[part.start, max(part.start, part.stop)] for part in parts],
    }


def _draw(start: int) -> list[int]:
    return [int(each) for each in MaskStream(PRIVATE[0], start).draw(20)]


def _pair(me: int, other: int) -> dict[str, object]:
    public = public_key(PRIVATE[other])
    term = pair_term(PRIVATE[me], public, exchange=EXCHANGE, me=me, other=other)
    return {
        "private": PRIVATE[me],
        "public": public,
        "exchange": EXCHANGE,
        "me": me,
        "other": other,
        "mask_seed": term.seed,
        "sign": term.sign,
    }


def _shares(threshold: int, holders: int) -> dict[str, object]:
    drawn = iter(range(1 << 20))
    drawing, SecretSharing.rng = SecretSharing.rng, lambda size: digest_of(b"%d" % next(drawn))[:size]
    try:
        return {"secret": PRIVATE[1], "threshold": threshold, "shares": split(PRIVATE[1], threshold, holders)}
    finally:
        SecretSharing.rng = drawing


def _sealed(secret: Secret) -> dict[str, object]:
    shared = shared_secret(PRIVATE[0], public_key(PRIVATE[3]))
    key = share_key(shared, secret, exchange=EXCHANGE, dealer=0, holder=3)
    sealed = seal_share(PRIVATE[2], key, exchange=EXCHANGE, dealer=0, holder=3)
    return {
        "private": PRIVATE[0],
        "public": public_key(PRIVATE[3]),
        "exchange": EXCHANGE,
        "secret": secret.value,
        "dealer": 0,
        "holder": 3,
        "key": key,
        "share": PRIVATE[2],
        "sealed": sealed,
    }


def _agreement() -> dict[str, object]:
    vectors = {place: Digest(digest_of(b"%d" % place)) for place in (0, 2, 3)}
    return {
        "exchange": EXCHANGE,
        "survivors": [0, 2, 3],
        "vectors": list(vectors.values()),
        "agreed": agreement(EXCHANGE, frozenset(vectors), vectors),
    }


def _sum(bits: int) -> dict[str, object]:
    """Four members mask for each other, the last leaves, and the sum of the others' values 16 to 39 is opened."""
    count, part = 50, slice(16, 40)
    publics, seeds = [public_key(each) for each in PRIVATE], [digest_of(each) for each in PRIVATE]
    masked = []
    for me in range(4):
        terms = [MaskTerm(seeds[me], 1)]
        for other in range(4):
            if other != me:
                terms.append(pair_term(PRIVATE[me], publics[other], exchange=EXCHANGE, me=me, other=other))
        masked.append(masked_bytes(values(count, bits, 100 * me), terms, bits))
    away = [MaskTerm(seeds[me], -1) for me in range(3)]
    away += [pair_term(PRIVATE[3], publics[me], exchange=EXCHANGE, me=3, other=me) for me in range(3)]
    spans = [each[part.start * bits // 8 : part.stop * bits // 8] for each in masked[:3]]
    return {
        "bits": bits,
        "exchange": EXCHANGE,
        "private": PRIVATE,
        "seeds": seeds,
        "masked": masked,
        "part": [part.start, part.stop],
        "sum": unmasked_sum(spans, away, count=part.stop - part.start, bits=bits, start=part.start),
    }
