"""Writes tests/vectors/*.json: what another implementation of docs/protocol.md can be held to, made by this one.

    python scripts/make_vectors.py

Everything is fixed: keys, times, contents. Bytes are hex ({"zeros": n} where there are many), other values as the page
has them. A statement, request or
answer stands with its fields and its bytes; what must be refused stands with the reason, which is written here by hand
and not taken from the code. tests/gossip/test_vectors.py holds the files to this script, the code to the files, and the
files to a reader that shares nothing with the code.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import make_vectors_bad as bad
import make_vectors_codecs as codecs
import make_vectors_secure as secure
import msgpack
from make_vectors_parts import ALICE, BOB, CAROL, EPOCH, GENESIS, SCOPE, pattern, shown

from gossip.allreduce.allreduce import Group
from gossip.blobs.blob import BlobManifest, blob_manifest_of
from gossip.class_statistics.statement import sealed_statistics, statistics_statement
from gossip.core import messages
from gossip.core.api import UpdateKind
from gossip.core.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.core.envelope import Envelope, Statement, seal
from gossip.core.errors import Reason
from gossip.core.identity import Identity
from gossip.core.ids import Digest
from gossip.core.limits import CHUNK_BYTES, PROTOCOL_VERSION
from gossip.core.member_messages import (
    BucketsRequest,
    Known,
    MembershipRequest,
    RosterRequest,
    TermsRequest,
    pack_parts,
)
from gossip.core.membership_limits import BUCKET_BYTES, BUCKETS
from gossip.core.statements import (
    Layer,
    Stage,
    UpdateHeader,
    UpdateHeaderBody,
    goodbye_statement,
    parse_update_header,
    part_statement,
    record_statement,
    regional_statement,
    snapshot_offer_statement,
    update_header_statement,
)
from gossip.discovery.routing_table import PLACE_BITS, place_of_id
from gossip.discovery.topology import place_of, tag_of
from gossip.updates.hash_chain import EquivocationError, HashChain
from node.system.script_end import ended_in_a_line

FOLDER = Path(__file__).parents[1] / "tests" / "vectors"
ADDRESSES = (f"/ip4/192.0.2.7/tcp/4001/p2p/{ALICE.peer_id}", f"/dns4/node.example/tcp/4001/p2p/{ALICE.peer_id}")
PAYLOAD = blob_manifest_of(b"payload")


def names() -> dict[str, object]:
    """Keys, swarms, and places on the rings."""
    return {
        "identities": [
            {"seed": each.seed, "public_key": each.public_key, "peer_id": each.peer_id, "tag": tag_of(each.peer_id)}
            for each in (ALICE, BOB, CAROL, Identity(bytes(32)), Identity(b"\xff" * 32))
        ],
        "bad_peer_ids": list(bad.peer_ids()),
        "swarms": [
            {"name": name, "swarm_id": swarm_id_of(name)} for name in ("p2ptrain", "", "a swarm of ours", "Schwärme")
        ],
        "rings": [
            {"ring": ring, "peer_id": each.peer_id, "place": f"{place_of(SCOPE, ring, each.peer_id):016x}"}
            for each in (ALICE, BOB)
            for ring in range(3)
        ],
        "places": [
            {"peer_id": each.peer_id, "place": f"{place_of_id(SCOPE, each.peer_id):064x}"}
            for each in (ALICE, BOB, CAROL)
        ],
        "ring_scope": {"swarm": SCOPE.swarm, "run": SCOPE.run},
    }


def blobs() -> dict[str, object]:
    """Digests and manifests. A blob of `size` bytes has i mod 251 as its byte i."""
    sizes = (0, 1, 7, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)
    return {
        "digests": [{"data": data, "digest": digest_of(data)} for data in (b"", b"payload", bytes(64))],
        "manifests": [_manifest(blob_manifest_of(pattern(size))) for size in sizes],
        "bad_manifests": list(bad.manifests()),
        "exchanges": [_exchange(3 * CHUNK_BYTES + 5), _exchange(CHUNK_BYTES), _exchange(CHUNK_BYTES, CHUNK_BYTES // 8)],
    }


def _manifest(manifest: BlobManifest) -> dict[str, object]:
    return {
        "size": manifest.size,
        "chunks": manifest.chunks,
        "manifest": manifest.encode(),
        "address": manifest.address,
    }


def _exchange(size: int, chunk_bytes: int = CHUNK_BYTES) -> dict[str, object]:
    group = Group(members=(BOB.peer_id, ALICE.peer_id), round=7, size=size, chunk_bytes=chunk_bytes)
    return {
        "members": group.members,
        "round": group.round,
        "size": size,
        "chunk_bytes": chunk_bytes,
        "exchange": group.name,
        "chunks": [[group.span(each).start, group.span(each).stop] for each in group.members],
    }


def statements() -> dict[str, object]:
    """One of each kind and each way to be one, those that are none, and one in longer msgpack."""
    return {
        "scope": {"version": PROTOCOL_VERSION, "swarm": SCOPE.swarm, "run": SCOPE.run, "genesis": GENESIS},
        "good": [_statement(seal(ALICE, SCOPE, stated), fields) for stated, fields in _one_of_each()],
        "good_in_longer_msgpack": [bad.long_winded()],
        "bad": list(bad.statements()),
    }


def _one_of_each() -> Iterator[tuple[Statement, dict[str, Any]]]:
    bases = [(_body("genesis"), 0), (_body("snapshot", size=12), 0)]
    for link, seq in (*bases, (_body("delta", "q2", 7), 5), (_body("delta", "q2", 7, digest_of(b"the state")), 8)):
        base = link.kind != "delta"
        prev = NO_DIGEST if base else digest_of(b"the link before")
        address = NO_DIGEST if link.kind == "genesis" else PAYLOAD.address
        fields = {key: value for key, value in asdict(link).items() if value is not None and key != "layers"}
        named = {} if base else {"state": link.state or b""}
        yield update_header_statement(epoch=EPOCH, seq=seq, prev=prev, address=address, body=link), {**fields, **named}
    layers = (
        Layer(codec="q2", size=12, address=digest_of(b"q2")),
        Layer(codec="int8", size=99, address=digest_of(b"8")),
    )
    refined = replace(_body("delta", "topk", 7), layers=layers)
    told = {key: value for key, value in asdict(refined).items() if key not in ("genesis", "state", "layers")}
    told |= {"state": b"", "layers": [vars(layer) for layer in layers]}
    yield (
        update_header_statement(
            epoch=EPOCH, seq=5, prev=digest_of(b"the link before"), address=PAYLOAD.address, body=refined
        ),
        told,
    )
    offer = snapshot_offer_statement(
        epoch=EPOCH, seq=5, head=digest_of(b"the newest link"), address=PAYLOAD.address, round=6, size=12
    )
    yield offer, {"round": 6, "size": 12}
    beside = (tag_of(BOB.peer_id), tag_of(CAROL.peer_id))
    for addresses, tags in ((ADDRESSES, beside), ((), ())):
        record = record_statement(epoch=EPOCH, version=3, addresses=addresses, beside=tags)
        yield record, {"addresses": addresses, "beside": tags}
    record = record_statement(epoch=EPOCH, version=4, addresses=ADDRESSES, beside=beside, region="eu-west")
    yield record, {"addresses": ADDRESSES, "beside": beside, "region": "eu-west"}
    yield goodbye_statement(epoch=EPOCH, seq=5), {}
    for stage in Stage:
        part = part_statement(
            exchange=digest_of(b"an exchange"), round=7, stage=stage, address=PAYLOAD.address, size=12
        )
        yield part, {"size": 12}
    for region in ("eu-west", "x"):
        regional = regional_statement(region=region, round=7, codec="int8", members=5, address=PAYLOAD.address, size=12)
        yield regional, {"region": region, "codec": "int8", "members": 5, "size": 12}
    regional = regional_statement(
        region="x", round=8, codec="int8", members=5, address=PAYLOAD.address, size=12, averaged=4
    )
    yield regional, {"region": "x", "codec": "int8", "members": 5, "size": 12, "averaged": 4}
    yield statistics_statement(b"statistics"), {}
    yield from secure.statements()


def _body(kind: UpdateKind, codec: str = "", size: int = 0, state: Digest | None = None) -> UpdateHeaderBody:
    genesis = GENESIS if kind == "genesis" else None
    return UpdateHeaderBody(
        round=6, kind=kind, codec=codec, size=size, steps=20, tokens=320, genesis=genesis, state=state
    )


def _statement(envelope: Envelope, body: dict[str, Any], by: Identity = ALICE) -> dict[str, object]:
    stated = envelope.statement
    return {
        "kind": stated.kind.value,
        "seed": by.seed,
        "sender": envelope.sender,
        "epoch": stated.epoch,
        "seq": stated.seq,
        "prev": stated.prev,
        "payload": stated.payload,
        "body": body,
        "signed": msgpack.unpackb(envelope.raw)[0],
        "envelope": envelope.raw,
        "digest": envelope.digest,
    }


def conversation() -> dict[str, object]:
    """Hellos, requests, answers, refusals."""
    link = _link(ALICE, 0, NO_DIGEST).raw
    record = seal(ALICE, SCOPE, record_statement(epoch=EPOCH, version=3, addresses=ADDRESSES)).raw
    hello = messages.Hello(
        scope=SCOPE, genesis=GENESIS, neighbours=3, admitted=True, link=link, record=record, records=(record, record)
    )
    lonely = messages.Hello(scope=SCOPE, genesis=GENESIS, neighbours=0, admitted=False)
    address, chunk = PAYLOAD.address, b"payload"
    goodbye = seal(ALICE, SCOPE, goodbye_statement(epoch=EPOCH, seq=5)).raw
    stated = sealed_statistics(ALICE, SCOPE, b"statistics")
    requests = {
        "hello": (messages.HelloRequest(hello=lonely.encode()), [lonely.encode()]),
        "links": (messages.HeadersRequest(epoch=EPOCH, first=1, count=8), [[link, link]]),
        "snapshot": (messages.SnapshotRequest(epoch=EPOCH, seq=5), [record]),
        "state": (messages.StateRequest(key=BOB.public_key, epoch=EPOCH, seq=8, least=5), [address]),
        "manifest": (messages.ManifestRequest(address=address), [PAYLOAD.encode(), chunk]),
        "chunk": (messages.ChunkRequest(address=address, index=0), [chunk]),
        "goodbye": (messages.GoodbyeRequest(envelope=goodbye), []),
        "part": (messages.PartRequest(envelope=goodbye), []),
        "secure": (messages.SecureRequest(envelope=goodbye), []),
        "pause": (messages.PauseRequest(link=link, seconds=25_200), []),
        "shift": (messages.ShiftRequest(link=link), []),
        "statistics": (messages.StatisticsRequest(), [stated.envelope, stated.payload]),
        "find": (_find(record), [record, [record, record]]),
        **_of_members(),
    }
    return {
        "hellos": [_hello(hello), _hello(lonely)],
        "bad_hellos": list(bad.hellos(lonely)),
        "requests": [
            {
                "request": name,
                "fields": vars(request),
                "bytes": messages.encode_request(request),
                "frame": bad.frame(messages.encode_request(request)),
                "answer": answer,
                "answer_bytes": messages.encode_answer(*answer),
            }
            for name, (request, answer) in requests.items()
        ],
        "bad_requests": list(bad.requests()),
        "refusals": [
            {"reason": reason.value, "detail": "one line", "bytes": messages.encode_refusal(reason, "one line")}
            for reason in Reason
        ],
        "bad_answers": list(bad.answers()),
    }


def _of_members() -> dict[str, tuple[messages.Request, list[Any]]]:
    """What members of a private swarm ask; pages, buckets and manifests are only carried here."""
    known = Known(roster=digest_of(b"a roster"), version=2, manifest=digest_of(b"a manifest"))
    buckets = bytes(BUCKETS * BUCKET_BYTES)
    return {
        "membership": (MembershipRequest.of(known, b"\x91\xc4\x04item"), [*vars(known).values()]),
        "buckets": (BucketsRequest(), [buckets]),
        "roster": (RosterRequest(parts=pack_parts((0, 9, 255)), page=1), [b"\x91\xc4\x04item"]),
        "terms": (TermsRequest(above=1), [b"a manifest"]),
    }


def _find(record: bytes) -> messages.FindRequest:
    target = Digest(place_of_id(SCOPE, BOB.peer_id).to_bytes(PLACE_BITS // 8, "big"))
    return messages.FindRequest(swarm=SCOPE.swarm, run=SCOPE.run, genesis=GENESIS, target=target, record=record)


def _hello(hello: messages.Hello) -> dict[str, object]:
    fields = {key: value for key, value in vars(hello).items() if key != "scope"}
    return {"swarm": hello.scope.swarm, "run": hello.scope.run, **fields, "bytes": hello.encode()}


def chains() -> dict[str, object]:
    """What a receiver that has applied nothing makes of links, one after another, and pairs that prove a lie, or do
    not."""
    links = [_link(BOB, 0, NO_DIGEST)]
    for seq in range(1, 12):
        links.append(_link(BOB, seq, links[-1].digest))
    fork, twin = _link(BOB, 3, links[2].digest, codec="int8"), _link(BOB, 3, links[2].digest)
    order = [0, 1, 4, 2, 2, 3, 11, 1, 8]
    told = [links[index] for index in order] + [_link(BOB, 0, NO_DIGEST, epoch=EPOCH - 1), fork]
    chain, steps = HashChain(), []
    for link in told:
        try:
            verdict = chain.learn(link).value
        except EquivocationError:
            verdict = "equivocation"
        steps.append({"epoch": link.epoch, "seq": link.seq, "envelope": link.raw, "verdict": verdict})
    pairs = [
        ("two links at one place", links[3], fork, True),
        ("one link, twice", links[3], twin, False),
        ("a link and the next", links[3], links[4], False),
        ("a link, and a next one that names another", fork, links[4], True),
        ("one place by two keys", links[0], _link(CAROL, 0, NO_DIGEST), False),
        ("one seq in two epochs", links[0], _link(BOB, 0, NO_DIGEST, epoch=EPOCH + 1), False),
    ]
    return {
        "sender": BOB.peer_id,
        "links": [{"epoch": link.epoch, "seq": link.seq, "digest": link.digest, "prev": link.prev} for link in links],
        "steps": steps,
        "pairs": [
            {"what": what, "first": one.raw, "second": two.raw, "proof": proof} for what, one, two, proof in pairs
        ],
    }


def _link(by: Identity, seq: int, prev: Digest, *, epoch: int = EPOCH, codec: str = "q2") -> UpdateHeader:
    if seq:
        body = UpdateHeaderBody(round=seq, kind="delta", codec=codec, size=7, steps=20, tokens=320)
    else:
        body = UpdateHeaderBody(round=0, kind="genesis", genesis=GENESIS)
    address = PAYLOAD.address if seq else NO_DIGEST
    return parse_update_header(
        seal(by, SCOPE, update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body))
    )


def texts() -> dict[str, str]:
    """Each file's name and content."""
    made = {
        "names": names(),
        "blobs": blobs(),
        "statements": statements(),
        "messages": conversation(),
        "chains": chains(),
        "secure_sums": secure.secure_sums(),
        "codecs": {"good": codecs.good(), "bad": list(codecs.bad())},
    }
    return {f"{name}.json": json.dumps(shown(content), indent=1) + "\n" for name, content in made.items()}


if __name__ == "__main__":
    with ended_in_a_line():
        FOLDER.mkdir(exist_ok=True)
        for name, text in texts().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
