"""Publishes our region's model where we are drawn, fetches the others', and stays in touch with other regions' members.

A statement is broadcast by each member that has its blob, when it has come and a few times after: broadcasts get lost.
A blob is fetched from one source at a time; what has come of it stays when a source fails.
"""

from collections import OrderedDict
from collections.abc import Collection, KeysView, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low
from typing import Final, Literal

import trio

from gossip.blobs.blob_fetch_task import BULK_BYTES, BlobFetch, fetch_blob_from
from gossip.blobs.download import AuthorLiedError, Download
from gossip.context import Notifier, ServiceContext
from gossip.core.api import Crossing, Recorder, RegionalPayload, RegionalView, RegionClaim
from gossip.core.digests import digest_of
from gossip.core.envelope import seal
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import Refused
from gossip.core.statements import RegionalModel, parse_regional, regional_statement
from gossip.engine import JITTER_MOST
from gossip.hellos.hello_task import say_hello
from gossip.regions.bridges import Bridges
from gossip.regions.regional_models import TWO_SOURCES, Announced, RegionalModels
from gossip.regions.residency import Residency
from gossip.session import open_session
from gossip.transport.base import TransportError
from gossip.updates.publisher import Payload
from gossip.updates.traffic import Traffic

MAX_FETCHES: Final = 4
"""Blobs that are fetched at once: as many as a region publishes with f = 1."""

REPEATS: Final = 2
"""Times that a statement is broadcast again by each that has its blob, after `reannounce_s` and then twice as long each
time: after two and six seconds, as a link is, of which few are lost. Not where most have said it too: each of some
twenty connected members says what the others do."""

MOST_PATIENCES: Final = 8
"""Times as long as a source has before another is asked that a fetch from it may take at all: at 0.5 Mbit/s."""

UNNEEDED_HEARTBEATS: Final = 1.5
"""Heartbeats without a hello after which a member of another region that does not belong beside us is let go: one that
we belong beside says hello after 1.25 at most, and a look. Where that hello is lost, it dials us again, and is given
twice the time: its heartbeats may be longer than ours."""

LOOK_S: Final = 1.0
"""Seconds between two looks at what there is to fetch or to say again, at most."""

MAX_PATIENCES: Final = 64
"""Members that were let go of which it is remembered how long they are waited for, those of the last."""

SENDINGS: Final = 4
"""Times its size that a model is sent to one member of another region: once, and again where that one was started
anew. Each chunk is a line of the record of crossings, which only grows. Chosen."""

MAX_SENDINGS: Final = 1024
"""Models and members of which it is remembered how much was sent, those of the last: 200 KiB."""

_NEVER: Final = float("-inf"), 0.0


@dataclass(eq=False)
class _Saying:
    """When a statement is broadcast again, how often it was, and when last (seconds, monotonic)."""

    at: float
    said: int = 0
    last: float = float("-inf")


@dataclass(eq=False)
class _Coming:
    download: Download
    changed: Notifier = field(default_factory=Notifier)


class RegionalExchange:
    """The task of one service."""

    def __init__(
        self,
        context: ServiceContext,
        identity: Identity,
        models: RegionalModels,
        bridges: Bridges,
        traffic: Traffic,
        residency: Residency,
        recorder: Recorder,
    ) -> None:
        """`recorder` is called with what passes between regions."""
        self._context = context
        self._identity = identity
        self._models = models
        self._bridges = bridges
        self._traffic = traffic
        self._residency = residency
        self._recorder = recorder
        self._unrecorded = False
        self._faulty = False
        """Whether what was fetched last could not be kept, which is told once."""
        self._sent: OrderedDict[tuple[Digest, PeerId], int] = OrderedDict()
        """Bytes of each model that each member of another region was sent."""
        self._coming: dict[tuple[Digest, int], _Coming] = {}
        """By address and size: one statement of another size must not spoil another's download."""
        self._fetches: dict[tuple[Digest, PeerId], tuple[Announced, trio.CancelScope]] = {}
        self._saying: dict[Digest, _Saying] = {}
        self._held: dict[Digest, RegionalModel] = {}
        """The models that are here, by digest, as they were at `_held_at` changes."""
        self._held_at = -1
        self._woken = Notifier()
        self._again = False
        """Whether it was woken since the last look began: a beat while it works reaches nobody."""
        self._hello_at: dict[PeerId, tuple[float, float]] = {}
        """When hellos were last exchanged with each member of other regions, and when ours is due."""
        self._met: frozenset[PeerId] = frozenset()
        """The members of other regions that were connected at the last look."""
        self._patience: OrderedDict[PeerId, float] = OrderedDict()
        """For how long each that was let go and may be back is waited for (seconds)."""

    def wake(self) -> None:
        """Look at once whether there is something to fetch."""
        self._again = True
        self._woken.beat()

    def refuse(self, peer: PeerId, region: str, round: int) -> None:
        """Drop a model that the runtime could not read."""
        self._models.refuse(peer, region, round)

    def publishes(self, round: int) -> bool:
        """Return whether we are drawn to publish our region's model after a round."""
        return self._models.publishes(round, self._context.engine.pauses_said(trio.current_time()).keys())

    async def publish(self, *, round: int, codec: str, data: bytes, averaged: int) -> None:
        """Publish our region's model, an average of so many members' at least. Raises LocalError where it is larger
        than may be sent, or of fewer members than the run's policy wants."""
        least = self._residency.least(self._bridges.own)
        if averaged < least:
            raise LocalError(f"it is an average of {averaged} members' models, and {least} are wanted of this region")
        members = max(averaged, len(self._bridges.members_of(self._bridges.own)))
        payload = await self._context.hasher.payload(data)
        envelope = seal(
            self._identity,
            self._context.engine.scope,
            regional_statement(
                region=self._bridges.own,
                round=round,
                codec=codec,
                members=members,
                address=payload.manifest.address,
                size=payload.manifest.size,
                averaged=averaged if least else 0,
            ),
        )
        model = parse_regional(envelope)
        self._models.add_own(digest_of(envelope.raw), model, payload, trio.current_time())
        await self._say(model)

    def payload_at(self, address: Digest) -> Payload | None:
        """Return a model's blob that is here, by its address."""
        held = (it for it in self._models.whole() if it.model.address == address)
        return next((it.payload for it in held), None)

    def gives(self, address: Digest, peer: PeerId) -> bool:
        """Return whether a blob is that of a model which may go to this member of another region. Others may state the
        same blob for their region: it stays what it was."""
        named = [it.model.region for it in self._models.whole() if it.model.address == address]
        return bool(named) and all(self._residency.leaves(region, peer) for region in named)

    def check_sends(self, address: Digest, peer: PeerId, size: int) -> None:
        """Record that bytes of a model are sent to a peer, where it is not of our region. RemoteError (UNAVAILABLE)
        where that cannot be recorded, and for a peer that was sent it often enough."""
        model = self._model_at(address)
        if model is None or not self._residency.crosses(peer):
            return
        sent = self._sent.get((address, peer), 0) + size
        if sent > SENDINGS * model.size:
            raise RemoteError(Reason.UNAVAILABLE, f"a region's model that was sent {SENDINGS} times")
        if not self._record("sent", model, peer, size):
            raise RemoteError(Reason.UNAVAILABLE, "a crossing that cannot be recorded")
        self._sent[address, peer] = sent
        self._sent.move_to_end((address, peer))
        if len(self._sent) > MAX_SENDINGS:
            self._sent.popitem(last=False)

    def _record(self, direction: Literal["sent", "received"], model: RegionalModel, peer: PeerId, size: int) -> bool:
        ours, theirs = self._bridges.own, self._residency.region_of(peer)
        recorded = self._recorder(
            Crossing(
                direction=direction,
                peer=peer,
                from_region=ours if direction == "sent" else theirs,
                to_region=theirs if direction == "sent" else ours,
                model_of=model.region,
                round=model.round,
                averaged=model.averaged,
                address=model.address,
                size=size,
            )
        )
        if not recorded and not self._unrecorded:
            self._context.warn("what crosses between regions cannot be recorded: nothing is sent to other regions")
        self._unrecorded = not recorded
        if direction == "received" or recorded:
            self._traffic.crossed(direction, size)
        return recorded

    def _model_at(self, address: Digest) -> RegionalModel | None:
        return next((it.model for it in self._models.whole() if it.model.address == address), None)

    def views(self) -> dict[str, RegionalView]:
        """Return the newest model of each region of which enough members' are here."""
        found = (self._view(region) for region in (self._bridges.own, *sorted(self._bridges.heard_regions)))
        return {view.region: view for view in found if view is not None}

    def _view(self, region: str) -> RegionalView | None:
        newest = self._models.newest_round(region)
        if not newest:
            return None
        here = [(it.model, it.payload) for it in newest]
        return RegionalView(
            region=region,
            round=newest[0].model.round,
            needed=self._models.needed(region),
            members=median_low(it.model.members for it in newest),
            models=tuple(
                RegionalPayload(peer=model.peer, codec=model.codec, payload=payload.data)
                for model, payload in here
                if payload is not None
            ),
        )

    def claims(self) -> dict[str, RegionClaim]:
        """Return where each region stands whose models come to us and of which members are connected, as they say."""
        said, announced = self._bridges.said_rounds, self._models.announced_round
        there = self._bridges.by_region().keys() & self._bridges.heard_regions
        return {region: RegionClaim(round=said.get(region, -1), announced=announced(region)) for region in there}

    def bridges_to(self, peer: PeerId) -> bool:
        """Return whether a peer is a connected member of another region."""
        return peer in self._bridges.table

    @property
    def beside(self) -> frozenset[str]:
        """The regions beside ours whose models we hear."""
        return self._bridges.heard_regions

    @property
    def is_beside_others(self) -> bool:
        """Whether there is another region beside ours, whatever may leave it."""
        return bool(self._bridges.adjacent)

    @property
    def bridge_ids(self) -> KeysView[PeerId]:
        """The connected members of other regions."""
        return KeysView(self._bridges.table)

    @property
    def regions(self) -> dict[str, int]:
        """How many members of each region are known, ourselves included."""
        own = len(self._bridges.members_of(self._bridges.own))
        return {**self._bridges.regions, self._bridges.own: own}

    async def run(self) -> None:
        """Fetch, say again and greet until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.checkpoint()
                self._again, now = False, trio.current_time()
                await self._say_again(now)
                self._greet(nursery, now)
                if not self._context.quiet():
                    self._fetch_some(nursery, now)
                if not self._again:
                    with trio.move_on_at(self._next_look(now)):
                        await self._woken.wait()

    def _next_look(self, now: float) -> float:
        """Return when to look again where nothing wakes us: at the first of all that is due by itself."""
        said_again = (it.at for it in self._saying.values() if it.said < REPEATS)
        return min(now + LOOK_S, max(now, min([self._models.next_at(now), *said_again])))

    # -- fetching

    def _fetch_some(self, nursery: trio.Nursery, now: float) -> None:
        there = self._context.engine.partners
        for announced, scope in self._fetches.values():
            if not self._models.holds(announced):
                scope.cancel()
        for announced, source in self._models.next_fetches(now, there):
            if len(self._fetches) >= TWO_SOURCES * MAX_FETCHES:
                break
            announced.fetches[source] = now
            scope = trio.CancelScope(deadline=now + MOST_PATIENCES * self._models.patience(announced.model))
            self._fetches[announced.model.digest, source] = announced, scope
            nursery.start_soon(self._fetch, announced, source, scope)

    async def _fetch(self, announced: Announced, source: PeerId, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._fetch_from(announced, source)
            if scope.cancelled_caught:
                self._models.failed(announced, source, trio.current_time(), lied=False)
        finally:
            self._fetches.pop((announced.model.digest, source), None)
            announced.fetches.pop(source, None)
            self.wake()

    async def _fetch_from(self, announced: Announced, source: PeerId) -> None:
        model, now = announced.model, trio.current_time
        try:
            data = await self._pull(model, source)
        except AuthorLiedError as error:  # the source is not to blame
            self._models.drop(announced)
            self._context.engine.regional_refused(model.peer, error, now())
            self._context.perform()
        except (RemoteError, TransportError) as error:
            lied = isinstance(error, RemoteError) and not isinstance(error, Refused)
            self._models.failed(announced, source, now(), lied=lied)
            if isinstance(error, RemoteError) and lied:
                self._context.offence(source, error)
        except Exception as error:  # ours, as a full disk is; it must not end the service
            self._models.failed(announced, source, now(), lied=False)
            if not self._faulty:
                why = (isinstance(error, OSError) and error.strerror) or repr(error)
                self._context.warn(f"a model of region {model.region} cannot be kept, and is fetched again: {why}")
            self._faulty = True
        else:
            if data is None and announced.payload is None:
                self._models.failed(announced, source, now(), lied=False)
            elif data is not None and self._models.holds(announced):
                self._faulty = False
                self._models.fetched(announced, data, now())
                self._context.changed.beat()
                await self._say(model)

    async def _pull(self, model: RegionalModel, source: PeerId) -> Payload | None:
        """Return the blob; None where this source has no more of it."""
        context, name = self._context, (model.address, model.size)
        coming = self._coming.get(name)
        if coming is None:
            file = context.hasher.new_file(model.size)
            download = Download(model.address, model.size, author=model.peer, began=trio.current_time(), file=file)
            coming = self._coming[name] = _Coming(download)
            self._held_at = -1  # it may have come meanwhile
        download = coming.download
        fetch = BlobFetch(
            download=download,
            hasher=context.hasher,
            meter=partial(self._took, model, source),
            me=context.engine.me,
            pullers=[context.engine.me],
            changed=coming.changed,
        )
        try:
            bulk = model.size >= BULK_BYTES
            async with open_session(context.transport, source, context.config.request_timeout_s, bulk=bulk) as session:
                await fetch_blob_from(session, source, fetch)
        finally:
            download.leave(source)
        context.engine.heard(source, trio.current_time())
        manifest = download.manifest
        if not download.done or manifest is None or self._coming.pop(name, None) is None:
            return None
        return Payload(manifest=manifest, data=download.finish())

    def _took(self, model: RegionalModel, source: PeerId, size: int) -> None:
        self._traffic.received(snapshot=False)(size)
        if self._residency.crosses(source):
            self._record("received", model, source, size)

    # -- saying

    async def _say(self, model: RegionalModel) -> None:
        now = trio.current_time()
        self._saying[model.digest] = _Saying(now + self._context.config.reannounce_s, last=now)
        self._held_at = -1
        await self._context.transport.publish(model.raw)

    async def _say_again(self, now: float) -> None:
        if self._held_at != self._models.changes:
            self._held_at = self._models.changes
            self._held = {it.model.digest: it.model for it in self._models.whole()}
            self._coming = {name: it for name, it in self._coming.items() if self._models.awaits(*name)}
            self._saying = {digest: it for digest, it in self._saying.items() if digest in self._held}
        held = self._held
        if self._bridges.table.keys() != self._met:
            self._note_newcomers(held)
        for digest, saying in [(it, each) for it, each in self._saying.items() if now >= each.at]:
            if saying.said < REPEATS:
                saying.said += 1
                saying.at = now + self._context.config.reannounce_s * 2.0**saying.said
                if self._is_missed(held[digest]):
                    saying.last = now
                    self._models.say_again(digest)
                    await self._context.transport.publish(held[digest].raw)

    def _note_newcomers(self, held: Mapping[Digest, RegionalModel]) -> None:
        """Say our own region's models anew where members of other regions have come since they were said: the region
        of these may be about to begin. Not more often than any statement: who comes again and again gains nothing."""
        there = frozenset(self._bridges.table)
        come, self._met = there - self._met, there
        for digest, saying in self._saying.items() if come else ():
            if held[digest].region == self._bridges.own:
                saying.at = saying.last + self._context.config.reannounce_s
                saying.said = 0

    def _is_missed(self, model: RegionalModel) -> bool:
        """Return whether half of our neighbours, or more, have not said a statement themselves; of our own region's
        also whether half of the bridges to another region have not: newcomers hear there what their region has."""
        sources = self._models.sources_of(model.digest)
        groups: list[Collection[PeerId]] = [frozenset(self._context.engine.neighbours)]
        if model.region == self._bridges.own:
            groups += self._bridges.by_region().values()
        return any(2 * len(sources & set(group)) <= len(group) for group in groups if group)

    # -- other regions' members

    def _greet(self, nursery: trio.Nursery, now: float) -> None:
        """Say hello a heartbeat after the last exchange of hellos, no matter which side began it. An answer says what a
        hello does. Who does not belong beside us is not greeted, and let go where it does not greet us either."""
        config, engine = self._context.config, self._context.engine
        table = self._bridges.table
        if self._hello_at.keys() != table.keys():
            self._hello_at = {peer: at for peer, at in self._hello_at.items() if peer in table}
        kept, among = self._bridges.kept(), len(table)
        for peer, heard_at in list(table.items()):
            greeted = self._bridges.greeted[peer]
            if self._hello_at.get(peer, _NEVER)[0] != greeted:
                self._hello_at[peer] = greeted, greeted + config.heartbeat_s * engine.jitter()
            if len(table) != among:  # one of those before it is gone
                kept, among = self._bridges.kept(), len(table)
            if now > heard_at + config.silence_s:
                engine.fell_silent(peer, now)
                self._context.perform()
            elif peer not in kept:
                self._let_go(peer, now)
            elif now >= self._hello_at[peer][1]:
                self._hello_at[peer] = greeted, now + config.heartbeat_s * engine.jitter()
                nursery.start_soon(say_hello, self._context, peer)

    def _let_go(self, peer: PeerId, now: float) -> None:
        """End a connection that neither side needs: who needs it would have said hello by now, or has never done so."""
        config, greets = self._context.config, peer in self._bridges.greeters
        shortest_s = max(UNNEEDED_HEARTBEATS * config.heartbeat_s, JITTER_MOST * config.heartbeat_s + 2 * LOOK_S)
        patience_s = self._patience.get(peer, shortest_s)
        over = not greets or now > self._bridges.greeted[peer] + patience_s
        if not over or any(source == peer for _, source in self._fetches):
            return
        if greets:
            self._patience[peer] = min(2 * patience_s, max(config.silence_s, shortest_s))
            self._patience.move_to_end(peer)
            if len(self._patience) > MAX_PATIENCES:
                self._patience.popitem(last=False)
        self._context.engine.let_go(peer)
        self._context.perform()
