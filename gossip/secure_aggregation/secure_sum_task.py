"""Performs secure sums (gossip/secure_aggregation/secure_sum.py): signs and sends, serves, pulls, computes in a thread.

There is one sum at a time. That it begins is on disk before the first statement leaves (core/said_once.py). Its keys
are in memory alone, so a node that crashes can neither sign a second set of survivors nor tell a share, as long as it
never begins the same sum again (decision 0123).
"""

from collections import OrderedDict, deque
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import trio

from gossip.blobs.blob_fetch_task import Meter
from gossip.context import Notifier, ServiceContext
from gossip.core.envelope import open_envelope, seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_GROUP
from gossip.core.messages import SecureRequest
from gossip.core.said_once import SaidOnce
from gossip.core.secure_statements import SecureStatement, parse_secure
from gossip.group_blobs_task import HeldBlobs, Puller, PullFailedError
from gossip.secure_aggregation.packing import Values
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum
from gossip.secure_aggregation.secure_sum import (
    FORWARDED,
    Compute,
    Forward,
    PullPart,
    Say,
    SecureSumming,
    SecureWork,
    Serve,
)
from gossip.telling_task import Teller
from gossip.updates.traffic import Traffic

MAX_EARLY_STATEMENTS: Final = 8
"""Statements of a peer that are kept for a sum that we have not begun: it may be four stages ahead, in two groups."""


class EarlyStatements:
    """Statements that came before we began: the newest few of each peer, of as many peers as a group has."""

    def __init__(self) -> None:
        self._kept: OrderedDict[PeerId, deque[SecureStatement]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, statement: SecureStatement) -> None:
        """Keep a statement for a later sum."""
        self._kept.setdefault(statement.peer, deque(maxlen=MAX_EARLY_STATEMENTS)).append(statement)
        self._kept.move_to_end(statement.peer)
        if len(self._kept) > MAX_GROUP:
            self._kept.popitem(last=False)

    def take(self, exchange: Digest) -> list[SecureStatement]:
        """Return and forget the statements of this sum."""
        found = [it for kept in self._kept.values() for it in kept if it.exchange == exchange]
        for peer, kept in list(self._kept.items()):
            self._kept[peer] = deque((it for it in kept if it.exchange != exchange), maxlen=MAX_EARLY_STATEMENTS)
        return found


class SecureSummer:
    """All secure sums of one service. `begun`: the file that says which were begun; None: nothing outlives the
    process."""

    def __init__(
        self, context: ServiceContext, identity: Identity, traffic: Traffic, begun: Path | None = None
    ) -> None:
        self._context = context
        self._identity = identity
        self._meter = traffic.received(snapshot=False)
        self._scope = context.engine.scope
        self._held = HeldBlobs(context.config.max_payload_bytes)
        self.blobs = self._held.store
        """What the members of a group may pull from us."""
        self._early = EarlyStatements()
        self._begun = SaidOnce(begun, "which secure sums were begun")
        self._sum: SecureSumming | None = None
        self._changed = Notifier()

    def on_statement(self, peer: PeerId, raw: bytes) -> None:
        """Process a statement that a peer brought: its own, or another member's that it passes on. Raises
        RemoteError."""
        statement = parse_secure(open_envelope(raw, self._scope))
        if statement.peer != peer and statement.stage not in FORWARDED:
            raise RemoteError(Reason.FORGED, "signed by somebody else")
        summing = self._sum
        if summing is None or statement.exchange != summing.name:
            if statement.peer == peer:
                self._early.keep(statement)
            return
        try:
            if statement.peer != self._context.engine.me:  # our own, passed on, says nothing new
                summing.learn(statement)
        finally:
            self._charge(summing)
            self._changed.beat()

    def look_again(self) -> None:
        """Look whom the sum under way waits for: a neighbour has said that it is paused."""
        self._changed.beat()

    async def run(self, group: SecureGroup, values: Values, *, gather_s: float, timeout_s: float) -> SecureSum:
        """Sum everyone's `values` with the other members of `group`. Raises LocalError, and SecureSumError where
        nothing was opened."""
        if self._sum is not None:
            raise LocalError("a secure sum is under way already")
        if group.packed_bytes > self._context.config.max_payload_bytes:
            raise LocalError(f"a masked vector of {group.packed_bytes} bytes is larger than max_payload_bytes")
        now, me = trio.current_time(), self._context.engine.me
        summing = SecureSumming(group, me, values, began=now, gather_until=now + gather_s, ends_at=now + timeout_s)
        self._sum = summing
        try:
            first = partial(self._begun.first, group.name, group.round)
            if not await self._context.hasher.wait_for_disk(first):
                raise LocalError("this sum was begun before, or may have been: a round is summed once")
            return await self._run(summing)
        finally:
            summing.let_go()
            self._sum = None

    async def _run(self, summing: SecureSumming) -> SecureSum:
        self._held.begin()
        for statement in self._early.take(summing.name):
            try:
                summing.learn(statement)
            except RemoteError as error:
                self._context.offence(statement.peer, error)
        async with trio.open_nursery() as nursery:
            perform = _SumPerformer(self, self._context, summing, self._meter, self._changed, nursery)
            while True:
                now = trio.current_time()
                summing.excuse(self._context.engine.paused(summing.group.round, now))
                if summing.done(now) and not (perform.telling and now < summing.ends_at):
                    break
                if not self._give_out(summing, perform):
                    with trio.move_on_at(summing.deadline(now)):
                        await self._changed.wait()
            nursery.cancel_scope.cancel()
        return await self._context.hasher.run(summing.group.packed_bytes, summing.result)

    def _give_out(self, summing: SecureSumming, perform: "_SumPerformer") -> bool:
        """Begin all work that there is; return whether there was any."""
        work = summing.work(trio.current_time())
        self._charge(summing)
        for each in work:
            match each:
                case Say(statement=statement):
                    envelope = seal(self._identity, self._scope, statement)
                    summing.learn_own(parse_secure(envelope))
                    perform.tell_all(envelope.raw)
                case Forward(peer=peer, raw=raw):
                    perform.tell(peer, raw)
                case Compute() | Serve() | PullPart():
                    perform.begin(each)
                case _:
                    assert_never(each)
        return bool(work)

    def _charge(self, summing: SecureSumming) -> None:
        while summing.offences:
            self._context.offence(*summing.offences.pop(0))

    async def serve(self, work: Serve, chunk_bytes: int) -> None:
        """Compute bytes, hold them for the others, and say so."""
        data = await self._context.hasher.run(work.size, work.run)
        payload = await self._context.hasher.payload(data, chunk_bytes)
        work.done(self._held.put(payload), payload.data)


class _SumPerformer:
    """The tasks of one secure sum."""

    def __init__(
        self,
        summer: SecureSummer,
        context: ServiceContext,
        summing: SecureSumming,
        meter: Meter,
        changed: Notifier,
        nursery: trio.Nursery,
    ) -> None:
        self._summer = summer
        self._context = context
        self._summing = summing
        self._changed = changed
        self._nursery = nursery
        self._teller = Teller(context, changed, nursery)
        self._puller = Puller(context, meter, summing.group.parts.chunk_bytes)

    @property
    def telling(self) -> bool:
        """Whether a member that can be reached does not know yet what we said."""
        return self._teller.telling

    def tell_all(self, statement: bytes) -> None:
        """Tell every other member; one that cannot be reached is told when it can."""
        for member in self._summing.group.members:
            if member != self._context.engine.me:
                self.tell(member, statement)

    def tell(self, member: PeerId, statement: bytes) -> None:
        """Tell one member."""
        self._teller.tell(member, SecureRequest(envelope=statement))

    def begin(self, work: Compute | Serve | PullPart) -> None:
        """Begin what takes a while."""
        self._nursery.start_soon(self._perform, work)

    async def _perform(self, work: SecureWork) -> None:
        match work:
            case Compute(size=size, run=run, done=done):
                done(await self._context.hasher.run(size, run))
            case Serve():
                await self._summer.serve(work, self._summing.group.parts.chunk_bytes)
            case PullPart():
                await self._pull(work)
        self._changed.beat()

    async def _pull(self, work: PullPart) -> None:
        try:
            self._summing.pulled(work, await self._puller.pull(work.peer, work.address, work.size, work.span))
        except PullFailedError as failed:
            self._summing.failed(work, again=failed.again)
