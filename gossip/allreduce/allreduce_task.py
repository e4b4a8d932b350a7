"""Performs exchanges (gossip/allreduce/allreduce.py): announces our blobs, pulls the others', reduces in a thread.

There is one exchange at a time. A pull that fails by the network's fault is tried again while there is time; one that
fails by the peer's is given up.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

import trio

from gossip.allreduce.allreduce import AllReduce, EarlyMessages, Group, Pull, Reduce, ReducedPart
from gossip.blobs.blob_fetch_task import Meter
from gossip.context import Notifier, ServiceContext
from gossip.core.envelope import EnvelopeKind, open_from, seal
from gossip.core.errors import LocalError, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import PartRequest
from gossip.core.statements import Stage, parse_part, part_statement
from gossip.group_blobs_task import HeldBlobs, Puller, PullFailedError
from gossip.telling_task import Teller
from gossip.updates.publisher import Payload
from gossip.updates.traffic import Traffic

ReduceFunction = Callable[[Mapping[PeerId, bytes | memoryview]], bytes]
"""Reduces parts of several members, in the group's order, to as many bytes. Runs where large data is hashed: in a
thread."""


class AllReducer:
    """All exchanges of one service."""

    def __init__(self, context: ServiceContext, identity: Identity, traffic: Traffic) -> None:
        self._context = context
        self._identity = identity
        self._meter = traffic.received(snapshot=False)
        self._scope = context.engine.scope
        self._held = HeldBlobs(context.config.max_payload_bytes)
        self.blobs = self._held.store
        """What the members of a group may pull from us."""
        self._early = EarlyMessages()
        self._exchange: AllReduce | None = None
        self._last: AllReduce | None = None
        """The one before, while parts of it may still be announced and pulled."""
        self._changed = Notifier()
        self._begun: Digest | None = None
        self._reduced: Digest | None = None
        self._reduced_round = 0
        self._untaken: set[PeerId] = set()

    def on_part(self, peer: PeerId, raw: bytes) -> None:
        """Process a member's statement of what it serves. Raises RemoteError."""
        part = parse_part(open_from(raw, self._scope, peer, EnvelopeKind.PART))
        exchange = next(
            (it for it in (self._exchange, self._last) if it is not None and it.name == part.exchange), None
        )
        if exchange is None:
            self._early.keep(part)
            return
        try:
            exchange.learn(part)
        finally:
            self._changed.beat()

    def look_again(self) -> None:
        """Look whom the exchange under way waits for: a neighbour has said that it is paused."""
        self._changed.beat()

    def owes(self) -> bool:
        """Return whether a neighbour that is not paused has yet to take the newest part that we reduced."""
        engine = self._context.engine
        owed = self._untaken.intersection(engine.neighbours)
        return bool(owed) and not owed <= engine.paused(self._reduced_round, trio.current_time())

    def sent(self, peer: PeerId, address: Digest, index: int) -> None:
        """Note that a chunk of ours is sent to a peer."""
        if address == self._reduced and index == len(self.blobs.manifest(address).chunks) - 1:
            self._untaken.discard(peer)

    async def run(
        self, group: Group, data: bytes, reduce: ReduceFunction, *, gather_s: float, timeout_s: float
    ) -> list[ReducedPart]:
        """Reduce everyone's `data` with the other members of `group`; return the parts, with `data` None for one that
        did not come."""
        if self._exchange is not None:
            raise LocalError("an exchange is under way already")
        if len(data) != group.size:
            raise LocalError(f"a vector of {len(data)} bytes in an exchange of {group.size}")
        now = trio.current_time()
        exchange = AllReduce(group, self._context.engine.me, gather_until=now + gather_s, ends_at=now + timeout_s)
        if exchange.name == self._begun:
            raise LocalError("this exchange was begun before: a round is exchanged once")
        self._exchange, self._begun, self._last = exchange, exchange.name, None
        self._reduced, self._untaken = None, set()
        try:
            return await self._run(exchange, data, reduce)
        finally:
            exchange.let_go()
            self._exchange, self._last = None, exchange if exchange.incomplete else None

    async def missed(self, *, timeout_s: float) -> list[ReducedPart]:
        """Pull what did not come of the last exchange in its time and has been announced; return the parts that come
        within `timeout_s`, each once."""
        last = self._last
        if last is None:
            return []
        last.reopen(trio.current_time() + timeout_s)
        async with trio.open_nursery() as nursery:
            perform = _Performer(self._context, last, self._meter, self._changed, nursery)
            while last.may_come(trio.current_time()):
                for work in last.work(trio.current_time()):
                    assert isinstance(work, Pull), "nothing is reduced any more"
                    nursery.start_soon(perform.pull, work)
                with trio.move_on_at(last.deadline(trio.current_time())):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        self._last = None
        return [part for part in last.result() if part.data is not None]

    async def _run(self, exchange: AllReduce, data: bytes, reduce: ReduceFunction) -> list[ReducedPart]:
        self._held.begin()
        me = self._context.engine.me
        exchange.take_own(memoryview(data)[exchange.group.part(me)])
        payload = await self._context.hasher.payload(data, exchange.group.chunk_bytes)
        for part in self._early.take(exchange.name):
            try:
                exchange.learn(part)
            except RemoteError as error:
                self._context.offence(part.peer, error)
        async with trio.open_nursery() as nursery:
            perform = _Performer(self._context, exchange, self._meter, self._changed, nursery)
            perform.tell_all(self._serve(exchange, Stage.WHOLE, payload))
            while True:
                exchange.give_up(self._context.engine.paused(exchange.group.round, trio.current_time()))
                if exchange.done(trio.current_time()) and not perform.telling:
                    break
                for work in exchange.work(trio.current_time()):
                    match work:
                        case Pull():
                            nursery.start_soon(perform.pull, work)
                        case Reduce():
                            nursery.start_soon(self._reduce, exchange, work, reduce, perform)
                        case _:
                            assert_never(work)
                deadline = exchange.deadline(trio.current_time())
                if trio.current_time() >= deadline:
                    break
                with trio.move_on_at(deadline):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        return exchange.result()

    async def _reduce(self, exchange: AllReduce, work: Reduce, reduce: ReduceFunction, perform: "_Performer") -> None:
        size = sum(map(len, work.vectors.values()))
        data = await self._context.hasher.run(size, partial(reduce, work.vectors))
        payload = await self._context.hasher.payload(data, exchange.group.chunk_bytes)
        # Nothing may be awaited between these two: an exchange that has our part is over once the others' have come,
        # and then it announces nothing any more.
        exchange.own_reduced(data)
        perform.tell_all(self._serve(exchange, Stage.REDUCED, payload))
        self._changed.beat()

    def _serve(self, exchange: AllReduce, stage: Stage, payload: Payload) -> bytes:
        """Hold a blob for the others; return the signed statement that names it."""
        address = self._held.put(payload)
        if stage is Stage.REDUCED:
            self._reduced, self._untaken = address, set(exchange.group.members) - {self._context.engine.me}
            self._reduced_round = exchange.group.round
        statement = part_statement(
            exchange=exchange.name,
            round=exchange.group.round,
            stage=stage,
            address=address,
            size=payload.manifest.size,
        )
        return seal(self._identity, self._scope, statement).raw


class _Performer:
    """The tasks of one exchange."""

    def __init__(
        self,
        context: ServiceContext,
        exchange: AllReduce,
        meter: Meter,
        changed: Notifier,
        nursery: trio.Nursery,
    ) -> None:
        self._context = context
        self._exchange = exchange
        self._changed = changed
        self._teller = Teller(context, changed, nursery)
        self._puller = Puller(context, meter, exchange.group.chunk_bytes)

    @property
    def telling(self) -> bool:
        """Whether a member that can be reached does not know yet what we serve."""
        return self._teller.telling

    def tell_all(self, statement: bytes) -> None:
        """Tell every other member of a blob of ours; one that cannot be reached is told when it can."""
        for member in self._exchange.group.members:
            if member != self._context.engine.me:
                self._teller.tell(member, PartRequest(envelope=statement))

    async def pull(self, work: Pull) -> None:
        """Pull once; what failed by the network's fault may be pulled again. What comes too late is given up: it would
        take the link, and a place among the pulls, from what was reduced."""
        part = work.part
        with trio.move_on_at(self._exchange.until(part.stage)) as scope:
            try:
                self._exchange.pulled(work, await self._puller.pull(part.peer, part.address, part.size, work.span))
            except PullFailedError as failed:
                self._exchange.failed(work, again=failed.again)
        if scope.cancelled_caught:
            self._exchange.failed(work, again=False)
        self._changed.beat()
