"""A real node with visitors: a Python program that has nothing of p2ptrain, and a web page in Chromium."""

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from processes_harness import PACED, PATIENCE_S, node

from p2ptrain.tasks.digits import all_digits

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "visitors"
OWN_DIGITS = 100
"""A visitor's own: a fourteenth of what the node has."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def visited(port: int, *more: object) -> tuple[object, ...]:
    words = ("--set", f"visits.listen=127.0.0.1:{port}", "--set", "visits.buffer=1")
    return (*PACED, "--rounds", "400", *words, *more)


def write_digits(file: Path, nth: int) -> None:
    """Write some digits as a visitor has them."""
    images, labels = all_digits()
    part = slice(nth * OWN_DIGITS, (nth + 1) * OWN_DIGITS)
    rows = torch.cat([images[part] * 16, labels[part, None]], dim=1).int().tolist()
    file.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))


def visit(folder: Path, port: int, nth: int, *, code: int = 0) -> tuple[dict[str, Any], str]:
    """Visit once with the program, in Python's isolated mode: p2ptrain is not found. Return what it prints."""
    data = folder / f"digits-{nth}.csv"
    write_digits(data, nth)
    words = [EXAMPLES / "visit.py", f"http://127.0.0.1:{port}", data, "--state", folder / f"visitor-{nth}"]
    ended = subprocess.run(
        [sys.executable, "-I", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout or "{}"), ended.stderr


def counted(url: str) -> dict[str, float]:
    """Return p2ptrain_visits_total by result, without zeros."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = [line.removeprefix('p2ptrain_visits_total{result="') for line in lines if "visits_total{" in line]
    return {name: float(count) for name, _, count in (each.partition('"} ') for each in found) if float(count)}


def test_a_program_visits_again_and_again(tmp_path: Path) -> None:
    port = free_port()
    with node(tmp_path / "host", *visited(port)) as program:
        url = program.hear("started")["metrics_url"]
        program.hear_round(1)
        first, _ = visit(tmp_path, port, 0)
        program.hear_round(first["round"] + 2)
        second, _ = visit(tmp_path, port, 0)
        assert second["round"] > first["round"]
        assert second["bytes"] < first["bytes"], "it has a model already"
        visit(tmp_path, port, 1)
        assert counted(url) == {"accepted": 3}
        later = program.hear_round(program.heard("round")[-1]["round"] + 12)["round"]
        third, _ = visit(tmp_path, port, 1)
        assert third["round"] >= later
        assert third["loss"] < 0.8 * first["loss"]
        program.interrupt()
        assert program.end() == 130
    _, why = visit(tmp_path, port, 1, code=1)
    assert "no answer" in why


def test_who_is_refused_is_told_why(tmp_path: Path) -> None:
    port = free_port()
    with node(tmp_path / "host", *visited(port, "--set", f"visits.token_file={tmp_path / 'token'}")) as program:
        program.hear_round(1)
        _, why = visit(tmp_path, port, 0, code=1)
        assert why == "refused: a token is needed, as a bearer token\n"
        assert (tmp_path / "token").read_text().strip() not in "".join(program.lines)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("visits.listen=127.0.0.1:{taken}", "the visitors' port 127.0.0.1:{taken} is in use"),
        ("visits.certificate=no-such.pem", "no file no-such.pem"),
    ],
)
def test_a_host_that_cannot_answer_ends_with_one_line(setting: str, words: str, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        more = ["--set", setting.format(taken=taken)]
        if "certificate" in setting:
            more += ["--set", "visits.key=no-such.pem"]
        with node(tmp_path, *visited(free_port(), *more)) as program:
            assert program.end() == 2
            assert words.format(taken=taken) in program.heard("failed")[0]["error"]
            assert "Traceback" not in program.stderr
