"""A spool folder: bytes as numbered files, in any interleaving of two ends; who may serve it; a disk that is full."""

import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from gossip_swarm import identity, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.spool import spool_ends, spool_folder
from gossip.transport.spool.segments import (
    BUFFER_BYTES,
    DOWN,
    SEGMENT_BYTES,
    UP,
    WINDOW_BYTES,
    SegmentPipe,
    SpoolAnswer,
    SpoolTurn,
    parse_segment,
    segment_name,
)
from gossip.transport.spool.spool_ends import LOOK_S, MAX_SESSIONS, SpoolEnds
from gossip.transport.spool.spool_folder import (
    BEAT_S,
    DEAD_AFTER_S,
    RELAY_FILE,
    SpoolFolder,
    SpoolRelay,
    parse_relay,
    perform,
    session_peer,
)
from gossip.transport.spool.spool_stream import FULL_S, GAP_S, IDLE_S, SpoolStream
from gossip.transport.wire_bytes import WireBytes

RELAY, NODE, OTHER = (identity(number).peer_id for number in (1, 2, 3))


class Disk:
    """A session's folder in memory. `room`: how many more segments fit."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.room = 1 << 30
        self.most = 0

    def perform(self, turn: SpoolTurn) -> SpoolAnswer:
        written = 0
        for name, data in turn.writes:
            if self.room <= 0:
                break
            assert name not in self.files
            self.files[name] = data
            self.room -= 1
            written += 1
        self.most = max(self.most, sum(map(len, self.files.values())))
        names, pieces, number, room = frozenset(self.files), [], turn.first, turn.room
        while room > 0 and (data := self.files.pop(segment_name(turn.incoming, number), None)) is not None:
            pieces.append(data)
            number, room = number + 1, room - max(1, len(data))
        return SpoolAnswer(written=written, names=names, pieces=tuple(pieces))


# -- what is written, read and removed


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 3 * SEGMENT_BYTES)),
            st.tuples(st.just("turn"), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 2 * SEGMENT_BYTES)),
            st.tuples(st.just("room"), st.just(0), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_whatever_the_order_of_turns_bytes_arrive_once_and_in_order_within_the_bounds(steps):
    disk, pipes, rng = Disk(), (SegmentPipe(UP), SegmentPipe(DOWN)), random.Random(1)
    sent, got = [bytearray(), bytearray()], [bytearray(), bytearray()]

    def turn(end: int) -> None:
        it = pipes[end].plan()
        pipes[end].took(it, disk.perform(it))
        assert len(pipes[end].received) < BUFFER_BYTES + SEGMENT_BYTES

    def read(end: int, size: int) -> None:
        got[1 - end] += pipes[end].received[:size]
        del pipes[end].received[:size]

    for what, end, amount in steps:
        if what == "send" and not pipes[end].crowded:
            data = rng.randbytes(amount)
            sent[end] += data
            pipes[end].add(data)
        elif what == "turn":
            turn(end)
        elif what == "read":
            read(end, amount)
        elif what == "room":
            disk.room = amount
        assert got[0] == sent[0][: len(got[0])]
        assert got[1] == sent[1][: len(got[1])]
    disk.room = 1 << 30
    for pipe in pipes:
        pipe.end()
    for _ in range(80):
        for end in (0, 1):
            turn(end)
            read(end, BUFFER_BYTES)
    assert got == sent
    assert all(pipe.over and not pipe.unsent for pipe in pipes)
    assert disk.files == {}
    assert disk.most <= 2 * WINDOW_BYTES


@pytest.mark.parametrize("pieces", [(bytes(SEGMENT_BYTES + 1),), (b"", b"more")])
def test_a_segment_that_no_honest_end_writes_is_an_error(pieces):
    pipe = SegmentPipe(UP)
    with pytest.raises(TransportError, match="none that the far end may write"):
        pipe.took(pipe.plan(), SpoolAnswer(written=0, names=(), pieces=pieces))


# -- names and files that anybody may have written


@given(st.integers(0, 10**12 - 1), st.sampled_from([UP, DOWN]))
def test_names_of_segments_come_back_as_they_were(number, direction):
    assert parse_segment(segment_name(direction, number)) == (direction, number)


@given(st.text(max_size=20))
def test_any_other_name_is_no_segment_and_no_session(name):
    parsed = parse_segment(name)
    assert parsed is None or segment_name(*parsed) == name
    assert session_peer(name) is None


def test_a_session_is_named_after_its_node(tmp_path):
    path = SpoolFolder(tmp_path).open(NODE)
    assert session_peer(path.name) == NODE
    assert path.stat().st_mode & 0o777 == 0o700


def sign(**changes: object) -> SpoolRelay:
    fields = {"peer": RELAY, "host": "login", "pid": 7, "nonce": "n", "beat": 1} | changes
    return SpoolRelay(**fields)


@given(st.integers(0, 1 << 40), st.text(max_size=30))
def test_a_relays_file_comes_back_as_it_was(beat, host):
    assert parse_relay(sign(beat=beat, host=host).encode()) == sign(beat=beat, host=host)


@given(st.binary(max_size=100))
def test_a_relays_file_of_any_bytes_names_nobody(raw):
    assert parse_relay(raw) is None


@pytest.mark.parametrize(
    "changes",
    [{"peer": "nobody"}, {"pid": "7"}, {"pid": 0}, {"pid": -1}, {"pid": 2**31}, {"beat": True}, {"host": None}],
)
def test_a_relays_file_with_other_fields_names_nobody(changes):
    assert parse_relay(sign(**changes).encode()) is None


def test_every_part_of_a_relays_file_is_needed():
    whole = sign().encode()
    assert [parse_relay(whole[:size]) for size in range(len(whole))] == [None] * len(whole)


# -- the folder


@pytest.mark.parametrize(
    ("mode", "words"), [(0o750, "chmod 700"), (0o701, "chmod 700"), (0o777, "others may enter the spool folder")]
)
def test_a_folder_that_others_may_enter_is_refused(tmp_path, mode, words):
    tmp_path.chmod(mode)
    with pytest.raises(LocalError, match=words):
        SpoolFolder(tmp_path).prepare(make=True)


def test_a_folder_that_is_none_of_ours_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(LocalError, match="is no folder"):
            SpoolFolder(tmp_path / name).prepare(make=False)
    with pytest.raises(LocalError, match="cannot be used"):
        SpoolFolder(tmp_path / "missing").prepare(make=False)
    folder = SpoolFolder(tmp_path / "new")
    folder.prepare(make=True)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(LocalError, match="another user's"):
        folder.prepare(make=False)


# -- a stream, on the virtual clock


async def inline(call: Callable[[], object]) -> object:
    await trio.lowlevel.checkpoint()
    return call()


def stream(disk: Disk, outgoing: str, nursery: trio.Nursery, gone: list[str] | None = None) -> SpoolStream:
    async def over() -> None:
        disk.files.clear()
        if gone is not None:
            gone.append(outgoing)

    async def turn(it: SpoolTurn) -> SpoolAnswer:
        return await inline(partial(disk.perform, it))

    made = SpoolStream(RELAY, outgoing, turn, over, WireBytes())
    nursery.start_soon(made.pump)
    return made


async def read_all(source: SpoolStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await source.receive_some(1 << 20)
        assert piece
        data += piece
    return data


async def test_bytes_go_both_ways_and_the_end_is_told(autojump_clock):
    disk, data = Disk(), random.Random(2).randbytes(5 << 20)
    async with trio.open_nursery() as nursery:
        one, other = stream(disk, UP, nursery), stream(disk, DOWN, nursery)
        nursery.start_soon(one.send_all, data)
        nursery.start_soon(other.send_all, data[::-1])
        assert await read_all(other, len(data)) == data
        assert await read_all(one, len(data)) == data[::-1]
        assert disk.most <= 2 * WINDOW_BYTES
        await one.close()
        assert await other.receive_some(1) == b""
        nursery.cancel_scope.cancel()


async def test_a_first_byte_after_a_silence_is_there_within_a_look(autojump_clock):
    disk = Disk()
    async with trio.open_nursery() as nursery:
        one, other = stream(disk, UP, nursery), stream(disk, DOWN, nursery)
        await trio.sleep(60)
        began = trio.current_time()
        await one.send_all(b"x")
        assert await other.receive_some(1) == b"x"
        assert trio.current_time() - began <= IDLE_S
        began = trio.current_time()
        await other.send_all(b"y")
        assert await one.receive_some(1) == b"y"
        assert trio.current_time() - began < 0.01, "it looks often while bytes move"
        nursery.cancel_scope.cancel()


async def test_a_reset_removes_the_session_and_both_ends_know(autojump_clock):
    disk, gone = Disk(), []
    async with trio.open_nursery() as nursery:
        one = stream(disk, UP, nursery, gone)
        await one.reset()
        with pytest.raises(TransportError):
            await one.send_all(b"x")
        with pytest.raises(TransportError):
            await one.receive_some(1)
    assert gone == [UP]


async def test_what_does_not_fit_on_the_disk_waits_and_nothing_is_lost(autojump_clock):
    disk, data = Disk(), random.Random(3).randbytes(3 * SEGMENT_BYTES)
    async with trio.open_nursery() as nursery:
        one, other = stream(disk, UP, nursery), stream(disk, DOWN, nursery)
        disk.room = 1
        nursery.start_soon(one.send_all, data)
        await trio.sleep(FULL_S / 2)
        disk.room = 100
        assert await read_all(other, len(data)) == data
        disk.room = 0
        await one.send_all(b"x")
        with pytest.raises(TransportError, match="the disk of the spool folder is full"):
            await one.receive_some(1)
        nursery.cancel_scope.cancel()


async def test_a_segment_that_somebody_removes_ends_the_session(autojump_clock):
    disk, gone = Disk(), []
    async with trio.open_nursery() as nursery:
        one = stream(disk, UP, nursery)
        await one.send_all(bytes(2 * SEGMENT_BYTES))
        await trio.sleep(1)
        del disk.files[segment_name(UP, 0)]
        began = trio.current_time()
        other = stream(disk, DOWN, nursery, gone)
        with pytest.raises(TransportError, match="somebody removed it"):
            await other.receive_some(1)
        assert GAP_S <= trio.current_time() - began <= GAP_S + 1
        await trio.sleep(1)
        assert gone == [DOWN]
        nursery.cancel_scope.cancel()


# -- the two ends, on the virtual clock and a real folder


class Ends:
    """One process's ends, whose tasks run in a nursery that may be killed."""

    def __init__(self, path: Path, me: PeerId, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.scope = trio.CancelScope()
        self.accepted: list[SpoolStream] = []
        self.wire = WireBytes()
        self.ends = SpoolEnds(path, me, spawn=nursery.start_soon, wire=self.wire, offload=inline)

    async def serve(self) -> None:
        async def accept(stream: SpoolStream) -> None:
            self.accepted.append(stream)

        with self.scope:
            await self.ends.serve(accept)


async def test_a_node_reaches_the_relay_of_its_folder_and_stale_files_go(autojump_clock, tmp_path):
    folder = tmp_path / "spool"
    async with trio.open_nursery() as nursery:
        relay, node = Ends(folder, RELAY, nursery), Ends(folder, NODE, nursery)
        await relay.ends.claim()
        SpoolFolder(folder).open(OTHER)
        left = SpoolFolder(folder).open(NODE)
        await node.ends.prepare()
        assert [session_peer(path.name) for path in folder.iterdir() if path.name != RELAY_FILE] == [OTHER]
        assert not left.exists()
        nursery.start_soon(relay.serve)
        one = await node.ends.dial(RELAY)
        await one.send_all(b"hello")
        await until(lambda: len(relay.accepted) == 2)
        other = next(each for each in relay.accepted if each.remote == NODE)
        assert await other.receive_some(5) == b"hello"
        with pytest.raises(TransportError, match="another relay serves"):
            await node.ends.dial(OTHER)
        await one.reset()
        with pytest.raises(TransportError):
            await other.receive_some(1)
        relay.scope.cancel()
        await trio.sleep(1)
        assert list(folder.iterdir()) == []
        with pytest.raises(TransportError, match="no relay serves"):
            await node.ends.dial(RELAY)
        nursery.cancel_scope.cancel()


async def test_a_second_relay_is_refused_and_a_dead_ones_place_is_taken(autojump_clock, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_folder, "_is_alive", lambda pid: True)  # nothing is known of a process elsewhere
    folder = tmp_path / "spool"
    async with trio.open_nursery() as nursery:
        first, second = Ends(folder, RELAY, nursery), Ends(folder, OTHER, nursery)
        await first.ends.claim()
        nursery.start_soon(first.serve)
        with pytest.raises(LocalError, match=r"another relay serves the spool folder .* process"):
            await second.ends.claim()
        first.scope.cancel()
        await trio.sleep(1)
        SpoolFolder(folder).announce(sign(beat=5))  # killed: its file stays
        dead = SpoolFolder(folder).open(NODE)
        began = trio.current_time()
        await second.ends.claim()
        assert DEAD_AFTER_S <= trio.current_time() - began <= DEAD_AFTER_S + BEAT_S
        assert not dead.exists()
        nursery.cancel_scope.cancel()


async def test_of_two_that_take_a_folder_at_once_one_stays(autojump_clock, tmp_path):
    folder = tmp_path / "spool"
    async with trio.open_nursery() as nursery:
        first, second = Ends(folder, RELAY, nursery), Ends(folder, OTHER, nursery)
        for each in (first, second):
            await inline(partial(each.ends._folder.prepare, make=True))
            each.ends._folder.announce(each.ends._mine)
        nursery.start_soon(second.serve)
        with pytest.raises(LocalError, match="give this one a folder of its own"):
            await first.serve()
        assert SpoolFolder(folder).relay().peer == OTHER, "the one that leaves does not take the other's sign with it"
        nursery.cancel_scope.cancel()


async def test_a_relay_whose_folder_is_removed_says_so_and_ends(autojump_clock, tmp_path):
    folder = tmp_path / "spool"
    async with trio.open_nursery() as nursery:
        relay = Ends(folder, RELAY, nursery)
        await relay.ends.claim()

        async def tidy_up() -> None:
            await trio.sleep(3 * BEAT_S)
            shutil.rmtree(folder)

        nursery.start_soon(tidy_up)
        with pytest.raises(LocalError, match="is gone: start the relay again"):
            await relay.serve()
        nursery.cancel_scope.cancel()


async def test_a_relay_without_a_sign_of_life_is_not_dialled_again_and_again(autojump_clock, tmp_path):
    folder = SpoolFolder(tmp_path / "spool")
    folder.prepare(make=True)
    folder.announce(sign())
    async with trio.open_nursery() as nursery:
        node = Ends(folder.path, NODE, nursery)
        await (await node.ends.dial(RELAY)).reset()
        await trio.sleep(DEAD_AFTER_S)
        with pytest.raises(TransportError, match="no sign of life"):
            await node.ends.dial(RELAY)
        folder.announce(sign(beat=2))
        await (await node.ends.dial(RELAY)).reset()
        nursery.cancel_scope.cancel()


async def test_a_relay_serves_so_many_nodes_and_no_more(autojump_clock, tmp_path):
    folder = tmp_path / "spool"
    async with trio.open_nursery() as nursery:
        relay = Ends(folder, RELAY, nursery)
        await relay.ends.claim()
        nursery.start_soon(relay.serve)
        for number in range(MAX_SESSIONS + 3):
            SpoolFolder(folder).open(identity(number + 100).peer_id)
        await trio.sleep(3 * LOOK_S)
        assert len(relay.accepted) == MAX_SESSIONS
        await relay.accepted[0].reset()
        await trio.sleep(3 * LOOK_S)
        assert len(relay.accepted) == MAX_SESSIONS + 1
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def with_a_session(folder: Path) -> AsyncIterator[tuple[Ends, Path]]:
    """A relay that serves the folder, and a session that it has accepted."""
    async with trio.open_nursery() as nursery:
        relay = Ends(folder, RELAY, nursery)
        await relay.ends.claim()
        nursery.start_soon(relay.serve)
        session = SpoolFolder(folder).open(NODE)
        await until(lambda: relay.accepted)
        yield relay, session
        nursery.cancel_scope.cancel()


async def test_a_session_whose_folder_could_not_be_removed_gives_its_place_back(autojump_clock, tmp_path, monkeypatch):
    folder, removed, fails = tmp_path / "spool", spool_folder.discard, True
    monkeypatch.setattr(spool_ends, "discard", lambda session: None if fails else removed(session))
    async with with_a_session(folder) as (relay, session):
        await relay.accepted[0].reset()
        await trio.sleep(3 * LOOK_S)
        assert session.exists()
        assert len(relay.accepted) == 1, "it is not served anew"
        fails = False
        await trio.sleep(3 * LOOK_S)
        assert not session.exists()
        assert not relay.ends._served


async def test_a_session_that_one_listing_lacks_is_not_served_twice(autojump_clock, tmp_path, monkeypatch):
    folder, sessions, lacking = tmp_path / "spool", SpoolFolder.sessions, []
    monkeypatch.setattr(SpoolFolder, "sessions", lambda self: [each for each in sessions(self) if each not in lacking])
    async with with_a_session(folder) as (relay, session):
        lacking.append(session.name)
        await trio.sleep(3 * LOOK_S)
        lacking.clear()
        await trio.sleep(3 * LOOK_S)
        assert len(relay.accepted) == 1


async def test_a_disk_that_does_not_answer_is_no_end_of_its_relay(autojump_clock, tmp_path, monkeypatch):
    folder, stat, rename, errors = SpoolFolder(tmp_path / "spool"), Path.stat, Path.rename, []

    def answered(call: Callable[..., object], *args: object, **more: object) -> object:
        for error in errors:
            raise error
        return call(*args, **more)

    monkeypatch.setattr(Path, "stat", lambda self, **how: answered(stat, self, **how))
    monkeypatch.setattr(Path, "rename", lambda self, to: answered(rename, self, to))
    async with trio.open_nursery() as nursery:
        relay = Ends(folder.path, RELAY, nursery)
        await relay.ends.claim()
        nursery.start_soon(relay.serve)
        await trio.sleep(BEAT_S)
        errors.append(OSError(errno.EIO, "Input/output error"))
        before = folder.relay()
        await trio.sleep(3 * BEAT_S)
        assert folder.relay() == before
        errors.clear()
        await trio.sleep(3 * BEAT_S)
        assert folder.relay() != before
        nursery.cancel_scope.cancel()


# -- a real disk


@pytest.mark.parametrize("name", [segment_name(DOWN, 0), segment_name(UP, 0) + ".new"])
def test_a_pipe_or_a_link_in_place_of_a_file_holds_nobody(tmp_path, name):
    session, aside = SpoolFolder(tmp_path).open(NODE), tmp_path / "aside"
    pipe = SegmentPipe(UP)
    pipe.add(b"x")
    aside.write_bytes(b"private")
    (session / name).symlink_to(aside)
    with pytest.raises(TransportError):
        perform(session, pipe.plan())
    assert aside.read_bytes() == b"private"
    (session / name).unlink(missing_ok=True)
    os.mkfifo(session / name)
    turn = pipe.plan()
    with suppress(TransportError):
        assert perform(session, turn).pieces == (b"",), "as its end"
    os.mkfifo(tmp_path / RELAY_FILE)
    assert SpoolFolder(tmp_path).relay() is None


def test_a_segment_that_is_removed_while_it_is_read_is_not_lost(tmp_path, monkeypatch):
    """As a client of NFS tells of a removal that it has asked for twice, as the first answer was lost."""
    session, unlink = SpoolFolder(tmp_path).open(NODE), Path.unlink
    (session / segment_name(DOWN, 0)).write_bytes(b"once")

    def twice(self: Path) -> None:
        unlink(self)
        unlink(self)

    monkeypatch.setattr(Path, "unlink", twice)
    assert perform(session, SegmentPipe(UP).plan()).pieces == (b"once",)


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    session = SpoolFolder(tmp_path).open(NODE)
    pipe = SegmentPipe(UP)
    pipe.add(bytes(2 * SEGMENT_BYTES))
    turn, rename, renamed = pipe.plan(), Path.rename, []

    def full_after_one(self: Path, target: Path) -> Path:
        if renamed:
            raise OSError(errno.ENOSPC, "No space left on device")
        renamed.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full_after_one)
    answer = perform(session, turn)
    assert answer.written == 1
    assert {path.name for path in session.iterdir()} == {segment_name(UP, 0)}
    assert pipe.took(turn, answer)
    assert pipe.unsent


def test_a_session_that_is_gone_is_over(tmp_path):
    session = SpoolFolder(tmp_path).open(NODE)
    spool_folder.discard(session)
    pipe = SegmentPipe(UP)
    with pytest.raises(TransportError, match="is over"):
        perform(session, pipe.plan())
    pipe.add(b"x")
    with pytest.raises(TransportError, match="is over"):
        perform(session, pipe.plan())
