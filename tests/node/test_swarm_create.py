"""`swarm create`: whole or not at all, what goes into the manifest, and every refusal."""

import json
import os
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from swarm_harness import DIGITS, founded, line_of, mistake, said, seal_cheaply

from gossip.core.identity import Identity
from gossip.core.ids import SwarmId
from gossip.core.secret_file import write_private
from gossip.membership import Authority, Policy, Role, make_invite, parse_invite_code
from node.config.schema import Config, from_raw
from node.swarm import agreed_settings, data, parsing
from node.swarm.accept_invite import LOCAL
from node.swarm.folder import SwarmFolder
from node.system.errors import UsageError
from node.system.run_dir import IDENTITY

QUICK = ("--task", "digits", "--no-passphrase", "--at", "127.0.0.1:4001")


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    seal_cheaply(monkeypatch)


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_what_lies_in_the_folder_and_who_may_read_it(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", psk=True, raw=DIGITS | {"train": {"device": "cpu", "threads": 2}})
    secret = ["authority.key", "invite.txt", "invites.jsonl", f"node/{IDENTITY}", "node/membership/swarm.key"]
    for each in secret:
        assert (tmp_path / "lab" / each).stat().st_mode & 0o777 == 0o600, each
    assert (tmp_path / "lab").stat().st_mode & 0o777 == 0o700
    folder = SwarmFolder(tmp_path / "lab")
    certificate = folder.files.load_certificate()
    assert certificate is not None
    assert (certificate.role, certificate.peer) == (Role.TRAINER, Identity.load(folder.node_dir / IDENTITY).peer_id)
    invitation = parse_invite_code((tmp_path / "lab" / "invite.txt").read_text())
    assert invitation.chain.newest.digest == made.chain.newest.digest
    assert invitation.psk == folder.psk() is not None
    own = tomllib.loads((folder.node_dir / LOCAL).read_text())
    assert own == {"train": {"device": "cpu", "threads": 2}, "network": {"listen": ["/ip4/127.0.0.1/tcp/4001"]}}
    assert [each.name for each in tmp_path.iterdir()] == ["lab"]


def test_the_manifest_says_every_agreed_setting_and_no_machine_s_own(tmp_path: Path) -> None:
    chain = founded(tmp_path / "lab", raw=DIGITS | {"node": {"pace": "dylu"}}).chain
    settings = chain.newest.terms.settings
    again = from_raw(agreed_settings.raw_of(settings))
    assert agreed_settings.settings_of(again) == settings
    every = Config().model_dump(mode="json", exclude_none=True)
    said_of = {section: set(keys) for section, keys in settings.items()}
    own, newer = (
        {"device", "threads", "precision", "compile"},
        {"inner_steps_schedule", "late_average", "step_normalization"}
        | {"shares", "public_digest", "distill_rate", "distill_temperature"},
    )
    assert said_of["train"] == set(every["train"]) - own - newer
    assert said_of["sync"] == set(every["sync"]) - {"estimates"}, "which releases before did not know"
    wider = agreed_settings.settings_of(from_raw(DIGITS | {"sync": {"estimates": "bf16"}}))
    assert wider["sync"]["estimates"] == "bf16"
    assert settings["node"] == {"pace": "dylu", "shard_count": 1}
    assert "data" not in said_of["task"]
    assert "listen" not in said_of["network"]


@pytest.mark.parametrize("step", ["settle_node", "give", "write_line", "keep_own"])
def test_an_interrupted_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"node.swarm.create.{step}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        founded(tmp_path / "lab")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_creation_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / ".lab.0badcafe.new").mkdir()
    founded(tmp_path / "lab")
    assert SwarmFolder(tmp_path / "lab").chain().newest.version == 1


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    founded(tmp_path / "lab")
    before = (tmp_path / "lab" / "authority.key").read_bytes()
    assert "is there already" in mistake(capsys, "swarm", "create", "x", "--out", tmp_path / "lab", *QUICK)
    assert (tmp_path / "lab" / "authority.key").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (("--at", "nowhere"), "is not HOST:PORT"),
        (("--open", "--invite-only"), "contradict each other"),
        (("--allow", "none.txt"), "cannot read the list"),
        (("--bootstrap", "/ip4/1.2.3.4/tcp/1"), "no address of a peer"),
        (("--admins", "abc"), "no admin's key"),
        (("--k", "2"), "--k 2 of 1 admins"),
        (("--k", "0"), "--k 0 of 1 admins"),
        (("--expires", "soon"), "is no time"),
        (("--expires", "2001-01-01"), "is over"),
        (("--expires", "0d"), "is no time"),
        (("--data-must-match",), "without --data"),
        (("--task", "bytelm"), "did you mean byte-lm"),
        (("--set", "sync.strategy=gradient"), "no node can run"),
        (("--set", "train.learning_rate=-1"), "learning_rate"),
        (("--name", "x"), "no such option"),
        (("--passphrase-file", "none"), "contradict each other"),
    ],
)
def test_every_refusal_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: tuple[str, ...],
    what: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert what in mistake(capsys, "swarm", "create", "x", "--out", "lab", *QUICK, *wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_short_and_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "x" * 65, "Stra\u00dfe", "a\nb"):
        assert "cannot be called" in mistake(capsys, "swarm", "create", name, "--out", tmp_path / "lab", *QUICK)


def test_a_passphrase_is_wanted_or_declined_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("swarm", "create", "x", "--out", tmp_path / "lab", "--task", "digits", "--at", "127.0.0.1:4001")
    assert "no terminal" in mistake(capsys, *words)
    empty = private(tmp_path / "empty", "\n")
    assert "is empty" in mistake(capsys, *words, "--passphrase-file", empty)
    empty.write_text("known to all")
    empty.chmod(0o644)
    assert "chmod 600" in mistake(capsys, *words, "--passphrase-file", empty)
    assert not (tmp_path / "lab").exists()


def test_it_is_asked_for_twice_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from node.swarm import passphrases

    words = "three horses in a row"
    typed = iter(["one horse in a row", "two horses in a row", " ", "pw", words, words])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    with pytest.raises(UsageError, match="differ"):
        passphrases.new_passphrase(None, none=False, what="the key")
    with pytest.raises(UsageError, match="empty"):
        passphrases.new_passphrase(None, none=False, what="the key")
    with pytest.raises(UsageError, match="too easy to guess") as weak:
        passphrases.new_passphrase(None, none=False, what="the key")
    assert "at least 12 characters" in weak.value.hint
    assert passphrases.new_passphrase(None, none=False, what="the key") == words.encode()


@pytest.mark.parametrize("weak", ["pw", "correcthors", "aaaaaaaaaaaaaaaa", "abababababababab", "\u00e9" * 6])
def test_a_passphrase_that_is_easy_to_guess_is_refused_for_a_new_key_and_opens_an_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weak: str
) -> None:
    from node.swarm import passphrases

    file = private(tmp_path / "weak", weak)
    words = ("--out", tmp_path / "lab", "--task", "digits", "--at", "127.0.0.1:4001")
    told = mistake(capsys, "swarm", "create", "x", *words, "--passphrase-file", file)
    assert "is too easy to guess; at least 12 characters" in told
    assert weak not in told
    assert "is too easy to guess" in mistake(capsys, "id", "new", tmp_path / "key", "--passphrase-file", file)
    assert not (tmp_path / "lab").exists()
    assert passphrases.passphrase_for(file, "a key that is there") == weak.encode()


def test_the_key_lies_under_the_passphrase_and_opens_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = private(tmp_path / "right", "correct horse\n"), private(tmp_path / "wrong", "horse\n")
    out = ("--out", tmp_path / "lab", "--task", "digits", "--at", "127.0.0.1:4001")
    code, told, _ = said(capsys, "swarm", "create", "x", *out, "--passphrase-file", right, "--json")
    assert code == 0
    line = (tmp_path / "lab" / "invite.txt").read_text().strip()
    assert line not in told
    assert json.loads(told)["invite_file"] == str(tmp_path / "lab" / "invite.txt")
    assert Authority.load(tmp_path / "lab" / "authority.key", b"correct horse")
    invite = ("swarm", "invite", tmp_path / "lab")
    assert "passphrase is wrong" in mistake(capsys, *invite, "--passphrase-file", wrong)
    assert "no terminal" in mistake(capsys, *invite)
    (tmp_path / "lab" / "authority.key").chmod(0o640)
    assert "can be opened by others" in mistake(capsys, *invite, "--passphrase-file", right)


def test_policies_and_addresses(tmp_path: Path) -> None:
    peer = Identity.generate().peer_id
    there = f"/ip4/192.0.2.9/tcp/4001/p2p/{peer}"
    only = founded(tmp_path / "1", at=None, bootstrap=(there,)).chain.newest.terms
    assert only.bootstrap == (there,)
    both = founded(tmp_path / "2", bootstrap=(there,), policy=Policy.ALLOW, allow=frozenset({peer})).chain.newest.terms
    assert (len(both.bootstrap), both.policy, both.allow) == (2, Policy.ALLOW, {peer})
    far = founded(tmp_path / "3", at=("gpu.example.org", 4001))
    own = tomllib.loads((far.folder.node_dir / LOCAL).read_text())["network"]
    assert own == {"listen": ["/ip4/0.0.0.0/tcp/4001"], "announce": ["/dns/gpu.example.org/tcp/4001"]}
    assert founded(tmp_path / "4", at=None).chain.newest.terms.bootstrap


def test_several_admins_from_the_second_version_on(tmp_path: Path) -> None:
    other = Authority.generate().public_key
    chain = founded(tmp_path / "lab", others=(other,), threshold=2).chain
    assert (chain.newest.version, chain.newest.terms.threshold, len(chain.newest.terms.admins)) == (2, 2, 2)
    assert parse_invite_code(line_of(SwarmFolder(tmp_path / "lab"))).chain.newest.digest == chain.newest.digest


def test_the_digest_of_data_is_of_names_and_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "b").write_bytes(b"x" * (data.PIECE_BYTES + 1))
        (folder / "a").write_bytes(b"y")
    assert data.digest_of_data(one) == data.digest_of_data(other)
    (other / "a").rename(other / "c")
    assert data.digest_of_data(one) != data.digest_of_data(other)
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UsageError):
            data.digest_of_data(nothing)
    whole = os.urandom(10)
    (tmp_path / "f").write_bytes(whole)
    (tmp_path / "g").write_bytes(whole)
    assert data.digest_of_data(tmp_path / "f") == data.digest_of_data(tmp_path / "g")


def test_lifetimes() -> None:
    assert parsing.expiry("7d", 1000) == 1000 + 7 * 86400
    assert parsing.expiry("never", 1000) is None
    assert parsing.expiry("1970-01-02", 1000) == 86400
    assert parsing.moment(86400) == "1970-01-02 00:00 UTC"


BY_GRANTS = ("--sync", "secure_average", "--set", "sync.draw=grants", "--set", "network.degree=32")


@pytest.mark.parametrize(("drawn", "uses"), [(BY_GRANTS, 1), (BY_GRANTS[:2] + BY_GRANTS[4:], 10), ((), 10)])
def test_the_first_invite_is_for_one_where_each_member_needs_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: tuple[str, ...], uses: int
) -> None:
    lab = tmp_path / "lab"
    assert said(capsys, "swarm", "create", "lab", *QUICK, "--out", lab, *drawn)[0] == 0
    assert json.loads((lab / "invites.jsonl").read_text().splitlines()[0])["uses"] == uses


def test_of_invites_that_are_given_out_at_once_none_is_missing_from_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read the list before either had written it, and the second wrote it without the first one's."""
    authority, swarm = Identity.generate(), SwarmId(bytes(16))
    both = threading.Barrier(2)

    def written(path: Path, data: bytes, what: str) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # each is as far as it gets while the other has not written
        write_private(path, data, what)

    monkeypatch.setattr("node.swarm.folder.write_private", written)
    invites = [
        make_invite(authority, swarm, Identity.generate(), role=Role.TRAINER, issued_at=1, name=name) for name in "ab"
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(SwarmFolder(tmp_path).record, invites))
    assert sorted(each.name for each in SwarmFolder(tmp_path).given()) == ["a", "b"]


@pytest.mark.parametrize("uses", ["0", "2"])
def test_an_invite_for_several_is_refused_where_each_member_needs_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], uses: str
) -> None:
    lab = tmp_path / "lab"
    why = f"error: --uses {uses}: with sync.draw=grants who comes by an invite for several is in no group"
    assert why in mistake(capsys, "swarm", "create", "lab", *QUICK, "--out", lab, *BY_GRANTS, "--uses", uses)
    assert not lab.exists()
    assert said(capsys, "swarm", "create", "lab", *QUICK, "--out", lab, *BY_GRANTS)[0] == 0
    assert why in mistake(capsys, "swarm", "invite", lab, "--uses", uses)
    assert said(capsys, "swarm", "invite", lab, "--uses", uses, "--role", "observer")[0] == 0, "it is in no group"
