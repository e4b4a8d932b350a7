"""Follows one neighbour: fetch what the state machine says, hand it to the runtime, wait for the verdict, repeat.

One update a neighbour is in flight at a time, so memory is bounded by the degree and a slow runtime slows nobody but
itself. Whatever goes wrong here costs this neighbour a pause or points; the service goes on.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, assert_never

import trio

from gossip.api import Update
from gossip.errors import Reason, RemoteError
from gossip.ids import Digest, PeerId
from gossip.protocol.limits import MAX_ENVELOPE_BYTES, MAX_LINKS
from gossip.protocol.messages import (
    LinksRequest,
    Refused,
    SnapshotRequest,
    parse_bytes_answer,
    parse_links_answer,
)
from gossip.protocol.neighbour import FetchLinks, FetchPayload, FetchSnapshot, Neighbour, Work
from gossip.protocol.quota import Quota
from gossip.protocol.statements import Link, Offer
from gossip.running.context import Context, Pulse
from gossip.running.download import Joint, measured
from gossip.running.greeting import say_hello
from gossip.running.puller import BULK_BYTES, Pulling, pull_from
from gossip.running.quiet import QUIET_LOOK_S
from gossip.running.session import Session, open_session
from gossip.running.shelf import Kept, Shelf
from gossip.transport.base import TransportError

UPDATES_BURST: Final = 32
UPDATES_PER_S: Final = 20.0
"""Updates of one neighbour: catching up needs eight at once, and rounds of 50 ms are the fastest that make sense. A
liar can make a new epoch as often as it can sign, and each would cost the runtime a pass over the whole model."""


@dataclass
class _InFlight:
    update: Update
    what: Link | Offer
    answered: trio.Event


class Follower:
    """The tasks of one neighbour: following its chain, and a heartbeat."""

    def __init__(
        self,
        peer: PeerId,
        neighbour: Neighbour,
        context: Context,
        updates: trio.MemorySendChannel[Update],
        shelf: Shelf,
    ) -> None:
        self.scope = trio.CancelScope()
        self.woken = Pulse()
        self._peer = peer
        self._neighbour = neighbour
        self._context = context
        self._engine = context.engine
        self._updates = updates
        self._shelf = shelf
        self._in_flight: _InFlight | None = None
        self._pulling = False
        self._quota = Quota(burst=UPDATES_BURST, per_s=UPDATES_PER_S)

    @property
    def pulling(self) -> bool:
        """Whether a blob is being pulled."""
        return self._pulling

    @property
    def awaits_answer(self) -> bool:
        """Whether an update waits for the runtime, or is in its hands."""
        return self._in_flight is not None

    async def run(self) -> None:
        """Until `scope` is cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heartbeat)
                await self._follow()
        if self._engine.court.scores.banned(self._peer, trio.current_time()):
            self._shelf.forget(self._peer)

    def answer(self, update: Update, error: RemoteError | None) -> None:
        """The runtime's verdict. One on an update that is no longer in flight (the peer came back) is void."""
        flight = self._in_flight
        if flight is None or flight.update is not update:
            return
        self._in_flight = None
        if error is None:
            self._engine.accepted(flight.what)
        else:
            self._engine.rejected(flight.what, error, trio.current_time())
        flight.answered.set()

    async def _follow(self) -> None:
        while True:
            while self._context.quiet():  # noqa: ASYNC110  # no clock of the day wakes anybody
                await trio.sleep(QUIET_LOOK_S)
            try:
                work = self._engine.next_work(self._peer, trio.current_time())
            except RemoteError as error:
                self._context.offence(self._peer, error)
                work = None
            if work is None:
                await self._wait()
            else:
                await self._attempt(work)

    async def _wait(self) -> None:
        retry_at = self._neighbour.retry_at
        pause = trio.CancelScope(deadline=retry_at if retry_at > trio.current_time() else float("inf"))
        with pause:
            await self.woken.wait()

    async def _attempt(self, work: Work) -> None:
        now = trio.current_time
        try:
            fetched = await self._fetch(work)
        except Refused as refusal:
            self._refused(work, refusal)
        except RemoteError as error:
            self._neighbour.failed(now())
            self._context.offence(self._peer, error)
        except TransportError:
            self._neighbour.failed(now())
        except Exception as error:  # ours, then; it must not end the service
            self._neighbour.failed(now())
            self._context.warn(f"following {self._peer}: {error!r}")
        else:
            if fetched is not None:
                await self._deliver(*fetched)

    def _refused(self, work: Work, refusal: Refused) -> None:
        """What it does not hold any more is replaced by a snapshot; the refusal itself is no offence."""
        if isinstance(work, FetchPayload) and refusal.reason is Reason.UNAVAILABLE:
            self._neighbour.payload_gone()
        self._neighbour.failed(trio.current_time())

    async def _fetch(self, work: Work) -> tuple[Link | Offer, bytes | None] | None:
        if isinstance(work, FetchPayload) and work.link.body.kind == "delta":
            return work.link, await self._pull_shared(work.link)
        bulk = _is_model(work)
        patience_s = self._context.config.request_timeout_s
        async with open_session(self._context.transport, self._peer, patience_s, bulk=bulk) as session:
            fetched = await self._fetch_over(session, work)
        self._engine.heard(self._peer, trio.current_time())
        return fetched

    async def _fetch_over(self, session: Session, work: Work) -> tuple[Link | Offer, bytes | None] | None:
        match work:
            case FetchPayload(link=link) if link.body.kind == "genesis":
                return link, None
            case FetchPayload(link=link):
                return link, await self._pull_model(session, link)
            case FetchLinks(epoch=epoch, first=first, count=count):
                answer = await session.ask(
                    LinksRequest(epoch=epoch, first=first, count=count), (MAX_LINKS + 1) * MAX_ENVELOPE_BYTES
                )
                self._engine.on_links(self._peer, parse_links_answer(answer), trio.current_time())
                self._context.perform()
                return None
            case FetchSnapshot(epoch=epoch, seq=seq):
                raw = await session.ask(SnapshotRequest(epoch=epoch, seq=seq), 2 * MAX_ENVELOPE_BYTES)
                offer = self._engine.on_offer(self._peer, parse_bytes_answer(raw, MAX_ENVELOPE_BYTES), (epoch, seq))
                return offer, await self._pull_model(session, offer)
            case _:
                assert_never(work)

    async def _pull_shared(self, link: Link) -> bytes:
        """An update, of its author or of whoever has it."""
        kept, neighbours = self._begin(link.address, link.body.size, shared=True), self._engine.neighbours
        pullers = sorted({self._engine.me, *neighbours} - {self._peer})
        joint = Joint(self._context, self._pulling_of(kept, pullers), self._shelf.places)
        async with self._at_it(kept):
            whole, error = await joint.run(), joint.error
        if not whole:
            assert error is not None
            raise error
        if isinstance(error, RemoteError) and not isinstance(error, Refused):  # the others have helped out
            self._context.offence(self._peer, error)
        return self._finish(kept)

    async def _pull_model(self, session: Session, what: Link | Offer) -> bytes:
        """A snapshot, which nobody else has."""
        size = what.size if isinstance(what, Offer) else what.body.size
        kept = self._begin(what.address, size, shared=False)
        async with self._at_it(kept):
            with measured(self._context, kept.download):
                await pull_from(session, self._peer, self._pulling_of(kept, ()))
        return self._finish(kept)

    def _begin(self, address: Digest, size: int, *, shared: bool) -> Kept:
        now = trio.current_time()
        self._shelf.tidy(self._engine.neighbours, now)
        return self._shelf.begin(self._peer, address, size, shared=shared, now=now)

    def _pulling_of(self, kept: Kept, pullers: Sequence[PeerId]) -> Pulling:
        return Pulling(
            download=kept.download,
            hasher=self._context.hasher,
            meter=self._engine.traffic.received(snapshot=not kept.shared),
            me=self._engine.me,
            pullers=pullers,
            changed=kept.changed,
        )

    @asynccontextmanager
    async def _at_it(self, kept: Kept) -> AsyncIterator[None]:
        async with kept.turn:
            self._pulling = True
            try:
                yield
            finally:
                self._pulling = False
                kept.used_at = trio.current_time()

    def _finish(self, kept: Kept) -> bytes:
        data = kept.download.finish()
        self._engine.court.stats.blob_seconds.add(trio.current_time() - kept.download.began)
        self._shelf.finish(self._peer, kept, data)
        return data

    async def _deliver(self, what: Link | Offer, payload: bytes | None) -> None:
        await trio.sleep(self._quota.reserve(self._peer, trio.current_time()))
        flight = _InFlight(update_of(what, payload), what, trio.Event())
        self._in_flight = flight
        await self._updates.send(flight.update)
        del payload
        await flight.answered.wait()
        self._context.perform()

    async def _heartbeat(self) -> None:
        config = self._context.config
        while True:
            await trio.sleep(config.heartbeat_s * self._engine.jitter())
            now = trio.current_time()
            if now - self._neighbour.heard_at > config.silence_s:
                self._engine.fell_silent(self._peer, trio.current_time())
                self._context.perform()
                return
            await say_hello(self._context, self._peer)


def _is_model(work: Work) -> bool:
    """A snapshot's size is known too late; it is a whole model's."""
    return isinstance(work, FetchSnapshot) or (isinstance(work, FetchPayload) and work.link.body.size >= BULK_BYTES)


def update_of(what: Link | Offer, payload: bytes | None) -> Update:
    """What the runtime gets to see of a link or an offer."""
    if isinstance(what, Offer):
        return Update(
            peer=what.peer,
            epoch=what.epoch,
            seq=what.seq,
            round=what.round,
            kind="snapshot",
            codec="",
            payload=payload,
            steps=0,
            tokens=0,
        )
    body = what.body
    return Update(
        peer=what.peer,
        epoch=what.epoch,
        seq=what.seq,
        round=body.round,
        kind=body.kind,
        codec=body.codec,
        payload=payload,
        steps=body.steps,
        tokens=body.tokens,
    )
