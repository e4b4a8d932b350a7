"""`p2ptrain bench aggregators`: what the aggregators cost, in plain means (`torch.mean(0)`) of the same vectors.

A mean reads every value once, which is the least that any can cost. `naive` is the same rule done plainly with torch,
`byzfl` theirs. `scratch` is how much the process grows while ours runs, its result not counted.
"""

import ctypes
import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from node.bench import baseline, bounds, rivals
from node.bench.base import Column, Row, Summary, filled, left_out, within
from node.bench.bounds import Bounds
from node.bench.on_vectors import FP32_BYTES, GIGA, OnVectors
from node.bench.timing import Taken, Work, in_turns, settled, threads
from p2ptrain import aggregate
from p2ptrain.aggregate import Aggregator
from p2ptrain.training.machine import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEBI = 1 << 20
STATUS = Path("/proc/self/status")
SAMPLE_S = 0.0005
"""Between two looks at the process's memory: temporaries of a kernel live for milliseconds and more."""

COLUMNS = (
    Column(key="aggregator", title="aggregator"),
    Column(key="vectors", title="n"),
    Column(key="f", title="f"),
    Column(key="means", title="time", unit="means", digits=2),
    Column(key="means_cpu", title="cpu", unit="means", digits=2),
    Column(key="bound", title="bound", unit="means", digits=2),
    Column(key="grams", title="time", unit="grams", digits=2, spare=True),
    Column(key="gb_s", title="input", unit="GB/s", digits=2),
    Column(key="of_copy", title="traffic", unit="copies", digits=2),
    Column(key="scratch_mib", title="scratch", unit="MiB", digits=0),
    Column(key="naive", title="naive", unit="times", digits=1),
    Column(key="byzfl", title="byzfl", unit="times", digits=1),
)


@dataclass(frozen=True, kw_only=True)
class Aggregators(OnVectors):
    """A measurement of every aggregator named, with every n and f that it can promise."""

    aggregators: Sequence[str]
    vectors: Sequence[int]
    f: Sequence[int]
    device: str = "cpu"
    name: str = "aggregators"

    def __post_init__(self) -> None:
        super().__post_init__()
        within("vectors", min(self.vectors), 1)
        pick_device(self.device)

    @property
    def place(self) -> str:
        """Return where it is measured, in words."""
        return super().place if self.device == "cpu" else self.device

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one: a row for each n, aggregator and f."""
        generator = torch.Generator().manual_seed(self.seed)
        settings = {"numel": self.numel, "threads": self.threads, "device": self.device, "seed": self.seed}
        for n in self.vectors:
            x_nd = torch.randn(n, self.numel, generator=generator).to(pick_device(self.device))
            with threads(self.threads):
                least = bounds.measure(x_nd, self.threads, self.rounds)
            for name in self.aggregators:
                for rule in self._rules(name, n):
                    with threads(self.threads):
                        row = _row(name, rule, x_nd, least, self.rounds)
                    yield {**row, **settings}

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows."""
        notes = [
            "means: times torch.mean(0) of the same vectors, in turns; cpu: the same of CPU time, which hardly shows "
            "what others do on the machine; scratch: memory beside input and result",
            "traffic: bytes read and written a second, in those of a copy; "
            "bound: the rule's bytes and compare-exchanges; grams: times one product of the vectors with each other",
            "naive and byzfl: how many times as long as ours the plain torch version and theirs take",
            *rivals.absent("byzfl"),
            *left_out(self.refused),
        ]
        title = f"Aggregators, {self.numel:,} parameters, {self.place}"
        return [Summary(title=title, columns=filled(COLUMNS, rows), rows=rows, notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: ours, and the others as multiples of ours, in means."""
        axes = figure.add_subplot()
        for offset, (key, label) in enumerate((("means", "p2ptrain"), ("naive", "plain torch"), ("byzfl", "byzfl"))):
            bars = [(place, _means(row, key)) for place, row in enumerate(rows)]
            known = [(place, value) for place, value in bars if value is not None]
            axes.barh([place + 0.27 * offset for place, _ in known], [value for _, value in known], 0.27, label=label)
        names = [f"{row['aggregator']}, n={row['vectors']}, f={row['f']}" for row in rows]
        axes.set_yticks([place + 0.27 for place in range(len(rows))], names, fontsize="small")
        axes.axvline(1.0, color="grey")
        axes.set_xscale("log")
        axes.set_xlabel("time, in plain means of the same vectors")
        axes.legend()

    def _rules(self, name: str, n: int) -> Iterator[Aggregator]:
        told: set[int] = set()
        for f in self.f:
            try:
                rule = aggregate.get(name, f=f)
                enough = n >= rule.minimum()
            except ValueError as error:
                self.refused[f"{name}, f={f}"] = str(error)
                continue
            if not enough:
                self.refused[f"{name}, n={n}"] = f"with f={f} it needs {rule.minimum()} vectors"
            elif rule.f not in told:  # the mean withstands nobody, whatever is asked of it
                told.add(rule.f)
                yield rule


def scratch_bytes(work: Work) -> int:
    """Return by how much the process grows at most while `work` runs, beyond what it returns (a tensor)."""
    _give_back()
    done, before = threading.Event(), _held_bytes()
    peak = before

    def watch() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_S):
            peak = max(peak, _held_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    out = work()
    peak = max(peak, _held_bytes())  # what it built and keeps, whenever the watcher's last look was
    done.set()
    watcher.join()
    own = out.numel() * out.element_size() if isinstance(out, torch.Tensor) else 0
    return max(0, peak - before - own)


def _give_back() -> None:
    """Have the allocator return what it keeps for later, which would serve `work` without any growth. Garbage first:
    collected during the work it would hide as much."""
    gc.collect()
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _held_bytes() -> int:
    """The process's own memory. Where Linux tells, without files and with what it has swapped out: on a machine that is
    short of memory either changes of itself."""
    if not STATUS.exists():
        return int(psutil.Process().memory_info().rss)
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap"))  # in kB


def _row(name: str, rule: Aggregator, x_nd: torch.Tensor, least: Bounds, rounds: int) -> dict[str, object]:
    device = x_nd.device
    ours: Work = settled(partial(rule, x_nd), device)
    works: dict[str, Work] = {"ours": ours}
    plain, theirs = baseline.aggregator(name, rule.f), rivals.byzfl_rule(name, rule.f)
    if plain is not None:
        works["naive"] = settled(partial(plain, x_nd), device)
    if theirs is not None:
        works["byzfl"] = settled(partial(theirs, x_nd), device)
    taken = in_turns(settled(partial(torch.mean, x_nd, dim=0), device), works, rounds=rounds)
    traffic = FP32_BYTES * (x_nd.numel() + x_nd.shape[1])
    return {
        "aggregator": name,
        "vectors": x_nd.shape[0],
        "f": rule.f,
        "means": round(taken["ours"].ratio, 3),
        "means_cpu": round(taken["ours"].cpu_ratio, 3),
        "bound": None if (bound := least.of(name, rule.f)) is None else round(bound, 3),
        "grams": round(taken["ours"].ratio / least.gram, 3),
        "gb_s": round(FP32_BYTES * x_nd.numel() / taken["ours"].seconds / GIGA, 3),
        "of_copy": round(traffic / taken["ours"].seconds / least.copy_traffic, 3),
        "scratch_mib": round(scratch_bytes(ours) / MEBI, 1) if device.type == "cpu" else None,
        "naive": _against(taken, "naive"),
        "byzfl": _against(taken, "byzfl"),
    }


def _against(taken: dict[str, Taken], who: str) -> float | None:
    other = taken.get(who)
    return None if other is None else round(other.ratio / taken["ours"].ratio, 2)


def _means(row: Row, key: str) -> float | None:
    ours, other = row["means"], row[key]
    if not isinstance(ours, float) or not isinstance(other, float):
        return None
    return ours if key == "means" else ours * other
