"""Sweeps: what is run once stays, whatever ends the sweep; what fails is a row; a report shows the rest."""

import errno
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow import parquet

from node.bench.quality import parquet as tables
from node.bench.quality.intervals import estimate
from node.cli.app import main
from node.cli.waiting import Waiting
from node.reporting.document import LineChart, Scatter
from node.reporting.report import make_report
from node.reporting.sweep_report import sweep_document
from node.reporting.table_rows import read_rows
from node.sweep.attempt import attempt
from node.sweep.base import Cell, CellFailure, CellRow, Outcome, Settings
from node.sweep.executors import EXECUTORS
from node.sweep.runners import RUNNERS
from node.sweep.sweep import CELLS, ROWS, Sweep
from node.sweep.sweep_plan import SweepPlan, read_sweep
from node.system.errors import EXIT_FAILED, RunError, UsageError

PLAN_TEXT = """
run = "swarm"
seeds = [0, 1]
[base]
task.name = "digits"
train.rounds = 2
train.inner_steps = 2
swarm.nodes = 4
swarm.degree = 3
[grid]
sync.compressor = ["none", "q2"]
"attack.name" = ["none", "sign_flip"]
swarm.byzantine = [0, 1]
"""


def plan_of(text: str, folder: Path, name: str = "codecs.toml") -> SweepPlan:
    path = folder / name
    path.write_text(text)
    return read_sweep(path)


def cells_of(plan: SweepPlan) -> list[Cell]:
    return list(plan.cells({}))


class Scripted:
    """In the place of processes: rows as a test has them, and what was asked for."""

    asked: list[str] = []
    fails: dict[str, CellFailure] = {}
    stops_after: int | None = None

    def run(self, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
        for number, cell in enumerate(cells):
            if number == self.stops_after:
                raise KeyboardInterrupt
            self.asked.append(cell.id)
            yield cell, self.fails.get(cell.id, row_of(cell))


def row_of(cell: Cell) -> dict[str, Any]:
    cheap = cell.settings.get("sync.compressor") == "q2"
    sent = 100.0 if cheap else 1600.0
    loss = (1.1 if cheap else 1.0) + 0.01 * cell.seed
    return {
        "loss": loss,
        "metric": "nats",
        "sent_bytes": sent,
        "published_bytes": sent / 4,
        "steps": 4,
        "seconds": None,
        "curve": [[2, sent / 2, loss + 1], [4, sent, loss]],
    }


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setitem(EXECUTORS._factories, "scripted", Scripted)
    for name, value in {"asked": [], "fails": {}, "stops_after": None}.items():
        monkeypatch.setattr(Scripted, name, value)
    return Scripted


def sweep(plan: SweepPlan, out: Path, **more: Any) -> Sweep:
    return Sweep(plan=plan, out=out, executor="scripted", **more)


# -- plans


def test_a_cell_is_every_different_combination_once(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    cells = list(plan_of(PLAN_TEXT, tmp_path).cells(refused))
    assert refused == {}
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells), "something of everything first"
    assert len({cell.id for cell in cells}) == len(cells)
    assert len(cells) == 2 * 2 * 3, "without liars all attacks are the same"


def test_names_of_cells_follow_from_what_decides_their_outcome(tmp_path: Path) -> None:
    one = {cell.id for cell in cells_of(plan_of(PLAN_TEXT, tmp_path))}
    same = PLAN_TEXT.replace('["none", "q2"]', '["q2", "none"]').replace("task.name = ", "'task.name' = ")
    assert {cell.id for cell in cells_of(plan_of(same, tmp_path))} == one
    more = PLAN_TEXT.replace('["none", "q2"]', '["none", "q2", "int8"]')
    assert {cell.id for cell in cells_of(plan_of(more, tmp_path))} > one
    assert not {cell.id for cell in cells_of(plan_of(PLAN_TEXT.replace("rounds = 2", "rounds = 3"), tmp_path))} & one


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("seeds = [0, 1]", "seeds = [0, 0]"), "each seed once"),
        (("seeds = [0, 1]", "seeds = []"), "seeds"),
        (("seeds = [0, 1]", f"seeds = [{1 << 63}]"), "below 2\\^63"),
        (("seeds = [0, 1]", f"seeds = {list(range(12_501))}"), "more than 100000 cells"),
        (('run = "swarm"', 'run = "nothing"'), "there is no 'nothing'; there are: "),
        (("swarm.byzantine = [0, 1]", "swarm.byzantine = 1"), "must be a list of values"),
        (("swarm.byzantine = [0, 1]", "swarm.byzantine = [1, 1]"), "has a value twice"),
        (("[grid]", "rounds = 3\n[grid]"), "rounds has no section"),
        (("train.rounds = 2", "train.rounds = 2026-01-01"), "is no number"),
        (("[grid]", "[grids]"), "grids"),
        (("[grid]", "[grid"), "is not valid TOML"),
        (("swarm.byzantine = [0, 1]", f"train.rounds = {list(range(1, 60_000))}"), "more than 100000 cells"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_of(PLAN_TEXT.replace(*change), tmp_path)


def test_a_combination_that_cannot_be_is_left_out_and_said(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    plan = plan_of(PLAN_TEXT.replace('["none", "q2"]', '["none", "q8"]'), tmp_path)
    assert {cell.varied["sync.compressor"] for cell in plan.cells(refused)} == {"none"}
    assert all("q8" in what for what in refused)
    assert "unknown sync.compressor 'q8'" in next(iter(refused.values()))


def test_a_plan_is_read_again_from_its_copy(tmp_path: Path) -> None:
    text = PLAN_TEXT.replace('task.name = "digits"', 'task.name = "byte-lm"\ntask.data = "texts"')
    plan = plan_of(text, tmp_path).model_copy(update={"run": "swarm"})
    (tmp_path / "copy").mkdir()
    again = plan_of(plan.as_toml(), tmp_path / "copy", "plan.toml")
    assert again.base["task.data"] == str(tmp_path / "texts")
    assert again.name == "codecs"
    assert again.as_toml() == plan.as_toml()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("swarm.degree = 3", 'swarm.degree = "3"'),
        ("swarm.degree = 3", "swarm.degree = 1.5"),
        ("swarm.byzantine = [0, 1]", 'swarm.byzantine = ["1"]'),
        ("swarm.byzantine = [0, 1]", "swarm.late_steps = [true]"),
    ],
)
def test_a_swarm_of_no_whole_number_is_said_as_it_is(tmp_path: Path, change: str, why: str) -> None:
    refused: dict[str, str] = {}
    assert list(plan_of(PLAN_TEXT.replace(change, why), tmp_path).cells(refused)) == []
    assert all("must be a whole number, not " in each for each in refused.values())


def test_files_of_a_plan_are_those_beside_it_and_names_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "plans"
    (here / "base-model").mkdir(parents=True)
    (here / "chat.jinja").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/carol")
    text = """
        [base]
        task.name = "hf-lm"
        task.tokenizer = "org/tokens"
        task.chat_template = "chat.jinja"
        scenario.calibration = "machine.json"
        [grid]
        task.model = ["base-model", "org/model"]
        task.data = ["texts.jsonl", "~/texts", "org/texts@main"]
    """
    whole = plan_of(plan_of(text, here).as_toml(), tmp_path, "plan.toml")
    assert whole.grid["task.model"] == [str(here / "base-model"), "org/model"]
    assert whole.grid["task.data"] == [str(here / "texts.jsonl"), "/home/carol/texts", "org/texts@main"]
    assert whole.base["task.tokenizer"] == "org/tokens"
    assert whole.base["task.chat_template"] == str(here / "chat.jinja")
    assert whole.base["scenario.calibration"] == str(here / "machine.json")


# -- folders


def test_a_finished_cell_is_never_run_again(tmp_path: Path, scripted: type[Scripted]) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    first = list(sweep(plan, out).run())
    assert len(scripted.asked) == len(first) == len(cells_of(plan))
    again = list(sweep(plan, out).run())
    assert len(scripted.asked) == len(first)
    assert again == first
    assert parquet.read_table(out / ROWS).num_rows == len(first)


def test_a_changed_plan_runs_what_is_new(tmp_path: Path, scripted: type[Scripted]) -> None:
    out = tmp_path / "out"
    list(sweep(plan_of(PLAN_TEXT, tmp_path), out).run())
    before = len(scripted.asked)
    changed = plan_of(
        PLAN_TEXT.replace('["none", "q2"]', '["q2", "int8"]').replace("[0, 1]\n[base]", "[0]\n[base]"), tmp_path
    )
    it = sweep(changed, out)
    rows = list(it.run())
    new = scripted.asked[before:]
    assert new
    assert {row["varied"]["sync.compressor"] for row in rows if row["cell"] in new} == {"int8"}
    assert {row["varied"]["sync.compressor"] for row in rows} == {"q2", "int8"}
    assert it.others == before - (len(rows) - len(new))
    assert len((out / CELLS).read_text().splitlines()) == before + len(new)


def test_a_line_cut_short_costs_its_own_cell_alone(tmp_path: Path, scripted: type[Scripted]) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    rows = list(sweep(plan, out).run())
    text = (out / CELLS).read_bytes()
    (out / CELLS).write_bytes(text[:-40])
    scripted.asked.clear()
    assert len(list(sweep(plan, out).run())) == len(rows)
    assert scripted.asked == [rows[-1]["cell"]]


def test_a_later_plan_in_a_folder_leaves_the_earlier_one_s_cells_to_be_run_again(
    tmp_path: Path, scripted: type[Scripted]
) -> None:
    first, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    rows = list(sweep(first, out).run())
    second = first.model_copy(update={"seeds": [91]})
    list(sweep(second, out).run())
    for plan in (first, second):
        copy = sweep(plan, out).plan_file
        assert plan_of(copy.read_text(), out, copy.name).as_toml() == plan.as_toml()
    assert all(str(sweep(first, out).plan_file) in row["replay"] for row in rows)


def test_ctrl_c_loses_nothing(tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    monkeypatch.setattr(Scripted, "stops_after", 3)
    with pytest.raises(KeyboardInterrupt):
        list(sweep(plan, out).run())
    assert parquet.read_table(out / ROWS).num_rows == 3
    monkeypatch.setattr(Scripted, "stops_after", None)
    scripted.asked.clear()
    rows = list(sweep(plan, out).run())
    assert len(scripted.asked) == len(rows) - 3


def test_a_failed_cell_is_a_row_with_what_replays_it(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    broken, refused, *_ = cells_of(plan)
    scripted.fails |= {broken.id: CellFailure("RuntimeError: no"), refused.id: CellFailure("cannot be", refused=True)}
    rows = {row["cell"]: row for row in sweep(plan, Path("out")).run()}
    assert rows[broken.id]["status"] == "failed"
    assert rows[broken.id]["replay"] == f"p2ptrain sweep {sweep(plan, out).plan_file} --cell {broken.id}"
    assert rows[refused.id]["status"] == "refused"
    scripted.asked.clear()
    list(sweep(plan, out).run())
    assert scripted.asked == []
    scripted.fails.clear()
    rows = {row["cell"]: row for row in sweep(plan, out, retry=True).run()}
    assert scripted.asked == [broken.id, refused.id]
    assert rows[broken.id]["status"] == "done"


def test_cells_without_a_result_are_told_at_the_end_and_none_with_one_is_a_failure(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = cells_of(plan_of(PLAN_TEXT, tmp_path))
    scripted.fails |= {cell.id: CellFailure("cannot be", refused=True) for cell in cells[:-1]}
    words = ["sweep", str(tmp_path / "codecs.toml"), "--out", str(tmp_path / "out"), "--executor", "scripted"]
    for _ in range(2):  # a second time as well, when none of them is run
        assert main(words) == 0
        told = capsys.readouterr()
        assert f"{len(cells)} cells, {len(cells) - 1} of them refused: " in told.out
        assert "left out: " in told.err
        assert ": cannot be" in told.err
    scripted.fails[cells[-1].id] = CellFailure("RuntimeError: no")
    assert main([*words[:3], str(tmp_path / "failed"), *words[4:]]) == EXIT_FAILED
    told = capsys.readouterr()
    assert f"{len(cells)} cells, 1 of them failed, {len(cells) - 1} of them refused: " in told.out
    assert "\nfailed: RuntimeError: no; again: p2ptrain sweep" in told.err
    scripted.fails[cells[-1].id] = CellFailure("cannot be", refused=True)
    assert main([*words[:3], str(tmp_path / "none"), *words[4:]]) == EXIT_FAILED


def test_what_came_of_a_cell_is_said_whole_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Waiting() as say:
        say(1, 2, "failed: no file [a] in [/data]")
    assert "failed: no file [a] in [/data]" in capsys.readouterr().err


def test_two_sweeps_in_a_folder_are_one_too_many(tmp_path: Path, scripted: type[Scripted]) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    first = sweep(plan, out).run()
    next(first)
    with pytest.raises(RunError, match="in use"):
        next(sweep(plan, out).run())
    first.close()  # type: ignore[attr-defined]
    assert len(list(sweep(plan, out).run())) == len(cells_of(plan))


class Gone(io.StringIO):
    """The standard output of `| head -1`."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_reader_that_goes_away_ends_no_sweep(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(PLAN_TEXT, tmp_path)
    monkeypatch.setattr("sys.stdout", Gone())
    words = ["sweep", str(tmp_path / "codecs.toml"), "--out", str(tmp_path / "out"), "--json"]
    code = main([*words, "--executor", "scripted"])
    assert (code, len(scripted.asked)) == (0, len(cells_of(plan)))


SMALL_TEXT = """
[base]
task.name = "digits"
train.inner_steps = 2
swarm.nodes = 3
swarm.degree = 2
[grid]
train.rounds = [1, 2, 3, 4]
"""


@pytest.mark.thorough
def test_kill_9_loses_no_finished_cell_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL_TEXT)
    command = [sys.executable, "-m", "p2ptrain", "sweep", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = tmp_path / "out" / CELLS
    deadline = time.monotonic() + 60
    while not (log.is_file() and log.read_bytes().count(b"\n") >= 1):
        assert running.poll() is None or log.is_file()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = [json.loads(line)["cell"] for line in log.read_bytes().splitlines() if line.endswith(b"}")]
    assert kept
    assert main([*command[3:], "--executor", "here"]) == 0
    names = [json.loads(line)["cell"] for line in log.read_bytes().splitlines() if line.endswith(b"}")]
    assert len(names) == len(set(names)) == 4
    assert names[: len(kept)] == kept
    _, alive = psutil.wait_procs(children, timeout=60)
    assert [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


def test_one_cell_is_run_here_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(SMALL_TEXT, tmp_path, "small.toml")
    cell = cells_of(plan)[0]
    assert main(["sweep", str(tmp_path / "small.toml"), "--cell", cell.id[:8]]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]
    assert main(["sweep", str(tmp_path / "small.toml"), "--cell", "zz"]) == 2
    assert main(["sweep", str(tmp_path / "small.toml")]) == 2
    capsys.readouterr()
    assert main(["sweep", str(tmp_path / "small.toml"), "--dry-run"]) == 0
    assert capsys.readouterr().out == "4 cells, 1 seed each\n"


# -- reports of tables


def test_a_sweep_in_figures(tmp_path: Path, scripted: type[Scripted]) -> None:
    plan, out = plan_of(PLAN_TEXT, tmp_path), tmp_path / "out"
    list(sweep(plan, out).run())
    document = sweep_document(read_rows([out / ROWS]), [])
    assert document.title == "codecs"
    assert document.tiles[0].value == 1600.0
    first = document.sections[0]
    (scatter,) = first.charts
    assert isinstance(scatter, Scatter)
    found = {point.name: point for point in scatter.points}
    assert found.keys() == {"compressor=none", "q2"}
    assert all(point.front for point in found.values()), "less loss, or fewer bytes"
    both = estimate([1.1, 1.11])
    assert both is not None
    assert found["q2"].half == pytest.approx(both.half)
    assert found["q2"].y == pytest.approx(both.mean)
    curves = next(section for section in document.sections if section.id.startswith("curves"))
    chart = curves.charts[0]
    assert isinstance(chart, LineChart)
    line = next(line for line in chart.lines if line.name == "q2")
    assert [point[0] for point in line.points] == [2, 4]
    assert line.points[1][1:] == pytest.approx((both.mean, both.mean - (both.half or 0), both.mean + (both.half or 0)))
    titles = [section.title for section in document.sections if section.id.startswith("pareto")]
    assert len(titles) == 3, "attacks are conditions, under which groups are compared"


def rows_of(**changes: Any) -> dict[str, Any]:
    row = {"status": "done", "loss": 1.0, "sent_bytes": 10.0, "metric": "nats", "seed": 0, "varied": {"sync.f": 1}}
    return {**row, "curve": [[1, 5.0, 2.0]], **changes}


def test_what_is_no_result_is_counted() -> None:
    rows = [
        rows_of(version="0.1", commit="a"),
        rows_of(version="0.2", commit="a"),
        {"status": "done", "x": 1},
        rows_of(loss=None, seed=2, varied={"sync.f": 2}),
        rows_of(status="failed", error="<b>", replay="p2ptrain sweep x --cell y"),
        {"phase": "tune", "eval_loss": 1.0},
    ]
    document = sweep_document(rows, ["before"])
    assert document.notes == [
        "before",
        "rows of 2 versions: 0.1, 0.2",
        "1 row is no result: without a loss",
        "1 row of trials for tuning is not reported on",
        "1 run diverged: their groups have no mean",
    ]
    assert document.commands == [("A failed cell is run again by", "p2ptrain sweep x --cell y")]
    assert document.tables[0].rows[0][3] == "<b>"
    json.dumps(document.as_json(), allow_nan=False)


def test_a_mean_is_one_of_all_seeds_or_none() -> None:
    whole = [rows_of(seed=seed, varied={"sync.f": 1}) for seed in range(2)]
    diverged = [rows_of(seed=seed, varied={"sync.f": 2}, loss=loss) for seed, loss in enumerate((0.5, None))]
    longer = rows_of(seed=2, varied={"sync.f": 1}, curve=[[1, 5.0, 2.0], [2, 10.0, 1.0]])
    document = sweep_document([*whole, longer, *diverged], [])
    table = document.sections[0].tables[0]
    found = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert found["f=1"]["Loss"] == 1.0
    assert found["f=2"]["Loss"] is None
    assert found["f=2"]["Seeds"] == "1 of 2"
    chart = document.sections[1].charts[0]
    assert isinstance(chart, LineChart)
    line = next(line for line in chart.lines if line.name == "f=1")
    assert [point[0] for point in line.points] == [1], "where all were measured"


class Raising:
    """A kind of run with a bug in it."""

    name = "raising"

    def document(self, settings: Settings, seed: int) -> Mapping[str, Any]:
        return {}

    def run(self, settings: Settings, seed: int) -> CellRow:
        raise {"value": ValueError, "usage": UsageError, "bug": ZeroDivisionError}[settings["what"]]("so\nit is")


def test_whatever_a_cell_raises_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNNERS._factories, "raising", Raising)
    found = {
        what: attempt(Cell(id=what, runner="raising", settings={"what": what}, varied={}, seed=0))
        for what in ("value", "usage", "bug")
    }
    assert found == {
        "value": CellFailure("so it is", refused=True),
        "usage": CellFailure("so it is", refused=True),
        "bug": CellFailure("ZeroDivisionError: so it is"),
    }


@pytest.mark.parametrize("value", ["x", [1], {"a": [1]}, True, float("nan"), [[1, 2, 3, 4]], [["a", None, 1]]])
def test_columns_of_any_content_break_nothing(value: object) -> None:
    rows = [
        dict.fromkeys(rows_of(), value) | {"status": "done"},
        rows_of(curve=value),
        rows_of(varied=value),
        rows_of(loss=value),
    ]
    json.dumps(sweep_document(rows, []).as_json(), allow_nan=False)


def test_rows_of_bench_quality_are_reported_by_data_and_method(tmp_path: Path) -> None:
    row = {"phase": "report", "data": "digits", "size": None, "method": "q2", "eval_loss": 0.5, "metric": "nats"}
    more = {"sent_bits": 2.0, "published_bits": 1.0, "parameters": 80, "steps": 10, "curve": [(10, 20.0, 0.5)]}
    tables.write(tmp_path / "rows.parquet", [{**row, **more, "seed": seed} for seed in (0, 1)])
    document = sweep_document(read_rows([tmp_path / "rows.parquet"]), [])
    (scatter,) = document.sections[0].charts
    assert isinstance(scatter, Scatter)
    assert [(point.name, point.x) for point in scatter.points] == [("q2", 2.0 * 80 * 10 / 8)]
    chart = document.sections[1].charts[1]
    assert isinstance(chart, LineChart)
    assert chart.lines[0].points[0][0] == 20.0 * 80 / 8


def test_a_broken_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("no table")
    with pytest.raises(RunError, match="is no table of results"):
        make_report([tmp_path], tmp_path / "out.html", command="")


def test_without_pyarrow_tables_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(UsageError, match="pip install 'pyarrow>=20'"):
        make_report([tmp_path], tmp_path / "out.html", command="")
