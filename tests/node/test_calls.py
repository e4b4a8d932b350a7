"""Calls between two processes: answers, calls within calls, errors of all kinds, Ctrl-C, and an end that is gone."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.system.calls import Calls, Handler
from node.system.errors import RunError
from node.system.tensor_channel import ChannelClosedError, TensorChannel, channel_pair, supported

pytestmark = pytest.mark.skipif(not supported(), reason="memfd and sequenced datagrams are Linux's")


class UnsendableError(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)
        self.other = other


@dataclass
class Pair:
    """Two ends. `served` answers in a thread of its own, by `other`."""

    caller: Calls
    served: Calls
    asked: list[str] = field(default_factory=list)

    def other(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.asked.append(name)
        match name:
            case "double":
                return 2 * arguments[0]
            case "twice":
                return self.served.call("back", self.served.call("back", arguments[0]))
            case "wrong":
                raise RunError("it does not work", "do something else")
            case "unsendable":
                raise UnsendableError("one", "two")
            case "slow":
                time.sleep(arguments[0])
        return None


def pair(handler: Handler) -> Pair:
    one, theirs = channel_pair()
    caller, served = Calls(one, handler=handler), Calls(TensorChannel(theirs))
    both = Pair(caller, served)
    threading.Thread(target=served.serve, args=(both.other,), daemon=True).start()
    return both


@pytest.fixture
def ends() -> Iterator[Pair]:
    both = pair(lambda name, arguments: arguments[0] + 1)
    yield both
    both.caller.close()
    both.served.close()


def test_answers_and_calls_within_calls(ends: Pair) -> None:
    assert ends.caller.call("double", 21) == 42
    assert ends.caller.call("twice", 5) == 7


def test_errors_are_the_callers(ends: Pair) -> None:
    with pytest.raises(RunError, match="it does not work") as raised:
        ends.caller.call("wrong")
    assert raised.value.hint == "do something else"
    with pytest.raises(RuntimeError, match="UnsendableError: one"):
        ends.caller.call("unsendable")
    assert ends.caller.call("double", 1) == 2, "it goes on"


def test_an_end_that_goes_is_noticed_while_it_is_awaited(ends: Pair) -> None:
    threading.Timer(0.05, ends.served.close).start()
    with pytest.raises(ChannelClosedError):
        ends.caller.call("slow", 0.2)
    with pytest.raises(ChannelClosedError):
        ends.caller.call("double", 1)


def test_ctrl_c_within_a_call_back_loses_nothing() -> None:
    pressed: list[str] = []

    def answer(name: str, arguments: tuple[Any, ...]) -> Any:
        if not pressed:
            pressed.append(name)
            raise KeyboardInterrupt
        return arguments[0] + 1

    both = pair(answer)
    with pytest.raises(KeyboardInterrupt):
        both.caller.call("twice", 5)
    assert both.caller.call("twice", 5) == 7
    assert both.caller.call("double", 3) == 6
    both.caller.close()
    both.served.close()


def test_an_answer_that_nobody_waits_for_any_more_is_let_go(ends: Pair) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    waiting, taken = ends.caller._change, ends.caller._change.wait
    waiting.wait = lambda timeout=None: interrupted()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ends.caller.call("slow", 0.05)
    waiting.wait = taken  # type: ignore[method-assign]
    assert ends.caller.call("double", 4) == 8
    assert ends.caller._answers == {}
    assert ends.asked == ["slow", "double"]


def test_what_cannot_wait_is_told_at_once() -> None:
    one, theirs = channel_pair()
    told: list[str | None] = []
    end = threading.Event()

    def at_once(name: str | None) -> None:
        told.append(name)
        if name is None:
            end.set()

    Calls(TensorChannel(theirs), at_once=at_once)
    caller = Calls(one)

    def stop() -> None:
        with suppress(ChannelClosedError):
            caller.call("stop")

    threading.Thread(target=stop, daemon=True).start()
    while told != ["stop"]:
        time.sleep(0.005)
    caller.close()
    assert end.wait(5)
    assert told == ["stop", None]
