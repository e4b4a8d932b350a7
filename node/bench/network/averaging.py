"""Two ways to a mean: everybody takes every payload (`mesh`), or each takes, averages and gives out a part (`parts`).

The mesh moves N (N - 1) payloads, parts 2 (N - 1) fp32 vectors, which is less where payloads are about as large as
vectors. Of compressed payloads a mesh moves less still: their mean is no compressed payload. Both give the mean of the
same vectors, taken in the order of the peers' names, so that all peers come to the same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
import trio

from gossip.allreduce.allreduce import Group, ReducedPart
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES
from node.bench.network.bench_member import BenchMember
from node.bench.network.child import now
from node.system.errors import RunError
from p2ptrain import aggregate
from p2ptrain.aggregate.base import Rows
from p2ptrain.compress import Compressor
from p2ptrain.compress.blocks import BlockCodec, chunks
from p2ptrain.compress.rows import scratch

Way = Literal["mesh", "parts"]

FP32_BYTES: Final = 4
GATHER_S: Final = 60.0
"""For all vectors to come: a bench waits, where training would go on without the late."""
EXCHANGE_S: Final = 120.0

in_thread = trio.to_thread.run_sync


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """The mean, when it was begun, published and done (`now`), and how large a payload was."""

    mean_d: torch.Tensor
    began: float
    published: float
    ended: float
    payload_bytes: int


def way_for(codec: str, size: int, peers: int) -> Way:
    """Return the way that moves fewer bytes, of vectors of `size` bytes. Parts are of whole chunks, so everybody must
    have one."""
    return "parts" if codec == "none" and peers > 2 and size >= peers * CHUNK_BYTES else "mesh"


async def by_mesh(member: BenchMember, codec: Compressor, own_d: torch.Tensor, round_: int, others: int) -> Averaged:
    """Publish the tensor, fetch everybody's, average. The own one counts as the others see it, as in training."""
    numel = own_d.numel()
    began = now()
    payload = await in_thread(codec.encode, own_d)
    await member.service.publish(round=round_, codec=codec.name, payload=payload, steps=1, tokens=0)
    published = now()
    payloads = {member.peer_id: payload}
    while len(payloads) <= others:
        update = (await member.arrivals.receive()).update
        if update.round != round_ or update.payload is None:
            raise RunError(f"{update.peer} sent round {update.round} in round {round_}")
        payloads[update.peer] = update.payload
    mean_d = await in_thread(mean_of_payloads, codec, [payloads[name] for name in sorted(payloads)], numel)
    return Averaged(mean_d=mean_d, began=began, published=published, ended=now(), payload_bytes=len(payload))


async def by_parts(member: BenchMember, codec: Compressor, own_d: torch.Tensor, round_: int) -> Averaged:
    """Exchange parts with all neighbours. Raises RunError when one is missing: a benchmark needs all of them."""
    began = now()
    payload = await in_thread(codec.encode, own_d)
    published = now()
    names = sorted([member.peer_id, *member.service.neighbours()])
    group = Group(members=tuple(names), round=round_, size=len(payload))
    parts = await member.service.exchange(group, payload, mean_of_bytes, gather_s=GATHER_S, timeout_s=EXCHANGE_S)
    mean_d = await in_thread(joined_up, parts, own_d.numel())
    return Averaged(mean_d=mean_d, began=began, published=published, ended=now(), payload_bytes=len(payload))


def mean_of_payloads(codec: Compressor, payloads: Sequence[bytes], numel: int) -> torch.Tensor:
    """Return the mean of the vectors in these payloads. Of block codecs a chunk of all is decoded and summed at a time,
    in a core's caches, so that of n payloads no n vectors are written and read."""
    if not isinstance(codec, BlockCodec) or codec.sparse:
        return mean_of([codec.decode(payload, numel) for payload in payloads])
    mean_d = np.empty(numel, dtype=np.float32)
    first, *others = [codec.reader(payload, numel) for payload in payloads]
    for chunk in chunks(numel, codec.block):
        mean_rw = chunk.of(mean_d, chunk.width, codec.block)
        first(chunk, mean_rw)
        term_rw = scratch("term", mean_rw.shape, np.float32)
        for read in others:
            read(chunk, term_rw)
            np.add(mean_rw, term_rw, out=mean_rw)
        np.multiply(mean_rw, np.float32(1 / len(payloads)), out=mean_rw)
    return torch.from_numpy(mean_d)


def mean_of(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean as the product computes it."""

    def read(part: slice) -> torch.Tensor:
        return torch.stack([vector_d[part] for vector_d in vectors])

    return aggregate.get("mean", f=0).reduce(Rows(len(vectors), vectors[0].numel(), read))


def mean_of_bytes(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
    """Return the mean of one part of fp32 vectors, as bytes."""
    rows = [np.frombuffer(data, dtype="<f4") for data in vectors.values()]

    def read(part: slice) -> torch.Tensor:
        return torch.from_numpy(np.stack([row_c[part] for row_c in rows]).astype(np.float32, copy=False))

    return (
        aggregate.get("mean", f=0)
        .reduce(Rows(len(rows), rows[0].size, read))
        .numpy()
        .astype("<f4", copy=False)
        .tobytes()
    )


def joined_up(parts: Sequence[ReducedPart], numel: int) -> torch.Tensor:
    """Return the whole mean, (numel,) fp32. Raises RunError when a part is missing."""
    mean_d = np.empty(numel, dtype=np.float32)
    for part in parts:
        if part.data is None:
            raise RunError(f"{part.owner} did not give its part of the mean")
        values_c = np.frombuffer(part.data, dtype="<f4")
        start = part.part.start // FP32_BYTES
        mean_d[start : start + values_c.size] = values_c
    return torch.from_numpy(mean_d)
