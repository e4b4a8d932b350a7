"""The seal: what differs from run to run cannot be asked for inside of a simulation."""

import gc
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable

import numpy as np
import pytest
import torch
import trio
import trio.testing

from gossip.core import envelope
from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import RunId, SwarmId
from gossip.core.statements import goodbye_statement
from node.simulation.clock_jump import ClockJump
from node.simulation.livelock import StepBudget
from node.simulation.rare_collections import THRESHOLDS
from node.simulation.sealed import SealBrokenError, hashes_are_fixed, sealed
from node.system.errors import RunError

ASKED: dict[str, Callable[[], object]] = {
    "time.time": time.time,
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.time_ns": lambda: time.time_ns(),
    "time.localtime": lambda: time.localtime(),
    "os.urandom": lambda: os.urandom(8),
    "secrets.token_bytes": lambda: secrets.token_bytes(8),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "uuid": uuid.uuid4,
    "thread": lambda: threading.Thread(target=print).start(),
}
ASKED["time.time"] = lambda: time.time()


@pytest.mark.parametrize("asked", ASKED)
def test_the_machine_cannot_be_asked(asked: str) -> None:
    with sealed(1, "each"), pytest.raises(SealBrokenError, match="inside of a simulation"):
        ASKED[asked]()
    if asked != "thread":
        ASKED[asked]()


def test_no_work_goes_to_a_thread() -> None:
    async def main() -> None:
        await trio.to_thread.run_sync(print)

    with sealed(1, "each"), pytest.raises(SealBrokenError, match=r"trio\.to_thread"):
        trio.run(main, clock=trio.testing.MockClock())


def test_a_thread_that_stood_before_goes_on_as_outside() -> None:
    """libp2p sweeps its caches in a thread: it must neither end nor use up the names of the run."""
    go, seen = threading.Event(), list[object]()

    def sweep() -> None:
        assert go.wait(60)
        try:
            seen.extend((time.time(), os.urandom(8), secrets.token_hex(4)))
        except SealBrokenError as error:
            seen.append(error)

    thread = threading.Thread(target=sweep)
    thread.start()
    with sealed(1, "each"):
        go.set()
        thread.join(60)
        name = secrets.token_hex(4)
    assert len(seen) == 3, seen
    assert name == "00000000"


def test_names_of_files_are_counted_and_torch_has_one_thread() -> None:
    opened = envelope.opened
    before, thresholds = torch.get_num_threads(), gc.get_threshold()
    with sealed(1, "shared"):
        assert [secrets.token_hex(4) for _ in range(3)] == ["00000000", "00000001", "00000002"]
        assert torch.get_num_threads() == 1
        assert envelope.opened is not opened
        assert gc.get_threshold() == THRESHOLDS
        assert os.fsync(0) is None  # type: ignore[func-returns-value]
    assert torch.get_num_threads() == before
    assert envelope.opened is opened
    assert gc.get_threshold() == thresholds
    assert secrets.token_hex(8) != secrets.token_hex(8)


def test_generators_that_a_process_shares_begin_at_the_seed_and_are_given_back() -> None:
    """Dropout draws from torch's, and a task may draw from any."""

    def draws() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.random())

    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    found = []
    for seed in (1, 1, 2):
        with sealed(seed, "shared"):
            found.append(draws())
    first, again, other = found
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]


def test_an_envelope_is_opened_once_for_all_and_refused_each_time() -> None:
    scope = envelope.Scope(swarm=SwarmId(bytes(16)), run=RunId(bytes(16)))
    raw = envelope.seal(Identity(bytes(32)), scope, goodbye_statement(epoch=1, seq=2)).raw
    forged = raw[:-1] + bytes([raw[-1] ^ 1])
    with sealed(1, "shared"):
        first = envelope.open_envelope(raw, scope)
        assert envelope.open_envelope(bytes(bytearray(raw)), scope) is first
        for _ in range(2):
            with pytest.raises(RemoteError, match="does not verify"):
                envelope.open_envelope(forged, scope)
        other = envelope.Scope(swarm=SwarmId(bytes(16)), run=RunId(b"1" * 16))
        with pytest.raises(RemoteError, match="wrong_run"):
            envelope.open_envelope(raw, other)
    with sealed(1, "each"):
        assert envelope.open_envelope(raw, scope) is not envelope.open_envelope(raw, scope)
    assert envelope.open_envelope(raw, scope) == first


def test_a_trio_that_cannot_be_ordered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["trio._core._run"], "_ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(RunError, match="cannot be made deterministic"), sealed(1, "shared"):
        pass


def order_of(seed: int) -> list[int]:
    order: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):

                async def note(number: int = number) -> None:
                    await trio.sleep(1)
                    order.append(number)

                nursery.start_soon(note)

    clock = trio.testing.MockClock(autojump_threshold=0)
    with sealed(seed, "each"):
        trio.run(main, clock=clock)
    return order


def test_the_order_of_tasks_is_the_seeds() -> None:
    assert order_of(1) == order_of(1)
    assert order_of(1) != order_of(2)


def test_fixed_hashes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert not hashes_are_fixed()


def test_a_livelock_is_named() -> None:
    told: list[str] = []

    async def busy() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        with trio.CancelScope() as scope:

            def stop(message: str) -> None:
                told.append(message)
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)

            trio.lowlevel.add_instrument(StepBudget(1000, stop, wall=lambda: 0.0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(busy, name="the busy one")
                await trio.sleep(10)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(told) == 1
    assert told[0].startswith("livelock at 0 s: 1000 steps in a virtual second, by the busy one (")


def test_steps_are_counted_by_the_second_and_progress_is_looked_at() -> None:
    budget, looks = StepBudget(10_000, print, wall=iter(range(10**6)).__next__, look=lambda: looks.append(1)), []  # type: ignore[var-annotated]

    async def main() -> None:
        trio.lowlevel.add_instrument(budget)
        for _ in range(5):
            await trio.sleep(1)
            for _ in range(1000):
                await trio.lowlevel.checkpoint()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert budget.total >= 5000
    assert 1000 <= budget.most_seen <= 1010
    assert looks


class Turns(trio.abc.Instrument):
    """Counts the turns of trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        """Count one."""
        self.count += 1


def times_of(*instruments: trio.abc.Instrument, clock: trio.testing.MockClock) -> list[tuple[str, float]]:
    told: list[tuple[str, float]] = []

    async def sleeper(name: str, each_s: float) -> None:
        for _ in range(100):
            await trio.sleep(each_s)
            told.append((name, trio.current_time()))

    async def main() -> None:
        for instrument in instruments:
            trio.lowlevel.add_instrument(instrument)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper, "one", 0.1)
            nursery.start_soon(sleeper, "other", 0.037)

    with sealed(1, "each"):
        trio.run(main, clock=clock)
    return told


def test_time_passes_in_the_turn_that_found_nothing_to_do() -> None:
    clocks = [trio.testing.MockClock(autojump_threshold=0) for _ in range(2)]
    turns = [Turns(), Turns()]
    usual = times_of(turns[0], clock=clocks[0])
    jumped = times_of(ClockJump(clocks[1]), turns[1], clock=clocks[1])
    assert jumped == usual
    assert turns[1].count < 0.6 * turns[0].count
