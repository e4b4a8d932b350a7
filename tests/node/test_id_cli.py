"""`p2ptrain id`: what it shows, protects, copies and replaces, and what it refuses."""

import json
from pathlib import Path

import pytest
from swarm_harness import founded, joined, mistake, said, seal_cheaply

from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from node.swarm import credentials, key_rotation
from node.swarm.accept_invite import membership
from node.swarm.folder import membership_of
from node.system.run_dir import IDENTITY, locked


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    seal_cheaply(monkeypatch)


def passphrase(folder: Path, words: str = "correct horse", name: str = "pass") -> Path:
    path = folder / name
    path.write_text(f"{words}\n")
    path.chmod(0o600)
    return path


def test_new_show_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, copy = tmp_path / "key", tmp_path / "copy"
    made = json.loads(said(capsys, "id", "new", key, "--json")[1])["peer_id"]
    assert said(capsys, "id", "show", key)[1].strip() == made
    assert "holds an identity already" in mistake(capsys, "id", "new", key)
    assert said(capsys, "id", "export", key, copy)[1].strip() == made
    assert copy.stat().st_mode & 0o777 == 0o600
    assert "is there already" in mistake(capsys, "id", "export", key, copy)
    for command in ("show", "encrypt", "rotate"):
        assert "there is no identity" in mistake(capsys, "id", command, tmp_path / "none")


@pytest.mark.slow
def test_under_a_passphrase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, right, wrong = tmp_path / "key", passphrase(tmp_path), passphrase(tmp_path, "horse", "wrong")
    made = said(capsys, "id", "new", key)[1].strip()
    seed = Identity.load(key).seed.hex()
    assert said(capsys, "id", "encrypt", key, "--passphrase-file", right)[1].strip() == made
    assert seed.encode() not in key.read_bytes()
    assert "already" in mistake(capsys, "id", "encrypt", key, "--passphrase-file", right)
    assert said(capsys, "id", "show", key, "--passphrase-file", right)[1].strip() == made
    assert "no terminal" in mistake(capsys, "id", "show", key)
    code, _, err = said(capsys, "id", "show", key, "--passphrase-file", wrong)
    assert (code, "passphrase is wrong" in err, err.count("\n")) == (1, True, 1)
    right.chmod(0o644)
    assert "chmod 600" in mistake(capsys, "id", "show", key, "--passphrase-file", right)


def test_a_sealed_key_is_no_authority_s(tmp_path: Path) -> None:
    from gossip.membership import Authority

    identity = Identity.generate()
    identity.save(tmp_path / "key", b"word")
    assert Identity.load(tmp_path / "key", b"word").peer_id == identity.peer_id
    with pytest.raises(LocalError, match="another purpose"):
        Authority.load(tmp_path / "key", b"word")
    with pytest.raises(LocalError, match="--passphrase-file"):
        Identity.load(tmp_path / "key")
    with pytest.raises(LocalError, match="not overwritten"):
        identity.save(tmp_path / "key")


def test_a_membership_goes_on_under_the_next_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = founded(tmp_path / "lab")
    node = tmp_path / "a" / "node"
    joined(node, made.line)
    before = Identity.load(node / IDENTITY).peer_id
    after = said(capsys, "id", "rotate", node)[1].strip()
    assert after == Identity.load(node / IDENTITY).peer_id != before
    certificate = membership_of(node).load_certificate()
    assert certificate is not None
    assert certificate.lineage == (before, after)
    assert credentials.load(node, None).private is not None
    for _ in range(3):
        assert said(capsys, "id", "rotate", node)[0] == 0
    assert "takes no other key" in mistake(capsys, "id", "rotate", node)
    assert credentials.load(node, None).private is not None
    assert not list(node.glob("*.next"))


def test_who_newcomers_ask_is_told_that_they_do_not_find_its_next_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = founded(tmp_path / "lab")
    (old,) = made.chain.newest.terms.bootstrap
    _, out, err = said(capsys, "id", "rotate", made.folder.node_dir)
    assert err.startswith("warning: the swarm and its invites name this node by its old key")
    assert f"--bootstrap {old.rpartition('/p2p/')[0]}/p2p/{out.strip()}\n" in err
    again = membership(made.folder.node_dir, {}, None)
    assert again is not None
    assert again.raw["network"]["peers"] == [], "its old key is nobody to wait for"
    joined(tmp_path / "a" / "node", made.line)
    assert said(capsys, "id", "rotate", tmp_path / "a" / "node")[2] == ""


def test_a_rotation_that_died_half_way_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = founded(tmp_path / "lab")
    node = tmp_path / "a" / "node"
    joined(node, made.line)
    with monkeypatch.context() as died:
        died.setattr(Path, "replace", _power_cut(Path.replace))
        with pytest.raises(KeyboardInterrupt):
            key_rotation.replace_key(node / IDENTITY, None)
    certificate = membership_of(node).load_certificate()
    assert certificate is not None
    assert key_rotation.replace_key(node / IDENTITY, None).peer_id == certificate.peer
    assert credentials.load(node, None).private is not None


def _power_cut(replace):  # type: ignore[no-untyped-def]
    def cut(self: Path, target: Path) -> Path:
        if self.suffix == ".next":
            raise KeyboardInterrupt
        return replace(self, target)

    return cut


def test_a_key_of_no_swarm_is_simply_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = said(capsys, "id", "new", tmp_path / "key")[1]
    assert said(capsys, "id", "rotate", tmp_path / "key")[1] not in ("", before)


@pytest.mark.parametrize("command", ["encrypt", "rotate"])
def test_no_lock_is_left_beside_a_key_that_is_no_nodes(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "id", "new", tmp_path / "key")
    words = ["--passphrase-file", passphrase(tmp_path)] if command == "encrypt" else []
    before = {path.name for path in tmp_path.iterdir()}
    said(capsys, "id", command, tmp_path / "key", *words)
    left = {path.name for path in tmp_path.iterdir()} - before
    assert "lock" not in left
    with locked(tmp_path):
        assert "in use" in said(capsys, "id", "rotate", tmp_path / "key", *words)[2]
    said(capsys, "id", "rotate", tmp_path / "key", *words)
    assert (tmp_path / "lock").exists(), "it was there before: the folder may be a node's"
