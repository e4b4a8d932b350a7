"""Hellos: two connected members tell each other what they are, and whether each has a place for the other.

A hello says the run and the initial model, our newest link, our record and some of others', and whether its receiver is
admitted. The answer says the same the other way round. Who may have a place is decided by Places, whose records are
told by HelloRecords; here are the order in which a hello is read, and how many are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gossip.actions import ActionQueue, Disconnect
from gossip.core.config import MIN_HEARTBEAT_S
from gossip.core.envelope import Scope
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import Hello, check_run, parse_hello
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.hellos.hello_records import HelloRecords
from gossip.hellos.places import Places
from gossip.updates.hash_chain import EquivocationError
from gossip.updates.mesh import Mesh
from gossip.updates.roles import Roles

HELLO_BURST: Final = 8
HELLO_PER_S: Final = 2 / MIN_HEARTBEAT_S
"""Hellos of a peer that are read: twice the shortest heartbeat, because a peer that has places left asks in between,
and ten times the usual heartbeat. A hello with 32 new records costs 4 ms."""


@dataclass(frozen=True, kw_only=True)
class HelloTerms:
    """What both sides must have alike."""

    scope: Scope
    genesis: Digest
    """Digest of the initial model."""


@dataclass(frozen=True, kw_only=True)
class HelloOutcomes:
    """What the rest of the node knows, and is told. `own`: our newest link and our record, empty where there is none.
    `banned`, `offence`: of peer_score.py. `proof`: two histories of a peer, where it was caught with them.
    `learn_link`: takes in the link and the neighbour count of a hello, and raises RemoteError."""

    own: Callable[[], tuple[bytes, bytes]]
    banned: Callable[[PeerId, float], bool]
    offence: Callable[[PeerId, RemoteError, float], None]
    proof: Callable[[PeerId], tuple[bytes, bytes] | None]
    learn_link: Callable[[PeerId, Hello, float], None]


class Hellos:
    """The hellos of one node."""

    def __init__(
        self,
        terms: HelloTerms,
        *,
        mesh: Mesh,
        roles: Roles,
        places: Places,
        records: HelloRecords,
        outcomes: HelloOutcomes,
        actions: ActionQueue,
    ) -> None:
        self._terms = terms
        self._mesh = mesh
        self._roles = roles
        self._places = places
        self._records = records
        self._outcomes = outcomes
        self._actions = actions
        self._read = KeyedTokenBucket(burst=HELLO_BURST, per_s=HELLO_PER_S)
        self.met_bootstrap = False
        """Whether one of the operator's peers is a bootstrap node: it sent no record, and a member would."""

    def to(self, peer: PeerId, now: float, *, answers: bool = False) -> bytes:
        """Return our hello to `peer`. `answers`: one of its own, which was read by now."""
        link, record = self._outcomes.own()
        return Hello(
            scope=self._terms.scope,
            genesis=self._terms.genesis,
            neighbours=len(self._mesh.table),
            admitted=self._places.is_one_for(peer, now) and not (answers and self._places.is_nowhere(peer)),
            link=link,
            record=record,
            records=self._records.told_to(peer) if self._roles.publishes else (),
        ).encode()

    def answer(self, peer: PeerId, raw: bytes, now: float) -> bytes:
        """Handle a peer's hello; return ours as the answer. Raises RemoteError."""
        if not self._read.take(peer, now):
            self._outcomes.offence(peer, RemoteError(Reason.FLOODED, "too many hellos"), now)
            raise RemoteError(Reason.UNAVAILABLE, "too many hellos")
        hello = self._parse(peer, raw, now)
        if not hello.admitted:
            self._roles.lose(peer)
            self._places.take_back(peer, "it has no room for us")
        self._learn_records(peer, hello, now)  # before it is admitted: what is known of it decides about its place
        if hello.admitted:
            self._places.give(peer, hello.neighbours, now, answers=False)
            self._records.note_told(peer, hello)
        self._outcomes.learn_link(peer, hello, now)
        return self.to(peer, now, answers=True)

    def take_answer(self, peer: PeerId, raw: bytes, now: float) -> None:
        """Handle the answer to our hello: both admit each other, or the connection is of no use. Raises RemoteError."""
        hello = self._parse(peer, raw, now)
        if not hello.admitted:
            self._places.take_back(peer, "no room")
        try:
            self._learn_records(peer, hello, now)
            if hello.admitted:
                self._places.give(peer, hello.neighbours, now, answers=True)
                self._records.note_told(peer, hello)
        finally:
            if peer not in self._places.partners:
                self._actions.add(Disconnect(peer=peer, hurried=False))
        if not hello.admitted and not hello.record and peer in self._mesh.anchors:
            self.met_bootstrap = True
        self._outcomes.learn_link(peer, hello, now)

    def _parse(self, peer: PeerId, raw: bytes, now: float) -> Hello:
        banned = self._outcomes.banned
        if (proof := self._outcomes.proof(peer)) is not None and not banned(peer, now):
            self._outcomes.offence(peer, EquivocationError(*proof), now)  # found out while it was a stranger
        if banned(peer, now):
            raise RemoteError(Reason.BANNED)
        hello = parse_hello(raw)
        check_run(hello, self._terms.scope, self._terms.genesis)
        self._roles.check_hello(peer, hello)
        return hello

    def _learn_records(self, peer: PeerId, hello: Hello, now: float) -> None:
        self._mesh.present(peer)
        self._mesh.met(peer)
        self._records.learn(peer, hello, now)
