"""A swarm of real nodes (trainer, strategy, gossip, checkpoints) in one process, under trio's virtual clock.

Only the network (in memory) and the executor (inline, each step taking a given virtual time) differ from those of
`p2ptrain node`. Everything is seeded, so a run is the same every time.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import trio
from trio.testing import MockClock

from gossip.core.backoff import peer_in
from gossip.core.digests import digest_of
from gossip.core.identity import Identity
from gossip.transport.memory.network import LinkQuality, MemoryNetwork, MemoryTransport
from node.config.schema import Config, from_raw
from node.events.crossing_log import CrossingLog
from node.events.event_types import Event
from node.participation.device_state import DeviceState
from node.roles.assembly import NodeContext, make_node, own_learner
from node.roles.privacy_check import privacy_budget
from node.roles.trainer import live
from node.roles.visitors_privacy import visitor_ledger
from node.swarm import credentials
from node.system.run_dir import CROSSINGS, IDENTITY, REGIONAL_STATED, STATISTICS, SUMS_BEGUN
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.training.executors import InlineExecutor
from node.training.manifest_updates import follow_manifests
from node.training.node import Node
from p2ptrain.training import Learner

T = TypeVar("T")

STEP_SECONDS = 0.05

DEFAULTS: dict[str, dict[str, Any]] = {
    "task": {"name": "digits"},
    "train": {"rounds": 8, "inner_steps": 5, "batch_size": 16, "threads": 1, "warmup_steps": 5, "eval_every": 4},
    "network": {"hash_in_thread_above": 1 << 40, "min_deadline_s": 0.1},
    "node": {"lane": "inline", "checkpoint_every": 0, "linger_s": 1.0, "wait_timeout_s": 5.0},
}


def put_part(node: Node, name: str, part: object) -> None:
    """Put another part in a node that is made: a disk that is no more, an executor with a price."""
    object.__setattr__(node, name, part)


@dataclass
class Member:
    """One node, its life, and what it told."""

    name: str
    node: Node
    transport: MemoryTransport
    folder: Path
    events: list[dict[str, Any]]
    resumed: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stop: trio.Event = field(default_factory=trio.Event)
    """As Ctrl-C."""
    done: trio.Event = field(default_factory=trio.Event)
    error: BaseException | None = None
    """What ended it, where the swarm keeps errors."""

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of one name, in order."""
        return [fields for fields in self.events if fields["event"] == event]

    @property
    def eval_loss(self) -> float:
        """The last one measured."""
        return self.node.journal.last["eval_loss"]

    def kill(self) -> None:
        """As kill -9: nothing is written, nobody is told."""
        put_part(self.node, "checkpoints", _Gone(self.folder))
        self.scope.cancel()


@cache
def key_of(name: str) -> Identity:
    """The key of this name: the same in every run, and so are the rings that are drawn of peer ids."""
    return Identity(digest_of(name.encode()))


async def _at_once(machine: Callable[[], DeviceState]) -> DeviceState:
    return machine()


class _Gone(CheckpointStore):
    """The disk of a process that is no more."""

    def save(self, checkpoint: Checkpoint) -> Path:
        raise OSError("killed")


class Swarm:
    """Starts members in a nursery of its own; all know all others' addresses from the first on, where nothing else is
    said. `keep_errors`: a member that ends with an error keeps it, and the others go on."""

    def __init__(
        self,
        folder: Path,
        nursery: trio.Nursery,
        *,
        seed: int = 1,
        link: LinkQuality = LinkQuality(),
        keep_errors: bool = False,
    ) -> None:
        self.network = MemoryNetwork(random.Random(seed), link)
        self.members: dict[str, Member] = {}
        self._keep_errors = keep_errors
        self._folder = folder
        self._nursery = nursery
        self._rng = random.Random(seed)

    async def start(
        self,
        name: str,
        *,
        step_seconds: float = STEP_SECONDS,
        wait_for: int = 0,
        change: Callable[[Node], None] = lambda node: None,
        peers: tuple[str, ...] | None = None,
        follows: bool = False,
        trainer_of: Callable[[Path, Config, str], Learner] | None = None,
        machine: Callable[[], DeviceState] | None = None,
        **sections: dict[str, Any],
    ) -> Member:
        """A node with these settings over DEFAULTS; the same name again is the same node, restarted. `peers`: the
        addresses that its operator gave; None: those of all members that run. `follows`: what may change while a run
        goes on is as the private swarm's manifest says. `trainer_of`: builds what trains, for the node in this
        folder. `machine`: what its participation policies read."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if not (folder / IDENTITY).exists():
            key_of(name).save(folder / IDENTITY)
        held = credentials.load(folder, None)  # a member's, where it has joined a private swarm
        via = sections.get("network", {}).get("via")
        transport = self.network.attach(
            held.identity.peer_id, held.admission, via=None if via is None else peer_in(str(via))
        )
        events: list[dict[str, Any]] = []

        def emit(event: Event) -> None:
            events.append(event.at(trio.current_time()).to_record() | {"at": trio.current_time()})

        config = self._config(wait_for, peers, sections)
        life = ExitStack()
        around = NodeContext(
            identity=held.identity,
            transport=transport,
            executor=InlineExecutor(step_seconds),
            emit=emit,
            clock=trio.current_time,
            unix_time=trio.current_time,
            rng=random.Random(self._rng.random()),
            checkpoints=CheckpointStore(folder / "checkpoint"),
            epoch_file=folder / "epoch",
            trainer_of=own_learner if trainer_of is None else partial(trainer_of, folder),
            private=held.private,
            reads_device=None if machine is None else lambda *_: partial(_at_once, machine),
            recorder=CrossingLog(folder / CROSSINGS, clock=trio.current_time),
            sums_begun=folder / SUMS_BEGUN,
            regional_stated=folder / REGIONAL_STATED,
            statistics_file=folder / STATISTICS,
            privacy=life.enter_context(privacy_budget(config, folder, emit)) if trainer_of is None else None,
            visitor_ledger=life.enter_context(visitor_ledger(config, folder, emit)),
        )
        with ExitStack() as failing:
            failing.enter_context(life)
            node, checkpoint = make_node(config, around)
            failing.pop_all()
        if follows:
            assert held.private is not None
            held.news.to = follow_manifests(node, held.private.admission.chain, emit)
        change(node)
        member = Member(name, node, transport, folder, events, checkpoint is not None)
        self.members[name] = member
        listening = trio.Event()

        async def started() -> None:
            listening.set()

        async def run() -> None:
            try:
                with life, member.scope:
                    await live(node, resumed=member.resumed, started=started, stop=member.stop)
            except Exception as error:
                if not self._keep_errors:
                    raise
                member.error = error
            member.done.set()

        self._nursery.start_soon(run, name=name)
        await listening.wait()
        return member

    async def finished(self, *names: str) -> None:
        """Wait until these members (by default all) have ended."""
        for name in names or list(self.members):
            await self.members[name].done.wait()

    def _config(self, wait_for: int, peers: tuple[str, ...] | None, sections: dict[str, dict[str, Any]]) -> Config:
        raw = {section: dict(keys) for section, keys in DEFAULTS.items()}
        for section, keys in sections.items():
            raw[section] = {**raw.get(section, {}), **keys}
        if raw["train"].get("optimizer", "adamw") == "adamw":
            raw["train"].setdefault("epsilon", 1e-8)  # the digits' own is for runs of a thousand steps
        if peers is None:
            running = (member for member in self.members.values() if not member.done.is_set())
            peers = tuple(member.transport.addresses[0] for member in running)
        via = raw.get("network", {}).pop("via", "")  # as `peers`, an address of this network and of no other
        config = from_raw(raw)
        return config.model_copy(
            update={
                "network": replace(config.network, peers=peers, via=via),
                "node": replace(config.node, wait_for=wait_for),
            }
        )


@asynccontextmanager
async def swarm(
    folder: Path, *, seed: int = 1, link: LinkQuality = LinkQuality(), keep_errors: bool = False
) -> AsyncIterator[Swarm]:
    """A swarm whose nodes end with the block."""
    async with trio.open_nursery() as nursery:
        yield Swarm(folder, nursery, seed=seed, link=link, keep_errors=keep_errors)
        nursery.cancel_scope.cancel()


def played(main: Callable[[Swarm], Awaitable[T]], folder: Path) -> T:
    """Run `main` with a swarm from its first to its last moment, on a virtual clock of its own."""

    async def run() -> T:
        async with swarm(folder) as it:
            return await main(it)

    trio._core._run._r.seed(0)  # as before each test: what is run once for several is the same whichever comes first
    return trio.run(run, clock=MockClock(autojump_threshold=0))


def mean_model(members: Sequence[Member]) -> torch.Tensor:
    """The mean of members' anchors (d,)."""
    return torch.stack([member.node.strategy.anchor_d for member in members]).mean(0)


def mean_loss(members: Sequence[Member]) -> float:
    """The mean of members' last held-out losses."""
    return sum(member.eval_loss for member in members) / len(members)
