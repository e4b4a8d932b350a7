"""tests/vectors/ is what the code makes and reads, and what a reader that shares nothing with it makes and reads.

`python scripts/make_vectors.py` writes the files anew after a change of the protocol.
"""

import re
from types import ModuleType
from typing import Any, get_args

import plain_reader as plain
import pytest
from vector_files import FOLDER, ROOT, cases, meant, of

from gossip.allreduce.allreduce import Group
from gossip.blobs.blob import blob_manifest_of, parse_blob_manifest
from gossip.class_statistics.statement import SharedPayload, check_statistics
from gossip.core import limits, messages, statements
from gossip.core import membership_limits as bounds
from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import EnvelopeKind, Scope, Statement, open_envelope, seal
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity, peer_id_of, verify_key_of
from gossip.core.ids import PeerId
from gossip.core.secure_statements import parse_secure
from gossip.discovery.routing_table import place_of_id
from gossip.discovery.topology import place_of, tag_of
from gossip.updates.hash_chain import ChainPosition, EquivocationError, HashChain

PARSERS = {
    EnvelopeKind.LINK: statements.parse_update_header,
    EnvelopeKind.OFFER: statements.parse_snapshot_offer,
    EnvelopeKind.RECORD: statements.parse_record,
    EnvelopeKind.PART: statements.parse_part,
    EnvelopeKind.REGIONAL: statements.parse_regional,
    EnvelopeKind.SECURE: parse_secure,
}


SCOPE = meant(of("statements")["scope"])
OURS = Scope(swarm=SCOPE["swarm"], run=SCOPE["run"])


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_vectors

    assert isinstance(make_vectors, ModuleType)
    return make_vectors


def refusal(judge: Any, *args: Any) -> str:
    """Why `judge` refuses its arguments; empty when it does not."""
    try:
        judge(*args)
    except (RemoteError, plain.Bad) as error:
        return str(getattr(error.reason, "value", error.reason))
    return ""


def test_the_files_are_what_the_script_makes(maker: ModuleType) -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert found == maker.texts(), "run: python scripts/make_vectors.py"


def test_every_kind_reason_and_request_is_there() -> None:
    assert (
        {case["kind"] for case in of("statements")["good"]}
        == {kind.value for kind in EnvelopeKind}
        == set(plain.BODIES)
    )
    assert {case["reason"] for case in of("messages")["refusals"]} == {reason.value for reason in Reason}
    assert set(plain.REASONS) == {reason.value for reason in Reason}
    requests = {case["request"] for case in of("messages")["requests"]}
    assert len(requests) == len(get_args(messages.Request))
    assert requests == set(plain.REQUESTS) == set(plain.ANSWERS)
    assert SCOPE["version"] == limits.PROTOCOL_VERSION


# -- names and blobs


@pytest.mark.parametrize("case", cases("names", "identities"))
def test_keys_and_peer_ids(case: dict[str, Any]) -> None:
    key, peer = case["public_key"], case["peer_id"]
    assert Identity(case["seed"]).public_key == bytes(plain.SigningKey(case["seed"]).verify_key) == key
    assert peer_id_of(key) == plain.peer_id(key) == peer
    assert verify_key_of(peer) == plain.read_peer_id(peer) == key
    assert tag_of(peer) == key[:8] == case["tag"]


@pytest.mark.parametrize("case", cases("names", "bad_peer_ids"))
def test_what_is_no_peer_id(case: dict[str, Any]) -> None:
    assert refusal(verify_key_of, PeerId(case["peer_id"])) == case["reason"]
    assert refusal(plain.read_peer_id, case["peer_id"]) == case["reason"]


def test_swarms_and_rings() -> None:
    for case in map(meant, of("names")["swarms"]):
        assert swarm_id_of(case["name"]) == plain.digest(case["name"].encode())[:16] == case["swarm_id"]
    for case in map(meant, of("names")["rings"]):
        place = plain.ring_place(SCOPE["swarm"], SCOPE["run"], case["ring"], case["peer_id"])
        assert place_of(OURS, case["ring"], case["peer_id"]) == int.from_bytes(place, "big")
    for case in of("names")["places"]:
        place = plain.place(SCOPE["swarm"], SCOPE["run"], case["peer_id"])
        assert f"{place_of_id(OURS, case['peer_id']):064x}" == place.hex() == case["place"]


@pytest.mark.slow
def test_digests_and_manifests() -> None:
    for case in map(meant, of("blobs")["digests"]):
        assert digest_of(case["data"]) == plain.digest(case["data"]) == case["digest"]
    for case in map(meant, of("blobs")["manifests"]):
        data = bytes(place % 251 for place in range(case["size"]))
        assert blob_manifest_of(data).encode() == plain.manifest_of(data) == case["manifest"]
        assert digest_of(case["manifest"]) == case["address"]
        read = parse_blob_manifest(case["manifest"], case["address"], len(data))
        assert list(read.chunks) == plain.read_manifest(case["manifest"], case["address"], len(data))["chunks"]
        assert list(read.chunks) == case["chunks"]


@pytest.mark.parametrize("case", cases("blobs", "bad_manifests"))
def test_what_is_no_manifest(case: dict[str, Any]) -> None:
    given = case["manifest"], case["address"], case["most"]
    assert refusal(parse_blob_manifest, *given) == refusal(plain.read_manifest, *given) == case["reason"]


def test_exchanges() -> None:
    for case in map(meant, of("blobs")["exchanges"]):
        numbers = {name: case[name] for name in ("round", "size", "chunk_bytes")}
        group = Group(members=tuple(case["members"]), **numbers)
        name = plain.group_name(case["members"], case["round"], case["size"], case["chunk_bytes"])
        assert group.name == name == case["exchange"]
        assert [[group.span(each).start, group.span(each).stop] for each in group.members] == case["chunks"]


# -- statements


def body_of(case: dict[str, Any]) -> list[Any]:
    layers = {"layers": [list(layer.values()) for layer in case["body"]["layers"]]} if "layers" in case["body"] else {}
    return list({**case["body"], **layers}.values())


@pytest.mark.parametrize("case", cases("statements", "good"))
def test_statements_both_ways(case: dict[str, Any]) -> None:
    raw = case["envelope"]
    opened = open_envelope(raw, OURS)
    assert (opened.sender, opened.digest, opened.raw) == (case["sender"], case["digest"], raw)
    place = {key: case[key] for key in ("epoch", "seq", "prev", "payload")}
    stated = Statement(kind=EnvelopeKind(case["kind"]), body=plain.msgpack.packb(body_of(case)), **place)
    assert seal(Identity(case["seed"]), OURS, stated).raw == raw
    assert plain.write_statement(case["seed"], SCOPE, case, body_of(case)) == raw
    read = plain.read_statement(raw, SCOPE, case["kind"])
    assert {key: read[key] for key in (*place, "sender", "digest", "body")} == {
        key: case[key] for key in (*place, "sender", "digest", "body")
    }
    assert digest_of(case["signed"]) == case["digest"]


@pytest.mark.parametrize(
    "case",
    [each for each in cases("statements", "good") if each.values[0]["kind"] not in ("goodbye", "secure", "statistics")],
)
def test_the_code_reads_the_fields_of_a_statement(case: dict[str, Any]) -> None:
    parsed = PARSERS[EnvelopeKind(case["kind"])](open_envelope(case["envelope"], OURS))
    body = parsed.body if isinstance(parsed, statements.UpdateHeader) else parsed
    for name, value in case["body"].items():
        read = getattr(body, name)
        if name == "layers":
            read = [vars(layer) for layer in read]
        assert (list(read) if isinstance(value, list) else read or type(value)()) == value, name


@pytest.mark.parametrize("case", [each for each in cases("statements", "good") if each.values[0]["kind"] == "secure"])
def test_statements_of_secure_sums_are_read_and_written_alike(case: dict[str, Any]) -> None:
    parsed = parse_secure(open_envelope(case["envelope"], OURS))
    assert (parsed.stage, parsed.exchange, parsed.payload) == (case["seq"], case["prev"], case["payload"])
    assert parsed.body.encode() == plain.msgpack.packb(body_of(case))


def test_class_statistics_are_read_with_the_payload_that_they_name() -> None:
    asked = [each.values[0] for each in cases("messages", "requests")]
    good = [each.values[0] for each in cases("statements", "good")]
    (answer,) = (case["answer"] for case in asked if case["request"] == "statistics")
    (stated,) = (case for case in good if case["kind"] == "statistics")
    shared = SharedPayload(*answer)
    assert shared.envelope == stated["envelope"]
    assert check_statistics(shared, OURS, stated["sender"]) == shared.payload
    assert plain.read_statement(shared.envelope, SCOPE, "statistics")["payload"] == plain.digest(shared.payload)


@pytest.mark.parametrize("case", cases("statements", "good_in_longer_msgpack"))
def test_what_was_signed_is_never_encoded_again(case: dict[str, Any]) -> None:
    same = open_envelope(case["same_fields_as"], OURS)
    opened = open_envelope(case["envelope"], OURS)
    assert opened.statement == same.statement
    assert opened.digest == plain.open_envelope(case["envelope"], SCOPE)["digest"] == case["digest"] != same.digest


def as_a_link(raw: bytes) -> None:
    """As a broadcast is judged."""
    link = statements.parse_update_header(open_envelope(raw, OURS))
    if link.body.genesis not in (None, SCOPE["genesis"]):
        raise RemoteError(Reason.WRONG_MODEL)


@pytest.mark.parametrize("case", cases("statements", "bad"))
def test_bad_statements_are_refused_with_their_reason(case: dict[str, Any]) -> None:
    assert refusal(as_a_link, case["envelope"]) == case["reason"]
    assert refusal(plain.read_statement, case["envelope"], SCOPE, "link") == case["reason"]


# -- streams


@pytest.mark.parametrize("case", cases("messages", "hellos"))
def test_hellos_both_ways(case: dict[str, Any]) -> None:
    given = {key: value for key, value in case.items() if key not in {"swarm", "run", "bytes"}}
    hello = messages.Hello(scope=OURS, **{**given, "records": tuple(given["records"])})
    assert messages.parse_hello(case["bytes"]) == hello
    assert hello.encode() == plain.write_hello(SCOPE, given) == case["bytes"]
    assert {key: plain.read_hello(case["bytes"], SCOPE)[key] for key in given} == given


def greet(raw: bytes) -> None:
    """As a member judges a hello."""
    hello = messages.parse_hello(raw)
    for ours, its, reason in (
        (OURS.swarm, hello.scope.swarm, Reason.WRONG_SWARM),
        (OURS.run, hello.scope.run, Reason.WRONG_RUN),
        (SCOPE["genesis"], hello.genesis, Reason.WRONG_MODEL),
    ):
        if ours != its:
            raise RemoteError(reason)


@pytest.mark.parametrize("case", cases("messages", "bad_hellos"))
def test_bad_hellos_are_refused_with_their_reason(case: dict[str, Any]) -> None:
    assert refusal(greet, case["bytes"]) == refusal(plain.read_hello, case["bytes"], SCOPE) == case["reason"]


MEMBER_ANSWERS = {
    "buckets": bounds.BUCKETS * bounds.BUCKET_BYTES,
    "roster": bounds.MAX_PAGE_BYTES,
    "terms": bounds.MAX_MANIFEST_BYTES,
}


def parse_answer(raw: bytes, request: str) -> list[Any]:
    match request:
        case "links":
            return [list(messages.parse_headers_answer(raw))]
        case "manifest":
            return list(messages.parse_manifest_answer(raw))
        case "find":
            own, others = messages.parse_find_answer(raw)
            return [own, list(others)]
        case "membership":
            return list(vars(messages.parse_known_answer(raw)).values())
        case "buckets" | "roster" | "terms":
            return [messages.parse_bytes_answer(raw, MEMBER_ANSWERS[request])]
        case "statistics":
            return list(messages.parse_statistics_answer(raw))
        case "goodbye" | "part" | "secure" | "pause" | "shift":
            messages.parse_empty_answer(raw)
            return []
        case _:
            return [messages.parse_bytes_answer(raw, limits.MAX_HELLO_BYTES)]


@pytest.mark.parametrize("case", cases("messages", "requests"))
def test_requests_and_answers_both_ways(case: dict[str, Any]) -> None:
    request = messages.parse_request(case["bytes"])
    assert vars(request) == case["fields"]
    assert plain.read_request(case["bytes"]) == (case["request"], case["fields"])
    assert messages.encode_request(request) == plain.write_request(case["request"], case["fields"]) == case["bytes"]
    assert case["frame"] == len(case["bytes"]).to_bytes(4, "big") + case["bytes"]
    assert parse_answer(case["answer_bytes"], case["request"]) == case["answer"]
    assert plain.read_answer(case["answer_bytes"], case["request"]) == case["answer"]
    assert (
        messages.encode_answer(*case["answer"]) == plain.msgpack.packb([True, *case["answer"]]) == case["answer_bytes"]
    )


@pytest.mark.parametrize("case", cases("messages", "bad_requests"))
def test_bad_requests_are_refused_with_their_reason(case: dict[str, Any]) -> None:
    assert (
        refusal(messages.parse_request, case["bytes"]) == refusal(plain.read_request, case["bytes"]) == case["reason"]
    )


@pytest.mark.parametrize("case", [*cases("messages", "refusals"), *cases("messages", "bad_answers")])
def test_refusals_and_bad_answers(case: dict[str, Any]) -> None:
    request = case.get("request", "chunk")
    assert refusal(parse_answer, case["bytes"], request) == case["reason"]
    assert refusal(plain.read_answer, case["bytes"], request) == case["reason"]
    if "detail" in case:
        assert messages.encode_refusal(Reason(case["reason"]), case["detail"]) == case["bytes"]


# -- chains


def test_a_chain_link_by_link_with_a_fork() -> None:
    chain, told = HashChain(), {}
    for case in map(meant, of("chains")["steps"]):
        link = statements.parse_update_header(open_envelope(case["envelope"], OURS))
        assert link.place == (case["epoch"], case["seq"])
        if case["verdict"] == "equivocation":
            with pytest.raises(EquivocationError) as caught:
                chain.learn(link)
            assert caught.value.proof == (told[link.place], link.raw)
        else:
            assert chain.learn(link).value == case["verdict"]
            told.setdefault(link.place, link.raw)


def test_which_pairs_prove_a_lie() -> None:
    for case in map(meant, of("chains")["pairs"]):
        first, second = (plain.read_statement(case[name], SCOPE, "link") for name in ("first", "second"))
        assert plain.proves_a_lie(first, second) is case["proof"], case["what"]
        assert _code_sees_a_lie(case["first"], case["second"]) is case["proof"], case["what"]


def _code_sees_a_lie(first: bytes, second: bytes) -> bool:
    one, two = (statements.parse_update_header(open_envelope(raw, OURS)) for raw in (first, second))
    if one.peer != two.peer:  # each has a chain of its own
        return False
    chain = HashChain()
    chain.learn(one)
    chain.apply(ChainPosition(epoch=one.epoch, seq=one.seq, digest=one.digest, round=one.body.round, raw=one.raw))
    return refusal(chain.learn, two) == Reason.EQUIVOCATION.value


def test_the_links_of_the_chain_name_each_other() -> None:
    links = [meant(case) for case in of("chains")["links"]]
    assert [link["prev"] for link in links] == [plain.NONE, *(link["digest"] for link in links[:-1])]


def test_the_observer_speaks_this_version() -> None:
    """tests/interop/ runs only where Node.js is."""
    text = (ROOT / "tests" / "interop" / "statements.mjs").read_text(encoding="utf-8")
    assert re.findall(r"PROTOCOL_VERSION = (\d+)", text) == [str(limits.PROTOCOL_VERSION)]
