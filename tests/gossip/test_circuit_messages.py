"""The wire of circuits: what is written is what other programs read, and any bytes are a message or a refusal."""

from contextlib import suppress

import pytest
import trio
from gossip_swarm import identity
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.peer.envelope import unmarshal_envelope
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from multiaddr import Multiaddr
from sizes import examples

from gossip.core.errors import Reason, RemoteError
from gossip.core.protobuf import ProtobufFields, data_field, number_field, read_varint, varint
from gossip.reachability.circuit import (
    MAX_MESSAGE_BYTES,
    MAX_RELAY_ADDRESSES,
    CircuitKind,
    CircuitLimit,
    CircuitMessage,
    CircuitStatus,
    Reservation,
    binary_address,
    delimited,
    encode_hop,
    encode_stop,
    is_peer,
    parse_hop,
    parse_peer_bytes,
    parse_stop,
    peer_bytes,
    status_for,
    words_for,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.vouchers import VOUCHER_DOMAIN, check_voucher, seal_voucher
from gossip.transport.memory.pipe import MemoryStream, Pipe
from gossip.transport.wire_bytes import WireBytes

RELAY, ONE, TWO = (identity(number) for number in (1, 2, 3))
SHA256_PEER = bytes([0x12, 0x20]) + bytes(range(32))
ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{RELAY.peer_id}"


def grant() -> CircuitMessage:
    voucher = seal_voucher(RELAY, ONE.peer_id, 1_800_000_000)
    addresses = (binary_address(ADDRESS) or b"",)
    reservation = Reservation(expire=1_800_000_000, addresses=addresses, voucher=voucher)
    return CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK, reservation=reservation)


MESSAGES = [
    CircuitMessage(kind=CircuitKind.RESERVE),
    CircuitMessage(kind=CircuitKind.CONNECT, peer=ONE.peer_id),
    CircuitMessage(kind=CircuitKind.CONNECT, peer=ONE.peer_id, limit=CircuitLimit(duration_s=120, data_bytes=1 << 17)),
    CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.NO_RESERVATION),
    grant(),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back_as_they_were(message):
    assert parse_hop(encode_hop(message)) == message
    if message.kind is not CircuitKind.RESERVE and message.reservation is None:
        assert parse_stop(encode_stop(message)) == message


def test_another_librarys_messages_are_read_and_ours_by_it():
    hop = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=peer_bytes(ONE.peer_id), addrs=[b"\x04"]))
    assert parse_hop(hop.SerializeToString()) == CircuitMessage(kind=CircuitKind.CONNECT, peer=ONE.peer_id)
    theirs = pb.HopMessage.FromString(encode_hop(grant()))
    assert (theirs.type, theirs.status) == (pb.HopMessage.STATUS, pb.OK)
    assert theirs.reservation.expire == 1_800_000_000
    assert [str(Multiaddr(each)) for each in theirs.reservation.addrs] == [ADDRESS]
    assert not theirs.HasField("limit")
    stop = pb.StopMessage.FromString(encode_stop(MESSAGES[2]))
    assert (stop.type, stop.peer.id) == (pb.StopMessage.CONNECT, peer_bytes(ONE.peer_id))
    assert (stop.limit.duration, stop.limit.data) == (120, 1 << 17)
    answer = pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.PERMISSION_DENIED)
    assert parse_stop(answer.SerializeToString()).status == CircuitStatus.PERMISSION_DENIED


def test_our_statuses_are_those_of_the_specification():
    assert {status.name: status.value for status in CircuitStatus} == {
        name: number for name, number in pb.Status.items() if name != "UNUSED"
    }
    assert words_for(204) == "no_reservation"
    assert words_for(999) == "status 999"


def test_a_limit_of_nothing_is_none():
    limit = pb.Limit(duration=0, data=0)
    raw = pb.StopMessage(type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=SHA256_PEER), limit=limit).SerializeToString()
    assert parse_stop(raw).limit == CircuitLimit()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", CircuitStatus.MALFORMED_MESSAGE),  # no type
        (number_field(1, 1), CircuitStatus.MALFORMED_MESSAGE),  # a circuit with nobody
        (number_field(1, 1) + data_field(2, data_field(1, b"me")), CircuitStatus.MALFORMED_MESSAGE),
        (number_field(1, 2), CircuitStatus.MALFORMED_MESSAGE),  # a status that says nothing
        (data_field(1, b"\x01"), CircuitStatus.MALFORMED_MESSAGE),  # a type that is bytes
        (number_field(1, 1) + number_field(2, 7), CircuitStatus.MALFORMED_MESSAGE),  # a peer that is a number
        (number_field(1, 0) + b"\x0b", CircuitStatus.MALFORMED_MESSAGE),  # a group
        (number_field(1, 0) + b"\x12\x05abc", CircuitStatus.MALFORMED_MESSAGE),  # cut short
        (b"\x08" + b"\xff" * 10, CircuitStatus.MALFORMED_MESSAGE),  # a number without an end
        (number_field(1, 3), CircuitStatus.UNEXPECTED_MESSAGE),
    ],
)
def test_what_is_wrong_is_answered_with_its_status(raw, status):
    with pytest.raises(RemoteError) as caught:
        parse_hop(raw)
    assert status_for(caught.value) is status


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_refusal(raw):
    for parse in (parse_hop, parse_stop):
        with suppress(RemoteError):
            message = parse(raw)
            assert (message.kind is CircuitKind.CONNECT) == (message.peer is not None)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_some_bytes_changed_is_a_message_or_a_refusal(message, data):
    raw = bytearray(encode_hop(message))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    with suppress(RemoteError):
        parse_hop(bytes(raw))


@given(st.integers(0, 2**64 - 1), st.binary(max_size=4))
def test_numbers_come_back_as_they_were(number, after):
    assert read_varint(varint(number) + after, 0) == (number, len(varint(number)))


def test_a_number_beyond_64_bits_is_none():
    with pytest.raises(RemoteError, match="64 bits"):
        read_varint(b"\xff" * 9 + b"\x02", 0)


def test_the_last_of_a_repeated_field_counts():
    fields = ProtobufFields(number_field(1, 1) + number_field(1, 2) + data_field(2, b"a") + data_field(2, b"b"))
    assert (fields.number(1), fields.data(2), fields.every(2)) == (2, b"b", [b"a", b"b"])
    assert (fields.number(9), fields.data(9), fields.every(9), fields.within(9)) == (None, None, [], None)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x24", SHA256_PEER[:-1], SHA256_PEER + b"x", b"\x12\x02ab"])
def test_other_bytes_are_no_peer(raw):
    with pytest.raises(RemoteError):
        parse_peer_bytes(raw)


@pytest.mark.parametrize("name", ["", "nobody", "0OIl", "12D3KooW", f"{ONE.peer_id}1"])
def test_other_words_are_no_peer(name):
    assert is_peer(ONE.peer_id)
    assert not is_peer(name)


def test_peers_come_back_as_they_were():
    assert parse_peer_bytes(peer_bytes(ONE.peer_id)) == ONE.peer_id
    assert peer_bytes(parse_peer_bytes(SHA256_PEER)) == SHA256_PEER


@pytest.mark.parametrize(
    "address",
    [ADDRESS, f"/ip6/2001:db8::1/tcp/1/p2p/{ONE.peer_id}", f"/dns4/relay.example/tcp/65535/p2p/{ONE.peer_id}"],
)
def test_addresses_are_binary_as_another_library_has_them(address):
    assert binary_address(address) == Multiaddr(address).to_bytes()


@pytest.mark.parametrize(
    "address", ["", "/memory/1/p2p/x", "/ip4/1.2.3/tcp/1", "/ip6/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/65536", "/p2p"]
)
def test_what_is_no_such_address_is_none(address):
    assert binary_address(address) is None


def test_more_addresses_than_may_be_are_left_out():
    many = Reservation(expire=1, addresses=(b"\x04\x01\x02\x03\x04",) * (MAX_RELAY_ADDRESSES + 3))
    back = parse_hop(
        encode_hop(CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK, reservation=many))
    ).reservation
    assert back is not None
    assert len(back.addresses) == MAX_RELAY_ADDRESSES


def test_another_library_takes_a_voucher_of_ours():
    envelope = unmarshal_envelope(seal_voucher(RELAY, ONE.peer_id, 77))
    envelope.validate(VOUCHER_DOMAIN)
    assert envelope.public_key.to_bytes() == RELAY.public_key
    voucher = pb.Voucher.FromString(envelope.raw_payload)
    assert (voucher.relay, voucher.peer) == (peer_bytes(RELAY.peer_id), peer_bytes(ONE.peer_id))
    assert voucher.expiration == 77


@pytest.mark.parametrize(
    "voucher",
    [
        seal_voucher(ONE, ONE.peer_id, 77),  # of another
        seal_voucher(RELAY, TWO.peer_id, 77),  # for another
        seal_voucher(RELAY, ONE.peer_id, 78),  # until another time
        seal_voucher(RELAY, ONE.peer_id, 77)[:-1] + b"\x00",  # by nobody
        seal_voucher(RELAY, ONE.peer_id, 77).replace(b"\x03\x02", b"\x03\x01"),  # another kind of record
        seal_voucher(RELAY, ONE.peer_id, 77).replace(RELAY.public_key, ONE.public_key, 1),  # by another, as it says
        b"",
    ],
)
def test_a_voucher_that_is_not_the_relays_word_is_refused(voucher):
    check_voucher(seal_voucher(RELAY, ONE.peer_id, 77), RELAY.peer_id, ONE.peer_id, 77)
    with pytest.raises(RemoteError):
        check_voucher(voucher, RELAY.peer_id, ONE.peer_id, 77)


def streams():
    there, back = (Pipe(lambda size: 0.0) for _ in range(2))
    ours = MemoryStream(ONE.peer_id, back, there, WireBytes())
    return ours, MemoryStream(TWO.peer_id, there, back, WireBytes())


async def heard(raw: bytes, *, ends: bool = True, patience_s: float = 1.0) -> bytes | None:
    """What a receiver makes of these bytes, after which the stream ends, or nothing comes."""
    ours, theirs = streams()
    await ours.send_all(raw)
    if ends:
        await ours.close()
    return await receive_message(theirs, patience_s)


async def test_a_message_is_read_to_its_end_and_no_further():
    ours, theirs = streams()
    await send_message(ours, b"x" * 300, 1.0)
    await ours.send_all(b"the circuit")
    assert await receive_message(theirs, 1.0) == b"x" * 300
    assert await theirs.receive_some(100) == b"the circuit"


async def test_a_stream_without_a_message_has_none():
    assert await heard(b"") is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x80", Reason.PROTOCOL),
        (b"\x05abc", Reason.PROTOCOL),
        (varint(MAX_MESSAGE_BYTES + 1), Reason.OVERSIZE),
        (b"\xff\xff\xff\xff", Reason.OVERSIZE),
    ],
)
async def test_a_length_that_is_none_is_refused(raw, reason):
    with pytest.raises(RemoteError) as caught:
        await heard(raw)
    assert caught.value.reason is reason


async def test_who_says_nothing_or_trickles_is_given_up(autojump_clock):
    ours, theirs = streams()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            for digit in delimited(b"x" * 100):
                await ours.send_all(bytes([digit]))
                await trio.sleep(0.3)

        nursery.start_soon(trickle)
        with pytest.raises(RemoteError) as caught:
            await receive_message(theirs, 5.0)
        assert caught.value.reason is Reason.TIMEOUT
        assert trio.current_time() - began == pytest.approx(5.0)
        nursery.cancel_scope.cancel()


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_none_or_a_refusal(raw):
    async def hear() -> None:
        with suppress(RemoteError):
            await heard(raw)

    trio.run(hear)
