"""Who races. A contestant starts a process at each host, says when all stand at the start line, and when it is done."""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from node.bench.race import namespaces, recorded_task
from node.bench.race.crew import Crew
from node.bench.race.host import READY
from node.bench.race.namespaces import Hosts
from node.bench.race.spec import HostPlan, RaceSpec
from node.bench.race.track import read_track
from node.config.schema import Config, from_raw
from node.config.toml_source import Raw
from node.events.event_types import Evaluated, Started
from node.events.log import read_events
from node.system.errors import RunError
from node.system.run_dir import CONFIG, EVENTS
from p2ptrain.registry import Registry

START_S: Final = 120.0
"""From a process's start to the start line: imports and meeting the others take 10 s on a quiet machine, and more where
several share a core."""
LOOK_S: Final = 0.1
"""Seconds between two looks at what a process has written."""
PACKAGES: Final = str(Path(__file__).parents[3])
"""For the Python of a rival: where ours are imported from."""


@runtime_checkable
class Contestant(Protocol):
    """A way to train together."""

    name: str
    synchronous: bool
    """Whether every step waits for all hosts: then its loss by step is the same on every link."""

    def absent(self) -> str:
        """Return why it cannot take part here; empty: it can."""

    def start(self, crew: Crew, hosts: Hosts, spec: RaceSpec, folder: Path) -> None:
        """Start its processes, each with a folder `host-I` for its track, and return when all stand at the start line.
        RunError where they do not come there."""

    def go(self, crew: Crew, spec: RaceSpec, folder: Path) -> None:
        """Give the sign to start."""

    def done(self, spec: RaceSpec, folder: Path) -> bool:
        """Return whether the first host has done all its steps and kept its last model."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Someone else's: processes of host.py, with the module that `options["stepper"]` names."""

    name: str
    synchronous: bool
    options: Mapping[str, Any]
    python: Path | None = None
    """With what it runs; None: with our own Python."""
    needs: str = ""
    """A module that our own Python must have, where no other is named."""

    def absent(self) -> str:
        """Return why it cannot take part here; empty: it can."""
        if self.python is not None or not self.needs or importlib.util.find_spec(self.needs) is not None:
            return ""
        return f"{self.needs} is not installed here, and does not race: --{self.needs} names a Python that has it"

    def start(self, crew: Crew, hosts: Hosts, spec: RaceSpec, folder: Path) -> None:
        """Start its processes, and return when all are ready."""
        for rank in range(spec.hosts):
            plan = HostPlan(
                spec=spec,
                rank=rank,
                address=hosts.address(0),
                own_address=hosts.address(rank),
                folder=host_folder(folder, rank),
                options=dict(self.options),
            )
            python = ["env", f"PYTHONPATH={_search_path()}", str(self.python or sys.executable)]
            command = [*hosts.inside(rank), *python, "-m", "node.bench.race.host", plan.to_json()]
            crew.start(f"{self.name} at host {rank}", command, plan.folder)
        ready = [host_folder(folder, rank) / READY for rank in range(spec.hosts)]
        wait_until(lambda: all(path.exists() for path in ready), crew, f"{self.name}'s hosts have not met")

    def go(self, crew: Crew, spec: RaceSpec, folder: Path) -> None:
        """Give the sign to start."""
        crew.go()

    def done(self, spec: RaceSpec, folder: Path) -> bool:
        """Return whether the first host has kept the model of its last step."""
        return any(mark.model and mark.step >= spec.steps for mark in read_track(host_folder(folder, 0)))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ours: real nodes, `p2ptrain node`, with these settings over those that all contestants share."""

    name: str
    inner_steps: int
    settings: Raw = field(default_factory=dict)
    synchronous: bool = False

    def absent(self) -> str:
        """Return nothing: we are always there."""
        return ""

    def start(self, crew: Crew, hosts: Hosts, spec: RaceSpec, folder: Path) -> None:
        """Start the first node, then those that join it, and return when all have met."""
        self._start_node(crew, hosts, spec, folder, 0, ())
        events = host_folder(folder, 0) / EVENTS
        wait_until(lambda: _address(events) is not None, crew, f"{self.name}'s first node has not started")
        address = _address(events)
        assert address is not None
        for rank in range(1, spec.hosts):
            self._start_node(crew, hosts, spec, folder, rank, (address,))
        folders = [host_folder(folder, rank) for rank in range(spec.hosts)]
        met = [each / recorded_task.READY for each in folders]
        wait_until(lambda: all(path.exists() for path in met), crew, f"{self.name}'s nodes have not met")

    def go(self, crew: Crew, spec: RaceSpec, folder: Path) -> None:
        """Give the sign to start."""
        for rank in range(spec.hosts):
            (host_folder(folder, rank) / recorded_task.GO).touch()

    def done(self, spec: RaceSpec, folder: Path) -> bool:
        """Return whether the first node has evaluated its last round."""
        rounds = spec.train(self.inner_steps).rounds
        events = read_events(host_folder(folder, 0) / EVENTS)
        return any(isinstance(event, Evaluated) and event.round >= rounds for event in events)

    def config(self, spec: RaceSpec, folder: Path, rank: int, own_address: str, peers: Sequence[str]) -> Config:
        """Return the settings of the node at host `rank`. UsageError where they cannot be."""
        train = {name: getattr(spec.train(self.inner_steps), name) for name in _TRAIN}
        every = max(1, spec.keep_every // self.inner_steps) if rank == 0 else train["rounds"]
        raw: dict[str, dict[str, Any]] = {
            "task": {
                "name": recorded_task.NAME,
                "folder": str(host_folder(folder, rank)),
                "size": spec.size,
                **({} if spec.data is None else {"data": spec.data}),
            },
            "train": {**train, "eval_every": every},
            "network": {
                "listen": [f"/ip4/{own_address}/tcp/{namespaces.PORT}"],
                "peers": list(peers),
                "upnp": False,
            },
            "node": {
                "name": host_name(rank),
                "wait_for": spec.hosts - 1,
                "shard_index": rank,
                "shard_count": spec.hosts,
                "metrics_port": -1,
                "checkpoint_every": 0,
            },
        }
        for section, keys in self.settings.items():
            raw[section] = {**raw.get(section, {}), **keys}
        return from_raw(raw)

    def _start_node(
        self, crew: Crew, hosts: Hosts, spec: RaceSpec, folder: Path, rank: int, peers: Sequence[str]
    ) -> None:
        own = host_folder(folder, rank)
        own.mkdir(parents=True, exist_ok=True)
        config = self.config(spec, folder, rank, hosts.address(rank), peers)
        (own / CONFIG).write_text(config.to_toml(), encoding="utf-8")
        words = ["-m", "p2ptrain", "node", "--json", "--with-parent", "--run-dir", str(folder)]
        command = [*hosts.inside(rank), "env", f"PYTHONPATH={_search_path()}", sys.executable, *words]
        crew.start(f"{self.name} at host {rank}", [*command, "--config", str(own / CONFIG)], own)


_TRAIN: Final = ("rounds", "inner_steps", "batch_size", "learning_rate", "warmup_steps", "seed", "threads", "device")

LOCAL: Final = {"compressor": "q2", "aggregator": "trimmed_mean", "f": 1, "outer": "average"}
"""[sync] of configs/local.toml."""

MUON: Final = {"optimizer": "muon", "learning_rate": 2.4e-2, "momentum": 0.9, "warmup_steps": 10}
"""[train] of those with Muon: the best of several in a simulation of ours, better for both than the 40 steps of warm-up
that AdamW wants (docs/benchmarks.md)."""

CONTESTANTS: Registry[Contestant] = Registry("contestants")
"""Most are built without options; `hivemind` takes the Python that has it, `ddp-powersgd` a rank."""


@CONTESTANTS.register("ddp")
def ddp() -> Rival:
    """Data parallel training of torch, over gloo."""
    return Rival(name="ddp", synchronous=True, options={"stepper": "ddp"})


@CONTESTANTS.register("ddp-bf16")
def ddp_bf16() -> Rival:
    """The same with gradients in 16 bits."""
    return Rival(name="ddp-bf16", synchronous=True, options={"stepper": "ddp", "hook": "bf16"})


@CONTESTANTS.register("ddp-powersgd")
def ddp_powersgd(rank: int = 4) -> Rival:
    """The same with gradients of this rank, and error feedback (1905.13727)."""
    return Rival(name="ddp-powersgd", synchronous=True, options={"stepper": "ddp", "hook": "powersgd", "rank": rank})


@CONTESTANTS.register("ddp-muon")
def ddp_muon() -> Rival:
    """Plain, with torch's Muon for the hidden matrices: what `p2ptrain-muon` owes to its optimizer."""
    return Rival(name="ddp-muon", synchronous=True, options={"stepper": "ddp", "train": dict(MUON)})


@CONTESTANTS.register("hivemind")
def hivemind(python: Path | None = None, inner_steps: int = 10) -> Rival:
    """hivemind's Optimizer, with local updates."""
    options = {"stepper": "hivemind", "inner_steps": inner_steps}
    return Rival(name="hivemind", synchronous=False, options=options, python=python, needs="hivemind")


@CONTESTANTS.register("p2ptrain")
def p2ptrain() -> Recipe:
    """Our own, with the learning rule and the rounds of configs/local.toml (a test compares them)."""
    return Recipe(name="p2ptrain", inner_steps=10, settings={"sync": dict(LOCAL)})


@CONTESTANTS.register("p2ptrain-short")
def p2ptrain_short() -> Recipe:
    """The same in rounds of three steps, or of as many as an exchange takes: three times the bytes, a quarter fewer
    steps to a loss."""
    return Recipe(name="p2ptrain-short", inner_steps=3, settings={"sync": dict(LOCAL)})


@CONTESTANTS.register("p2ptrain-muon")
def p2ptrain_muon() -> Recipe:
    """The same with Muon inside, which comes to a loss in fewer steps."""
    settings = {"sync": dict(LOCAL), "train": dict(MUON)}
    return Recipe(name="p2ptrain-muon", inner_steps=3, settings=settings)


@CONTESTANTS.register("p2ptrain-muon-sync")
def p2ptrain_muon_sync() -> Recipe:
    """That, without overlap: training waits until its round is closed, for all neighbours. No correction is late, which
    saves one step in six, and each round lasts an exchange longer."""
    settings = {
        "sync": dict(LOCAL),
        "train": dict(MUON),
        "node": {"overlap": False},
        "network": {"quorum": 1.0},
    }
    return Recipe(name="p2ptrain-muon-sync", inner_steps=3, settings=settings)


@CONTESTANTS.register("p2ptrain-allreduce")
def p2ptrain_allreduce() -> Recipe:
    """That, with differences reduced by parts: 1.5 copies of an update among four hosts in place of three, and nobody
    withstands a liar, as in DistributedDataParallel."""
    settings = {
        "sync": {"strategy": "allreduce", "compressor": "q2", "outer": "average"},
        "train": dict(MUON),
        "node": {"overlap": False},
    }
    return Recipe(name="p2ptrain-allreduce", inner_steps=3, settings=settings)


def host_name(rank: int) -> str:
    """Return the name of a host's folder, and of its node."""
    return f"host-{rank}"


def host_folder(folder: Path, rank: int) -> Path:
    """Return where a host's process writes."""
    return folder / host_name(rank)


def wait_until(condition: Callable[[], bool], crew: Crew, otherwise: str, patience_s: float = START_S) -> None:
    """Wait for a condition. RunError when a process of the crew ends, or after `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        crew.check()
        if time.monotonic() > deadline:
            raise RunError(f"{otherwise} within {patience_s:.0f} s")
        time.sleep(LOOK_S)


def _address(events: Path) -> str | None:
    started = next((event for event in read_events(events) if isinstance(event, Started)), None)
    return None if started is None or not started.addresses else started.addresses[0]


def _search_path() -> str:
    return os.pathsep.join(filter(None, (PACKAGES, os.environ.get("PYTHONPATH", ""))))
