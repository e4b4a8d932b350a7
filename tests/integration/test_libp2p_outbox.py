"""The queue before a connection's socket: order, bounds, and what cancellation leaves behind."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gossip.transport.libp2p.outbox import (
    CONTROL_BYTES,
    DATA_FRAMES,
    RECORD_BYTES,
    RECORDS_A_WRITE,
    Outbox,
    OutboxClosedError,
)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, RECORD_BYTES)), max_size=30))
def test_bytes_leave_in_order_in_records_that_fit_one_noise_message(frames: list[tuple[bool, int]]) -> None:
    records = trio.run(_written, frames)
    expected = b"".join(_frame(number, data, size) for number, (data, size) in enumerate(frames))
    assert b"".join(records) == expected
    assert all(len(record) <= RECORD_BYTES for record in records)


def _frame(number: int, data: bool, size: int) -> bytes:
    return bytes([number]) * (size if data else 12)


async def _written(frames: list[tuple[bool, int]]) -> list[bytes]:
    outbox, records = Outbox(), []

    async def write(several: Sequence[bytes]) -> None:
        assert 1 <= len(several) <= RECORDS_A_WRITE
        records.extend(several)
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.pump, write)
        for number, (data, size) in enumerate(frames):
            if data:
                await outbox.put_data(_frame(number, data, size))
            else:
                outbox.put_control(_frame(number, data, size))
        await outbox.flush()
        nursery.cancel_scope.cancel()
    return records


async def test_data_waits_for_room_and_a_cancelled_writer_leaves_nothing() -> None:
    outbox = Outbox()
    for _ in range(DATA_FRAMES):
        await outbox.put_data(b"whole")
    with trio.CancelScope() as scope:
        scope.cancel()
        await outbox.put_data(b"never")
    records: list[bytes] = []

    async def write(several: Sequence[bytes]) -> None:
        records.extend(several)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.pump, write)
        await outbox.flush()
        nursery.cancel_scope.cancel()
    assert b"".join(records) == b"whole" * DATA_FRAMES


async def test_control_never_waits_and_is_bounded() -> None:
    outbox = Outbox()
    for _ in range(CONTROL_BYTES // 12):
        outbox.put_control(bytes(12))
    with pytest.raises(OutboxClosedError):
        outbox.put_control(bytes(12))


async def test_closing_wakes_everyone() -> None:
    outbox = Outbox()
    for _ in range(DATA_FRAMES):
        await outbox.put_data(b"x")
    ended: list[str] = []

    async def writer() -> None:
        with pytest.raises(OutboxClosedError):
            await outbox.put_data(b"y")
        ended.append("writer")

    async def flusher() -> None:
        await outbox.flush()
        ended.append("flusher")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer)
        nursery.start_soon(flusher)
        await trio.testing.wait_all_tasks_blocked()
        outbox.close()
    assert sorted(ended) == ["flusher", "writer"]
    with pytest.raises(OutboxClosedError):
        outbox.put_control(bytes(12))
