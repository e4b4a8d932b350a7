"""`swarm revoke`, `rotate`, `sign`, `show` and `members`: what goes to the nodes, and every refusal."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from swarm_harness import DIGITS, founded, joined, line_of, mistake, now, said

from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.membership import ManifestChain, Policy, next_version, parse_item, rotate, rotated
from gossip.membership.membership_files import SUFFIX
from node.cli.swarm_text import proposed
from node.swarm.folder import SwarmFolder, membership_of
from node.swarm.key_rotation import replace_key
from node.swarm.pending import known
from node.system.run_dir import EVENTS, IDENTITY


def events(node_dir: Path, round_: int) -> None:
    """As a node leaves them that has trained so far."""
    lines = [{"ts": 1.0, "event": "started", "peer_id": "x"}, {"ts": 2.0, "event": "round", "round": round_}]
    (node_dir / EVENTS).write_text("".join(json.dumps(each) + "\n" for each in lines))


def long(out: Path) -> Path:
    """A swarm of sixty rounds."""
    return founded(out, {**DIGITS, "train": {"rounds": 60}}).folder.path


def waiting(node_dir: Path) -> list[bytes]:
    return [each.read_bytes() for each in (node_dir / "membership" / "inbox").glob(f"*{SUFFIX}")]


def newest(lab: Path) -> ManifestChain:
    return known(membership_of(lab / "node"))[0]


def test_a_rotation_waits_for_the_node_and_the_next_builds_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = long(tmp_path / "lab")
    events(lab / "node", 7)
    code, out, _ = said(
        capsys, "swarm", "rotate", lab, "--set", "train.learning_rate=0.001", "--set", "train.rounds=90", "--json"
    )
    facts = json.loads(out)
    assert (code, facts["version"], facts["applies_at"]) == (0, 2, 17)
    assert facts["changes"]["train.learning_rate"] == {"from": 0.003, "to": 0.001}
    assert said(capsys, "swarm", "rotate", lab, "--set", "network.initial_deadline_s=9", "--at-round", 20)[0] == 0
    assert said(capsys, "swarm", "rotate", lab, "--max-members", 5)[0] == 0
    chain = newest(lab)
    assert [(each.version, each.applies_at) for each in chain] == [(1, 0), (2, 17), (3, 20), (4, 20)]
    assert chain.newest.terms.settings["train"]["learning_rate"] == 0.001  # type: ignore[index, call-overload]
    assert chain.newest.terms.max_members == 5
    assert len(waiting(lab / "node")) == 3


def test_after_a_fork_the_next_rotation_skips_a_number_and_heals_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = founded(tmp_path / "lab")
    lab, admin, first = made.folder.path, made.folder.authority(None), made.chain.newest
    files, forks = membership_of(lab / "node"), [replace(first.terms, max_members=most) for most in (5, 6)]
    one, other = (next_version(first, terms, applies_at=0).signed_by(admin) for terms in forks)
    chain = files.load_manifests()
    chain.accept(one)
    with pytest.raises(RemoteError, match="equivocation"):
        chain.accept(other)
    files.save_manifests(chain)
    assert "CONFLICT   two manifests of version 2: " in said(capsys, "swarm", "show", lab)[1]
    assert said(capsys, "swarm", "rotate", lab, "--max-members", 7)[0] == 0
    assert newest(lab).newest.version == 4
    there = ManifestChain(first)
    there.accept(other)
    assert there.accept(newest(lab).newest), "who saw the other one first takes it, too"
    assert "CONFLICT" not in said(capsys, "swarm", "show", lab)[1]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--set", "train.batch_size=8"), "cannot change while a swarm trains"),
        (("--set", "sync.f=2"), "cannot change while a swarm trains"),
        (("--set", "train.learning_rate=-1"), "learning_rate"),
        (("--set", "train.learning_rate=fast"), "learning_rate"),
        (("--set", "train.learning_rate=0.003"), "nothing would change"),
        (("--set", "train.learning_rate"), "is not section.key=value"),
        (("--set", "train.learning_rate=0.1", "--at-round", "7"), "round 7 is over"),
        (("--set", "train.rounds=9"), "would end the run before round 17"),
        (("--max-members", "3", "--at-round", "30"), "--at-round without --set"),
        (("--policy", "closed"), "unknown policy"),
        (("--k", "2"), "--k 2 of 1 admins"),
        ((), "nothing would change"),
    ],
)
def test_what_rotate_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], what: str
) -> None:
    lab = long(tmp_path / "lab")
    events(lab / "node", 7)
    assert what in mistake(capsys, "swarm", "rotate", lab, *words)
    assert not waiting(lab / "node")


@pytest.mark.parametrize(
    ("here", "words", "what"),
    [
        (
            60,
            ("--set", "train.learning_rate=0.1"),
            "the run is over, 60 rounds of 60 are trained already; give the run",
        ),
        (60, ("--set", "train.learning_rate=0.1", "--at-round", "60"), "--set train.rounds=80"),
        (60, ("--set", "train.rounds=50"), "train.rounds=50: the run is over, 60 rounds of 60 are trained already"),
        (60, ("--set", "train.rounds=80", "--at-round", "70"), "round 70 would never come: the run has 60 rounds"),
        (40, ("--set", "train.learning_rate=0.1", "--at-round", "60"), "round 60 would never come"),
        (40, ("--set", "train.learning_rate=0.1", "--at-round", "60"), "--at-round 59 or earlier"),
        (55, ("--set", "train.learning_rate=0.1"), "round 65 would never come"),
        (59, ("--set", "train.learning_rate=0.1"), "add --set train.rounds=80"),
        (40, ("--set", "train.rounds=30"), "would end the run before round 50"),
    ],
)
def test_no_change_is_signed_that_no_round_would_bring_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: int, words: tuple[str, ...], what: str
) -> None:
    lab = long(tmp_path / "lab")
    events(lab / "node", here)
    assert what in mistake(capsys, "swarm", "rotate", lab, *words)
    assert not waiting(lab / "node")


@pytest.mark.parametrize("here", [55, 60])
def test_more_rounds_hold_from_where_the_run_would_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: int
) -> None:
    lab = long(tmp_path / "lab")
    events(lab / "node", here)
    code, out, _ = said(capsys, "swarm", "rotate", lab, "--set", "train.rounds=80", "--set", "train.learning_rate=0.1")
    assert (code, newest(lab).newest.applies_at) == (0, 60)
    assert "go on when they are started again: " in out
    code, _, _ = said(capsys, "swarm", "rotate", lab, "--set", "train.rounds=99", "--at-round", 80)
    assert (code, newest(lab).newest.applies_at) == (0, 80)


def test_a_round_must_be_named_where_no_node_says_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = founded(tmp_path / "lab").folder.path
    assert "--at-round N" in mistake(capsys, "swarm", "rotate", lab, "--set", "train.clip_norm=2")


@pytest.mark.slow
def test_k_of_n_sign_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [
        json.loads(said(capsys, "swarm", "key", tmp_path / name, "--no-passphrase", "--json")[1])["key"]
        for name in "bc"
    ]
    assert said(capsys, "swarm", "key", tmp_path / "b", "--json")[1].count(keys[0]) == 1
    lab = founded(tmp_path / "lab", others=tuple(map(bytes.fromhex, keys)), threshold=3).folder.path
    change = ("--set", "train.learning_rate=0.001", "--at-round", 0)
    facts = json.loads(said(capsys, "swarm", "rotate", lab, *change, "--json")[1])
    assert (facts["signed"], facts["needed"], facts["handed_to"]) == (1, 3, [])
    proposal = facts["proposal"]
    assert not waiting(lab / "node")
    assert json.loads(said(capsys, "swarm", "sign", "--yes", tmp_path / "b", proposal, "--json")[1])["signed"] == 2
    again = json.loads(said(capsys, "swarm", "sign", "--yes", tmp_path / "b", proposal, "--json")[1])
    assert (again["signed"], again["handed_to"]) == (2, [])
    last = json.loads(said(capsys, "swarm", "sign", "--yes", tmp_path / "c", proposal, "--to", lab, "--json")[1])
    assert (last["signed"], last["handed_to"]) == (3, [str(lab / "node")])
    assert newest(lab).newest.version == 3
    assert "has to be proposed again" in mistake(capsys, "swarm", "sign", "--yes", lab, proposal)
    (tmp_path / "junk").write_text("junk")
    assert "is no proposal" in mistake(capsys, "swarm", "sign", "--yes", lab, tmp_path / "junk")
    said(capsys, "swarm", "key", tmp_path / "d", "--no-passphrase")
    assert "no admin's" in mistake(capsys, "swarm", "sign", "--yes", tmp_path / "d", proposal)


def test_a_proposal_is_shown_and_asked_about_before_it_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = said(capsys, "swarm", "key", tmp_path / "b", "--no-passphrase")[1].strip()
    lab = founded(tmp_path / "lab", others=(bytes.fromhex(key),), threshold=2).folder.path
    said(capsys, "swarm", "rotate", lab, "--max-members", 9)
    proposal = lab / "proposal-3.p2p"
    before = proposal.read_bytes()
    sign = ("swarm", "sign", tmp_path / "b", proposal)
    assert "no terminal" in mistake(capsys, *sign)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, signed in (("n", False), ("y", True)):
        monkeypatch.setattr("typer.confirm", lambda question, err, answer=answer: answer == "y")
        code, _, err = said(capsys, *sign)
        assert "max_members: 0 -> 9" in err
        assert (code == 0, proposal.read_bytes() != before) == (signed, signed)


def shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a swarm of two admins and sixty rounds. The other admin is in `b`, and there is no proposal."""
    key = said(capsys, "swarm", "key", tmp_path / "b", "--no-passphrase")[1].strip()
    raw = {**DIGITS, "train": {"rounds": 60}}
    return founded(tmp_path / "lab", raw, others=(bytes.fromhex(key),), threshold=2).folder.path


@pytest.mark.parametrize(
    ("hidden", "line"),
    [
        ({"min_app": "99.0"}, "-> 99.0, at once"),
        ({"min_protocol": 99}, "-> 99, at once"),
        ({"max_payload_bytes": 1}, "-> 1, at once"),
        ({"psk_fingerprint": bytes(16)}, f"psk_fingerprint: None -> {'00' * 16}, at once"),
        ({"run": "other"}, "-> other, at once"),
        ({"name": "other"}, "name: lab -> other, at once"),
    ],
    ids=lambda each: "" if isinstance(each, str) else next(iter(each)),
)
def test_nothing_that_a_proposal_changes_stays_untold(
    hidden: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another admin's program may propose more than ours ever does."""
    last = newest(shared(tmp_path, capsys)).newest
    told = proposed(last, next_version(last, replace(last.terms, max_members=9, **hidden), applies_at=0))
    assert "  max_members: 0 -> 9, at once" in told
    assert any(each.endswith(line) for each in told)


def test_a_proposal_that_removes_an_admin_says_what_goes_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = newest(shared(tmp_path, capsys)).newest
    gone, stays = last.terms.admins
    told = proposed(last, next_version(last, replace(last.terms, admins=(stays,), threshold=1), applies_at=0))
    void = "who came by its invites is out, and whom it revoked is not"
    assert f"  all that {gone.hex()[:16]} signed is void, at once: {void}" in told


def test_a_proposal_that_delays_all_later_settings_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = newest(shared(tmp_path, capsys)).newest
    told = proposed(last, next_version(last, replace(last.terms, max_members=9), applies_at=10**9))
    assert "  applies_at: 0 -> 1000000000, at once" in told


def test_a_proposal_whose_round_is_over_says_so_before_it_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next admin may sign a week later."""
    lab = shared(tmp_path, capsys)
    said(capsys, "swarm", "rotate", lab, "--set", "train.learning_rate=0.001", "--at-round", 3)
    sign = ("swarm", "sign", tmp_path / "b", lab / "proposal-3.p2p", "--to", lab)
    over = "  round 3 is over, the swarm is in round 5: so "
    events(lab / "node", 3)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    assert "is over" not in said(capsys, *sign)[2]
    events(lab / "node", 5)
    assert over in said(capsys, *sign)[2]
    assert over in said(capsys, *sign, "--yes")[1]


@pytest.mark.parametrize(
    ("change", "here", "what"),
    [
        ("train.rounds=4", 4, "train.rounds=4 would end the run at once: the swarm is in round 4"),
        ("train.rounds=4", 6, "train.rounds=4 would end the run at once: the swarm is in round 6"),
        ("train.learning_rate=0.001", 60, "the run is over, 60 rounds of 60 are trained already"),
    ],
)
def test_a_proposal_that_came_to_mean_something_else_is_not_signed(
    change: str, here: int, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = shared(tmp_path, capsys)
    assert said(capsys, "swarm", "rotate", lab, "--set", change, "--at-round", 3)[0] == 0
    events(lab / "node", here)
    proposal = lab / "proposal-3.p2p"
    before = proposal.read_bytes()
    assert what in mistake(capsys, "swarm", "sign", tmp_path / "b", proposal, "--to", lab, "--yes")
    assert (proposal.read_bytes(), waiting(lab / "node")) == (before, [])


@pytest.mark.parametrize(("rounds", "told"), [(90, True), (50, False)])
def test_only_more_rounds_are_gone_on_with(
    rounds: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = long(tmp_path / "lab")
    events(lab / "node", 7)
    out = said(capsys, "swarm", "rotate", lab, "--set", f"train.rounds={rounds}")[1]
    assert ("go on when they are started again" in out) is told


def test_what_was_shown_is_signed_whatever_the_file_holds_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = shared(tmp_path, capsys)
    said(capsys, "swarm", "rotate", lab, "--max-members", 9)
    proposal = lab / "proposal-3.p2p"
    said(capsys, "swarm", "rotate", lab, "--policy", "open", "--out", tmp_path / "other")

    def answer(question: str, *, err: bool) -> bool:  # the proposer exchanges the file while the admin reads
        proposal.write_bytes((tmp_path / "other").read_bytes())
        return True

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", answer)
    code, out, _ = said(capsys, "swarm", "sign", tmp_path / "b", proposal, "--to", lab, "--json")

    assert (code, json.loads(out)["changes"]) == (0, {"max_members": {"from": 0, "to": 9}})
    assert newest(lab).newest.terms.policy is Policy.INVITE_ONLY


@pytest.mark.slow
def test_who_can_be_named_to_be_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = founded(tmp_path / "lab")
    lab, folder = made.folder.path, SwarmFolder(tmp_path / "lab")
    line = line_of(folder, name="carol")
    joined(tmp_path / "a" / "node", made.line)
    certificate = membership_of(tmp_path / "a" / "node").load_certificate()
    assert certificate is not None
    (tmp_path / "line").write_text(line)
    carol = next(each.id for each in folder.given() if each.name == "carol")
    roster = folder.files.load_roster(made.chain)
    roster.put(certificate)
    folder.files.save_roster(roster)
    ways = {
        certificate.peer: certificate.peer,
        f"..{certificate.peer[-8:]}": certificate.peer,
        "carol": carol,
        carol: carol,
        carol[:10]: carol,
        line: carol,
        str(tmp_path / "line"): carol,
    }
    for word, target in ways.items():
        facts = json.loads(said(capsys, "swarm", "revoke", lab, word, "--reason", "left", "--json")[1])
        assert facts["target"] == target, word
        assert facts["handed_to"] == [str(lab / "node")]
    words = said(capsys, "swarm", "revoke", lab, "carol")[1]
    assert words.startswith(f"revoked the invite {carol}\n"), "not of a grant, as the statement calls it"
    kinds = {parse_item(each).what.value for each in waiting(lab / "node")}  # type: ignore[union-attr]
    assert kinds == {"peer", "grant"}
    assert "no member or invite" in mistake(capsys, "swarm", "revoke", lab, "nobody")
    assert "no authority key" in mistake(capsys, "swarm", "revoke", tmp_path / "a", certificate.peer)
    rows = json.loads(said(capsys, "swarm", "members", lab, "--json")[1])["members"]
    assert {row["name"] or row["peer"]: row["revoked"] for row in rows} == {"founder": None, certificate.peer: "left"}
    view = json.loads(said(capsys, "swarm", "show", lab, "--json")[1])
    assert [each["revoked"] for each in view["invites"]] == [False, True]


def test_who_has_changed_its_key_is_revoked_by_its_first_key_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Revoked by its newest key alone, it would come back as another successor of the first one."""
    made, member = founded(tmp_path / "lab"), tmp_path / "a" / "node"
    joined(member, made.line)
    first, before = Identity.load(member / IDENTITY), membership_of(member).load_certificate()
    later = replace_key(member / IDENTITY, None)
    certificate = membership_of(member).load_certificate()
    assert before is not None
    assert certificate is not None
    roster = made.folder.files.load_roster(made.chain)
    roster.put(certificate)
    made.folder.files.save_roster(roster)
    facts = json.loads(said(capsys, "swarm", "revoke", tmp_path / "lab", later.peer_id, "--json")[1])
    assert facts["target"] == later.peer_id
    for each in waiting(made.folder.node_dir):
        roster.add(each)
    assert {each.target for each in roster.revocations} == {first.peer_id, later.peer_id}
    other = rotated(before, rotate(first, Identity.generate().peer_id, issued_at=now()))
    assert roster.revoked(other) is not None


def test_a_folder_whose_node_a_former_admin_let_in_is_still_read(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab")
    terms = replace(made.chain.newest.terms, admins=(Identity.generate().public_key,))
    made.chain.accept(next_version(made.chain.newest, terms, applies_at=0).signed_by(made.folder.authority(None)))
    made.folder.files.save_manifests(made.chain)
    chain, roster = known(made.folder.files)
    assert (chain.newest.version, len(roster)) == (2, 0)


def test_items_go_to_other_nodes_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = founded(tmp_path / "lab")
    joined(tmp_path / "a" / "node", made.line)
    peer = Identity.load(tmp_path / "a" / "node" / IDENTITY).peer_id
    words = ("swarm", "revoke", tmp_path / "lab", peer, "--json")
    assert len(json.loads(said(capsys, *words, "--to", tmp_path / "a")[1])["handed_to"]) == 2
    assert waiting(tmp_path / "a" / "node")
    (tmp_path / "empty").mkdir()
    assert "no swarm's folder" in mistake(capsys, *words, "--to", tmp_path / "empty")


def test_show_tells_nothing_secret_and_everything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = founded(tmp_path / "lab", psk=True, max_members=4)
    for what in (made.folder.path, made.folder.path / "invite.txt", made.line):
        code, out, _ = said(capsys, "swarm", "show", what)
        assert code == 0
        for each in (made.chain.swarm.hex(), "who has an invite; 4 at most", "pre-shared key", "name=digits"):
            assert each in out, each
        view = json.loads(said(capsys, "swarm", "show", what, "--json")[1])
        assert (view["psk"], view["policy"], view["settings"]["train"]["rounds"]) == (True, "invite_only", 3)
        psk = made.folder.psk()
        assert psk is not None
        assert psk.hex() not in out + json.dumps(view)
        assert made.line not in out + json.dumps(view)


def test_folders_that_are_no_swarm_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "members", "invite"):
        assert "no swarm's folder" in mistake(capsys, "swarm", command, tmp_path)
    for command, *words in (("rotate",), ("revoke", "a" * 64)):
        assert f"{tmp_path} is no swarm's folder" in mistake(capsys, "swarm", command, tmp_path, *words)
    SwarmFolder(tmp_path / "board").new_authority(None)
    assert "has no node" in mistake(capsys, "swarm", "rotate", tmp_path / "board"), "another admin's, who has its key"
    assert "no swarm's folder" in mistake(capsys, "node", "--swarm", tmp_path)
    made = founded(tmp_path / "lab")
    both = ("node", "--swarm", made.folder.path, "--run-dir", tmp_path / "a")
    assert "has its own node" in mistake(capsys, *both)


def test_a_bare_key_that_others_may_read_signs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = founded(tmp_path / "lab").folder
    lab.authority_file.chmod(0o644)
    assert "can be opened by others" in mistake(capsys, "swarm", "invite", lab.path)
    assert "can be opened by others" in mistake(capsys, "swarm", "revoke", lab.path, "a" * 64)


@pytest.mark.slow
def test_an_invite_in_a_file_and_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = founded(tmp_path / "lab").folder.path
    file = tmp_path / "for-carol.txt"
    code, out, _ = said(
        capsys, "swarm", "invite", lab, "--out", file, "--expires", "7d", "--uses", 2, "--name", "carol"
    )
    assert code == 0
    assert "p2p2" not in out
    assert file.stat().st_mode & 0o777 == 0o600
    view = json.loads(said(capsys, "swarm", "show", file, "--json")[1])["invite"]
    assert (view["uses"], view["name"], view["expires"] - view["issued_at"]) == (2, "carol", 7 * 86400)
    assert "is there already" in mistake(capsys, "swarm", "invite", lab, "--out", file)
    assert "unknown role" in mistake(capsys, "swarm", "invite", lab, "--role", "king")
    _, out, _ = said(capsys, "swarm", "invite", lab, "--qr")
    line, *picture = out.splitlines()
    assert line.startswith("p2p2")
    assert len(picture) > 30
    _, out, _ = said(capsys, "swarm", "invite", lab, "--qr", "--full")
    line, *larger = out.splitlines()
    assert line.startswith("p2p1")
    assert len(larger) > len(picture) + 10


def test_an_admin_s_folder_without_a_node_is_told_to_join_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "swarm", "key", tmp_path / "mine", "--no-passphrase")
    words = mistake(capsys, "swarm", "invite", tmp_path / "mine")
    assert "mine has an admin's key, and no node of the swarm yet; join with another admin's invite: " in words
    assert f"p2ptrain node --invite FILE --run-dir {tmp_path / 'mine'}" in words
