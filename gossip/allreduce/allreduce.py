"""Reduce-scatter and all-gather among a named, ordered group: each member owns one part of a vector of bytes.

A full mesh of N vectors of M bytes moves N (N - 1) M; here it is 2 (N - 1) M. Every member signs and serves its whole
vector as a blob. The owner of a part pulls only that span of each of the others' (its chunks are named by the blob's
manifest, so each is verified as it comes), reduces them, and signs and serves the result, which all others pull.

A member that does not answer in time costs only its own data. A late member is left out of the parts that others own.
Where the owner of a part is dead or lies about its size, there is no reduced part: the others keep their own values for
it. A part that was reduced and did not come in time can be pulled until the next exchange begins (`reopen`). Others
cannot check what an owner reduced; that bounds a lie to one part, and no better (decision 0017).
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CHUNKS, MAX_GROUP
from gossip.core.statements import Part, Stage
from gossip.core.wire import pack

MIN_GROUP: Final = 2

MAX_EARLY: Final = 4
"""Statements of a peer that are kept for exchanges that we have not begun: two for this one, two for the next."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The members of an exchange in an order that all agree on, the round, the size of a vector in bytes, and that of
    the chunks in which it is shared out."""

    members: tuple[PeerId, ...]
    round: int
    size: int
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if not MIN_GROUP <= len(self.members) <= MAX_GROUP or len(set(self.members)) < len(self.members):
            raise LocalError(f"a group has {MIN_GROUP} to {MAX_GROUP} members, each once")
        if not 0 < self.size <= MAX_BLOB_BYTES:
            raise LocalError(f"a vector has 1 to {MAX_BLOB_BYTES} bytes, not {self.size}")
        if not 0 < self.chunk_bytes <= CHUNK_BYTES or self.size > MAX_CHUNKS * self.chunk_bytes:
            raise LocalError(f"chunks of {self.chunk_bytes} bytes do not fit a vector of {self.size}")

    @property
    def name(self) -> Digest:
        """The digest that members sign, so that statements of groups that differ in anything are not confused."""
        return digest_of(pack((self.round, self.size, self.chunk_bytes, self.members)))

    def span(self, owner: PeerId) -> range:
        """Return the chunks that `owner` reduces: equally many for everyone, give or take one; none where chunks are
        fewer."""
        chunks, place, count = -(-self.size // self.chunk_bytes), self.members.index(owner), len(self.members)
        return range(chunks * place // count, chunks * (place + 1) // count)

    def part(self, owner: PeerId) -> slice:
        """Return the bytes of `span`."""
        span = self.span(owner)
        return slice(span.start * self.chunk_bytes, min(self.size, span.stop * self.chunk_bytes))

    def part_size(self, owner: PeerId) -> int:
        """Return how many bytes `owner` reduces."""
        span = self.span(owner)
        return max(0, min(self.size, span.stop * self.chunk_bytes) - span.start * self.chunk_bytes)


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Pull the chunks `span` of the blob that `part` names."""

    part: Part
    span: range


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """Reduce what came for our own part: bytes by member, in the group's order."""

    vectors: Mapping[PeerId, bytes | memoryview] = field(repr=False)


Work = Pull | Reduce


@dataclass(frozen=True, kw_only=True)
class ReducedPart:
    """The result for one part: `data` replaces the bytes `part` of the vector; None: it did not come in time."""

    owner: PeerId
    part: slice
    data: bytes | None = field(repr=False)


class EarlyMessages:
    """Statements that came before we began: members do not begin at the same moment. Holds the newest few of each peer,
    of as many peers as a group has."""

    def __init__(self) -> None:
        self._kept: OrderedDict[PeerId, deque[Part]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, part: Part) -> None:
        """Keep a statement for a later exchange."""
        self._kept.setdefault(part.peer, deque(maxlen=MAX_EARLY)).append(part)
        self._kept.move_to_end(part.peer)
        if len(self._kept) > MAX_GROUP:
            self._kept.popitem(last=False)

    def take(self, exchange: Digest) -> list[Part]:
        """Return and forget the statements of this exchange."""
        found = [part for parts in self._kept.values() for part in parts if part.exchange == exchange]
        for peer, parts in list(self._kept.items()):
            self._kept[peer] = deque((part for part in parts if part.exchange != exchange), maxlen=MAX_EARLY)
        return found


class _Standing(Enum):
    """The progress of one member's vector or part."""

    AWAITED = "awaited"
    EXCUSED = "excused"
    PULLING = "pulling"
    TAKEN = "taken"
    FAILED = "failed"


class AllReduce:
    """One exchange as one member sees it. `gather_until` and `ends_at` are seconds of the caller's clock."""

    def __init__(self, group: Group, me: PeerId, *, gather_until: float, ends_at: float) -> None:
        """Raises LocalError when we are not in the group."""
        if me not in group.members:
            raise LocalError("we are not of the group")
        self.group = group
        self.name = group.name
        self._me = me
        self._gather_until = min(gather_until, ends_at)
        self._ends_at = ends_at
        place = group.members.index(me)
        # Starts at the member after us, so that not everybody begins with the same one.
        self._others = [*group.members[place + 1 :], *group.members[:place]]
        self._told: dict[tuple[PeerId, Stage], Part] = {}
        self._standing: dict[tuple[PeerId, Stage], _Standing] = {}
        for other in self._others:
            if group.part_size(me):
                self._standing[other, Stage.WHOLE] = _Standing.AWAITED
            if group.part_size(other):
                self._standing[other, Stage.REDUCED] = _Standing.AWAITED
        self._gathered: dict[PeerId, bytes | memoryview] = {}
        self._reducing = False
        self._given: set[PeerId] = set()
        self.reduced: dict[PeerId, bytes] = {}
        """The reduced parts that are here, by owner."""

    def learn(self, part: Part) -> None:
        """Process a member's signed statement. Raises RemoteError also for a statement of another exchange."""
        if part.exchange != self.name or part.peer not in self._others:
            raise RemoteError(Reason.PROTOCOL, "a part of another exchange")
        expected = self.group.size if part.stage is Stage.WHOLE else self.group.part_size(part.peer)
        if part.size != expected:
            self._fail(part.peer, part.stage)
            raise RemoteError(Reason.WRONG_SHAPE, f"a part of {part.size} bytes where {expected} belong")
        known = self._told.setdefault((part.peer, part.stage), part)
        if known.address != part.address:
            self._fail(part.peer, part.stage)
            raise RemoteError(Reason.PROTOCOL, "two parts where there is one")
        self._await(part.peer)

    def work(self, now: float) -> list[Work]:
        """Return what can be begun now, each task once."""
        work: list[Work] = []
        for key, standing in self._standing.items():
            part = self._told.get(key)
            if standing is _Standing.AWAITED and part is not None and now < self.until(part.stage):
                self._standing[key] = _Standing.PULLING
                work.append(Pull(part=part, span=self._span_of(part)))
        if self._may_reduce(now):
            self._reducing = True
            work.append(Reduce(vectors=dict(self._gathered)))
        return work

    def give_up(self, members: Collection[PeerId]) -> None:
        """Wait no longer for members that have announced nothing of this exchange: they have said that they are paused.
        What they announce after all is pulled while there is time."""
        taking_part = {peer for peer, _ in self._told}
        for key, standing in self._standing.items():
            if standing is _Standing.AWAITED and key[0] in members and key[0] not in taking_part:
                self._standing[key] = _Standing.EXCUSED

    def take_own(self, data: bytes | memoryview) -> None:
        """Set our own vector's values of our part; they are reduced with the others'."""
        self._gathered[self._me] = data

    def pulled(self, pull: Pull, data: bytes) -> None:
        """Note that a pull brought what was announced. A late one changes nothing."""
        peer, stage = pull.part.peer, pull.part.stage
        if self._standing[peer, stage] is not _Standing.PULLING:
            return
        self._standing[peer, stage] = _Standing.TAKEN
        if stage is Stage.REDUCED:
            self.reduced[peer] = data
        elif not self._reducing:
            self._gathered[peer] = data
            self._gathered = {
                member: self._gathered[member] for member in self.group.members if member in self._gathered
            }

    def failed(self, pull: Pull, *, again: bool) -> None:
        """Note that a pull failed; it is tried once more if `again`: when the network failed, and not the peer."""
        key = pull.part.peer, pull.part.stage
        if self._standing[key] is _Standing.PULLING:
            self._standing[key] = _Standing.AWAITED if again else _Standing.FAILED

    def own_reduced(self, data: bytes) -> None:
        """Set our own reduced part. Raises LocalError when it does not have the size that others expect."""
        expected = self.group.part_size(self._me)
        if len(data) != expected:
            raise LocalError(f"a part was reduced to {len(data)} bytes, and others expect {expected}")
        self.reduced[self._me] = data
        self._gathered.clear()

    def until(self, stage: Stage) -> float:
        """Return until when a pull of this stage is of use: a vector that comes later is not reduced any more."""
        return self._gather_until if stage is Stage.WHOLE else self._ends_at

    def deadline(self, now: float) -> float:
        """Return when `work` or `done` may change without any event."""
        return self._gather_until if now < self._gather_until and not self._reducing else self._ends_at

    def done(self, now: float) -> bool:
        """Return whether nothing more is to come, or time is up."""
        open_ones = any(
            standing in (_Standing.AWAITED, _Standing.PULLING)
            for (_, stage), standing in self._standing.items()
            if stage is Stage.REDUCED
        )
        own = self._me in self.reduced or not self.group.part_size(self._me)
        return now >= self._ends_at or (own and not open_ones)

    def let_go(self) -> None:
        """Forget what came, and not that it did: it has been returned."""
        self._given |= self.reduced.keys()
        self.reduced.clear()
        self._gathered.clear()

    def reopen(self, ends_at: float) -> None:
        """Pull until `ends_at` what was reduced and has not come: the exchange is over for all else."""
        self._ends_at, self._reducing = ends_at, True
        for key, standing in self._standing.items():
            if key[1] is Stage.WHOLE:
                self._standing[key] = _Standing.FAILED
            elif standing is _Standing.PULLING:
                self._standing[key] = _Standing.AWAITED

    @property
    def incomplete(self) -> bool:
        """Whether a reduced part has not come."""
        there = self.reduced.keys() | self._given
        return any(stage is Stage.REDUCED and owner not in there for owner, stage in self._standing)

    def may_come(self, now: float) -> bool:
        """Return whether a reduced part is being pulled, or was announced and can be."""
        return now < self._ends_at and any(
            standing is _Standing.PULLING or (standing is _Standing.AWAITED and key in self._told)
            for key, standing in self._standing.items()
            if key[1] is Stage.REDUCED
        )

    def result(self) -> list[ReducedPart]:
        """Return every part that is not empty, in the order of the vector."""
        owners = [owner for owner in self.group.members if self.group.part_size(owner)]
        return [ReducedPart(owner=owner, part=self.group.part(owner), data=self.reduced.get(owner)) for owner in owners]

    def _may_reduce(self, now: float) -> bool:
        if self._reducing or not self.group.part_size(self._me):
            return False
        waiting = any(
            standing in (_Standing.AWAITED, _Standing.PULLING)
            for (_, stage), standing in self._standing.items()
            if stage is Stage.WHOLE
        )
        return not waiting or now >= self._gather_until

    def _span_of(self, part: Part) -> range:
        if part.stage is Stage.WHOLE:
            return self.group.span(self._me)
        return range(len(self.group.span(part.peer)))

    def _await(self, peer: PeerId) -> None:
        """Wait again for a member that takes part after all: for its vector, unless we have reduced without it."""
        for stage in (Stage.REDUCED,) if self._reducing else Stage:
            if self._standing.get((peer, stage)) is _Standing.EXCUSED:
                self._standing[peer, stage] = _Standing.AWAITED

    def _fail(self, peer: PeerId, stage: Stage) -> None:
        if self._standing.get((peer, stage)) in (_Standing.AWAITED, _Standing.PULLING, _Standing.EXCUSED):
            self._standing[peer, stage] = _Standing.FAILED
