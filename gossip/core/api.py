"""The values that pass between the runtime and `GossipService`: no behaviour, no clock, no torch."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gossip.core.errors import Reason
from gossip.core.ids import Digest, PeerId, RunId

UpdateKind = Literal["genesis", "snapshot", "delta"]
Fetch = Literal["updates", "models", "nothing"]
"""What is fetched from the neighbours: every update; a snapshot of each, and another when it has become old; or nothing
but their announcements, by which rounds are then counted."""
Reachability = Literal["unknown", "outbound", "reached"]
"""Whether others can dial us. `reached`: a peer of our run did so lately. `outbound`: hellos came lately, but only over
connections that we dialled, which shows neither yes nor no. `unknown`: no hello lately."""
QueueName = Literal["updates", "pulls", "serving"]
"""Where work waits: updates that the runtime has not answered, blobs being pulled, open streams from other peers."""
EventName = Literal[
    "neighbour_up",
    "neighbour_lost",
    "rejected",
    "banned",
    "equivocation",
    "throttled",
    "dial_failed",
    "reachability",
    "warning",
]


@dataclass(frozen=True, kw_only=True)
class Relaying:
    """What a node relays for others: open circuits, and since the start bytes carried and requests refused, by status
    (gossip/reachability/circuit.py)."""

    circuits: int = 0
    carried_bytes: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What all members of a run agree on: its id, and BLAKE2b-256 of the initial fp32 parameter bytes."""

    run_id: RunId
    genesis: Digest


@dataclass(frozen=True, kw_only=True)
class Head:
    """The newest link of a chain, or the link that a snapshot belongs to."""

    epoch: int
    seq: int
    digest: Digest


@dataclass(frozen=True, kw_only=True)
class Update:
    """One step of a neighbour's public estimate, verified up to its payload's content.

    `genesis`: the estimate is the seeded initial model (payload None). `snapshot`: it is exactly these bytes, from a
    base link or to repair a gap; large ones lie in a file (payload None, `filed`). `delta`: decode with `codec` and
    add. `layer`: 0, or which refinement of that update these bytes are, from 1; it moves no estimate. `steps` and
    `tokens`: how much the peer says that it trained for this update.
    """

    peer: PeerId
    epoch: int
    seq: int
    round: int
    kind: UpdateKind
    codec: str
    payload: bytes | None
    steps: int
    tokens: int
    filed: "BlobFile | None" = None
    layer: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """How a round closed. `staleness` (rounds) names exactly the neighbours to aggregate over, of which `fresh` have
    reached the round. `arriving`: neighbours that have not announced yet, since our chain has only just begun.
    `degree`: how many neighbours we have, `degrees`: each of those named, as its newest hello says."""

    round: int
    staleness: dict[PeerId, int]
    degree: int = 0
    degrees: dict[PeerId, int] = field(default_factory=dict)
    fresh: int
    neighbours: int
    closed_by: Literal["quorum", "deadline", "alone"]
    seconds: float
    arriving: int = 0


@dataclass(frozen=True, kw_only=True)
class RegionLayout:
    """Our region's label, and those of all regions of the run, on which its members agree; none in a flat swarm.
    `residency`: the run's policy, by region: of how many members' models what leaves it is an average at least;
    0: nothing leaves it (regions/residency.py)."""

    own: str = ""
    regions: tuple[str, ...] = ()
    residency: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Bytes of a region's model that pass from a member of one region to a member of another: `size` of the blob at
    `address`, which is the model of `model_of` after `round`. `peer`: the other end, of which one of the two regions
    is. `averaged`: as its author says; 0: not said."""

    direction: Literal["sent", "received"]
    peer: PeerId
    from_region: str
    to_region: str
    model_of: str
    round: int
    averaged: int
    address: Digest
    size: int


Recorder = Callable[[Crossing], bool]
"""The runtime's callback: records a crossing before it takes place, or as it has. False: it could not be recorded, and
what was to be sent is not."""


def unrecorded(crossing: Crossing) -> bool:
    """Default recorder: takes every crossing as recorded."""
    return True


@dataclass(frozen=True, kw_only=True)
class RegionalPayload:
    """A region's model as one of its members published it: read by `codec` alone."""

    peer: PeerId
    codec: str
    payload: "bytes | BlobFile"


@dataclass(frozen=True, kw_only=True)
class RegionalView:
    """What is here of a region's model after a round: of as many of its members as are needed, or more. `needed`: how
    many make it count. `members`: how many the region has, the median of what they say."""

    region: str
    round: int
    needed: int
    members: int
    models: tuple[RegionalPayload, ...]


@dataclass(frozen=True, kw_only=True)
class RegionClaim:
    """Where another region stands. `round`: after which its members that are connected have published, as they say, -1
    where they have published nothing;
    `announced`: after which enough of its members have announced its model, whether that is here or not."""

    round: int
    announced: int | None


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Progress of one round: how many neighbours have begun, how many of them have announced it (or a later one), and
    how many of their updates have arrived."""

    neighbours: int
    announced: int
    arrived: int


@dataclass(frozen=True, kw_only=True)
class NeighbourStatus:
    """A neighbour as shown to people: newest announced round, staleness and score (100 is a ban), whether it has a
    model to give (a newcomer has none yet) and is tracked, and how many neighbours it has, by its newest hello."""

    round: int
    staleness: int
    score: float
    gives: bool
    tracked: bool
    address: str
    neighbours: int


@dataclass(frozen=True, kw_only=True)
class LinkSpeed:
    """Speed of blobs in bytes a second, to a neighbour and from it, as measured lately; None: not measured yet."""

    sent: float | None
    received: float | None


@dataclass(frozen=True, kw_only=True)
class GossipEvent:
    """Something that an operator may want to know. `reason` is set for `rejected` and `banned`."""

    name: EventName
    peer: PeerId
    reason: Reason | None = None
    detail: str = ""


MAX_COUNTED_PEERS: Final = 256
"""Peers with a counter of their own: 32 times the default degree. The others share `OTHER_PEERS`."""

OTHER_PEERS: Final = PeerId("other")


BLOB_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 600.0)
"""Seconds. From an update of a small model on one machine to a snapshot of 1 GiB at 15 Mbit/s; half a decade each."""


@dataclass
class Durations:
    """A histogram of durations: `counts[i]` are above `bounds_s[i - 1]` and at most `bounds_s[i]` seconds; the last
    count is of those above every bound. `sum_s`: their sum in seconds."""

    bounds_s: tuple[float, ...] = BLOB_BOUNDS_S
    counts: list[int] = field(init=False)
    sum_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds


@dataclass
class GossipStats:
    """Counters since the start. Bytes are those of payloads, without framing and repeated announcements."""

    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    snapshot_bytes_sent: int = 0
    snapshot_bytes_received: int = 0
    crossed_bytes_sent: int = 0
    crossed_bytes_received: int = 0
    """Bytes of regions' models, to members of other regions and from them."""
    updates_accepted: int = 0
    snapshots_served: int = 0
    blob_seconds: Durations = field(default_factory=Durations)
    """Seconds for each blob that was pulled whole: from the first request to the last verified byte."""
    rejected: dict[tuple[PeerId, Reason], int] = field(default_factory=dict)
    rejected_by_reason: dict[Reason, int] = field(default_factory=dict)

    def count_rejection(self, peer: PeerId, reason: Reason) -> None:
        """Count one refusal, under `OTHER_PEERS` once `MAX_COUNTED_PEERS` peers have been seen."""
        self.rejected_by_reason[reason] = self.rejected_by_reason.get(reason, 0) + 1
        counted = {known for known, _ in self.rejected}
        if peer not in counted and len(counted) >= MAX_COUNTED_PEERS:
            peer = OTHER_PEERS
        self.rejected[peer, reason] = self.rejected.get((peer, reason), 0) + 1


class BlobSource(Protocol):
    """Bytes that are read by slices, wherever they lie."""

    def __len__(self) -> int:
        """Return how many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Return the bytes of a slice with explicit start and stop."""


class BlobFile(BlobSource, Protocol):
    """Bytes in a file that the runtime makes, and that is gone when nobody holds this object."""

    def write_at(self, start: int, data: bytes | memoryview) -> None:
        """Write bytes at this place, which may be beyond the end. Raises OSError."""


NewFile = Callable[[], BlobFile]
"""The runtime's callback: returns a new file. Raises OSError."""

StateSource = Callable[[], Awaitable[bytes | memoryview | BlobFile]]
"""The runtime's callback: returns the exact bytes of our public estimate after the update that is being published. They
do not change before `publish` has returned."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """What the runtime holds of the neighbours. `estimate`: returns the exact bytes of a neighbour's public estimate,
    after its newest accepted update; None when it holds none. It is called, and they are read, while a `reading` is
    entered, so that they cannot change. `liars`: how many may be among the neighbours. `withstood_by`: how few members,
    own model included, withstand these in a round; 0: no number does."""

    estimate: Callable[[PeerId], Awaitable[bytes | memoryview | BlobSource | None]]
    reading: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    liars: int = 1
    withstood_by: int = 3


SnapshotSource = Callable[[], Awaitable[tuple[Head, bytes | BlobFile]]]
"""The runtime's callback: returns the exact bytes of our public estimate, and the link they belong to."""

Observer = Callable[[GossipEvent], None]
"""Called with every event as it happens, synchronously; it must be quick and must not raise."""
