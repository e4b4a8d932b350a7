"""Members of a secure sum on a clock of their own: every statement, pull and computation in an order that a seed draws.

The honest ones are the real state machine, with real keys, shares, masks and signatures; only the wire and the disk
are left out. A member may leave at a stage, having told some of the others what it says there, and may lie: what it
tells is changed, for each that it tells, before it is signed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import swarm_id_of
from gossip.core.envelope import Scope, Statement, open_envelope, seal
from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId, RunId
from gossip.core.secure_statements import OpenedBody, SecureStage, SecureStatement, parse_secure
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum, SecureSumError, Values
from gossip.secure_aggregation.secure_sum import (
    FORWARDED,
    Compute,
    Forward,
    PullPart,
    Say,
    SecureSumming,
    Serve,
)

SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RunId(b"r" * 16))
GATHER_S, TIMEOUT_S = 8.0, 16.0

Lie = Callable[[Statement, int, random.Random], Sequence[Statement]]
"""What a liar tells a member instead of a statement: the statement, whom, randomness."""


@cache
def key(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def group_of(members: int, *, round: int = 1, count: int = 67, bits: int = 12, **sizes: int) -> SecureGroup:
    """Parts of eight values or sixteen, so that all members own one."""
    peers = tuple(key(number + 1).peer_id for number in range(members))
    width = bits * max(1, count // (8 * members))
    return SecureGroup(members=peers, round=round, count=count, bits=bits, chunk_bytes=width, **sizes)


def inputs_of(group: SecureGroup, seed: int = 0) -> list[Values]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 1 << group.bits, group.count, dtype=np.uint32) for _ in group.members]


def summed(inputs: Sequence[Values], places: Sequence[int], bits: int) -> Values:
    """Of these members' vectors, in Python's integers."""
    total = sum(inputs[place].astype(object) for place in places) % (1 << bits)
    return np.array(total, dtype=np.uint32)


@dataclass
class Outcome:
    """What became of a member."""

    result: SecureSum | None = None
    failure: str = ""
    ended_at: float = 0.0
    charged: list[tuple[int, RemoteError]] = field(default_factory=list)


class Sum:
    """One secure sum of `inputs`. `leaves`: the stage at which a member leaves, having told what it says there to some
    of the others; `lies`: what liars tell. `frames`: all that was sent: by whom, and the bytes."""

    def __init__(
        self,
        group: SecureGroup,
        inputs: Sequence[Values],
        seed: int = 0,
        *,
        leaves: Mapping[int, SecureStage] = {},
        lies: Mapping[int, Lie] = {},
        tells_all: bool = False,
    ) -> None:
        self.group, self.inputs, self.lies = group, inputs, lies
        self.rng = random.Random(seed)
        self.now = 0.0
        self.leaves, self._tells_all = leaves, tells_all
        self.gone: set[int] = set()
        self.blobs: dict[tuple[int, Digest], bytes] = {}
        self.frames: list[tuple[int, bytes]] = []
        self.opened: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        """By honest holder and dealer, of which secrets it told its share."""
        self.signed: dict[tuple[int, SecureStage, int], set[Digest]] = defaultdict(set)
        self._events: list[tuple[int, Callable[[], None]]] = []
        """What may happen next, and to whom."""
        self.members = {
            place: SecureSumming(
                group,
                peer,
                inputs[place],
                began=0.0,
                gather_until=GATHER_S,
                ends_at=TIMEOUT_S,
                entropy=self.rng.randbytes,
            )
            for place, peer in enumerate(group.members)
        }
        self.outcomes = {place: Outcome() for place in self.members}
        self.on_step: Callable[[], None] = lambda: None

    # -- what happens

    def play(self) -> dict[int, Outcome]:
        """Let all happen until nobody waits for anything; return what became of the members that stayed."""
        running = set(self.members)
        touched = list(self.members)
        while running:
            for place in touched:
                if place in running:
                    self._give_out(place)
                if place in self.gone or self._is_done(place):
                    running.discard(place)
            self.on_step()
            if self._events:
                place, event = self._events.pop(self.rng.randrange(len(self._events)))
                event()
                touched = [place]
            elif running:
                self.now = min(self.members[place].deadline(self.now) for place in running)
                touched = sorted(running)
        return {place: it for place, it in self.outcomes.items() if place not in self.gone}

    def _is_done(self, place: int) -> bool:
        member = self.members[place]
        if not member.done(self.now):
            return False
        it = self.outcomes[place]
        it.ended_at = self.now
        try:
            it.result = member.result()
        except SecureSumError as error:
            it.failure = str(error)
        return True

    def _give_out(self, place: int) -> None:
        member = self.members[place]
        while place not in self.gone and (work := member.work(self.now)):
            for each in work:
                match each:
                    case Say(statement=statement):
                        self._say(place, statement)
                    case Forward(peer=peer, raw=raw):
                        self._send(place, self.group.members.index(peer), raw)
                    case Compute(run=run, done=done):
                        self._events.append((place, partial(self._unless_gone, place, run, done)))
                    case Serve():
                        self._events.append((place, partial(self._serve, place, each)))
                    case PullPart():
                        self._events.append((place, partial(self._pull, place, each)))
            self._charge(place)
        self._charge(place)

    def _charge(self, place: int) -> None:
        offences = self.members[place].offences
        self.outcomes[place].charged += [(self.group.members.index(peer), error) for peer, error in offences]
        offences.clear()

    def _unless_gone(self, place: int, run: Callable[[], object], done: Callable[..., None]) -> None:
        if place not in self.gone:
            done(run())

    def _say(self, place: int, statement: Statement) -> None:
        own = parse_secure(seal(key(place + 1), SCOPE, statement))
        self.members[place].learn_own(own)
        others = [other for other in self.members if other != place]
        if self.leaves.get(place) is own.stage:
            told = len(others) if self._tells_all else self.rng.randrange(len(others))
            others = self.rng.sample(others, told)
            self.gone.add(place)
        for other in others:
            lie = self.lies.get(place)
            for each in [statement] if lie is None else lie(statement, other, self.rng):
                envelope = seal(key(place + 1), SCOPE, each)
                if lie is None:
                    self._note(place, parse_secure(envelope))
                self._send(place, other, envelope.raw)

    def _note(self, place: int, statement: SecureStatement) -> None:
        self.signed[place, *statement.place].add(statement.digest)
        if isinstance(statement.body, OpenedBody):
            for dealer in statement.body.seeds:
                self.opened[place][dealer].add("seed")
            for dealer in statement.body.keys:
                self.opened[place][dealer].add("key")
            if statement.body.seed:
                self.opened[place][place].add("seed")

    def _send(self, sender: int, to: int, raw: bytes) -> None:
        self.frames.append((sender, raw))
        self._events.append((to, partial(self.deliver, sender, to, raw)))

    def deliver(self, sender: int, to: int, raw: bytes) -> None:
        """Let a member have a frame, as the service does."""
        if to in self.gone:
            return
        try:
            statement = parse_secure(open_envelope(raw, SCOPE))
            own = statement.peer == self.group.members[to]
            by_sender = statement.peer == self.group.members[sender]
            if not own and (by_sender or statement.stage in FORWARDED):
                self.members[to].learn(statement)
        except RemoteError as error:
            self.outcomes[to].charged.append((sender, error))
        self._charge(to)

    def _serve(self, place: int, work: Serve) -> None:
        if place not in self.gone:
            data = work.run()
            address = blob_manifest_of(data, self.group.parts.chunk_bytes).address
            self.blobs[place, address] = data
            work.done(address, data)

    def _pull(self, place: int, work: PullPart) -> None:
        source = self.group.members.index(work.peer)
        data = None if source in self.gone else self.blobs.get((source, work.address))
        if place in self.gone:
            return
        if data is None:
            self.members[place].failed(work, again=False)
            return
        width = self.group.parts.chunk_bytes
        span = data if work.span is None else data[work.span.start * width : work.span.stop * width]
        self.frames.append((source, span))
        self.members[place].pulled(work, span)


def check(played: Sum, outcomes: Mapping[int, Outcome], *, exact: bool = True) -> None:
    """What must hold whatever some do: of those who neither lie nor leave."""
    honest = {place: it for place, it in outcomes.items() if place not in played.lies}
    bits = played.group.bits
    for place, it in honest.items():
        assert it.ended_at <= TIMEOUT_S
        assert (it.result is None) == bool(it.failure)
        assert {other for other, _ in it.charged} <= played.lies.keys(), (place, it.charged)
        if it.result is not None and exact:
            places = [played.group.members.index(peer) for peer in it.result.survivors]
            assert len(places) >= played.group.threshold
            total = summed(played.inputs, places, bits)
            for part in it.result.parts:
                assert part.values is None or np.array_equal(part.values, total[part.part]), (place, part.owner)
    check_told(played)
    results = [it.result for it in honest.values() if it.result is not None]
    assert len({(it.survivors, it.seeds) for it in results}) <= 1


def check_told(played: Sum) -> None:
    """Of no member are both secrets told, and no honest one signed two statements of one kind."""
    told: dict[int, set[str]] = defaultdict(set)
    for holder, dealers in played.opened.items():
        if holder not in played.lies:
            for dealer, kinds in dealers.items():
                told[dealer] |= kinds
    assert all(len(kinds) == 1 for kinds in told.values()), dict(told)
    assert all(len(digests) == 1 for digests in played.signed.values())


def nothing_opened(played: Sum) -> bool:
    """Whether no share left any honest member."""
    return not any(dealers for holder, dealers in played.opened.items() if holder not in played.lies)


def peers_of(group: SecureGroup, places: Sequence[int]) -> tuple[PeerId, ...]:
    return tuple(group.members[place] for place in sorted(places))
