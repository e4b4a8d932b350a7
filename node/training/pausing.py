"""Pauses of training: a task looks at the machine, and the training loop stands still between two steps while it must.

    readings ── Decider ── `paused` ── the inner loop stands, between two steps ── `stand_still` waits here

Nothing else of the node stops. It serves its snapshots and updates, and follows its neighbours', whose rounds go on
without it: it tells them that it is paused, and when it will be back where a policy knows. The steps of the round in
which a pause begins are published as a shorter round, so none is lost. After the pause the node goes on where it was;
one that is further behind than `max_staleness` takes the others' model, as after any absence (joining.py).
"""

import math
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Final

import torch
import trio

from node.events.event_types import Paused, Unpaused, WarningEvent
from node.events.journal import Emit
from node.participation.decider import Decider, PauseReason
from node.participation.device_state import DeviceState, Reading
from node.training.node import Node
from p2ptrain.protocols import implements
from p2ptrain.training.base import GivesBackMemory

LOOK_S: Final = 0.5
"""Seconds between two looks at the machine: with the step that is under way, a pause begins within a second of what is
read. Chosen: a look takes a millisecond."""

READ_S: Final = 5.0
"""Seconds after which a reading counts as failed: a driver or a command hangs. Chosen."""

TELL_AGAIN_S: Final = 3600.0
"""Seconds for which no second warning of a policy that fails is given."""

ROOM_AGAIN_S: Final = 5.0
"""Seconds between two tries to get the GPU's memory back."""

DESKTOP: Final = ("battery", "load", "energy")
"""Readings whose absence is told to nobody: a desktop has no battery, and the others come with the second look."""

Read = Callable[[], Awaitable[DeviceState]]


class Pauses:
    """Whether this node trains now, and how long it did not."""

    def __init__(
        self,
        decider: Decider,
        read: Read,
        *,
        policies: Mapping[str, Sequence[Reading]],
        emit: Emit,
        unread_pauses: bool = False,
        tell_every_s: float = 0.0,
        look_s: float = LOOK_S,
    ) -> None:
        """`policies`: what each of them reads. `tell_every_s`: least time between two events of one pause."""
        self.paused = False
        """Read by the thread that trains."""
        self.reason: PauseReason | None = None
        self.seconds: dict[str, float] = dict.fromkeys(policies, 0.0)
        """How long each policy has paused training so far."""
        self._decider, self._read, self._policies, self._emit = decider, read, policies, emit
        self._unread_pauses, self._tell_every_s, self._look_s = unread_pauses, tell_every_s, look_s
        self._told: PauseReason | None = None
        self._told_at = self._paused_at = self._counted_at = -math.inf
        self._failing: set[str] = set()
        self._failed_at: dict[str, float] = {}
        self._allowed = trio.Event()
        self._state: DeviceState | None = None

    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled. Started after the first look, so that no step is taken before it."""
        state = await self._look()
        for message in self._without(state):
            self._emit(WarningEvent(message=message, about="participation"))
        task_status.started()
        while True:
            await trio.sleep(self._look_s)
            await self._look()

    async def until_allowed(self) -> None:
        """Wait while training is paused."""
        while self.paused:
            await self._allowed.wait()

    def seconds_now(self) -> dict[str, float]:
        """Return how long each policy has paused training, the pause that goes on included."""
        seconds = dict(self.seconds)
        if self.reason is not None:
            seconds[self.reason.policy] += trio.current_time() - self._counted_at
        return seconds

    def seconds_left(self) -> float | None:
        """Return in how many seconds training goes on, as far as policies know; None where one does not."""
        if self._state is None:
            return None
        seconds = self._decider.pause_seconds(self._state)
        return None if seconds is None else max(0.0, seconds - (trio.current_time() - self._counted_at))

    async def _look(self) -> DeviceState:
        state = self._state = await self._read()
        now = trio.current_time()
        if self.reason is not None:
            self.seconds[self.reason.policy] += now - self._counted_at
        self._counted_at = now
        self._take(self._decider.look(state, now), now)
        self._tell_faults(self._decider.faults, now)
        return state

    def _take(self, reason: PauseReason | None, now: float) -> None:
        before, self.reason = self.reason, reason
        if reason is None:
            self.paused = False
            if before is not None:
                self._emit(Unpaused(reason=before.policy, seconds=round(now - self._paused_at, 3)))
                self._allowed.set()
            return
        self.paused = True
        if before is None:
            self._allowed = trio.Event()
            self._paused_at = now
            self._tell(reason, now)
        elif self._told is None or (reason.policy != self._told.policy and now - self._told_at >= self._tell_every_s):
            self._tell(reason, now)

    def _tell(self, reason: PauseReason, now: float) -> None:
        self._told, self._told_at = reason, now
        self._emit(Paused(reason=reason.policy, why=reason.why))

    def _tell_faults(self, faults: Mapping[str, str], now: float) -> None:
        """Warn once when a policy begins to fail."""
        for name, why in faults.items():
            if name not in self._failing and now - self._failed_at.get(name, -math.inf) >= TELL_AGAIN_S:
                self._failed_at[name] = now
                then = "training is paused" if self._unread_pauses else "training goes on without it"
                message = f"participation: {name} cannot be told ({why}); until it can, {then} (participation.unread)"
                self._emit(WarningEvent(message=message, about="participation"))
        self._failing = set(faults)

    def _without(self, state: DeviceState) -> list[str]:
        """Return a line for each policy that has nothing to decide by on this machine."""
        return [
            f"participation: {name} does nothing here, as this machine tells no {reading}"
            for name, readings in self._policies.items()
            for reading in readings
            if reading not in DESKTOP and reading not in state.unread and state.value(reading) is None
        ]


async def stand_still(node: Node) -> None:
    """Wait while training is paused and stands between two steps.

    While a round is being closed, wait for its end at most: then the steps of the phase that is under way can end as a
    round of their own."""
    pauses = node.pauses
    assert pauses is not None, "only a node with policies stands still"
    if node.state.closing:
        await _first_of(pauses.until_allowed, node.state.until_closed)
    elif not node.inner.phase_steps:
        await node.executor.drive(node.inner.settling())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.service.say_paused, pauses.seconds_left)
            await _give_back_memory(node, pauses)
            nursery.cancel_scope.cancel()
        node.pace.took(node.peer_id, None)  # the time since the last update says nothing of this machine's speed


async def _give_back_memory(node: Node, pauses: Pauses) -> None:
    """Wait for the end of the pause, with the memory of the device given back."""
    trainer = node.inner.trainer
    gives = trainer if implements(trainer, GivesBackMemory) else None
    if gives is not None:
        await node.executor.drive(_piece(gives.give_back_memory))
    await pauses.until_allowed()
    told = False
    while gives is not None:
        try:
            await node.executor.drive(_piece(gives.take_memory))
            return
        except torch.OutOfMemoryError:
            if not told:
                told = True
                message = "the GPU has no room for the model: training goes on when others have left it some"
                node.journal.emit(WarningEvent(message=message, about="participation"))
        await trio.sleep(ROOM_AGAIN_S)
        await pauses.until_allowed()


def _piece(function: Callable[[], None]) -> Generator[None, None, None]:
    """Return a function as work for an executor: it runs in the thread that trains."""
    function()
    yield from ()


async def _first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    """Wait until one of these has ended."""
    async with trio.open_nursery() as nursery:

        async def run(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(run, wait)
