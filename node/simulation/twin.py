"""Runs a scenario: real nodes, from the first dial to the last goodbye, on a virtual clock over modelled links."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
import trio.testing

from gossip.core.ids import PeerId
from gossip.transport.memory.network import MemoryNetwork
from gossip.transport.memory.traffic_tap import TrafficTap
from gossip.transport.memory.wan import AccessLink, EventLoop, WideAreaNetwork
from node.config.schema import Config
from node.roles.assembly import check_runnable
from node.simulation.clock_jump import ClockJump
from node.simulation.derived import rng_of
from node.simulation.happenings import Happenings
from node.simulation.livelock import MOST_STEPS, StepBudget
from node.simulation.member import Member
from node.simulation.scenario import DeviceClass, JoinEvent, LinkClass, NodeGroup, Scenario
from node.simulation.scenario_file import LoadedScenario
from node.simulation.sealed import sealed
from node.simulation.sessions import intervals
from node.system.errors import UsageError
from node.system.interrupts import ending

END_S: Final = 5.0
"""Virtual seconds that nodes have to stop when the time limit is reached: as by Ctrl-C."""

MEMORY: Final = Path("/dev/shm")
"""A disk that costs nothing, where there is one."""

LOOK_S: Final = 0.5
"""Virtual seconds between two looks whether all have ended."""

Progress = Callable[["Twin"], None]
"""Called a few times a real second."""

FORBIDDEN: Final = {
    ("network", "quiet_hours"): "they follow this machine's clock: use a session",
    ("network", "mdns"): "there is no local network in a simulation",
    ("network", "peers"): "addresses are given by the simulation: see known_peers",
    ("network", "peers_file"): "addresses are given by the simulation: see known_peers",
    ("network", "address_book"): "each node has its own",
    ("participation", "when"): "it reads this machine: use a session",
    ("participation", "policy"): "it reads this machine: use a session",
    ("node", "estimates_on"): "nodes of a simulation keep their neighbours' models in memory",
    ("node", "optimizer_on"): "nodes of a simulation keep their optimizer in memory",
}
"""Settings that mean nothing here, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a simulation left."""

    twin: "Twin"
    virtual_s: float
    wall_s: float
    steps: int
    """Of the scheduler."""
    most_steps: int
    """Of the scheduler in one virtual second."""
    livelock: str
    """Who did not let time pass; empty: nobody."""
    steps_by_second: Mapping[int, int]
    """Of the scheduler, before each virtual second in which there were any."""

    @property
    def loaded(self) -> LoadedScenario:
        """What was played."""
        return self.twin.loaded

    @property
    def members(self) -> Mapping[str, Member]:
        """All nodes by name, in order."""
        return self.twin.members

    @property
    def honest(self) -> Sequence[Member]:
        """Those that never lied and train."""
        return self.twin.honest


class Twin:
    """The swarm of a scenario. It has to be made and run inside of `sealed`."""

    def __init__(self, loaded: LoadedScenario, folder: Path) -> None:
        self.loaded = loaded
        self.scenario = scenario = loaded.scenario
        self.seed = scenario.seed
        regions = _regions(scenario)
        self._regions = regions
        wan = WideAreaNetwork(rng_of(self.seed, "jitter"), self._latency_s)
        self.network = MemoryNetwork(rng_of(self.seed, "network"), wan=wan)
        self.starting = trio.Lock()
        self.members: dict[str, Member] = {}
        self.sent: dict[int, tuple[int, int]] = {}
        """By virtual second, about: bytes that all nodes had sent, and of these payloads and models."""
        self.believed: dict[int, tuple[int, ...]] = {}
        """By virtual second, about: how many members each running node believed in."""
        self.livelock = ""
        self._region_of: dict[PeerId, str] = {}
        initial = _initial(scenario)
        for index, (name, group) in enumerate(scenario.members.items()):
            member = self._member(name, group, index, initial, folder / name)
            self.members[name] = member
            self._region_of[member.peer_id] = regions[name]
            link = _link(scenario, group)
            device = _device(scenario, group)
            loop = EventLoop(
                broadcast_s=device.verify_s, stream_s=device.stream_s, wake_s=device.wake_s, computed=member.computed
            )
            wan.connect(member.peer_id, _access(link), loop)
            if not link.lets_in:
                self.network.hide(member.peer_id)
            if name in initial:
                member.promise_address()
        self._hidden = {name for name, group in scenario.members.items() if not _link(scenario, group).lets_in}
        self._happenings = Happenings(scenario, self.network, self.members, self.seed)

    @property
    def honest(self) -> list[Member]:
        """Return the members that never lied and train."""
        return [it for it in self.members.values() if not it.lied and it.config.node.role == "trainer"]

    async def run(self) -> None:
        """Run to the end: all honest trainers have finished, or the time is over."""
        async with trio.open_nursery() as nursery:
            self._happenings.prepare()
            for name, member in self.members.items():
                times = intervals(
                    self.scenario.sessions.get(member.group.session or ""),
                    rng_of(self.seed, name, "session"),
                    until_s=self.scenario.until_s,
                    day_s=self.scenario.day_s,
                    local_h=self.scenario.begins_h + self.scenario.utc_offset_h(self._regions[name]),
                )
                session = self.scenario.sessions.get(member.group.session or "")
                ends_by = "stop" if session is None else session.ends_by
                nursery.start_soon(
                    member.keep_sessions, times, _starts_s(self.scenario, name), ends_by, name=f"{name} session"
                )
                nursery.start_soon(member.attend, name=name)
            nursery.start_soon(self._happenings.run, name="events")
            with trio.move_on_at(self.scenario.until_s):
                await self._all_over()
            await self._stop()
            nursery.cancel_scope.cancel()

    def known_to(self, member: Member) -> tuple[str, ...]:
        """Return some addresses of nodes that can be dialled."""
        there = [
            it.address
            for name, it in self.members.items()
            if it is not member and it.address is not None and name not in self._hidden
        ]
        drawn = rng_of(self.seed, member.name, "known", str(member.starts))
        return tuple(drawn.sample(there, min(len(there), self.scenario.known_peers)))

    async def _all_over(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            nodes = self.members.values()
            told = sum(it.bytes_sent for it in nodes), sum(it.told.payload_bytes for it in nodes)
            self.sent.setdefault(int(trio.current_time()), told)
            sizes = tuple(it.swarm_size for it in nodes if it.swarm_size is not None)
            before = next(reversed(self.believed.values()), ())
            self.believed.setdefault(int(trio.current_time()), before if sizes == before else sizes)
            if all(member.over for member in self.honest):
                return

    async def _stop(self) -> None:
        for member in self.members.values():
            member.down("stop")
        with trio.move_on_after(END_S):
            while any(member.running for member in self.members.values()):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        for member in self.members.values():
            member.end("kill")

    def _latency_s(self, one: PeerId, other: PeerId) -> float:
        return self.scenario.latency_s(self._region_of[one], self._region_of[other])

    def _member(self, name: str, group: NodeGroup, index: int, initial: frozenset[str], folder: Path) -> Member:
        return Member(
            name,
            group,
            _config(self.loaded, name, group, index, initial),
            seed=self.seed,
            folder=folder,
            device=_device(self.scenario, group),
            swarm=self,
        )


def play(
    loaded: LoadedScenario,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    tap: TrafficTap | None = None,
) -> Played:
    """Simulate a scenario. `folder`: where every node's folder is left; None: nowhere. `tap`: is called for all that
    is sent. Raises UsageError for settings that cannot be simulated, RunError where this trio cannot be made
    deterministic."""
    check(loaded)
    wall = time.perf_counter  # before the seal
    began = wall()
    outcome: list[Any] = []
    stops: list[Callable[[], object]] = []

    clock = trio.testing.MockClock(autojump_threshold=0)

    async def main(working: Path) -> None:
        twin = Twin(loaded, working)
        twin.network.tap = tap
        with trio.CancelScope() as scope:
            stops.append(partial(trio.lowlevel.current_trio_token().run_sync_soon, scope.cancel))

            def busy(message: str) -> None:
                twin.livelock = message
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)

            look = None if progress is None else partial(progress, twin)
            budget = StepBudget(MOST_STEPS * len(twin.members), busy, wall=wall, look=look)
            trio.lowlevel.add_instrument(ClockJump(clock))
            trio.lowlevel.add_instrument(budget)  # behind it: a step counts in the second that it is taken in
            await twin.run()
        outcome.extend((twin, trio.current_time(), budget))

    with ending(stops), _working(folder) as working, sealed(loaded.scenario.seed, loaded.scenario.crypto):
        trio.run(main, working, clock=clock)
    twin, virtual_s, budget = outcome
    return Played(
        twin=twin,
        virtual_s=virtual_s,
        wall_s=wall() - began,
        steps=budget.total,
        most_steps=budget.most_seen,
        livelock=twin.livelock,
        steps_by_second=budget.by_second,
    )


def check(loaded: LoadedScenario) -> None:
    """Raise UsageError for a setting that no simulation can have."""
    for group in loaded.scenario.nodes:
        config, fresh = loaded.configs[group.name], Config()
        check_runnable(config)
        for (section, key), instead in FORBIDDEN.items():
            if getattr(getattr(config, section), key) != getattr(getattr(fresh, section), key):
                raise UsageError(f"nodes.{group.name}: {section}.{key} cannot be simulated", instead)
        if config.node.role == "bootstrap":
            raise UsageError(f"nodes.{group.name}: bootstrap nodes are not simulated", "use known_peers")
        if config.train.device not in ("auto", "cpu"):
            raise UsageError(f"nodes.{group.name}: a simulation computes on the CPU", "leave out train.device")


@contextmanager
def _working(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder.absolute()  # events name it: no other text of theirs is alike
        return
    made = Path(tempfile.mkdtemp(prefix="p2ptrain-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _config(loaded: LoadedScenario, name: str, group: NodeGroup, index: int, initial: frozenset[str]) -> Config:
    """A node's settings: those of its group, as `up` would lay them out over the swarm."""
    config, scenario = loaded.configs[group.name], loaded.scenario
    said = set(scenario.node) | set(group.settings.get("node", {}))
    neighbours = min(len(initial) - 1, (config.network.degree + 1) // 2) if name in initial else 1
    node = replace(
        config.node,
        name=name,
        lane="inline",
        metrics_port=-1,
        shard_index=config.node.shard_index if "shard_index" in said else index,
        shard_count=config.node.shard_count if "shard_count" in said else len(scenario.members),
        wait_for=config.node.wait_for if "wait_for" in said else neighbours,
    )
    return config.model_copy(update={"node": node, "train": replace(config.train, threads=1, device="cpu")})


def _initial(scenario: Scenario) -> frozenset[str]:
    """The nodes that are there from the start."""
    joining = {
        name for event in scenario.events if isinstance(event, JoinEvent) for name in scenario.selected(event.nodes)
    }
    return frozenset(name for name in scenario.members if _starts_s(scenario, name) == 0) - joining


def _starts_s(scenario: Scenario, name: str) -> float:
    group = scenario.members[name]
    return group.starts_s + group.starts_over_s * int(name.rpartition("-")[2]) / group.count


def _regions(scenario: Scenario) -> dict[str, str]:
    return {name: scenario.region_of(group) for name, group in scenario.members.items()}


def _device(scenario: Scenario, group: NodeGroup) -> DeviceClass:
    return DeviceClass() if group.device is None else scenario.devices[group.device]


def _link(scenario: Scenario, group: NodeGroup) -> LinkClass:
    return LinkClass() if group.link is None else scenario.links[group.link]


def _access(link: LinkClass) -> AccessLink:
    return AccessLink(
        up_bytes_per_s=link.up,
        down_bytes_per_s=link.down,
        loss=link.loss,
        jitter_s=link.jitter_ms / 1000,
        queue_s=link.queue_ms / 1000,
        slow_start=link.slow_start,
    )
