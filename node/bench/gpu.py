"""`p2ptrain bench gpu`: what the swarm's work costs a machine that trains on a GPU, and which of it belongs there.

Each row is a time beside another one, measured in turns in one run, since only such ratios hold on a shared machine:

    copies       between device and host, against one copy of page-locked memory as a whole: the bus can do no more
    codecs       here (the copy from the device, then our codec on the CPU) against plain torch on the device
    aggregators  likewise: on the host, where estimates are, against the copies and the rule on the device
    steps        with a part of the swarm's work at the same time, or compiled, against the step alone
    memory       bytes a parameter, on the device

Any device of torch can be named: on `cpu` the same code runs, with copies from memory to memory.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from node.bench import baseline
from node.bench.aggregators import scratch_bytes
from node.bench.base import Column, Row, Summary, filled
from node.bench.on_vectors import FP32_BYTES, GIGA, OnVectors
from node.bench.timing import Taken, Work, in_turns, settled, spent, threads
from node.system.errors import UsageError
from p2ptrain import aggregate, compress, tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.device_copies import STAGED_BYTES, StagedCopies, overwrite, queues_for
from p2ptrain.training.machine import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CODECS: Final = ("q2", "int8", "int4", "sign1", "topk")
"""Those that both the codecs here and plain torch on a device can do."""
RULES: Final = ("mean", "median", "trimmed_mean", "krum")
BUFFERS: Final = (1 << 20, STAGED_BYTES, 32 << 20)
"""Bytes of a staging buffer: the one in use, and others to choose by."""
VECTORS: Final = 8
"""That are aggregated."""
LIARS: Final = 2
COMPILED_IN: Final = 3
"""Steps in which torch.compile does its work: it compiles again where the second one differs from the first."""
MILLI: Final = 1000.0

COLUMNS: Final = (
    Column(key="what", title="what"),
    Column(key="ms", title="time", unit="ms", digits=3),
    Column(key="gb_s", title="fp32", unit="GB/s", digits=2),
    Column(key="beside_ms", title="beside", unit="ms", digits=3),
    Column(key="ratio", title="ratio", digits=3),
    Column(key="bytes", title="bytes", unit="a parameter", digits=2),
    Column(key="compile_s", title="first steps", unit="s", digits=1),
    Column(key="fault", title="fault"),
)
TITLES: Final = {
    "copies": "Copies; beside: one copy of page-locked memory; ratio: the share of the bus",
    "codecs": "Codecs on the host, copies included; beside: plain torch on the device; ratio: above 1 the device pays",
    "aggregators": "Aggregators on the host; beside: on the device, copies included; ratio: above 1 the device pays",
    "steps": "Steps with other work at the same time; beside: the step alone; ratio: times as long",
    "memory": "Memory on the device; held: parameters, gradient, optimizer; else beyond that, at most",
}


@dataclass(frozen=True, kw_only=True)
class Gpu(OnVectors):
    """The measurement on one device. UsageError where this machine has no such device."""

    device: str = "cuda"
    size: str = "micro"
    """Of the byte-lm whose steps are timed."""
    compile: bool = True
    name: str = "gpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(
                f"bench gpu needs a CUDA device, and torch {torch.__version__} finds none here",
                "run it on a machine with a GPU, its driver and a build of torch for it; "
                "--device cpu runs the same code on the CPU",
            )
        pick_device(self.device)

    @property
    def place(self) -> str:
        """Return where it is measured, in words."""
        named = torch.cuda.get_device_name(pick_device(self.device)) if self.device.startswith("cuda") else self.device
        return f"{named}, {super().place} on the host"

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one."""
        with threads(self.threads):
            for part in (self._copies, self._codecs, self._aggregators, self._steps, self._memory):
                for row in part():
                    yield {**row, "device": self.place, "numel": self.numel, "size": self.size, "seed": self.seed}

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return a table for each part."""
        parts = {part: [row for row in rows if row["part"] == part] for part in TITLES}
        return [
            Summary(title=f"{TITLES[part]} ({self.place})", columns=filled(COLUMNS, its), rows=its)
            for part, its in parts.items()
            if its
        ]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the ratios on an empty figure."""
        axes = figure.add_subplot()
        known = [(f"{row['part']}: {row['what']}", row["ratio"]) for row in rows if isinstance(row["ratio"], float)]
        axes.barh([name for name, _ in known], [ratio for _, ratio in known])
        axes.axvline(1.0, color="grey")
        axes.set_xscale("log")
        axes.set_xlabel("ratio, as in the tables")

    @property
    def _on(self) -> torch.device:
        return pick_device(self.device)

    def _vector(self, *rows: int) -> torch.Tensor:
        return torch.randn(*rows, self.numel, generator=torch.Generator().manual_seed(self.seed))

    def _copies(self) -> Iterator[Row]:
        host_d, queues = self._vector(), queues_for(self._on)
        there_d = host_d.to(self._on, copy=True)
        locked_d = queues.locked(FP32_BYTES * self.numel).view(torch.float32)
        staged = {size: StagedCopies(queues_for(self._on), staged=size) for size in BUFFERS}
        ways: dict[str, tuple[Work, dict[str, Work]]] = {
            "to the host": (
                partial(locked_d.copy_, there_d, non_blocking=True),
                {
                    "plain": partial(host_d.copy_, there_d),
                    **{
                        f"staged, {size >> 20} MiB": partial(_gather, copies, there_d, host_d)
                        for size, copies in staged.items()
                    },
                },
            ),
            "to the device": (
                partial(there_d.copy_, locked_d, non_blocking=True),
                {
                    "plain": partial(there_d.copy_, host_d),
                    **{
                        f"staged, {size >> 20} MiB": partial(copies.deliver, [host_d], [(there_d,)], overwrite)
                        for size, copies in staged.items()
                    },
                },
            ),
        }
        for direction, (whole, others) in ways.items():
            for what, taken in self._in_turns(whole, others).items():
                speed = FP32_BYTES * self.numel / taken.seconds / GIGA
                yield _row("copies", f"{direction}, {what}", taken, ratio=1 / taken.ratio, gb_s=round(speed, 3))

    def _codecs(self) -> Iterator[Row]:
        there_d = self._vector().to(self._on)
        host_d = torch.empty(self.numel)
        copies = StagedCopies(queues_for(self._on), staged=STAGED_BYTES)
        for name in CODECS:
            codec, plain = compress.get(name), baseline.codec(name)
            assert plain is not None, "CODECS are those that have one"
            encode, decode = plain
            payload = codec.encode(there_d.cpu())
            encoded = tuple(each.cpu() for each in encode(there_d))

            def on_host(codec: compress.Compressor = codec) -> object:
                _gather(copies, there_d, host_d)
                return codec.encode(host_d)

            def on_device(encode: Callable[[torch.Tensor], baseline.Encoded] = encode) -> object:
                return tuple(each.cpu() for each in encode(there_d))

            def back_on_device(
                encoded: baseline.Encoded = encoded,
                decode: Callable[[baseline.Encoded, int], torch.Tensor] = decode,
            ) -> object:
                _gather(copies, decode(tuple(each.to(self._on) for each in encoded), self.numel), host_d)
                return host_d

            for side, here, beside in (
                ("encode", on_host, on_device),
                ("decode", partial(codec.decode, payload, self.numel), back_on_device),
            ):
                (taken,) = self._in_turns(beside, {side: here}).values()
                yield _row("codecs", f"{name}, {side}", taken, ratio=taken.ratio)

    def _aggregators(self) -> Iterator[Row]:
        x_nd = self._vector(VECTORS)
        there_nd, host_d = torch.empty_like(x_nd, device=self._on), torch.empty(self.numel)
        copies = StagedCopies(queues_for(self._on), staged=STAGED_BYTES)
        for name in RULES:
            rule = aggregate.get(name, f=LIARS)

            def on_device(rule: aggregate.Aggregator = rule) -> object:
                copies.deliver([x_nd], [(there_nd,)], overwrite)
                _gather(copies, rule(there_nd), host_d)
                return host_d

            (taken,) = self._in_turns(on_device, {name: partial(rule, x_nd)}).values()
            yield _row("aggregators", f"{name} of {VECTORS}", taken, ratio=taken.ratio)

    def _steps(self) -> Iterator[Row]:
        trainer = self._trainer()
        host_d, codec = trainer.vector(), compress.get("q2")
        payload, nothing_d = codec.encode(host_d), torch.zeros_like(host_d)
        rule, x_nd = aggregate.get("trimmed_mean", f=LIARS), host_d.expand(VECTORS, -1)
        beside: Mapping[str, Work] = {
            "encode": partial(codec.encode, host_d),
            "decode": partial(codec.decode, payload, trainer.numel),
            "aggregate": partial(rule, x_nd),
        }
        yield from self._stepping(trainer, "and a gathering at the same time", partial(_step_and_gather, trainer))
        yield from self._stepping(trainer, "after a gathering", partial(_step_after, trainer, trainer.vector))
        correct = partial(trainer.correct, nothing_d)
        yield from self._stepping(trainer, "after a correction", partial(_step_after, trainer, correct))
        for what, work in beside.items():
            with _again_and_again(work):
                busy = self._in_turns(trainer.step, {what: trainer.step})[what]
            (alone,) = self._in_turns(trainer.step, {what: trainer.step}).values()
            yield _row("steps", f"beside {what}", busy, ratio=busy.seconds / alone.seconds, beside_s=alone.seconds)
        if self.compile:
            compiled = self._trainer(compile=True)
            first = sum(spent(compiled.step).wall for _ in range(COMPILED_IN))
            for row in self._stepping(trainer, "compiled", compiled.step):
                yield {**row, "compile_s": round(first, 2), "fault": compiled.compile_fault or None}

    def _stepping(self, trainer: Trainer, what: str, work: Work) -> Iterator[Row]:
        (taken,) = self._in_turns(trainer.step, {what: work}).values()
        yield _row("steps", what, taken, ratio=taken.ratio)

    def _memory(self) -> Iterator[Row]:
        built: list[Trainer] = []
        held = self._grown(lambda: built.append(self._trainer()))
        (trainer,) = built
        trainer.step()
        nothing_d = torch.zeros(trainer.numel)
        works: Mapping[str, Work] = {
            "a step": trainer.step,
            "a gathering": trainer.vector,
            "a correction": partial(trainer.correct, nothing_d),
        }
        grown = {"held": held, **{what: self._grown(work) for what, work in works.items()}}
        for what, count in grown.items():
            nothing = {"ms": None, "beside_ms": None, "ratio": None}
            yield {"part": "memory", "what": what, **nothing, "bytes": round(count / trainer.numel, 3)}

    def _grown(self, work: Work) -> int:
        """Return by how many bytes the device's memory grows at most while `work` runs."""
        if self._on.type != "cuda":
            return scratch_bytes(work)
        torch.cuda.synchronize(self._on)
        torch.cuda.reset_peak_memory_stats(self._on)
        before = torch.cuda.memory_allocated(self._on)
        settled(work, self._on)()
        return int(torch.cuda.max_memory_allocated(self._on) - before)

    def _trainer(self, *, compile: bool = False) -> Trainer:
        config = TrainConfig(
            device=self.device, seed=self.seed, batch_size=8, threads=self.threads, warmup_steps=0, compile=compile
        )
        return Trainer(tasks.get("byte-lm", size=self.size), config, Shard())

    def _in_turns(self, reference: Work, works: Mapping[str, Work]) -> dict[str, Taken]:
        ended = {what: settled(work, self._on) for what, work in works.items()}
        return in_turns(settled(reference, self._on), ended, rounds=self.rounds)


def _row(
    part: str, what: str, taken: Taken, *, ratio: float, beside_s: float | None = None, gb_s: float | None = None
) -> dict[str, object]:
    other_s = taken.seconds / taken.ratio if beside_s is None else beside_s
    return {
        "part": part,
        "what": what,
        "ms": round(MILLI * taken.seconds, 4),
        "gb_s": gb_s,
        "beside_ms": round(MILLI * other_s, 4),
        "ratio": round(ratio, 4),
    }


def _gather(copies: StagedCopies, there_d: torch.Tensor, host_d: torch.Tensor) -> None:
    copies.gather([(there_d, host_d)]).finish()


def _step_and_gather(trainer: Trainer) -> None:
    """Gather as a node does: a worker thread finishes it, and the step waits before it moves the model."""
    _, gathering = trainer.snapshot()
    reader = threading.Thread(target=gathering.finish)
    reader.start()
    trainer.step()
    reader.join()


def _step_after(trainer: Trainer, work: Work) -> None:
    work()
    trainer.step()


@contextmanager
def _again_and_again(work: Work) -> Iterator[None]:
    """Do `work` in another thread, over and over, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work()

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
