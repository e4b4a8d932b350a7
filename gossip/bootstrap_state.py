"""What a bootstrap node decides: it knows who is in each run and passes that on; it is a member of none.

It answers hellos in the name of the asker's run, and needs no model for it: the answer repeats the asker's run and
genesis, admits nobody, names no link and no record of its own, and brings records of that run. So no member ever takes
it for a neighbour, or passes its address on. It believes what a member believes: a record is passed on once its signer
gave it and answered at one of its addresses, and dropped when the signer does not answer any more.

Anybody may invent runs, and have any number of keys in them: keys of one host answer at their addresses too. So a run
weighs as much as the networks (core/networks.py) in which members of it have answered. Each network counts in the two
runs that it has been in longest; among equals the run that has been known longest stays.
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
from gossip.hellos.hello import HELLO_BURST, HELLO_PER_S
from gossip.updates.peer_score import PeerScores
from gossip.updates.roles import Roles

MAX_RUNS: Final = 8
"""Runs of one swarm that are known at a time: a swarm has one, and a second one while it changes its model."""

RUNS_OF_NETWORK: Final = 2
"""Runs for which one network counts, those that it has been in longest: as many as a swarm has while it changes its
model. In all others it counts nothing."""

MAX_OF_NETWORK: Final = MAX_RECORDS
"""Records of one network in all runs: a whole run may be in one lab, and a crowd takes an eighth of the total."""

FRESH_S: Final = 300.0
"""A record is passed on for so long after its signer was last heard or answered; then it is tried again. A member says
hello about once a minute, so a signer silent for longer has left, or cannot reach us any more."""

MISSES: Final = 3
"""A record is dropped after so many probes in a row without an answer."""

RING_DEGREE: Final = 8
"""The degree by which hints for members are chosen: the default one. With another the hints are as true, and fewer."""

FORMAT: Final = 1
"""The version of the format of `dump`."""

RunKey = tuple[RunId, Digest]


@dataclass
class KnownRun:
    """A run of which somebody has said hello."""

    scope: Scope
    rings: Rings
    named_by: str
    """The network group of the peer that first named this run."""
    peerstore: PeerStore = field(default_factory=PeerStore)
    fresh_until: dict[PeerId, float] = field(default_factory=dict)
    misses: dict[PeerId, int] = field(default_factory=dict)

    def heard(self, peer: PeerId, now: float) -> None:
        """Note that a member answers."""
        self.fresh_until[peer], self.misses[peer] = now + FRESH_S, 0
        if len(self.misses) > len(self.peerstore):  # some records that the peerstore has dropped since
            known = {record.peer for record in self.peerstore.known()}
            self.fresh_until = {each: until for each, until in self.fresh_until.items() if each in known}
            self.misses = {each: count for each, count in self.misses.items() if each in known}

    def verified(self) -> int:
        """Return how many records are verified."""
        return len(self.peerstore.of_standing(RecordTrust.VERIFIED))

    def networks(self) -> set[str]:
        """Return the groups of its members that have answered, in this process or the one before."""
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
        self._runs: OrderedDict[RunKey, KnownRun] = OrderedDict()

    @property
    def runs(self) -> int:
        """How many runs are known."""
        return len(self._runs)

    @property
    def members(self) -> int:
        """How many members are passed on to others, in all runs."""
        return sum(run.verified() for run in self._runs.values())

    @property
    def peers_known(self) -> int:
        """How many records are held, in all runs."""
        return sum(len(run.peerstore) for run in self._runs.values())

    @property
    def changed(self) -> bool:
        """Whether there is something new since the last dump."""
        return any(run.peerstore.changed for run in self._runs.values())

    def on_hello(self, peer: PeerId, raw: bytes, now: float, network: str | None = "") -> bytes:
        """Handle the hello of a member that calls from `network`; return the answer. Raises RemoteError."""
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
        if record is not None and self._believes(record):
            run.peerstore.learn(record, first_hand=True, calls_from=network)
            run.heard(peer, now)
            self._trim(group, peer)
        return Hello(
            scope=hello.scope,
            genesis=hello.genesis,
            neighbours=0,
            admitted=False,
            records=self._records_for(peer, run),
        ).encode()

    def _believes(self, record: PeerRecord) -> bool:
        """Return whether a record that its signer gave is to be tried at its addresses."""
        return True

    def _records_for(self, peer: PeerId, run: KnownRun) -> tuple[bytes, ...]:
        """Return what the answer to a hello tells of others."""
        return run.peerstore.sample(self._rng, without=peer, rings=run.rings)

    def on_find(self, peer: PeerId, request: FindRequest, now: float, network: str | None = "") -> list[bytes]:
        """Return the records of the members that are nearest to the target, in the run that is asked for. Raises
        RemoteError when that run is unknown: a question makes no run known."""
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
        if (asker := asker_of(request, run.scope, peer)) is not None and self._believes(asker):
            run.peerstore.learn(asker, first_hand=True, calls_from=network)
            run.heard(peer, now)
            self._trim(group_of(peer, network), peer)
        there = [record for record in run.peerstore.of_standing(RecordTrust.VERIFIED) if record.peer != peer]
        return [record.raw for record in nearest(there, run.scope, placed(request.target))]

    def on_goodbye(self, peer: PeerId) -> None:
        """Forget a member that leaves."""
        for run in self._runs.values():
            run.peerstore.forget(peer)

    def membership_ended(self, peer: PeerId, why: RemoteError) -> None:
        """Count a former member under the reason, and drop its records."""
        self.peer_scores.refuse(peer, why)
        self.on_goodbye(peer)

    def drain(self) -> list[Action]:
        """Return the actions that are to be performed, and forget them."""
        return self._actions.drain()

    def charge(self, peer: PeerId, error: RemoteError, now: float) -> bool:
        """Count and charge an offence; return True when the peer is banned, and its records are dropped."""
        banned = self.peer_scores.charge(peer, error, now)
        if banned:
            self.on_goodbye(peer)
        return banned

    def to_try(self, now: float) -> list[tuple[PeerId, str]]:
        """Return whom to probe, and where: records that were never answered at, or not for long; in random order."""
        found = [
            (record.peer, self._rng.choice(record.addresses))
            for run in self._runs.values()
            for record in run.peerstore.known()
            if record.addresses and self._doubtful(run, record, now)
        ]
        self._rng.shuffle(found)
        return found

    def _doubtful(self, run: KnownRun, record: PeerRecord, now: float) -> bool:
        verified = run.peerstore.standing(record.peer) is RecordTrust.VERIFIED
        return not verified or run.fresh_until.get(record.peer, now) <= now

    def answered(self, peer: PeerId, address: str, now: float, network: str | None = "") -> None:
        """Note that a probe found the peer at this address, in this network."""
        for run in self._having(peer):
            run.peerstore.reached(peer, address, network)
            run.heard(peer, now)
        self._trim(group_of(peer, network), peer)

    def missed(self, peer: PeerId) -> None:
        """Note that a probe did not find the peer where its record says."""
        for run in self._having(peer):
            run.misses[peer] = run.misses.get(peer, 0) + 1
            if run.misses[peer] >= MISSES * len(run.peerstore.addresses(peer)):
                run.peerstore.forget(peer)
                run.misses.pop(peer)

    def dump(self) -> bytes:
        """Return what is worth keeping, for `recall` after a restart."""
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
        """Load a dump; return how many records it held. Raises LocalError when it is not one."""
        for run_id, genesis, peerstore in _runs_in(data):
            run = self._run(Scope(swarm=self._swarm, run=run_id), genesis, "")
            run.peerstore.recall(peerstore, run.scope)
        return self.peers_known

    def _having(self, peer: PeerId) -> list[KnownRun]:
        return [run for run in self._runs.values() if run.peerstore.addresses(peer)]

    def _run(self, scope: Scope, genesis: Digest, named_by: str) -> KnownRun:
        key = (scope.run, genesis)
        if key not in self._runs:
            if len(self._runs) >= MAX_RUNS:
                self._runs.pop(self._least_worth())
            self._runs[key] = KnownRun(scope, Rings(self.me, scope, RING_DEGREE), named_by)
        return self._runs[key]

    def _least_worth(self) -> RunKey:
        """Return the run that is forgotten for a new one. Never the runs known longest that have members, nor the
        heaviest that several networks vouch for. Of the rest the lightest; of those, one of the group that has named
        most; of those, the newest."""
        weights = self._weights()
        oldest = [key for key in self._runs if weights[key]][:RUNS_OF_NETWORK]
        heaviest = sorted((key for key in self._runs if weights[key] > 1), key=lambda key: -weights[key])
        staying = {*oldest, *heaviest[: MAX_RUNS // 2]}
        named = Counter(run.named_by for run in self._runs.values())
        loose = [key for key in reversed(self._runs) if key not in staying]
        return min(loose, key=lambda key: (weights[key], -named[self._runs[key].named_by]))

    def _weights(self) -> dict[RunKey, int]:
        """Return in how many networks each run has members that have answered; each network counts in a few runs
        alone."""
        counted: Counter[str] = Counter()
        weights = {}
        for key, run in self._runs.items():  # the one known longest comes first
            counts = {group for group in run.networks() if counted[group] < RUNS_OF_NETWORK}
            counted.update(counts)
            weights[key] = len(counts)
        return weights

    def _trim(self, group: str, newcomer: PeerId) -> None:
        """Limit a group to its share of records in all runs: in its newest run the least trusted records go first."""
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
