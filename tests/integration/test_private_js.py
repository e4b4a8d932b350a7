"""Stock js-libp2p and a private network: with its pre-shared key it connects, either way; with another it does not."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p_harness import Node, running
from private_harness import Roster, besieged, member
from test_js_peer import FOLDER, missing

from gossip.transport.base import TransportError
from gossip.transport.pnet import PresharedKey

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.alone]

PATIENCE_S = 30.0


def key_file(folder: Path, key: PresharedKey | None) -> str:
    if key is None:
        return "-"
    path = folder / f"{key.fingerprint}.key"
    if not path.exists():
        key.write(path)
    return str(path)


@asynccontextmanager
async def peer(*words: str) -> AsyncIterator[trio.Process]:
    async with trio.open_nursery() as nursery:
        command = ["node", str(FOLDER / "private_peer.mjs"), *words]
        run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        with trio.fail_after(PATIENCE_S):
            yield process
        process.kill()


async def lines(process: trio.Process, until: set[str]) -> list[dict[str, Any]]:
    """What it says, up to the first of these events."""
    assert process.stdout is not None
    text = b""
    while True:
        found = [json.loads(line) for line in text.split(b"\n")[:-1]]
        if any(line["event"] in until for line in found):
            return found
        piece = await process.stdout.receive_some(65536)
        assert piece, f"it ended after {text!r}"
        text += piece


async def dials(tmp_path: Path, key: PresharedKey | None, node: Node) -> dict[str, Any]:
    """What comes of js dialling a node with this key."""
    async with peer(key_file(tmp_path, key), "dial", node.address) as process:
        return (await lines(process, {"echoed", "failed"}))[-1]


@pytest.mark.thorough
async def test_the_same_key_connects_either_way_and_another_does_not(tmp_path: Path) -> None:
    ours, another = PresharedKey.generate(), PresharedKey.generate()
    node, other, public = Node(psk=ours), Node(psk=another, dial_timeout_s=2.0), Node(dial_timeout_s=2.0)
    async with running(node, other, public):
        assert await dials(tmp_path, ours, node) == {"event": "echoed", "same": True}
        assert not any(node.transport.drops[kind] for kind in ("refused_psk", "handshake"))
        for key in (another, None):
            assert (await dials(tmp_path, key, node))["event"] == "failed"
        assert node.transport.drops["refused_psk"] >= 2
        async with peer(key_file(tmp_path, ours), "listen") as process:
            (line,) = await lines(process, {"listening"})
            for stranger in (other, public):
                with pytest.raises(TransportError):
                    await stranger.transport.dial(line["address"])
            there = await node.transport.dial(line["address"])
            assert await node.echo(there, b"both ways" * 10_000) == b"both ways" * 10_000


async def test_stock_js_is_no_member_whatever_key_it_has(tmp_path: Path) -> None:
    roster, key = Roster(), PresharedKey.generate()
    for ours in (None, key):
        victim = member(roster, ours)
        async with besieged(victim, roster, ours):
            assert (await dials(tmp_path, ours, victim))["event"] == "failed"
        assert victim.transport.drops["refused_protocol"] >= 1
        assert ("somebody at 127.0.0.1", "it offers another security than members do") in victim.refused
