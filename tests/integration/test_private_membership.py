"""A private swarm over real libp2p on loopback: what admins sign reaches all, cuts connections, and lasts."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from libp2p_harness import until
from members_harness import Member, living

from gossip.core.errors import LocalError, Reason
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.membership import (
    Authority,
    ManifestBody,
    ManifestChain,
    Role,
    appoint,
    appointed,
    create_manifest,
    next_version,
    pack_item,
    pack_manifests,
    revoke_peer,
)
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.private_swarm import PrivateMembership
from gossip.transport.base import TransportError

ADMIN = Authority(b"\x64" * 32)
FOUNDING = create_manifest(ManifestBody(name="lab", admins=(ADMIN.public_key,)), b"n" * 16).signed_by(ADMIN)
SWARM = FOUNDING.swarm


def peer(number: int) -> PeerId:
    return Identity(number.to_bytes(32, "big")).peer_id


def private(folder: Path, number: int, role: Role = Role.TRAINER) -> PrivateMembership:
    """A node's membership, as it stands in its folder; appointed by the admin the first time."""
    files = MembershipFiles(folder / str(number))
    if not files.joined:
        grant = appoint(ADMIN, SWARM, peer(number), role=role, issued_at=int(time.time()) - 60)
        files.save_certificate(appointed(grant))
        files.save_manifests(ManifestChain(FOUNDING))
    return PrivateMembership.load(files, peer(number))


def members(folder: Path, count: int) -> list[Member]:
    return [Member(number, private=private(folder, number), degree=4) for number in range(1, count + 1)]


async def gather(nursery: trio.Nursery, nodes: list[Member]) -> None:
    """Each dials the next two, and they are neighbours."""
    for at, node in enumerate(nodes):
        for other in nodes[at + 1 : at + 3]:
            await node.transport.dial(other.address)
    await until(lambda: all(len(node.service.roster_view()) == len(nodes) for node in nodes))
    await until(lambda: all(node.service.neighbours() for node in nodes))


@pytest.mark.thorough
@pytest.mark.alone
async def test_a_revocation_cuts_live_connections_everywhere_and_outlives_all_nodes(tmp_path):
    nodes = members(tmp_path, 6)
    async with living(*nodes) as nursery:
        await gather(nursery, nodes)
        gone, rest = nodes[2], [*nodes[:2], *nodes[3:]]
        away = gone.transport.peer_id
        assert sum(away in node.transport.peers for node in rest) >= 2
        private(tmp_path, 1).files.hand_over(pack_item(revoke_peer(ADMIN, SWARM, away, issued_at=int(time.time()))))
        await until(lambda: all(_ended(node, away) for node in rest))
        await until(lambda: not gone.transport.peers)
        # Either side learns of a closed connection by itself, in any order.
        await until(lambda: not any(away in node.transport.peers or node.follows(gone) for node in rest))
        for node in rest:
            assert node.transport.drops.get("handler", 0) == 0
        assert await _knows(gone), "it is shown what the admin signed"
    with pytest.raises(LocalError, match="your membership was revoked by admin"):
        private(tmp_path, 3)
    (tmp_path / "3" / "roster").unlink()  # it wants to have heard nothing
    nodes = members(tmp_path, 6)  # of the files alone
    async with living(*nodes):
        for node in (*nodes[:2], *nodes[3:]):
            with suppress(TransportError):
                await nodes[2].transport.dial(node.address)
            await until(lambda node=node: node.transport.drops["refused_revoked"] >= 1)
            await until(lambda: not nodes[2].transport.peers)


async def test_a_manifest_reaches_all_and_observers_hear_and_say_nothing(tmp_path):
    nodes = members(tmp_path, 3)
    watcher = Member(9, private=private(tmp_path, 9, Role.OBSERVER))
    async with living(*nodes, watcher) as nursery:
        await gather(nursery, nodes)
        for node in nodes:
            await watcher.transport.dial(node.address)
        for node in nodes:  # once the watcher has met all: what a stranger has published would be refused
            await node.service.begin_epoch(epoch=1, round=0, snapshot=None)
        await until(lambda: len(watcher.service.neighbours()) == 3)
        await nodes[0].service.publish(round=1, codec="none", payload=b"an update", steps=1, tokens=1)
        await until(lambda: any(update.payload == b"an update" for update in watcher.updates))
        assert not any(node.follows(watcher) for node in nodes)
        terms = ManifestBody(name="lab", admins=(ADMIN.public_key,), run="second")
        newer = next_version(FOUNDING, terms, applies_at=3).signed_by(ADMIN)
        nodes[1].service.submit([pack_manifests((newer,))])
        every = [*nodes, watcher]
        await until(lambda: all(node.service._membership_sync.anti_entropy.known().version == 2 for node in every))
        assert not any(node.service.stats.rejected for node in every)


async def _knows(gone: Member) -> bool:
    admission = gone.service._membership_sync._admission
    await until(lambda: admission.ended() is not None)
    return True


def _ended(node: Member, away: PeerId) -> bool:
    return {each.peer: each.ended for each in node.service.roster_view()}.get(away) is Reason.REVOKED
