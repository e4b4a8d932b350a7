"""`p2ptrain bench race`: time to a held-out loss, ours against other people's, on links of several speeds.

Each contestant trains the same model on the same data with the same batch, steps and learning rate, one process with
one thread at each host, on the same cores in turn. Its clock runs from the first step of its first host, when all
processes are up, have met and hold their data. Nobody evaluates on the clock: the first host keeps copies of its model,
which are evaluated afterwards, all by the same code.

A synchronous contestant's loss after a step is the same on every link. So where its run would take longer than the
limit it is cut short, and its time is the steps that it took on the fastest link, times the seconds of a step here, and
what the first few took beyond that: such times are marked.
"""

import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from node.bench.base import Column, Row, Summary, within
from node.bench.race.contestants import Contestant, host_folder, wait_until
from node.bench.race.crew import Crew
from node.bench.race.curves import Point, seconds_to, steps_to, stretched
from node.bench.race.judge import Judge
from node.bench.race.namespaces import Hosts, check_possible
from node.bench.race.spec import RaceSpec
from node.bench.race.track import UNLIKE, Mark, Speed, read_track, speed
from node.bench.timing import cores
from node.system.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_HOSTS: Final = 16
"""Processes on one machine, each with an interpreter and torch: 300 MB."""
LEAST_STEPS: Final = UNLIKE + 1
SAMPLE_S: Final = 10.0
SAMPLE_STEPS: Final = UNLIKE + 3
"""What a run that is cut short has done at least, for the time of its steps to be known."""
LOOK_S: Final = 0.25
BASE: Final = "ddp"
"""What others are compared with."""
MARK: Final = "~"
"""Before a time that is steps times seconds a step."""
TICKS: Final = (1.0, 2.0, 5.0)
"""Of each power of ten: times on a fast link lie within one or two."""
WIDE: Final = 1000.0
"""The last time over the first, from which there is a tick a power of ten: others would lie on each other."""
STYLES: Final = {True: "--", False: "-"}
"""Of a line in the picture, by whether its times are computed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one contestant did on one link."""

    marks: Sequence[Mark]
    """Of the first host."""
    start: float
    """Unix seconds of the first step of the first host to begin."""
    complete: bool
    """Whether all steps were done."""
    sent_bytes: float
    """Mean over the hosts, from the start to the end."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """A race over `links` (Mbit/s) to the losses `to`. `limit_s`: seconds that a contestant gets on a link. `out`: a
    folder for rows and curves. ValueError, or UsageError, on what cannot be."""

    contestants: Sequence[Contestant]
    links: Sequence[float]
    to: Sequence[float]
    spec: RaceSpec
    limit_s: float
    out: Path | None = None
    name: str = "race"
    notes: list[str] = field(default_factory=list)
    """Filled by `run`: who is absent, and why."""

    def __post_init__(self) -> None:
        within("hosts", self.spec.hosts, 2, MAX_HOSTS)
        within("steps", self.spec.steps, LEAST_STEPS)
        if not self.links or min(self.links) <= 0:
            raise ValueError(f"links must be speeds in Mbit/s, not {list(self.links)}")
        if not self.to or min(self.to) <= 0:
            raise ValueError(f"losses to reach must be above 0, not {list(self.to)}")
        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise UsageError(f"--out: there is no folder {self.out.absolute().parent}", "make it first")

    def run(self) -> Iterator[Row]:
        """Measure; yield the row of each contestant on each link, the fastest link first. UsageError where the machine
        does not let us make network namespaces."""
        check_possible()
        judge = Judge(self.spec)
        reference: dict[str, list[Point]] = {}
        rows: list[Row] = []
        for mbit in sorted(set(self.links), reverse=True):
            for contestant in self._present():
                first = contestant.name not in reference
                found, curve = self._measure(contestant, mbit, judge, first=first)
                reference.setdefault(contestant.name, curve)
                row = self._row(contestant, mbit, found, curve, reference[contestant.name])
                rows.append(row)
                if self.out is not None:
                    write(self.out, rows)
                yield row

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return a table of these rows."""
        columns = [
            Column(key="link_mbit", title="link", unit="Mbit/s", digits=0),
            Column(key="contestant", title="contestant"),
            Column(key="step_s", title="step", unit="s", digits=3),
            Column(key="sent_kb_a_step", title="sent", unit="kB a step", digits=1),
            *(Column(key=f"to {loss:g}", title=f"to {loss:g}", unit="s") for loss in self.to),
            *(Column(key=f"x {loss:g}", title=f"{loss:g}", unit=f"of {BASE}") for loss in self.to),
        ]
        notes = [
            f"{self.spec.hosts} hosts share {cores()} cores here, a process and a thread each, all contestants alike",
            f"{MARK} computed: steps on the fastest link times seconds a step here, as the run would take more than "
            f"{self.limit_s:g} s",
            f"of {BASE}: how many times as long {BASE} takes; sent: by a host, everything on the wire, a step",
            *self.notes,
        ]
        title = f"Time to a held-out loss (nats per byte), byte-lm {self.spec.size}, {self.spec.steps} steps"
        return [Summary(title=title, columns=columns, rows=_lines(rows), notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: loss against time, a panel a link."""
        links = sorted({float(str(row["link_mbit"])) for row in rows})
        names = list(dict.fromkeys(str(row["contestant"]) for row in rows))
        across = 1 if len(links) == 1 else 2
        for place, mbit in enumerate(links, start=1):
            axes = figure.add_subplot(-(-len(links) // across), across, place)
            for row in rows:
                if row["link_mbit"] == mbit:
                    _line(axes, row, f"C{names.index(str(row['contestant']))}")
            _label(axes, mbit, self.to)
        figure.axes[-1].legend(fontsize="x-small", loc="upper right")  # the fastest link: lines end early there

    def _present(self) -> list[Contestant]:
        there = []
        for contestant in self.contestants:
            why = contestant.absent()
            if not why:
                there.append(contestant)
            elif why not in self.notes:
                self.notes.append(why)
        return there

    def _measure(self, contestant: Contestant, mbit: float, judge: Judge, *, first: bool) -> tuple[Run, list[Point]]:
        with tempfile.TemporaryDirectory(prefix="p2ptrain-race-") as name:
            run = self._race(contestant, mbit, Path(name), first=first)
            return run, judge.curve(run.marks, run.start)

    def _race(self, contestant: Contestant, mbit: float, folder: Path, *, first: bool) -> Run:
        with Hosts(self.spec.hosts, mbit) as hosts, Crew() as crew:
            contestant.start(crew, hosts, self.spec, folder)
            before = hosts.bytes_sent()
            contestant.go(crew, self.spec, folder)
            start = self._started(crew, folder)
            complete = self._watch(contestant, crew, folder, start, may_cut=contestant.synchronous and not first)
            sent = [after - then for after, then in zip(hosts.bytes_sent(), before, strict=True)]
        marks = read_track(host_folder(folder, 0))
        return Run(marks=marks, start=start, complete=complete, sent_bytes=sum(sent) / len(sent))

    def _started(self, crew: Crew, folder: Path) -> float:
        """Wait until all have begun; return when the first did."""
        folders = [host_folder(folder, rank) for rank in range(self.spec.hosts)]
        wait_until(lambda: all(_beginning(each) is not None for each in folders), crew, "the hosts have not begun")
        return min(found for each in folders if (found := _beginning(each)) is not None)

    def _watch(self, contestant: Contestant, crew: Crew, folder: Path, start: float, *, may_cut: bool) -> bool:
        """Wait until it is done, or time is up; return which. `may_cut`: also end where it would not be done in time,
        once the time of its steps is known."""
        while not contestant.done(self.spec, folder):
            crew.check()
            elapsed = time.time() - start
            if elapsed > self.limit_s:
                return False
            if may_cut and elapsed > SAMPLE_S:
                steps = [mark for mark in read_track(host_folder(folder, 0)) if mark.model is None]
                found = speed(steps, start)
                if found is not None and len(steps) > SAMPLE_STEPS and found.seconds(self.spec.steps) > self.limit_s:
                    return False
            time.sleep(LOOK_S)
        return True

    def _row(
        self, contestant: Contestant, mbit: float, run: Run, curve: Sequence[Point], fastest: Sequence[Point]
    ) -> Row:
        pace, steps = speed(run.marks, run.start), max(mark.step for mark in run.marks)
        computed = contestant.synchronous and not run.complete and fastest is not curve and pace is not None
        final_loss = curve[-1].loss if math.isfinite(curve[-1].loss) else None
        curve, fastest = _finite(curve), _finite(fastest)
        shown = stretched(fastest, pace.seconds) if computed and pace is not None else curve
        return {
            "contestant": contestant.name,
            "link_mbit": mbit,
            "hosts": self.spec.hosts,
            "cores": cores(),
            "size": self.spec.size,
            "batch": self.spec.batch,
            "steps": self.spec.steps,
            "steps_done": steps,
            "complete": run.complete,
            "computed": computed,
            "step_s": None if pace is None else round(pace.step_s, 4),
            "sent_kb_a_step": round(run.sent_bytes / 1e3 / max(1, steps), 1),
            "to": [
                {"loss": loss, "seconds": _time_to(curve, fastest, loss, pace if computed else None)}
                for loss in self.to
            ],
            "final_loss": final_loss,
            "curve": [asdict(point) for point in shown],
        }


def write(out: Path, rows: Sequence[Row]) -> None:
    """Write the rows so far into the folder `out`: race.json, and their curves as curves.csv."""
    out.mkdir(exist_ok=True)
    (out / "race.json").write_text(json.dumps(list(rows), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    with (out / "curves.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["link_mbit", "contestant", "computed", "seconds", "step", "loss"])
        for row in rows:
            for point in _points(row):
                head = [row["link_mbit"], row["contestant"], row["computed"]]
                table.writerow([*head, round(point.seconds, 3), point.step, point.loss])


def _finite(curve: Sequence[Point]) -> list[Point]:
    """Without models that diverged: they have come to no loss, and JSON has no word for theirs."""
    return [point for point in curve if math.isfinite(point.loss)]


def _beginning(folder: Path) -> float | None:
    return next((mark.at for mark in read_track(folder) if mark.model is None), None)


def _time_to(curve: Sequence[Point], fastest: Sequence[Point], loss: float, pace: Speed | None) -> float | None:
    """As it was measured here, else as it is computed where a pace is given."""
    found = seconds_to(curve, loss)
    if found is None and pace is not None and (steps := steps_to(fastest, loss)) is not None:
        found = pace.seconds(steps)
    return None if found is None else round(found, 2)


def _points(row: Row) -> list[Point]:
    curve: Any = row["curve"]
    return [Point(**point) for point in curve]


def _lines(rows: Sequence[Row]) -> list[Row]:
    """The rows as the table shows them: a column for each loss."""
    base = {
        (row["link_mbit"], each["loss"]): each["seconds"]
        for row in rows
        if row["contestant"] == BASE
        for each in _to(row)
    }
    lines: list[Row] = []
    for row in rows:
        line = dict(row)
        for each in _to(row):
            loss, seconds = each["loss"], each["seconds"]
            if seconds is None:
                continue
            line[f"to {loss:g}"] = f"{MARK if row['computed'] else ''}{seconds:.1f}"
            theirs = base.get((row["link_mbit"], loss))
            line[f"x {loss:g}"] = None if theirs is None else f"{theirs / seconds:.2f}"
        lines.append(line)
    return lines


def _to(row: Row) -> list[dict[str, Any]]:
    told: Any = row["to"]
    return list(told)


def _line(axes: "Axes", row: Row, colour: str) -> None:
    points = [point for point in _points(row) if point.seconds > 0]
    axes.plot(
        [point.seconds for point in points],
        [point.loss for point in points],
        STYLES[bool(row["computed"])],
        color=colour,
        label=str(row["contestant"]),
        linewidth=1.2,
    )


def _label(axes: "Axes", mbit: float, to: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter  # of an extra

    axes.set_title(f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s", fontsize="medium")
    for loss in to:
        axes.axhline(loss, color="grey", linewidth=0.6, linestyle=":")
    axes.set_xscale("log")
    first, last = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=TICKS if last < WIDE * first else TICKS[:1]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds")
    axes.set_ylabel("held-out loss")
    axes.grid(visible=True, alpha=0.3)
