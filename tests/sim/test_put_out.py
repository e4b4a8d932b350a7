"""Members of a private swarm that are put out are told by whom and why, and stop. A liar can put nobody out."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm
from swarm_founding import found_private, join

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.membership import Authority, next_version, pack_item, pack_manifests, revoke_peer
from gossip.membership.refusal import Refusal
from node.swarm.accept_invite import membership, read_invite
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.inviting import Wish, give
from node.system.errors import RunError

ROUNDS = 40
LEARNING: dict[str, Any] = {"train": {"rounds": ROUNDS, "eval_every": 20}, "sync": {"f": 1}}
KEPT: dict[str, Any] = {**LEARNING, "node": {"checkpoint_every": 2, "wait_timeout_s": 60.0}}
NAMES = ("a", "b", "c", "d")


async def start_all(members: Swarm, *names: str) -> list[Member]:
    return [await members.start(name, wait_for=2, **KEPT) for name in names]


async def reached(member: Member, round_: int) -> None:
    while member.node.state.round < round_:  # noqa: ASYNC110
        await trio.sleep(0.05)


def put_out(lab: SwarmFolder, gone: Member) -> bytes:
    out = revoke_peer(
        lab.authority(None), lab.chain().swarm, PeerId(gone.node.peer_id), issued_at=int(time.time()), reason="lost"
    )
    return pack_item(out)


async def test_one_that_is_revoked_is_told_by_whom_and_stops(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, LEARNING, NAMES)
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            *others, gone = await start_all(members, *NAMES)
            await reached(gone, 4)
            others[0].node.service.submit([put_out(lab, gone)])
            await gone.done.wait()
            assert others[0].node.state.round < ROUNDS - 10, "and not when all is over"
            await members.finished()
    assert isinstance(gone.error, RunError)
    assert gone.error.message.startswith("your membership was revoked by admin ")
    assert gone.error.message.endswith("(lost)")
    assert "new invite" in gone.error.hint
    assert gone.node.checkpoints.newest() is not None, "what it learned is kept"
    assert [it.error for it in others] == [None] * 3
    assert len(membership_of(tmp_path / "d").load_roster(lab.chain()).revocations) == 1, (
        "and it knows at its next start"
    )


@pytest.mark.thorough
async def test_one_that_was_away_is_told_when_it_comes_back(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, LEARNING, NAMES)
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            *others, gone = await start_all(members, *NAMES)
            await reached(gone, 4)
            gone.stop.set()
            await gone.done.wait()
            others[0].node.service.submit([put_out(lab, gone)])
            await trio.sleep(2.0)
            back = await members.start("d", wait_for=1, **KEPT)
            began = trio.current_time()
            await back.done.wait()
            assert trio.current_time() - began < 10
            await members.finished()
    assert back.resumed
    assert "was revoked by admin" in str(back.error)


@pytest.mark.thorough
async def test_a_newcomer_by_a_used_up_invite_stops_and_says_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lab = found_private(tmp_path, LEARNING, ("a", "b"))
    line = give(lab, lab.authority(None), Wish(uses=1, full=True))
    for name in ("c", "late"):
        member = membership(tmp_path / name, {}, read_invite(line))
        assert member is not None
        member.settle(None)
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            await start_all(members, "a", "b", "c")
            late = await members.start("late", wait_for=1, **KEPT)
            began = trio.current_time()
            await late.done.wait()
            assert trio.current_time() - began < 50, "before it gives up waiting"
            await members.finished()
    assert "no member lets this node in" in str(late.error)
    assert "all uses of the invite are taken" in str(late.error)
    assert not late.told("round")


async def test_members_of_a_removed_admin_are_shown_it_and_stop_and_the_others_go_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The change is handed to a node that it ends: it still brings it to those who stay. One that was away hears it of
    them, when it comes back."""
    other = Authority(b"o" * 32)
    lab = found_private(tmp_path, LEARNING, ("a", "b", "away"), [other.public_key])
    line = give(lab, other, Wish(uses=2, full=True))
    for name in ("c", "d"):
        join(tmp_path / name, line)
    newest = lab.chain().newest
    alone = replace(newest.terms, admins=(other.public_key,))
    removal = next_version(newest, alone, applies_at=0).signed_by(other)
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            a, b, c, d, away = await start_all(members, "a", "b", "c", "d", "away")
            await reached(away, 4)
            away.stop.set()
            await away.done.wait()
            a.node.service.submit([pack_manifests((removal,))])
            for gone in (a, b):
                await gone.done.wait()
            assert max(c.node.state.round, d.node.state.round) < ROUNDS - 10, "and not when all is over"
            back = await members.start("away", wait_for=1, **KEPT)
            await back.done.wait()
            await members.finished("c", "d")
    for gone in (a, b, back):
        assert isinstance(gone.error, RunError)
        assert gone.error.message.startswith("your membership is void: ")
        assert gone.node.checkpoints.newest() is not None, "what it learned is kept"
    assert [(it.error, it.node.state.round) for it in (c, d)] == [(None, ROUNDS)] * 2
    versions = [membership_of(tmp_path / name).load_manifests().newest.version for name in ("a", "b", "c", "d", "away")]
    assert versions == [removal.version] * 5


class Liar:
    """The gate of a member that says of everybody that they are out."""

    def __init__(self, shown: bytes) -> None:
        self.shown = shown
        self.told = 0

    def credentials(self) -> bytes:
        return self.shown

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        raise RemoteError(Reason.REVOKED, "so I say")

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        self.told += 1
        return Refusal(reason=Reason.REVOKED).pack()

    def heard(self, peer: PeerId, said: bytes) -> str:
        return "it does not matter"


@pytest.mark.thorough
async def test_a_liar_talks_nobody_out(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    found_private(tmp_path, LEARNING, NAMES)
    with trio.fail_after(500):
        async with swarm(tmp_path, keep_errors=True) as members:
            *honest, liar = await start_all(members, *NAMES)
            await reached(liar, 3)
            says = Liar(liar.transport._handshake_admission.credentials())
            liar.transport._handshake_admission._admission = says
            for it in honest:
                liar.transport.drop(it.transport.peer_id)
            await members.finished(*NAMES[:3])
            liar.stop.set()
    assert says.told, "it was asked"
    assert [(it.error, it.node.state.round) for it in honest] == [(None, ROUNDS)] * 3
    hints = [fields["message"] for it in honest for fields in it.told("warning")]
    assert any(
        "does not let this node in, and says that the membership was revoked: its word alone" in it for it in hints
    )
