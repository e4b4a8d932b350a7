"""What may leave a region, and what does: every frame of whole runs is captured, and compared with the policy and with
the record of crossings."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from captured_frames import CapturedFrames, CapturedPipe, Passed
from sim_swarm import Member, Swarm, key_of, swarm

from gossip.core.ids import PeerId
from gossip.reachability.circuit import HOP_PROTOCOL, STOP_PROTOCOL
from node.system.run_dir import CROSSINGS
from node.training.node import Node

ROUNDS = 32
SYNC = {"regions": ["east", "north", "west"], "residency": {"east": "nothing", "west": 3}}
"""Nothing leaves the east, averages of three members or more leave the west, and each member's averaged model the
north."""


class Payloads:
    """All that members of a region publish for their neighbours: updates, and the models that newcomers take."""

    def __init__(self) -> None:
        self.all: set[bytes] = set()

    def watch(self, node: Node) -> None:
        """Keep what this node publishes from now on."""
        service, publish = node.service, node.service.publish
        source = node.service._server._snapshots._source

        async def kept(**what: object) -> None:
            payload = what["payload"]
            assert isinstance(payload, bytes)
            self.all.add(payload)
            await publish(**what)  # type: ignore[arg-type]

        async def cut() -> object:
            head, snapshot = await source()
            self.all.add(bytes(snapshot[0 : len(snapshot)]))
            return head, snapshot

        service.publish = kept  # type: ignore[method-assign]
        node.service._server._snapshots._source = cut  # type: ignore[assignment]


async def start(it: Swarm, name: str, region: str, secret: Payloads | None = None, **network: object) -> Member:
    return await it.start(
        name,
        step_seconds=0.2,
        wait_for=2,
        change=(lambda node: None) if secret is None else secret.watch,
        sync=SYNC,
        train={"rounds": ROUNDS, "eval_every": ROUNDS},
        network={"relay": False, **network},
        node={"region": region, "wait_timeout_s": 1.0},
    )


def crossings_of(member: Member) -> list[dict[str, Any]]:
    """Return a member's record of what has crossed between regions."""
    path = member.folder / CROSSINGS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records_of(members: Sequence[Member], direction: str) -> Passed:
    """What the members' records say: by who sent, to whom, and the blob."""
    found: Passed = Counter()
    for member in members:
        mine = member.transport.peer_id
        for record in crossings_of(member):
            if record["direction"] == direction:
                peer = PeerId(record["peer"])
                ends = (mine, peer) if direction == "sent" else (peer, mine)
                found[(*ends, record["digest"])] += record["bytes"]
    return found


@pytest.mark.thorough
async def test_nothing_leaves_a_closed_region_and_every_crossing_is_in_the_record(tmp_path, autojump_clock):
    """Three regions, with relays in two of them, two members of the closed one that only a relay reaches, and a
    newcomer to it that takes its neighbours' model."""
    secret, capture = Payloads(), CapturedFrames()
    async with swarm(tmp_path) as it:
        it.network.tap = capture
        for name in ("east-hidden-0", "east-hidden-1"):
            it.network.hide(key_of(name).peer_id)
        for number in range(5):
            await start(it, f"west-{number}", "west")
        for number in range(3):
            await start(it, f"north-{number}", "north", relay=number == 0)
        await start(it, "east-0", "east", secret, relay=True)
        for name in ("east-1", "east-hidden-0", "east-hidden-1"):
            await start(it, name, "east", secret)
        await it.members["east-1"].node.service.wait_for_neighbours(3, 60.0)
        while it.members["east-0"].node.state.round < 10:  # noqa: ASYNC110  # of another's state
            await trio.sleep(1.0)
        newcomer = await start(it, "east-late", "east", secret)
        await it.finished()
        members = list(it.members.values())
    region_of = {member.transport.peer_id: member.name.split("-")[0] for member in members}
    east = {peer for peer, region in region_of.items() if region == "east"}

    assert newcomer.told("joined"), "it took a model of its neighbours"
    assert {*newcomer.told("joined")[0]["peers"]} <= east
    assert len(secret.all) > 100

    def outside(pipe: CapturedPipe) -> bool:
        return bool(pipe.ends & east) and not pipe.ends <= east

    across = [pipe for pipe in capture.pipes if outside(pipe)]
    carried = b"".join(bytes(said) for pipe in across for said in pipe.said.values())
    carried += b"".join(data for _, data in capture.broadcasts)
    assert not [payload for payload in secret.all if payload in carried]
    inside = b"".join(bytes(said) for pipe in capture.pipes if pipe.ends <= east for said in pipe.said.values())
    assert sum(payload in inside for payload in secret.all) > 100, "and inside they are to be seen"

    legs = [pipe for pipe in capture.pipes if pipe.protocol in (HOP_PROTOCOL, STOP_PROTOCOL) and pipe.ends & east]
    assert sum(len(said) for pipe in legs for said in pipe.said.values()) > 10_000, "the hidden two reach each other"
    assert all(pipe.relay in east for pipe in legs)
    others = [pipe for pipe in legs if not pipe.ends <= east]
    assert all(len(said) < 64 for pipe in others for said in pipe.said.values()), "asked for, and refused"

    crossed = capture.passed(lambda pipe: region_of[pipe.opener] != region_of[pipe.other])
    assert crossed == records_of(members, "sent")
    assert crossed == records_of(members, "received")
    ways = {(region_of[sender], region_of[to]) for sender, to, _ in crossed}
    assert {("west", "east"), ("north", "east"), ("west", "north"), ("north", "west")} <= ways
    named = {record["model_of"] for member in members for record in crossings_of(member)}
    assert named == {"west", "north"}, "the east may hand on another region's model, and none of its own"
    for member in members:
        stats = member.node.service.stats
        assert stats.crossed_bytes_sent == sum(crossed[key] for key in crossed if key[0] == member.transport.peer_id)
        assert not stats.rejected_by_reason
        assert any(turn["moved"] for turn in member.told("regions"))
