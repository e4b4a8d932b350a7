"""What admins sign reaches every member of a private swarm, is acted on, and stays: on the virtual clock."""

import random
from dataclasses import replace

import pytest
import trio
from gossip_swarm import CONFIG, FakeRuntime, all_follow, identity, play, until
from private_swarm import (
    ADMIN,
    NOW,
    OTHER_ADMIN,
    TERMS,
    PrivateSwarm,
    certificate,
    chain,
    invite,
    manifests,
    met,
    private_swarm,
    revocation,
    rosters,
    version,
)

from gossip.bootstrap import BootstrapService
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.membership_limits import TOLERANCE_S
from gossip.membership import Role, Roster, next_version, pack_item, rotate, rotated
from gossip.membership.inbox_task import INBOX_LOOK_S, MAX_INBOX_BYTES
from gossip.membership.membership_sync_task import LOOK_S
from gossip.transport.memory.link_quality import LinkQuality


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_revocation_is_everywhere_in_two_seconds_and_cuts_connections(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(*range(1, 9), degree=3)
        gone, rest = nodes[-1], nodes[:-1]
        await until(lambda: any(met(node, gone.peer) for node in rest))
        beside = [node for node in rest if gone.peer in node.service.neighbours()]
        began = trio.current_time()
        rest[0].service.submit([revocation(gone.peer)])
        await until(lambda: all(rosters(node)[gone.peer] is Reason.REVOKED for node in rest), 2.0)
        assert trio.current_time() <= began + 2.0
        assert not any(met(node, gone.peer) for node in rest)
        assert not gone.transport.peers
        assert not any(node.service._engine.mesh.dialable(gone.peer, trio.current_time()) for node in rest)
        for node in beside:
            assert node.service.stats.rejected[gone.peer, Reason.REVOKED] >= 1
        await trio.sleep(120)
        assert not any(met(node, gone.peer) for node in rest)
        assert not gone.service.neighbours()


async def test_the_rest_trains_on(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3, 4)
        await play(nodes, range(1, 3))
        await until(lambda: all_follow(nodes))
        gone, rest = nodes[-1], nodes[:-1]
        rest[0].service.submit([revocation(gone.peer)])
        await until(lambda: not any(met(node, gone.peer) for node in rest))
        views = await play(rest, range(3, 6))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        assert all(gone.peer not in view.staleness for row in views for view in row)


@pytest.mark.slow
async def test_it_stays_out_when_all_nodes_restart(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3, 4)
        gone = nodes[-1].peer
        nodes[0].service.submit([revocation(gone)])
        await until(lambda: all(rosters(node)[gone] is Reason.REVOKED for node in nodes[:3]))
        await it.stop(*nodes)
        first = await it.enter(2)
        others = [await it.enter(number, (first,)) for number in (1, 3)]
        back = await it.enter(4, (first, *others))
        await until(lambda: all(len(node.service.neighbours()) == 2 for node in (first, *others)))
        await trio.sleep(60)
        assert not back.transport.peers
        assert all(node.transport.drops["refused_revoked"] for node in (first, *others))


@pytest.mark.slow
async def test_who_was_revoked_behind_a_partition_is_cut_when_it_heals(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3, 4)
        here, there = nodes[:2], nodes[2:]
        it.network.part([node.peer for node in here], [node.peer for node in there])
        await trio.sleep(1)
        here[0].service.submit([revocation(there[1].peer)])
        await trio.sleep(60)
        assert met(there[0], there[1].peer)
        it.network.heal()
        await until(lambda: not met(there[0], there[1].peer), 120)
        assert rosters(there[0])[there[1].peer] is Reason.REVOKED


@pytest.mark.slow
async def test_an_expired_membership_is_cut_off(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        it.enroll(3, certificate(3, invite(3, expires=NOW + 100)))
        nodes = await it.enter_all(1, 2, 3)
        guest = nodes[2]
        await trio.sleep(100)
        assert met(nodes[0], guest.peer)
        await trio.sleep(TOLERANCE_S + 2 * LOOK_S)
        assert not any(met(node, guest.peer) for node in nodes[:2])
        assert any("our own membership has ended" in event.detail for event in guest.told("warning"))
        assert any(node.service.stats.rejected.get((guest.peer, Reason.EXPIRED)) for node in nodes[:2])


async def test_of_two_that_took_one_use_the_later_is_cut_when_the_rosters_meet(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        shared = invite(50)
        it.enroll(3, certificate(3, shared, of=50, at=NOW - 50))
        it.enroll(4, certificate(4, shared, of=50, at=NOW - 40))
        first, second = await it.enter_all(1, 2)
        it.network.part([first.peer, identity(3).peer_id], [second.peer, identity(4).peer_id])
        earlier, later = await it.enter(3, (first,)), await it.enter(4, (second,))
        await until(lambda: met(first, earlier.peer) and met(second, later.peer))
        it.network.heal()
        await until(lambda: not met(second, later.peer) and met(second, earlier.peer), 180)
        assert not met(first, later.peer)
        assert met(first, earlier.peer)
        assert later.peer not in rosters(second)


@pytest.mark.slow
async def test_a_new_version_of_the_manifest_reaches_all_and_is_handed_to_the_runtime_once(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(*range(1, 6), degree=2)
        nodes[0].service.submit([manifests(version(chain().newest, run="second"))])
        await until(lambda: all(it.applied[node.peer] == [2] for node in nodes), 5)
        await trio.sleep(60)
        assert all(it.applied[node.peer] == [2] for node in nodes)
        await it.stop(*nodes)
        assert it.private(5).admission.chain.newest.version == 2


@pytest.mark.slow
async def test_of_a_fork_each_keeps_what_it_saw_first_and_nobody_is_charged(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3)
        it.network.part([nodes[0].peer], [node.peer for node in nodes[1:]])
        await trio.sleep(1)
        nodes[0].service.submit([manifests(one := version(chain().newest, run="one"))])
        nodes[1].service.submit([manifests(version(chain().newest, run="another"))])
        await until(lambda: it.applied[nodes[2].peer] == [2])
        it.network.heal()
        await until(lambda: all("two manifests" in str(node.told("warning")) for node in nodes), 120)
        await trio.sleep(60)
        assert [it.applied[node.peer] for node in nodes] == [[2], [2], [2]]
        assert not any(node.told("banned") for node in nodes)
        for number in (1, 2, 3):
            kept = it.files(number).load_manifests()
            assert (list(kept.conflicts), kept.forked) == ([2], True), "an admin's command on this machine knows it"
        nodes[1].service.submit([manifests(version(one, number=4, run="healed"))])  # the admins skip a number
        await until(lambda: all(it.applied[node.peer] == [2, 4] for node in nodes), 60)


async def test_a_manifest_that_no_admin_signed_is_not_taken(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2)
        with pytest.raises(LocalError, match="forged"):
            nodes[0].service.submit([manifests(version(chain().newest, OTHER_ADMIN))])
        with pytest.raises(LocalError, match="forged"):
            nodes[0].service.submit([pack_item(certificate(9, invite(9, admin=OTHER_ADMIN)))])
        with pytest.raises(LocalError, match="malformed"):
            nodes[0].service.submit([b"nonsense"])
        assert not it.applied[nodes[0].peer]


@pytest.mark.slow
async def test_a_rotated_key_is_let_in_the_old_one_is_not_and_points_go_along(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3)
        old, others = nodes[2], nodes[:2]
        for node in others:
            node.service.offended(old.peer, RemoteError(Reason.PROTOCOL))
        before = others[0].service.neighbours()[old.peer].score
        successor = rotated(certificate(3), rotate(identity(3), identity(33).peer_id, issued_at=NOW - 10))
        it.enroll(33, successor)
        new = await it.enter(33, tuple(others))
        await until(lambda: all(new.peer in node.service.neighbours() for node in others))
        await until(lambda: not any(met(node, old.peer) for node in others))
        assert others[0].service.neighbours()[new.peer].score > before / 2 > 1
        assert rosters(others[0])[new.peer] is None
        assert old.peer not in rosters(others[0])
        await trio.sleep(60)
        assert not old.transport.peers


async def test_a_ban_outlives_a_rotation(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2)
        for _ in range(3):
            nodes[0].service.offended(nodes[1].peer, RemoteError(Reason.FORGED))
        await until(lambda: not met(nodes[0], nodes[1].peer))
        it.enroll(22, rotated(certificate(2), rotate(identity(2), identity(22).peer_id, issued_at=NOW - 10)))
        new = await it.enter(22, (nodes[0],))
        await trio.sleep(60)
        assert not new.service.neighbours()


async def guided(it: PrivateSwarm, nursery: trio.Nursery, latency_s: float) -> tuple[BootstrapService, FakeRuntime]:
    """A bootstrap node, and a member that knows it and has certificate 5 from an earlier life."""
    it.enroll(9, role=Role.BOOTSTRAP)
    it.enroll(1)
    roster = Roster(chain().swarm, chain().newest.terms.admins)
    roster.add(pack_item(certificate(5)))
    it.files(1).save_roster(roster)
    key, private = identity(9), it.private(9)
    transport = it.network.attach(key.peer_id, private.admission)
    it.network.set_link(key.peer_id, identity(1).peer_id, LinkQuality(latency_s=latency_s))
    guide = BootstrapService(
        identity=key, transport=transport, config=CONFIG, rng=random.Random(9), warn=pytest.fail, private=private
    )
    await nursery.start(lambda *, task_status: guide.run(task_status=task_status))
    node = it.make(1, private=it.private(1), peers=tuple(transport.addresses))
    await it.launch(node)
    await node.begin()
    await until(lambda: node.service.met_bootstrap)
    return guide, node


def seen(guide: BootstrapService) -> dict[PeerId, Reason | None]:
    return {each.peer: each.ended for each in guide.roster_view()}


async def test_a_bootstrap_node_hears_of_members_from_who_comes_by(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        guide, node = await guided(it, nursery, 0.1)
        await until(lambda: identity(5).peer_id in seen(guide), 2)
        assert identity(9).peer_id in rosters(node)
        await until(lambda: not node.transport.peers)
        nursery.cancel_scope.cancel()


async def test_what_an_admin_signs_is_brought_to_bootstrap_nodes_at_once(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        guide, node = await guided(it, nursery, 0.1)
        await until(lambda: identity(5).peer_id in seen(guide))
        await trio.sleep(300)
        await until(lambda: not node.transport.peers)
        node.service.submit([revocation(identity(5).peer_id)])
        await until(lambda: seen(guide)[identity(5).peer_id] is Reason.REVOKED, 1)
        nursery.cancel_scope.cancel()


async def test_a_former_member_that_dials_nobody_hears_of_its_end_from_who_dials_it(autojump_clock, tmp_path):
    """It is a bootstrap node by the invite of an admin who is removed while it is down."""
    behind, two = chain(), replace(TERMS, admins=tuple(sorted((ADMIN.public_key, OTHER_ADMIN.public_key))))
    behind.accept(next_version(behind.newest, two, applies_at=0).signed_by(ADMIN))
    alone = replace(TERMS, admins=(OTHER_ADMIN.public_key,))
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        it.enroll(9, role=Role.BOOTSTRAP).save_manifests(behind)
        private = it.private(9)
        behind.accept(next_version(behind.newest, alone, applies_at=0).signed_by(OTHER_ADMIN))
        it.enroll(1, admin=OTHER_ADMIN).save_manifests(behind)
        transport = it.network.attach(identity(9).peer_id, private.admission)
        guide = BootstrapService(
            identity=identity(9),
            transport=transport,
            config=CONFIG,
            rng=random.Random(9),
            warn=pytest.fail,
            private=private,
        )
        await nursery.start(lambda *, task_status: guide.run(task_status=task_status))
        node = it.make(1, private=it.private(1), peers=tuple(transport.addresses))
        await it.launch(node)
        await until(lambda: private.admission.ended() is not None, 5)
        assert "who gave your invite, is no admin any more" in str(private.admission.ended())
        assert not transport.peers
        nursery.cancel_scope.cancel()


async def test_what_a_command_leaves_in_the_inbox_is_taken_up_within_a_second(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        nodes = await it.enter_all(1, 2, 3)
        inbox = it.files(1).inbox
        it.files(1).hand_over(revocation(nodes[2].peer))
        it.files(1).hand_over(b"x" * (MAX_INBOX_BYTES + 1))
        (inbox / "notes.txt").write_text("not for us")
        await trio.sleep(2 * INBOX_LOOK_S)
        assert [each.name for each in inbox.iterdir()] == ["notes.txt"]
        assert not met(nodes[0], nodes[2].peer)
        assert any(f"more than {MAX_INBOX_BYTES} bytes" in event.detail for event in nodes[0].told("warning"))
        assert it.private(1).admission.roster.revoked_peer(nodes[2].peer) is not None  # also should it crash now
