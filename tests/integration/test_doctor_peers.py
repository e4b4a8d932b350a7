"""What the doctor says of peers: a member of the run and of others, a closed port, another key, no such name."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from members_harness import RUN, Member, living

from gossip.core.api import RunInfo
from gossip.core.identity import Identity
from gossip.core.ids import Digest, RunId
from node.config.sections import NetworkConfig, NodeConfig
from node.doctor.finding import Finding, Subject
from node.doctor.peer_checks import peers

HERE = "/ip4/127.0.0.1/tcp/0"


async def asked(
    *addresses: str, run: RunInfo | None = RUN, within_s: float = 15.0, **network: object
) -> dict[str, list[Finding]]:
    """The findings about these peers, by check."""
    config = NetworkConfig(peers=addresses, **{"listen": (HERE,), **network})
    subject = Subject(network=config, node=NodeConfig(), learning=None, run_dir=Path("nowhere"))
    found: dict[str, list[Finding]] = {}
    with trio.fail_after(20):
        for finding in await peers(subject, run, within_s):
            found.setdefault(finding.check, []).append(finding)
    return found


@asynccontextmanager
async def member() -> AsyncIterator[Member]:
    it = Member(1)
    async with living(it):
        yield it


async def test_a_member_of_the_run_is_well_and_sees_us() -> None:
    async with member() as it:
        found = await asked(it.address)
        assert [(each.level, "is of this run" in each.seen) for each in found["peer"]] == [("ok", True)]
        assert found["from outside"][0].level == "ok"
        assert "says nothing about the internet" in found["from outside"][0].seen
        assert it.events == []  # it was not disturbed


@pytest.mark.parametrize(
    ("run", "network", "words"),
    [
        (replace(RUN, run_id=RunId(b"x" * 16)), {}, "wrong_run"),
        (replace(RUN, genesis=Digest(b"x" * 32)), {}, "wrong_model"),
        (RUN, {"swarm": "another"}, "wrong_swarm"),
    ],
)
async def test_who_is_of_something_else_says_so(run: RunInfo, network: dict[str, str], words: str) -> None:
    async with member() as it:
        (finding,) = (await asked(it.address, run=run, **network))["peer"]
        assert finding.level == "problem"
        assert words in finding.seen
        assert finding.fix


async def test_without_a_model_the_key_alone_is_looked_at() -> None:
    async with member() as it:
        (finding,) = (await asked(it.address, run=None))["peer"]
        assert (finding.level, "proves its key" in finding.seen) == ("ok", True)


async def test_another_key_a_closed_port_and_no_such_name() -> None:
    stranger = Identity(os.urandom(32)).peer_id
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with member() as it:
            found = await asked(
                f"{it.address.partition('/p2p/')[0]}/p2p/{stranger}",
                f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}",
                f"/dns/nobody.invalid/tcp/4001/p2p/{stranger}",
            )
    levels = [each.level for each in found["peer"]]
    assert levels == ["problem", "problem", "problem"]
    assert "another node answers there, with another key" in found["peer"][0].seen
    assert "cannot be reached: connection refused" in found["peer"][1].seen
    assert "does not resolve" in found["peer"][2].seen
    assert found["from outside"][0].level == "unknown"


async def test_one_peer_that_is_well_is_enough() -> None:
    async with member() as it:
        found = await asked(it.address, f"/dns/nobody.invalid/tcp/4001/p2p/{it.transport.peer_id}")
        assert [each.level for each in found["peer"]] == ["ok", "warning"]


async def test_what_is_announced_and_not_open_is_told_with_the_fix() -> None:
    async with member() as it:
        found = await asked(it.address, announce=("/ip4/203.0.113.7/tcp/1",))
        (finding,) = found["from outside"]
        assert finding.level == "warning"
        assert "/ip4/127.0.0.1/tcp/1" in finding.seen
        assert "forward TCP port" in finding.fix


async def test_what_was_found_in_time_is_told_whatever_takes_longer() -> None:
    async def mute(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with member() as it, trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, mute, 0)
        slow = f"/ip4/127.0.0.1/tcp/{listeners[0].socket.getsockname()[1]}/p2p/{Identity(os.urandom(32)).peer_id}"
        found = await asked(slow, it.address, within_s=2.0)
        assert [each.level for each in found["peer"]] == ["unknown", "ok"]
        assert found["from outside"][0].level == "unknown"
        nursery.cancel_scope.cancel()


async def test_a_peer_that_takes_connections_and_says_nothing_is_given_up() -> None:
    async def mute(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, mute, 0)
        port = listeners[0].socket.getsockname()[1]
        (finding,) = (await asked(f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity(os.urandom(32)).peer_id}"))["peer"]
        assert (finding.level, "no answer in time" in finding.seen) == ("problem", True)
        nursery.cancel_scope.cancel()
