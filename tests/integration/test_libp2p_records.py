"""Records beneath yamux: any sizes and reads, what came before the muxer, ends at every byte, and bad records."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.security.noise.io import NoiseTransportReadWriter
from noise.connection import Keypair, NoiseConnection
from sizes import examples

from gossip.transport.libp2p.noise_records import Records
from gossip.transport.libp2p.outbox import RECORD_BYTES
from gossip.transport.libp2p.tcp import BufferedTcpStream
from gossip.transport.wire_bytes import WireBytes

SIZES = st.integers(1, RECORD_BYTES) | st.integers(1, 20)


def shaken() -> tuple[NoiseConnection, NoiseConnection]:
    """Two ends of a finished Noise handshake."""
    ends = [NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256") for _ in range(2)]
    for number, end in enumerate(ends):
        end.set_keypair_from_private_bytes(Keypair.STATIC, bytes([number + 1]) * 32)
        (end.set_as_responder if number else end.set_as_initiator)()
        end.start_handshake()
    for turn in range(3):
        ends[1 - turn % 2].read_message(ends[turn % 2].write_message())
    return ends[0], ends[1]


class Session(SimpleNamespace):
    """What `Records` uses of libp2p's SecureSession."""

    def _drain(self, n: int | None) -> bytes:
        return bytes(self.left)


def over(stream: Any, noise: NoiseConnection, left: bytes = b"") -> Records:
    return Records(Session(conn=NoiseTransportReadWriter(RawConnection(stream, True), noise), left=left))


def wired() -> tuple[Records, Records, trio.StapledStream]:
    """A sender, a receiver, and what the sender writes to."""
    ours, theirs = trio.testing.memory_stream_pair()
    one, other = shaken()
    return over(BufferedTcpStream(ours, WireBytes()), one), over(BufferedTcpStream(theirs, WireBytes()), other), ours


async def sealed(records: Sequence[bytes]) -> tuple[bytes, NoiseConnection]:
    """The wire's bytes of these records, and the end that can read them."""
    one, other = shaken()
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)

    await over(SimpleNamespace(write=write), one).write(records)
    assert len(written) == 1  # one system call for all of them
    return written[0], other


async def ending(wire: bytes) -> BufferedTcpStream:
    """A connection that ends after these bytes."""
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(wire)
    await ours.aclose()
    return BufferedTcpStream(theirs, WireBytes())


async def reading(wire: bytes, noise: NoiseConnection) -> Records:
    return over(await ending(wire), noise)


@settings(max_examples=examples(30))
@given(st.lists(SIZES, min_size=1, max_size=6), st.lists(st.integers(1, 3 * RECORD_BYTES), min_size=1, max_size=9))
def test_bytes_come_in_order_whatever_the_records_and_the_reads(sizes: list[int], reads: list[int]) -> None:
    async def exchange() -> None:
        sender, receiver, _ = wired()
        records = [bytes([number]) * size for number, size in enumerate(sizes)]
        whole, got = b"".join(records), b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.write, records)
            for size in reads:
                wanted = min(size, len(whole) - len(got))
                got += await receiver.read(wanted)
        assert got == whole[: len(got)]
        assert len(got) == min(sum(reads), len(whole))

    trio.run(exchange)


async def test_what_was_decrypted_before_is_read_first() -> None:
    wire, noise = await sealed([b"world"])
    records = over(await ending(wire), noise, left=b"hello ")
    assert await records.read(3) == b"hel"
    assert await records.read() == b"lo "
    assert await records.read(9) == b"world"


async def test_every_end_within_a_record_is_one_of_the_connection() -> None:
    wire, _ = await sealed([b"first", b"second"])
    whole = len(wire) - len(b"second") - 18
    for cut in range(len(wire)):
        wire, noise = await sealed([b"first", b"second"])
        records = await reading(wire[:cut], noise)
        if cut >= whole:
            assert await records.read(11) == b"first"  # fewer bytes than asked for: yamux ends the connection
        with pytest.raises(IncompleteReadError) as caught:
            await records.read(1)
        assert caught.value.is_clean_close


@pytest.mark.parametrize("spoil", [lambda wire: wire[:-1] + bytes([wire[-1] ^ 1]), lambda wire: b"\x00\x00" + wire])
async def test_a_record_that_does_not_decrypt_ends_the_connection(spoil: Any) -> None:
    wire, noise = await sealed([b"secret"])
    with pytest.raises(RawConnError):
        await (await reading(spoil(wire), noise)).read(1)


async def test_an_empty_record_ends_it_too() -> None:
    wire, noise = await sealed([b""])
    with pytest.raises(RawConnError):
        await (await reading(wire, noise)).read(1)


async def test_a_closed_socket_wakes_a_reader_and_a_cancelled_one_leaves_the_rest() -> None:
    sender, receiver, bare = wired()
    with trio.move_on_after(0):
        await receiver.read(1)
    await sender.write([b"kept"])
    assert await receiver.read(4) == b"kept"
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(IncompleteReadError):
                await receiver.read(12)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await bare.aclose()
