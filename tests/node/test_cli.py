"""The command line: one clear line for every mistake, and the exit codes that scripts rely on."""

import errno
import json
import subprocess
import sys
import tomllib

import pytest
from swarm_story import node_events

from gossip.core.errors import LocalError
from node.cli import main
from node.events.log import to_line
from node.system import build
from node.system.errors import RunError, UsageError, is_interrupt, told_to_a_program, translate
from p2ptrain.registry import UnknownMemberError
from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.calling import TaskFaultError


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


SUMMED = ("--set", "train.drift=momentum_tracking")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nodde"], "no such command"),
        (["node", "--round", "3"], "no such option"),
        (["node", "--rounds", "many"], "--rounds"),
        (["generate"], "missing argument"),
        (["config", "check", "--config", "none.toml"], "there is no configuration file none.toml"),
        (["config", "check", "--set", "train.lr=1"], "did you mean train.learning_rate?"),
        (["node", "--task", "bytelm"], "did you mean byte-lm?"),
        (["up", "--nodes", "0"], "--nodes must be between"),
        (["up", "--nodes", "3", "--byzantine", "3"], "--byzantine must be between 0 and 2"),
        (["up", "--attack", "sign_flip"], "add --byzantine 1"),
        (["up", "--set", "sync.strategy=gradient"], "no node can run the strategy gradient"),
        (["node", "--set", "sync.strategy=gradient"], "no node can run the strategy gradient"),
        (
            ["node", "--set", "sync.strategy=mime", "--set", "train.optimizer=schedule_free"],
            "takes gradients elsewhere",
        ),
        (
            ["node", "--set", "sync.strategy=des_loc", "--set", "train.optimizer=schedule_free"],
            "train.optimizer=schedule_free has none",
        ),
        (
            ["node", *SUMMED, "--set", "sync.strategy=diloco", "--rounds", "1000"],
            "would take the outer step of nesterov for drift",
        ),
        (["node", *SUMMED, "--set", "sync.outer=noloco", "--set", "sync.beta=0.7"], "set sync.outer=average"),
        (["up", *SUMMED, "--set", "sync.strategy=sparta"], "set train.drift_strength below 0.25"),
        (["up", "--attack", "dissensus", "--byzantine", "1"], "it is for simulations"),
        (["node", "--set", "attack.name=spectral"], "it is for simulations"),
        (["up", "--set", "node.pace=auto", "--set", "sync.compressor=adaptive"], "both follow the link"),
        (["up", "--set", "node.pace=dylu", "--set", "node.overlap=false"], "node.overlap=false it is not"),
        (["up", "--data", "/no/such/text"], "/no/such/text"),
        (["up", "--task", "no_module:make"], "no_module"),
        (["up", "--task", "digits", "--data", "x"], "data"),
        (["node", "--name", "../x"], "is not usable"),
        (["id", "show", "/no/key"], "there is no identity"),
        (["status", "/no/run"], "there is no run folder"),
        (["evaluate", "/no/run"], "there is no run folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said.lower() in err.lower()
    assert list(tmp_path.iterdir()) == []


REGRESSION = """
import torch
class Regression:
    name, metric = "regression", "error"
    def build_model(self): ...
    def train_batch(self, step, *, seed, shard, size): ...
    def loss(self, model, batch): ...
    def tokens(self, batch): ...
    def eval_batches(self, size):
        return [(torch.zeros(4, 2), torch.zeros(4))]
"""


def test_an_attack_that_the_task_has_no_place_for_is_refused_before_anything_starts(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "regression.py").write_text(REGRESSION)
    task = ["--task", "regression:Regression", "--attack", "label_flip", "--byzantine", "1"]
    code, out, err = run(capsys, "up", *task)
    assert (code, out) == (2, "")
    assert "label_flip needs class labels" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed there")
def test_a_working_directory_that_was_removed_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in ("node", "up", "doctor", "status"):
        code, _, err = run(capsys, command)
        assert code == 2
        assert err == "error: the working directory is not there any more; cd to one that is, and try again\n"
    assert run(capsys, "--version")[0] == 0


def test_debug_shows_where_it_came_from(capsys):
    code, _, err = run(capsys, "config", "check", "--set", "train.lr=1", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.slow
def test_help_and_version_do_not_wait_for_torch_and_trio():
    script = """
import sys
from node.cli import main
for words in (["--help"], ["--version"], [], *([*command.split(), "--help"] for command in sys.argv[1:])):
    assert main(words) == 0
    assert not {"torch", "trio"} & set(sys.modules), words
"""
    commands = ("up", "node", "plan", "bench", "bench codecs", "bench robust")
    done = subprocess.run([sys.executable, "-c", script, *commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: p2ptrain") == len(commands) + 2
    assert all(f"Usage: p2ptrain {command} " in done.stdout for command in commands)
    assert "--uplink" in done.stdout
    assert done.stdout.count("--json") >= 3
    assert f"p2ptrain {build.version()}\n" in done.stdout


def test_the_module_runs_and_returns_the_exit_code():
    done = subprocess.run([sys.executable, "-m", "p2ptrain", "nodde"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no such command 'nodde'")


def test_config_show_and_schema_are_for_programs_too(capsys):
    _, out, _ = run(capsys, "config", "show", "--set", "train.rounds=3")
    assert tomllib.loads(out)["train"]["rounds"] == 3
    _, out, _ = run(capsys, "config", "show", "--json")
    assert json.loads(out)["sync"]["compressor"] == "q2"
    _, out, _ = run(capsys, "config", "schema")
    assert set(json.loads(out)["properties"]) == {
        *("task", "train", "sync", "network", "node"),
        *("site", "attack", "monitoring", "participation", "visits", "budget", "selection", "privacy", "personal"),
        "shift",
        "warm_up",
    }
    code, out, _ = run(capsys, "config", "check")
    assert (code, out) == (0, "the default configuration: valid\n")


def test_an_identity_is_made_once_and_shown(capsys, tmp_path):
    code, made, _ = run(capsys, "id", "new", str(tmp_path / "key"))
    assert code == 0
    assert made.startswith("12D3Koo")
    assert run(capsys, "id", "show", str(tmp_path / "key"))[1] == made
    _, shown, _ = run(capsys, "id", "show", str(tmp_path / "key"), "--json")
    assert json.loads(shown)["peer_id"] == made.strip()
    code, _, err = run(capsys, "id", "new", str(tmp_path / "key"))
    assert code == 2
    assert "holds an identity already" in err


def test_a_damaged_identity_is_one_line(capsys, tmp_path):
    (tmp_path / "identity.key").write_bytes(b"rubbish")
    code, _, err = run(capsys, "id", "show", str(tmp_path))
    assert code == 1
    assert err.count("\n") == 1


def test_status_replays_a_run_folder(capsys, tmp_path):
    for index in range(2):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        (folder / "events.jsonl").write_text("".join(to_line(event) for event in node_events(index, rounds=4)))
    _, out, _ = run(capsys, "status", str(tmp_path), "--json")
    assert [(node["name"], node["rounds_done"]) for node in json.loads(out)] == [("node-0", 4), ("node-1", 4)]
    _, out, _ = run(capsys, "status", str(tmp_path / "node-1"))
    assert "4/10" in out


def test_a_status_page_that_does_not_answer_is_one_line(capsys):
    code, _, err = run(capsys, "status", "http://127.0.0.1:1")
    assert code == 1
    assert "no node answers" in err


def test_a_run_without_checkpoints_says_so(capsys, tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    code, _, err = run(capsys, "evaluate", str(tmp_path))
    assert code == 1
    assert "has written a checkpoint yet" in err


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (UsageError("a", "b"), UsageError, "a; b"),
        (TaskError("no data"), UsageError, "no data"),
        (UnknownMemberError("unknown x"), UsageError, "unknown x"),
        (LocalError("port in use"), RunError, "port in use"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            RunError,
            "/x: No space left on device; free some disk",
        ),
        (ValueError("two\nlines."), UsageError, "two lines; --debug"),
        (MemoryError(), RunError, "out of memory"),
        (RuntimeError("can't start new thread"), RunError, "no more threads; raise the limit on processes (ulimit -u"),
        (RuntimeError("Could not determine home directory."), RunError, "no home folder; set HOME to one"),
        (RuntimeError("else"), RunError, "unexpected RuntimeError: else; this is a bug"),
        (KeyError("x"), RunError, "unexpected KeyError: 'x'; this is a bug"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), RunError, "this is a bug"),
        (
            ExceptionGroup("g", [KeyError("x"), ExceptionGroup("h", [LocalError("port in use")])]),
            RunError,
            "port in use",
        ),
    ],
)
def test_every_error_becomes_a_line(error, kind, said):
    known = translate(error)
    assert type(known) is kind
    assert said in known.line()
    assert "\n" not in known.line()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ValueError("no"), "node.log has the traceback"),
        (RuntimeError("no"), "this is a bug of p2ptrain: report it with the traceback in node.log"),
        (TaskFaultError("mine.py:3 raised no"), "mend it there; node.log has the traceback"),
        (UsageError("no", "say yes"), "say yes"),
    ],
)
def test_a_program_that_calls_us_has_no_debug(error, hint):
    told = told_to_a_program(translate(error), "node.log")
    assert (type(told), told.message, told.hint) == (type(translate(error)), translate(error).message, hint)


def test_ctrl_c_is_known_alone_and_in_a_group():
    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(BaseExceptionGroup("g", [ValueError(), BaseExceptionGroup("h", [KeyboardInterrupt()])]))
    assert not is_interrupt(ValueError())
