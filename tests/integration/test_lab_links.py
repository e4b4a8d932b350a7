"""Slow links and a long way between: 20 Mbit/s each way, and a relay of 80 ms there and back that loses connections.

Real processes in network namespaces (lab_harness.py); `make soak` runs them where namespaces can be made.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import lab_ends
import pytest
import slow_relay
from lab_harness import PORT, Lab, possible
from processes_harness import Program

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not possible(), reason="needs root, iproute2 and network namespaces"),
]

RATE, BITS_PER_S = "20mbit", 20e6
DELAY_S = 0.04
"""One way."""
LOSS = 0.01
BLOB_MIB, BLOBS = 16, 3
NODES = 8
LOW_BANDWIDTH = Path(__file__).parents[2] / "configs" / "low-bandwidth.toml"
RELAY_PORT = 5000


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(NODES, RATE) as made:
        yield made


def relay(lab: Lab, folder: Path, *, loss: float) -> Program:
    """Port 5000 + i of the hub leads to host i."""
    routes = [f"{RELAY_PORT + host}={lab.address(host)}:{PORT}" for host in lab.hosts]
    return Program(folder, DELAY_S, loss, *routes, before=lab.inside(None), run=[slow_relay.__file__])


def behind(host: int) -> str:
    """A host's address at the relay."""
    return f"/ip4/{Lab.HUB}/tcp/{RELAY_PORT + host}"


def end(lab: Lab, host: int, folder: Path, announce: str, publishes: int, *join: str) -> Program:
    listen = f"/ip4/{lab.address(host)}/tcp/{PORT}"
    words = (listen, announce, BLOB_MIB, publishes, *join)
    return Program(folder, *words, before=lab.inside(host), run=[lab_ends.__file__])


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "80 ms"])
def test_bulk_fills_the_link(lab: Lab, tmp_path: Path, relayed: bool) -> None:
    with ExitStack() as stack:
        if relayed:
            stack.enter_context(relay(lab, tmp_path / "relay", loss=0.0)).hear("relay")
        one = stack.enter_context(end(lab, 0, tmp_path / "one", behind(0) if relayed else "-", BLOBS))
        address = one.hear("started")["address"]
        other = stack.enter_context(end(lab, 1, tmp_path / "other", "-", 0, address))
        other.hear("arrived", count=BLOBS)
        begun = {event["round"]: event["at"] for event in one.heard("publishing")}
    bits = BLOB_MIB * 2**20 * 8
    shares = [bits / (event["at"] - begun[event["round"]]) / BITS_PER_S for event in other.heard("arrived")]
    print("share of the link:", [round(share, 3) for share in shares])
    assert median(shares) >= 0.85


def test_rounds_go_on_over_slow_and_lossy_links_with_the_shipped_settings(lab: Lab, tmp_path: Path) -> None:
    """Eight on two cores take half an hour for the file's hundred steps a round, so they do ten, and so say more in the
    same time, not less."""
    rounds = 6
    with ExitStack() as stack:
        way = stack.enter_context(relay(lab, tmp_path / "relay", loss=LOSS))
        way.hear("relay")
        nodes: list[Program] = []
        joining: tuple[str, ...] = ()
        for host in lab.hosts:
            announce = f'network.announce=["{behind(host)}"]'
            words = ("--config", LOW_BANDWIDTH, "--rounds", rounds, "--inner-steps", 10, "--set", "train.threads=1")
            node = lab.node(host, tmp_path / f"host-{host}", *words, "--set", announce, *joining)
            nodes.append(stack.enter_context(node))
            joining = joining or ("--peer", node.hear("started")["addresses"][0])
        assert [node.end(within_s=900) for node in nodes] == [0] * NODES
        last = [node.heard("round")[-1] for node in nodes]
        print("utilization:", [round(event["utilization"], 3) for event in last])
        print("members:", [event["members"] for event in last], "relay:", way.events[-1])
        assert all(event["round"] == rounds for event in last)
        assert all(event["rejected"] == 0 for event in last)
        assert median(event["utilization"] for event in last) >= 0.9
        assert way.events[-1]["broken"] > 0, "else nothing was lost, and nothing shown"
