"""A node with a short invite: when it asks, when it has no need to, and what it says of it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from swarm_harness import founded, line_of, now, said

from gossip.membership import Authority, InviteBundle, ShortInvite, next_version
from gossip.membership.visit_task import FetchError
from node.swarm import admin_actions, fetch_manifests
from node.swarm.accept_invite import Membership, membership, read_invite
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.inviting import Wish, give
from node.swarm.parsing import place_in
from node.system.errors import RunError, UsageError


class Asked:
    """A member that answers, with what the admin's folder has: how often it was asked."""

    def __init__(self, folder: SwarmFolder) -> None:
        self.folder = folder
        self.times = 0

    def __call__(self, short: ShortInvite) -> InviteBundle:
        self.times += 1
        return short.complete(self.folder.chain())


def join(node_dir: Path, line: str, asked: Asked) -> Membership:
    member = membership(node_dir, {}, read_invite(line), asked)
    assert member is not None
    member.settle(None)
    return member


def rotated(folder: SwarmFolder) -> None:
    change = admin_actions.Change(settings={}, max_members=7)
    admin_actions.rotate(folder, folder.authority(None), change, None, None, (folder.node_dir,))


def test_a_folder_that_has_joined_asks_nothing_again(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    asked, node_dir = Asked(made.folder), tmp_path / "a" / "node"
    line = line_of(made.folder, full=False)
    assert line.startswith("p2p2")
    first = join(node_dir, line, asked)
    assert asked.times == 1
    assert first.raw["network"]["peers"] == list(made.chain.newest.terms.bootstrap)
    kept = membership_of(node_dir).load_certificate()
    again = join(node_dir, line, asked)
    assert again.invitation is None, "and takes no other use"
    assert membership_of(node_dir).load_certificate() == kept
    join(node_dir, line_of(made.folder, full=False), asked)
    assert asked.times == 1, "another invite, to a manifest that is known"
    assert membership_of(node_dir).load_certificate() != kept


@pytest.mark.parametrize("full", [True, False])
def test_a_line_that_was_redeemed_may_have_ended_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    made = founded(tmp_path / "lab")
    asked, node_dir = Asked(made.folder), tmp_path / "a" / "node"
    line, other = (line_of(made.folder, full=full, expires=now() + 60) for _ in range(2))
    join(node_dir, line, asked)
    later = time.time() + 10_000
    monkeypatch.setattr(time, "time", lambda: later)
    assert join(node_dir, line, asked).invitation is None
    with pytest.raises(UsageError, match="the invite has ended"):
        membership(node_dir, {}, read_invite(other), asked)


def test_an_invite_to_a_newer_manifest_than_the_folder_s_asks_for_it(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    asked, node_dir = Asked(made.folder), tmp_path / "a" / "node"
    join(node_dir, line_of(made.folder, full=False), asked)
    rotated(made.folder)
    member = join(node_dir, line_of(made.folder, full=False), asked)
    assert asked.times == 2
    assert member.chain.newest.terms.max_members == 7
    assert [each.version for each in membership_of(node_dir).load_manifests()] == [1, 2]


def test_what_can_be_said_by_the_line_alone_asks_nobody(tmp_path: Path) -> None:
    one, other = founded(tmp_path / "one"), founded(tmp_path / "other")
    asked, node_dir = Asked(one.folder), tmp_path / "a" / "node"
    ended = give(one.folder, one.folder.authority(None), Wish(expires=now() - 1000), now=now() - 2000)
    with pytest.raises(UsageError, match="the invite has ended"):
        membership(node_dir, {}, read_invite(ended), asked)
    assert asked.times == 0
    join(node_dir, line_of(one.folder, full=False), asked)
    with pytest.raises(UsageError, match="member of another swarm"):
        membership(node_dir, {}, read_invite(line_of(other.folder, full=False)), asked)
    assert asked.times == 1
    named = read_invite(line_of(one.folder, full=False, name="carol")).invite.id
    assert admin_actions._meant(
        line_of(one.folder, full=False), one.folder, membership_of(node_dir).load_roster(one.chain)
    )
    assert admin_actions._meant("carol", one.folder, membership_of(node_dir).load_roster(one.chain)) == named


def test_a_swarm_without_an_address_has_full_lines(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    change = admin_actions.Change(settings={}, bootstrap=())
    admin_actions.rotate(made.folder, made.folder.authority(None), change, None, None, (made.folder.node_dir,))
    assert line_of(made.folder, full=False).startswith("p2p1")


def test_show_of_a_line_that_nobody_answers_tells_what_the_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = founded(tmp_path / "lab", psk=True)
    file = tmp_path / "line.txt"
    file.write_text(line_of(made.folder, full=False, uses=3))
    code, out, _ = said(capsys, "swarm", "show", file)
    assert code == 0
    assert made.chain.swarm.hex() in out
    assert "could not be fetched (127.0.0.1:4001: " in out
    assert "--full" in out
    assert made.chain.newest.terms.bootstrap[0] in out
    assert "behind a pre-shared key" in out
    assert "makes a trainer of 3 at most" in out
    short = read_invite(str(file))
    for secret in (short.secret.seed, short.psk):
        assert secret is not None
        assert secret.hex() not in out


def test_what_could_not_be_fetched_is_one_line_that_helps() -> None:
    here, there = (f"/{kind}/tcp/4001/p2p/12D3KooWBqR1" for kind in ("ip4/192.0.2.7", "ip6/2001:db8::1"))
    dead = fetch_manifests._failed(FetchError({here: "nothing answers", there: "no answer"}))
    assert (dead.exit_code, isinstance(dead, RunError)) == (1, True)
    assert "(192.0.2.7:4001: nothing answers; [2001:db8::1]:4001: no answer)" in dead.line()
    assert "a newer invite, or one made with --full" in dead.line()
    used = fetch_manifests._failed(
        FetchError({here: "it says that all uses of the invite are taken"}, turned_away=True)
    )
    assert used.line().endswith("all uses of the invite are taken); ask an admin for a new invite")
    words = "the invite was revoked by admin 00ff on 2027-01-15 08:00 UTC (lost)"
    out = fetch_manifests._failed(FetchError({here: words, there: "it was not its turn"}, final=words))
    assert out.message == words


def test_places_are_said_as_people_write_them() -> None:
    assert place_in("/dns/gpu.example.org/tcp/4001/p2p/12D3KooWBqR1") == "gpu.example.org:4001"
    assert place_in("/memory/3/p2p/12D3KooWBqR1") == "/memory/3/p2p/12D3KooWBqR1"


async def test_who_waits_is_told_after_two_seconds(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_manifests._tell, ("/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWBqR1",), 60.0)
        await trio.sleep(1.9)
        assert not capsys.readouterr().err
        await trio.sleep(0.2)
        told = capsys.readouterr().err
        assert told == "fetching what the invite leaves out from 192.0.2.7:4001, for 60 s at most\n"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("full", [True, False])
def test_an_invite_of_the_other_side_of_a_fork_is_taken_in_the_folder(tmp_path: Path, full: bool) -> None:
    """Two admins have removed each other, and a member of one comes over to the other."""
    other = Authority(b"o" * 32)
    made = founded(tmp_path / "lab", others=(other.public_key,))
    lab, admin, node_dir = made.folder, made.folder.authority(None), tmp_path / "a" / "node"
    asked, files = Asked(lab), membership_of(node_dir)
    join(node_dir, line_of(lab, full=full), asked)
    last = files.load_manifests().newest
    here, there = (replace(last.terms, admins=(each.public_key,)) for each in (other, admin))
    chain = files.load_manifests()
    chain.accept(next_version(last, here, applies_at=0).signed_by(other))
    files.save_manifests(chain)
    for _ in range(2):
        before = lab.chain()
        before.accept(next_version(before.newest, there, applies_at=0).signed_by(admin))
        membership_of(lab.node_dir).save_manifests(before)
        join(node_dir, line_of(lab, full=full), asked)
        assert files.load_manifests().newest == before.newest
    old = line_of(lab, full=full)
    while chain.newest.version <= before.newest.version:
        chain.accept(next_version(chain.newest, here, applies_at=0).signed_by(other))
    files.save_manifests(chain)
    with pytest.raises(UsageError, match="do not fit those in the folder"):
        join(node_dir, old, asked)
