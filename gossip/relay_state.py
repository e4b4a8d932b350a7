"""What a dedicated relay decides: which members it forwards its clients to, and whom it asks to find them.

A client is a node that reaches nobody but this relay. It names a member by its id, never by an address. The relay
forwards it to the operator's peers, and to members that have proved their key to the relay at an address of their
signed record. It finds those by asking members, in the name of its clients' run; it has no record of its own. Of a
client's record only its address through this relay is believed: else a client could have any address dialled.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from gossip.bootstrap_state import BootstrapState, KnownRun, RunKey
from gossip.core.envelope import EnvelopeKind, open_envelope, open_from
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, SwarmId
from gossip.core.messages import FindRequest, parse_find_answer
from gossip.core.networks import group_of
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.dht import named
from gossip.discovery.routing_table import PLACE_BITS, place_of_id
from gossip.reachability.relay import CircuitBounds, parse_circuit
from gossip.updates.roles import Roles

RELAY_BOUNDS: Final = CircuitBounds(reservations=64, circuits=512, of_peer=32, asks_burst=256, asks_per_s=4.0)
"""64 clients with eight neighbours each, and 128 KiB a circuit: 64 MiB. A client may ask more often than a neighbour's
may: all its dials are asks, and one that has just come dials every member that it hears of."""

ASK_EVERY_S: Final = 30.0
"""Seconds until a member is asked again who else is there: a newcomer need not be known sooner by chance, and one that
a client wants is asked for at once."""

MAX_WANTED: Final = 64
"""Members that clients wanted and that are not known yet; the oldest is dropped first."""

MAX_ASKED: Final = 512
"""Pairs of run and member that are remembered as asked: twice the records of a run."""


class RelayState(BootstrapState):
    """All that a relay knows. `is_client`: whether a peer reaches the others through us. `outside`: whether members may
    be dialled at an address that others named. `operators`: the addresses that the operator named, by peer."""

    def __init__(
        self,
        identity: Identity,
        swarm: SwarmId,
        rng: random.Random,
        roles: Roles | None = None,
        *,
        is_client: Callable[[PeerId], bool],
        outside: Callable[[str], bool],
        operators: Mapping[PeerId, str],
    ) -> None:
        super().__init__(identity, swarm, rng, roles)
        self._is_client = is_client
        self._outside = outside
        self._by_operator = operators
        self._operators = frozenset(operators.values())
        self._wanted: OrderedDict[PeerId, None] = OrderedDict()
        self._asked_at: OrderedDict[tuple[RunKey, PeerId], float] = OrderedDict()

    # -- where members are

    def where(self, peer: PeerId) -> str | None:
        """Return the address that the operator gave, or at which a member has proved its key to us, and which its
        newest record still names; None: there is none."""
        proved = (at for run in self._having(peer) if (at := self._proved_at(run, peer)) is not None)
        return self._by_operator.get(peer) or next(proved, None)

    def want(self, peer: PeerId) -> None:
        """Note that a client wants a member that is not known: members are asked for it."""
        self._wanted[peer] = None
        while len(self._wanted) > MAX_WANTED:
            self._wanted.popitem(last=False)

    def to_try(self, now: float) -> list[tuple[PeerId, str]]:
        """Return whom to probe, and where: members outside, and clients through us."""
        return [(peer, address) for peer, address in super().to_try(now) if self._may_dial(address)]

    def _proved_at(self, run: KnownRun, peer: PeerId) -> str | None:
        at = run.peerstore.reached_at(peer)
        proved = at in run.peerstore.addresses(peer) and not run.misses.get(peer)
        return at if proved and parse_circuit(at) is None else None

    def _may_dial(self, address: str) -> bool:
        if (circuit := parse_circuit(address)) is not None:
            return circuit[0] == self.me and self._is_client(circuit[1])
        return address in self._operators or self._outside(address)

    def _doubtful(self, run: KnownRun, record: PeerRecord, now: float) -> bool:
        """One that others named and that has answered need not be tried again at once."""
        proved = self._proved_at(run, record.peer) is not None
        return super()._doubtful(run, record, now) if not proved else run.fresh_until.get(record.peer, now) <= now

    def _believes(self, record: PeerRecord) -> bool:
        if not self._is_client(record.peer):
            return True
        circuits = [parse_circuit(address) for address in record.addresses]
        return all(circuit is not None and circuit[0] == self.me for circuit in circuits)

    def _records_for(self, peer: PeerId, run: KnownRun) -> tuple[bytes, ...]:
        """Members have better sources than us; and a relay of a private swarm may tell them of nobody."""
        return super()._records_for(peer, run) if self._is_client(peer) else ()

    # -- asking members for members

    def next_question(self, now: float) -> tuple[RunKey, PeerId, str] | None:
        """Return in which run whom to ask next, and where it is; None: nobody is due. Those that were never asked come
        first. Note that it is asked."""
        due = [
            (self._asked_at.get((key, peer), float("-inf")), self._rng.random(), key, peer, at)
            for key, run in self._runs.items()
            for peer, at in self._answering(run).items()
            if now >= self._asked_at.get((key, peer), float("-inf")) + (1.0 if self._wanted else ASK_EVERY_S)
        ]
        if not due:
            return None
        *_, key, peer, at = min(due)
        self._asked_at[key, peer] = now
        self._asked_at.move_to_end((key, peer))
        while len(self._asked_at) > MAX_ASKED:
            self._asked_at.popitem(last=False)
        return key, peer, at

    def question(self, key: RunKey) -> FindRequest | None:
        """Return what to ask in a run: for one that a client wants, else for those around a place drawn at random. None
        for a run that made room for another one meanwhile."""
        run = self._runs.get(key)
        if run is None:
            return None
        if self._wanted:
            wanted, _ = self._wanted.popitem(last=False)
            place = place_of_id(run.scope, wanted)
        else:
            place = self._rng.getrandbits(PLACE_BITS)
        return FindRequest(swarm=self._swarm, run=key[0], genesis=key[1], target=named(place), record=b"")

    def on_find_answer(self, key: RunKey, peer: PeerId, raw: bytes | bytearray, network: str | None) -> None:
        """Learn whom a member in `network` names. Raises Refused, or RemoteError for what is no answer."""
        own, raws = parse_find_answer(raw)
        run = self._runs.get(key)
        if run is None:
            return
        records = [parse_record(open_envelope(each, run.scope)) for each in raws]
        if own:
            mine = parse_record(open_from(own, run.scope, peer, EnvelopeKind.RECORD))
            run.peerstore.learn(mine, first_hand=True, calls_from=network)
        for record in records:
            if record.peer != self.me and not self._is_client(record.peer):
                run.peerstore.learn(record, first_hand=False, teller=group_of(peer, network))

    def _answering(self, run: KnownRun) -> dict[PeerId, str]:
        known = {record.peer: self._proved_at(run, record.peer) for record in run.peerstore.known()}
        return {**self._by_operator, **{peer: at for peer, at in known.items() if at is not None}}
