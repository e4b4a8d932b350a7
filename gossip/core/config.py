"""What an operator may choose about the network, with the reason for each default."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from gossip.core.digests import swarm_id_of
from gossip.core.errors import LocalError
from gossip.core.ids import SwarmId
from gossip.core.limits import MAX_BLOB_BYTES, MAX_LINKS, MIN_RATE
from gossip.core.quiet_hours import parse_all

MIN_HEARTBEAT_S: Final = 2.0
"""Neighbours look at a hello so often, and charge who sends more."""


@dataclass(frozen=True, kw_only=True)
class GossipConfig:
    """The knobs of one node's network. Raises LocalError when they contradict each other."""

    swarm: str = "p2ptrain"
    """The swarm's name; nodes of another name are refused."""
    swarm_id: SwarmId | None = None
    """A private swarm's, from its manifest; then the name plays no part. It says nothing of the swarm to who has it."""
    peers: tuple[str, ...] = ()
    """Multiaddrs to dial first, and again for as long as it takes."""
    via: str = ""
    """The multiaddr of a relay through which all others are reached, where a node reaches nobody else: that of
    `p2ptrain node --role relay` on the login node. Nothing but the relay is dialled then."""
    via_region: str = ""
    """The region in which that relay stands, as the operator of this node says: of `via`, or of a spool folder's. A
    region with a policy (sync.residency) wants its own."""
    peers_file: Path | None = None
    """A file of multiaddrs, one a line, `#` comments; read again while running, so that it may be written late."""
    address_book: Path | None = None
    """Where to keep the addresses of peers over a restart; None: nowhere."""
    mdns: bool = False
    """Look for members on the local network, and tell it of us. Off: a laptop in a library would tell everybody there
    that it trains, and where; who trains on a network of one's own turns it on."""
    degree: int = 8
    """Neighbours at most. Trimmed mean needs 2f+1 inputs; 8 allows f=3 and is gossipsub's usual mesh plus two."""
    quorum: float = 2 / 3
    """Share of live neighbours whose update of this round closes it: the slowest third never holds a round up."""
    max_staleness: int = 4
    """Rounds; at 5 and more a neighbour's model pulls backwards more than it averages (staleness-aware SGD)."""
    probation_rounds: int = 8
    """Rounds of ours in which a newcomer's updates must have been accepted before it counts in full: until then all
    newcomers together count for as many neighbours as may lie. Chosen: twice what staleness allows, so that a key costs
    the work of eight rounds, and an honest newcomer in a swarm of others is not held back for long. 0: nobody is."""
    max_payload_bytes: int = 1 << 30
    """The largest update or snapshot that we pull: a 268M-parameter model in fp32."""
    history: int = 8
    """Own links kept with their payloads for neighbours that missed some; as many as one links response carries."""
    reannounce_s: float = 2.0
    """Seconds until the newest link is broadcast again, twice as long each time up to `heartbeat_s`: with half of all
    messages lost 94% know it after 14 s from its author alone, and the rest by others or by the next hello."""
    initial_deadline_s: float = 30.0
    """A round's deadline before anything is learned, and the most that learning may ever say."""
    min_deadline_s: float = 0.5
    """The least that learning may say: below it, scheduling noise and not slowness decides."""
    deadline_k: float = 4.0
    """Deadline = median + k * MAD of past closing times; 4 MADs are 2.7 sigma of a Gaussian."""
    redial_min_s: float = 1.0
    """Before the second dial of an address that did not answer: a node that restarts is back by then."""
    redial_max_s: float = 60.0
    """Back-off between dials of one address, doubling from the one to the other, with jitter of a half."""
    dial_timeout_s: float = 15.0
    """TCP's third SYN goes out after 7 s; what has not answered by 15 s is not there."""
    request_timeout_s: float = 10.0
    """The longest wait for the first byte of an answer; after that the answer must keep coming (session.py)."""
    heartbeat_s: float = 10.0
    """Hellos to each neighbour: they carry the newest head and peer records, and show that it lives."""
    silence_s: float = 45.0
    """A neighbour unheard of for so long is dropped; four heartbeats, more than a stopped laptop lid's 20-30 s."""
    relay: bool = False
    """Whether to carry what two neighbours that nobody can dial say to each other. Not unasked: it costs twice what it
    carries, of a link that may be metered."""
    relay_bytes_per_s: float = 1024.0 * 1024.0
    """What all of that may take together: a tenth of a line of 100 Mbit/s, and four rounds a minute of a model whose
    updates have 16 MB."""
    up_bytes_per_s: float | None = None
    """The most that is sent to peers, announcements aside; None: as fast as the link takes it."""
    down_bytes_per_s: float | None = None
    """The most that is taken from peers."""
    quiet_hours: tuple[str, ...] = ()
    """Local times as "22:00-07:00" in which no update or model is sent or fetched. Training and the small talk with
    neighbours go on, as in an outage; what is under way is finished."""
    hash_in_thread_above: int = 256 * 1024
    """Bytes; hashing more than this (0.3 ms) goes to a worker thread. Tests on a virtual clock set it out of reach."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and math.isnan(value):  # it passes or fails each comparison by its order
                raise LocalError(f"{field.name} is not a number")
        checks = {
            "degree must be at least 1": self.degree >= 1,
            "quorum must lie in (0, 1]": 0 < self.quorum <= 1,
            "max_staleness must not be negative": self.max_staleness >= 0,
            "probation_rounds must not be negative": self.probation_rounds >= 0,
            f"history must lie in 1..{MAX_LINKS}": 1 <= self.history <= MAX_LINKS,
            f"max_payload_bytes must lie in 1..{MAX_BLOB_BYTES}": 1 <= self.max_payload_bytes <= MAX_BLOB_BYTES,
            f"heartbeat_s must be {MIN_HEARTBEAT_S:g} or more: neighbours charge who says hello more often": (
                self.heartbeat_s >= MIN_HEARTBEAT_S
            ),
            "relay_bytes_per_s must be positive": self.relay_bytes_per_s > 0,
            f"up_bytes_per_s and down_bytes_per_s must leave {MIN_RATE} bytes a second for each of {self.degree} "
            "neighbours (degree), or their transfers are given up": self._least_rate() >= MIN_RATE * self.degree,
            "every interval must be positive": min(self._intervals()) > 0,
            "min_deadline_s must not exceed initial_deadline_s": self.min_deadline_s <= self.initial_deadline_s,
            "redial_min_s must not exceed redial_max_s": self.redial_min_s <= self.redial_max_s,
        }
        parse_all(self.quiet_hours)
        for complaint, fine in checks.items():
            if not fine:
                raise LocalError(complaint)

    @property
    def named(self) -> SwarmId:
        """What stands for the swarm in every statement: its id, or the hash of its name."""
        return swarm_id_of(self.swarm) if self.swarm_id is None else self.swarm_id

    @property
    def named_peers(self) -> tuple[str, ...]:
        """What the operator has us dial: the relay that we depend on, and peers."""
        return (self.via, *self.peers) if self.via else self.peers

    def _least_rate(self) -> float:
        return min(rate for rate in (self.up_bytes_per_s, self.down_bytes_per_s, float("inf")) if rate is not None)

    def _intervals(self) -> tuple[float, ...]:
        return (
            self.reannounce_s,
            self.min_deadline_s,
            self.redial_min_s,
            self.dial_timeout_s,
            self.request_timeout_s,
            self.heartbeat_s,
            self.silence_s,
        )
