"""Between the event log and an exporter: a queue with an end, and a thread that empties it.

The event loop only ever puts an event on the queue, which takes a microsecond. When the exporter is slower than the
node, is stuck or fails, events are left out, the node says so once, and the exporter is tried again with every further
event: a disk is cleaned up, a collector comes back.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from node.events.event_types import Event
from node.exporters.base import Exporter

MAX_WAITING = 1024
"""Events: an hour of rounds of three seconds each, in a few MB."""

CLOSE_S = 1.0
"""For all exporters of a node together to write what is left: with the goodbye and the checkpoint before it, it is over
within the five seconds that Ctrl-C promises."""

FINISHED_S = 20.0
"""The same for a node whose rounds are done, which nobody is in a hurry to end: of a short run wandb, which takes three
to four seconds to import and begin (measured, on two busy cores), has not told anything yet. `up` ends such a node
after 30. Chosen."""

WAKE_S = 1.0
"""How often an idle exporter looks whether the node has ended while its queue was full."""


class Pump:
    """A sink of the EventLog, for one exporter. `warn` is called at most once, from where the sink is called."""

    def __init__(
        self, name: str, build: Callable[[], Exporter], warn: Callable[[str], None], *, bound: int = MAX_WAITING
    ) -> None:
        """Begins at once, in a thread of its own, with building the exporter."""
        self.name = name
        self._build = build
        self._warn = warn
        self._waiting: queue.Queue[Event | None] = queue.Queue(bound)
        self._trouble: str | None = None
        self._told = False
        self._closing = threading.Event()
        # A daemon: an exporter that is stuck must not keep the process.
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Hand an event over, or leave it out."""
        if self._closing.is_set():
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._trouble = self._trouble or f"it is too slow, or stuck: more than {self._waiting.maxsize} events wait"
        self._tell()

    def stop(self) -> None:
        """Take no more events, and begin to write what is left."""
        self._closing.set()
        with suppress(queue.Full):  # then it wakes by itself
            self._waiting.put_nowait(None)

    def join(self, deadline: float) -> None:
        """Wait until it has written what is left, until `deadline` (of time.monotonic()) at the latest."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        unfinished = self._thread.is_alive() and self._trouble is None
        if unfinished:
            self._trouble = "it did not come to its end in time: its last events may be missing"
        self._tell(ended=unfinished)

    def is_done(self, deadline: float) -> bool:
        """Whether everything is written, after waiting until `deadline` at the latest."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _tell(self, *, ended: bool = False) -> None:
        if self._trouble is not None and not self._told:
            self._told = True  # before the words: they are an event themselves
            and_so = "" if ended else "; training goes on, with gaps in what it tells"
            self._warn(f"exporter {self.name}: {self._trouble}{and_so}")

    def _run(self) -> None:
        exporter: Exporter | None = None
        for event in self._events():
            try:
                exporter = exporter or self._build()
                exporter.export(event.to_record())
            except Exception as error:  # of a library, a disk, a network: whatever it is, it is no end of ours
                self._trouble = self._trouble or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        try:
            if exporter is not None:
                exporter.close()
        except Exception as error:
            self._trouble = self._trouble or f"{type(error).__name__} at its end: {' '.join(str(error).split())[:200]}"

    def _events(self) -> Iterator[Event]:
        """What comes, until `stop`; then what is left."""
        while True:
            try:
                event = self._waiting.get(timeout=WAKE_S)
            except queue.Empty:
                event = None
            if event is not None:
                yield event
            elif self._closing.is_set():
                return


def close_all(
    pumps: Iterable[Pump], *, within_s: float = CLOSE_S, tell: Callable[[str], None] = lambda words: None
) -> None:
    """End them, all at once and all within so many seconds. `tell` is told of those that take longer than CLOSE_S."""
    began = time.monotonic()
    deadline = began + within_s
    pumps = list(pumps)
    for pump in pumps:
        pump.stop()
    late = [pump.name for pump in pumps if not pump.is_done(min(deadline, began + CLOSE_S))]
    if late and within_s > CLOSE_S:
        tell(f"{', '.join(late)} to write what is left, for {within_s - CLOSE_S:g} s at most")
    for pump in pumps:
        pump.join(deadline)
