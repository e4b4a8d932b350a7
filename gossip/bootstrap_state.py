"""What a bootstrap node decides: it knows who is there, and tells; it is a member of nothing.

It answers hellos in the name of whichever run the asker belongs to, and needs no model for it: the answer repeats the
asker's run and genesis, admits nobody, names no link and no record of its own, and brings records of that run. So no
member ever takes it for a neighbour, or tells others of it. It believes what a member believes: a record is told once
its signer gave it and answered at one of its addresses, and dropped when it does not answer any more.

Anybody may invent runs, and have as many keys in them as he likes: keys of one host answer at their addresses too. So a
run weighs as much as the networks (core/networks.py) in which members of it have answered, each of which counts in the
two runs that it has been in longest; among equals the run that has been known longest stays.
"""

import base64
import binascii
import json
import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from gossip.actions import Action, ActionQueue
from gossip.core.digests import DIGEST_BYTES, RUN_ID_BYTES
from gossip.core.envelope import EnvelopeKind, Scope, open_from
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId, RunId, SwarmId
from gossip.core.messages import FindRequest, Hello, parse_hello
from gossip.core.networks import group_of
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.dht import FINDS_BURST, FINDS_PER_S, asker_of, placed
from gossip.discovery.peerstore import MAX_DUMP_BYTES, MAX_RECORDS, PeerStore, RecordTrust
from gossip.discovery.routing_table import nearest
from gossip.discovery.topology import Rings
from gossip.engine import HELLO_BURST, HELLO_PER_S
from gossip.updates.peer_score import PeerScores
from gossip.updates.roles import Roles

MAX_RUNS: Final = 8
"""Runs of one swarm that are known at a time: a swarm has one, and a second while it changes its model."""

RUNS_OF_NETWORK: Final = 2
"""Runs for which one network counts, those that it has been in longest: as many as a swarm has while it changes its
model. In all others it weighs nothing."""

MAX_OF_NETWORK: Final = MAX_RECORDS
"""Records of one network in all runs: a whole run may be in one lab, and a crowd has an eighth of what there is."""

FRESH_S: Final = 300.0
"""A record is told for so long after its signer was last heard or answered; then it is tried again. A member says hello
every minute or so, so this is one that has left, or that reaches us no more."""

MISSES: Final = 3
"""A record that was not answered at so often in a row is dropped."""

RING_DEGREE: Final = 8
"""The degree that members are told of each other by: the default one. With another the hints are as true, and fewer."""

FORMAT: Final = 1
"""Of `dump`."""

RunKey = tuple[RunId, Digest]


@dataclass
class _Run:
    scope: Scope
    rings: Rings
    named_by: str
    """The group of whoever was first to speak of it."""
    peerstore: PeerStore = field(default_factory=PeerStore)
    fresh_until: dict[PeerId, float] = field(default_factory=dict)
    misses: dict[PeerId, int] = field(default_factory=dict)

    def heard(self, peer: PeerId, now: float) -> None:
        self.fresh_until[peer], self.misses[peer] = now + FRESH_S, 0
        if len(self.misses) > len(self.peerstore):  # of records that the book has dropped since
            known = {record.peer for record in self.peerstore.known()}
            self.fresh_until = {each: until for each, until in self.fresh_until.items() if each in known}
            self.misses = {each: count for each, count in self.misses.items() if each in known}

    def verified(self) -> int:
        return len(self.peerstore.of_standing(RecordTrust.VERIFIED))

    def networks(self) -> set[str]:
        """The groups of its members that have answered, in this life of ours or the one before."""
        return {self.peerstore.group_of(record.peer) for record in self.peerstore.established()}


class BootstrapState:
    """All that a bootstrap node knows."""

    def __init__(self, identity: Identity, swarm: SwarmId, rng: random.Random, roles: Roles | None = None) -> None:
        self.me = identity.peer_id
        self._actions = ActionQueue()
        self.peer_scores = PeerScores(self._actions)
        self.stats = self.peer_scores.stats
        self._swarm = swarm
        self._roles = roles or Roles(identity.peer_id)
        self._rng = rng
        self._hellos = KeyedTokenBucket(burst=HELLO_BURST, per_s=HELLO_PER_S)
        self._finds = KeyedTokenBucket(burst=FINDS_BURST, per_s=FINDS_PER_S)
        self._runs: OrderedDict[RunKey, _Run] = OrderedDict()

    @property
    def runs(self) -> int:
        """How many runs are known."""
        return len(self._runs)

    @property
    def members(self) -> int:
        """Members that others are told of, in all runs."""
        return sum(run.verified() for run in self._runs.values())

    @property
    def peers_known(self) -> int:
        """Records that are held, in all runs."""
        return sum(len(run.peerstore) for run in self._runs.values())

    @property
    def changed(self) -> bool:
        """Whether there is something new since the last dump."""
        return any(run.peerstore.changed for run in self._runs.values())

    def on_hello(self, peer: PeerId, raw: bytes, now: float, network: str | None = "") -> bytes:
        """The hello of a member that calls from `network`; returns the answer. Raises RemoteError."""
        if self.peer_scores.scores.banned(peer, now):
            raise RemoteError(Reason.BANNED)
        if not self._hellos.take(peer, now):
            self.charge(peer, RemoteError(Reason.FLOODED, "too many hellos"), now)
            raise RemoteError(Reason.UNAVAILABLE, "too many hellos")
        hello = parse_hello(raw)
        if hello.scope.swarm != self._swarm:
            raise RemoteError(Reason.WRONG_SWARM, "another swarm")
        self._roles.check_hello(peer, hello)
        record = None
        if hello.record:
            record = parse_record(open_from(hello.record, hello.scope, peer, EnvelopeKind.RECORD))
        group = group_of(peer, network)
        run = self._run(hello.scope, hello.genesis, group)
        if record is not None:
            run.peerstore.learn(record, first_hand=True, calls_from=network)
            run.heard(peer, now)
            self._trim(group, peer)
        return Hello(
            scope=hello.scope,
            genesis=hello.genesis,
            neighbours=0,
            admitted=False,
            records=run.peerstore.sample(self._rng, without=peer, rings=run.rings),
        ).encode()

    def on_find(self, peer: PeerId, request: FindRequest, now: float, network: str | None = "") -> list[bytes]:
        """The records of the members that stand nearest to the target, of whichever run is asked for. RemoteError when
        there is none such: a question makes no run known."""
        if self.peer_scores.scores.banned(peer, now):
            raise RemoteError(Reason.BANNED)
        if not self._finds.take(peer, now):
            raise RemoteError(Reason.FLOODED, "too many find requests")
        if request.swarm != self._swarm:
            raise RemoteError(Reason.WRONG_SWARM, "another swarm")
        self._roles.check_find(peer, request)
        run = self._runs.get((request.run, request.genesis))
        if run is None:
            raise RemoteError(Reason.UNAVAILABLE, "nobody of that run has been here")
        if (asker := asker_of(request, run.scope, peer)) is not None:
            run.peerstore.learn(asker, first_hand=True, calls_from=network)
            run.heard(peer, now)
            self._trim(group_of(peer, network), peer)
        there = [record for record in run.peerstore.of_standing(RecordTrust.VERIFIED) if record.peer != peer]
        return [record.raw for record in nearest(there, run.scope, placed(request.target))]

    def on_goodbye(self, peer: PeerId) -> None:
        """A member leaves."""
        for run in self._runs.values():
            run.peerstore.forget(peer)

    def membership_ended(self, peer: PeerId, why: RemoteError) -> None:
        """A peer is a former member now: counted under its reason, and its records are gone."""
        self.peer_scores.refuse(peer, why)
        self.on_goodbye(peer)

    def drain(self) -> list[Action]:
        """Return the actions that were asked for, and forget them."""
        return self._actions.drain()

    def charge(self, peer: PeerId, error: RemoteError, now: float) -> bool:
        """Count and charge an offence; True when the peer is banned, and its records are gone."""
        banned = self.peer_scores.charge(peer, error, now)
        if banned:
            self.on_goodbye(peer)
        return banned

    def to_try(self, now: float) -> list[tuple[PeerId, str]]:
        """Whom to probe, and where: records that were never answered at, or not for long; in a random order."""
        found = [
            (record.peer, self._rng.choice(record.addresses))
            for run in self._runs.values()
            for record in run.peerstore.known()
            if record.addresses and self._doubtful(run, record, now)
        ]
        self._rng.shuffle(found)
        return found

    def _doubtful(self, run: _Run, record: PeerRecord, now: float) -> bool:
        verified = run.peerstore.standing(record.peer) is RecordTrust.VERIFIED
        return not verified or run.fresh_until.get(record.peer, now) <= now

    def answered(self, peer: PeerId, address: str, now: float, network: str | None = "") -> None:
        """A probe found the peer at this address, in this network."""
        for run in self._having(peer):
            run.peerstore.reached(peer, address, network)
            run.heard(peer, now)
        self._trim(group_of(peer, network), peer)

    def missed(self, peer: PeerId) -> None:
        """A probe did not find the peer where its record says."""
        for run in self._having(peer):
            run.misses[peer] = run.misses.get(peer, 0) + 1
            if run.misses[peer] >= MISSES * len(run.peerstore.addresses(peer)):
                run.peerstore.forget(peer)
                run.misses.pop(peer)

    def dump(self) -> bytes:
        """What is worth keeping, for `recall` in a later life."""
        runs = [
            {
                "run": run_id.hex(),
                "genesis": genesis.hex(),
                "book": base64.b64encode(run.peerstore.dump()).decode("ascii"),
            }
            for (run_id, genesis), run in self._runs.items()
        ]
        return json.dumps({"format": FORMAT, "runs": runs}, indent=0).encode("ascii") + b"\n"

    def recall(self, data: bytes) -> int:
        """Take up a dump; how many records it held. LocalError when it is none."""
        for run_id, genesis, peerstore in _runs_in(data):
            run = self._run(Scope(swarm=self._swarm, run=run_id), genesis, "")
            run.peerstore.recall(peerstore, run.scope)
        return self.peers_known

    def _having(self, peer: PeerId) -> list[_Run]:
        return [run for run in self._runs.values() if run.peerstore.addresses(peer)]

    def _run(self, scope: Scope, genesis: Digest, named_by: str) -> _Run:
        key = (scope.run, genesis)
        if key not in self._runs:
            if len(self._runs) >= MAX_RUNS:
                self._runs.pop(self._least_worth())
            self._runs[key] = _Run(scope, Rings(self.me, scope, RING_DEGREE), named_by)
        return self._runs[key]

    def _least_worth(self) -> RunKey:
        """Which run is forgotten for a new one. Not those known longest that have members, nor the heaviest that
        several networks vouch for; of the rest the lightest, of those one of whoever has named most, of those the
        newest."""
        weights = self._weights()
        oldest = [key for key in self._runs if weights[key]][:RUNS_OF_NETWORK]
        heaviest = sorted((key for key in self._runs if weights[key] > 1), key=lambda key: -weights[key])
        staying = {*oldest, *heaviest[: MAX_RUNS // 2]}
        named = Counter(run.named_by for run in self._runs.values())
        loose = [key for key in reversed(self._runs) if key not in staying]
        return min(loose, key=lambda key: (weights[key], -named[self._runs[key].named_by]))

    def _weights(self) -> dict[RunKey, int]:
        """In how many networks each run has members that have answered; each network counts in a few runs alone."""
        counted: Counter[str] = Counter()
        weights = {}
        for key, run in self._runs.items():  # the one known longest comes first
            counts = {group for group in run.networks() if counted[group] < RUNS_OF_NETWORK}
            counted.update(counts)
            weights[key] = len(counts)
        return weights

    def _trim(self, group: str, newcomer: PeerId) -> None:
        """Keep a group to its records in all runs: of what it has in the newest run the least trusted go first."""
        too_many = sum(run.peerstore.count_of(group) for run in self._runs.values()) - MAX_OF_NETWORK
        for run in reversed(self._runs.values()) if too_many > 0 else ():
            theirs = [
                it.peer
                for it in run.peerstore.known()
                if it.peer != newcomer and run.peerstore.group_of(it.peer) == group
            ]
            for peer in sorted(theirs, key=run.peerstore.standing)[: max(0, too_many)]:
                run.peerstore.forget(peer)
                too_many -= 1


def _runs_in(data: bytes) -> list[tuple[RunId, Digest, bytes]]:
    if len(data) > 2 * MAX_RUNS * MAX_DUMP_BYTES:
        raise LocalError(f"it has {len(data)} bytes")
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise LocalError("it is of another format")
        return [_run_in(each) for each in list(document["runs"])[:MAX_RUNS]]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise LocalError("it is damaged") from error


def _run_in(entry: dict[str, str]) -> tuple[RunId, Digest, bytes]:
    run_id, genesis = bytes.fromhex(entry["run"]), bytes.fromhex(entry["genesis"])
    if (len(run_id), len(genesis)) != (RUN_ID_BYTES, DIGEST_BYTES):
        raise LocalError("it is damaged")
    return RunId(run_id), Digest(genesis), base64.b64decode(entry["book"], validate=True)
