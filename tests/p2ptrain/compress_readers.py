"""Slow readers of the composed and stateful compressors' byte forms, in plain Python and fp64, from their descriptions.

They share no code with what they check. A reader takes the payload and the number of parameters; a stage's also takes
the reader of what is within.
"""

import math
import struct
import zlib
from collections.abc import Callable

from reference_codecs import cut as cut_evenly

Reader = Callable[[bytes, int], list[float]]

MASK = (1 << 64) - 1


def read_int8(payload: bytes, numel: int) -> list[float]:
    blocks = -(-numel // 1024)
    scales = struct.unpack(f"<{blocks}f", payload[: 4 * blocks])
    whole = struct.unpack(f"<{numel}b", payload[4 * blocks :])
    return [scales[i // 1024] * whole[i] for i in range(numel)]


def splitmix(seed: int, count: int) -> list[int]:
    """The published algorithm, step by step."""
    outputs = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def cut(numel: int, block: int) -> list[int]:
    """Whole blocks, then the rest's binary digits from the highest."""
    whole, rest = divmod(numel, block)
    return [block] * whole + [1 << bit for bit in range(block.bit_length(), -1, -1) if rest >> bit & 1]


def read_randomk(payload: bytes, numel: int, inner: Reader) -> list[float]:
    every, turn, seed = struct.unpack("<HHQ", payload[:12])
    groups = math.ceil(numel / every)
    values = inner(payload[12:], groups)
    out = [0.0] * numel
    for group, draw in enumerate(splitmix(seed, groups)):
        width = min(every, numel - group * every)
        out[group * every + ((draw >> 32) * width // 2**32 + turn) % width] = values[group]
    return out


def read_rotated(payload: bytes, numel: int, inner: Reader) -> list[float]:
    shift, log_block, seed = struct.unpack("<BBI", payload[:6])
    values, out = inner(payload[6:], numel), []
    for width in cut(numel, 1 << log_block):
        signs = [-1 if draw >> 63 else 1 for draw in splitmix(seed, width)]
        turned, values = values[:width], values[width:]
        for i in range(width):
            total = math.fsum((-1) ** (i & j).bit_count() * y for j, y in enumerate(turned))
            out.append(2.0**shift * signs[i] * total / math.sqrt(width))
    return out


def read_demo(payload: bytes, numel: int, inner: Reader) -> list[float]:
    values, out = inner(payload[1:], numel), []
    for width in cut(numel, 4096):
        across = 1 << (width.bit_length() - 1) // 2
        turned, values = values[:width], values[width:]
        rows = [dct3(turned[at : at + across]) for at in range(0, width, across)]
        columns = [dct3([row[i] for row in rows]) for i in range(across)]
        out += [2.0 ** payload[0] * columns[i][j] for j in range(width // across) for i in range(across)]
    return out


def dct3(x: list[float]) -> list[float]:
    """The orthonormal DCT-III by its definition."""
    n = len(x)
    return [
        x[0] / math.sqrt(n)
        + math.sqrt(2 / n) * math.fsum(x[k] * math.cos(math.pi * (2 * i + 1) * k / (2 * n)) for k in range(1, n))
        for i in range(n)
    ]


def read_powersgd(payload: bytes, numel: int) -> list[float]:
    rank, columns = struct.unpack("<HI", payload[:6])
    rows = math.ceil(numel / columns)
    scales = struct.unpack(f"<{rank}f", payload[6 : 6 + 4 * rank])
    halves = struct.unpack(f"<{rank * (rows + columns)}e", payload[6 + 4 * rank :])
    left, right = halves[: rank * rows], halves[rank * rows :]
    return [
        math.fsum(left[k * rows + i // columns] * scales[k] * right[k * columns + i % columns] for k in range(rank))
        for i in range(numel)
    ]


def read_lossless(payload: bytes, numel: int, inner: Reader) -> list[float]:
    if payload[0] == 0:
        return inner(payload[1:], numel)
    plain = zlib.decompress(payload[1:], -15)
    return inner(plain, numel) if payload[0] == 1 else read_topk_plain(plain, numel)


def read_topk_plain(plain: bytes, numel: int) -> list[float]:
    """topk's plain form with values of 8 bits, value by value."""
    head = int.from_bytes(plain[:2], "little")
    assert head >> 13 == 0
    widths = cut_evenly(numel, 4096)
    kepts = [math.ceil(head * width / 4096) for width in widths]
    scales = struct.unpack(f"<{len(widths)}f", plain[2 : 2 + 4 * len(widths)])
    at = 2 + 4 * len(widths)
    gaps, at = list(plain[at : at + sum(kepts)]), at + sum(kepts)
    for i, gap in enumerate(gaps):
        if gap == 255:
            gaps[i] += int.from_bytes(plain[at : at + 2], "little")
            at += 2
    values = list(struct.unpack(f"<{sum(kepts)}b", plain[at:]))
    out: list[float] = []
    for width, kept, scale in zip(widths, kepts, scales, strict=True):
        row, place = [0.0] * width, -1
        for _ in range(kept):
            place += 1 + gaps.pop(0)
            row[place] = scale * values.pop(0)
        out += row
    assert not gaps
    assert not values
    return out
