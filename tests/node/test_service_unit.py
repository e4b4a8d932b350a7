"""A service's file says what it was made of: systemd and launchd start the same words, and no secret stands in it."""

import json
import os
import plistlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import systemd_syntax
from hypothesis import example, given
from hypothesis import strategies as st

from node.cli import launchd_start
from node.services.launchd_services import LaunchdServices
from node.services.service_record import ServiceRecord, carried, check_name, parse_record
from node.services.systemd_services import SystemdServices
from node.services.unit_text import command_line, quoted, record_line, unit
from node.system.errors import EXIT_INTERRUPTED, EXIT_USAGE, RunError, UsageError

RECORD = ServiceRecord(
    name="node",
    argv=(sys.executable, "-P", "-m", "p2ptrain", "node", "--run-dir", 'a b/%h $HOME "c" \\d\'', "--set", "x=;"),
    folder=Path("/tmp"),
    node_dir=Path("/tmp/a b/node"),
    environment={"PYTHONPATH": '/a "b"/%c'},
)

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
TRICKY = st.text("%$\\\"' \t\n;:@-+!#=x41{}~\r\x7f", max_size=12)


@given(st.lists(WORDS | TRICKY, max_size=5))
@example(["", ";", "$$", "${HOME}", "%%", "%", "\\", '"', "a\\\nb", "\\x41", " ", "#", "-"])
def test_the_words_of_a_unit_are_those_that_were_given(words: list[str]) -> None:
    line = command_line(("/usr/bin/python 3", *words))
    assert "\n" not in line
    assert systemd_syntax.words(line) == ["/usr/bin/python 3", *words]


@given(WORDS | TRICKY)
def test_a_records_json_stands_on_one_line_whatever_its_words(word: str) -> None:
    record = replace(RECORD, argv=(*RECORD.argv, word))
    text = unit(record, "/e")
    line = record_line(text)
    assert line is not None
    assert parse_record(line, Path("x")) == record
    assert systemd_syntax.words(systemd_syntax.setting(text, "ExecStart")) == list(record.argv)


def test_words_that_are_no_text_are_refused() -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        quoted(os.fsdecode(b"a\xff"))


@pytest.mark.parametrize("folder", ["/a\nb", "/a ", "/a\\", "/a\x01"])
def test_a_folder_that_a_unit_cannot_name_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a unit file"):
        unit(replace(RECORD, folder=Path(folder)), "/e")


@pytest.mark.parametrize("folder", ["Bob's", 'a "b"', "a\\b", "a\nb"])
def test_an_environment_whose_program_systemd_does_not_start_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="starts no program of this name"):
        unit(replace(RECORD, argv=(f"/home/{folder}/bin/python", "-m", "p2ptrain")), "/e")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("name", ["a b", "a$HOME", "per%h", "a;b", "[a]*", "ü~#"])
def test_systemd_takes_folders_of_such_names(name: str, tmp_path: Path) -> None:
    python = tmp_path / name / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    record = replace(RECORD, argv=(str(python), "-P"), folder=python.parent, environment={"PYTHONPATH": str(python)})
    file, runtime = tmp_path / "p2ptrain-node.service", tmp_path / "run"
    file.write_text(unit(record, f"{python.parent}/node.env"))
    runtime.mkdir(mode=0o700)
    verify = ["systemd-analyze", "verify", "--user", "--man=no", str(file)]
    done = subprocess.run(verify, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "p2ptrain-node.service"
    file.write_bytes(SystemdServices().text(replace(RECORD, folder=tmp_path)))
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    verify = ["systemd-analyze", "verify", "--user", "--man=no", str(file)]
    done = subprocess.run(verify, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(file.read_text().replace("Restart=on-failure", "Restart=on-failing"))
    wrong = subprocess.run(verify, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True)
    assert "on-failing" in wrong.stderr


def test_what_a_unit_promises() -> None:
    text = unit(RECORD, "/home/me/%u.env")
    kept = {"Restart": "on-failure", "RestartPreventExitStatus": "2", "SuccessExitStatus": "130", "KillMode": "mixed"}
    assert {key: systemd_syntax.setting(text, key) for key in kept} == kept
    assert systemd_syntax.setting(text, "UnsetEnvironment") == "P2PTRAIN_INVITE"
    assert systemd_syntax.setting(text, "EnvironmentFile") == "-/home/me/%%u.env"
    assert systemd_syntax.words(":" + systemd_syntax.setting(text, "Environment")) == ['PYTHONPATH=/a "b"/%c']
    assert int(systemd_syntax.setting(text, "TimeoutStopSec")) > 60


def test_an_agent_of_launchd_starts_the_same_words_and_ends_after_a_mistake() -> None:
    agent = plistlib.loads(LaunchdServices().text(RECORD))
    assert agent["ProgramArguments"] == list(RECORD.argv)
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["EnvironmentVariables"] == RECORD.environment
    assert agent["ExitTimeOut"] > 60
    assert LaunchdServices.module == "node.cli.launchd_start"


@pytest.mark.parametrize(("code", "left"), [(0, 0), (1, 1), (EXIT_USAGE, 0), (EXIT_INTERRUPTED, EXIT_INTERRUPTED)])
def test_launchd_is_told_that_a_mistake_is_no_failure(code: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2ptrain.__main__.main", lambda: sys.exit(code))
    with pytest.raises(SystemExit) as ended:
        launchd_start.main()
    assert ended.value.code == left


@pytest.mark.thorough
def test_a_process_of_launchds_ends_without_failure_after_a_mistake_alone(tmp_path: Path) -> None:
    def code(*words: str) -> int:
        program = [sys.executable, "-m", LaunchdServices.module, *words]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(program, cwd=tmp_path, env=env, capture_output=True).returncode

    assert code("node", "--rouds", "3") == 0
    assert code("evaluate", str(tmp_path / "none")) == 0  # a mistake, too
    (tmp_path / "run" / "node").mkdir(parents=True)
    (tmp_path / "run" / "node" / "events.jsonl").mkdir()
    assert code("node", "--task", "digits", "--run-dir", str(tmp_path / "run")) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": "a", "argv": 3}', json.dumps({"name": "a", "argv": []})])
def test_a_damaged_record_is_told(text: str) -> None:
    with pytest.raises(RunError, match="x is damaged; install the service again with --replace"):
        parse_record(text, Path("x"))


def test_names_and_variables() -> None:
    for name in ("", "-a", "a/b", "..", "a@b", "a b", "x" * 65):
        with pytest.raises(UsageError):
            check_name(name)
    shell = {"HF_TOKEN": "hf_x", "P2PTRAIN_INVITE": "p2p1", "PYTHONPATH": "/p", "TZ": "", "HOME": "/h"}
    assert carried(shell) == {"PYTHONPATH": "/p"}
