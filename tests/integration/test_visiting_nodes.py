"""A real node with visitors: a Python program that has nothing of p2ptrain, and a web page in Chromium."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_harness import CHROMIUM, Browser
from local_http import http_served
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
            assert words.format(taken=taken) in program.stderr
            assert "Traceback" not in program.stderr


IN_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

GRADIENT_IS_RIGHT = """(() => {
    const shapes = [[64, 64], [64], [64], [64], [64, 64], [64], [64], [64], [10, 64], [10]];
    const parameters = NAMES.split(" ").map((name, nth) => ({ name, shape: shapes[nth] }));
    const numel = 9226, x = Float64Array.from({ length: numel }, (_, at) => 0.2 * Math.sin(at * at + 1));
    const images = Float64Array.from({ length: 5 * 64 }, (_, at) => Math.abs(Math.cos(at * at)));
    const labels = [0, 3, 9, 3, 1], g = new Float64Array(numel);
    const unused = () => views(new Float64Array(numel), parameters);
    gradient(views(x, parameters), views(g, parameters), images, labels);
    let worst = 0;
    for (let at = 7; at < numel; at += 211) {
        const moved = by => { const y = x.slice(); y[at] += by; return y; };
        const loss = y => gradient(views(y, parameters), unused(), images, labels);
        worst = Math.max(worst, Math.abs((loss(moved(1e-4)) - loss(moved(-1e-4))) / 2e-4 - g[at]));
    }
    return worst;
})()"""
"""How far the page's gradient is from differences of its loss, at most, over 44 parameters."""
LINE = re.compile(r"^round (\d+): loss ([\d.]+), left a difference \(model: (\w+)\)$")
LINES = "[...document.querySelectorAll('#log li')].map(line => line.textContent)"


class Quiet(SimpleHTTPRequestHandler):
    """Serves the page, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def page_served() -> Iterator[str]:
    """Serve the examples' folder, and yield its origin."""
    with http_served(partial(Quiet, directory=EXAMPLES)) as url:
        yield url


def fill_in(browser: Browser, host: str, data: Path, *, visits: int, token: str = "") -> None:
    """Fill in the page's form, and send it off."""
    found = browser.ask("Runtime.evaluate", expression="document.getElementById('file')")["result"]["objectId"]
    browser.ask("DOM.setFileInputFiles", files=[str(data)], objectId=found)
    for field, value in (("host", host), ("token", token), ("visits", str(visits))):
        browser.evaluate(f"document.getElementById('{field}').value = '{value}'")
    browser.evaluate("document.getElementById('go').click()")


@IN_CHROMIUM
@pytest.mark.parametrize("with_token", [False, True])
def test_a_web_page_trains_in_a_browsers_tab(with_token: bool, tmp_path: Path) -> None:
    port, data, file = free_port(), tmp_path / "digits.csv", tmp_path / "token"
    write_digits(data, 0)
    with page_served() as origin:
        more = ["--set", f'visits.origins=["{origin}"]']
        more += ["--set", f"visits.token_file={file}"] if with_token else []
        with node(tmp_path / "host", *visited(port, *more)) as program:
            url = program.hear("started")["metrics_url"]
            program.hear_round(1)
            with Browser(tmp_path / "browser") as browser:
                browser.open(f"{origin}/visit.html")
                browser.until("typeof gradient === 'function' && document.readyState === 'complete'")
                assert browser.evaluate(GRADIENT_IS_RIGHT) < 1e-5
                token = file.read_text().strip() if with_token else ""
                fill_in(browser, f"http://127.0.0.1:{port}", data, visits=4, token=token)
                browser.until(f"{LINES}.length === 4 || {LINES}.some(line => !line.startsWith('round'))")
                lines = browser.evaluate(LINES)
                told = [LINE.findall(line) for line in lines]
                assert all(told), lines
                rounds, losses, forms = zip(*(found[0] for found in told), strict=True)
                assert list(map(int, rounds)) == sorted(set(map(int, rounds)))
                assert forms[0] == "whole"
                assert "difference" in forms
                assert float(losses[-1]) < float(losses[0])
                assert not browser.complaints
            assert counted(url) == {"accepted": 4}


@IN_CHROMIUM
def test_a_web_page_of_another_origin_is_told_so(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "digits.csv"
    write_digits(data, 0)
    with page_served() as origin, node(tmp_path / "host", *visited(port)) as program:
        program.hear_round(1)
        with Browser(tmp_path / "browser") as browser:
            browser.open(f"{origin}/visit.html")
            browser.until("typeof gradient === 'function' && document.readyState === 'complete'")
            fill_in(browser, f"http://127.0.0.1:{port}", data, visits=1)
            browser.until(f"{LINES}.length === 1")
            assert browser.evaluate(LINES)[0].endswith("does not let this page visit (visits.origins)")
            browser.evaluate(
                "crypto.subtle.generateKey = () => Promise.reject(new DOMException('no', 'NotSupportedError'))"
            )
            browser.evaluate("document.getElementById('go').click()")
            browser.until(f"{LINES}.length === 2")
            assert "this browser has no Ed25519" in browser.evaluate(LINES)[1]


@IN_CHROMIUM
def test_a_web_page_waits_for_a_host_that_restarts(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "digits.csv"
    write_digits(data, 0)
    with page_served() as origin, Browser(tmp_path / "browser") as browser:
        words = visited(port, "--set", f'visits.origins=["{origin}"]')
        with node(tmp_path / "host", *words) as program:
            program.hear_round(1)
            browser.open(f"{origin}/visit.html")
            browser.until("typeof gradient === 'function' && document.readyState === 'complete'")
            fill_in(browser, f"http://127.0.0.1:{port}", data, visits=3)
            browser.until(f"{LINES}.length >= 1")
            program.interrupt()
            assert program.end() == 130
        browser.until(f"{LINES}.some(line => line.startsWith('waits: no answer from'))")
        with node(tmp_path / "host", *words):
            browser.until(f"{LINES}.filter(line => line.startsWith('round')).length === 3")
        forms = [found[0][2] for line in browser.evaluate(LINES) if (found := LINE.findall(line))]
        assert forms.count("whole") == 2, "the first, and the first after the restart"


A_HOST_THAT_LIES = """(answers => {
    globalThis.fetch = async () => {
        const [status, body] = answers.length > 1 ? answers.shift() : answers[0];
        return new Response(body, { status });
    };
})"""


def is_told(browser: Browser, origin: str, data: Path, answers: str) -> list[str]:
    """Return what the page says of a host whose answers are these, each a status and a body."""
    browser.evaluate("globalThis.isThePageBefore = true")
    browser.open(f"{origin}/visit.html")
    browser.until("!globalThis.isThePageBefore && typeof gradient === 'function' && document.readyState === 'complete'")
    browser.evaluate(f"{A_HOST_THAT_LIES}({answers})")
    fill_in(browser, "http://127.0.0.1:1", data, visits=1)
    browser.until(f"{LINES}.length >= 1 && !document.getElementById('go').disabled")
    lines: list[str] = browser.evaluate(LINES)
    return lines


@IN_CHROMIUM
def test_a_web_page_waits_for_its_turn_and_bounds_what_a_host_may_ask(tmp_path: Path) -> None:
    data = tmp_path / "digits.csv"
    write_digits(data, 0)
    visit = "...{ version: 1, run: '00'.repeat(16), block: 1024, parameters: LAYOUT, steps: 2, batch_size: 4,"
    visit += " learning_rate: 0.001, clip_norm: 1 }"
    with page_served() as origin, Browser(tmp_path / "browser") as browser:

        def told(answers: str) -> list[str]:
            return is_told(browser, origin, data, answers)

        data.write_text(",".join(["12"] * 65))
        assert told("[[503, '{}']]") == ["this file has no digits: a line has 64 pixels from 0 to 16 and the label"]
        write_digits(data, 0)
        busy = """[429, '{"error": "enough visitors came"}']"""
        waited = told(f'[{busy}, {busy}, [403, \'{{"error": "no"}}\']]')
        assert waited == ["waits: refused: enough visitors came", "refused: no"]
        assert told("[[200, '<html>']]")[0].endswith("is not a p2ptrain node's")
        assert told("[[502, '<html>']]") == ["refused: 502"]
        assert told("[[200, ' '.repeat(2 ** 21)]]") == ["the host sends more than there is to send"]
        assert "steps of" in told(f"[[200, JSON.stringify({{ {visit}, steps: 1e9 }})]]")[0]
        assert "has another one" in told(f"[[200, JSON.stringify({{ {visit}, block: 1 }})]]")[0]
        too_long = told(f"[[200, JSON.stringify({{ {visit} }})], [200, new Uint8Array(PAYLOAD_BYTES + 1)]]")
        assert too_long == ["the host sends more than there is to send"]
        cut = "new ReadableStream({ pull(body) { body.error(new TypeError('network error')); } })"
        assert told(f"[[200, {cut}]]")[0].startswith("no answer from http://127.0.0.1:1: ")
        waits = browser.evaluate(
            f"""(async () => {{
                const visitor = new Visitor("http://127.0.0.1:1", "", null), answer = () => new Response({cut});
                visitor.payload = new Uint8Array(PAYLOAD_BYTES);
                globalThis.fetch = async () => answer();
                const model = await visitor.model().catch(error => error.status);
                answerMs = 50;
                const silent = signal => new Promise((_, no) => {{ signal.onabort = () => no(signal.reason); }});
                globalThis.fetch = (url, {{ signal }}) => silent(signal);
                return [model, await visitor.ask("/v1/visit").catch(error => error.status)];
            }})()"""
        )
        infinite = browser.evaluate(
            """(async () => {
                const visitor = new Visitor("http://127.0.0.1:1", "", await newKey());
                visitor.payload = new Uint8Array(PAYLOAD_BYTES).fill(255);
                visitor.asked = visitor.model = async () => ({});
                return visitor.visit([]).catch(error => error.message);
            })()"""
        )
        assert infinite == "the node's model has values that are no numbers"
        assert waits == [503, 503], "a host that was there before may come again"
        bomb = browser.evaluate(
            """(async () => {
                const zeros = new Blob([new Uint8Array(2 ** 26)]).stream();
                const stream = zeros.pipeThrough(new CompressionStream("deflate"));
                const bomb = new Uint8Array(await new Response(stream).arrayBuffer());
                return changed(new Uint8Array(PAYLOAD_BYTES), bomb, BLOCKS).catch(error => error.message);
            })()"""
        )
        assert bomb == "the host sends more than there is to send"
