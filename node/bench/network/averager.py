"""A peer of `p2ptrain bench average`: averages its tensor with everybody's; then the mean is checked.

How it averages is averaging.py's matter; all peers must come to the same bits. What the mean should be, each peer
computes from the seeds alone, in double precision: nothing that came over the network takes part in that.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import torch

from node.bench.network.averaging import FP32_BYTES, Averaged, by_mesh, by_parts, in_thread
from node.bench.network.bench_member import BenchMember, joined
from node.bench.network.child import Order, Orders, say
from node.system.errors import RunError
from p2ptrain import compress
from p2ptrain.compress import Compressor
from p2ptrain.training.flat import vector_bytes

MIB: Final = 1 << 20
SLACK_BYTES: Final = 1 << 16
"""For scales and headers, as a node has it."""
PART: Final = 1 << 20
"""Values that are checked at a time."""
ROUNDING: Final = 2.0**-24
"""Unit roundoff of fp32: one operation is off by at most so much of its result."""


async def averager(orders: Orders) -> None:
    """Run a peer that averages: orders are `start`, `connect`, then `prepare`, `average` and `check` by turns."""
    start = await orders.expect("start")
    torch.set_num_threads(1)
    codec = compress.get(start["codec"])
    others = start["peers"] - 1
    most_bytes = start["mib"] * MIB + SLACK_BYTES
    async with joined(start["swarm"], start["join"], others, most_bytes) as member:
        say("listening", address=member.address)
        await orders.expect("connect")
        say("connected", seconds=await member.connect(others))
        while True:
            order = await orders.expect("prepare")
            own_d = await in_thread(tensor, start, start["index"], order["repetition"])
            say("prepared")
            await orders.expect("average")
            done = await _average(member, start, codec, own_d, order["repetition"] + 1)
            say(
                "averaged",
                began=done.began,
                published=done.published,
                ended=done.ended,
                payload_bytes=done.payload_bytes,
            )
            await orders.expect("check")
            rounding = await in_thread(_check, done.mean_d, codec, start, order["repetition"])
            say("checked", rounding=rounding, digest=hashlib.blake2b(vector_bytes(done.mean_d)).hexdigest())
            del own_d, done


async def _average(member: BenchMember, start: Order, codec: Compressor, own_d: torch.Tensor, round_: int) -> Averaged:
    if start["way"] == "parts":
        return await by_parts(member, codec, own_d, round_)
    return await by_mesh(member, codec, own_d, round_, start["peers"] - 1)


def tensor(start: Order, index: int, repetition: int) -> torch.Tensor:
    """Return the tensor of peer `index`: (MiB * 2^18,), Gaussian, of the seed, the peer and the repetition alone."""
    name = f"{start['seed']}|{index}|{repetition}".encode()
    seed = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")
    return torch.randn(start["mib"] * MIB // FP32_BYTES, generator=torch.Generator().manual_seed(seed))


def _check(mean_d: torch.Tensor, codec: Compressor, start: Order, repetition: int) -> float:
    """The largest error, in units of the rounding that n additions and a multiplication may leave: at most 1.

    Raises RunError when it is larger, or nothing at all was averaged.
    """
    vectors = [_as_received(codec, tensor(start, index, repetition)) for index in range(start["peers"])]
    worst = 0.0
    for part in _parts(mean_d.numel()):
        exact_d, size_d = torch.zeros(2, mean_d[part].numel(), dtype=torch.float64)
        for vector_d in vectors:
            exact_d += vector_d[part]
            size_d += vector_d[part].abs()
        allowed_d = (len(vectors) + 1) * ROUNDING * size_d / len(vectors)
        error_d = (mean_d[part] - exact_d / len(vectors)).abs()
        found = float((error_d / allowed_d.clamp_min(torch.finfo(torch.float32).tiny)).max())
        if not found <= 1.0:  # also when it is NaN
            raise RunError(f"the mean is wrong: {found:.3g} times as far off as rounding explains")
        worst = max(worst, found)
    return worst


def _as_received(codec: Compressor, x_d: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_d), x_d.numel())


def _parts(numel: int) -> Iterator[slice]:
    return (slice(start, min(start + PART, numel)) for start in range(0, numel, PART))
