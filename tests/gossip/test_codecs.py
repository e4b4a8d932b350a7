"""Every parser of the wire: what is encoded comes back, and nothing else ever raises anything but RemoteError."""

from collections.abc import Callable

import msgpack
import pytest
from gossip_samples import GENESIS, ONE_OF_EACH, SCOPE, chain, record
from hypothesis import given
from hypothesis import strategies as st

from gossip.blobs.blob import BlobManifest, blob_manifest_of, parse_blob_manifest
from gossip.core.digests import digest_of
from gossip.core.envelope import open_envelope
from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import (
    CHUNK_BYTES,
    MAX_COUNTER,
    MAX_ENVELOPE_BYTES,
    MAX_HELLO_BYTES,
    MAX_LINKS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
)
from gossip.core.messages import (
    ChunkRequest,
    GoodbyeRequest,
    HeadersRequest,
    Hello,
    HelloRequest,
    ManifestRequest,
    Refused,
    Request,
    SnapshotRequest,
    encode_answer,
    encode_refusal,
    encode_request,
    parse_bytes_answer,
    parse_empty_answer,
    parse_headers_answer,
    parse_hello,
    parse_manifest_answer,
    parse_request,
)
from gossip.core.statements import parse_record, parse_snapshot_offer, parse_update_header
from gossip.core.wire import pack, unpack

counters = st.integers(0, MAX_COUNTER)
digests = st.binary(min_size=32, max_size=32)
envelopes = st.binary(max_size=200)

REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(HelloRequest, hello=st.binary(max_size=300)),
    st.builds(HeadersRequest, epoch=counters, first=counters, count=st.integers(0, MAX_LINKS)),
    st.builds(SnapshotRequest, epoch=counters, seq=counters),
    st.builds(ManifestRequest, address=digests),
    st.builds(ChunkRequest, address=digests, index=st.integers(0, 16384)),
    st.builds(GoodbyeRequest, envelope=envelopes),
)
HELLOS = st.builds(
    Hello,
    scope=st.just(SCOPE),
    genesis=digests,
    neighbours=counters,
    admitted=st.booleans(),
    link=envelopes,
    record=envelopes,
    records=st.lists(envelopes, max_size=32).map(tuple),
)
A_HELLO = Hello(scope=SCOPE, genesis=GENESIS, neighbours=3, admitted=True, link=ONE_OF_EACH["link"], record=record())


def opened(parse: Callable[..., object]) -> Callable[[bytes], object]:
    return lambda raw: parse(open_envelope(raw, SCOPE))


def manifest_itself(raw: bytes) -> BlobManifest:
    return parse_blob_manifest(raw, digest_of(raw), 1 << 30)


PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "link": (opened(parse_update_header), ONE_OF_EACH["link"]),
    "offer": (opened(parse_snapshot_offer), ONE_OF_EACH["offer"]),
    "record": (opened(parse_record), ONE_OF_EACH["record"]),
    "goodbye": (lambda raw: open_envelope(raw, SCOPE), ONE_OF_EACH["goodbye"]),
    "hello": (parse_hello, A_HELLO.encode()),
    "request": (parse_request, encode_request(HeadersRequest(epoch=5, first=3, count=2))),
    "bytes answer": (lambda raw: parse_bytes_answer(raw, 100), encode_answer(b"abc")),
    "links answer": (parse_headers_answer, encode_answer([link.raw for link in chain(3)])),
    "manifest answer": (parse_manifest_answer, encode_answer(blob_manifest_of(b"x").encode(), b"x")),
    "empty answer": (parse_empty_answer, encode_answer()),
    "manifest": (manifest_itself, blob_manifest_of(bytes(3 * CHUNK_BYTES // 2)).encode()),
}
each_parser = pytest.mark.parametrize("name", PARSERS)


@given(REQUESTS)
def test_requests_come_back(request):
    assert parse_request(encode_request(request)) == request


@given(HELLOS)
def test_hellos_come_back(hello):
    assert parse_hello(hello.encode()) == hello


@given(st.lists(envelopes, max_size=MAX_LINKS))
def test_link_answers_come_back(raws):
    assert parse_headers_answer(encode_answer(raws)) == tuple(raws)


@given(st.sampled_from(Reason), st.text(max_size=400))
def test_refusals_come_back_as_one_line(reason, detail):
    with pytest.raises(Refused) as caught:
        parse_empty_answer(encode_refusal(reason, detail))
    assert caught.value.reason is reason


@each_parser
def test_the_sample_is_accepted(name):
    parse, raw = PARSERS[name]
    parse(raw)


@each_parser
def test_every_truncation_is_refused(name):
    parse, raw = PARSERS[name]
    for size in range(len(raw)):
        with pytest.raises(RemoteError):
            parse(raw[:size])


@each_parser
def test_trailing_bytes_are_refused(name):
    parse, raw = PARSERS[name]
    with pytest.raises(RemoteError):
        parse(raw + b"\x00")


@each_parser
def test_every_flipped_byte_is_refused_or_read_as_something_else(name):
    parse, raw = PARSERS[name]
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0xFF
        try:
            parse(bytes(damaged))
        except RemoteError:
            continue
        assert name not in {"link", "offer", "record", "goodbye"}, f"byte {at} of what was signed can be changed"


@each_parser
@given(data=st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_remote_errors(name, data):
    try:
        PARSERS[name][0](data)
    except RemoteError:
        return
    assert name in {"request", "bytes answer", "links answer", "empty answer", "manifest", "manifest answer"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)


@each_parser
@given(value=VALUES)
def test_any_msgpack_raises_nothing_but_remote_errors(name, value):
    raw = msgpack.packb(value)
    try:
        PARSERS[name][0](raw)
    except RemoteError:
        return
    assert name not in {"link", "offer", "record", "goodbye"}, "nothing unsigned is taken"


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("link", MAX_ENVELOPE_BYTES),
        ("hello", MAX_HELLO_BYTES),
        ("request", MAX_REQUEST_BYTES),
        ("links answer", MAX_RESPONSE_BYTES),
    ],
)
def test_oversize_is_refused_before_it_is_decoded(name, limit):
    with pytest.raises(RemoteError) as caught:
        PARSERS[name][0](b"\xc1" * (limit + 1))  # 0xc1 is no msgpack: decoding would say malformed
    assert caught.value.reason is Reason.OVERSIZE


def test_nested_headers_that_declare_much_are_refused():
    bomb = b"\xdc\x7f\xff" * 2000
    with pytest.raises(RemoteError) as caught:
        unpack(bomb, MAX_ENVELOPE_BYTES)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("value", [[True], [-1], [2**53], [1.0], ["1"], [None], [], [1, 2]])
def test_an_integer_field_takes_nothing_else(value):
    def parse() -> None:
        fields = unpack(pack(value), 100)
        fields.integer()
        fields.end()

    with pytest.raises(RemoteError):
        parse()


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "snowman \u2603", "\u202e"])
def test_text_that_could_harm_a_terminal_is_refused(text):
    with pytest.raises(RemoteError):
        unpack(pack([text]), 100).text(50)


def test_an_unknown_request_is_named_as_such():
    with pytest.raises(RemoteError) as caught:
        parse_request(pack(["format_disk"]))
    assert caught.value.reason is Reason.UNKNOWN_KIND
