"""Standard streams that are closed, or of a narrow encoding: a run goes on, and nothing else is written into."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPENED = """
import json, subprocess, sys
from node.system import standard_streams
standard_streams.usable()
print("told")
print("told", file=sys.stderr)
child = "import os; [os.fstat(number) for number in range(3)]"
with open(sys.argv[1], "w") as file:
    code = subprocess.run([sys.executable, "-c", child]).returncode
    json.dump({"number": file.fileno(), "read": sys.stdin.read(), "child": code}, file)
"""
CLOSED = ("0<&-", "1>&-", "2>&-")


def with_closed(streams: tuple[str, ...], *command: str) -> int:
    """Run a command with some of its standard streams closed, and return its exit code."""
    return subprocess.run(["sh", "-c", f'exec "$@" </dev/null {" ".join(streams)}', "sh", *command]).returncode


@pytest.mark.slow
@pytest.mark.parametrize("streams", [CLOSED, CLOSED[1:], CLOSED[2:], CLOSED[:1], CLOSED[::2]])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path, streams: tuple[str, ...]) -> None:
    told = tmp_path / "told.json"
    assert with_closed(streams, sys.executable, "-c", OPENED, str(told)) == 0
    found = json.loads(told.read_text())
    assert found.pop("number") > 2
    assert found == {"read": "", "child": 0}


@pytest.mark.paired
@pytest.mark.thorough
@pytest.mark.parametrize("words", [("node", "--set", "node.wait_for=0"), ("up", "--nodes", "2")])
def test_a_run_with_all_streams_closed_comes_to_its_end(tmp_path: Path, words: tuple[str, ...]) -> None:
    given = (*words, "--rounds", "3", "--set", "task.name=quadratic", "--set", "network.mdns=false")
    program = (sys.executable, "-m", "p2ptrain", *given, "--run-dir", str(tmp_path / "run"))
    assert with_closed(CLOSED, *program) == 0
    logs = list(tmp_path.glob("run/*/events.jsonl"))
    assert logs
    assert all('"finished"' in log.read_text() for log in logs)


@pytest.mark.slow
def test_what_an_encoding_lacks_is_printed_as_escapes() -> None:
    script = "import node.cli, p2ptrain.__main__ as m\nnode.cli.program = lambda: print('M\\u00e4rchen') or 0\nm.main()"
    surroundings = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=surroundings, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "M\\xe4rchen\n", "")
