"""Where honest and hostile nodes meet: it starts the honest ones as the scenario says, tells the hostile ones all that
anybody could know, and watches.

Hostile nodes see through everything (models, rounds, addresses), as the strongest that the promises are made against.
"""

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import torch
import trio
from adversary_members import SWARM, enroll, gate_of
from adversary_scenario import (
    ALL_BACK,
    AWAY,
    BOUND,
    COMES_AT,
    FIRST_ALONE,
    FIRST_ALONE_S,
    GAP_S,
    HIDDEN,
    PAUSES,
    SAYS_SHIFT,
    SHIFTS,
    STATISTICS,
    STEP_SECONDS,
    UNLIKE,
    Part,
    Scenario,
)
from hostile_chain import Vector
from hostile_peer import HostilePeer
from sim_swarm import Member, Swarm, key_of

from gossip.bootstrap import BootstrapService
from gossip.core.config import GossipConfig
from gossip.core.envelope import Scope
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.relay_service import RelayService
from gossip.transport.memory.network import LinkQuality, MemoryTransport
from node.config.schema import from_raw
from node.participation.device_state import Battery, DeviceState
from node.roles.assembly import run_info
from node.system.run_dir import IDENTITY
from node.training.node import Node
from p2ptrain import compress, tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer
from p2ptrain.warm_up import ClassStatistics, parse_statistics, robust_statistics

CLASSES, COORDINATES = 2, 4
"""Of what is stated of the honest nodes' data."""

ASKS_AFTER_S = 20.0
"""Seconds after which a newcomer asks for class statistics: it knows its neighbours then."""

FAR = LinkQuality(latency_s=0.4)
"""Between latecomers and honest nodes, where a hostile node is nearer."""


@dataclass(frozen=True)
class Adoption:
    """A model that an honest node has taken of others."""

    name: str
    at: float
    donors: frozenset[str]
    round_before: int


@dataclass
class Life:
    """A member from a start to an end; who is restarted has two."""

    number: int
    member: Member
    began: float
    resumed_round: int | None
    peer: PeerId
    ends: bool = True
    """Whether it is to train to the last round; False: it is stopped or killed on the way."""
    role: str = "trainer"


@dataclass
class Facts:
    """What all members of the run agree on."""

    scope: Scope
    genesis: Digest
    genesis_d: Vector


@cache
def _facts(scenario: Scenario) -> Facts:
    config = from_raw(scenario.sections)
    trainer = Trainer(tasks.get(config.task.name), config.train, Shard())
    genesis_d = trainer.vector()
    run = run_info(config, trainer.fingerprint, genesis_d)
    swarm = SWARM if scenario.private else config.network.named
    return Facts(Scope(swarm=swarm, run=run.run_id), run.genesis, genesis_d.numpy().copy())


ANSWERED_S = 60.0
"""Seconds that all answers together may take: silence costs the time of a request, a trickle a little more."""


def _statistics(mean: float, count: float = 50.0) -> bytes:
    means_kd = torch.full((CLASSES, COORDINATES), mean)
    return ClassStatistics(
        counts_k=torch.full((CLASSES,), count), means_kd=means_kd, variances_kd=torch.full_like(means_kd, 0.1)
    ).encode()


def _machine(away: tuple[float, float]) -> DeviceState:
    """What a node that pauses reads: it is off its charger while it is away."""
    now, (begins, ends) = trio.current_time(), away
    return DeviceState(now=now, battery=Battery(percent=100.0, plugged=not begins <= now < ends))


class Stage:
    """One run. `honest` numbers: trainers from 0 on, in the order in which they come."""

    def __init__(self, scenario: Scenario, swarm: Swarm, nursery: trio.Nursery, folder: Path, seed: int) -> None:
        facts = _facts(scenario)
        self.scenario = scenario
        self.seed = seed
        self.scope, self.genesis, self.genesis_d = facts.scope, facts.genesis, facts.genesis_d
        self.network = swarm.network
        self.nursery = nursery
        self.lives: list[Life] = []
        self.adoptions: list[Adoption] = []
        self.hostile: dict[int, HostilePeer] = {}
        self.ever_hostile: set[PeerId] = set()
        self.met: set[PeerId] = set()
        """Hostile nodes that dial whoever comes."""
        self.errors: list[str] = []
        self.misled: list[str] = []
        """What newcomers with an invite came to that they must not."""
        self.heard_statistics: list[str] = []
        """What a newcomer has heard of data that it must not, or has not heard that it must."""
        self.bootstrap: BootstrapService | None = None
        self.bootstrap_transport: MemoryTransport | None = None
        self.relay_transport: MemoryTransport | None = None
        """Of the same node, where it is a dedicated relay."""
        self.passes: Counter[tuple[str, str]] = Counter()
        """Passes over a whole model that an honest node has made for a peer: by its name and the peer's."""
        self.on_start: list[Callable[[Life], None]] = []
        self._swarm = swarm
        self._folder = folder
        self._made = 0
        self._turns: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)
        self.begun = trio.Event()
        """Somebody honest is there."""
        self._codec = compress.get(scenario.compressor)

    # -- what the honest do

    async def play(self) -> None:
        """Start everybody as the scenario says, and wait until all that are to end have."""
        scenario = self.scenario
        if scenario.kind in UNLIKE:
            await self._play_parts()
            return
        if scenario.kind == "bootstrap":
            await self._start_bootstrap()
        early = scenario.honest - scenario.late
        for number in range(early):
            if scenario.kind == "login" and number == scenario.honest - HIDDEN:
                await self._start_relay()
            await self._start(number, wait_for=early - 1)
        if scenario.kind == "observer":
            await self._start(early, wait_for=min(2, early), name="watcher", role="observer")
        if scenario.late:
            await trio.sleep_until(FIRST_ALONE_S if scenario.kind in FIRST_ALONE else COMES_AT)
            for number in range(early, scenario.honest):
                await self._start(number, wait_for=1)
        if scenario.kind == "resume":
            await self._leave_and_return(early - 1)
        if scenario.kind in ALL_BACK:
            await self._go_down_and_return()
        for life in self.lives:
            await life.member.done.wait()

    async def _leave_and_return(self, number: int) -> None:
        await trio.sleep_until(self.scenario.leaves_at)
        life = self.lives[number]
        life.ends = False
        if self.scenario.killed:
            life.member.kill()
        else:
            life.member.stop.set()
        await life.member.done.wait()
        await trio.sleep_until(self.scenario.leaves_at + self.scenario.away_s)
        await self._start(number, wait_for=1)

    async def _go_down_and_return(self) -> None:
        await trio.sleep_until(COMES_AT)
        for life in self.lives:
            life.ends = False
            life.member.kill()
            await life.member.done.wait()
        for number in range(self.scenario.honest):
            await self._start(number, wait_for=0)
            await trio.sleep(GAP_S)

    async def _play_parts(self) -> None:
        """Each of the honest as its part says. All that are there from the first on begin before anybody changes."""
        parts = self.scenario.parts
        early = [number for number, part in enumerate(parts) if not part.comes_at]
        for number in early:
            await self._start(number, wait_for=len(early) - 1)
        async with trio.open_nursery() as nursery:
            for number, part in enumerate(parts):
                nursery.start_soon(self._play_part, number, part)
        for life in self.lives:
            await life.member.done.wait()

    async def _play_part(self, number: int, part: Part) -> None:
        if part.comes_at:
            await trio.sleep_until(part.comes_at)
            await self._start(number, wait_for=1)
        if part.leaves_at is None:
            return
        await trio.sleep_until(part.leaves_at)
        life = next(life for life in self.lives if life.number == number)
        life.ends = False
        if part.killed:
            life.member.kill()
        else:
            life.member.stop.set()
        await life.member.done.wait()
        if part.forgets:
            shutil.rmtree(life.member.folder / "checkpoint", ignore_errors=True)
        await trio.sleep(part.away_s)
        await self._start(number, wait_for=1)

    def extreme_statistics(self) -> bytes:
        """What a liar states of its data: the end of the range for all inputs, of a crowd."""
        return _statistics(1.0, count=1e9)

    def _mean_of(self, number: int) -> float:
        return -0.5 + 0.1 * number

    async def _ask_statistics(self, life: Life) -> None:
        """A newcomer asks all its neighbours, and is to come to what the honest state, whoever lies."""
        await trio.sleep(ASKS_AFTER_S)
        node, began = life.member.node, trio.current_time()
        honest = {it.peer: it.number for it in self.lives if it.peer in node.service.neighbour_ids}
        heard = await node.service.neighbours_statistics()
        seconds = trio.current_time() - began
        if seconds > ANSWERED_S:
            self.heard_statistics.append(f"only after {seconds:.0f} s")
        for peer, number in honest.items():
            if peer in node.service.neighbour_ids and heard.get(peer) != _statistics(self._mean_of(number)):
                self.heard_statistics.append(f"not what n{number} states")
        found = []
        for payload in heard.values():
            with suppress(ValueError):
                found.append(parse_statistics(payload, classes=CLASSES, coordinates=COORDINATES))
        together = robust_statistics(found, f=self.scenario.f)
        most = max(map(self._mean_of, range(self.scenario.honest)))
        if together is not None and float(together.means_cd.max()) > most + 1e-3:
            self.heard_statistics.append(f"{float(together.means_cd.max()):.2f}, and honest nodes state {most:.2f}")

    def _bound_to(self, number: int) -> str:
        """The region in the certificate of an honest node; a hostile one's is that of the first."""
        return self.scenario.region_of(number) if self.scenario.kind in BOUND else ""

    async def _start(self, number: int, *, wait_for: int, name: str = "", role: str = "trainer") -> None:
        name = name or f"n{number}"
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if not (folder / IDENTITY).exists():
            key_of(name).save(folder / IDENTITY)  # the swarm's own would do, but a certificate names it
            if self.scenario.private:
                enroll(folder, key_of(name).peer_id, self._bound_to(number))
        late = trio.current_time() > 0
        if late and self.scenario.hostile_first:
            for life in self.lives:
                self.network.set_link(key_of(name).peer_id, life.peer, FAR)
        sections = {section: dict(keys) for section, keys in self.scenario.sections.items()}
        sections["node"] |= {"shard_index": number, "shard_count": self.scenario.honest + 1, "role": role}
        sections["node"]["checkpoint_every"] = 2 if self.scenario.kind in {"resume", *ALL_BACK, *UNLIKE} else 0
        if self.scenario.has_regions:
            sections["node"]["region"] = self.scenario.region_of(number)
            wait_for = min(wait_for, self.scenario.honest // 2 - 1)
        if role == "observer":
            sections["train"]["eval_every"] = 5
        part = self.scenario.parts[number] if self.scenario.kind in UNLIKE else None
        away = AWAY.get(number) if self.scenario.kind in PAUSES else None if part is None else part.pauses
        if away is not None:
            sections["participation"] = {"policy": ["plugged"], "calm_s": 1.0}
        if self.scenario.kind in SHIFTS:
            sections["shift"] = {"detector": "page_hinkley", "settle": 1, "examples": 16}
        if self.relay_transport is not None:
            sections["network"]["via"] = self.relay_transport.addresses[0]
        if self.scenario.kind == "relay":
            sections["network"]["relay"] = number == 0
            if number >= self.scenario.honest - HIDDEN:
                self.network.hide(key_of(name).peer_id)

        def change(node: Node) -> None:
            self._watch(name, node)
            if node.shifts is not None and number == SAYS_SHIFT:
                node.shifts.verdict.note_own(0)
            if self.scenario.kind in STATISTICS:
                node.service.share_statistics(_statistics(self._mean_of(number)))

        member = await self._swarm.start(
            name,
            wait_for=wait_for,
            step_seconds=STEP_SECONDS * (1.0 if part is None else part.slowness),
            change=change,
            peers=self._known(name),
            machine=None if away is None else partial(_machine, away),
            **sections,
        )
        life = Life(
            number=number,
            member=member,
            began=trio.current_time(),
            resumed_round=member.node.state.round if member.resumed else None,
            peer=member.transport.peer_id,
            role=role,
        )
        self.lives.append(life)
        self.begun.set()
        for tell in self.on_start:
            tell(life)
        if late and self.scenario.kind in STATISTICS:
            self.nursery.start_soon(self._ask_statistics, life)

    def _known(self, name: str) -> tuple[str, ...]:
        """The addresses that a node's operator gives it."""
        if self.relay_transport is not None:
            return ()
        if self.bootstrap_transport is not None:
            return (self.bootstrap_transport.addresses[0],)
        there = [life.member.transport.addresses[0] for life in self.running if life.member.name != name]
        known = there[:1] if self.scenario.known == "first" else there
        late = trio.current_time() > 0
        if late and self.scenario.hostile_first:
            known = [*(it.address for it in self.hostile.values()), *known]
        return tuple(known)

    def _watch(self, name: str, node: Node) -> None:
        adopt = node.strategy.adopt

        def watched(staleness: Any) -> Any:
            self.adoptions.append(Adoption(name, trio.current_time(), frozenset(staleness), node.state.round))
            return adopt(staleness)

        node.strategy.adopt = watched  # type: ignore[method-assign]
        for method in ("apply", "track"):
            setattr(node.strategy, method, self._counted(name, getattr(node.strategy, method)))

    def _counted(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        def counted(peer: str, *rest: Any) -> None:
            self.passes[name, peer] += 1
            method(peer, *rest)

        return counted

    async def _start_bootstrap(self) -> None:
        identity = key_of("bootstrap")
        transport = self.network.attach(identity.peer_id)
        service = BootstrapService(
            identity=identity,
            transport=transport,
            config=GossipConfig(hash_in_thread_above=1 << 40),
            rng=random.Random(self.seed),
            warn=self.errors.append,
        )
        await self.nursery.start(lambda *, task_status: service.run(task_status=task_status))
        self.bootstrap, self.bootstrap_transport = service, transport

    async def _start_relay(self) -> None:
        """It knows one member, and finds the others."""
        identity = key_of("login")
        transport = self.network.attach(identity.peer_id)
        service = RelayService(
            identity=identity,
            transport=transport,
            config=GossipConfig(hash_in_thread_above=1 << 40, peers=self._known("login")[:1]),
            rng=random.Random(self.seed),
            warn=self.errors.append,
            connect=transport.connect_bare,
            outside=lambda address: True,
            unix_time=trio.current_time,
        )
        await self.nursery.start(lambda *, task_status: service.run(task_status=task_status))
        self.bootstrap, self.bootstrap_transport, self.relay_transport = service, transport, transport

    # -- what the hostile know

    @property
    def running(self) -> list[Life]:
        """The honest that are there now."""
        return [life for life in self.lives if not life.member.done.is_set()]

    def targets(self, numbers: Sequence[int]) -> list[Life]:
        """Those of these numbers that are there; all, where none is named."""
        return [life for life in self.running if not numbers or life.number in numbers]

    @property
    def honest_peers(self) -> set[PeerId]:
        """Names of all honest nodes that ever were."""
        return {life.peer for life in self.lives}

    @property
    def round(self) -> int:
        """Where the honest trainers stand: their low median."""
        rounds = [life.member.node.state.round for life in self.running if life.role == "trainer"]
        return median_low(rounds) if rounds else self.scenario.rounds

    def models(self) -> list[Vector]:
        """What the honest trainers are known as."""
        lives = [life for life in self.running if life.role == "trainer"]
        return [np.frombuffer(life.member.node.strategy.snapshot(), dtype="<f4").copy() for life in lives]

    def encode(self, difference_d: Vector) -> tuple[bytes, Vector]:
        """A difference as the swarm's codec sends it, and what comes of it."""
        x_d = torch.from_numpy(np.ascontiguousarray(difference_d, dtype=np.float32))
        payload = self._codec.encode(x_d)
        try:
            return payload, self._codec.decode(payload, x_d.numel()).numpy()
        except compress.PayloadError:
            return payload, np.zeros_like(difference_d)

    def state_of(self, peer: PeerId, epoch: int, seq: int, least: int) -> Digest | None:
        """What an honest follower of `peer` would say as a witness."""
        for life in self.running:
            neighbour = life.member.node.service._engine.neighbours.get(peer)
            if neighbour is not None and (named := neighbour.witness(epoch, seq, least)) is not None:
                return named
        return None

    # -- hostile nodes

    async def actor(self, number: int) -> HostilePeer:
        """The hostile node of this number; it comes when it is first asked for."""
        async with self._turns[number]:
            if number not in self.hostile:
                self.hostile[number] = await self.make(f"hostile-{number}")
            return self.hostile[number]

    async def replace(self, number: int) -> HostilePeer:
        """It goes without a word, and comes back as another."""
        async with self._turns[number]:
            self.hostile[number].leave()
            self.hostile[number] = await self.make(f"hostile-{number}-{self._made}")
            return self.hostile[number]

    async def make(self, name: str, identity: Identity | None = None) -> HostilePeer:
        """One more, that listens and has met nobody."""
        self._made += 1
        identity = key_of(name) if identity is None else identity
        own = self._folder / identity.peer_id
        admission = gate_of(own, identity.peer_id, self._bound_to(0)) if self.scenario.private else None
        peer = HostilePeer(self, identity, admission)
        self.ever_hostile.add(peer.peer)
        await self.nursery.start(lambda *, task_status: peer.run(task_status=task_status))
        return peer

    def meet_all(self, peer: HostilePeer, numbers: Sequence[int]) -> None:
        """Dial these, and whoever comes of them later."""

        def meet(life: Life) -> None:
            if not numbers or life.number in numbers:
                with suppress(RuntimeError):
                    self.nursery.start_soon(peer.meet, life.member.transport.addresses[0])

        for life in self.targets(numbers):
            meet(life)
        self.on_start.append(meet)
