"""`p2ptrain bench` from the outside: tables, JSON lines, pictures, mistakes."""

import errno
import importlib.util
import os
import time
import zlib
from pathlib import Path

import pytest
import torch
from bench_words import TINY, rows, run
from sizes import thorough_but

from node.bench import plot, strategies
from node.bench.aggregators import scratch_bytes
from node.bench.base import Benchmark
from node.bench.benchmarks import BENCHMARKS
from node.bench.codecs import VARIANTS
from node.bench.race.spec import RaceSpec
from node.cli import bench_cmd
from node.cli.app import main
from node.system.errors import UsageError
from p2ptrain import aggregate, compress
from p2ptrain.sync import SYNC_STRATEGIES

SMALL = ("--numel", "5000", "--threads", "1", "--turns", "1")


def is_png(path: Path) -> bool:
    """Whether it is a whole PNG: signature, chunks with right checksums, an end, and pixels of the size it states."""
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds, pixels, size = 8, [], b"", (0, 0)
    while at < len(raw):
        length, kind = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        body = raw[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == int.from_bytes(raw[at + 8 + length : at + 12 + length], "big")
        size = (int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")) if kind == b"IHDR" else size
        pixels += body if kind == b"IDAT" else b""
        kinds.append(kind)
        at += 12 + length
    width, height = size
    return kinds[-1] == b"IEND" and width > 500 and len(zlib.decompress(pixels)) == height * (1 + 4 * width)


def test_codecs_as_a_table(capsys):
    code, out, err = run(capsys, "codecs", *SMALL, "--compressor", "q2,none")
    assert code == 0
    assert err.splitlines() == [
        "measuring codecs",
        "measuring codecs: 1 done, q2 the last",
        "measuring codecs: 2 done, none the last",
    ]
    assert "5,000 parameters" in out
    for word in ("compressor", "GB/s", "copies", "naive", "hivemind is not installed"):
        assert word in out
    assert out.index("q2") < out.index("none")


def test_codecs_as_json(capsys):
    code, out, _ = run(capsys, "codecs", *SMALL, "--json")
    found = rows(out)
    assert code == 0
    assert {row["compressor"] for row in found} <= {*compress.names(), *VARIANTS}
    assert {"q2", "topk", "topk-1/64-2bit"} <= {row["compressor"] for row in found}
    dense = next(row for row in found if row["compressor"] == "none")
    assert (dense["benchmark"], dense["bits"], dense["error"], dense["numel"]) == ("codecs", 32.0, 0.0, 5000)
    assert all(row["encode_gb_s"] > 0 and row["decode_gb_s"] > 0 and row["copy_gb_s"] > 0 for row in found)
    assert dense["naive_encode"] > 0
    q2 = next(row for row in found if row["compressor"] == "q2")
    assert q2["bits"] == pytest.approx(8 * len(compress.get("q2").encode(torch.ones(5000))) / 5000, abs=1e-3)


@pytest.mark.slow
def test_aggregators_as_a_table_and_as_json(capsys):
    words = ("aggregators", *SMALL, "--aggregator", "mean,trimmed_mean", "--vectors", "3,6", "--f", "1-2")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "means" in out
    assert "byzfl is not installed" in out
    code, out, _ = run(capsys, *words, "--json")
    found = [(row["aggregator"], row["vectors"], row["f"]) for row in rows(out)]
    # The mean withstands nobody, so it has one row; f=2 needs five vectors.
    trimmed = "trimmed_mean"
    assert found == [("mean", 3, 0), (trimmed, 3, 1), ("mean", 6, 0), (trimmed, 6, 1), (trimmed, 6, 2)]
    assert all(row["means"] > 0 and row["gb_s"] > 0 and row["scratch_mib"] >= 0 for row in rows(out))


@pytest.mark.thorough
def test_every_aggregator_can_be_measured(capsys):
    words = ("--numel", "300", "--vectors", "9", "--f", "1", "--quick")
    code, out, _ = run(capsys, "aggregators", *words, "--json")
    assert code == 0
    told = {row["aggregator"] for row in rows(out)}
    assert told >= {"mean", "trimmed_mean", "nnm+trimmed_mean"}
    _, out, _ = run(capsys, "aggregators", *words)
    missing = set(aggregate.names()) - told  # those that need more than a name
    assert all(f"left out: {name}" in out for name in missing)


@pytest.mark.slow
def test_scratch_is_what_a_rule_needs_beside_its_result():
    size = 16 << 20
    x_d = torch.zeros(size)

    def wasteful() -> torch.Tensor:
        kept = [x_d + 1 for _ in range(4)]
        time.sleep(0.1)  # as a real one would compute: the memory is sampled meanwhile
        return kept[0]

    for _ in range(2):  # the second with everything loaded
        used = scratch_bytes(wasteful)
    assert 2.5 * 4 * size < used < 4.5 * 4 * size
    assert scratch_bytes(lambda: x_d[:10] + 1) < 4 * size


def test_strategies_as_a_table(capsys):
    code, out, err = run(capsys, "strategies", *TINY, "--strategy", "tracked_gossip", "--compressor", "q2,none")
    assert code == 0
    for word in ("nats per digit", "synchronous", "alone", "tracked_gossip", "behind", "fewer"):
        assert word in out
    assert out.index(" sent ") < out.index(" published "), "what leaves a node comes first"
    said = " ".join(out.split())
    assert "sent: bits of payload a parameter and an inner step, a copy for each neighbour, without framing" in said
    assert "4/4 " in err  # how far it is, beside the results


def test_strategies_as_json(capsys):
    words = ("strategies", *TINY, "--strategy", "tracked_gossip", "--compressor", "q2,none", "--json", "--seeds", "3")
    code, out, _ = run(capsys, *words)
    found = {(row["strategy"], row["compressor"]): row for row in rows(out)}
    assert code == 0
    assert len(found) == 4
    q2, dense = found["tracked_gossip", "q2"], found["tracked_gossip", "none"]
    assert {row["seed"] for row in found.values()} == {3}
    # Of three nodes each has two neighbours, who all take a payload of 32 bits a parameter in one of two steps.
    assert dense["published_bits"] == 16.0
    assert dense["sent_bits"] == 32.0
    assert dense["peak_bits"] == 32.0
    assert dense["payload_bytes_published"] == 2 * 3 * 4 * dense["parameters"]
    assert q2["sent_bits"] == pytest.approx(2.03, abs=0.05)
    assert found["alone", "none"]["sent_bits"] == 0
    assert found["synchronous", "none"]["sent_bits"] == pytest.approx(2 * 2 / 3 * 32, rel=1e-5)
    for row in found.values():
        assert row["eval_loss"] < row["eval_loss_first"]
        assert row["curve"][-1][0] == row["steps"] == 4


@pytest.mark.thorough
@pytest.mark.slow
def test_robust_as_a_table(capsys):
    words = ("robust", *TINY, "--degree", "2", "--aggregator", "mean,trimmed_mean", "--attack", "none,sign_flip")
    code, out, _ = run(capsys, *words, "--partition", "iid,dirichlet", "--byzantine", "1")
    assert code == 0
    assert "iid, 3 nodes" in out
    assert "dirichlet 0.3, 3 nodes" in out
    assert "falls to" in out
    assert "sign_flip" in out
    code, out, _ = run(capsys, *words, "--averaged", "--vary", "train.learning_rate=1e-3,2e-3")
    assert "f = 1, train.learning_rate = 0.001" in out  # what is varied is never averaged over
    assert "f = 1, train.learning_rate = 0.002" in out


@pytest.mark.slow
def test_without_a_clean_run_nobody_holds(capsys):
    words = ("robust", *TINY, "--degree", "2", "--aggregator", "mean", "--attack", "sign_flip", "--byzantine", "1")
    code, said, _ = run(capsys, *words)
    assert code == 0
    assert "falls to" in said
    assert not any(line.strip().endswith("nothing") for line in said.splitlines())
    assert "without a clean run nothing is judged" in said


@pytest.mark.parametrize("name", thorough_but({"robust"}, ["codecs", "aggregators", "strategies", "robust"]))
def test_pictures_are_whole(capsys, tmp_path, name):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    words = {
        "codecs": (*SMALL, "--compressor", "q2,none"),
        "aggregators": (*SMALL, "--vectors", "5"),
        "strategies": (*TINY, "--strategy", "tracked_gossip", "--seeds", "0,1"),
        "robust": (*TINY, "--degree", "2", "--attack", "none,alie", "--byzantine", "1", "--aggregator", "mean"),
    }
    code, _, _ = run(capsys, name, *words[name], "--plot", str(picture))
    assert code == 0
    assert is_png(picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["codex"], "no such command"),
        (["codecs", "--numel", "0"], "--numel"),
        (["codecs", "--compressor", "q3"], "there is no 'q3'; there are:"),
        (["codecs", "--compressor", ","], "--compressor names nothing"),
        (["codecs", "--plot", "picture.jpg"], "let it end in .png"),
        (["codecs", "--plot", "no/folder/x.png"], "there is no folder"),
        (["aggregators", "--vectors", "many"], "no list of numbers"),
        (["aggregators", "--vectors", "0"], "from 1 on"),
        (["aggregators", "--device", "abacus"], "abacus"),
        (["aggregators", "--f", "2-1"], "no list of numbers"),
        (["strategies", "--strategy", "magic"], "there is no 'magic'"),
        (["strategies", *TINY, "--vary", "train.lr=1,2"], "did you mean train.learning_rate?"),
        (["strategies", *TINY, "--vary", "node.lane=thread"], "no section 'node'"),
        (["strategies", *TINY, "--vary", "x"], "is not section.key=value"),
        (["strategies", *TINY, "--nodes", "65"], "nodes must be between"),
        (["strategies", *TINY, "--degree", "9"], "degree must be between"),
        (["strategies", *TINY, "--graph", "ring"], "unknown graph 'ring'"),
        (["strategies", *TINY, "--late-steps", "3"], "late-steps must be between"),
        (["strategies", *TINY, "--attack", "alie"], "add --byzantine 1"),
        (["strategies", *TINY, "--attack", "alie", "--byzantine", "3"], "byzantine must be between 0 and 2"),
        (["strategies", *TINY, "--attack", "alieu", "--byzantine", "1"], "there is no 'alieu'"),
        (["strategies", *TINY, "--partition", "odd"], "there is no 'odd'"),
        (["strategies", *TINY, "--jobs", "0"], "--jobs"),
        (["strategies", *TINY, "--out", "no/folder/x.jsonl"], "there is no folder"),
        (["strategies", *TINY, "--size", "nano"], "size"),
        (["strategies", "--data", "/no/such/text"], "/no/such/text"),
        (["strategies", *TINY, "--config", "none.toml"], "there is no configuration file"),
        (["robust", *TINY, "--byzantine", "-1"], "no list of numbers"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_picture_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(UsageError, match="is there, and is no file"):
        plot.check(tmp_path / "x.png")


def test_a_full_disk_leaves_the_picture_of_before(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    picture = tmp_path / "x.png"
    picture.write_text("of before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        plot.write(picture, lambda figure: None)
    assert picture.read_text() == "of before"


def test_without_matplotlib_it_says_so_before_anything_is_measured(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    with pytest.raises(UsageError, match="matplotlib") as caught:
        plot.check(tmp_path / "x.png")
    assert "pip install" in caught.value.line()


def test_every_compressor_has_a_marker_and_every_strategy_a_colour_in_a_picture():
    assert len(set(strategies.MARKERS)) == len(strategies.MARKERS) >= len(compress.names())
    assert (
        len(set(strategies.COLOURS)) == len(strategies.COLOURS) >= len(SYNC_STRATEGIES.names()) + 1
    )  # and synchronous


def test_all_are_benchmarks():
    options = {
        "codecs": {"compressors": ["q2"], "numel": 10, "threads": 1},
        "aggregators": {"aggregators": ["mean"], "numel": 10, "vectors": [2], "f": [0], "threads": 1},
        "strategies": {"study": None},
        "robust": {"study": None},
        "blob": {"mib": 1, "repetitions": 1},
        "average": {"peers": 2, "mib": 1, "codec": "none", "repetitions": 1},
        "metrics": {"peers": 1, "repetitions": 1},
        "race": {"contestants": [], "links": [5], "to": [2.0], "spec": RaceSpec(hosts=2, steps=4), "limit_s": 1},
        "gpu": {"device": "cpu", "numel": 10, "threads": 1},
        "quality": {"plan": None},
        "graphs": {"nodes": [8]},
        "calibrate": {"size": "pico", "seconds": 0.1},
    }
    assert BENCHMARKS.names() == sorted(options)
    for name, each in options.items():
        benchmark = BENCHMARKS.get(name, **each)
        assert isinstance(benchmark, Benchmark)
        assert benchmark.name == name


@pytest.mark.parametrize(("told", "asked"), [(False, (2, 40, "pico", [20.0, 1000.0])), (True, (3, 8, "nano", [100.0]))])
def test_a_quick_race_is_small_only_in_what_is_not_given(
    told: bool, asked: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict = {}
    monkeypatch.setattr(bench_cmd, "_carry_out", lambda *_, **__: None)
    monkeypatch.setattr(BENCHMARKS, "get", lambda _, **options: made.update(options), raising=False)
    given = ("--hosts", "3", "--steps", "8", "--size", "nano", "--links", "100") if told else ()
    assert main(["bench", "race", "--quick", "--contestants", "ddp", *given]) == 0
    assert (made["spec"].hosts, made["spec"].steps, made["spec"].size, list(made["links"])) == asked
