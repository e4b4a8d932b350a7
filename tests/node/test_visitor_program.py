"""The visitor's program against a host that answers anything: one line says so, within bounds of memory and time."""

import errno
import hashlib
import importlib.util
import json
import os
import ssl
import sys
import tracemalloc
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from local_http import http_served
from visit_harness import certificate

FILE = Path(__file__).parents[2] / "examples" / "visitors" / "visit.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("visitor_program", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["visitor_program"] = module
    spec.loader.exec_module(module)
    return module


PROGRAM = loaded()
WHOLE = bytes(PROGRAM.PAYLOAD_BYTES)
VISIT = {
    "version": 1,
    "run": "00" * 16,
    "block": 1024,
    "numel": 9226,
    "parameters": [{"name": name, "shape": shape} for name, shape in PROGRAM.LAYOUT.items()],
    "steps": 2,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "clip_norm": 1.0,
}


@contextmanager
def answering(
    visit: bytes, model: bytes, form: str, status: int = 200, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve a host that answers so."""

    class Answers(BaseHTTPRequestHandler):
        def answer(self, body: bytes) -> None:
            self.send_response(status)
            self.send_header("p2ptrain-form", form)
            self.send_header("p2ptrain-round", "1")
            self.send_header("p2ptrain-model", hashlib.sha256(WHOLE).hexdigest())
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(visit if self.path.startswith("/v1/visit") else model)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http_served(Answers, tls) as url:
        yield url


def visited(
    monkeypatch: pytest.MonkeyPatch, folder: Path, url: str, *more: str, digits: str | None = ",".join(["1"] * 65)
) -> None:
    data = folder / "digits.csv"
    if digits is not None:
        data.write_text(digits)
    monkeypatch.setattr(sys, "argv", ["visit.py", url, str(data), "--state", str(folder / "visitor"), *more])
    PROGRAM.main()


def changed_visit(**changes: Any) -> bytes:
    return json.dumps({**VISIT, **changes}).encode()


@pytest.mark.parametrize(
    ("visit", "model", "form", "words"),
    [
        (b"<html>", WHOLE, "whole", "no answer of a p2ptrain node"),
        pytest.param(b"[" * 100_000, WHOLE, "whole", "no answer of a p2ptrain node", marks=pytest.mark.thorough),
        pytest.param(b"[]", WHOLE, "whole", "no answer of a p2ptrain node", marks=pytest.mark.thorough),
        (b" " * (2 << 20), WHOLE, "whole", "more than 1048576 bytes"),
        (changed_visit(block=1), WHOLE, "whole", "has another one"),
        (changed_visit(parameters=[{"name": "0.weight", "shape": [1 << 40]}]), WHOLE, "whole", "has another one"),
        (changed_visit(steps=10**9), WHOLE, "whole", "steps is not"),
        pytest.param(
            changed_visit(steps="1"), WHOLE, "whole", "no answer of a p2ptrain node", marks=pytest.mark.thorough
        ),
        pytest.param(changed_visit(batch_size=10**9), WHOLE, "whole", "batch_size is not", marks=pytest.mark.thorough),
        (changed_visit(), WHOLE + b"0", "whole", "more than"),
        pytest.param(changed_visit(), WHOLE[:-1], "whole", "is another one", marks=pytest.mark.thorough),
        (changed_visit(), zlib.compress(bytes(8 << 20)), "difference", "is another one"),
        (changed_visit(), b"junk", "difference", "no answer of a p2ptrain node"),
    ],
)
def test_what_makes_no_sense_ends_with_one_line(
    visit: bytes, model: bytes, form: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "difference":
        (tmp_path / "visitor").mkdir()
        (tmp_path / "visitor" / "model").write_bytes(b"\1" * len(WHOLE))
    with answering(visit, model, form) as url, pytest.raises(SystemExit, match=words):
        visited(monkeypatch, tmp_path, url)


def test_a_refusal_that_is_no_json_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(b"<html>", WHOLE, "whole", 502) as url, pytest.raises(SystemExit, match="no answer of a p2ptrain"):
        visited(monkeypatch, tmp_path, url)
    refusal = b'{"error": "\\u001b[2Jgo away"}'
    with answering(refusal, WHOLE, "whole", 403) as url, pytest.raises(SystemExit, match=r"^refused: \[2Jgo away$"):
        visited(monkeypatch, tmp_path, url)


def test_a_difference_is_inflated_to_a_models_bytes_at_most() -> None:
    bomb = zlib.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        PROGRAM.changed(WHOLE, bomb, 10)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("model", "batch_size"), [(b"\xff" * len(WHOLE), 4), (WHOLE, 0)])
def test_a_model_that_is_or_becomes_no_numbers_ends_with_one_line(
    model: bytes, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WHOLE", model)
    visit = changed_visit(batch_size=batch_size)
    with answering(visit, model, "whole") as url, pytest.raises(SystemExit, match=r"^no answer .*invalid value"):
        visited(monkeypatch, tmp_path, url)


def test_it_visits_a_host_that_answers_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(changed_visit(), WHOLE, "whole") as url:
        visited(monkeypatch, tmp_path, url)
    assert json.loads(capsys.readouterr().out)["round"] == 1
    assert (tmp_path / "visitor" / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        (None, "digits.csv not found"),
        ("1,2\n", "digits.csv"),
        ("<html>\n", "digits.csv"),
        (",".join(["nan"] * 65) + "\n", "has no digits"),
        (",".join(["12"] * 65) + "\n", "has no digits"),
    ],
)
def test_data_that_are_no_digits_end_with_one_line_before_a_byte_is_sent(
    digits: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=rf"^cannot visit with .*{words}"):
        visited(monkeypatch, tmp_path, "http://127.0.0.1:1", digits=digits)


def full(self: Path, data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_the_next_visit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(changed_visit(), WHOLE, "whole") as url:
        with monkeypatch.context() as disk:
            disk.setattr(Path, "write_bytes", full)
            with pytest.raises(SystemExit, match=r"^cannot visit with .*No space left on device"):
                visited(monkeypatch, tmp_path, url)
        visited(monkeypatch, tmp_path, url)
        assert json.loads(capsys.readouterr().out)["round"] == 1, "the key that was not written is made"
        with monkeypatch.context() as disk:
            disk.setattr(Path, "write_bytes", full)
            visited(monkeypatch, tmp_path, url)
    said = capsys.readouterr()
    assert json.loads(said.out)["round"] == 1, "the difference was left"
    assert said.err.startswith("the model is not kept in ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("broken", ["key", "folder", "token"])
def test_files_that_cannot_be_used_end_with_one_line(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: list[str] = []
    if broken == "key":
        (tmp_path / "visitor").mkdir()
        (tmp_path / "visitor" / "key").write_bytes(b"short")
    if broken == "folder":
        (tmp_path / "visitor").write_text("a file")
    if broken == "token":
        more = ["--token-file", str(tmp_path / "no such file")]
    with pytest.raises(SystemExit, match=r"^cannot visit with "):
        visited(monkeypatch, tmp_path, "http://127.0.0.1:1", *more)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "Connection refused"),
        ("127.0.0.1:1", "unknown url type"),
        ("http://no-such-host.invalid", "http://no-such-host.invalid"),
    ],
)
def test_a_host_that_is_away_is_one_line(url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=rf"^no answer of a p2ptrain node from .*{words}"):
        visited(monkeypatch, tmp_path, url)


@pytest.mark.parametrize(
    ("days_off", "words"), [(0, ""), (3, "certificate is not yet valid"), (-3, "certificate has expired")]
)
def test_over_https_a_clock_that_is_off_is_one_line(
    days_off: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain, key = certificate(tmp_path, days_off=days_off)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    monkeypatch.setattr(urllib.request, "_opener", None)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    with answering(changed_visit(), WHOLE, "whole", tls=tls) as url:
        if words:
            with pytest.raises(SystemExit, match=rf"^no answer of a p2ptrain node from .*{words}"):
                visited(monkeypatch, tmp_path, url)
        else:
            visited(monkeypatch, tmp_path, url)
            assert json.loads(capsys.readouterr().out)["round"] == 1


@pytest.mark.parametrize("status", [401, 409, 410, 429, 503])
def test_a_refusal_is_the_hosts_words(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b'{"error": "come again after the first round", "reason": "no_model"}'
    with answering(refusal, WHOLE, "whole", status) as url, pytest.raises(SystemExit, match=r"^refused: come again"):
        visited(monkeypatch, tmp_path, url)


def test_it_stays_short() -> None:
    assert len(FILE.read_text().splitlines()) < 200
