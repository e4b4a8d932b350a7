"""Calls between two processes over a `TensorChannel`: either end calls, and answers what the other calls.

Who waits for an answer may be called meanwhile: the answer to "a step was taken" comes after "add this correction". A
thread reads what comes, and nothing else, so that Ctrl-C never loses a message. Calls are handled where the program
says: within `call`, by `serve`, or at once in the reading thread (`at_once`).
"""

import pickle
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.system.tensor_channel import ChannelClosedError, TensorChannel

Handler = Callable[[str, tuple[Any, ...]], Any]
"""Returns the answer to a call: to its name and its arguments."""


@dataclass(frozen=True)
class _Call:
    number: int
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Answer:
    number: int
    value: Any
    error: BaseException | None = None


class Calls:
    """One end. `handler` answers what comes while this end waits in `call`; without one, it is left to `serve`.
    `at_once` is told the names of all calls as they arrive, and that the channel has closed (None)."""

    def __init__(
        self,
        channel: TensorChannel,
        *,
        handler: Handler | None = None,
        at_once: Callable[[str | None], None] = lambda name: None,
    ) -> None:
        self._channel, self._handler, self._at_once = channel, handler, at_once
        self._change = threading.Condition()
        self._inbox: deque[_Call] = deque()
        self._answers: dict[int, _Answer] = {}
        self._waiting: set[int] = set()
        self._numbers = 0
        self._closed = False
        threading.Thread(target=self._read, name="p2ptrain-calls", daemon=True).start()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the other end, wait, and return its answer, or raise its exception. Raises ChannelClosedError."""
        with self._change:
            self._numbers += 1
            number = self._numbers
            self._waiting.add(number)
        try:
            self._channel.send(_Call(number, name, arguments))
            while True:
                with self._change:
                    while number not in self._answers and not self._closed and not (self._handler and self._inbox):
                        self._change.wait()
                    answer = self._answers.get(number)
                    if answer is None and self._closed:
                        raise ChannelClosedError
                if answer is not None:
                    break
                assert self._handler is not None
                self._answer_next(self._handler)
        finally:
            with self._change:
                self._waiting.discard(number)
                self._answers.pop(number, None)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def serve(self, handler: Handler) -> None:
        """Answer calls until the channel closes."""
        while True:
            with self._change:
                while not self._inbox and not self._closed:
                    self._change.wait()
                if self._closed:
                    return
            try:
                self._answer_next(handler)
            except ChannelClosedError:
                return
            except KeyboardInterrupt:  # pressed at the other end, while it answered a call of this one
                continue

    def close(self) -> None:
        """Close the channel. Who waits at either end finds out."""
        self._channel.close()

    def _answer_next(self, handler: Handler) -> None:
        """Answer the oldest call. It is taken from the list last: Ctrl-C before its answer has it answered later."""
        call = self._inbox[0]
        try:
            answer = _Answer(call.number, handler(call.name, call.arguments))
        except BaseException as error:
            self._reply(_Answer(call.number, None, _portable(error)))
            if not isinstance(error, Exception):  # Ctrl-C: it is the other end's to know, and this one's as well
                raise
        else:
            self._reply(answer)

    def _reply(self, answer: _Answer) -> None:
        self._channel.send(answer)
        self._inbox.popleft()

    def _read(self) -> None:
        """Thread: pass on what comes, until the channel closes."""
        while True:
            try:
                message = self._channel.receive()
            except (ChannelClosedError, OSError):
                break
            if isinstance(message, _Call):
                self._at_once(message.name)
            with self._change:
                if isinstance(message, _Call):
                    self._inbox.append(message)
                elif message.number in self._waiting:
                    self._answers[message.number] = message
                self._change.notify_all()
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._channel.close()
        self._at_once(None)


def _portable(error: BaseException) -> BaseException:
    """Return the error, or its words where it is of a kind that cannot be sent: a user's own may be."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
