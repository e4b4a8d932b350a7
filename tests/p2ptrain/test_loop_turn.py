"""Turns between a user's loop and evaluations, and the random numbers of both."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch

from p2ptrain.training.loop_turn import LoopTurn, random_state_kept

WITHIN_S = 20.0


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # the global one


def reseed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.001)


@pytest.mark.parametrize("what", [drawn, reseed])
def test_random_numbers_go_on_as_if_nobody_had_drawn(what: Callable[[], object]) -> None:
    reseed()
    drawn()
    expected = drawn()
    reseed()
    drawn()
    with random_state_kept():
        what()
    assert drawn() == expected


def test_they_are_put_back_after_an_error_too() -> None:
    reseed()
    expected = drawn()
    reseed()
    with suppress(RuntimeError), random_state_kept():
        drawn()
        raise RuntimeError
    assert drawn() == expected


def test_those_of_a_device_in_use_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [[torch.tensor([1]), torch.tensor([2])]]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda given: states.append(given))
    with random_state_kept():
        pass
    assert states[1] is states[0]


def test_an_evaluation_waits_for_the_end_of_a_step_and_the_loop_for_the_evaluation() -> None:
    turn, seen = LoopTurn(), list[str]()
    turn.take_back()  # the loop has begun
    inside, go = threading.Event(), threading.Event()

    def evaluation() -> None:
        with turn.taken():
            seen.append("evaluation")
            inside.set()
            go.wait(WITHIN_S)
            seen.append("evaluated")

    thread = threading.Thread(target=evaluation)
    thread.start()
    assert not inside.wait(0.05), "the loop's own code runs"
    seen.append("step")
    threading.Timer(0.05, go.set).start()
    with turn.lent():
        assert inside.wait(WITHIN_S)
    seen.append("next step")
    thread.join(WITHIN_S)
    assert seen == ["step", "evaluation", "evaluated", "next step"]


def test_one_that_comes_in_the_midst_of_a_call_is_let_in_at_once() -> None:
    turn = LoopTurn()
    turn.take_back()
    entered = threading.Event()

    def evaluation() -> None:
        with turn.taken():
            entered.set()

    with turn.lent():
        thread = threading.Thread(target=evaluation)
        thread.start()
        assert entered.wait(WITHIN_S)
    thread.join(WITHIN_S)


def test_a_loop_that_has_ended_keeps_nobody_waiting() -> None:
    turn = LoopTurn()
    with turn.taken():
        pass
    turn.take_back()
    done: list[int] = []

    def evaluation() -> None:
        with turn.taken():
            done.append(1)

    threads = [threading.Thread(target=evaluation) for _ in range(3)]
    for thread in threads:
        thread.start()
    turn.lend()  # for good
    for thread in threads:
        thread.join(WITHIN_S)
    assert done == [1, 1, 1]


def test_an_interrupted_loop_has_its_turn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = LoopTurn()
    turn.take_back()
    inside, go, entered = threading.Event(), threading.Event(), threading.Event()

    def evaluation() -> None:
        with turn.taken():
            inside.set()
            go.wait(WITHIN_S)

    first = threading.Thread(target=evaluation)
    first.start()

    def interrupted() -> None:
        raise KeyboardInterrupt

    turn.lend()
    assert inside.wait(WITHIN_S)
    monkeypatch.setattr(turn._change, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turn.take_back()
    monkeypatch.undo()
    go.set()
    first.join(WITHIN_S)

    def another() -> None:
        with turn.taken():
            entered.set()

    second = threading.Thread(target=another)
    second.start()
    assert not entered.wait(0.05), "not lent any more"
    turn.lend()
    assert entered.wait(WITHIN_S)
    second.join(WITHIN_S)
