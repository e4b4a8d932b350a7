"""The models of our region and of those beside it: what was announced, what is here, and what to fetch next from whom.

Some members of a region publish its model after a round, drawn by lot (region_draw.py). A model is announced by a
signed statement, and the statement travels with the blob: a member passes it on once it has the blob. So a member that
one hears it from has it, and no message says who has what. Between regions bytes are dear: of one region's members one
fetches a blob from another region, drawn by the blob's address, and the next one only where none has come meanwhile.

What is believed. A round counts once 2 f + 1 of its models are here, or as many as a smaller region allows, and the
runtime takes a robust mean of them: f liars among those drawn do not steer it. 3 f + 1 publish, so that f that are
silent do not stop it. Each author has one model a round; two are two histories. A claim of a far round is one author's,
and makes no round. Who is drawn is not checked, since everyone knows other members: of many models those count that
were drawn first, and before them all of members that were reached at an address, so that a made-up key comes last.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, KeysView
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from gossip.core.envelope import Scope
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import KIB, MIB
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import RegionalModel
from gossip.discovery.peerstore import RecordTrust
from gossip.regions.bridges import Bridges
from gossip.regions.region_draw import in_draw, rank_to_fetch
from gossip.updates.publisher import Payload

BELIEVED: Final = 2
"""Times as many models as are published are held of a round: members who know others draw a little differently."""

HELD_ROUNDS: Final = 4
"""Models held of a region, in those that publish in a round: one round that is whole, one that comes, and as many for
claims of rounds that never come."""

OF_AUTHOR: Final = 2
"""Models held of one author: the one that is used, and the next."""

MAX_SOURCES: Final = 24
"""Peers that are remembered as having a blob: all neighbours and bridges of a usual node."""

NEXT_S: Final = 2.0
NEXT_BYTES_PER_S: Final = 512 * KIB
"""What the next member of a region gives the one before it to fetch a blob from another region: a round trip and a
half of a slow link, and the blob at 4 Mbit/s, over which regions of home links are joined. Chosen."""

TWO_SOURCES: Final = 2
"""Sources of one blob at a time: one that sends as slowly as it may must not keep it from us."""

AGAIN_S: Final = 5.0
"""Seconds until a source that failed is asked again."""

SETTLED_S: Final = 120.0
"""Seconds from our start in which a region is not taken for one of few members: most records have come by then. Before
that one liar's model would be a whole region's. Chosen."""

FETCHES_BURST: Final = 8
FETCHES_PER_S: Final = 1.0
LEAST_COST: Final = 0.25
"""Models of one author that are fetched: a mebibyte counts as one, beside `LEAST_COST` for each model, and none as more
than the whole burst. An honest author publishes one every `sync.region_every` rounds, which the smallest models on one
machine close in half a second; and each is carried to every member of several regions. Chosen."""

MAX_CONTRADICTED: Final = 256
"""Contradicting authors and rounds that are remembered: both statements are refused from then on."""

OUTDATED_S: Final = 600.0
"""Seconds after which another region's newest round gives way to an earlier one, where its connected members say that
they are before it: a region that went on from a checkpoint counts its rounds from there. Without their word anybody
could say its old statements again, and take us back to what it was."""


class RegionalVerdict(Enum):
    """What a statement turned out to be."""

    NEWS = auto()
    KNOWN = auto()
    ELSEWHERE = auto()
    """Of a region that is not beside ours or that nothing leaves, or of an author that is not known to be of it."""
    OLD = auto()
    CONTRADICTION = auto()
    """Its author has stated another model for the same round."""


@dataclass(eq=False)
class Announced:
    """A model that was announced. `sources`: who has its blob, and from when on (seconds, monotonic) each may be
    asked."""

    model: RegionalModel
    heard_at: float
    sources: dict[PeerId, float] = field(default_factory=dict)
    payload: Payload | None = None
    refused: bool = False
    fetches: dict[PeerId, float] = field(default_factory=dict)
    """From whom it is being fetched, and since when."""
    held: bool = False
    """Whether it still counts: it was not replaced, nor its author banned."""
    said_by: set[PeerId] = field(default_factory=set)
    """Who has said it, and has been connected ever since."""
    repeated: bool = False
    """Whether we have said it before, and say it again."""
    ranked: tuple[frozenset[PeerId], int] | None = None
    """Among which members of our region, and how many of them are to fetch it before us."""


class RegionalModels:
    """The table of one node. `f`: how many liars there may be among the members of a region. `standing`: how far a
    member's record is trusted."""

    def __init__(
        self, me: PeerId, scope: Scope, bridges: Bridges, f: int, standing: Callable[[PeerId], RecordTrust]
    ) -> None:
        self._standing = standing
        self._contradicted: OrderedDict[tuple[PeerId, int], None] = OrderedDict()
        self._pace = KeyedTokenBucket(burst=FETCHES_BURST, per_s=FETCHES_PER_S)
        self._begun: float | None = None
        self._now = 0.0
        self._me = me
        self._scope = scope
        self._bridges = bridges
        self._f = f
        self._by_region: dict[str, list[Announced]] = {}
        self._by_name: dict[Digest, Announced] = {}
        """By the digest of the whole statement, as broadcasts are named."""
        self._awaited: dict[Digest, Announced] = {}
        """Those of which nothing is here, by the same name."""
        self.changes = 0
        """How often it has changed which models are held, or are here."""
        self._whole: dict[str, tuple[int, float]] = {}
        """The newest round of each region that was whole, and when it became so."""
        self._withstood: dict[str, int] = {}
        """How many liars a region's models have withstood in a round: later ones withstand no fewer."""

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def publishers(self) -> int:
        """How many members publish a region's model in a round."""
        return 3 * self._f + 1

    def publishes(self, round: int, paused: Collection[PeerId] = ()) -> bool:
        """Return whether we are drawn to publish our region's model after a round: another region is beside ours, and
        models pass one way or the other. `paused`: neighbours that say that they are, and close no round; at night most
        of a region may be. Who lies about it has others publish, and may publish all the same."""
        drawn = in_draw(self._scope, self._bridges.own, round, self._bridges.met().difference(paused))
        return self._bridges.publishes and self._me in drawn[: self.publishers]

    def needed(self, region: str) -> int:
        """Return how many models make a round of this region whole: 2 f + 1 with the f that its members allow, and no
        smaller one than was held before. While a region is cut off its members do not answer, and one of them that
        lies, and has another way here, would be all of it."""
        if self._begun is None or self._now < self._begun + SETTLED_S:
            return 2 * self._f + 1
        allowed = min(self._f, (max(1, len(self._bridges.members_of(region))) - 1) // 2)
        return 2 * max(allowed, self._withstood.get(region, 0)) + 1

    def look(self, now: float) -> None:
        """Note the time."""
        self._begun, self._now = now if self._begun is None else self._begun, now

    # -- statements

    def has_it(self, name: Digest, peer: PeerId) -> bool:
        """Note that a peer has passed on a statement that is known, and so has the blob; return whether it is known."""
        announced = self._by_name.get(name)
        if announced is not None and len(announced.sources) < MAX_SOURCES:
            announced.sources.setdefault(peer, announced.heard_at)
        if announced is not None and len(announced.said_by) < MAX_SOURCES:
            announced.said_by.add(peer)
        return announced is not None

    def is_awaited(self, name: Digest) -> bool:
        """Return whether the model of a statement that is known is still to be fetched."""
        announced = self._awaited.get(name)
        return announced is not None and not announced.refused

    def region_of(self, name: Digest) -> str | None:
        """Return the region whose model a statement announces, by the digest of the whole statement; None where it is
        not known."""
        announced = self._by_name.get(name)
        return None if announced is None else announced.model.region

    def have_heard(self, name: Digest) -> frozenset[PeerId]:
        """Return who has no use for a statement that is said again: those that have said it, and so have its blob. They
        have heard us say it once, most of them. Nobody, where it is said for the first time."""
        announced = self._by_name.get(name)
        return frozenset(announced.said_by) if announced is not None and announced.repeated else frozenset()

    def lose(self, peer: PeerId) -> None:
        """Note that a connection is lost: when the peer is back, it may be another process, which has nothing."""
        for announced in self._by_name.values():
            announced.said_by.discard(peer)

    def say_again(self, statement: Digest) -> None:
        """Note that a statement, named by the digest of its model, is said again from now on."""
        for announced in self._by_name.values():
            announced.repeated = announced.repeated or announced.model.digest == statement

    def sources_of(self, statement: Digest) -> KeysView[PeerId]:
        """Return who has said a statement, named by the digest of its model."""
        announced = next((it for it in self._by_name.values() if it.model.digest == statement), None)
        return KeysView({}) if announced is None else announced.sources.keys()

    def hear(self, name: Digest, model: RegionalModel, forwarder: PeerId, now: float) -> tuple[RegionalVerdict, bytes]:
        """Take in a validly signed statement that is not known yet. Return what it is, and where it contradicts
        another the bytes of that."""
        self.look(now)
        if (model.peer, model.round) in self._contradicted:
            return RegionalVerdict.OLD, b""
        there = self._by_region.get(model.region, [])
        same = next((it for it in there if it.model.peer == model.peer and it.model.round == model.round), None)
        if same is not None and same.model.digest != model.digest:
            self._forget(same)
            self._contradicted[model.peer, model.round] = None
            while len(self._contradicted) > MAX_CONTRADICTED:
                self._contradicted.popitem(last=False)
            return RegionalVerdict.CONTRADICTION, same.model.raw
        if same is not None:
            return RegionalVerdict.KNOWN, b""
        if model.region != self._bridges.own and model.region not in self._bridges.heard_regions:
            return RegionalVerdict.ELSEWHERE, b""
        if self._is_old(model, now) or not self._pace.take(model.peer, now, _cost(model)):
            return RegionalVerdict.OLD, b""
        self._add(name, Announced(model, now, {forwarder: now}, said_by={forwarder}))
        return RegionalVerdict.NEWS, b""

    def add_own(self, name: Digest, model: RegionalModel, payload: Payload, now: float) -> None:
        """Hold a model that we publish."""
        announced = Announced(model, now, payload=payload)
        self._add(name, announced)
        self._look(announced, now)

    def announced_round(self, region: str) -> int | None:
        """Return the newest round of which as many authors have announced models of a region as make it whole, whether
        these are here or not; None where there is none."""
        there = self._by_region.get(region, [])
        authors = Counter(it.model.round for it in there if not it.refused)
        return max((round for round, count in authors.items() if count >= self.needed(region)), default=None)

    # -- blobs

    def next_fetches(self, now: float, there: Container[PeerId]) -> list[tuple[Announced, PeerId]]:
        """Return what to fetch now, each from a peer that is `there`: where a source takes longer than it may, from a
        second one as well. One model of an author at a time, for it may be that only liars have its blob, and its
        newest first: after a time apart nobody has an earlier one any more."""
        self.look(now)
        found: list[tuple[Announced, PeerId]] = []
        awaited = [it for it in self._awaited.values() if not it.refused and self._may_begin(it, now)]
        busy = {it.model.peer: it for it in self._by_name.values() if it.fetches} if awaited else {}
        for announced in sorted(awaited, key=lambda it: it.model.round, reverse=True):
            if busy.get(announced.model.peer, announced) is announced:
                ready = [peer for peer, at in self._ready(announced) if at <= now and peer in there]
                ready = [peer for peer in ready if peer not in announced.fetches]
                found += [(announced, peer) for peer in ready[:1]]
                if ready:
                    busy[announced.model.peer] = announced
        return found

    def next_at(self, now: float) -> float:
        """Return when something may be fetched that may not be yet (seconds, monotonic); infinite where nothing is
        awaited."""
        waits = (it for it in self._awaited.values() if not it.fetches)
        return min((at for it in waits for _, at in self._ready(it) if at > now), default=float("inf"))

    def fetched(self, announced: Announced, payload: Payload, now: float) -> None:
        """Note that a blob is here."""
        announced.payload = payload
        self._note(announced)
        self._look(announced, now)

    def failed(self, announced: Announced, source: PeerId, now: float, *, lied: bool) -> None:
        """Note that a source did not give a blob; one that `lied` is not asked again."""
        if lied:
            announced.sources.pop(source, None)
        else:
            announced.sources[source] = now + AGAIN_S

    def refuse(self, peer: PeerId, region: str, round: int) -> None:
        """Drop a model that the runtime could not read: it counts no more."""
        for announced in self._by_region.get(region, []):
            if announced.model.peer == peer and announced.model.round == round:
                announced.refused, announced.payload = True, None
                self._note(announced)

    def announced(self) -> list[Announced]:
        """Return all models that were announced and may still count."""
        return list(self._by_name.values())

    def awaits(self, address: Digest, size: int) -> bool:
        """Return whether a blob of this address and size is still to come."""
        named = (it for it in self._by_name.values() if (it.model.address, it.model.size) == (address, size))
        return any(it.payload is None for it in named)

    def drop(self, announced: Announced) -> None:
        """Drop a model whose author has lied about it."""
        self._forget(announced)

    def whole(self) -> list[Announced]:
        """Return the models that are here, of all regions."""
        return [it for it in self._by_name.values() if it.payload is not None]

    def newest_round(self, region: str) -> list[Announced]:
        """Return the models of a region's newest round that is whole, of as many members as publish; empty where there
        is none."""
        here = [it for it in self._by_region.get(region, []) if it.payload is not None]
        for round in sorted({it.model.round for it in here}, reverse=True):
            found = [it for it in self._in_order(here, region, round) if it.model.round == round]
            if len(found) >= self.needed(region):
                return found[: self.publishers]
        return []

    def forget(self, peer: PeerId) -> None:
        """Drop what a banned or former member published."""
        for announced in [it for it in self._by_name.values() if it.model.peer == peer]:
            self._forget(announced)

    # -- insides

    def _is_old(self, model: RegionalModel, now: float) -> bool:
        """Whether a model is of an earlier round than one that was whole, and its region has not gone back to that."""
        round, at = self._whole.get(model.region, (-1, now))
        if model.round >= round or now < at + OUTDATED_S:
            return model.round < round
        said = self._bridges.said_rounds.get(model.region)
        return said is None or said >= round

    def _may_begin(self, announced: Announced, now: float) -> bool:
        began = announced.fetches.values()
        return len(began) < TWO_SOURCES and all(now >= at + _patience(announced.model) for at in began)

    def _ready(self, announced: Announced) -> Iterable[tuple[PeerId, float]]:
        """The sources with the time from which on each may be asked; those of our own region first."""
        model, bridges = announced.model, self._bridges
        ours = [(peer, at) for peer, at in announced.sources.items() if bridges.is_ours(peer)]
        if model.region == bridges.own:  # other regions have it as well, and say so; it need not come back from there
            return ours
        others = [(peer, at) for peer, at in announced.sources.items() if not bridges.is_ours(peer)]
        if not others:
            return ours
        due = announced.heard_at + self._rank(announced) * _patience(model)
        return [*ours, *((peer, max(at, due)) for peer, at in others)]

    def _rank(self, announced: Announced) -> int:
        met = self._bridges.met()
        if announced.ranked is None or announced.ranked[0] is not met:
            announced.ranked = met, rank_to_fetch(announced.model.address, self._me, met)
        return announced.ranked[1]

    def _in_order(self, announced: list[Announced], region: str, round: int) -> list[Announced]:
        """Members that are trusted most first, and of those as they are drawn: made-up keys come last."""
        places = {peer: at for at, peer in enumerate(in_draw(self._scope, region, round, _authors(announced)))}
        return sorted(announced, key=lambda it: (-self._trust(it), places[it.model.peer]))

    def _trust(self, announced: Announced) -> int:
        peer = announced.model.peer
        return RecordTrust.VERIFIED if peer == self._me else self._standing(peer)

    def _add(self, name: Digest, announced: Announced) -> None:
        region = announced.model.region
        there = self._by_region.setdefault(region, [])
        there.append(announced)
        announced.held = True
        self._by_name[name] = announced
        self._note(announced)
        of_author = [it for it in there if it.model.peer == announced.model.peer]
        for surplus in of_author[:-OF_AUTHOR]:  # or one that claims far rounds would leave the others no room
            self._forget(surplus)
        of_round = [it for it in there if it.model.round == announced.model.round]
        for surplus in self._in_order(of_round, region, announced.model.round)[BELIEVED * self.publishers :]:
            self._forget(surplus)
        while len(there) > HELD_ROUNDS * self.publishers:
            self._forget(min(there, key=lambda it: (self._trust(it), it.model.round, -it.heard_at)))

    def _look(self, announced: Announced, now: float) -> None:
        """Let go of earlier rounds where one has become whole."""
        region = announced.model.region
        newest = self.newest_round(region)
        withstood = min(self._f, (len(newest) - 1) // 2)
        self._withstood[region] = max(self._withstood.get(region, 0), withstood)
        if len(newest) > 2 * self._f and self._whole.get(region, (-1, 0.0))[0] != newest[0].model.round:
            self._whole[region] = newest[0].model.round, now
            for earlier in [it for it in self._by_region[region] if it.model.round < newest[0].model.round]:
                self._forget(earlier)

    def holds(self, announced: Announced) -> bool:
        """Return whether a model still counts: it was not replaced, nor its author banned."""
        return announced.held

    def patience(self, model: RegionalModel) -> float:
        """Return the seconds that a source has for a model's blob before another one is asked as well."""
        return _patience(model)

    def _forget(self, announced: Announced) -> None:
        there = self._by_region.get(announced.model.region, [])
        if announced in there:
            there.remove(announced)
        for name in [name for name, it in self._by_name.items() if it is announced]:
            del self._by_name[name]
            self._awaited.pop(name, None)
        announced.held = False
        self.changes += 1

    def _note(self, announced: Announced) -> None:
        """Note that a model is held, has come or was refused."""
        names = [name for name, it in self._by_name.items() if it is announced]
        for name in names:
            if announced.payload is None:
                self._awaited[name] = announced
            else:
                self._awaited.pop(name, None)
        self.changes += 1


def _patience(model: RegionalModel) -> float:
    """Return the seconds that a member, or a source, has for a model's blob before the next one."""
    return NEXT_S + model.size / NEXT_BYTES_PER_S


def _cost(model: RegionalModel) -> float:
    return min(float(FETCHES_BURST), LEAST_COST + model.size / MIB)


def _authors(announced: list[Announced]) -> set[PeerId]:
    return {it.model.peer for it in announced}
