"""The network benches without a network: children that misbehave, tables, pictures, and mistakes in options."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from bench_words import run

from gossip.allreduce.allreduce import ReducedPart
from node.bench import output, plot
from node.bench.average import Average
from node.bench.blob import Blob
from node.bench.network import averager, averaging
from node.bench.network.workers import Worker, Workers
from node.system.errors import RunError
from p2ptrain import compress

PATIENCE_S = 60.0

ECHO = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    print("a library's chatter")
    print(json.dumps({"said": order["do"], "twice": 2 * order["number"]}), flush=True)
"""
DIES = "import sys; sys.stdin.readline(); print('a reason', file=sys.stderr); sys.exit(3)"
LAST_WORDS = """
import json, sys
sys.stdin.readline()
print(json.dumps({"said": "ready"}), flush=True)
sys.exit(3)
"""
FAILS = 'import sys; sys.stdin.readline(); print(\'{"said": "failed", "why": "no room"}\', flush=True)'
NOTES = """
import time
print('{"said": "note", "text": "a neighbour is gone"}', flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"said": "started", "pid": %d}' % child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(PATIENCE_S) as workers:
        yield workers


def hired(workers: Workers, script: str, name: str = "a child") -> Worker:
    return workers.hire_command(name, [sys.executable, "-c", script])


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_orders_are_answered_one_by_one(workers: Workers):
    child = hired(workers, ECHO)
    for number in range(3):
        workers.tell(child, "double", number=number)
    assert [workers.hear(child, "double")["twice"] for _ in range(3)] == [0, 2, 4]
    workers.tell(child, "other", number=1)
    with pytest.raises(RunError, match="said 'other' where 'double' was expected"):
        workers.hear(child, "double")


def test_a_message_may_come_in_pieces():
    child = Worker("a child", None, io.BytesIO())  # type: ignore[arg-type]
    for piece in (b'chatter\n{"said": ', b'"one"}\n{"said": "two"}', b'\n[1]\n{"x": 1}\n{"said": "thr'):
        child.take(piece)
    assert [message["said"] for message in child.said] == ["one", "two"]


def test_a_death_ends_the_wait_for_anyone(workers: Workers):
    dying, silent = hired(workers, DIES, "the first"), hired(workers, NOTES, "the second")
    workers.tell(dying, "go")
    with pytest.raises(RunError) as caught:
        workers.hear(silent, "anything")
    assert caught.value.line() == "the first has died: exit code 3; a reason"


def test_a_killed_child_is_named(workers: Workers):
    child = hired(workers, ECHO)
    child.process.send_signal(signal.SIGKILL)
    with pytest.raises(RunError, match="a child has died: killed by SIGKILL"):
        workers.hear(child, "anything")
    with pytest.raises(RunError, match="a child has died: killed by SIGKILL"):
        workers.tell(child, "double", number=1)


def test_a_death_after_a_last_message_is_no_silence():
    with Workers(5.0) as workers:
        child, other = hired(workers, LAST_WORDS), hired(workers, ECHO, "another")
        workers.tell(child, "anything")
        child.process.wait()
        for number in range(2):  # meanwhile the end of the child is read
            workers.tell(other, "double", number=number)
            workers.hear(other, "double")
        workers.hear(child, "ready")
        with pytest.raises(RunError, match="a child has died: "):
            workers.hear(child, "done")


def test_a_failure_is_told_in_the_childs_words(workers: Workers):
    child = hired(workers, FAILS)
    workers.tell(child, "go")
    with pytest.raises(RunError, match="a child failed: no room"):
        workers.hear(child, "anything")


@pytest.mark.slow
def test_silence_has_an_end_and_says_what_was_noted():
    with Workers(1.0) as workers:
        child = hired(workers, NOTES)
        with pytest.raises(
            RunError, match=r"has not said 'connected' within 1 s \(a neighbour is gone\)|has not said 'connected'"
        ):
            workers.hear(child, "connected")


def test_what_a_child_started_goes_with_it():
    with Workers(PATIENCE_S) as workers:
        child = hired(workers, PARENT)
        grandchild = workers.hear(child, "started")["pid"]
        assert alive(grandchild)
    assert child.process.returncode == -signal.SIGKILL
    for _ in range(500):  # it is init's to bury
        if not alive(grandchild):
            break
        os.sched_yield()
        psutil.wait_procs([psutil.Process(grandchild)] if psutil.pid_exists(grandchild) else [], timeout=0.02)
    assert not alive(grandchild)


def test_children_are_gone_whatever_ends_the_block():
    children: list[Worker] = []

    def interrupted() -> None:
        with Workers(PATIENCE_S) as workers:
            children.append(hired(workers, NOTES))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children[0].process.returncode == -signal.SIGKILL


START = {"mib": 1, "peers": 3, "seed": 7}


@pytest.mark.parametrize("codec", ["none", "q2"])
def test_the_check_takes_the_mean_and_nothing_else(codec: str):
    codec_ = compress.get(codec)
    vectors = [averager._as_received(codec_, averager.tensor(START, index, 2)) for index in range(3)]
    mean_d = averaging.mean_of(vectors)
    assert torch.allclose(mean_d, torch.stack(vectors).mean(0), atol=1e-6)
    assert averager._check(mean_d, codec_, START, 2) <= 1.0
    for wrong_d in (mean_d.clone(), mean_d * (1 + 1e-5), averaging.mean_of(vectors[:2])):
        wrong_d[4321] += 1e-5
        with pytest.raises(RunError, match="the mean is wrong"):
            averager._check(wrong_d, codec_, START, 2)
    with pytest.raises(RunError, match="the mean is wrong"):
        averager._check(torch.full_like(mean_d, torch.nan), codec_, START, 2)
    if codec == "q2":  # what was sent is not what was meant
        with pytest.raises(RunError, match="the mean is wrong"):
            averager._check(mean_d, compress.get("none"), START, 2)


@pytest.mark.parametrize("codec", ["none", "q2", "int8", "topk"])
@pytest.mark.parametrize("numel", [5, 1024, (1 << 18) + 1030])
def test_payloads_are_averaged_as_they_are_decoded(codec: str, numel: int):
    codec_ = compress.get(codec)
    vectors = [torch.randn(numel, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    payloads = [codec_.encode(vector_d) for vector_d in vectors]
    wanted_d = averaging.mean_of([codec_.decode(payload, numel) for payload in payloads])
    assert torch.allclose(averaging.mean_of_payloads(codec_, payloads, numel), wanted_d, atol=1e-6)
    with pytest.raises(compress.PayloadError):
        averaging.mean_of_payloads(codec_, [*payloads, payloads[0][:-1]], numel)


def test_parts_join_up_to_the_mean_and_one_that_is_missing_ends_it():
    vectors = [torch.randn(1 << 10, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    wanted_d = averaging.mean_of(vectors)
    parts = []
    for owner, part in (("a", slice(0, 400)), ("b", slice(400, 4096))):
        data = averaging.mean_of_bytes({str(n): it.numpy().tobytes()[part] for n, it in enumerate(vectors)})
        parts.append(ReducedPart(owner=owner, part=part, data=data))
    assert torch.equal(averaging.joined_up(parts, 1 << 10), wanted_d)
    with pytest.raises(RunError, match="b did not give its part"):
        averaging.joined_up([parts[0], replace(parts[1], data=None)], 1 << 10)


def test_parts_are_taken_where_they_move_less():
    mib = 1 << 20
    assert averaging.way_for("none", 64 * mib, 4) == "parts"
    for codec, size, peers in (("q2", 64 * mib, 4), ("none", 64 * mib, 2), ("none", 3 * mib, 4)):
        assert averaging.way_for(codec, size, peers) == "mesh"


def test_tensors_differ_by_seed_peer_and_repetition():
    first_d = averager.tensor(START, 0, 0)
    assert first_d.numel() == 1 << 18
    assert torch.equal(first_d, averager.tensor(START, 0, 0))
    for other_d in (
        averager.tensor(START, 1, 0),
        averager.tensor(START, 0, 1),
        averager.tensor({**START, "seed": 8}, 0, 0),
    ):
        assert not torch.equal(first_d, other_d)


BLOB_ROWS = [
    {"repetition": n, "mib": 4, "seconds": 0.1 * n, "mib_s": 40.0 / n, "bare_mib_s": 50.0, "of_bare": 0.8 / n}
    | {"tcp_mib_s": 400.0, "publish_seconds": 0.01}
    for n in (1, 2, 3)
]
AVERAGE_ROWS = [
    {
        "repetition": n,
        "seconds": 0.1 * n,
        "mib_s": 40.0 / n,
        "publish_seconds": 0.01,
        "payload_mib": 0.25,
        "rounding": 0.5,
    }
    for n in (1, 2, 3)
]


def test_tables_end_with_medians():
    (summary,) = Blob(mib=4, repetitions=3).summaries(BLOB_ROWS)
    assert summary.rows[-1]["repetition"] == "median"
    assert summary.rows[-1]["of_bare"] == 0.4
    console = output.table(summary)
    assert console.row_count == 4
    average = Average(peers=4, mib=1, codec="q2", repetitions=3, notes=["hivemind is not installed"])
    (summary,) = average.summaries(AVERAGE_ROWS)
    assert "of_hivemind" not in [column.key for column in summary.columns]
    assert "hivemind is not installed" in summary.notes
    (summary,) = average.summaries([{**row, "of_hivemind": 0.5, "hivemind_mib_s": 9.0} for row in AVERAGE_ROWS])
    assert summary.rows[-1]["of_hivemind"] == 0.5
    assert "of_hivemind" in [column.key for column in summary.columns]


@pytest.mark.slow
def test_pictures(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for benchmark, rows in (
        (Blob(mib=4, repetitions=3), BLOB_ROWS),
        (Average(peers=4, mib=1, codec="q2", repetitions=3), AVERAGE_ROWS),
    ):
        path = tmp_path / f"{benchmark.name}.png"
        plot.write(path, lambda figure, it=benchmark, rows=rows: it.draw(rows, figure))  # type: ignore[misc]
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["blob", "--mib", "0"], "--mib"),
        (["blob", "--mib", "4097"], "--mib"),
        (["blob", "--mib", "many"], "--mib"),
        (["blob", "--repetitions", "0"], "--repetitions"),
        (["blob", "--peers", "2"], "no such option: --peers"),
        (["average", "--peers", "1"], "--peers"),
        (["average", "--peers", "17"], "--peers"),
        (["average", "--codec", "int8"], "--codec: there is no 'int8' here; there are: none, q2"),
        (["average", "--hivemind", "no/python"], "--hivemind: there is no file no/python"),
        (["average", "--plot", "x.gif"], "let it end in .png"),
    ],
)
def test_a_mistake_is_one_line_and_no_process_is_started(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    for module in ("blob", "average"):  # a part of which names Popen as it is imported
        importlib.import_module(f"node.bench.{module}")
    importlib.import_module("node.bench.benchmarks")
    monkeypatch.setattr("subprocess.Popen", None)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err.lower() or said in err


@pytest.mark.parametrize(
    "make",
    [
        lambda: Blob(mib=0, repetitions=1),
        lambda: Blob(mib=1, repetitions=0),
        lambda: Average(peers=1, mib=1, codec="none", repetitions=1),
        lambda: Average(peers=2, mib=0, codec="none", repetitions=1),
        lambda: Average(peers=2, mib=1, codec="none", repetitions=0),
    ],
)
def test_what_cannot_be_measured_is_refused_when_it_is_built(make):
    with pytest.raises(ValueError):
        make()
