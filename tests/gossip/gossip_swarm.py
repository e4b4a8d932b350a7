"""A swarm of real services over the in-memory network: fakes only where a runtime would be.

`FakeRuntime` is a runtime whose model is a byte string: it keeps each neighbour's estimate as the list of payloads
that make it up, so that a test can compare exactly what a neighbour holds with what the peer published.
"""

import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from gossip.core.api import GossipEvent, Head, RegionLayout, RoundView, RunInfo, Tracked, Update
from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.digests import digest_of
from gossip.core.errors import Reason
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.membership.private_swarm import PrivateMembership
from gossip.service import GossipService
from gossip.transport.memory.network import MemoryNetwork, MemoryTransport

RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=digest_of(b"the initial model"))
CONFIG = GossipConfig(hash_in_thread_above=1 << 40)


def identity(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def _at_once() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


def _joined_size(pieces: list[bytes]) -> int:
    return sum(map(len, pieces)) + max(0, len(pieces) - 1)


@dataclass
class FakeRuntime:
    """One node. `history`: its own public estimate as a list of payloads; `estimates`: the same of each neighbour."""

    service: GossipService
    transport: MemoryTransport
    events: list[GossipEvent]
    history: list[bytes] = field(default_factory=list)
    estimates: dict[PeerId, list[bytes]] = field(default_factory=dict)
    received: list[Update] = field(default_factory=list)
    verdict: Callable[[Update], Reason | None] = lambda update: None
    marks: bool = True
    ready: trio.Event = field(default_factory=_at_once)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    def told(self, name: str) -> list[GossipEvent]:
        return [event for event in self.events if event.name == name]

    async def begin(self, *, epoch: int = 1000, round: int = 0, snapshot: bytes | None = None) -> None:
        self.history = [snapshot] if snapshot is not None else []
        await self.service.begin_epoch(epoch=epoch, round=round, snapshot=snapshot)

    async def publish(self, round: int, payload: bytes | None = None, layers: Sequence[tuple[str, bytes]] = ()) -> None:
        payload = payload or f"{self.peer[-4:]}:{round}".encode()
        self.history.append(payload)
        await self.service.publish(
            round=round,
            codec="none",
            payload=payload,
            steps=1,
            tokens=64,
            state=self.state if self.marks else None,
            layers=layers,
        )

    async def state(self) -> bytes:
        return b"|".join(self.history) or b"genesis"

    async def snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, await self.state()

    async def estimate(self, peer: PeerId) -> bytes | None:
        return b"|".join(self.estimates[peer]) or b"genesis" if peer in self.estimates else None

    def follows(self, other: "FakeRuntime") -> bool:
        """Whether our estimate of `other` is exactly what it has published."""
        mine = self.estimates.get(other.peer)
        if mine is None or _joined_size(mine) != _joined_size(other.history):  # asked often, and megabytes when joined
            return False
        return b"|".join(mine) == b"|".join(other.history)

    async def consume(self) -> None:
        async for update in self.service.updates:
            self.received.append(update)
            await self.ready.wait()
            reason = self.verdict(update)
            if reason is not None:
                self.service.rejected(update, reason)
                continue
            self._apply(update)
            self.service.accepted(update)

    def _apply(self, update: Update) -> None:
        if update.layer:
            return
        if update.kind == "delta":
            assert update.payload is not None
            self.estimates[update.peer].append(update.payload)
        else:
            whole = update.payload
            self.estimates[update.peer] = [] if whole in (None, b"genesis") else [whole]


class Swarm:
    """Starts, stops and restarts nodes in one nursery."""

    def __init__(self, nursery: trio.Nursery, config: GossipConfig, seed: int) -> None:
        self.network = MemoryNetwork(random.Random(seed))
        self.nodes: list[FakeRuntime] = []
        self._nursery = nursery
        self._config = config
        self._seed = seed
        self.minute = 12 * 60
        """Of everybody's day."""

    async def start(self, number: int, **how: object) -> FakeRuntime:
        """Make a node and let it run; see `make`."""
        return await self.launch(self.make(number, **how))

    def make(
        self,
        number: int,
        *,
        peers: tuple[str, ...] = (),
        run: RunInfo = RUN,
        private: PrivateMembership | None = None,
        network: str | None = "",
        layout: RegionLayout = RegionLayout(),
        **changes: object,
    ) -> FakeRuntime:
        """A node that does not run yet. `network`: which others see it in. `changes`: of the config."""
        key = identity(number)
        via = peer_in(changes["via"]) if "via" in changes else None
        attach = partial(self.network.attach, network=network, via=via)
        transport = attach(key.peer_id) if private is None else attach(key.peer_id, private.admission)
        events: list[GossipEvent] = []
        node: FakeRuntime

        async def source() -> tuple[Head, bytes]:
            return await node.snapshot()

        service = GossipService(
            identity=key,
            transport=transport,
            config=replace(self._config, peers=peers, **changes),
            run=run,
            rng=random.Random(f"{self._seed}/{number}"),
            snapshot_source=source,
            tracked=Tracked(estimate=lambda peer: node.estimate(peer)),
            observer=events.append,
            minute_of_day=lambda: self.minute,
            private=private,
            layout=layout,
        )
        node = FakeRuntime(service, transport, events)
        return node

    async def launch(self, node: FakeRuntime) -> FakeRuntime:
        self.nodes.append(node)
        await self._nursery.start(self._live, node)
        return node

    async def _live(self, node: FakeRuntime, *, task_status: trio.TaskStatus[None]) -> None:
        with node.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda *, task_status: node.service.run(task_status=task_status))
                nursery.start_soon(node.consume)
                task_status.started()

    async def start_all(self, count: int, **changes: object) -> list[FakeRuntime]:
        """`count` nodes that know only the first, each at genesis."""
        first = await self.start(1, **changes)
        rest = [await self.start(number, peers=(first.address,), **changes) for number in range(2, count + 1)]
        nodes = [first, *rest]
        for node in nodes:
            await node.begin()
        await until(lambda: all(len(node.service.neighbours()) == count - 1 for node in nodes))
        await until(lambda: all(it.tracked for node in nodes for it in node.service.neighbours().values()))
        return nodes

    def check(self) -> None:
        """What must hold at the end of every test."""
        for node in self.nodes:
            assert node.transport.handler_errors == []
            assert [event for event in node.told("warning") if "Error" in event.detail] == []


@asynccontextmanager
async def swarm(config: GossipConfig = CONFIG, seed: int = 1) -> AsyncIterator[Swarm]:
    async with trio.open_nursery() as nursery:
        it = Swarm(nursery, config, seed)
        yield it
        it.check()
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Poll on the virtual clock; fails the test after `timeout_s` of it."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110  # any state of any node, on a clock that costs nothing
            await trio.sleep(0.05)


def all_follow(nodes: list[FakeRuntime]) -> bool:
    return all(one.follows(other) for one in nodes for other in nodes if one is not other)


async def play(nodes: list[FakeRuntime], rounds: Iterable[int], at_most_s: float = 60.0) -> list[list[RoundView]]:
    """Everybody publishes and closes each round; the views by round, then by node."""
    views = []
    for round_ in rounds:
        for node in nodes:
            await node.publish(round_)
        closed: dict[PeerId, RoundView] = {}

        async def close(node, round_=round_, closed=closed):
            closed[node.peer] = await node.service.close_round(round_, at_most_s=at_most_s)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(close, node)
        views.append([closed[node.peer] for node in nodes])
    return views


def seqs(node: FakeRuntime, other: FakeRuntime) -> list[int]:
    """Of the updates of `other` that `node` was given."""
    return [update.seq for update in node.received if update.peer == other.peer]
