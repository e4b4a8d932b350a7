"""`p2ptrain bench calibrate`: this machine, as `p2ptrain plan --calibration` takes it in place of tables.

A step of a task is timed in as many processes at once as nodes are to run here, since nodes that share cores slow
each other down. Codecs, averaging and signatures are timed in this process, with one thread; rates of the network by
the two processes of `bench blob`, over libp2p on loopback. Then as many real nodes train together (pilot_swarm.py).
Parts are medians: a neighbour's burst of work spoils single repetitions. Rounds are means: a run is made of all.
"""

import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from gossip.core.atomic_file import write_atomic
from gossip.core.identity import Identity, verify
from node.bench.base import Column, Row, Summary, within
from node.bench.blob import Blob
from node.bench.pilot_swarm import PilotSwarm
from node.bench.timing import Spent, Work, cores, in_turns, settled, spent, threads
from node.planning.calibration import (
    EVALUATED,
    CallTimes,
    MachineCalibration,
    StepTiming,
    SwarmRounds,
    WorkRates,
    task_words,
    usual_rates,
)
from node.planning.fitted_swarm import Tried, fits, fitted
from node.planning.model_shape import context_of_byte_lm, shape_of_byte_lm
from node.system.errors import RunError
from p2ptrain import aggregate, compress, tasks
from p2ptrain.sync import SyncConfig, build
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer
from p2ptrain.training.train_config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CODECS: Final = ("none", "fp16", "int8", "int4", "q2", "rotated+q2", "sign1", "topk", "lossless+topk")
RULE: Final = "trimmed_mean"
VECTORS: Final = 4
"""A node with three neighbours: enough for the rule."""
WARM_UP: Final = 3
"""Steps before any is timed: memory is asked for, and kernels are chosen."""
MESSAGE_BYTES: Final = 300
"""A signed update's header."""
SIGNATURES: Final = 200
BLOB_MIB: Final = 8
STARTING_S: Final = 300.0
"""For processes to import torch and build a model, on a busy machine."""
TENTH: Final = 0.1
EVALUATIONS: Final = 3
CALL_VALUES: Final = 1024
ROUNDS_A_REPETITION: Final = 6
"""Of a swarm of real nodes."""
DENSE_FLOPS: Final = 6
"""Of a parameter and example: forward and backward."""

COLUMNS: Final = (
    Column(key="part", title="part"),
    Column(key="what", title="what"),
    Column(key="median_s", title="median", unit="s", digits=6),
    Column(key="low_s", title="10th", unit="s", digits=6),
    Column(key="high_s", title="90th", unit="s", digits=6),
    Column(key="mean_s", title="mean", unit="s", digits=6),
    Column(key="cpu_s", title="of a core", unit="s", digits=6),
    Column(key="rate", title="rate", unit="values/s, bit/s", digits=0),
    Column(key="count", title="times"),
)


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """A measurement of one machine. ValueError on a number below 1, and for a size that there is not."""

    task: str = "byte-lm"
    size: str = "nano"
    """Of the byte-lm; other tasks have none."""
    batch: int = 16
    processes: int = 1
    """Trainers that step at the same time."""
    seconds: float = 5.0
    """How long steps are timed."""
    numel: int = 1 << 22
    repetitions: int = 7
    device: str = "cpu"
    network: bool = True
    """Whether the loopback is measured too."""
    out: Path | None = None
    name: str = "calibrate"

    def __post_init__(self) -> None:
        for what in ("batch", "processes", "numel", "repetitions"):
            within(what, getattr(self, what), 1)
        within("processes", self.processes, 1, 64)
        if not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")
        if self.task == "byte-lm":
            shape_of_byte_lm(self.size)
        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise ValueError(f"--out: there is no folder {self.out.absolute().parent}: make it first")
        if self.out is not None and self.out.exists() and not self.out.is_file():
            raise ValueError(f"--out: {self.out} is there, and is no file")

    @property
    def task_options(self) -> dict[str, str]:
        """Return the task, as a file of settings has it."""
        return {"name": self.task, "size": self.size} if self.task == "byte-lm" else {"name": self.task}

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one. At the end the file is written."""
        rows: list[Row] = []
        for row in self._rows():
            rows.append(row)
            yield row
        if self.out is None:
            return
        found, rounds, tries = self._parts(rows), _rounds(rows), list[Tried]()
        self._write(found)  # fits are simulations, and what was measured is not to be lost with one
        for tried in fits(found, *rounds) if rounds else ():
            tries.append(tried)
            what = f"{tried.simulated.members} nodes, simulated"
            yield {**_row("fit", what, [tried.simulated.round_s]), "count": tried.simulated.rounds, "off": tried.off}
        if tries:
            found = min(tries, key=lambda each: each.off).calibration
            self._write(found)

    def _write(self, found: MachineCalibration) -> None:
        assert self.out is not None, "there is a file to write"
        text = found.to_json()
        try:
            write_atomic(self.out, text.encode())
        except OSError as error:
            sys.stdout.write(text)  # minutes of measuring
            raise RunError(f"cannot write {self.out}: {error.strerror}", "what was measured stands above") from error

    def calibration(self, rows: Sequence[Row]) -> MachineCalibration:
        """Return what the rows say, as a plan and a simulation read it."""
        rounds, parts = _rounds(rows), self._parts(rows)
        return fitted(parts, *rounds).calibration if rounds else parts

    def _parts(self, rows: Sequence[Row]) -> MachineCalibration:
        """What was measured part by part."""
        parameters, length, flops = self._size()
        usual = usual_rates()
        step = next(row for row in rows if row["part"] == "step")
        found = {(str(row["part"]), str(row["what"])): row for row in rows}
        link = found.get(("network", "loopback"))
        encode, decode = (
            {what: _number(row, "rate") for (part, what), row in found.items() if part == side}
            for side in ("encode", "decode")
        )
        return MachineCalibration(
            cores=cores(),
            device=self.device,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            threads=_threads(self.processes),
            step=StepTiming(
                task=task_words(self.task_options),
                parameters=parameters,
                batch=self.batch,
                length=length,
                flops=flops,
                median_s=_number(step, "median_s"),
                low_s=_number(step, "low_s"),
                high_s=_number(step, "high_s"),
                mean_s=_number(step, "mean_s"),
                cpu_s=_number(step, "cpu_s"),
                count=int(_number(step, "count")),
                processes=self.processes,
                evaluation_s=_number(found["evaluation", f"{EVALUATED} examples"], "median_s"),
            ),
            calls=CallTimes(
                **{f"{what}_s": _number(found["call", what], "median_s") for what in ("encode", "decode", "aggregate")}
            ),
            rates=WorkRates(
                encode=encode,
                decode=decode,
                aggregate=_number(found["aggregate", RULE], "rate"),
                bytes_a_transfer=usual.bytes_a_transfer,
                bytes_a_second=usual.bytes_a_second,
                share_of_bytes=usual.share_of_bytes,
                seconds_a_transfer=usual.seconds_a_transfer,
                measured=True,
            ),
            verify_s=_number(found["verify", "a signature"], "median_s"),
            loopback_bits_s=None if link is None else _number(link, "rate"),
        )

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return a table of these rows."""
        notes = [
            f"step: {task_words(self.task_options)}, batch {self.batch}, {self.processes} at once with "
            f"{_threads(self.processes)} threads each on {cores()} cores; codecs and averaging: one thread, "
            f"{self.numel:,} values",
            "call: of the default strategy beside what grows with a model; round: of real nodes (p2ptrain up)",
            "what is not measured (bytes and work of a transfer) is as in node/planning/work_rates.toml",
        ]
        if self.processes > 1 and self.network and not any(row["part"] == "round" for row in rows):
            notes.append("no swarm was run: rounds of such steps take too long; what a round costs is as in that file")
        if offs := [_number(row, "off") for row in rows if row["part"] == "fit"]:
            notes.append(f"fit: simulated rounds are within {min(offs):.1%} of a round of the real ones")
        if self.out is not None:
            notes.append(f"p2ptrain plan --calibration {self.out}, p2ptrain simulate SCENARIO --calibration {self.out}")
        return [Summary(title="This machine", columns=COLUMNS, rows=rows, notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rates on an empty figure."""
        axes = figure.add_subplot()
        shown = [row for row in rows if row["part"] in ("encode", "decode", "aggregate")]
        axes.barh([f"{row['part']} {row['what']}" for row in shown], [_number(row, "rate") for row in shown])
        axes.set_xscale("log")
        axes.set_xlabel("values a second of one core")

    def _rows(self) -> Iterator[Row]:
        steps, evaluations = timed_steps(self)
        taken, mean_s = [each.wall for each in steps], statistics.fmean(each.wall for each in steps)
        cpu_s = statistics.fmean(each.cpu for each in steps)
        yield {**_row("step", f"{self.processes} at once", taken), "mean_s": mean_s, "cpu_s": cpu_s}
        yield _row("evaluation", f"{EVALUATED} examples", [each.wall for each in evaluations])
        x_d = torch.randn(self.numel, generator=torch.Generator().manual_seed(0))
        with threads(1):
            for name in CODECS:
                codec = compress.get(name)
                payload = codec.encode(x_d)
                yield self._rate("encode", name, partial(codec.encode, x_d), self.numel)
                yield self._rate("decode", name, partial(codec.decode, payload, self.numel), self.numel)
            x_nd, rule = x_d.expand(VECTORS, -1).clone(), aggregate.get(RULE, f=1)
            yield self._rate("aggregate", RULE, partial(rule, x_nd), VECTORS * self.numel)
            for what, seconds in _calls(self.repetitions).items():
                yield _row("call", what, seconds)
        yield _row("verify", "a signature", _signatures())
        if self.network:
            blobs = [
                float(str(row["mib_s"])) for row in Blob(mib=BLOB_MIB, repetitions=max(3, self.repetitions // 2)).run()
            ]
            rate = 8 * (1 << 20) * statistics.median(blobs)
            seconds = [8 * BLOB_MIB * (1 << 20) / (8 * (1 << 20) * each) for each in blobs]
            yield {**_row("network", "loopback", seconds), "rate": rate}
            if self.processes > 1:
                yield from self._swarm(mean_s)

    def _swarm(self, step_s: float) -> Iterator[Row]:
        swarm = PilotSwarm(
            task=self.task_options,
            members=self.processes,
            batch=self.batch,
            device=self.device,
            rounds=ROUNDS_A_REPETITION * self.repetitions,
        )
        if not swarm.fits(step_s):  # beside such steps a round costs nothing
            return
        for rounds in swarm.both(step_s):
            what = f"{rounds.members} nodes, {rounds.inner_steps} steps"
            yield {**_row("round", what, [rounds.round_s]), "count": rounds.rounds, "rounds": asdict(rounds)}

    def _size(self) -> tuple[int, int, float]:
        """Parameters, tokens of an example, and operations of a step."""
        if self.task == "byte-lm":
            shape, length = shape_of_byte_lm(self.size), context_of_byte_lm(self.size)
            return shape.parameters, length, shape.flops(self.batch, length)
        task = tasks.get(**self.task_options)
        parameters = sum(each.numel() for each in task.build_model().parameters())
        return parameters, 1, float(DENSE_FLOPS * parameters * self.batch)

    def _rate(self, part: str, what: str, work: Work, values: int) -> Row:
        taken = in_turns(lambda: None, {what: work}, rounds=self.repetitions)[what]
        return {**_row(part, what, [taken.cpu_seconds]), "rate": values / taken.cpu_seconds}


def timed_steps(asked: Calibrate) -> tuple[list[Spent], list[Spent]]:
    """Return what each step took, and each evaluation, of all trainers together, taken while all of them did
    the same."""
    if asked.processes == 1:
        return _steps(asked, 0, lambda: None)
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(asked.processes), dict[Connection, BaseProcess]()
    for index in range(asked.processes):
        heard, says = context.Pipe(duplex=False)
        told[heard] = context.Process(target=_child, args=(asked, index, barrier, says), daemon=True)
        told[heard].start()
        says.close()  # the child's is the only one: its end ends the pipe
    found: list[Spent] = []
    evaluations: list[Spent] = []
    for steps, evaluated in _answers(told):
        found += [Spent(*each) for each in steps]
        evaluations += [Spent(*each) for each in evaluated]
    for child in told.values():
        child.join()
    if not found:
        raise ValueError(
            f"no step of {task_words(asked.task_options)} ended in {asked.seconds} s: give it more seconds"
        )
    return found, evaluations


def _answers(told: Mapping[Connection, BaseProcess]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield what each child says. RunError as soon as one has ended without a word: the others wait for it."""
    silent = dict(told)
    while silent:
        for heard in wait(list(silent)):
            assert isinstance(heard, Connection)
            child = silent.pop(heard)
            try:
                yield json.loads(heard.recv())
            except EOFError:
                child.join()
                for other in told.values():
                    other.terminate()
                raise RunError(
                    f"a trainer's process ended with {child.exitcode}",
                    "what it said is above; or memory was short: try fewer",
                ) from None


def _child(asked: Calibrate, index: int, barrier: object, told: Connection) -> None:
    """A trainer's process."""
    if hasattr(os, "setsid"):
        os.setsid()  # as nodes have: Linux shares cores out by session first (sched_autogroup)
    taken = _steps(asked, index, lambda: barrier.wait(STARTING_S))  # type: ignore[attr-defined]
    told.send(json.dumps([[astuple(each) for each in part] for part in taken]))


def _steps(asked: Calibrate, index: int, wait: Work) -> tuple[list[Spent], list[Spent]]:
    config = TrainConfig(batch_size=asked.batch, threads=_threads(asked.processes), device=asked.device, warmup_steps=0)
    trainer = Trainer(
        tasks.get(**asked.task_options), config, Shard(index=index, count=asked.processes), data_seed=index
    )
    step = settled(trainer.step, trainer.machine.device)
    for _ in range(WARM_UP):
        step()
    wait()
    taken: list[Spent] = []
    ends = time.monotonic() + asked.seconds
    while time.monotonic() < ends or not taken:
        taken.append(spent(step))
    measure = settled(trainer.measure, trainer.machine.device)
    return taken, [spent(measure) for _ in range(EVALUATIONS)]


def _threads(processes: int) -> int:
    """As `p2ptrain up` gives them to its nodes."""
    return max(1, cores() // processes)


def _calls(repetitions: int) -> dict[str, list[float]]:
    """Seconds of a core of each call of the default strategy, on a vector so small that it is nothing but calls."""
    x_d, others = torch.zeros(CALL_VALUES), ("a", "b", "c")
    strategies = {name: build(SyncConfig(), x_d.clone(), name) for name in ("own", *others)}
    own = strategies["own"]
    for name in others:
        own.track(name, None)
    taken: dict[str, list[float]] = {"encode": [], "decode": [], "aggregate": []}
    for round_ in range(1 + repetitions):
        theta_d = torch.randn(CALL_VALUES, generator=torch.Generator().manual_seed(round_))
        messages = {name: strategies[name].encode(theta_d, round=round_) for name in others}
        work: dict[str, Work] = {"encode": partial(own.encode, theta_d.clone(), round=round_)}
        work |= {
            f"decode {name}": partial(own.apply, name, message.codec, message.payload)
            for name, message in messages.items()
        }
        work["aggregate"] = partial(own.aggregate, theta_d.clone(), dict.fromkeys(others, 0), round=round_)
        for what, call in work.items():
            seconds = spent(call).cpu
            if round_:  # the first warms up
                taken[what.partition(" ")[0]].append(seconds)
    return taken


def _signatures() -> list[float]:
    identity, message = Identity(bytes(range(32))), bytes(MESSAGE_BYTES)
    signature = identity.sign(message)
    check = partial(verify, identity.public_key, message, signature)
    return [spent(check).wall for _ in range(SIGNATURES)]


def _row(part: str, what: str, taken: Sequence[float]) -> dict[str, object]:
    in_order = sorted(taken)
    last = len(in_order) - 1
    return {
        "part": part,
        "what": what,
        "median_s": statistics.median(in_order),
        "low_s": in_order[round(TENTH * last)],
        "high_s": in_order[round((1 - TENTH) * last)],
        "count": len(in_order),
    }


def _rounds(rows: Sequence[Row]) -> list[SwarmRounds]:
    """Of real nodes: two kinds, or none."""
    return [SwarmRounds(**told) for row in rows if isinstance(told := row.get("rounds"), dict)]


def _number(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)
