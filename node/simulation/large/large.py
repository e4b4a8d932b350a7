"""Plays a scenario in the large mode: from its file to what its nodes did."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from node.config.schema import Config
from node.config.selection_section import ALL
from node.simulation.derived import rng_of, share_of
from node.simulation.large.large_logs import LargeLogs
from node.simulation.large.large_node import LargeNode
from node.simulation.large.large_swarm import LargeSwarm
from node.simulation.observations import Observations
from node.simulation.rare_collections import rare_collections
from node.simulation.scenario import (
    DeviceClass,
    HealEvent,
    JoinEvent,
    KillEvent,
    LeaveEvent,
    LinkClass,
    NodeGroup,
    PartitionEvent,
    RegionLossEvent,
    RestartEvent,
    Scenario,
    StallEvent,
)
from node.simulation.scenario_file import LoadedScenario
from node.simulation.seeded_generators import seeded_generators
from node.simulation.sessions import intervals
from node.system.errors import UsageError
from p2ptrain import aggregate, attacks, tasks
from p2ptrain.attacks import ModelAttack, VectorAttack
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync import GOSSIP, SharesEstimates, SyncConfig, SyncStrategy, build, liar_of
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import TaskError
from p2ptrain.training.batched_trainer import BatchedTrainer

Action = Callable[[LargeSwarm, float], None]

POSSIBLE: Final = (
    PartitionEvent,
    HealEvent,
    RegionLossEvent,
    StallEvent,
    KillEvent,
    LeaveEvent,
    RestartEvent,
    JoinEvent,
)
"""Events that this mode has. Clocks, disks and processes are the faithful mode's."""

NOT_CHARGED: Final = ("aggregate_s", "other_s", "evaluate_s", "stream_s", "wake_s")
"""Charges of a device that the large mode has nothing like."""

LOOK_S: Final = 0.25
"""Real seconds between two calls of `progress`."""


@dataclass(frozen=True, kw_only=True)
class LargeOutcome:
    """What a large simulation left."""

    loaded: LoadedScenario
    swarm: LargeSwarm
    virtual_s: float
    wall_s: float
    ticks: int
    steps: int = 0
    most_steps: int = 0
    livelock: str = ""

    @property
    def members(self) -> Mapping[str, LargeNode]:
        """All nodes by name, in order."""
        return {node.name: node for node in self.swarm.nodes}

    @property
    def honest(self) -> Sequence[LargeNode]:
        """Those that never lied."""
        return [node for node in self.swarm.nodes if not node.lied]


def check_large(loaded: LoadedScenario) -> None:
    """Raise UsageError for what this mode has not."""
    scenario = loaded.scenario
    first = loaded.configs[scenario.nodes[0].name]
    for group in scenario.nodes:
        config = loaded.configs[group.name]
        where = f"nodes.{group.name}"
        if config.node.role != "trainer":
            raise UsageError(f"{where}: the large mode has trainers alone", "use mode = 'faithful'")
        if (config.train, config.sync, config.task) != (first.train, first.sync, first.task):
            what = f"{where}: in the large mode all nodes have one [task], [train] and [sync]"
            raise UsageError(what, "leave them out of settings, or use mode = 'faithful'")
        if config.node.pace != "fixed":
            raise UsageError(f"{where}: the large mode has node.pace = 'fixed' alone", "use mode = 'faithful'")
        if config.train.step_normalization != Unnormalized.name:
            raise UsageError(f"{where}: the large mode lengthens no rounds", "use mode = 'faithful'")
        if config.privacy.on:
            raise UsageError(f"{where}: the large mode protects no examples", "use mode = 'faithful'")
        if config.warm_up.on:
            raise UsageError(f"{where}: the large mode warms nobody up", "use mode = 'faithful'")
        if config.shift.on:
            raise UsageError(f"{where}: the large mode watches no data for shift", "use mode = 'faithful'")
        if config.selection.policy != ALL:
            raise UsageError(f"{where}: the large mode has selection.policy = 'all' alone", "use mode = 'faithful'")
        if not config.node.overlap:
            raise UsageError(f"{where}: the large mode always overlaps", "use mode = 'faithful'")
    for number, event in enumerate(scenario.events):
        if not isinstance(event, POSSIBLE):
            raise UsageError(f"events: the large mode has no {event.kind}", "use mode = 'faithful'")
        if isinstance(event, PartitionEvent) and _parted(scenario, event) < len(scenario.members):
            what = f"events[{number}]: in the large mode every node is in a group of a partition"
            raise UsageError(what, "name the others as one more group, or use mode = 'faithful'")
    for what, differs in (
        ("links: nat", not all(link.lets_in for link in scenario.links.values())),
        *(
            (f"devices: {key}", any(getattr(device, key) for device in scenario.devices.values()))
            for key in NOT_CHARGED
        ),
        ("devices: spare_core", not all(device.spare_core for device in scenario.devices.values())),
        ("crypto", scenario.crypto != Scenario.model_fields["crypto"].default),
        ("known_peers", scenario.known_peers != Scenario.model_fields["known_peers"].default),
    ):
        if differs:
            raise UsageError(f"{what}: the large mode has nothing like it", "leave it out, or use mode = 'faithful'")


def _parted(scenario: Scenario, event: PartitionEvent) -> int:
    """How many nodes are in a group of it."""
    return len(scenario.selected([selector for group in event.groups for selector in group]))


def play_large(
    loaded: LoadedScenario, progress: Callable[[LargeSwarm], None] | None = None, *, folder: Path | None = None
) -> LargeOutcome:
    """Simulate a scenario. `folder`: where the evaluated nodes' logs are left; None: nowhere. Raises UsageError for
    settings that this mode has not."""
    check_large(loaded)
    began = looked = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    files = ExitStack()
    files.enter_context(rare_collections())
    files.enter_context(seeded_generators(loaded.scenario.seed))
    try:
        swarm = _swarm(loaded, folder, files)
        actions = _actions(loaded.scenario, swarm)
        tick_s = min(_device(loaded.scenario, group.device).step_s for group in loaded.scenario.nodes)
        now, ticks, at = 0.0, 0, 0
        while now < loaded.scenario.until_s and not (swarm.over and ticks):
            while at < len(actions) and actions[at][0] <= now:
                actions[at][2](swarm, now)
                at += 1
            upcoming = min(swarm.next_s, actions[at][0] if at < len(actions) else math.inf)
            now = min(loaded.scenario.until_s, max(now + tick_s, upcoming))
            swarm.step_until(now)
            ticks += 1
            if progress is not None and time.perf_counter() - looked > LOOK_S:
                looked = time.perf_counter()
                progress(swarm)
        _conclude(swarm, now)
    finally:
        files.close()
        torch.set_num_threads(threads)
    return LargeOutcome(loaded=loaded, swarm=swarm, virtual_s=now, wall_s=time.perf_counter() - began, ticks=ticks)


def _conclude(swarm: LargeSwarm, now: float) -> None:
    for node in swarm.nodes:
        if node.present and not node.finished:
            node.pause(now)
        node.bytes_sent, node.told.payload_bytes = swarm.bytes_sent(node), node.payload_bytes
        node.told.utilization = node.busy_s / node.here_s if node.here_s > 0 else None
    honest = [node for node in swarm.nodes if not node.lied and node.started]
    for node, loss in zip(honest, swarm.losses(honest), strict=True):
        node.told.losses.append((now, node.round, loss))
        node.told.digest.update(f"end {node.round} {loss!r}\n".encode())


def _swarm(loaded: LoadedScenario, folder: Path | None, files: ExitStack) -> LargeSwarm:
    scenario = loaded.scenario
    members = scenario.members
    first = loaded.configs[scenario.nodes[0].name]
    train = replace(first.train, threads=1, device="cpu")
    count = first.node.shard_count if "shard_count" in scenario.node else len(members)
    shared = count < len(members)
    shards = [Shard(index=index % count, count=count) for index in range(len(members))]
    seeds = [rng_of(scenario.seed, name, "data").getrandbits(31) if shared else train.seed for name in members]
    configs = {name: config.model_copy(update={"train": train}) for name, config in loaded.configs.items()}
    try:
        sync = first.sync.for_rounds(train.rounds)
        task = tasks.get(first.task.name, **first.task.options)
        trainer = BatchedTrainer(task, train, shards, seeds)
    except (TaskError, ValueError) as error:
        raise UsageError(f"{loaded.path}: {error}", "or use mode = 'faithful'") from None
    nodes = [
        LargeNode(
            index=index,
            name=name,
            group=group,
            config=configs[group.name],
            region=scenario.region_of(group),
            device=_device(scenario, group.device),
            link=LinkClass() if group.link is None else scenario.links[group.link],
            sync=_sync(loaded, configs[group.name], sync, trainer, name, group),
            told=Observations(Path()),
            rng=rng_of(scenario.seed, name, "device"),
            lied=group.byzantine,
            withstands=_withstands(configs[group.name]),
        )
        for index, (name, group) in enumerate(members.items())
    ]
    logs = None if folder is None else files.enter_context(LargeLogs(folder, task, trainer.numel))
    return LargeSwarm(scenario, nodes, trainer, logs)


def _sync(
    loaded: LoadedScenario, config: Config, rule: SyncConfig, trainer: BatchedTrainer, name: str, group: NodeGroup
) -> SyncStrategy:
    """A node's strategy, by the learning rule of all."""
    try:
        sync = build(rule, trainer.genesis_d, name, largest_gamma=config.train.largest_gamma)
    except ValueError as error:
        raise UsageError(f"{loaded.path}: {error}", "or use mode = 'faithful'") from None
    if not isinstance(sync, SharesEstimates) or config.sync.spec().averager is not GOSSIP:
        what = f"the large mode has strategies that track their neighbours' models, not {config.sync.strategy}"
        raise UsageError(what, "take tracked_gossip, diloco, sparse_loco, streaming or async, or mode = 'faithful'")
    if config.sync.layers:
        raise UsageError("the large mode has no links by which sync.layers are taken", "use mode = 'faithful'")
    if config.sync.regions:
        raise UsageError("the large mode is one flat swarm, without sync.regions", "use mode = 'faithful'")
    if not group.byzantine:
        return sync
    attack = attacks.find(config.attack.name, **config.attack.options)
    if not isinstance(attack, VectorAttack | ModelAttack):
        what = f"the large mode has attacks on models alone, and {config.attack.name} is none"
        raise UsageError(what, "use mode = 'faithful'")
    seed = rng_of(loaded.scenario.seed, name, "attack").getrandbits(62)
    return liar_of(sync, attack, generator=torch.Generator().manual_seed(seed), from_round=config.attack.from_round)


def _withstands(config: Config) -> bool:
    return aggregate.get(config.sync.aggregator, f=config.sync.f, **config.sync.rule_options()).f >= config.sync.f


def _device(scenario: Scenario, name: str | None) -> DeviceClass:
    return DeviceClass() if name is None else scenario.devices[name]


# -- what happens when


def _actions(scenario: Scenario, swarm: LargeSwarm) -> list[tuple[float, int, Action]]:
    """Comings and goings, and the scenario's events, in order of time."""
    found: list[tuple[float, Action]] = []
    parts = _Cuts(scenario, swarm)
    joining = parts.joining()
    for node in swarm.nodes:
        if node.index not in joining:
            found += _comings(scenario, node)
    for number, event in enumerate(scenario.events):
        found += list(parts.of(number, event))
    ordered = sorted(enumerate(found), key=lambda each: (each[1][0], each[0]))
    return [(at, number, action) for number, (at, action) in ordered]


def _comings(scenario: Scenario, node: LargeNode) -> list[tuple[float, Action]]:
    group, number = node.group, int(node.name.rpartition("-")[2])
    starts = group.starts_s + group.starts_over_s * number / group.count
    times = intervals(
        scenario.sessions.get(group.session or ""),
        rng_of(scenario.seed, node.name, "session"),
        until_s=scenario.until_s,
        day_s=scenario.day_s,
        local_h=scenario.begins_h + scenario.utc_offset_h(node.region),
    )
    found: list[tuple[float, Action]] = []
    for begin, end in times:
        if end > starts:
            found.append((max(begin, starts), lambda swarm, now: swarm.come(node, now)))
            if math.isfinite(end):
                found.append((end, lambda swarm, now: swarm.go(node, now)))
    return found


class _Cuts:
    """Events on nodes and on what reaches what. Several may last at a time."""

    def __init__(self, scenario: Scenario, swarm: LargeSwarm) -> None:
        self._scenario = scenario
        self._index = {node.name: node.index for node in swarm.nodes}
        self._cuts: dict[int, list[list[int]]] = {}
        """By event, the groups that it parts."""
        self._stalls: frozenset[int] = frozenset(
            number for number, event in enumerate(scenario.events) if isinstance(event, StallEvent)
        )
        """Events that `heal` does not end."""

    def joining(self) -> frozenset[int]:
        """Return the nodes that start by an event: of those that it selects, the drawn ones."""
        meant = (
            self._meant(number, event.nodes, event.share)
            for number, event in enumerate(self._scenario.events)
            if isinstance(event, JoinEvent)
        )
        return frozenset(index for indices in meant for index in indices)

    def of(self, number: int, event: object) -> Sequence[tuple[float, Action]]:
        """Return what an event does when."""
        match event:
            case PartitionEvent():
                groups = [self._indices(group) for group in event.groups]
                return self._lasting(number, event.at_s, event.for_s, groups)
            case RegionLossEvent():
                lost = self._indices([f"region:{event.region}"])
                return self._lasting(number, event.at_s, event.for_s, [[index] for index in lost])
            case StallEvent():
                meant = self._meant(number, event.nodes, event.share)
                return self._lasting(number, event.at_s, event.for_s, [[index] for index in meant])
            case HealEvent():
                return [(event.at_s, self._heal)]
            case KillEvent() | LeaveEvent():
                meant = self._meant(number, event.nodes, event.share)
                return [(event.at_s, lambda swarm, now: _each(swarm, meant, swarm.go, now))]
            case RestartEvent() | JoinEvent():
                meant = self._meant(number, event.nodes, event.share)
                return [(event.at_s, lambda swarm, now: _each(swarm, meant, swarm.come, now))]
        raise UsageError(f"the large mode has no such event: {event}", "use mode = 'faithful'")

    def _lasting(
        self, number: int, at_s: float, for_s: float | None, groups: list[list[int]]
    ) -> Sequence[tuple[float, Action]]:
        def begin(swarm: LargeSwarm, now: float) -> None:
            self._cuts[number] = groups
            self._apply(swarm)

        def end(swarm: LargeSwarm, now: float) -> None:
            self._cuts.pop(number, None)
            self._apply(swarm)

        return [(at_s, begin)] if for_s is None else [(at_s, begin), (at_s + for_s, end)]

    def _heal(self, swarm: LargeSwarm, now: float) -> None:
        self._cuts = {number: groups for number, groups in self._cuts.items() if number in self._stalls}
        self._apply(swarm)

    def _apply(self, swarm: LargeSwarm) -> None:
        """Nodes are together where no cut has them in two groups; those in no group of a cut are one more group of
        it."""
        cuts = [
            {index: side for side, group in reversed([*enumerate(groups, start=1)]) for index in group}
            for _, groups in sorted(self._cuts.items())
        ]
        kinds: dict[tuple[int, ...], int] = {}
        parts: dict[int, int] = {}
        for node in swarm.nodes:
            sides = tuple(side_of.get(node.index, 0) for side_of in cuts)
            parts[node.index] = kinds.setdefault(sides, len(kinds))
        swarm.split(parts)

    def _indices(self, selectors: list[str]) -> list[int]:
        return [self._index[name] for name in self._scenario.selected(selectors)]

    def _meant(self, number: int, selectors: list[str], share: float) -> list[int]:
        names = self._scenario.selected(selectors)
        if share < 1:
            drawn = set(rng_of(self._scenario.seed, "event", str(number)).sample(names, share_of(len(names), share)))
            names = [name for name in names if name in drawn]
        return [self._index[name] for name in names]


def _each(swarm: LargeSwarm, indices: Sequence[int], act: Callable[[LargeNode, float], None], now: float) -> None:
    for index in indices:
        act(swarm.nodes[index], now)
