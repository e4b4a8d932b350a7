"""What must be refused, each with its reason, for make_vectors.py: bytes that no encoder of ours would write."""

from collections.abc import Iterator
from typing import Any

import msgpack
from make_vectors_parts import ALICE, BOB, EPOCH, GENESIS, SCOPE

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import DOMAIN
from gossip.core.identity import Identity
from gossip.core.limits import MAX_COUNTER, MAX_ENVELOPE_BYTES, MAX_FOUND, MAX_HELLO_BYTES, MAX_LINKS, PROTOCOL_VERSION
from gossip.core.messages import HeadersRequest, Hello, encode_request

Case = dict[str, object]
DIGEST = digest_of(b"something")
GENESIS_BODY = [0, "genesis", "", 0, 0, 0, GENESIS]
DELTA_BODY = [1, "delta", "q2", 7, 20, 320, b""]
LAYER = ["int8", 99, DIGEST]


def packed(value: Any) -> bytes:
    """msgpack of anything."""
    data: bytes = msgpack.packb(value)
    return data


def frame(body: bytes) -> bytes:
    """As it stands on a stream."""
    return len(body).to_bytes(4, "big") + body


def peer_ids() -> Iterator[Case]:
    """Text that is no peer id."""
    good = ALICE.peer_id
    for what, text in {
        "empty": "",
        "a character short": good[:-1],
        "a character long": good + "1",
        "0 is not in base58": good[:-1] + "0",
        "another prefix": "11" + good[2:],
        "the hash of an RSA key": "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    }.items():
        yield {"what": what, "peer_id": text, "reason": "malformed"}


def manifests() -> Iterator[Case]:
    """Manifests that are not what was announced, or contradict themselves. `most`: the largest blob that is taken."""
    blob = blob_manifest_of(b"payload")
    raw, most = blob.encode(), 1 << 20
    yield _manifest("another one than was announced", raw, digest_of(b"another"), most, "digest_mismatch")
    yield _manifest("a blob larger than wanted", raw, blob.address, 6, "oversize")
    for what, value in {
        "no chunk": [7, []],
        "a chunk too many": [7, [DIGEST, DIGEST]],
        "a digest of 31 bytes": [7, [DIGEST[:31]]],
        "a negative size": [-1, []],
        "a field too many": [7, [DIGEST], 0],
        "chunks that are no array": [7, DIGEST],
    }.items():
        yield _manifest(what, packed(value), digest_of(packed(value)), most, "malformed")


def _manifest(what: str, raw: bytes, address: bytes, most: int, reason: str) -> Case:
    return {"what": what, "manifest": raw, "address": address, "most": most, "reason": reason}


def signed_by(key: Identity, fields: list[Any]) -> bytes:
    """An envelope of any fields, with a signature that verifies."""
    signed = packed(fields)
    return packed([signed, key.sign(DOMAIN + signed)])


def stated(body: list[Any] | bytes = DELTA_BODY, **changes: Any) -> list[Any]:
    """The fields of a delta at seq 1, with changes."""
    fields = {
        "version": PROTOCOL_VERSION,
        "swarm": SCOPE.swarm,
        "run": SCOPE.run,
        "kind": "link",
        "key": ALICE.public_key,
        "epoch": EPOCH,
        "seq": 1,
        "prev": digest_of(b"the link before"),
        "payload": blob_manifest_of(b"payload").address,
        "body": body if isinstance(body, bytes) else packed(body),
    }
    return list({**fields, **changes}.values())


def base(body: list[Any], **changes: Any) -> list[Any]:
    """The fields of a link at seq 0, with changes."""
    return stated(body, **{"seq": 0, "prev": NO_DIGEST, "payload": NO_DIGEST, **changes})


def long_winded() -> Case:
    """Good, though no encoder of ours writes it so: every length and number in msgpack's longest form."""
    fields = stated()
    wide = b"\xdd\0\0\0\x0a" + b"".join(map(_wide, fields))
    outer = b"\xdd\0\0\0\x02" + _wide(wide) + _wide(ALICE.sign(DOMAIN + wide))
    return {"envelope": outer, "signed": wide, "digest": digest_of(wide), "same_fields_as": signed_by(ALICE, fields)}


def _wide(value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return b"\xcf" + value.to_bytes(8, "big")
    data = value.encode() if isinstance(value, str) else value
    return (b"\xdb" if isinstance(value, str) else b"\xc6") + len(data).to_bytes(4, "big") + data


def statements() -> Iterator[Case]:
    """Envelopes that no receiver of SCOPE takes as a link of the run, in the order in which things are checked."""
    good = signed_by(ALICE, stated())
    yield _case("longer than an envelope may be", bytes(MAX_ENVELOPE_BYTES + 1), "oversize")
    for what, raw in {
        "empty": b"",
        "cut short": good[:-1],
        "a byte after the end": good + b"\0",
        "a map": packed({"signed": good}),
        "a signature of 63 bytes": packed([packed(stated()), bytes(63)]),
        "a third item": packed([packed(stated()), bytes(64), 0]),
        "text where bytes belong": packed(["signed", bytes(64)]),
        "nesting without end": b"\x91" * 600,
    }.items():
        yield _case(what, raw, "malformed")
    flipped = bytearray(good)
    flipped[-1] ^= 1
    yield _case("one bit of the signature is another", bytes(flipped), "forged")
    yield _case("signed by another key than it names", signed_by(BOB, stated()), "forged")
    unmarked = packed(stated())
    yield _case("signed without the domain tag", packed([unmarked, ALICE.sign(unmarked)]), "forged")
    for what, changes, reason in (
        ("a field is missing", None, "malformed"),
        ("a field too many", {"more": 0}, "malformed"),
        ("true is no integer", {"seq": True}, "malformed"),
        ("a float is no integer", {"seq": 1.0}, "malformed"),
        ("nil", {"seq": None}, "malformed"),
        ("a negative number", {"epoch": -1}, "malformed"),
        ("a number above 2^53 - 1", {"epoch": MAX_COUNTER + 1}, "malformed"),
        ("bytes where text belongs", {"kind": b"link"}, "malformed"),
        ("text that is not printable ASCII", {"kind": "l\nk"}, "malformed"),
        ("a key of 31 bytes", {"key": ALICE.public_key[:31]}, "malformed"),
        ("a digest of 33 bytes", {"prev": bytes(33)}, "malformed"),
        ("a kind of 17 characters", {"kind": "l" * 17}, "oversize"),
        ("a body beyond its bound", {"body": bytes(6145)}, "oversize"),
        ("another version", {"version": PROTOCOL_VERSION + 1}, "protocol"),
        ("another swarm", {"swarm": bytes(16)}, "wrong_swarm"),
        ("another run", {"run": bytes(16)}, "wrong_run"),
        ("a kind that does not exist", {"kind": "lnik"}, "unknown_kind"),
    ):
        fields = stated()[:-1] if changes is None else stated(**changes)
        yield _case(what, signed_by(ALICE, fields), reason)
    yield from _links()


def _links() -> Iterator[Case]:
    for what, fields, reason in (
        ("an offer where a link belongs", stated([1, 7], kind="offer"), "unknown_kind"),
        ("an update that does not exist", stated([1, "detla", *DELTA_BODY[2:]]), "unknown_kind"),
        ("a body that is no array", stated(packed(1)), "malformed"),
        ("a body with a field too many", stated([*DELTA_BODY, 0]), "malformed"),
        ("a codec of 33 characters", stated([1, "delta", "q" * 33, 7, 20, 320, b""]), "oversize"),
        ("a payload above 16 GiB", stated([1, "delta", "q2", (1 << 34) + 1, 20, 320, b""]), "malformed"),
        ("a delta at seq 0", base(DELTA_BODY, payload=DIGEST), "protocol"),
        ("a genesis at seq 1", stated(GENESIS_BODY), "protocol"),
        ("a base that names a link before it", base(GENESIS_BODY, prev=DIGEST), "protocol"),
        ("a delta that names none", stated(prev=NO_DIGEST), "protocol"),
        ("a delta without a payload", stated(payload=NO_DIGEST), "protocol"),
        ("a delta of no bytes", stated([1, "delta", "q2", 0, 20, 320, b""]), "protocol"),
        ("a delta without the field for a state", stated(DELTA_BODY[:-1]), "malformed"),
        ("a state of 31 bytes", stated([*DELTA_BODY[:-1], DIGEST[:31]], seq=8), "malformed"),
        ("a state of 33 bytes", stated([*DELTA_BODY[:-1], bytes(33)], seq=8), "oversize"),
        ("a state after link 6", stated([*DELTA_BODY[:-1], DIGEST], seq=6), "protocol"),
        ("layers that are no array", stated([*DELTA_BODY, b""]), "malformed"),
        ("an empty array of layers", stated([*DELTA_BODY, []]), "malformed"),
        ("five layers", stated([*DELTA_BODY, [LAYER] * 5]), "oversize"),
        ("a layer with a field too many", stated([*DELTA_BODY, [[*LAYER, 0]]]), "oversize"),
        ("a layer without its address", stated([*DELTA_BODY, [LAYER[:2]]]), "malformed"),
        ("a layer above 16 GiB", stated([*DELTA_BODY, [["q2", (1 << 34) + 1, DIGEST]]]), "malformed"),
        ("a layer of no bytes", stated([*DELTA_BODY, [["q2", 0, DIGEST]]]), "protocol"),
        ("a layer without a payload", stated([*DELTA_BODY, [["q2", 7, NO_DIGEST]]]), "protocol"),
        ("a base with layers", base([*GENESIS_BODY, [LAYER]]), "malformed"),
        ("a genesis with a payload", base(GENESIS_BODY, payload=DIGEST), "protocol"),
        ("a genesis without a digest", base(GENESIS_BODY[:-1]), "malformed"),
        ("another initial model", base([*GENESIS_BODY[:-1], DIGEST]), "wrong_model"),
    ):
        yield _case(what, signed_by(ALICE, fields), reason)


def _case(what: str, raw: bytes, reason: str) -> Case:
    return {"what": what, "envelope": raw, "reason": reason}


def hellos(good: Hello) -> Iterator[Case]:
    """Hellos that are refused by any member of SCOPE."""
    fields = msgpack.unpackb(good.encode())
    for what, place, value, reason in (
        ("another version", 0, PROTOCOL_VERSION + 1, "protocol"),
        ("a swarm id of 15 bytes", 1, bytes(15), "malformed"),
        ("another swarm", 1, bytes(16), "wrong_swarm"),
        ("another run", 2, bytes(16), "wrong_run"),
        ("another initial model", 3, bytes(32), "wrong_model"),
        ("a number where true or false belongs", 5, 1, "malformed"),
        ("33 records", 8, [b""] * 33, "oversize"),
        ("a record beyond its bound", 8, [bytes(MAX_ENVELOPE_BYTES + 1)], "oversize"),
    ):
        yield _bytes(what, packed([*fields[:place], value, *fields[place + 1 :]]), reason)
    yield _bytes("a field too many", packed([*fields, 0]), "malformed")
    yield _bytes("a field is missing", packed(fields[:-1]), "malformed")
    yield _bytes("longer than a hello may be", bytes(MAX_HELLO_BYTES + 1), "oversize")


def requests() -> Iterator[Case]:
    """Requests that no server grants."""
    links = encode_request(HeadersRequest(epoch=EPOCH, first=1, count=1))
    yield _bytes("a name that does not exist", packed(["lniks", EPOCH, 1, 1]), "unknown_kind")
    yield _bytes("no name", packed([]), "malformed")
    yield _bytes("a number for a name", packed([1]), "malformed")
    yield _bytes("cut short", links[:-1], "malformed")
    yield _bytes("more links than one answer has", packed(["links", EPOCH, 1, MAX_LINKS + 1]), "malformed")
    yield _bytes("an address of 31 bytes", packed(["chunk", bytes(31), 0]), "malformed")
    yield _bytes("a field too many", packed(["manifest", DIGEST, 0]), "malformed")
    find = ["find", SCOPE.swarm, SCOPE.run, GENESIS]
    yield _bytes("a target of 31 bytes", packed([*find, bytes(31), b""]), "malformed")
    yield _bytes(
        "an asker's record beyond its bound", packed([*find, DIGEST, bytes(MAX_ENVELOPE_BYTES + 1)]), "oversize"
    )
    membership = ["membership", DIGEST, 1]
    yield _bytes("a manifest's digest of 31 bytes", packed([*membership, bytes(31), b""]), "malformed")
    yield _bytes("a version beyond its bound", packed(["membership", DIGEST, 2**31, DIGEST, b""]), "malformed")
    yield _bytes("a page beyond its bound", packed([*membership, DIGEST, bytes(8193)]), "oversize")
    yield _bytes("a set of 255 parts", packed(["roster", bytes(31), 0]), "malformed")
    yield _bytes("a page that no roster has", packed(["roster", DIGEST, 4097]), "malformed")
    yield _bytes("an envelope beyond its bound", packed(["goodbye", bytes(MAX_ENVELOPE_BYTES + 1)]), "oversize")


def answers() -> Iterator[Case]:
    """Answers that cost who gives them, by the request that they answer."""
    for request, what, value, reason in (
        ("links", "9 links", [True, [b""] * (MAX_LINKS + 1)], "oversize"),
        ("links", "a link beyond its bound", [True, [bytes(MAX_ENVELOPE_BYTES + 1)]], "oversize"),
        ("chunk", "nothing", [True], "malformed"),
        ("chunk", "text where bytes belong", [True, "payload"], "malformed"),
        ("chunk", "neither true nor false", [1, b"payload"], "malformed"),
        ("manifest", "no chunk", [True, b""], "malformed"),
        ("goodbye", "a field too many", [True, 0], "malformed"),
        ("find", "17 members", [True, b"", [b""] * (MAX_FOUND + 1)], "oversize"),
        ("find", "no record of its own, not even an empty one", [True, [b""]], "malformed"),
        ("membership", "no manifest", [True, DIGEST, 1], "malformed"),
        ("buckets", "more than there are", [True, bytes(2049)], "oversize"),
        ("roster", "a page beyond its bound", [True, bytes(8193)], "oversize"),
        ("terms", "a manifest beyond its bound", [True, bytes(61441)], "oversize"),
        ("chunk", "a refusal of a reason that does not exist", [False, "mood", "not today"], "protocol"),
        ("chunk", "a refusal without its line", [False, "unavailable"], "malformed"),
    ):
        yield {"request": request, **_bytes(what, packed(value), reason)}


def _bytes(what: str, raw: bytes, reason: str) -> Case:
    return {"what": what, "bytes": raw, "reason": reason}
