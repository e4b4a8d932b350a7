"""What people get wrong, given to real processes: one line that says what is wrong and what to do, and an exit code.

Mistakes in options alone are in tests/node/test_cli.py; these need a file, a port, a peer or a folder in the way.
"""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes_harness import DIGITS, PACED, Ran, node, ran
from sizes import thorough_but

from node.system.run_dir import locked

pytestmark = pytest.mark.paired

PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWE7xjnskgWFnf9XF6Bfqsm8fBFrbv8M7DR6pCifMJ4hUJ"
QUICK = (*DIGITS, "--inner-steps", 2, "--set", "node.metrics_port=-1", "--set", "node.checkpoint_every=1")


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    """One that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def check(run: Ran, code: int, *said: str) -> None:
    """It ended with `code` and one line on stderr that says all of this."""
    assert run.err.startswith("error: "), run.err
    assert run.err.count("\n") == 1
    assert "Traceback" not in run.err + run.out
    for words in said:
        assert words in run.err
    assert run.code == code


def listen(port: int = 0) -> tuple[str, str]:
    return "--listen", f"/ip4/127.0.0.1/tcp/{port}"


FILES = {
    "bad.toml": "[train\nrounds = 3",
    "key.toml": "[train]\nlr = 0.1",
    "empty.txt": "",
    "short.txt": "hello",
    "a_file": "",
    "broken.py": "import no_such_thing",
    "raises.py": "def make():\n    return 1 / 0\n",
    "wrong.py": "def make():\n    return 3\n",
}


MISTAKES = [
    (("node", "--config", "bad.toml"), 2, ["bad.toml is not valid TOML", "line 1"]),
    (
        ("node", "--config", "key.toml"),
        2,
        ["key.toml, line 2: unknown key train.lr", "did you mean train.learning_rate?"],
    ),
    (("node", "--config", "none.toml"), 2, ["there is no configuration file none.toml", "--config"]),
    (("up", "--set", "trian.rounds=3"), 2, ["unknown section [trian]", "did you mean train?"]),
    (("up", "--rounds", 0), 2, ["rounds must be at least 1"]),
    (("up", "--nodes", 0), 2, ["--nodes must be between 1 and 64"]),
    (("up", "--byzantine", 1, "--attack", "lie"), 2, ["unknown attack.name 'lie'", "alie"]),
    (("up", "--task", "byte-ml"), 2, ["did you mean byte-lm?"]),
    (("node", "--task", "nowhere:make"), 2, ["there is no module 'nowhere'", "run from the folder that holds it"]),
    (("node", "--task", "broken:make"), 2, ["needs 'no_such_thing', which is not installed"]),
    (("up", "--task", "wrong:make"), 2, ["returned a int that lacks", "loss"]),
    (("node", "--task", "raises:make"), 1, ["raises.py:2", "ZeroDivisionError", "mend it there"]),
    (("up", "--data", "/no/such/text"), 2, ["'/no/such/text' cannot be read", "--data"]),
    (("node", "--data", "empty.txt"), 2, ["empty.txt' is empty", "--data"]),
    (("up", "--data", "a_folder"), 2, ["a_folder' holds no bytes", "--data"]),
    (("node", "--data", "short.txt"), 2, ["the data has 5 bytes", "give more text"]),
    (("node", *DIGITS, "--set", "train.device=tpu"), 2, ["device 'tpu' cannot be used here", "auto or cpu"]),
    (("up", *DIGITS, "--set", "train.device=tpu"), 2, ["device 'tpu' cannot be used here", "auto or cpu"]),
    (("node", *DIGITS, "--run-dir", "a_file"), 2, ["a_file is a file", "--run-dir"]),
    (("up", *DIGITS, "--run-dir", "a_file"), 2, ["a_file is a file", "--run-dir"]),
    (("node", *DIGITS, "--run-dir", "/proc/none"), 1, ["cannot create the folder", "--run-dir"]),
    (("node", *DIGITS, "--peer", "127.0.0.1:4001"), 2, ["no peer's address", "/ip4/192.0.2.1/tcp/4001/p2p/"]),
    (("node", *DIGITS, "--listen", "0.0.0.0:4001"), 2, ["is no address", "/ip4/0.0.0.0/tcp/4001"]),
    (("node", *DIGITS, "--listen", "/ip4/203.0.113.1/tcp/0"), 1, ["203.0.113.1 is not an address of this machine"]),
]
IN_PROCESSES = ("bad.toml", "--nodes", "nowhere:make", "raises:make", "a_folder", "/proc/none", "127.0.0.1:4001")
"""Words of those that `make test` gives to a process: of each kind of mistake one."""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    thorough_but([each for each in MISTAKES if {*each[0]} & {*IN_PROCESSES}], MISTAKES),
)
def test_a_mistake_is_one_line(tmp_path: Path, words: tuple[object, ...], code: int, said: list[str]) -> None:
    (tmp_path / "a_folder").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    check(ran(tmp_path, *words), code, *said)


def test_debug_shows_the_traceback_and_then_the_line(tmp_path: Path) -> None:
    run = ran(tmp_path, "--debug", "node", "--task", "nowhere:make")
    assert run.code == 2
    assert "Traceback (most recent call last)" in run.err
    assert run.err.splitlines()[-1].startswith("error: there is no module 'nowhere'")


def test_a_port_in_use(tmp_path: Path, taken_port: int) -> None:
    run = ran(tmp_path, "node", *QUICK, *listen(taken_port), "--run-dir", "run", "--json")
    check(run, 1, f"port {taken_port} on 127.0.0.1 is in use", "choose another port")
    (failed,) = [json.loads(line) for line in run.out.splitlines()]
    assert failed["event"] == "failed"
    assert "in use" in failed["error"]


def test_a_metrics_port_in_use(tmp_path: Path, taken_port: int) -> None:
    words = ("--set", f"node.metrics_port={taken_port}", "--run-dir", "run")
    run = ran(tmp_path, "node", *DIGITS, *listen(), *words)
    check(run, 1, f"the metrics port 127.0.0.1:{taken_port} is in use", "node.metrics_port")


def test_a_peer_that_does_not_answer(tmp_path: Path) -> None:
    words = ("--peer", PEER, "--set", "node.wait_timeout_s=0.5", "--run-dir", "run")
    run = ran(tmp_path, "node", *QUICK, *listen(), *words)
    check(run, 1, "no peer answered within 0.5 s", PEER, "check the address", "another --run-dir has another key")


def test_a_folder_and_a_port_of_a_living_node(tmp_path: Path) -> None:
    with node(tmp_path, *PACED, "--rounds", 500) as living:
        started = living.hear("started")
        again = ran(tmp_path, "node", *QUICK, *listen(), "--run-dir", "run")
        check(again, 1, f"run/node is in use by process {living.pid}", "give another --run-dir")
        port = started["addresses"][0].split("/")[4]
        beside = ran(tmp_path, "node", *QUICK, *listen(port), "--run-dir", "other")
        check(beside, 1, f"port {port} on 127.0.0.1 is in use")
        living.hear_round(1)  # which goes on undisturbed
        living.interrupt(signal.SIGINT)
        assert living.end() == 130
        assert living.stderr == ""


def test_a_run_folder_that_another_swarm_has(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        again = ran(tmp_path, "up", "--nodes", 2, *DIGITS, "--run-dir", "run")
    check(again, 1, f"run is in use by process {os.getpid()}", "--run-dir")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run = ran(folder, "node", *QUICK, *listen(), "--rounds", 4, "--run-dir", "run")
    assert run.code == 0, run.err
    return folder / "run"


@pytest.fixture
def folder(finished_run: Path, tmp_path: Path) -> Path:
    """A folder with a copy of a run of four rounds, checkpoints 2 to 4, in it."""
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path


def go_on(folder: Path, *words: object) -> Ran:
    return ran(folder, "node", *QUICK, *listen(), "--run-dir", "run", "--json", *words)


def events(run: Ran) -> dict[str, list[dict[str, object]]]:
    told: dict[str, list[dict[str, object]]] = {}
    for line in run.out.splitlines():
        event = json.loads(line)
        told.setdefault(event["event"], []).append(event)
    return told


def test_a_finished_run_says_so_and_keeps_its_summary(folder: Path) -> None:
    before = (folder / "run/node/summary.json").read_text()
    run = go_on(folder, "--rounds", 4)
    assert (run.code, run.err) == (0, "")
    told = events(run)
    assert told["warning"][0]["message"] == "all 4 rounds are done already: give more with --rounds to go on"
    assert told["finished"][0]["summary"] == json.loads(before)
    assert "round" not in told
    assert (folder / "run/node/summary.json").read_text() == before


def test_more_rounds_go_on_and_the_summary_is_of_all_of_them(folder: Path) -> None:
    before = json.loads((folder / "run/node/summary.json").read_text())
    run = go_on(folder, "--rounds", 6)
    assert (run.code, run.err) == (0, "")
    told = events(run)
    assert [event["round"] for event in told["round"]] == [5, 6]
    after = json.loads((folder / "run/node/summary.json").read_text())
    assert after["rounds"] == 6
    assert after["resumed_from"] == "round 4"
    assert after["eval_loss_first"] == before["eval_loss_first"]
    assert after["steps"] >= before["steps"] + 4
    assert after["tokens"] == 16 * after["steps"]
    assert after["wall_s"] > before["wall_s"]
    assert 0 < after["utilization"] < 1


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(folder: Path) -> None:
    checkpoints = folder / "run/node/checkpoint"
    newest = checkpoints / "round-00000004" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    (checkpoints / "round-00000003" / "meta.json").write_bytes(b"\xff\x00 rubbish")
    run = go_on(folder, "--rounds", 5)
    assert (run.code, run.err) == (0, "")
    told = events(run)
    assert [Path(str(event["path"])).name[-1] for event in told["checkpoint_skipped"]] == ["4", "3"]
    assert told["resumed"][0]["round"] == 2
    assert [event["round"] for event in told["round"]] == [3, 4, 5]


def test_with_no_whole_checkpoint_left_it_begins_anew_and_says_so(folder: Path) -> None:
    checkpoints = folder / "run/node/checkpoint"
    for each in checkpoints.iterdir():
        (each / "state.safetensors").write_bytes(b"rubbish")
    run = go_on(folder, "--rounds", 2)
    assert (run.code, run.err) == (0, "")
    told = events(run)
    assert "no checkpoint in run/node/checkpoint is whole: beginning anew" in str(told["warning"][0]["message"])
    assert "resumed" not in told
    assert [event["round"] for event in told["round"]] == [1, 2]
    assert events(go_on(folder, "--rounds", 3))["resumed"][0]["round"] == 2, "the new ones are kept, though earlier"


def test_a_checkpoint_of_another_model(folder: Path) -> None:
    before = (folder / "run/node/config.toml").read_bytes()
    run = ran(folder, "node", "--task", "byte-lm", *listen(), "--run-dir", "run")
    check(run, 2, "task.name=byte-lm cannot change in the run in run/node: there it is digits", "another --run-dir")
    assert (folder / "run/node/config.toml").read_bytes() == before


def test_a_damaged_identity(folder: Path) -> None:
    (folder / "run/node/identity.key").write_bytes(b"rubbish\x00")
    check(go_on(folder, "--rounds", 5), 1, "identity.key is not a p2ptrain identity", "delete it to start with a new")


def test_rubbish_in_the_peers_file_is_told_and_passed_over(folder: Path) -> None:
    (folder / "peers.txt").write_bytes(b"# peers\n\nnot an address\n\xff\xfe\n" + PEER.encode() + b"\n")
    run = go_on(folder, "--rounds", 5, "--set", "network.peers_file=peers.txt")
    assert (run.code, run.err) == (0, "")
    messages = [str(event["message"]) for event in events(run)["warning"]]
    assert any(message.startswith("'not an address' is no peer's address") for message in messages)


def test_a_task_that_breaks_while_it_trains_is_named(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(
        "from p2ptrain.tasks.digits import Digits\n\n\n"
        "class Breaks(Digits):\n    def loss(self, model, batch):\n        return {}['gone']\n"
    )
    run = ran(tmp_path, "node", *QUICK[2:], *listen(), "--task", "breaks:Breaks", "--run-dir", "run")
    check(run, 1, "breaks.py:6 raised KeyError: 'gone'", "mend it there")
