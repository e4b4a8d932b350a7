"""docs/protocol.md, read once more: a second implementation of its formats that shares no line with gossip/.

Only msgpack, PyNaCl, hashlib, base58 and blake3. What it refuses it refuses with the page's reason. It is written to be
compared with the page, not to be fast, and decodes nothing that the page does not have.
"""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import base58
import msgpack
from blake3 import blake3
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

ENVELOPE, BODY, HELLO, REQUEST, ANSWER = 8192, 6144, 131_072, 131_072, 2_097_152
CHUNK, BLOB = 1 << 20, 1 << 34
DOMAIN = b"p2ptrain-envelope-v1\0"
NONE = bytes(32)
REASONS = (
    *("malformed", "oversize", "forged", "wrong_swarm", "wrong_run", "unknown_kind", "replayed", "equivocation"),
    *("stale", "wrong_shape", "wrong_model", "unknown_codec", "nonfinite", "digest_mismatch", "timeout"),
    *("unavailable", "banned", "protocol", "flooded", "contradicted"),
    *("no_member", "expired", "revoked", "used_up", "wrong_role"),
)

Check = Callable[[Any], None]


class Bad(Exception):
    """Refused, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def need(holds: bool, reason: str = "malformed") -> None:
    if not holds:
        raise Bad(reason)


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def peer_id(key: bytes) -> str:
    return base58.b58encode(bytes.fromhex("002408011220") + key).decode()


def read_peer_id(text: str) -> bytes:
    try:
        raw = base58.b58decode(text)
    except ValueError:
        raise Bad("malformed") from None
    need(len(raw) == 38 and peer_id(raw[6:]) == text)
    return raw[6:]


def ring_place(swarm: bytes, run: bytes, ring: int, peer: str) -> bytes:
    return digest(b"p2ptrain-ring-v1\0" + swarm + run + bytes([ring]) + peer.encode())[:8]


def place(swarm: bytes, run: bytes, peer: str) -> bytes:
    return digest(b"p2ptrain-kad-v1\0" + swarm + run + peer.encode())


# -- shapes


def array(data: bytes, limit: int, items: int = 64) -> list[Any]:
    need(len(data) <= limit, "oversize")
    try:
        value = msgpack.unpackb(data, max_array_len=items, max_map_len=0, max_ext_len=0)
    except Exception:
        raise Bad("malformed") from None
    need(type(value) is list)
    return value


def uint(most: int = 2**53 - 1) -> Check:
    return lambda value: need(type(value) is int and 0 <= value <= most)


def exactly(size: int) -> Check:
    return lambda value: need(type(value) is bytes and len(value) == size)


def up_to(kind: type, most: int) -> Check:
    def check(value: Any) -> None:
        need(type(value) is kind)
        need(len(value) <= most, "oversize")
        need(kind is not str or all(" " <= letter <= "~" for letter in value))

    return check


def list_of(check: Check, most: int) -> Check:
    def check_all(values: Any) -> None:
        up_to(list, most)(values)
        for value in values:
            check(value)

    return check_all


def boolean(value: Any) -> None:
    need(type(value) is bool)


def fields(items: list[Any], shape: dict[str, Check]) -> dict[str, Any]:
    for check, item in zip(shape.values(), items, strict=False):
        check(item)
    need(len(items) == len(shape))
    return dict(zip(shape, items, strict=True))


# -- envelopes

OUTER = {"signed": up_to(bytes, ENVELOPE), "signature": exactly(64)}
SIGNED = {
    "version": uint(),
    "swarm": exactly(16),
    "run": exactly(16),
    "kind": up_to(str, 16),
    "key": exactly(32),
    "epoch": uint(),
    "seq": uint(),
    "prev": exactly(32),
    "payload": exactly(32),
    "body": up_to(bytes, BODY),
}
LINK = {
    "round": uint(),
    "kind": up_to(str, 16),
    "codec": up_to(str, 32),
    "size": uint(BLOB),
    "steps": uint(),
    "tokens": uint(),
}
OF_DELTA = {**LINK, "state": up_to(bytes, 32)}
OF_REFINED = {**OF_DELTA, "layers": list_of(lambda value: need(type(value) is list), 4)}
LAYER = {"codec": up_to(str, 32), "size": uint(BLOB), "address": exactly(32)}
BODIES: dict[str, dict[str, Check]] = {
    "link": LINK,
    "offer": {"round": uint(), "size": uint(BLOB)},
    "record": {"addresses": list_of(up_to(str, 256), 8), "beside": list_of(exactly(8), 64)},
    "goodbye": {},
    "part": {"size": uint(BLOB)},
    "regional": {"region": up_to(str, 32), "codec": up_to(str, 32), "members": uint(1 << 20), "size": uint(BLOB)},
    "secure": {},
    "statistics": {},
}
PLACES = exactly(8)
OF_SECURE: list[dict[str, Check]] = [
    {"channel": exactly(32), "mask": exactly(32), "seed": exactly(32)},
    {"holders": PLACES, "sealed": up_to(bytes, BODY)},
    {"places": PLACES, "digests": up_to(bytes, BODY)},
    {"places": PLACES, "digests": up_to(bytes, BODY)},
    {"places": PLACES},
    {"seed": up_to(bytes, 32), "seeds": PLACES, "keys": PLACES, "share_keys": up_to(bytes, BODY)},
    {"part": uint(63)},
]
"""By the stage."""
OF_SETS = {"holders": "sealed", "places": "digests", "seeds": "", "keys": ""}
"""Sets of members, and what has so many items."""
OF_REGION = {**BODIES["record"], "region": up_to(str, 32)}
OF_AGGREGATE = {**BODIES["regional"], "averaged": uint(1 << 20)}
LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")


def open_envelope(raw: bytes, scope: dict[str, Any]) -> dict[str, Any]:
    outer = fields(array(raw, ENVELOPE), OUTER)
    stated = fields(array(outer["signed"], ENVELOPE), SIGNED)
    try:
        VerifyKey(stated["key"]).verify(DOMAIN + outer["signed"], outer["signature"])
    except BadSignatureError:
        raise Bad("forged") from None
    in_scope(stated, scope)
    need(stated["kind"] in BODIES, "unknown_kind")
    return {**stated, "sender": peer_id(stated["key"]), "digest": digest(outer["signed"])}


def in_scope(stated: dict[str, Any], scope: dict[str, Any]) -> None:
    for name, reason in (("version", "protocol"), ("swarm", "wrong_swarm"), ("run", "wrong_run")):
        need(stated[name] == scope[name], reason)


def read_statement(raw: bytes, scope: dict[str, Any], kind: str) -> dict[str, Any]:
    stated = open_envelope(raw, scope)
    need(stated["kind"] == kind, "unknown_kind")
    items, shape = array(stated["body"], BODY), BODIES[kind]
    if kind == "link":
        need(len(items) > 1)
        LINK["kind"](items[1])
        need(items[1] in ("genesis", "snapshot", "delta"), "unknown_kind")
        delta = OF_REFINED if len(items) > len(OF_DELTA) else OF_DELTA
        shape = {"genesis": {**LINK, "genesis": exactly(32)}, "delta": delta}.get(items[1], LINK)
    if kind == "record" and len(items) > len(shape):
        shape = OF_REGION
    if kind == "regional" and len(items) > len(shape):
        shape = OF_AGGREGATE
    if kind == "secure":
        need(stated["seq"] < len(OF_SECURE))
        need((stated["payload"] == NONE) == (stated["seq"] in (0, 3)))
        shape = OF_SECURE[stated["seq"]]
    body = fields(items, shape)
    if kind == "secure":
        check_secure(body)
    if kind == "link":
        check_link(stated, body, scope)
    if kind == "record":
        need(all(each.startswith("/") and each.endswith(f"/p2p/{stated['sender']}") for each in body["addresses"]))
    if kind in ("offer", "part", "regional"):
        need(body["size"] > 0)
    if kind == "regional":
        need(stated["epoch"] == 0 and stated["prev"] == NONE and body["members"] > 0)
        need(1 <= body.get("averaged", 1) <= body["members"])
    if "region" in body:
        need(LABEL.fullmatch(body["region"]))
    return {**stated, "body": body}


def check_secure(body: dict[str, Any]) -> None:
    count = {name: int.from_bytes(body[name], "little").bit_count() for name in body if name in OF_SETS}
    for name, wide in OF_SETS.items():
        if name in body and wide in body:
            need(len(body[wide]) == count[name] * (96 if name == "holders" else 32))
    if "share_keys" in body:
        need(len(body["seed"]) in (0, 32))
        both = int.from_bytes(body["seeds"], "little") & int.from_bytes(body["keys"], "little")
        need(not both, "protocol")
        need(len(body["share_keys"]) == 32 * (count["seeds"] + count["keys"]))


def check_link(stated: dict[str, Any], body: dict[str, Any], scope: dict[str, Any]) -> None:
    base, empty = stated["seq"] == 0, body["kind"] == "genesis"
    need(base == (body["kind"] != "delta"), "protocol")
    need(base == (stated["prev"] == NONE), "protocol")
    need(empty == (stated["payload"] == NONE) == (body["size"] == 0), "protocol")
    need(len(body.get("state", b"")) in (0, 32))
    need(not body.get("state") or stated["seq"] % 4 == 0, "protocol")
    if "layers" in body:
        need(body["layers"])
        need(all(len(layer) <= len(LAYER) for layer in body["layers"]), "oversize")
        layers = [fields(layer, LAYER) for layer in body["layers"]]
        body["layers"] = layers
        need(all(layer["size"] > 0 and layer["address"] != NONE for layer in layers), "protocol")
    need(not empty or body["genesis"] == scope["genesis"], "wrong_model")


def write_statement(seed: bytes, scope: dict[str, Any], vector: dict[str, Any], body: list[Any]) -> bytes:
    key = SigningKey(seed)
    place = [vector[name] for name in ("epoch", "seq", "prev", "payload")]
    scoped = [scope[name] for name in ("version", "swarm", "run")]
    signed = msgpack.packb([*scoped, vector["kind"], bytes(key.verify_key), *place, msgpack.packb(body)])
    return msgpack.packb([signed, key.sign(DOMAIN + signed).signature])


def proves_a_lie(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two links by one key cannot both hold."""
    if (first["key"], first["epoch"]) != (second["key"], second["epoch"]):
        return False
    if first["seq"] == second["seq"]:
        return first["digest"] != second["digest"]
    return second["seq"] == first["seq"] + 1 and second["prev"] != first["digest"]


# -- blobs


def manifest_of(data: bytes) -> bytes:
    return msgpack.packb([len(data), [blake3(data[at : at + CHUNK]).digest() for at in range(0, len(data), CHUNK)]])


def read_manifest(raw: bytes, address: bytes, most: int) -> dict[str, Any]:
    need(digest(raw) == address, "digest_mismatch")
    found = fields(array(raw, len(raw), 16_384), {"size": uint(), "chunks": list_of(exactly(32), 16_384)})
    need(found["size"] <= most, "oversize")
    need(len(found["chunks"]) == -(-found["size"] // CHUNK))
    return found


def group_name(members: list[str], round_: int, size: int, chunk_bytes: int) -> bytes:
    return digest(msgpack.packb([round_, size, chunk_bytes, members]))


# -- streams

HELLO_FIELDS = {
    "version": uint(),
    "swarm": exactly(16),
    "run": exactly(16),
    "genesis": exactly(32),
    "neighbours": uint(),
    "admitted": boolean,
    "link": up_to(bytes, ENVELOPE),
    "record": up_to(bytes, ENVELOPE),
    "records": list_of(up_to(bytes, ENVELOPE), 32),
}
KNOWN: dict[str, Check] = {"roster": exactly(32), "version": uint(2**31 - 1), "manifest": exactly(32)}
REQUESTS: dict[str, dict[str, Check]] = {
    "hello": {"hello": up_to(bytes, HELLO)},
    "links": {"epoch": uint(), "first": uint(), "count": uint(8)},
    "snapshot": {"epoch": uint(), "seq": uint()},
    "state": {"key": exactly(32), "epoch": uint(), "seq": uint(), "least": uint()},
    "manifest": {"address": exactly(32)},
    "chunk": {"address": exactly(32), "index": uint(16_384)},
    "goodbye": {"envelope": up_to(bytes, ENVELOPE)},
    "part": {"envelope": up_to(bytes, ENVELOPE)},
    "secure": {"envelope": up_to(bytes, ENVELOPE)},
    "pause": {"link": up_to(bytes, ENVELOPE), "seconds": uint()},
    "shift": {"link": up_to(bytes, ENVELOPE)},
    "statistics": {},
    "find": {
        "swarm": exactly(16),
        "run": exactly(16),
        "genesis": exactly(32),
        "target": exactly(32),
        "record": up_to(bytes, ENVELOPE),
    },
    "membership": {**KNOWN, "page": up_to(bytes, 8192)},
    "buckets": {},
    "roster": {"parts": exactly(32), "page": uint(4096)},
    "terms": {"above": uint(2**31 - 1)},
}
ANSWERS: dict[str, list[Check]] = {
    "hello": [up_to(bytes, HELLO)],
    "links": [list_of(up_to(bytes, ENVELOPE), 8)],
    "snapshot": [up_to(bytes, ENVELOPE)],
    "state": [exactly(32)],
    "manifest": [up_to(bytes, 557_120), up_to(bytes, CHUNK)],
    "chunk": [up_to(bytes, CHUNK)],
    "goodbye": [],
    "part": [],
    "secure": [],
    "pause": [],
    "shift": [],
    "statistics": [up_to(bytes, ENVELOPE), up_to(bytes, 262_144)],
    "find": [up_to(bytes, ENVELOPE), list_of(up_to(bytes, ENVELOPE), 16)],
    "membership": [*KNOWN.values()],
    "buckets": [up_to(bytes, 2048)],
    "roster": [up_to(bytes, 8192)],
    "terms": [up_to(bytes, 61_440)],
}


def read_hello(raw: bytes, scope: dict[str, Any]) -> dict[str, Any]:
    items = array(raw, HELLO)
    need(len(items) > 0)
    uint()(items[0])
    need(items[0] == scope["version"], "protocol")
    hello = fields(items, HELLO_FIELDS)
    in_scope(hello, scope)
    need(hello["genesis"] == scope["genesis"], "wrong_model")
    return hello


def write_hello(scope: dict[str, Any], hello: dict[str, Any]) -> bytes:
    return msgpack.packb([{**scope, **hello}[name] for name in HELLO_FIELDS])


def read_request(raw: bytes) -> tuple[str, dict[str, Any]]:
    items = array(raw, REQUEST)
    need(len(items) > 0)
    up_to(str, 16)(items[0])
    need(items[0] in REQUESTS, "unknown_kind")
    return items[0], fields(items[1:], REQUESTS[items[0]])


def write_request(name: str, values: dict[str, Any]) -> bytes:
    return msgpack.packb([name, *(values[field] for field in REQUESTS[name])])


def read_answer(raw: bytes, request: str) -> list[Any]:
    items = array(raw, ANSWER)
    need(len(items) > 0)
    boolean(items[0])
    if not items[0]:
        refusal = fields(items[1:], {"reason": up_to(str, 200), "detail": up_to(str, 200)})
        raise Bad(refusal["reason"] if refusal["reason"] in REASONS else "protocol")
    return list(fields(items[1:], {str(place): check for place, check in enumerate(ANSWERS[request])}).values())
