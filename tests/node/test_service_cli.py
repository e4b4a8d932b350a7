"""`p2ptrain service`: what is checked before anything is written; a second start, a full disk, sudo and Ctrl-C."""

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import systemd_syntax
from fake_systemd import FakeSystemd, unit_file

from gossip.core.identity import Identity
from node.cli import main, service_cmd
from node.events.progress import NodeProgress
from node.services import installing, service_manager, systemd_services
from node.services.service_manager import Done, manager_here, without_systemd
from node.services.systemd_services import SystemdServices
from node.system import run_dir as folders

DIGITS = ("--run-dir", "runs/a b", "--task", "digits")


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSystemd]:
    fake = FakeSystemd()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "SUDO_USER", "P2PTRAIN_INVITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service_manager, "manager_here", lambda: SystemdServices(fake))
    yield fake
    assert not list(tmp_path.rglob("*.service.*")), "half a file is left"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["service", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def install(capsys: pytest.CaptureFixture[str], *words: str, before: tuple[str, ...] = ()) -> tuple[int, str, str]:
    return run(capsys, "install", *before, "--", *(words or DIGITS))


def test_a_service_is_installed_started_shown_and_removed(systemd, capsys, tmp_path: Path) -> None:
    file = unit_file(tmp_path)
    assert install(capsys) == (0, f"installed {file}\nstarted; see p2ptrain service status\n", "")
    text = file.read_text()
    assert systemd_syntax.words(systemd_syntax.setting(text, "ExecStart"))[2:] == ["-m", "p2ptrain", "node", *DIGITS]
    assert systemd_syntax.setting(text, "WorkingDirectory") == str(tmp_path)
    assert systemd.verbs() == ["daemon-reload", "enable", "reset-failed", "start", "enable-linger"]
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert "service node: running, process 4711, starts by itself, goes on after log-out" in out
    assert "it has not run yet" in out
    (kept := tmp_path / "runs" / "a b" / "node" / "kept").parent.mkdir(parents=True)
    kept.touch()
    systemd.asked.clear()
    code, out, _ = run(capsys, "remove")
    assert (code, out) == (0, f"removed {file}; what it wrote stays in {kept.parent}\n")
    assert systemd.verbs() == ["stop", "disable", "daemon-reload"]
    assert not file.exists()
    assert kept.exists()
    assert run(capsys, "remove")[0] == run(capsys, "status")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--run-dir", "r", "--rouds", "3"), "no such option: --rouds"),
        (("--run-dir", "r", "--rounds", "many"), "--rounds"),
        (("--run-dir", "r", "--set", "train.lr=3"), "unknown key train.lr"),
        (("--run-dir", "r", "--task", "digitz"), "digits"),
        (("--run-dir", "r", "--config", "none.toml"), "there is no configuration file none.toml"),
        (("--run-dir", "r", "--task", "digits", "--name", "a/b"), "node name 'a/b' is not usable"),
        (("--task", "digits"), "add --run-dir FOLDER"),
        (("--run-dir", "r", "--invite", "none.txt"), "the invite is neither"),
        (("--run-dir", "r", "--task", "digits", "--set", "network.swarm=token:abcdef"), "[secret] would stand in"),
        (("extra", "--run-dir", "r"), "unexpected extra argument"),
    ],
)
def test_a_wrong_option_is_one_line_and_installs_nothing(systemd, capsys, tmp_path: Path, words, said: str) -> None:
    code, out, err = install(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "abcdef" not in err
    assert list(tmp_path.iterdir()) == []
    assert systemd.verbs() == []


def test_a_second_one_of_a_name_wants_replace_which_stops_the_first(systemd, capsys, tmp_path: Path) -> None:
    assert install(capsys)[0] == 0
    code, _, err = install(capsys, *DIGITS, "--rounds", "7")
    assert code == 2
    assert "there is a service node already" in err
    assert str(tmp_path / "runs" / "a b" / "node") in err
    assert "--replace" in err
    systemd.asked.clear()
    assert install(capsys, *DIGITS, "--rounds", "7", before=("--replace",))[0] == 0
    assert systemd.verbs()[:2] == ["stop", "daemon-reload"]
    assert '"--rounds" "7"' in unit_file(tmp_path).read_text()
    code, _, err = install(capsys, before=("--name", "other"))
    assert (code, err.startswith("error: the service node runs the node in")) == (2, True)
    assert install(capsys, "--run-dir", "b", "--task", "digits", before=("--name", "other"))[0] == 0
    assert [each["name"] for each in json.loads(run(capsys, "status", "--json")[1])] == ["node", "other"]


def test_a_node_that_was_started_by_hand_is_not_disturbed(systemd, capsys, tmp_path: Path) -> None:
    folder = folders.make_node_dir(tmp_path / "runs" / "a b", "node")
    with folders.locked(folder):
        code, _, err = install(capsys)
    assert code == 1
    assert f"a node runs in {folder} (process " in err
    assert not unit_file(tmp_path).exists()


def test_a_node_that_was_started_by_hand_is_not_disturbed_by_a_service_that_moves_there(
    systemd, capsys, tmp_path: Path
) -> None:
    assert install(capsys)[0] == 0
    folder = folders.make_node_dir(tmp_path / "b", "node")
    with folders.locked(folder):
        code, _, err = install(capsys, "--run-dir", "b", "--task", "digits", before=("--replace",))
    assert code == 1
    assert f"a node runs in {folder} (process " in err
    assert "stop" not in systemd.verbs()
    assert '"runs/a b"' in unit_file(tmp_path).read_text()


def test_without_a_user_manager_it_is_written_and_said_how_to_start(
    systemd, capsys, tmp_path: Path, monkeypatch
) -> None:
    systemd.answers = False
    monkeypatch.setattr(systemd_services, "BOOTED", tmp_path)
    code, out, err = install(capsys)
    assert (code, err) == (0, "")
    assert "not started: no systemd of this user answers (Failed to connect to bus: No medium found)" in out
    assert "systemctl --user daemon-reload && systemctl --user enable --now p2ptrain-node" in out
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert "unknown" in out
    assert "start it with: systemctl" in out
    wants = unit_file(tmp_path).parent / "default.target.wants"
    wants.mkdir()
    (wants / "p2ptrain-node.service").symlink_to(unit_file(tmp_path))  # as `enable` makes it without a manager
    assert json.loads(run(capsys, "status", "--json")[1])[0]["service"]["at_login"] is True
    assert run(capsys, "remove")[0] == 0
    assert list(wants.iterdir()) == []


def test_who_may_not_linger_is_given_the_line(systemd, capsys) -> None:
    systemd.may_linger = False
    code, out, _ = install(capsys)
    assert code == 0
    assert "Access denied" in out
    assert "sudo loginctl enable-linger" in out


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only")])
@pytest.mark.parametrize("first", [True, False])
def test_a_disk_that_takes_nothing_leaves_what_was(
    systemd, capsys, tmp_path: Path, monkeypatch, number: int, said: str, first: bool
) -> None:
    if not first:
        assert install(capsys)[0] == 0
    before = None if first else unit_file(tmp_path).read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(number, said, str(path))

    monkeypatch.setattr(installing, "write_atomic", full)
    code, _, err = install(capsys, *DIGITS, "--rounds", "7", before=("--replace",))
    assert code == 1
    assert err == f"error: cannot write {unit_file(tmp_path)}: {said}; make room there, or let it be written to\n"
    assert (unit_file(tmp_path).read_bytes() if unit_file(tmp_path).exists() else None) == before
    assert systemd.states.get("p2ptrain-node.service", "inactive") == ("inactive" if first else "active")


def test_a_config_folder_that_is_a_file_is_one_line(systemd, capsys, tmp_path: Path) -> None:
    (tmp_path / ".config").touch()
    code, _, err = install(capsys)
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot write" in err


def interrupt() -> Done:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["daemon-reload", "enable", "start"])
@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_leaves_what_was(systemd, capsys, tmp_path: Path, at: str, first: bool) -> None:
    if not first:
        assert install(capsys)[0] == 0
    before = None if first else unit_file(tmp_path).read_bytes()

    def once() -> Done:
        systemd.on.clear()
        raise KeyboardInterrupt

    systemd.on[at] = once
    code, out, err = install(capsys, *DIGITS, "--rounds", "7", before=("--replace",))
    assert (code, out, err) == (130, "", "")
    assert (unit_file(tmp_path).read_bytes() if unit_file(tmp_path).exists() else None) == before
    assert systemd.states.get("p2ptrain-node.service", "inactive") == ("inactive" if first else "active")


def test_a_manager_that_refuses_is_told_and_nothing_stays(systemd, capsys, tmp_path: Path) -> None:
    systemd.on["start"] = lambda: Done(code=1, out="", err="Job failed.\nSee systemctl status.\n")
    code, _, err = install(capsys)
    assert code == 1
    assert err.startswith("error: cannot start p2ptrain-node.service: See systemctl status; ")
    assert not unit_file(tmp_path).exists()


def test_under_sudo_it_is_refused(systemd, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for verb in (("install", "--", *DIGITS), ("remove",), ("upgrade", "--to", "1.0")):
        code, _, err = run(capsys, *verb)
        assert (code, err) == (
            2,
            "error: under sudo this would be root's service, not yours; run it as carol, without sudo\n",
        )
    assert list(tmp_path.iterdir()) == []


def test_a_key_with_a_passphrase_wants_its_file(systemd, capsys, tmp_path: Path) -> None:
    folder = folders.make_node_dir(tmp_path / "runs" / "a b", "node")
    Identity.generate().save(folder / folders.IDENTITY, b"secret enough")
    code, _, err = install(capsys)
    assert code == 2
    assert "a service can ask nobody; add --passphrase-file FILE" in err
    assert install(capsys, *DIGITS, "--passphrase-file", "p.txt")[0] == 0


def test_an_invite_is_redeemed_once_and_stands_in_no_file(systemd, capsys, tmp_path: Path) -> None:
    create = ("swarm", "create", "lab", "--out", "lab", "--no-passphrase", "--task", "digits", "--at", "127.0.0.1:9")
    assert main([*create, "--rounds", "6"]) == 0
    assert main(["swarm", "invite", "lab", "--full", "--out", "lab/whole.txt", "--uses", "5"]) == 0
    line = (tmp_path / "lab" / "whole.txt").read_text().strip()
    capsys.readouterr()
    for words in (("--invite", "lab/whole.txt"), (f"--invite={line}",)):
        code, _, err = install(capsys, "--run-dir", "mine", *words, "--rounds", "3", before=("--replace",))
        assert code == 2, err  # settings of the swarm are not one's own
        code, _, err = install(
            capsys, "--run-dir", "mine", *words, "--listen", "/ip4/127.0.0.1/tcp/0", before=("--replace",)
        )
        assert (code, err) == (0, "")
        text = unit_file(tmp_path).read_text()
        assert "--invite" not in text
        assert line not in text
        assert (tmp_path / "mine" / "node" / "membership" / "certificate").is_file()
    certificate = (tmp_path / "mine" / "node" / "membership" / "certificate").read_bytes()
    (tmp_path / "lab" / "whole.txt").unlink()  # it is needed no more
    assert install(capsys, "--run-dir", "mine", before=("--replace",))[0] == 0
    assert (tmp_path / "mine" / "node" / "membership" / "certificate").read_bytes() == certificate


def test_an_interpreter_that_has_moved_is_told(systemd, capsys, tmp_path: Path, monkeypatch) -> None:
    python = tmp_path / "venv" / "python"
    monkeypatch.setattr("sys.executable", str(python))
    assert install(capsys)[0] == 0
    systemd.states["p2ptrain-node.service"], systemd.result = "failed", "exit-code"
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert "service node: failed (exit-code, exit code 1)" in out
    assert f"its interpreter {python} is gone" in out
    assert "journalctl --user -u p2ptrain-node" in out


def test_a_file_that_is_damaged_can_be_removed_and_replaced(systemd, capsys, tmp_path: Path) -> None:
    assert install(capsys)[0] == 0
    unit_file(tmp_path).write_text("[Service]\n")
    assert run(capsys, "status")[0] == 2  # none of ours
    assert run(capsys, "status", "--name", "node")[0] == 1
    assert install(capsys)[0] == 1
    assert install(capsys, before=("--replace",))[0] == 0
    unit_file(tmp_path).write_text("[Service]\n")
    assert run(capsys, "remove")[0] == 0
    assert not unit_file(tmp_path).exists()


def test_a_system_without_services_says_what_to_do(monkeypatch, tmp_path: Path) -> None:
    for platform, tools, said in (("win32", "/bin/x", "run it in WSL"), ("linux", None, without_systemd())):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setattr(shutil, "which", lambda name, tools=tools: tools)
        with pytest.raises(Exception, match=r"there are no services for win32|this system has no systemd") as caught:
            manager_here()
        assert said in str(caught.value)
    kernel = tmp_path / "osrelease"
    kernel.write_text("5.15.90.1-microsoft-standard-WSL2\n")
    monkeypatch.setattr(service_manager, "KERNEL", kernel)
    assert "systemd=true under [boot] in /etc/wsl.conf" in without_systemd()


def test_a_node_that_starts_again_is_not_asked_at_its_last_address(tmp_path: Path, monkeypatch) -> None:
    """Whoever has that port by now would be given the token."""
    asked: list[str] = []
    monkeypatch.setattr("node.top.remote.fetch", lambda url, token: asked.append(url))
    node = NodeProgress(state="starting", metrics_url="http://0.0.0.0:9400")
    assert (service_cmd._answers(tmp_path, node), asked) == (None, [])
    node.state = "running"
    assert (service_cmd._answers(tmp_path, node), asked) == (True, ["http://127.0.0.1:9400"])


def test_data_that_are_not_there_are_said_before_anything_is_written(systemd, capsys, tmp_path: Path) -> None:
    code, _, err = install(capsys, "--run-dir", "r", "--data", "nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert "there are no data at " in err
    assert not list(tmp_path.iterdir())
    (tmp_path / "nowhere").mkdir()
    assert install(capsys, "--run-dir", "r", "--data", "nowhere")[0] == 0
    words = ("--run-dir", "r2", "--task", "hf-lm", "--data", "user/name@main")
    assert install(capsys, *words, before=("--name", "hub"))[0::2] == (0, ""), (
        "a name of the hub is fetched at its start"
    )
