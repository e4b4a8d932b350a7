"""A relay that is reached by a folder alone, over real libp2p: files in a folder take the place of sockets."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from libp2p_harness import ECHO, Node, receive_exactly, running

from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.relay_service import RelayService, dialled_outside
from gossip.transport.base import TransportError
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.pnet import PresharedKey
from gossip.transport.spool import spool_ends
from gossip.transport.spool.segments import SpoolAnswer, SpoolTurn
from gossip.transport.spool.spool_ends import spool_address
from gossip.transport.spool.spool_folder import perform

pytestmark = pytest.mark.paired


class Spooled:
    """A relay that listens nowhere, and serves a folder."""

    def __init__(self, folder: Path, *members: Node, psk: PresharedKey | None = None) -> None:
        identity = Identity.generate()
        self.transport = Libp2pTransport(Libp2pConfig(listen=(), spool=folder), identity.seed, psk=psk)
        self.service = RelayService(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(peers=tuple(member.address for member in members), relay_bytes_per_s=1e9),
            rng=random.Random(1),
            warn=print,
            connect=self.transport.connect_bare,
            outside=dialled_outside((), ()),
        )

    @property
    def address(self) -> str:
        return spool_address(self.transport.peer_id)


@pytest.mark.parametrize(
    "psk",
    [pytest.param(None, id="open"), pytest.param(PresharedKey(bytes(range(32))), id="psk", marks=pytest.mark.thorough)],
)
async def test_a_node_without_any_network_reaches_a_member(tmp_path: Path, psk: PresharedKey | None) -> None:
    member, folder = Node(psk=psk), tmp_path / "spool"
    async with running(member), trio.open_nursery() as nursery:
        login = Spooled(folder, member, psk=psk)
        await nursery.start(login.service.run)
        client = Node(listen=(), via=login.address, spool=folder, psk=psk)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        assert login.service.clients() == 1
        assert await client.transport.dial(member.address) == member.peer_id
        assert await client.echo(member.peer_id, bytes(3_000_000)) == bytes(3_000_000)
        assert await member.echo(client.transport.peer_id) == b"hello"
        await client.transport.disconnect(login.transport.peer_id)
        with trio.fail_after(30):
            while {path.name for path in folder.iterdir()} != {"relay"}:  # noqa: ASYNC110  # the disk tells nobody
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert list(folder.iterdir()) == []


MARK = b"a sentence that anybody could read"


class Meddler:
    """Does what who can write to the folder might: `change` gets what a reader takes, and gives what it gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = bytearray()
        self.change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]] | None = None
        monkeypatch.setattr(spool_ends, "perform", self._perform)

    def _perform(self, session: Path, turn: SpoolTurn) -> SpoolAnswer:
        answer = perform(session, turn)
        self.seen += b"".join(answer.pieces)
        if self.change is None or not answer.pieces:
            return answer
        change, self.change = self.change, None
        return replace(answer, pieces=change(answer.pieces))


def flipped(pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
    first = bytearray(pieces[0])
    first[len(first) // 2] ^= 1
    return bytes(first), *pieces[1:]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(flipped, id="altered"),
        pytest.param(lambda pieces: (pieces[0], *pieces), id="repeated", marks=pytest.mark.thorough),
        pytest.param(lambda pieces: pieces[1:], id="lost", marks=pytest.mark.thorough),
        pytest.param(lambda pieces: (b"\0" * 100, *pieces), id="added", marks=pytest.mark.thorough),
    ],
)
async def test_who_can_write_to_the_disk_ends_a_connection_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
) -> None:
    member, folder, meddler = Node(), tmp_path / "spool", Meddler(monkeypatch)
    async with running(member), trio.open_nursery() as nursery:
        login = Spooled(folder, member)
        await nursery.start(login.service.run)
        client = Node(listen=(), via=login.address, spool=folder, heartbeat_s=0.3)
        await nursery.start(client.transport.run, client)
        await client.transport.dial(login.address)
        await client.transport.dial(member.address)
        stream = await client.transport.open_stream(member.peer_id, ECHO)
        await stream.send_all(MARK)
        assert await receive_exactly(stream, len(MARK)) == MARK
        assert MARK not in meddler.seen, "the disk sees ciphertext"
        assert len(meddler.seen) > 2 * len(MARK)

        meddler.change = change
        heard = b""
        with trio.fail_after(20), suppress(TransportError):
            while True:  # what is lost is missed with the next piece
                await stream.send_all(MARK)
                with trio.move_on_after(0.5):
                    heard += await stream.receive_some(1 << 16)
        assert heard == (MARK * (len(heard) // len(MARK) + 1))[: len(heard)]
        with trio.fail_after(20):
            while client.transport.peers:  # noqa: ASYNC110  # the muxer's own task finds out
                await trio.sleep(0.01)
        await client.transport.dial(login.address)
        await client.transport.dial(member.address)
        assert await client.echo(member.peer_id) == b"hello"
        nursery.cancel_scope.cancel()
