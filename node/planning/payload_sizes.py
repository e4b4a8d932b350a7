"""How many bytes a member sends and receives in a round: what its own codec and strategy make, and nothing copied.

A strategy is built on a sample of the model's size or less, and encodes it: a fragment, a sparse message and the exact
round of `gossip_pga` come out as they are. Groups and parts are those of the strategy's own `peer_selection` and of
gossip's `Group`. A codec whose payload does not grow with the vector (powersgd) is encoded at two sizes.

All members are taken to be alike. What all send is what all receive, so with equal uplinks sharing a payload out
(decision 23) neither saves nor costs; `shared_out_s` says what it does for one member that is slower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

from gossip.allreduce.allreduce import Group
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_BLOB_BYTES
from node.config.schema import Config
from p2ptrain import compress, inner
from p2ptrain.inner.base import Place, moment_buffers
from p2ptrain.sync import ALLREDUCE, SECURE, SyncConfig, averages_gradients, build
from p2ptrain.sync.des_loc import MomentAllReduce
from p2ptrain.sync.group_allreduce import GroupAllReduce
from p2ptrain.sync.packing import LEAST_PIECE, part_bytes_for

SAMPLE: Final = 1 << 18
"""Parameters that are encoded: many blocks of every codec, and a tenth of a second of the slowest."""
STEADY: Final = 0.1
"""Of an exponent: a payload that grows with the vector to a power as near to 1 as this grows with the vector. Headers
and tables alone make it differ by 0.02; powersgd's is a half."""
WARMED_UP: Final = 12
"""Rounds after which `warmup+` sends what it will always send."""
ROUNDS_OF_GRAPHS: Final = 16
"""Rounds whose groups are averaged over: groups of a graph change from round to round."""
GENESIS_STD: Final = 0.02
MOVED_STD: Final = 1e-3
"""Of the sample's parameters, and of a round's movement: codecs are blind to both scales."""


@dataclass(frozen=True, kw_only=True)
class RoundTraffic:
    """A round of one member, in bytes of payload."""

    payload_bytes: float
    """Of what it publishes, once: mean over rounds."""
    peak_bytes: float
    """The largest of a round."""
    copies: float
    """Copies of that which a member sends on average; as many come in."""
    most_sent_bytes: float
    """By the member that sends most in a round: the owner of the largest part, in an exchange by parts."""
    most_received_bytes: float
    transfers: float
    """Payloads or parts that a member sends to others in a round."""
    one_ways: int
    """One-way latencies that a round waits for, one after another."""
    neighbours: int

    @property
    def sent_bytes(self) -> float:
        """Return what a member sends on average."""
        return self.copies * self.payload_bytes

    def bits(self, parameters: float) -> float:
        """Return the bits of a payload for each parameter."""
        return 8 * self.payload_bytes / parameters


def round_traffic(config: Config, parameters: int, nodes: int) -> RoundTraffic:
    """Return what a member of a swarm of `nodes` sends and receives in a round. ValueError for what no plan can know:
    a compressor that follows the link, refinements, a strategy that averages gradients."""
    sync = config.sync
    check_plannable(sync)
    if nodes < 2:
        return RoundTraffic(
            payload_bytes=0,
            peak_bytes=0,
            copies=0,
            most_sent_bytes=0,
            most_received_bytes=0,
            transfers=0,
            one_ways=0,
            neighbours=0,
        )
    neighbours = min(config.network.degree, nodes - 1)
    if sync.spec().averager == ALLREDUCE:
        return _by_parts(config, parameters, neighbours)
    return _published(sync, parameters, neighbours)


def check_plannable(sync: SyncConfig) -> None:
    """Raise ValueError for what no plan can know the bytes of."""
    if "adaptive" in sync.compressor.split("+"):
        raise ValueError("adaptive sends what the link carries: plan with a compressor of a fixed size, such as q2")
    if sync.layers:
        raise ValueError("layers are sent as far as each link carries them: plan without sync.layers")
    if sync.spec().averager == SECURE:
        raise ValueError(f"{sync.strategy} sends masks and shares as well, which no plan counts: plan with allreduce")
    if averages_gradients(sync.strategy):
        raise ValueError(f"{sync.strategy} averages at every step, and no node runs it: plan with tracked_gossip")


def ring_copies(members: float) -> float:
    """Return the copies of a vector that a member sends in a ring all-reduce, or in one by parts: 2 (n-1) / n."""
    return 2 * (members - 1) / members


def shared_out_s(payload_bytes: float, takers: int, up: float, others_up: float) -> float:
    """Return the seconds after which all takers have the payload of an author whose uplink is `up` bytes a second,
    where the takers' `others_up` have nothing else to send: the author sends each chunk about once (decision 23), the
    takers all other copies. Never longer than the author alone takes."""
    alone = takers * payload_bytes / up
    once = max(payload_bytes / up, (takers - 1) * payload_bytes / (takers * others_up))
    return min(alone, once)


def _published(sync: SyncConfig, parameters: int, neighbours: int) -> RoundTraffic:
    """Gossip: a payload is published, and each neighbour takes a copy."""
    sizes: Sequence[float] = _message_bytes(sync, min(parameters, SAMPLE))
    if parameters > SAMPLE:
        small = _message_bytes(sync, SAMPLE // 4)
        sizes = [_grown(size, before, parameters) for size, before in zip(sizes, small, strict=True)]
    mean = sum(sizes) / len(sizes)
    sent = neighbours * mean
    return RoundTraffic(
        payload_bytes=mean,
        peak_bytes=max(sizes),
        copies=neighbours,
        most_sent_bytes=sent,
        most_received_bytes=sent,
        transfers=neighbours,
        one_ways=3,  # the announcement, the request, the payload
        neighbours=neighbours,
    )


def _grown(size: float, of_a_quarter: float, parameters: int) -> float:
    exponent = min(1.0, math.log(size / of_a_quarter) / math.log(4))
    exponent = 1.0 if abs(1 - exponent) < STEADY else exponent
    return float(size * (parameters / SAMPLE) ** exponent)


@lru_cache(maxsize=64)
def _message_bytes(sync: SyncConfig, numel: int) -> Sequence[int]:
    """The bytes of the messages of a turn of rounds, once a codec that warms up has."""
    drawn = torch.Generator().manual_seed(0)
    theta_d = GENESIS_STD * torch.randn(numel, generator=drawn)
    strategy = build(sync, theta_d.clone(), judge=lambda model_d, round: 0.0)
    turn = _turn(sync)
    first = WARMED_UP if "warmup" in sync.compressor else 0
    first = -(-first // turn) * turn
    sizes = []
    for round_ in range(first + turn):
        theta_d += MOVED_STD * torch.randn(numel, generator=drawn)
        sizes.append(len(strategy.encode(theta_d, round=round_).payload))
    return sizes[first:]


def _turn(sync: SyncConfig) -> int:
    """Rounds after which sizes repeat."""
    period = sync.options.get("period", 1)
    return max(sync.spec().turn, period if isinstance(period, int) else 1)


def _by_parts(config: Config, parameters: int, neighbours: int) -> RoundTraffic:
    """An exchange within groups: a part to each owner, and the reduced own part to all others."""
    names = [f"{number:06d}" for number in range(neighbours + 1)]
    size = _packed_bytes(config, min(parameters, SAMPLE)) * parameters / min(parameters, SAMPLE)
    if size > MAX_BLOB_BYTES:
        raise ValueError(
            f"{config.sync.strategy} exchanges at most {MAX_BLOB_BYTES / 1e9:.3g} GB a vector, not {size / 1e9:.3g} GB"
        )
    means, most, most_in, transfers = [], [], [], []
    for round_ in range(ROUNDS_OF_GRAPHS):
        members = _group_size(config.sync, min(parameters, SAMPLE), len(names), round_)
        if members < 2:
            means.append(0.0)
            continue
        group = Group(
            members=tuple(map(PeerId, names[:members])),
            round=round_,
            size=math.ceil(size),
            chunk_bytes=part_bytes_for(math.ceil(size), math.ceil(size * LEAST_PIECE / parameters)),
        )
        parts = [group.part_size(owner) for owner in group.members]
        means.append(ring_copies(members))
        # An owner pulls its part of all others and gives it to them; the largest owner decides when all have all.
        most.append(max(group.size - part + (members - 1) * part for part in parts))
        most_in.append(max((members - 1) * part + group.size - part for part in parts))
        transfers.append(sum(part > 0 for part in parts) + members - 2)
    copies = sum(means) / len(means)
    return RoundTraffic(
        payload_bytes=size,
        peak_bytes=size,
        copies=copies,
        most_sent_bytes=max(most, default=0.0),
        most_received_bytes=max(most_in, default=0.0),
        transfers=sum(transfers) / len(means),
        one_ways=6,  # a statement, its request and its part, for the parts and once more for what became of them
        neighbours=neighbours,
    )


def _packed_bytes(config: Config, numel: int) -> int:
    optimizer = (config.train.optimizer, *sorted(config.train.optimizer_options().items()))
    return _packed_sample(config.sync, optimizer if "moments" in config.sync.spec().wants else (), numel)


def encoded_bits(compressor: str, **options: object) -> float:
    """Return the bits a value of a codec's payload on a Gaussian vector, by encoding one."""
    codec = compress.get(compressor, **options)
    sample_d = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    return 8 * len(codec.encode(sample_d)) / SAMPLE


# SyncConfig hashes by all but its members' options, and compares with them.
@lru_cache(maxsize=64)
def _packed_sample(sync: SyncConfig, optimizer: tuple[Any, ...], numel: int) -> int:
    """The bytes of a packed vector of so many parameters. `optimizer`: its name and options, where moments travel."""
    strategy = _exchanging(sync, numel)
    if isinstance(strategy, MomentAllReduce) and optimizer:  # its packing alone changes
        name, *options = optimizer
        steps = inner.get(name, **dict(options))
        steps.attach(_Sample(numel))
        strategy.average_moments(moment_buffers(steps))
    packing = strategy.packing
    return len(packing.pack(torch.zeros(packing.numel)))


@lru_cache(maxsize=1024)
def _group_size(sync: SyncConfig, numel: int, members: int, round_: int) -> int:
    """How many of so many members meet in a round: the strategy's own rule."""
    names = [f"{number:06d}" for number in range(members)]
    return len(_exchanging(sync, numel).peer_selection(names[1:], round=round_))


@lru_cache(maxsize=8)
def _exchanging(sync: SyncConfig, numel: int) -> GroupAllReduce:
    """A strategy to be asked; kept, as finding how many parameters fill a part takes seconds."""
    strategy = build(sync, torch.zeros(numel), f"{0:06d}")
    assert isinstance(strategy, GroupAllReduce)
    return strategy


class _Sample:
    """A model's flat buffers, as one hidden matrix."""

    def __init__(self, numel: int) -> None:
        self.data_d, self.grad_d = torch.zeros(numel), torch.zeros(numel)
        self.places = [Place(name="all", span=slice(0, numel), shape=torch.Size((numel, 1)), decayed=True, hidden=True)]
        self.decayed = [self.data_d]
