"""One simulated node: its processes, one after another, each a real node from the first dial to the goodbye.

It runs while its session lasts and no event has ended it, from its folder: a restart goes on from the newest
checkpoint, as on a real machine. Its peer id stays, its address is a new one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

import trio

from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.service import GossipService
from gossip.transport.memory.network import MemoryNetwork, MemoryTransport
from node.config.schema import AttackSection, Config
from node.events.event_types import Event, Failed, Finished, Interrupted
from node.events.log import EventLog
from node.roles.assembly import NodeContext, make_node, own_learner
from node.roles.trainer import announce_start, finish, live
from node.simulation.derived import identity_of, rng_of
from node.simulation.machine_disk import VirtualCheckpointStore, VirtualDisk
from node.simulation.observations import Observations
from node.simulation.scenario import DeviceClass, NodeGroup
from node.simulation.sealed import SealBrokenError
from node.simulation.sessions import Interval
from node.simulation.virtual_executor import VirtualExecutor
from node.system.errors import P2PTrainError, first_leaf, translate
from node.system.run_dir import ADDRESSES, CHECKPOINTS, EPOCH, EVENTS, IDENTITY, REGIONAL_STATED, keep_settings
from p2ptrain.privacy.allowance import unaccounted

UNIX_START: Final = 1_735_689_600.0
"""The wall clock at virtual time 0: 2025-01-01 00:00 UTC."""

NO_THREAD: Final = 1 << 40
"""Bytes: nothing is hashed in a thread, for the clock would jump meanwhile."""


class Neighbourhood(Protocol):
    """What a member asks of the swarm around it."""

    network: MemoryNetwork
    starting: trio.Lock
    """One starts to listen at a time, so that the next one knows it."""

    def known_to(self, member: "Member") -> tuple[str, ...]:
        """Return the addresses that its operator gives a node that starts now."""


@dataclass
class _Process:
    """One life."""

    scope: trio.CancelScope
    stop: trio.Event
    executor: VirtualExecutor
    checkpoints: VirtualCheckpointStore
    killed: bool = False

    def kill(self) -> None:
        self.killed = True
        self.executor.die()
        self.checkpoints.die()
        self.scope.cancel()


class Member:
    """A node of the scenario, on and off."""

    def __init__(
        self,
        name: str,
        group: NodeGroup,
        config: Config,
        *,
        seed: int,
        folder: Path,
        device: DeviceClass,
        swarm: Neighbourhood,
    ) -> None:
        self.name = name
        self.group = group
        self.config = config
        self.folder = folder
        self.identity: Identity = identity_of(seed, name)
        self.told = Observations(folder.parent)
        self.disk = VirtualDisk()
        self.ahead_s = 0.0
        """Of its wall clock."""
        self.error: P2PTrainError | None = None
        self.cause: BaseException | None = None
        self.finished = False
        self.starts = 0
        self.transport: MemoryTransport | None = None
        """While it listens."""
        self._next: MemoryTransport | None = None
        """What it will listen with, where its address was given to others already."""
        self.lied = group.byzantine
        """Whether it ever lied."""
        self._service: GossipService | None = None
        self.changes_to_come = 0
        """Sessions and events that will still start it."""
        self._seed = seed
        self._device = device
        self._swarm = swarm
        self._sent = self._received = 0
        self._present = False
        """Until `keep_sessions` says so: this task and `attend` begin in any order."""
        self._down = False
        self._process: _Process | None = None
        self._changed = trio.Event()

    @property
    def peer_id(self) -> PeerId:
        """Return its name on the wire."""
        return self.identity.peer_id

    @property
    def running(self) -> bool:
        """Return whether its process lives."""
        return self._process is not None

    @property
    def over(self) -> bool:
        """Return whether it will do nothing more."""
        return not self.running and (self.finished or not (self._wanted or self.changes_to_come))

    @property
    def swarm_size(self) -> int | None:
        """Return how many members its process believes in; None: there is none."""
        return None if self._service is None else self._service.swarm_size

    @property
    def bytes_sent(self) -> int:
        """Return all bytes to peers, over all of its processes."""
        return self._sent + (0 if self.transport is None else self.transport.wire.sent)

    @property
    def bytes_received(self) -> int:
        """Return all bytes from peers."""
        return self._received + (0 if self.transport is None else self.transport.wire.received)

    @property
    def address(self) -> str | None:
        """Return where it can be dialled, or will be soon; None while it is away."""
        known = self.transport or self._next
        return None if known is None else known.addresses[0]

    def promise_address(self) -> None:
        """Let others know where it will listen, before it does: nodes that start together know each other."""
        self._next = self._attached()

    def unix_time(self) -> float:
        """Return its wall clock."""
        return UNIX_START + trio.current_time() + self.ahead_s

    def computed(self, seconds: float) -> None:
        """Note that its event loop computed for so long."""
        if self._process is not None:
            self._process.executor.computed(seconds)

    # -- what happens to it

    def end(self, by: Literal["stop", "kill"]) -> None:
        """End its process, where there is one: as by Ctrl-C, or as by kill -9."""
        if self._process is not None:
            if by == "kill":
                self._process.kill()
            else:
                self._process.stop.set()

    def down(self, by: Literal["stop", "kill"]) -> None:
        """End it until `up`."""
        self._down = True
        self.end(by)
        self._beat()

    def up(self) -> None:
        """Let it run again, within its session."""
        self._down = False
        self._beat()

    def turn(self, attack: AttackSection) -> None:
        """Make it a liar: it restarts with this attack."""
        self.config = self.config.model_copy(update={"attack": attack})
        self.lied = True
        self.end("stop")

    async def keep_sessions(self, intervals: list[Interval], begins_s: float, ends_by: Literal["stop", "kill"]) -> None:
        """Let it run in these intervals, and not before `begins_s`."""
        intervals = [(max(begin, begins_s), end) for begin, end in intervals if end > begins_s]
        self._present = False
        self.changes_to_come += len(intervals)
        for begin, end in intervals:
            await trio.sleep_until(begin)
            self._present = True
            self.changes_to_come -= 1
            self._beat()
            await trio.sleep_until(end)
            self._present = False
            self.end(ends_by)
            self._beat()

    async def attend(self) -> None:
        """Run its processes, as long as it is to run. Until cancelled."""
        while not self.finished:
            while not self._wanted:
                await self._changed.wait()
            await self._live()

    # -- insides

    @property
    def _wanted(self) -> bool:
        return self._present and not self._down and not self.finished

    def _beat(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _live(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / IDENTITY).exists():
            self.identity.save(self.folder / IDENTITY)
        executor = VirtualExecutor(self._device, rng_of(self._seed, self.name, "steps", str(self.starts)))
        checkpoints = VirtualCheckpointStore(
            self.folder / CHECKPOINTS, keep=self.config.node.checkpoint_keep, disk=self.disk, owe=executor.owe
        )
        process = _Process(trio.CancelScope(), trio.Event(), executor, checkpoints)
        self._process = process
        with EventLog(self.folder / EVENTS, clock=self.unix_time) as log:

            def emit(event: Event) -> None:
                if not process.killed:  # the last words of a process that is no more are not heard
                    self.told.observe(log(event), trio.current_time())

            try:
                with process.scope:
                    await self._run(process, emit)
            except Exception as error:
                if first_leaf(error, SealBrokenError) is not None:
                    raise
                if not process.killed:
                    self._failed(error, emit)
            finally:
                self._count()
                self._process = None
        self.starts += 1

    async def _run(self, process: _Process, emit: Callable[[Event], None]) -> None:
        starting = self._swarm.starting
        await starting.acquire()
        try:
            transport, self._next = self._next or self._attached(), None
            config = self._settings(transport)
            keep_settings(self.folder, config.to_toml())
            around = NodeContext(
                trainer_of=partial(own_learner, spend=unaccounted),
                identity=self.identity,
                transport=transport,
                executor=process.executor,
                emit=emit,
                clock=trio.current_time,
                unix_time=self.unix_time,
                rng=rng_of(self._seed, self.name, "network", str(self.starts)),
                checkpoints=process.checkpoints,
                epoch_file=self.folder / EPOCH,
                regional_stated=self.folder / REGIONAL_STATED,
            )
            node, checkpoint = make_node(config, around)
            self._service = node.service

            async def started() -> None:
                self.transport = transport
                announce_start(node, list(transport.addresses), self.folder, None)
                starting.release()

            await live(node, resumed=checkpoint is not None, started=started, stop=process.stop)
        finally:
            if starting.statistics().owner is trio.lowlevel.current_task():
                starting.release()
        interrupted = process.stop.is_set()
        finish(node, self.folder, checkpoint, event=Interrupted if interrupted else Finished)
        self.finished = not interrupted

    def _attached(self) -> MemoryTransport:
        return self._swarm.network.attach(self.peer_id, unix_time=self.unix_time)

    def _settings(self, transport: MemoryTransport) -> Config:
        """What differs from process to process."""
        network = replace(
            self.config.network,
            peers=self._swarm.known_to(self),
            announce=tuple(transport.addresses),
            address_book=self.folder / ADDRESSES,
            hash_in_thread_above=NO_THREAD,
        )
        return self.config.model_copy(update={"network": network})

    def _failed(self, error: Exception, emit: Callable[[Event], None]) -> None:
        """It ended with an error, and does not start again by itself."""
        self.error, self.cause = translate(error), error
        self._down = True
        emit(Failed(error=self.error.message, hint=self.error.hint))

    def _count(self) -> None:
        self._service = None
        if self.transport is not None:
            self._sent += self.transport.wire.sent
            self._received += self.transport.wire.received
        self.transport = None
