"""What a careless user gives to commands: files that are missing or no text, folders, typos, numbers below 0, ports in
use. Each is one line that says what is wrong and what to do."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cli import main

PORT = "PORT"
"""One that another program listens on."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with files and folders that are none of what is asked for."""
    (tmp_path / "some folder").mkdir()
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "broken.toml").write_text("[train\nrounds = 3\n")
    (tmp_path / "typo.toml").write_text("[train]\nrouns = 3\n")
    (tmp_path / "plan.toml").write_text('grids = "train.rounds"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        yield str(used.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--nodes", "-1"], "--nodes must be between 1 and 64, not -1"),
        (["up", "--rounds", "-5"], "rounds must be at least 1, not -5"),
        (["up", "--data", "nowhere/"], "cannot be read: No such file or directory; give a file or a folder"),
        (["up", "--data", "empty.txt"], "empty.txt' is empty; give a file or a folder"),
        (["up", "--config", "typo.toml"], "typo.toml, line 2: unknown key train.rouns, did you mean train.rounds?"),
        (["up", "--config", "some folder"], "cannot read some folder: Is a directory; give a TOML file"),
        (["up", "--config", "bytes.toml"], "bytes.toml is not valid TOML: it is no text in UTF-8; save it as UTF-8"),
        (["up", "--set", "rounds=3"], "is not section.key=value; for example --set train.rounds=20"),
        (["up", "--run-dir", "text.txt"], "text.txt is a file, not a folder; give another --run-dir"),
        (["node", "--listen", "127.0.0.1:4001"], "is no address; one looks like /ip4/0.0.0.0/tcp/4001"),
        (["node", "--listen", f"/ip4/127.0.0.1/tcp/{PORT}"], "is in use by another program: choose another port"),
        (["node", "--peer", "nonsense"], "is no peer's address; one looks like"),
        (["node", "--invite", "missing.txt"], "give the file's path, or the whole line"),
        (["node", "--invite", "some folder"], "give the file's path, or the whole line"),
        (["node", "--invite", "text.txt"], "not an invite"),
        (["node", "--when", "sometimes"], "there are always, idle, night, plugged"),
        (["node", "--memory", "-1GiB"], "such as 6GiB, not '-1GiB'"),
        (["node", "--name", "Jane Q. Public"], "is not usable"),
        (["node", "--set", "sync.f=-1"], "f must not be negative, not -1"),
        (["plan", "--params", "-7e9"], "--params: '-7e9' must not be negative: write 7e9 or 7B"),
        (
            ["plan", "--params", "7e9", "--nodes", "9", "--uplink", "-20Mbit"],
            "--uplink: '-20Mbit' must not be negative: write 20Mbit",
        ),
        (["plan", "--nodes", "0"], "a swarm has two members or more, not 0"),
        (["simulate", "missing.toml"], "some are in configs/scenarios/"),
        (["simulate", "some folder"], "some folder is a folder, and no scenario"),
        (["simulate", "bytes.toml"], "it is no text in UTF-8"),
        (["sweep", "plan.toml", "--out", "z"], "unknown key grids, did you mean grid?; there are"),
        (["sweep", "bytes.toml", "--out", "z"], "it is no text in UTF-8"),
        (["sweep", "broken.toml", "--out", "z"], "at line 1, column 7); mend that line"),
        (["bench", "quality", "--plan", "plan.toml"], "unknown key grids"),
        (["status", "text.txt"], "text.txt is a file, not a run folder; give the folder that"),
        (["page", "text.txt"], "text.txt is not a run folder: it is a file; look under runs/"),
        (["generate", "some folder"], "some folder is not a run folder"),
        (["export", "some folder", "--out", "x"], "give a name that ends in .safetensors"),
        (["report", "text.txt", "--out", "some folder"], "some folder cannot be a file; give a file's name"),
        (["privacy", "epsilon", "--noise", "1", "--rate", "7", "--steps", "9"], "a rate is above 0 and at most 1"),
        (["swarm", "create", "us", "--at", "nowhere", "--out", "us"], "is not HOST:PORT; such as 192.168.1.7:4001"),
        (["swarm", "invite", "some folder"], "give the one that p2ptrain swarm create made"),
        (["id", "show", "text.txt"], "text.txt is not a p2ptrain identity"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_it_is_one_line_that_says_what_to_do(
    folder: Path, taken: str, capsys: pytest.CaptureFixture, arguments: list[str], said: str, monkeypatch
) -> None:
    monkeypatch.setattr("node.cli.simulate_cmd._again_with_fixed_hashes", lambda *given, **named: None)
    code = main([word.replace(PORT, taken) for word in arguments])
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
