"""Follows each neighbour: fetch what the state machine says, pass it to the runtime, wait for the verdict, repeat.

One update of each neighbour is in flight at a time, so memory is bounded by the degree, and a slow runtime slows only
itself. Whatever goes wrong here costs this neighbour a pause or points; the service goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import trio

from gossip.blobs.attestation_task import SnapshotAttestation
from gossip.blobs.blob_cache_task import BlobCache
from gossip.blobs.state_digest_task import StateDigestVerifier
from gossip.context import Notifier, ServiceContext
from gossip.core.api import BlobFile, QueueName, Update
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import Refused
from gossip.core.quiet_clock import QUIET_LOOK_S
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import SnapshotOffer, UpdateHeader
from gossip.hellos.hello_task import say_hello
from gossip.transport.base import TransportError
from gossip.updates.fetcher_task import Fetcher
from gossip.updates.layer_plan import FetchLayer, GivenUp, LayerPlan
from gossip.updates.neighbour import FetchPayload, Neighbour, Work
from gossip.updates.pull_priority import PullPriority
from gossip.updates.traffic import Traffic

UPDATES_BURST: Final = 32
UPDATES_PER_S: Final = 20.0
"""Updates a second of one neighbour: catching up needs eight at once, and rounds of 50 ms are the fastest that make
sense. A liar can make a new epoch as often as it can sign, and each would cost the runtime a pass over the whole
model."""


@dataclass
class _InFlight:
    update: Update
    what: UpdateHeader | SnapshotOffer | FetchLayer
    answered: trio.Event
    accepted: bool = False


class Follower:
    """The tasks of one neighbour: following its chain, and a heartbeat."""

    def __init__(
        self,
        peer: PeerId,
        neighbour: Neighbour,
        context: ServiceContext,
        updates: trio.MemorySendChannel[Update],
        fetcher: Fetcher,
        layers: LayerPlan,
        pulls: PullPriority,
    ) -> None:
        self.scope = trio.CancelScope()
        self._woken = Notifier()
        self._peer = peer
        self._neighbour = neighbour
        self._context = context
        self._engine = context.engine
        self._updates = updates
        self._in_flight: _InFlight | None = None
        self._fetcher = fetcher
        self._layers = layers
        self._layer: tuple[FetchLayer, trio.CancelScope] | None = None
        """The refinement that is being pulled."""
        self._pulls = pulls
        self._checker = StateDigestVerifier(peer, neighbour, context)
        self._quota = KeyedTokenBucket(burst=UPDATES_BURST, per_s=UPDATES_PER_S)

    @property
    def pulling(self) -> bool:
        """Whether a blob is being pulled."""
        return self._fetcher.pulling

    @property
    def awaits_answer(self) -> bool:
        """Whether an update waits for the runtime, or is being processed by it."""
        return self._in_flight is not None

    async def run(self) -> None:
        """Run until `scope` is cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heartbeat)
                await self._follow()
        if self._engine.is_banned(self._peer, trio.current_time()):
            self._fetcher.forget()

    def wake(self) -> None:
        """Check at once whether there is something to fetch. A newer update comes before a refinement."""
        if self._layer is not None and not self._layers.is_newest(self._layer[0]):
            self._layer[1].cancel()
        self._woken.beat()

    @property
    def refining(self) -> bool:
        """Whether a refinement is on its way, or is about to be fetched."""
        flight = self._in_flight
        under_way = self._layer is not None or (flight is not None and isinstance(flight.what, FetchLayer))
        return under_way or self._layers.next_layer(self._peer, trio.current_time()) is not None

    def stop_refining(self) -> None:
        """Give up the refinement that is being pulled."""
        if self._layer is not None:
            self._layer[1].cancel()

    def answer(self, update: Update, error: RemoteError | None) -> bool:
        """Handle the runtime's verdict. Return False, and do nothing, for an update that is no longer in flight (the
        peer came back)."""
        flight = self._in_flight
        if flight is None or flight.update is not update:
            return False
        self._in_flight = None
        flight.accepted = error is None
        if isinstance(flight.what, FetchLayer):
            self._layer_answered(flight.what, error)
        elif error is None:
            self._engine.accepted(flight.what, trio.current_time())
        else:
            self._engine.rejected(flight.what, error, trio.current_time())
        flight.answered.set()
        return True

    def _layer_answered(self, work: FetchLayer, error: RemoteError | None) -> None:
        """A refused refinement costs its author as a payload does. The update that it refines stays."""
        if error is None:
            self._layers.accepted(work)
        else:
            self._layers.given_up(work, "failed")
            self._engine.offence(self._peer, error, trio.current_time())

    async def _follow(self) -> None:
        while True:
            while self._context.quiet():  # noqa: ASYNC110  # no clock wakes a task at a time of day
                await trio.sleep(QUIET_LOOK_S)
            try:
                work = self._engine.next_work(self._peer, trio.current_time())
            except RemoteError as error:
                self._context.offence(self._peer, error)
                work = None
            layer = None if work is not None else self._layers.next_layer(self._peer, trio.current_time())
            if work is None and layer is None:
                await self._wait(self._neighbour.retry_at)
            elif work is not None and not self._pulls.admits(self._peer, work):
                await self._wait(0.0)  # until another's pull has ended, or others are first
            elif (pause := self._engine.hold_back(self._peer, trio.current_time())) > 0:
                self._context.perform()
                await self._wait(trio.current_time() + pause)  # then check anew: a snapshot may serve better
            elif work is not None:
                await self._attempt(work)
            elif layer is not None:
                await self._refine(layer)

    async def _refine(self, work: FetchLayer) -> None:
        """Pull a refinement and pass it on, unless its time is over before. One that is refused, or replaced by a newer
        update, later than it was expected counts as late, or to hold rounds up would cost nothing."""
        data: bytes | None = None
        why: GivenUp = "failed"
        began = trio.current_time()
        expected_s = self._layers.expected_s(work, began)
        self._layers.begin(work)
        with trio.CancelScope() as scope:
            self._layer = work, scope
            try:
                data = await self._fetcher.layer(work)
            except Refused:
                why = "refused"
            except RemoteError as error:
                self._context.offence(self._peer, error)
            except TransportError:
                pass
            except Exception as error:  # ours, then; it must not end the service
                self._context.warn(f"refining what is held of {self._peer}: {error!r}")
            finally:
                self._layer = None
        if data is None:
            replaced = not self._layers.is_newest(work)  # given up for a newer update, and not as its time was over
            late = trio.current_time() - began > expected_s or (scope.cancelled_caught and not replaced)
            self._layers.given_up(work, "late" if late else why)
            self._context.perform()
        else:
            layer = work.link.body.layers[work.layer - 1]
            await self._hand_over(replace(update_of(work.link, data), codec=layer.codec, layer=work.layer), work)

    async def _wait(self, until: float) -> None:
        pause = trio.CancelScope(deadline=until if until > trio.current_time() else float("inf"))
        with pause:
            await self._woken.wait()

    async def _attempt(self, work: Work) -> None:
        now = trio.current_time
        try:
            with self._pulling(work):
                fetched = await self._fetcher.fetch(work)
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

    @contextmanager
    def _pulling(self, work: Work) -> Iterator[None]:
        self._pulls.begin(self._peer, work)
        try:
            yield
        finally:
            if self._pulls.end(self._peer, work):
                self._context.perform()

    def _refused(self, work: Work, refusal: Refused) -> None:
        """Note a refusal: what the neighbour does not hold any more is replaced by a snapshot. It is no offence."""
        if isinstance(work, FetchPayload) and refusal.reason is Reason.UNAVAILABLE:
            self._neighbour.payload_gone()
        self._neighbour.failed(trio.current_time())

    async def _deliver(self, what: UpdateHeader | SnapshotOffer, payload: bytes | BlobFile | None) -> None:
        if (pause := self._quota.reserve(self._peer, trio.current_time())) > 0:
            await trio.sleep(pause)
        accepted = await self._hand_over(update_of(what, payload), what)
        del payload
        if accepted and isinstance(what, UpdateHeader):
            await self._check_mark(what)

    async def _hand_over(self, update: Update, what: UpdateHeader | SnapshotOffer | FetchLayer) -> bool:
        """Pass an update to the runtime; return whether it was accepted."""
        flight = _InFlight(update, what, trio.Event())
        del update
        self._in_flight = flight
        try:
            self._updates.send_nowait(flight.update)  # the runtime waits for it: the usual case, without a wake-up
        except trio.WouldBlock:
            await self._updates.send(flight.update)
        await flight.answered.wait()
        self._context.perform()
        return flight.accepted

    async def _check_mark(self, link: UpdateHeader) -> None:
        try:
            await self._checker.check(link)
        except RemoteError as error:  # what we hold of it differs from what it says: begun anew from a snapshot
            self._engine.rejected(link, error, trio.current_time())
            self._context.perform()
        except Exception as error:  # the runtime's bug must not end the network
            self._context.warn(f"what is held of {self._peer} could not be read: {error!r}")

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


def update_of(what: UpdateHeader | SnapshotOffer, data: bytes | BlobFile | None) -> Update:
    """Return a link or an offer as the runtime gets it."""
    payload, filed = (data, None) if data is None or isinstance(data, bytes) else (None, data)
    if isinstance(what, SnapshotOffer):
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
            filed=filed,
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
        filed=filed,
    )


class Followers:
    """Starts, wakes and ends one follower for each neighbour."""

    def __init__(
        self,
        context: ServiceContext,
        traffic: Traffic,
        updates: trio.MemorySendChannel[Update],
        blob_cache: BlobCache,
        pulls: PullPriority,
    ) -> None:
        self._context = context
        self._pulls = pulls
        self._traffic = traffic
        self._updates = updates
        self._blob_cache = blob_cache
        self._attestation = SnapshotAttestation(context)
        self._all: dict[PeerId, Follower] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, peer: PeerId, nursery: trio.Nursery) -> None:
        """Follow this peer, unless it is lost already."""
        neighbour = self._context.engine.neighbour(peer)
        if neighbour is not None:
            fetcher = Fetcher(peer, self._context, self._traffic, self._blob_cache, self._attestation)
            follower = Follower(
                peer, neighbour, self._context, self._updates, fetcher, self._traffic.layers, self._pulls
            )
            self._all[peer] = follower
            nursery.start_soon(follower.run)

    def end(self, peer: PeerId) -> None:
        """End the follower of this peer."""
        follower = self._all.pop(peer, None)
        if follower is not None:
            follower.scope.cancel()

    def wake(self, peer: PeerId) -> None:
        """Wake the follower of this peer: there may be something to fetch."""
        if peer in self._all:
            self._all[peer].wake()

    def wake_all(self) -> None:
        """Wake all followers."""
        for follower in self._all.values():
            follower.wake()

    @property
    def refining(self) -> bool:
        """Whether refinements are on their way, or about to be fetched."""
        return any(follower.refining for follower in self._all.values())

    def stop_refining(self) -> None:
        """Give up all refinements that are being pulled."""
        for follower in self._all.values():
            follower.stop_refining()

    def answer(self, update: Update, error: RemoteError | None) -> None:
        """Pass on the runtime's verdict on an update of a neighbour. Of a peer that was lost meanwhile it is void, but
        a refusal is charged all the same: a liar could else leave before each and be judged by none. `protocol` is not:
        the runtime may have forgotten the peer, and so have nothing that its update fits."""
        follower = self._all.get(update.peer)
        in_flight = follower is not None and follower.answer(update, error)
        if not in_flight and error is not None and error.reason is not Reason.PROTOCOL:
            self._context.engine.offence(update.peer, error, trio.current_time())

    def queues(self) -> dict[QueueName, int]:
        """Return how many updates wait for the runtime or are processed by it, and how many blobs are being fetched."""
        followers = self._all.values()
        return {
            "updates": sum(it.awaits_answer for it in followers),
            "pulls": sum(it.pulling for it in followers),
        }
