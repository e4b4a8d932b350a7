"""What nodes send is accounted for: each byte once, and under what it is for."""

from pathlib import Path

import pytest
import trio

from gossip.core.digests import digest_of
from gossip.core.ids import PeerId
from gossip.core.limits import STREAM_PROTOCOL
from gossip.core.messages import ChunkRequest, HelloRequest, encode_request
from node.simulation.control_ledger import AGAIN, NEIGHBOURS, OTHERS, OWN, STREAMS, ControlLedger, control_of
from node.simulation.growth import scenario_text, steady_costs
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play

A, B, C = map(PeerId, "abc")


def frame(request: HelloRequest | ChunkRequest) -> bytes:
    body = encode_request(request)
    return len(body).to_bytes(4, "big") + body


async def test_kinds(autojump_clock: trio.testing.MockClock) -> None:
    it = ControlLedger()
    it.broadcast(A, b"link", 3, own=True, kept=lambda peer: False)
    it.broadcast(A, b"link", 3, own=True, kept=lambda peer: False)
    it.broadcast(B, b"link", 2, own=False, kept=lambda peer: peer == A)
    it.broadcast(B, b"link", 2, own=False, kept=lambda peer: peer == A)
    it.broadcast(C, b"link", 5, own=False, kept=lambda peer: False)
    tell = it.stream(A, B, STREAM_PROTOCOL, 450)
    hello, chunk = frame(HelloRequest(hello=b"x" * 50)), frame(ChunkRequest(address=digest_of(b""), index=0))
    for writer, data in ((A, hello), (B, b"answer"), (A, chunk), (B, b"payload"), (B, b" and more")):
        tell(writer, data)
    it.stream(A, B, "/another", 0)(A, b"dial me")
    assert it.sent[0] == {
        OWN: 12,
        OWN + AGAIN: 12,
        NEIGHBOURS: 8,
        NEIGHBOURS + AGAIN: 8,
        OTHERS: 20,
        STREAMS: 900,
        "hello": len(hello) + 6,
        "chunk": len(chunk) + 16,
        "/another": 7,
    }
    assert control_of(it.sent[0], 16)["manifests"] == len(chunk)


@pytest.mark.thorough
def test_the_kinds_of_a_run_add_up_to_what_was_sent(tmp_path: Path) -> None:
    path, ledger = tmp_path / "growth.toml", ControlLedger()
    path.write_text(scenario_text(10, 9), encoding="utf-8")
    costs = steady_costs(play(load_scenario(path), tap=ledger), end_s=15.0, ledger=ledger)
    assert sum(costs.by_kind.values()) == pytest.approx(costs.control_bytes, rel=0.02)
    assert {"hello", OWN, NEIGHBOURS, OTHERS, STREAMS} <= costs.by_kind.keys()
    assert sum(costs.audits.values()) == 10
