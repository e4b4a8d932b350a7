"""The link with a delay between two switches, in real namespaces (root, Linux)."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from lab_harness import possible

from node.bench.race.delayed_link import TUN, DelayedLink
from node.bench.race.namespaces import Hosts
from node.system.errors import RunError

DELAY_S = 0.05
LISTEN = """
import socket
server = socket.create_server(("", 4001))
print("ready", flush=True)
for _ in range(2):
    there, _ = server.accept()
    while data := there.recv(65536):
        there.sendall(data[-1:]) if data.endswith(b"!") else None
"""
ASK = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], 4001), 10)
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
began = time.monotonic()
there.sendall(b"!")
there.recv(1)
round_trip = time.monotonic() - began
began = time.monotonic()
there.sendall(bytes(int(sys.argv[2])) + b"!")
there.recv(1)
print(round_trip, time.monotonic() - began)
"""


pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not (possible() and TUN.exists()), reason="needs root, iproute2, namespaces and TAP devices"),
]


def ask(hosts: Hosts, host: int, other: int, size: int) -> tuple[float, float]:
    """Seconds of a round trip, and until so many bytes have arrived and were answered."""
    words = [*hosts.inside(host), sys.executable, "-c", ASK, hosts.address(other), str(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    round_trip, whole = map(float, done.stdout.split())
    return round_trip, whole


def test_frames_take_their_time_between_the_halves_and_none_inside() -> None:
    size = 500_000
    with Hosts(3, 1000.0, between_mbit=20.0, between_s=DELAY_S) as hosts:
        listen = subprocess.Popen([*hosts.inside(0), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)
        try:
            assert listen.stdout is not None
            listen.stdout.readline()
            near, near_whole = ask(hosts, 2, 0, size)
            far, far_whole = ask(hosts, 1, 0, size)
        finally:
            listen.kill()
            listen.wait()
            listen.stdout.close()
        passed = hosts.bytes_between()
    assert near < DELAY_S < 2 * DELAY_S <= far < 4 * DELAY_S
    assert near_whole < far_whole
    assert far_whole > size * 8 / 20e6, "20 Mbit/s"
    assert size < passed < 1.3 * size


def test_what_cannot_be_made_leaves_nothing_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Hosts(1, 1000.0) as hosts:
        space = hosts.inside(0)[3]
        for name in ("a name that is too long", "lo"):
            with pytest.raises((RunError, struct.error)):
                DelayedLink(space, space, name, DELAY_S)
        with pytest.raises(OSError, match="No such file"):
            DelayedLink(space, "no such namespace", "one", DELAY_S)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
