"""What is printed by a thread of its own: in order, all of it while it is read, and nobody waits where it is not."""

import threading
from contextlib import suppress
from unittest.mock import Mock

import pytest

from node.events.lines import left_out
from node.system import aside, left_threads
from node.system.aside import Aside


def missed(count: int) -> str:
    return f"{count} left out"


def test_all_is_printed_in_order_before_the_end():
    shown: list[str] = []
    with Aside(shown.append, missed) as printing:
        for number in range(1000):
            printing(str(number))
    assert shown == [str(number) for number in range(1000)]
    assert not left_threads.printing_is_stuck()


def test_who_does_not_read_on_holds_nobody_up_and_is_told_what_it_missed(monkeypatch):
    monkeypatch.setattr(aside, "MAX_WAITING", 10)
    reads_on, stopped, shown = threading.Event(), threading.Event(), []

    def show(item: str) -> None:
        stopped.set()
        assert reads_on.wait(30)
        shown.append(item)

    with Aside(show, missed) as printing:
        printing("0")
        assert stopped.wait(30)
        for number in range(1, 101):  # ten of them wait
            printing(str(number))
        reads_on.set()
    assert [item for item in shown if item.isdigit()] == [str(number) for number in range(11)]
    assert [item for item in shown if not item.isdigit()] == ["90 left out"]


@pytest.mark.parametrize("pressed_again", [False, True])
def test_the_end_does_not_wait_for_ever_and_the_process_then_leaves_without_flushing(monkeypatch, pressed_again):
    stuck, ends = threading.Event(), threading.Event()
    monkeypatch.setattr(left_threads, "_STUCK", stuck)
    monkeypatch.setattr(aside, "LAST_S", 0.05)
    with suppress(KeyboardInterrupt), Aside(lambda _: ends.wait(30), missed) as printing:
        printing("0")
        if pressed_again:
            monkeypatch.setattr(printing._thread, "join", Mock(side_effect=KeyboardInterrupt))
    assert left_threads.printing_is_stuck()
    left: list[int] = []
    monkeypatch.setattr(left_threads.os, "_exit", left.append)
    monkeypatch.setattr(left_threads.sys, "stdout", None)  # to touch it would fail
    left_threads.leave_with_them(130)
    assert left == [130]
    ends.set()


@pytest.mark.parametrize(
    ("error", "said"),
    [(BrokenPipeError(), ""), (OSError(28, "No space left on device"), ""), (UnicodeError(), "(UnicodeError)")],
)
def test_after_an_error_nothing_is_printed_and_the_rest_goes_on(error, said, capsys):
    shown: list[str] = []

    def show(item: str) -> None:
        shown.append(item)
        raise error

    with Aside(show, missed) as printing:
        for number in range(100):
            printing(str(number))
    assert shown == ["0"]
    told = capsys.readouterr().err
    assert said in told if said else not told
    assert not left_threads.printing_is_stuck()


def test_the_words_say_where_all_of_it_is():
    assert "3 lines left out here" in left_out(3).message
    assert "events.jsonl" in left_out(3).message
