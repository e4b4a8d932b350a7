"""Sender and receivers hold the same bits: in another process, with other threads, on another machine."""

import hashlib
import struct
import subprocess
import sys

import pytest

from p2ptrain import compress

NAMES = [*compress.names(), "rotated+sign1", "rotated+int8", "demo+int8", "lossless+demo+topk", "randomk+q2"]
NUMEL = 70_001

PROGRAM = """
import hashlib, sys, torch
from p2ptrain import compress
torch.set_num_threads(int(sys.argv[1]))
x_d = torch.randn({numel}, generator=torch.Generator().manual_seed(0))
for name in {names!r}:
    codec = compress.get(name)
    payloads = [codec.encode(x_d) for _ in range(3)]
    decoded = [codec.decode(payload, {numel}).numpy().tobytes() for payload in payloads]
    print(name, hashlib.blake2b(b"".join(payloads)).hexdigest(), hashlib.blake2b(b"".join(decoded)).hexdigest())
"""


def run(threads: int) -> str:
    program = PROGRAM.format(numel=NUMEL, names=NAMES)
    command = [sys.executable, "-c", program, str(threads)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_processes_and_threads_agree() -> None:
    outputs = [run(1), run(1), run(2)]
    assert outputs[0].count("\n") == len(NAMES)
    assert outputs[0] == outputs[1]
    # Thread counts may change an encoder's sums (powersgd's matrix products), and so its payload, but no other's.
    for one, two in zip(outputs[0].splitlines(), outputs[2].splitlines(), strict=True):
        assert one == two or one.startswith("powersgd ")


def body(numel: int) -> bytes:
    """An int8 payload of scales 1/64 and bytes that follow a rule."""
    return struct.pack("<f", 1 / 64) * -(-numel // 1024) + bytes((i * 37 + 11) % 256 for i in range(numel))


def factors(rank: int, rows: int, columns: int) -> bytes:
    """A powersgd payload of scales 1/3, 1/6 .. and values of k/64."""
    scales = struct.pack(f"<{rank}f", *(1 / (3 + 3 * k) for k in range(rank)))
    halves = struct.pack(
        f"<{rank * (rows + columns)}e", *(i * 7 % 129 / 64 - 1 for i in range(rank * (rows + columns)))
    )
    return struct.pack("<HI", rank, columns) + scales + halves


GOLDEN = {
    "rotated+int8": (struct.pack("<BBI", 0, 10, 7) + body(5003), "2c9cd09be7217ca4193e0eaf8349c852"),
    "demo+int8": (b"\0" + body(5003), "47395ea39ecdf407d4d8eebb811f2b13"),
    "randomk+int8": (struct.pack("<HHQ", 7, 3, 99) + body(715), "ee3306f9f9ff93ca76a0a764d0863d3f"),
    "powersgd": (factors(5, 72, 70), "5a5258801f4fd7ba9d3166a345a94fd8"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_machine_decodes_to_these_bits(name: str) -> None:
    """What this code made of these bytes when it was written. Another digest is another format, or a wrong machine."""
    payload, digest = GOLDEN[name]
    decoded = compress.get(name).decode(payload, 5003).numpy().astype("<f4", copy=False).tobytes()
    assert hashlib.blake2b(decoded, digest_size=16).hexdigest() == digest
