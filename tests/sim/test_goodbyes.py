"""A node that is stopped says goodbye: nobody waits for it, dials it, or holds it up."""

import signal
from pathlib import Path

import pytest
import trio
import trio.testing
from sim_swarm import Member, swarm

from node.roles.trainer import GOODBYE_S
from node.system.interrupts import SOON_KILLED
from node.system.signals import until_signal


async def test_who_is_stopped_says_goodbye_and_keeps_what_it_learned(tmp_path: Path, autojump_clock: object) -> None:
    async with swarm(tmp_path) as members:
        one = await members.start("one", train={"rounds": 400})
        two = await members.start("two", train={"rounds": 400}, wait_for=1)
        await until_round(3, one, two)
        began = trio.current_time()
        two.stop.set()
        await two.done.wait()
        assert trio.current_time() - began < GOODBYE_S / 2, "it waited for more than the answers"
        assert two.node.checkpoints.newest().round == two.node.state.round
        (lost,) = one.told("neighbour_lost")
        assert (lost["peer"], lost["detail"]) == (two.node.peer_id, "it left")
        assert lost["at"] - began < GOODBYE_S / 2
        await until_round(one.node.state.round + 3, one)  # and it goes on alone
        again = await members.start("two", train={"rounds": 400}, wait_for=1)
        await until_round(one.node.state.round + 3, one, again)
        assert again.node.peer_id in one.node.service.neighbours()


async def test_a_neighbour_that_does_not_answer_holds_nobody_up(tmp_path: Path, autojump_clock: object) -> None:
    async with swarm(tmp_path) as members:
        one = await members.start("one", train={"rounds": 400})
        two = await members.start("two", train={"rounds": 400}, wait_for=1)
        await until_round(3, one, two)
        members.network.stall(one.node.peer_id)
        began = trio.current_time()
        two.stop.set()
        await two.done.wait()
        assert trio.current_time() - began < 2 * GOODBYE_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *SOON_KILLED])
async def test_who_asks_twice_is_not_asked_for_patience(number: signal.Signals) -> None:
    found = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests in the background ignores it
    try:
        async with trio.open_nursery() as nursery:
            stop = await nursery.start(until_signal)
            assert signal.getsignal(number) != signal.SIG_DFL
            signal.raise_signal(number)
            await stop.wait()
            signal.raise_signal(number)  # at once: the same wish, by another way
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, found)


async def test_a_signal_that_a_task_handles_stays_its_own() -> None:
    heard: list[int] = []
    found = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        async with trio.open_nursery() as nursery:
            stop = await nursery.start(until_signal)
            signal.raise_signal(signal.SIGUSR1)
            await trio.testing.wait_all_tasks_blocked()
            assert heard == [signal.SIGUSR1]
            assert not stop.is_set()
            nursery.cancel_scope.cancel()
    finally:
        signal.signal(signal.SIGUSR1, found)


async def until_round(number: int, *members: Member) -> None:
    while min(member.node.state.round for member in members) < number:  # noqa: ASYNC110  # on a clock that costs nothing
        await trio.sleep(0.05)
