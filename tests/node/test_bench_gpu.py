"""`p2ptrain bench gpu`: one line where there is no GPU, and all of its code on the CPU."""

import pytest
import torch
from bench_words import rows, run

from node.bench import gpu
from node.bench.benchmarks import BENCHMARKS

ON_CPU = ("gpu", "--device", "cpu", "--numel", "20000", "--size", "pico", "--turns", "1", "--threads", "1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_without_a_gpu_it_says_what_it_needs(capsys: pytest.CaptureFixture[str], device: str) -> None:
    code, out, err = run(capsys, "gpu", "--device", device)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: bench gpu needs a CUDA device, and torch")
    assert "--device cpu" in line


def test_a_device_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "gpu", "--device", "toaster")
    assert code == 2
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *ON_CPU, "--no-compiled", "--json")
    found = rows(out)
    assert code == 0
    assert {row["part"] for row in found} == set(gpu.TITLES)
    named = {(row["part"], row["what"]): row for row in found}
    assert len(named) == len(found)
    for row in found:
        assert row["benchmark"] == "gpu"
        if row["part"] != "memory":
            assert min(row["ms"], row["beside_ms"], row["ratio"]) > 0
    for name in gpu.CODECS:
        for side in ("encode", "decode"):
            row = named["codecs", f"{name}, {side}"]
            assert row["ratio"] == pytest.approx(row["ms"] / row["beside_ms"], rel=0.01)
    assert {what for part, what in named if part == "copies" and "host" in what} == {
        "to the host, plain",
        *(f"to the host, staged, {size >> 20} MiB" for size in gpu.BUFFERS),
    }
    # Parameters, gradient and two moments in fp32 are 16, less what finds room in pages that are held already: of a
    # model as small as this a good part, in a process that has run other tests.
    assert named["memory", "held"]["bytes"] >= 6


@pytest.mark.slow
def test_it_has_a_table_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *ON_CPU, "--no-compiled")
    assert code == 0
    for word in ("Copies", "Codecs", "Aggregators", "Steps", "Memory", "trimmed_mean of 8", "after a correction"):
        assert word in out


def test_what_could_not_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", no_compiler)
    benchmark = BENCHMARKS.get("gpu", device="cpu", size="pico", numel=100, threads=1, rounds=1)
    assert isinstance(benchmark, gpu.Gpu)
    (*_, row) = benchmark._steps()
    assert row["what"] == "compiled"
    assert "no compiler" in str(row["fault"])
    assert float(str(row["compile_s"])) > 0
