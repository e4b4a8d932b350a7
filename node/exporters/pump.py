"""The pump between the event log and an exporter: a bounded queue, and a thread that empties it.

The event loop only puts events on the queue, which takes a microsecond. When the exporter is slower than the node, is
stuck or fails, events are left out, and the node warns once. The exporter is tried again with every further event: the
disk may be cleaned up, or the collector may run again.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from node.events.event_types import Event
from node.exporters.base import Exporter

MAX_WAITING = 1024
"""Most events that wait: an hour of rounds of three seconds each, in a few MB."""

CLOSE_S = 1.0
"""Seconds for all exporters of a node together to write what is left: with the goodbye and the checkpoint before it,
this is within the five seconds that Ctrl-C promises."""

FINISHED_S = 20.0
"""The same for a node whose rounds are done, which has more time. In a short run wandb, which takes three to four
seconds to import and begin (measured, on two busy cores), has not written anything by then. `up` ends such a node after
30. Chosen."""

WAKE_S = 1.0
"""Seconds between two checks by an idle exporter that the node has not ended while its queue was full."""


class Pump:
    """A sink of the EventLog, for one exporter. `warn` is called at most once, from where the sink is called."""

    def __init__(
        self, name: str, build: Callable[[], Exporter], warn: Callable[[str], None], *, bound: int = MAX_WAITING
    ) -> None:
        """Start a thread that first builds the exporter."""
        self.name = name
        self._build = build
        self._warn = warn
        self._waiting: queue.Queue[Event | None] = queue.Queue(bound)
        self._trouble: str | None = None
        self._told = False
        self._closing = threading.Event()
        # A daemon thread: an exporter that is stuck must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event, or leave it out where the queue is full."""
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
        with suppress(queue.Full):  # then the thread wakes by itself
            self._waiting.put_nowait(None)

    def join(self, deadline: float) -> None:
        """Wait until everything left is written, until `deadline` (of time.monotonic()) at the latest."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        unfinished = self._thread.is_alive() and self._trouble is None
        if unfinished:
            self._trouble = "it did not come to its end in time: its last events may be missing"
        self._tell(ended=unfinished)

    def is_done(self, deadline: float) -> bool:
        """Wait until `deadline` at the latest, and return whether everything is written."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _tell(self, *, ended: bool = False) -> None:
        if self._trouble is not None and not self._told:
            self._told = True  # set it first: the warning is an event itself
            and_so = "" if ended else "; training goes on, with gaps in what it tells"
            self._warn(f"exporter {self.name}: {self._trouble}{and_so}")

    def _run(self) -> None:
        exporter: Exporter | None = None
        for event in self._events():
            try:
                exporter = exporter or self._build()
                exporter.export(event.to_record())
            except Exception as error:  # of a library, a disk, a network: none of these may end our node
                self._trouble = self._trouble or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        try:
            if exporter is not None:
                exporter.close()
        except Exception as error:
            self._trouble = self._trouble or f"{type(error).__name__} at its end: {' '.join(str(error).split())[:200]}"

    def _events(self) -> Iterator[Event]:
        """Yield events as they arrive, until `stop`; then those that are left."""
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
    """Stop all pumps at the same time, within `within_s` seconds. `tell` is called with those that take longer than
    CLOSE_S."""
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
