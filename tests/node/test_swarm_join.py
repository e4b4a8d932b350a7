"""`node --invite`: what it keeps, what it refuses, and that two nodes of a swarm cannot disagree."""

import io
import random
import sys
from pathlib import Path

import pytest
import torch
import trio
from swarm_harness import DIGITS, appointed_role, founded, joined, line_of, mistake, now, said, seal_cheaply

from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.membership import Policy, Role, revoke_peer
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.private_swarm import PrivateMembership
from gossip.membership.refusal import SET_CLOCK, EndedError
from node.cli.doctor_cmd import _as_member, _subject
from node.cli.membership_options import settings_in
from node.config.schema import from_raw
from node.doctor import peer_checks
from node.roles import bootstrap
from node.roles.assembly import run_info
from node.swarm import agreed_settings, credentials, version
from node.swarm.accept_invite import check_usable, membership, read_invite
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.inviting import Wish, give
from node.system.errors import RunError, UsageError
from node.system.run_dir import IDENTITY, locked
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer


def test_a_folder_becomes_a_member_s_and_goes_on_without_the_line(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", psk=True)
    member = joined(tmp_path / "a" / "node", made.line, {"train": {"threads": 1}, "node": {"metrics_port": -1}})
    assert member.raw["network"]["peers"] == list(made.chain.newest.terms.bootstrap)
    assert "p2p1" not in (tmp_path / "a" / "node" / "local.toml").read_text()
    again = membership(tmp_path / "a" / "node", {}, None)
    assert again is not None
    assert (again.raw, again.role) == (member.raw, Role.TRAINER)
    held = credentials.load(tmp_path / "a" / "node", None)
    assert held.private is not None
    assert held.psk is not None
    assert membership_of(tmp_path / "a" / "node").load_certificate() == held.private.files.load_certificate()


def test_starting_again_from_the_folder_alone_destroys_nothing(tmp_path: Path) -> None:
    made, folder = founded(tmp_path / "lab"), tmp_path / "a" / "node"
    own = {
        "train": {"threads": 1},
        "node": {"metrics_port": -1, "wait_for": 2},
        "network": {"listen": ["/ip4/0.0.0.0"]},
    }
    joined(folder, made.line, own)
    before = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(2):
        again = membership(folder, {}, None)
        assert again is not None
        again.settle(None)
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert again.own == own


def test_the_founder_s_node_dials_no_address_of_its_own(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    member = membership(made.folder.node_dir, {}, None)
    assert member is not None
    assert member.raw["network"]["peers"] == []


def test_a_line_given_twice_takes_one_use(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    joined(tmp_path / "a" / "node", made.line)
    first = membership_of(tmp_path / "a" / "node").load_certificate()
    joined(tmp_path / "a" / "node", made.line)
    assert membership_of(tmp_path / "a" / "node").load_certificate() == first
    joined(tmp_path / "a" / "node", line_of(made.folder))
    assert membership_of(tmp_path / "a" / "node").load_certificate() != first


def test_a_join_that_a_crash_cut_short_and_another_invite_find_the_swarm_s_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = founded(tmp_path / "lab", psk=True), tmp_path / "a" / "node"
    with monkeypatch.context() as full:
        full.setattr(MembershipFiles, "save_certificate", lambda *_: (_ for _ in ()).throw(LocalError("disk full")))
        with pytest.raises(LocalError, match="disk full"):
            joined(folder, made.line)
    joined(folder, made.line)
    first = membership_of(folder).load_certificate()
    joined(folder, line_of(made.folder))  # the first membership has ended, say
    assert membership_of(folder).load_certificate() != first
    (folder / "membership" / "manifests").unlink()
    with pytest.raises(LocalError, match="is there already"):  # of another swarm: nothing is overwritten
        joined(folder, founded(tmp_path / "other", psk=True).line)


def test_two_nodes_of_a_swarm_cannot_disagree(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    runs = set()
    for name, own in (
        ("a", {"train": {"device": "cpu"}}),
        ("b", {"train": {"threads": 1}, "node": {"shard_index": 0}}),
    ):
        member = joined(tmp_path / name / "node", made.line, own)
        config = from_raw(member.raw)
        assert agreed_settings.settings_of(config) == made.chain.newest.terms.settings
        trainer = Trainer(tasks.get(config.task.name, **config.task.options), config.train, Shard())
        info = run_info(config, trainer.fingerprint, trainer.vector())
        runs.add((info.run_id, info.genesis, config.network.swarm))
    assert len(runs) == 1
    assert runs.pop()[2] == made.chain.swarm.hex()
    assert torch.is_tensor(trainer.vector())


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"train": {"rounds": 5}}, "train.rounds=5 contradicts the swarm: there it is 3"),
        ({"train": {"learning_rate": 1.0}}, "train.learning_rate"),
        ({"train": {"weight_decay": 0.5}}, "it is not set there"),
        ({"task": {"name": "byte-lm"}}, "task.name='byte-lm' contradicts"),
        ({"task": {"partition": "dirichlet"}}, "task.partition"),
        ({"sync": {"f": 0}}, "sync.f=0"),
        ({"network": {"quorum": 0.5}}, "network.quorum"),
        ({"network": {"swarm": "mine"}}, "network.swarm"),
        ({"node": {"pace": "dylu"}}, "node.pace"),
        ({"node": {"role": "bootstrap"}}, "contradicts the invite"),
    ],
)
def test_a_setting_that_contradicts_is_refused_and_nothing_written(tmp_path: Path, given: dict, what: str) -> None:
    made = founded(tmp_path / "lab")
    with pytest.raises(UsageError, match="contradicts") as error:
        membership(tmp_path / "a" / "node", given, read_invite(made.line))
    assert what in error.value.message
    assert not (tmp_path / "a").exists()


def test_the_same_said_again_and_everything_local_is_free(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    network = {"listen": ["/ip4/127.0.0.1/tcp/0"], "up_bytes_per_s": 1e6, "quiet_hours": ["22:00-07:00"]}
    given = {"train": {"rounds": 3, "device": "cpu"}, "network": network, "node": {"name": "node", "wait_for": 2}}
    member = joined(tmp_path / "a" / "node", made.line, given)
    assert from_raw(member.raw).network.up_bytes_per_s == 1e6


def test_lines_that_are_none_are_one_line_of_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = founded(tmp_path / "lab").line
    ways = {
        line[:-9]: "cut short",
        line[:40] + "*" + line[41:]: "mistyped",
        line[:60] + ("A" if line[60] != "A" else "B") + line[61:]: "checksum",
        "p2p9" + line[4:]: "newer p2ptrain",
        line[2:]: "neither a line",
        str(tmp_path / "none.txt"): "neither a line",
        str(tmp_path): "neither a line",
    }
    for word, what in ways.items():
        told = mistake(capsys, "node", "--invite", word, "--run-dir", tmp_path / "a")
        assert what in told
        assert word[10:40] not in told
    assert not (tmp_path / "a").exists()


def test_an_invite_that_a_mail_has_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = founded(tmp_path / "lab").line
    wrapped = "".join(f"> {line[at : at + 70]}\n" for at in range(0, len(line), 70))
    wanted = read_invite(line).invite.id
    (tmp_path / "mail.txt").write_text(f"Hello,\n\n{wrapped}\nSee you there\n")
    for word in (wrapped, f"'{line}'", str(tmp_path / "mail.txt")):
        assert read_invite(word).invite.id == wanted
    rest = "and what is typed after it\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(wrapped + rest))
    assert read_invite("-").invite.id == wanted
    assert sys.stdin.read() == rest, "whoever pastes it need not end the input"


def test_an_invite_from_stdin_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = founded(tmp_path / "lab").line
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
    assert read_invite("-").invite.id == read_invite(line).invite.id
    monkeypatch.setenv("P2PTRAIN_INVITE", line[:-2])
    assert "cut short" in mistake(capsys, "node", "--run-dir", tmp_path / "a")


def test_an_invite_that_has_ended(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    invitation = read_invite(line_of(made.folder, expires=now() + 60))
    check_usable(invitation, now())
    with pytest.raises(UsageError, match="has ended"):
        check_usable(invitation, now() + 60 + 301)
    with pytest.raises(UsageError, match="from the future"):
        check_usable(invitation, now() - 302)
    wish = Wish(expires=now() - 1000)
    old = give(made.folder, made.folder.authority(None), wish, now=now() - 2000)
    with pytest.raises(UsageError, match="has ended"):
        membership(tmp_path / "a" / "node", {}, read_invite(old))


def test_an_invite_that_ended_a_moment_ago_is_taken_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = founded(tmp_path / "lab").folder
    wish = Wish(expires=now() - 60, full=True)
    ended = give(folder, folder.authority(None), wish, now=now() - 2000)
    _, member = settings_in(tmp_path / "a", {}, ended)
    assert member is not None
    told = capsys.readouterr().err
    assert told.startswith("warning: the invite ended on 20")
    assert "for 5 minutes more" in told
    settings_in(tmp_path / "a", {}, line_of(folder, expires=now() + 60))
    assert not capsys.readouterr().err
    code, out, err = said(capsys, "swarm", "invite", folder.path, "--expires", "2h")
    assert (code, out.count("\n"), "up to 5 minutes longer" in err) == (0, 1, True), "said to who gives it, too"


def test_another_swarm_s_folder_is_left_alone(tmp_path: Path) -> None:
    one, other = founded(tmp_path / "one"), founded(tmp_path / "other")
    joined(tmp_path / "a" / "node", one.line)
    with pytest.raises(UsageError, match="member of another swarm"):
        membership(tmp_path / "a" / "node", {}, read_invite(other.line))


def test_a_swarm_with_a_list_names_the_peer_that_is_not_on_it(tmp_path: Path) -> None:
    identity = Identity.generate()
    made = founded(tmp_path / "lab", policy=Policy.ALLOW, allow=frozenset({identity.peer_id}))
    with pytest.raises(UsageError, match="not on it"):
        joined(tmp_path / "a" / "node", made.line)
    assert not membership_of(tmp_path / "a" / "node").joined
    identity.save(tmp_path / "b" / "node" / IDENTITY)
    assert joined(tmp_path / "b" / "node", made.line).chain.swarm == made.chain.swarm


def test_data_must_match_where_the_swarm_says_so(tmp_path: Path) -> None:
    text, same, other = (tmp_path / name for name in ("text", "same", "other"))
    words = bytes(random.Random(1).randbytes(4096))
    text.write_bytes(words)
    same.write_bytes(words)
    other.write_bytes(words + b"!")
    raw = {"task": {"name": "byte-lm", "data": str(text)}}
    strict = founded(tmp_path / "lab", raw=raw, data_must_match=True)
    joined(tmp_path / "a" / "node", strict.line, {"task": {"data": str(same)}})
    for given, what in (({"task": {"data": str(other)}}, "are not the swarm's"), ({}, "the same data")):
        with pytest.raises(UsageError, match=what):
            membership(tmp_path / "b" / "node", given, read_invite(strict.line))
    free = founded(tmp_path / "free", raw=raw)
    assert str(text) not in repr(free.chain.newest.terms.settings)
    joined(tmp_path / "c" / "node", free.line, {"task": {"data": str(other)}})


def test_roles_come_from_the_certificate(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    for role in (Role.BOOTSTRAP, Role.RELAY):
        member = appointed_role(made.folder, tmp_path / role / "node", role)
        assert bootstrap.from_raw(member.raw).node.role == role.value
    watcher = appointed_role(made.folder, tmp_path / "o" / "node", Role.OBSERVER)
    config = from_raw(watcher.raw)
    assert config.node.role == "observer"
    assert config.task.name == "digits"
    with pytest.raises(UsageError, match="--role trainer contradicts the invite: its role is observer"):
        membership(tmp_path / "o" / "node", {"node": {"role": "trainer"}}, None)


def test_an_observer_names_the_code_that_it_runs_and_has_the_data_that_all_have(tmp_path: Path) -> None:
    own_code = founded(tmp_path / "lab", raw={"task": {"name": "paced_digits:create"}})
    line = line_of(own_code.folder, role=Role.OBSERVER)
    with pytest.raises(UsageError, match="by running paced_digits:create on your machine"):
        membership(tmp_path / "a" / "node", {}, read_invite(line))
    text = tmp_path / "text"
    text.write_bytes(b"words " * 999)
    strict = founded(tmp_path / "strict", raw={"task": {"name": "byte-lm", "data": str(text)}}, data_must_match=True)
    with pytest.raises(UsageError, match="the same data"):
        membership(tmp_path / "b" / "node", {}, read_invite(line_of(strict.folder, role=Role.OBSERVER)))


def test_a_program_that_is_too_old_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = founded(tmp_path / "lab").chain.newest.terms
    version.check_version(terms, "99.0")
    version.check_version(terms, f"{terms.min_app}rc1")
    with pytest.raises(RunError, match=r"needs p2ptrain .* this is 0\.0\.1"):
        version.check_version(terms, "0.0.1")
    monkeypatch.setattr(version, "PROTOCOL_VERSION", terms.min_protocol - 1)
    with pytest.raises(RunError, match="needs protocol"):
        version.check_version(terms)


def test_a_membership_that_ended_stops_the_node_at_its_start(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    joined(tmp_path / "a" / "node", made.line)
    files, folder = membership_of(tmp_path / "a" / "node"), SwarmFolder(tmp_path / "lab")
    peer = Identity.load(tmp_path / "a" / "node" / IDENTITY).peer_id
    roster = files.load_roster(files.load_manifests())
    roster.put(revoke_peer(folder.authority(None), made.chain.swarm, peer, issued_at=now(), reason="left"))
    files.save_roster(roster)
    with pytest.raises(RunError, match=r"your membership was revoked by admin [0-9a-f]{16} on "):
        credentials.load(tmp_path / "a" / "node", None)


def test_a_sealed_node_key_wants_its_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal_cheaply(monkeypatch)
    made = founded(tmp_path / "lab")
    member = membership(tmp_path / "a" / "node", {}, read_invite(made.line))
    assert member is not None
    member.settle(b"correct horse")
    assert Identity.is_sealed(tmp_path / "a" / "node" / IDENTITY)
    assert isinstance(credentials.load(tmp_path / "a" / "node", b"correct horse").private, PrivateMembership)


def test_the_defaults_of_another_version_do_not_change_a_swarm(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", raw=DIGITS)
    assert made.chain.newest.terms.settings["train"]["batch_size"] == 16  # type: ignore[index, call-overload]


def test_a_doctor_asks_nobody_before_the_invite_is_redeemed(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    member = membership(tmp_path / "a" / "node", {}, read_invite(made.line))
    assert member is not None
    subject = _as_member(_subject(member.raw, tmp_path / "a"), member, None)
    assert subject.network.peers
    found = trio.run(peer_checks.peers, subject, None, 5.0)
    assert [(each.level, "not asked" in each.seen) for each in found] == [("unknown", True)]
    member.settle(None)
    again = membership(tmp_path / "a" / "node", {}, None)
    assert again is not None
    asked = _as_member(_subject(again.raw, tmp_path / "a"), again, None)
    assert (asked.unasked, asked.network.named) == ("", made.chain.swarm)
    with locked(tmp_path / "a" / "node"):
        assert "runs" in _as_member(_subject(again.raw, tmp_path / "a"), again, None).unasked


def test_what_to_do_about_a_membership_that_is_not_valid_is_what_the_membership_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = founded(tmp_path / "lab")

    def early(*_: object, **__: object) -> None:
        raise EndedError("your membership begins on a later day", SET_CLOCK)

    monkeypatch.setattr(PrivateMembership, "load", early)
    with pytest.raises(RunError, match="begins on a later day") as told:
        credentials.load(made.folder.node_dir, None)
    assert told.value.hint.endswith(SET_CLOCK)
    assert "ask an admin" not in told.value.hint
