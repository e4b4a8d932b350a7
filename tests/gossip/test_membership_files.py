"""A node's membership on disk: what is kept, who may read it, and what is said of damage."""

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from private_swarm import NOW, SWARM, certificate, chain, identity, invite, revocation, version

from gossip.core.errors import LocalError
from gossip.core.member_messages import PART_BYTES, pack_parts, unpack_parts
from gossip.core.membership_limits import BUCKETS
from gossip.membership import Roster, pack_item, pack_manifests
from gossip.membership.anti_entropy import AntiEntropy, is_item
from gossip.membership.inbox_task import INBOX_LOOK_S, watch_inbox
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.membership_sync_task import MembershipSync
from gossip.membership.private_swarm import PrivateMembership


@pytest.fixture
def files(tmp_path):
    kept = MembershipFiles(tmp_path / "membership")
    kept.save_certificate(certificate(1, invite(1)))
    kept.save_manifests(chain())
    roster = Roster(SWARM, chain().newest.terms.admins)
    roster.add(pack_item(certificate(2)))
    roster.add(revocation(identity(3).peer_id))
    kept.save_roster(roster)
    kept.save_psk(b"\x2a" * 32)
    return kept


def test_what_is_kept_comes_back(files):
    assert files.joined
    assert not MembershipFiles(files.folder / "elsewhere").joined
    assert files.load_certificate() == certificate(1, invite(1))
    assert files.load_manifests().newest.digest == chain().newest.digest
    roster = files.load_roster(chain())
    assert roster.revoked_peer(identity(3).peer_id) is not None
    assert [each.peer for each in roster.certificates] == [identity(2).peer_id]
    assert files.load_psk().text() == (files.folder / "swarm.key").read_bytes()
    private = PrivateMembership.load(files, identity(1).peer_id, now=lambda: NOW)
    assert private.admission.credentials() == certificate(1, invite(1)).raw


def test_nobody_else_may_read_any_of_it(files):
    files.hand_over(revocation(identity(3).peer_id))
    kept = [each for each in files.folder.rglob("*") if each.is_file()]
    assert len(kept) == 5
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_what_is_not_there(tmp_path):
    files = MembershipFiles(tmp_path)
    assert files.load_certificate() is None
    assert files.load_psk() is None
    assert len(files.load_roster(chain())) == 0
    with pytest.raises(LocalError, match="manifests"):
        files.load_manifests()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("certificate", "ask an admin for another invite"),
        ("manifests", "join again by an invite"),
        ("roster", "delete it to learn it anew"),
        ("swarm.key", "not a libp2p swarm key"),
    ],
)
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"?" + data[1:], lambda data: b""])
def test_damage_is_told_with_what_to_do(files, name, advice, damage):
    path = files.folder / name
    path.write_bytes(damage(path.read_bytes()) if name != "swarm.key" else b"?")

    def load():
        files.load_psk()
        PrivateMembership.load(files, identity(1).peer_id, now=lambda: NOW)

    with pytest.raises(LocalError, match=advice) as told:
        load()
    assert str(path) in str(told.value)


def test_a_certificate_of_somebody_else_is_found_at_the_start(files):
    with pytest.raises(LocalError, match="your membership "):
        PrivateMembership.load(files, identity(2).peer_id, now=lambda: NOW)


@given(st.frozensets(st.integers(0, BUCKETS - 1)))
def test_a_set_of_parts_both_ways(parts):
    assert unpack_parts(pack_parts(parts)) == parts


@given(st.binary(min_size=PART_BYTES, max_size=PART_BYTES))
def test_every_set_has_one_spelling(packed):
    assert pack_parts(unpack_parts(packed)) == packed


def test_items_are_told_from_manifests_however_many_these_are():
    assert is_item(pack_item(certificate(1)))
    assert is_item(revocation(identity(3).peer_id))
    assert not any(is_item(pack_manifests((chain().newest,) * count)) for count in (1, 2, 15, 16, 17, 64))


def syncing(files, warned):
    """What saves a node's membership, with every roster large enough for a thread."""
    private = PrivateMembership.load(files, identity(1).peer_id, now=lambda: NOW)
    house = SimpleNamespace(config=SimpleNamespace(hash_in_thread_above=0), warn=warned.append)
    return private, MembershipSync(private, AntiEntropy(private.admission), house)


async def test_a_large_roster_that_a_stop_interrupts_is_saved_at_the_end(files):
    private, sync = syncing(files, [])
    sync._learned(pack_item(certificate(4)))
    private.admission.roster.put(certificate(4))
    with trio.CancelScope() as scope:
        scope.cancel()
        await sync._save_some()
    assert scope.cancelled_caught
    assert len(files.load_roster(chain()).certificates) == 1
    sync._save()
    assert len(files.load_roster(chain()).certificates) == 3  # with our own


async def test_manifests_are_saved_however_large_the_roster_is_and_how_often_it_changes(files):
    private, sync = syncing(files, [])
    private.admission.roster.put(certificate(4))
    newer = version(chain().newest, run="next")
    sync._follow_up(sync.anti_entropy.submit_manifests(pack_manifests((newer,))))
    sync._learned(pack_item(certificate(4)))
    await sync._save_some()
    assert files.load_manifests().newest.digest == newer.digest
    assert len(files.load_roster(chain()).certificates) == 3
    assert not sync._unsaved


async def test_what_a_full_disk_did_not_take_is_tried_again_and_said_once(files, monkeypatch):
    said = []
    _, sync = syncing(files, said)
    sync._learned(pack_item(certificate(4)))
    with monkeypatch.context() as full:
        full.setattr(MembershipFiles, "save_roster_dump", lambda *_: (_ for _ in ()).throw(LocalError("no space")))
        for _ in range(3):
            await sync._save_some()
    assert said == ["no space"]
    await sync._save_some()
    assert not sync._unsaved


async def test_what_cannot_be_read_in_the_inbox_waits_there_and_is_told_once(autojump_clock, files, monkeypatch):
    """Root's command has left it, for its owner alone: a revocation was reported as bad, and removed."""
    taken, said, open_file = [], [], Path.open

    def refuse(path, *given, **options):
        if path.name == roots.name:
            raise PermissionError(13, "Permission denied")
        return open_file(path, *given, **options)

    roots = files.hand_over(b"root's")
    with monkeypatch.context() as as_another_user:
        as_another_user.setattr(Path, "open", refuse)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_inbox, files, taken.extend, said.append)
            await trio.sleep(3 * INBOX_LOOK_S)
            files.hand_over(b"second")
            await trio.sleep(3 * INBOX_LOOK_S)
            assert (taken, len(said)) == ([b"second"], 1)
            assert "Permission denied; it waits in the inbox" in said[0]
            as_another_user.undo()
            await trio.sleep(3 * INBOX_LOOK_S)
            nursery.cancel_scope.cancel()
    assert (taken, len(said)) == ([b"second", b"root's"], 1)
    assert not list(files.inbox.iterdir())


async def test_what_cannot_be_removed_from_the_inbox_is_taken_up_and_told_once(autojump_clock, files, monkeypatch):
    """Of a folder that another user's command has made: else it would be sent around twice a second."""
    taken, said, unlink = [], [], Path.unlink

    def refuse(path, missing_ok=False):
        if path.name != first.name:
            return unlink(path, missing_ok)
        raise PermissionError(13, "Permission denied")

    first = files.hand_over(b"first")
    monkeypatch.setattr(Path, "unlink", refuse)
    with trio.move_on_after(10 * INBOX_LOOK_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_inbox, files, taken.extend, said.append)
            await trio.sleep(3 * INBOX_LOOK_S)
            files.hand_over(b"second")
    assert taken == [b"first", b"second"]
    assert len(said) == 1
    assert "cannot be removed (Permission denied)" in said[0]
    assert list(files.inbox.iterdir()) == [first]


async def test_what_an_admin_has_signed_waits_in_the_inbox_while_the_disk_is_full(autojump_clock, files, monkeypatch):
    """Else a revocation that nobody else has heard would be forgotten with the process."""
    warned = []
    _, sync = syncing(files, warned)

    def full(path, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    newer = version(chain().newest, run="next")
    files.hand_over(revocation(identity(4).peer_id))
    files.hand_over(pack_manifests((newer,)))
    monkeypatch.setattr(Path, "replace", full)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_inbox, files, sync.submit, warned.append)
        await trio.sleep(5 * INBOX_LOOK_S)
        assert len(list(files.inbox.iterdir())) == 2
        said = list(warned)
        assert 1 <= len(said) <= 2, "each file once; which is tried first lies with the names in the inbox"
        assert all("No space left on device" in each for each in said)
        monkeypatch.undo()
        sync._save()
        await trio.sleep(2 * INBOX_LOOK_S)
        nursery.cancel_scope.cancel()
    assert not list(files.inbox.iterdir())
    assert files.load_manifests().newest.digest == newer.digest
    assert files.load_roster(chain()).revoked_peer(identity(4).peer_id) is not None
    assert warned == said


def test_the_other_side_of_a_fork_that_a_refusal_shows_is_told_and_kept(files):
    warned = []
    private, sync = syncing(files, warned)
    sync.submit([pack_manifests((version(chain().newest, run="one"),))])
    other = version(chain().newest, run="other")
    private.admission.take_manifests(pack_manifests((other,)))
    private.admission.take_manifests(pack_manifests((other,)))
    assert len(warned) == 1
    assert "the admins have signed two manifests" in warned[0]
    sync._save()
    assert list(files.load_manifests().conflicts.values()) == [other]
