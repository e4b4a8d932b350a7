"""After how many rounds one who signs two histories is found out: the rule alone, in swarms of any size.

The nodes are what decides what they pass on and what they compare (gossip/updates/audits.py), on the graph of a swarm
that has settled, each believing in as many members as its places on the rings say. A link takes no time, and none is
lost. A round is one link of the liar's. All others' are left out: they decide nothing here.
"""

import random
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Final

from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import Envelope, Scope, seal
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId, RunId, SwarmId
from gossip.core.statements import UpdateHeader, UpdateHeaderBody, update_header_statement
from gossip.updates.audits import HeardLink, LinkAudit, audit_every, goes_all_the_way
from node.simulation.large.ring_graph import RingGraph

ROUND_S: Final = 30.0
LIAR: Final = 0
SIGNER: Final = Identity(bytes(32))
"""Signs for it. Its links are real, as a node reads again what it has kept of one."""
AWAY_ROUNDS: Final = 40
"""Rounds for which a liar stays away that leaves."""


class Lie(StrEnum):
    """How a liar tells two histories."""

    HALVES = "halves"
    """One half of its neighbours hears the one, the other half the other, for good."""
    ONE = "one"
    """A single neighbour hears another one, for good."""
    ANEW = "anew"
    """Halves, and it begins its chain anew before each link that goes all the way."""
    LEAVES = "leaves"
    """Halves until it leaves before a link goes all the way. It is back with a new chain and other neighbours, and
    tells no lie again."""
    BEHIND = "behind"
    """A single neighbour hears another one, and nothing more from two links before one goes all the way."""


@dataclass
class Found:
    """In which round after the first lie, counted from 1: `first`: somebody had a proof; `all`: all neighbours of the
    liar's had one. None: not within the rounds that were played."""

    first: int | None = None
    all: int | None = None


@dataclass
class _Node:
    members: int
    audit: LinkAudit = field(default_factory=LinkAudit)
    seen: set[Digest] = field(default_factory=set)
    found: bool = False


@dataclass(frozen=True)
class _Turn:
    """What a round's link is: the same for all until `fork`, and one of two histories from there on."""

    epoch: int
    seq: int
    fork: int
    silent: bool = False
    """Whether those who hear the other history hear nothing."""


class EquivocationModel:
    """A swarm of so many nodes, of whom one lies. `compares`: whether nodes compare links of members that they do not
    follow, and show where chains that end had come to. `every`: k, where it is not what the rule says."""

    def __init__(
        self, nodes: int, seed: int, *, degree: int = 8, compares: bool = True, every: int | None = None
    ) -> None:
        self._rng = random.Random(f"{nodes} {seed}")
        self._names = [PeerId(f"node {seed} {number}") for number in range(nodes)]
        self._scope = Scope(swarm=SwarmId(self._rng.randbytes(16)), run=RunId(bytes(16)))
        graph = RingGraph(self._names, self._scope, degree)
        self._compares = compares
        self._beside = {node: set(others) for node, others in graph.draw(range(nodes), self._rng).items()}
        if every is None:
            self._members, sizes = nodes, graph.believed(range(nodes))
        else:
            self._members = next(size for size in count(1) if audit_every(size) == every)
            sizes = dict.fromkeys(range(nodes), self._members)
        self._nodes = [_Node(sizes[number]) for number in range(nodes)]
        self._statements: dict[tuple[int, int, str], Envelope] = {}
        self._told: dict[Digest, UpdateHeader] = {}
        """The liar's links, by digest: nodes that show one keep less of it."""

    def play(self, lie: Lie, rounds: int) -> Found:
        """Play so many rounds from the first lie on."""
        found, neighbours = Found(), sorted(self._beside[LIAR])
        misled = set(neighbours[:1] if lie in (Lie.ONE, Lie.BEHIND) else neighbours[::2])
        first = self._rng.randrange(1, 1 + audit_every(self._members))  # anywhere between two that go all the way
        for number, turn in zip(range(first + rounds), self._turns(lie, first), strict=False):
            if turn is None:
                if lie is Lie.LEAVES and self._turns_away == 1:
                    self._move()
                continue
            beside = self._beside[LIAR]
            told = [(beside - misled, "one"), (beside & misled, "other")]
            for group, history in told[: 1 if turn.silent else 2]:
                self._spread(self._link(turn, history), group, ROUND_S * number)
            if found.first is None and any(node.found for node in self._nodes):
                found.first = number - first + 1
            if found.first is not None and all(self._nodes[node].found for node in beside):
                found.all = number - first + 1
                break
        return found

    # -- the liar

    def _turns(self, lie: Lie, first: int) -> Iterator[_Turn | None]:
        """Yield its links, round by round; None while it is away."""
        epoch, fork, begun, self._turns_away = 1, first, 0, 0
        for number in count():
            seq = number - begun
            lied = seq > fork  # at least once
            if lie is Lie.ANEW and lied and self._audited(seq):
                epoch, begun, fork, seq = epoch + 1, number, 1, 0
            if lie is Lie.LEAVES and epoch == 1 and lied and self._audited(seq):
                for self._turns_away in range(1, AWAY_ROUNDS + 1):
                    yield None
                epoch, begun = 2, number
                break
            silent = lie is Lie.BEHIND and lied and self._audit_within(seq, 3)
            yield _Turn(epoch, seq, fork, silent)
            if silent and self._audited(seq + 1):
                fork = 1 << 60  # a snapshot brings the misled one to where all others are
        for seq in count():
            yield _Turn(epoch, seq, 1 << 60)

    def _audited(self, seq: int) -> bool:
        return goes_all_the_way(self._names[LIAR], seq, self._members)

    def _audit_within(self, seq: int, links: int) -> bool:
        return any(self._audited(seq + further) for further in range(links))

    def _link(self, turn: _Turn, history: str) -> UpdateHeader:
        prev = self._signed(turn, turn.seq - 1, history).digest if turn.seq else NO_DIGEST
        signed = self._signed(turn, turn.seq, history)
        return UpdateHeader(
            peer=self._names[LIAR],
            epoch=turn.epoch,
            seq=turn.seq,
            digest=signed.digest,
            prev=prev,
            address=signed.statement.payload,
            body=UpdateHeaderBody(round=turn.seq, kind="delta"),
            raw=signed.raw,
        )

    def _signed(self, turn: _Turn, last: int, history: str) -> Envelope:
        """Return the statement at the place `last`, once those before it are signed."""
        prev, envelope = NO_DIGEST, None
        for seq in range(last + 1):
            key = turn.epoch, seq, history if seq >= turn.fork else ""
            if key not in self._statements:
                body, address = UpdateHeaderBody(round=seq, kind="delta"), digest_of(key[2].encode())
                said = update_header_statement(epoch=turn.epoch, seq=seq, prev=prev, address=address, body=body)
                self._statements[key] = seal(SIGNER, self._scope, said)
            envelope = self._statements[key]
            prev = envelope.digest
        assert envelope is not None
        return envelope

    def _move(self) -> None:
        """Give the liar other neighbours."""
        for node in self._beside[LIAR]:
            self._beside[node].discard(LIAR)
            if not self._compares:  # a neighbour that is lost was forgotten with its chain
                self._nodes[node].audit = LinkAudit()
        others = [node for node in range(len(self._nodes)) if node != LIAR and node not in self._beside[LIAR]]
        self._beside[LIAR] = set(self._rng.sample(others, min(len(others), len(self._beside[LIAR]))))
        for node in self._beside[LIAR]:
            self._beside[node].add(LIAR)

    # -- everybody else

    def _spread(self, link: UpdateHeader, group: Collection[int], now: float) -> None:
        self._told[link.digest] = link
        way = deque((node, link) for node in sorted(group))
        later: deque[tuple[int, UpdateHeader]] = deque()
        while way or later:
            node, passed = (way or later).popleft()
            passes, shows = self._hear(node, passed, now)
            beside = sorted(self._beside[node] - {LIAR})
            way.extend((other, passed) for other in (beside if passes else ()))
            later.extend((other, self._told[each.digest]) for each in shows for other in beside)

    def _hear(self, number: int, link: UpdateHeader, now: float) -> tuple[bool, tuple[HeardLink, ...]]:
        """Let a node hear a link. Return whether it passes it on, and what it shows a little later."""
        node, follows = self._nodes[number], number in self._beside[LIAR]
        if node.found or link.digest in node.seen:
            return False, ()
        node.seen.add(link.digest)
        if not self._compares and not follows:
            return goes_all_the_way(link.peer, link.seq, node.members), ()
        heard = node.audit.hear(link, follows=follows, members=node.members, now=now)
        node.found = heard.against is not None
        if not self._compares:
            return not heard.late, ()
        return heard.passes or (follows and not heard.too_soon), heard.shows
