"""tests/vectors/secure_sums.json is what the code computes, and what other libraries and plain Python compute.

X25519 and ChaCha20-Poly1305 are libsodium's here, ChaCha20 is pycryptodome's, HKDF is two lines of hmac, shares are
polynomials over GF(2^128) as Python's integers, and packing is one large integer.
"""

import hashlib
import hmac
from hashlib import blake2b
from typing import Any

import msgpack
import numpy as np
import pytest
from Crypto.Cipher import ChaCha20
from nacl.bindings import crypto_aead_chacha20poly1305_ietf_decrypt, crypto_scalarmult, crypto_scalarmult_base
from vector_files import cases, meant, of

from gossip.secure_aggregation.masks import MaskStream, masked_bytes, pair_term, public_key
from gossip.secure_aggregation.packing import pack_values, unpack_values
from gossip.secure_aggregation.secret_shares import combine, commitment, open_share
from gossip.secure_aggregation.secure_group import SecureGroup
from gossip.secure_aggregation.survivors import agreement


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def hkdf(shared: bytes, purpose: str, exchange: bytes, pair: tuple[int, int]) -> bytes:
    info = b"p2ptrain-secure-sum-v1\0" + purpose.encode() + b"\0" + exchange + bytes(pair)
    key = hmac.digest(bytes(32), shared, hashlib.sha256)
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def key_stream(seed: bytes, count: int) -> list[int]:
    data = ChaCha20.new(key=seed, nonce=bytes(12)).encrypt(bytes(4 * count))
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def mask_seed(private: bytes, public: bytes, exchange: bytes, me: int, other: int) -> bytes:
    return hkdf(crypto_scalarmult(private, public), "mask", exchange, (min(me, other), max(me, other)))


def packed(values: list[int], bits: int) -> bytes:
    whole = sum((value % (1 << bits)) << (bits * place) for place, value in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


def values_of(count: int, bits: int, first: int = 0) -> list[int]:
    return [(place + first) * 2654435761 % (1 << 32) % (1 << bits) for place in range(count)]


def times(one: int, two: int) -> int:
    """Over GF(2^128), modulo x^128 + x^7 + x^2 + x + 1."""
    product = 0
    for bit in range(128):
        if two >> bit & 1:
            product ^= one
        one <<= 1
        if one >> 128:
            one ^= (1 << 128) | 0x87
    return product


def inverse(value: int) -> int:
    found, power = 1, (1 << 128) - 2
    while power:
        if power & 1:
            found = times(found, value)
        value, power = times(value, value), power >> 1
    return found


def at_zero(points: dict[int, int]) -> int:
    total = 0
    for x, y in points.items():
        above, below = y, 1
        for other in points.keys() - {x}:
            above, below = times(above, other), times(below, other ^ x)
        total ^= times(above, inverse(below))
    return total


@pytest.mark.parametrize("case", cases("secure_sums", "groups"))
def test_groups(case: dict[str, Any]) -> None:
    numbers = {name: case[name] for name in ("round", "count", "bits", "threshold", "owners", "chunk_bytes")}
    group = SecureGroup(members=tuple(case["members"]), **numbers)
    name = digest(msgpack.packb(["secure", *numbers.values(), case["members"]]))
    assert group.name == name == case["exchange"]
    assert group.packed_bytes == case["packed_bytes"]
    parts = [group.values_of(member) for member in group.members]
    assert [[part.start, max(part.start, part.stop)] for part in parts] == case["values"]


@pytest.mark.parametrize("case", cases("secure_sums", "packed"))
def test_packing(case: dict[str, Any]) -> None:
    bits, values = case["bits"], values_of(11, case["bits"])
    assert pack_values(np.array(values, np.uint32), bits) == packed(values, bits) == case["packed"]
    assert unpack_values(case["packed"], 11, bits).tolist() == values


@pytest.mark.parametrize("case", cases("secure_sums", "masks"))
def test_masks(case: dict[str, Any]) -> None:
    start, count = case["start"], len(case["values"])
    assert MaskStream(case["seed"], start).draw(count).tolist() == case["values"]
    assert key_stream(case["seed"], start + count)[start:] == case["values"]


def test_commitments() -> None:
    for case in map(meant, of("secure_sums")["commitments"]):
        plain = digest(b"p2ptrain-secure-seed-v1\0" + case["secret"])
        assert commitment(case["secret"]) == plain == case["commitment"]


@pytest.mark.parametrize("case", cases("secure_sums", "pairs"))
def test_pairs(case: dict[str, Any]) -> None:
    names = {name: case[name] for name in ("exchange", "me", "other")}
    term = pair_term(case["private"], case["public"], **names)
    plain = mask_seed(case["private"], case["public"], **names)
    assert term.seed == plain == case["mask_seed"]
    assert term.sign == (1 if case["other"] < case["me"] else -1) == case["sign"]
    assert public_key(case["private"]) == crypto_scalarmult_base(case["private"])


@pytest.mark.parametrize("case", cases("secure_sums", "shares"))
def test_shares(case: dict[str, Any]) -> None:
    threshold, shares = case["threshold"], case["shares"]
    last = range(len(shares) - threshold, len(shares))
    assert combine({place: shares[place] for place in last}) == case["secret"]
    for half in (slice(0, 16), slice(16, 32)):
        points = {place + 1: int.from_bytes(shares[place][half], "big") for place in last}
        assert at_zero(points).to_bytes(16, "big") == case["secret"][half]
        points.popitem()
        assert at_zero(points).to_bytes(16, "big") != case["secret"][half]


@pytest.mark.parametrize("case", cases("secure_sums", "sealed"))
def test_sealed_shares(case: dict[str, Any]) -> None:
    names = {name: case[name] for name in ("exchange", "dealer", "holder")}
    shared = crypto_scalarmult(case["private"], case["public"])
    assert case["key"] == hkdf(shared, f"share {case['secret']}", case["exchange"], (case["dealer"], case["holder"]))
    assert open_share(case["sealed"], case["key"], **names) == case["share"]
    bound = case["exchange"] + bytes((case["dealer"], case["holder"]))
    assert crypto_aead_chacha20poly1305_ietf_decrypt(case["sealed"], bound, bytes(12), case["key"]) == case["share"]
    assert open_share(case["sealed"], case["share"], **names) is None


def test_agreements() -> None:
    for case in map(meant, of("secure_sums")["agreements"]):
        vectors = dict(zip(case["survivors"], case["vectors"], strict=True))
        plain = digest(msgpack.packb(["agreed", case["exchange"], case["survivors"], case["vectors"]]))
        assert agreement(case["exchange"], frozenset(vectors), vectors) == plain == case["agreed"]


@pytest.mark.parametrize("case", cases("secure_sums", "sums"))
def test_sums(case: dict[str, Any]) -> None:
    """The masked vectors by plain Python, and the sum of three of them, which is that of the values."""
    bits, exchange, count = case["bits"], case["exchange"], 50
    publics = [crypto_scalarmult_base(each) for each in case["private"]]
    for me, private in enumerate(case["private"]):
        total = [
            a + b for a, b in zip(values_of(count, bits, 100 * me), key_stream(case["seeds"][me], count), strict=True)
        ]
        for other in {0, 1, 2, 3} - {me}:
            mask = key_stream(mask_seed(private, publics[other], exchange, me, other), count)
            total = [a + b if other < me else a - b for a, b in zip(total, mask, strict=True)]
        assert packed(total, bits) == case["masked"][me]
    first, last = case["part"]
    summed = [sum(values_of(count, bits, 100 * me)[place] for me in range(3)) for place in range(first, last)]
    assert packed(summed, bits) == case["sum"]
    assert masked_bytes(np.array(values_of(count, bits), np.uint32), [], bits) == packed(values_of(count, bits), bits)
