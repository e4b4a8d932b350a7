"""`p2ptrain bench quality`: plans that could fool their author are refused, and the others are carried out as told."""

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from bench_words import rows, run
from hypothesis import given
from hypothesis import strategies as st

from node.bench.base import Row
from node.bench.quality import intervals, parquet
from node.bench.quality.quality import RUNS, Quality
from node.bench.quality.quality_plan import QualityPlan, parse_plan, quick_plan, read_plan
from node.bench.quality.trials import at_the_edge, best_trials, report_runs, tuning_runs
from node.bench.swarm import jobs
from node.bench.swarm.measure import labels
from node.bench.swarm.run_spec import RunSpec
from node.system.errors import RunError, UsageError

ROOT = Path(__file__).parents[2]
HALF = "node.bench.swarm.heterogeneous:half_of_digits"
PLAN: dict[str, Any] = {
    "train": {"warmup_steps": 1},
    "data": [
        {"name": "first half", "role": "tune", "task": {"name": HALF, "half": 0}},
        {"name": "second half", "role": "report", "task": {"name": HALF, "half": 1, "partition": "label"}},
    ],
    "method": [
        {"name": "synchronous", "source": "exact", "kind": "synchronous"},
        {
            "name": "tracked",
            "source": "ours",
            "predicted_behind": 5,
            "sync": {"strategy": "tracked_gossip", "compressor": "q2", "aggregator": "mean"},
            "train": {"inner_steps": 2},
        },
        {"name": "alone", "source": "one node", "kind": "alone", "prediction": "worse than all"},
    ],
    "tune": {"runs": 2, "seed": 7, "grid": {"train": {"learning_rate": [1e-3, 3e-3]}}},
    "report": {"seeds": [0, 1], "nodes": 3, "degree": 2, "steps": 4},
}


def plan_of(change: Callable[[dict[str, Any]], object] = lambda raw: None) -> QualityPlan:
    raw = copy.deepcopy(PLAN)
    change(raw)
    return parse_plan(tomli_w.dumps(raw), "plan.toml")


def synthetic(losses: Callable[[RunSpec], float | None], seen: list[RunSpec] | None = None) -> Callable[[RunSpec], Row]:
    """A measurement that trains nothing: a run's row with the loss that it is said to have."""

    def measure(recipe: RunSpec) -> Row:
        loss = losses(recipe)
        if seen is not None:
            seen.append(recipe)
        bits = {"synchronous": 42.0, "alone": 0.0}.get(recipe.kind, 2.0)
        told = {
            "eval_loss": loss,
            "diverged": loss is None,
            "metric": "nats",
            "sent_bits": bits,
            "published_bits": bits / 2,
        }
        return {**labels(recipe), **told, "wall_s": 0.0, "recipe": recipe.document()}

    return measure


def carried_out(plan: QualityPlan, out: Path | None = None) -> tuple[Quality, list[Row]]:
    if out is not None:
        out.mkdir(exist_ok=True)
    quality = Quality(plan=plan, out=out)
    return quality, list(quality.run())


def rate_of(recipe: RunSpec) -> float:
    return recipe.config.train.learning_rate


def half_of(recipe: RunSpec) -> object:
    return recipe.config.task.options["half"]


# Plans


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda raw: raw["data"][1]["task"].update(half=0),
            "tuned on and second half reported on, and they are the same",
        ),
        (lambda raw: raw["data"][0].update(role="report"), "no data set of the task .* is tuned on"),
        (lambda raw: raw["data"][1].update(role="tune"), "no data set has the role report"),
        (lambda raw: raw["data"][1].update(role="both"), "data.1.role: Input should be 'tune' or 'report'"),
        (lambda raw: raw["data"][1].update(name="first half"), "'first half' stands there twice"),
        (lambda raw: raw["data"][1]["task"].update(name="nothing"), "is reported on, and no data set"),
        (lambda raw: raw["method"][1].pop("predicted_behind"), "method.1: tracked has no prediction"),
        (
            lambda raw: raw["method"][1].update(tune={"train": {"learning_rate": [1e-3]}}),
            "tracked has 1 trials, and tune.r",
        ),
        (lambda raw: raw["method"][1].update(tune={"train": {"learning_rate": [1, 2, 3]}}), "tracked has 3 trials"),
        (lambda raw: raw["tune"].update(runs=3), "synchronous has 2 trials, and tune.runs says 3"),
        (
            lambda raw: raw["tune"]["grid"]["train"].update(learning_rate=[1e-3, 1e-3]),
            "learning_rate has a value twice",
        ),
        (lambda raw: raw["tune"]["grid"]["train"].update(learning_rate=1e-3), "must be a list of values"),
        (lambda raw: raw["tune"]["grid"].update(task={"half": [0]}), "'task' is no section of a method"),
        (lambda raw: raw["method"][1]["train"].update(batch_size=64), "train.batch_size is the same for all methods"),
        (lambda raw: raw["method"][1]["train"].update(seed=3), "train.seed is the same for all methods"),
        (lambda raw: raw["method"][1].update(swarm={"nodes": 64}), "swarm.nodes is no setting of a method"),
        (lambda raw: raw["method"].pop(0), "one method must be of kind synchronous"),
        (lambda raw: raw["method"][2].update(kind="synchronous"), "one method must be of kind synchronous"),
        (lambda raw: raw["report"].update(seeds=[0, 0]), "0 stands there twice"),
        (lambda raw: raw["report"].update(seeds=[]), "report.seeds"),
        (lambda raw: raw.update(extra=1), "extra"),
    ],
)
def test_a_plan_that_could_fool_is_refused(change, says):
    with pytest.raises(UsageError, match=says) as caught:
        plan_of(change)
    assert caught.value.line().startswith("plan.toml: ")


@pytest.mark.parametrize(
    ("tuned", "reported", "same"),
    [
        ("texts", "texts", True),
        ("texts/bible", "texts", True),
        ("texts", "texts/bible", True),
        ("texts/linux", "texts/../texts/linux", True),
        ("texts/linux", "texts/bible", False),
        ("texts", "texts-2", False),
        (None, "texts", False),
        (None, None, True),
    ],
)
def test_texts_are_the_same_where_one_path_holds_the_other(tuned, reported, same):
    def task(data: str | None, **more: object) -> dict[str, object]:
        return {"name": "byte-lm", **more} | ({} if data is None else {"data": data})

    def change(raw: dict[str, Any]) -> None:
        raw["data"][0]["task"] = task(tuned)
        raw["data"][1]["task"] = task(reported, partition="domain", context=32)

    if same:
        with pytest.raises(UsageError, match="they are the same data"):
            plan_of(change)
    else:
        assert plan_of(change).sizes_of(plan_of(change).data[0]) == ["nano"]


def test_how_data_are_dealt_makes_no_other_data():
    def change(raw: dict[str, Any]) -> None:
        raw["data"][0]["task"] = {"name": "digits"}
        raw["data"][1]["task"] = {"name": "digits", "partition": "dirichlet", "alpha": 0.1}

    with pytest.raises(UsageError, match="they are the same data"):
        plan_of(change)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*PLAN, "train", "x"]), inner, max_size=2)
        ),
        max_leaves=6,
    ),
    st.sampled_from(
        [
            ("train",),
            ("data", 0, "task"),
            ("method", 1, "sync"),
            ("method", 1),
            ("tune",),
            ("tune", "grid"),
            ("report",),
        ]
    ),
)
def test_any_value_anywhere_is_a_plan_or_a_mistake_of_the_users(value, where):
    raw = copy.deepcopy(PLAN)
    inside: Any = raw
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    try:
        text = tomli_w.dumps(raw)
    except (TypeError, ValueError):  # TOML has no null
        return
    with suppress(UsageError):
        tuning_runs(parse_plan(text, "plan.toml"))


@given(
    st.dictionaries(
        st.sampled_from(["train.learning_rate", "train.clip_norm", "sync.gamma"]), st.integers(1, 3), min_size=1
    ),
    st.integers(1, 12),
)
def test_every_method_has_as_many_trials_or_there_is_no_plan(sizes, budget):
    grid: dict[str, Any] = {}
    for key, count in sizes.items():
        section, _, name = key.partition(".")
        grid.setdefault(section, {})[name] = [0.1 * (each + 1) for each in range(count)]
    count = 1
    for each in sizes.values():
        count *= each

    def change(raw: dict[str, Any]) -> None:
        raw["tune"]["runs"] = budget
        raw["tune"]["grid"] = {"train": {"learning_rate": [0.01 * (each + 1) for each in range(budget)]}}
        raw["method"][1]["tune"] = grid

    if count != budget:
        with pytest.raises(UsageError, match=f"tracked has {count} trials"):
            plan_of(change)
        return
    runs = tuning_runs(plan_of(change))
    for name in ("synchronous", "tracked", "alone"):
        assert len({json.dumps(run.recipe.document()) for run in runs if run.method.name == name}) == budget


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda raw: raw["tune"].update(grid={"sync": {"gamma": [0.1, 0.2]}}),
            "synchronous: 2 trials are 1 different runs",
        ),
        (lambda raw: raw["method"][1]["train"].update(inner_steps=3), "4 steps are no whole number of rounds of 3"),
        (lambda raw: raw["method"][1]["sync"].update(compressor="q9"), "tracked: .*q9"),
        (lambda raw: raw["method"][1].update(swarm={"degree": 7}), "tracked: degree must be between 1 and 2"),
        (lambda raw: raw["method"][1]["train"].update(lr=3), "tracked: .*lr"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(change, says, monkeypatch):
    monkeypatch.setattr(jobs, "measure", lambda recipe: pytest.fail("it ran"))
    with pytest.raises(UsageError, match=says):
        next(Quality(plan=plan_of(change)).run())


def test_the_plans_that_are_shipped_can_be_run():
    for plan in (quick_plan(), read_plan(ROOT / "configs" / "studies" / "quality.toml")):
        trials = tuning_runs(plan)
        assert len(trials) % (len(plan.method) * plan.tune.runs) == 0
        chosen = {(run.method.name, run.data.kind, run.size): run.trial for run in trials}
        assert {run.recipe.config.train.total_steps for run in report_runs(plan, chosen)} == {plan.report.steps}


# Runs


def test_what_is_reported_on_chooses_nothing(monkeypatch):
    """The best rate on the reported half is the other one; and nothing runs there before all are tuned."""
    seen: list[RunSpec] = []

    def losses(recipe: RunSpec) -> float:
        return 1.0 + 100 * (rate_of(recipe) if half_of(recipe) == 0 else -rate_of(recipe))

    monkeypatch.setattr(jobs, "measure", synthetic(losses, seen))
    _, found = carried_out(plan_of())
    assert [half_of(recipe) for recipe in seen] == [0] * 6 + [1] * 6
    assert {recipe.config.train.seed for recipe in seen[:6]} == {7}
    assert {rate_of(recipe) for recipe in seen[6:]} == {1e-3}
    assert [row["phase"] for row in found] == ["tune"] * 6 + ["report"] * 6
    with pytest.raises(AssertionError, match="chooses nothing"):
        best_trials(plan_of(), found)


def test_several_sets_to_tune_on_count_alike_whatever_their_losses_are_measured_in():
    def change(raw: dict[str, Any]) -> None:
        raw["data"].insert(
            1, {**raw["data"][0], "name": "unlike", "task": {**raw["data"][0]["task"], "partition": "label"}}
        )

    plan, small, large = plan_of(change), {"train.learning_rate": 1e-3}, {"train.learning_rate": 3e-3}
    common = {"phase": "tune", "task": HALF, "size": None}
    losses = {
        "tracked": [(1.0, 0.5), (100.0, 150.0)],
        "alone": [(1.0, None), (100.0, None)],
        "synchronous": [(None, 9.0), (1.0, 2.0)],
    }
    found = [
        {**common, "method": name, "trial": trial, "eval_loss": loss}
        for name, pairs in losses.items()
        for pair in pairs
        for trial, loss in zip((small, large), pair, strict=True)
    ]
    assert best_trials(plan, found) == {
        ("tracked", HALF, None): large,  # half the loss there, half as much again here
        ("alone", HALF, None): small,
        ("synchronous", HALF, None): large,
    }
    assert not best_trials(plan, [{**row, "eval_loss": None} for row in found])


def test_a_best_value_at_the_edge_of_its_grid_is_told():
    def change(raw: dict[str, Any]) -> None:
        raw["tune"] = {"runs": 3, "grid": {"train": {"learning_rate": [1.0, 2.0, 3.0]}}}

    told = {rate: at_the_edge(plan_of(change), "alone", {"train.learning_rate": rate}) for rate in (1.0, 2.0, 3.0)}
    assert told == {1.0: ["train.learning_rate"], 2.0: [], 3.0: ["train.learning_rate"]}


def test_two_studies_in_a_folder_are_one_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "measure", synthetic(lambda recipe: 1.0))
    (out := tmp_path / "study").mkdir()
    first = Quality(plan=plan_of(), out=out).run()
    next(first)
    with pytest.raises(RunError, match="in use"):
        next(Quality(plan=plan_of(), out=out).run())
    rest = sum(1 for _ in first)
    assert sum(1 for _ in Quality(plan=plan_of(), out=out).run()) == 1 + rest


def test_predictions_stand_in_the_file_before_any_run_and_stay(tmp_path, monkeypatch):
    out, file = tmp_path / "study", tmp_path / "study" / RUNS

    def losses(recipe: RunSpec) -> float:
        told = [json.loads(line).get("registered") for line in file.read_text().splitlines()]
        assert [each["name"] for each in told[:3]] == ["synchronous", "tracked", "alone"]
        assert (told[1]["predicted_behind"], told[2]["prediction"]) == (5, "worse than all")
        assert told[1]["grid"] == {"train.learning_rate": [1e-3, 3e-3]}
        return 1.0

    monkeypatch.setattr(jobs, "measure", synthetic(losses))
    carried_out(plan_of(), out)
    kept = file.read_text()
    for change, differs in [
        (lambda raw: raw["method"][1].update(predicted_behind=4), "another predicted_behind"),
        (lambda raw: raw["method"][1]["sync"].update(compressor="sign1"), "another sync"),
        (lambda raw: raw["tune"]["grid"]["train"].update(learning_rate=[1e-3, 5e-3]), "another grid"),
    ]:
        with pytest.raises(UsageError, match=differs):
            carried_out(plan_of(change), out)
    with pytest.raises(UsageError, match="runs of renamed, and no prediction that was made before them"):
        carried_out(plan_of(lambda raw: raw["method"][1].update(name="renamed")), out)
    assert file.read_text() == kept


def test_what_was_run_is_not_run_again_and_a_study_may_grow(tmp_path, monkeypatch):
    seen: list[RunSpec] = []
    monkeypatch.setattr(jobs, "measure", synthetic(rate_of, seen))
    _, first = carried_out(plan_of(), tmp_path / "study")
    assert len(seen) == 12
    _, again = carried_out(plan_of(), tmp_path / "study")
    assert (len(seen), again) == (12, first)

    def grow(raw: dict[str, Any]) -> None:
        raw["report"]["seeds"].append(2)
        sparse = {"sync": {"strategy": "sparse_loco"}, "train": {"inner_steps": 4}}
        raw["method"].append({"name": "sparse", "source": "2508.15706", "predicted_behind": 9, **sparse})

    _, more = carried_out(plan_of(grow), tmp_path / "study")
    assert len(more) == 8 + 12
    assert len(seen) == 12 + 2 + 3 + 3


def test_a_run_that_cannot_be_ends_the_study(monkeypatch):
    def refuse(recipe: RunSpec) -> Row:
        if recipe.kind == "alone":
            raise ValueError("no such data")
        return synthetic(rate_of)(recipe)

    monkeypatch.setattr(jobs, "measure", refuse)
    with pytest.raises(UsageError, match="no such data; mend the plan"):
        carried_out(plan_of())


# Numbers


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(freedom, known):
    assert intervals.quantile(freedom) == pytest.approx(known, abs=5e-4)


def test_an_interval_worked_out_by_hand():
    found = intervals.estimate([1.0, 2.0, 3.0])
    assert found is not None
    assert found.half is not None
    assert (found.mean, found.half) == (2.0, pytest.approx(4.303 / 3**0.5, abs=1e-3))
    assert intervals.estimate([2.0]) == intervals.Estimate(2.0, None)
    assert intervals.estimate([]) is None


@given(st.lists(st.floats(0.5, 9), min_size=2, max_size=6), st.floats(1.01, 1.5))
def test_what_seeds_do_to_both_is_no_part_of_the_difference(references, factor):
    found = intervals.behind([factor * each for each in references], references)
    assert found is not None
    assert found.mean == pytest.approx(100 * (factor - 1))
    assert found.half == pytest.approx(0, abs=1e-9)


def summary_of(monkeypatch, losses: Callable[[RunSpec], float | None]) -> tuple[dict[str, Any], Sequence[str]]:
    monkeypatch.setattr(jobs, "measure", synthetic(losses))
    quality, found = carried_out(plan_of())
    (summary,) = quality.summaries(found)
    return {str(line["method"]): line for line in summary.rows}, summary.notes


def test_the_table(monkeypatch):
    losses = {("synchronous", 0): 1.0, ("synchronous", 1): 2.0, ("swarm", 0): 1.1, ("swarm", 1): 2.4}
    found, notes = summary_of(monkeypatch, lambda each: losses.get((each.kind, each.config.train.seed), 3.0))
    assert list(found) == ["synchronous", "tracked", "alone"]
    tracked = found["tracked"]
    assert tracked["loss"] == pytest.approx(1.75)
    assert tracked["loss_half"] == pytest.approx(12.706 * 0.65, abs=1e-3)
    assert tracked["behind"] == pytest.approx(15)
    assert tracked["behind_half"] == pytest.approx(12.706 * 5, abs=1e-2)
    assert (tracked["predicted"], tracked["sent"], tracked["published"]) == (5, 2.0, 1.0)
    assert tracked["fewer"] == pytest.approx(2 * 2 / 3 * 32 / 2)
    assert (tracked["settings"], tracked["seeds"]) == ("learning_rate=0.001", "2")
    assert [found[name]["front"] for name in found] == ["*", "*", "*"]
    assert (found["alone"]["fewer"], found["alone"]["predicted"], found["synchronous"]["behind"]) == (None, None, 0)
    assert any("tuned by 2 runs on first half, seed 7" in note for note in notes)


def test_who_sends_more_and_loses_more_is_not_on_the_front(monkeypatch):
    found, _ = summary_of(monkeypatch, lambda each: {"synchronous": 1.0, "alone": 1.5}.get(each.kind, 1.6))
    assert {name for name, line in found.items() if line["front"]} == {"synchronous", "alone"}


@pytest.mark.thorough
def test_a_seed_that_diverged_leaves_no_mean(monkeypatch):
    def losses(each: RunSpec) -> float | None:
        return None if each.kind == "swarm" and each.config.train.seed == 1 else 1.0

    found, notes = summary_of(monkeypatch, losses)
    assert (found["tracked"]["loss"], found["tracked"]["behind"], found["tracked"]["front"]) == (None, None, None)
    assert any("tracked diverged: 1/2 seeds did not" in note for note in notes)
    found, notes = summary_of(monkeypatch, lambda each: None if each.kind == "swarm" else 1.0)
    assert "tracked" not in found
    assert any("left out: tracked" in note for note in notes)


# The command


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(tomli_w.dumps(PLAN))
    return path


@pytest.mark.slow
def test_a_study_leaves_its_runs_its_rows_and_a_picture(capsys, tmp_path, plan_file):
    parquet_of = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "study", tmp_path / "study.png"
    words = ("quality", "--plan", str(plan_file), "--out", str(out), "--plot", str(picture))
    code, told, _ = run(capsys, *words)
    assert code == 0
    for word in ("Loss against bits sent, second half", "tracked", "learning_rate", "behind", "fewer", "front"):
        assert word in told
    assert picture.stat().st_size > 10_000
    code, again, err = run(capsys, *words, "--json")
    found = rows(again)
    assert (code, len(found)) == (0, 12)
    assert "6 runs were there already" in err
    table = parquet_of.read_table(out / "rows.parquet").to_pylist()
    keys = ("phase", "data", "method", "seed", "eval_loss", "sent_bits")
    assert [[row[key] for key in keys] for row in table] == [[row[key] for key in keys] for row in found]
    assert json.loads(table[0]["recipe"]) == found[0]["recipe"]
    assert found[-1]["eval_loss"] < found[-1]["eval_loss_first"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give --plan FILE.toml, or --quick"),
        (("--plan", "plan.toml", "--quick"), "give --plan FILE.toml, or --quick"),
        (("--plan", "none.toml"), "cannot read none.toml"),
        (("--plan", "odd.toml"), "is not valid TOML"),
        (("--plan", "binary.toml"), "is no text"),
        (("--plan", "plan.toml", "--out", "no/folder"), "cannot be a folder"),
        (("--plan", "plan.toml", "--out", "odd.toml"), "cannot be a folder"),
        (("--plan", "plan.toml", "--plot", "x.jpg"), "let it end in .png"),
    ],
)
def test_a_mistake_of_a_study_is_one_line(capsys, tmp_path, monkeypatch, plan_file, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.toml").write_text("[[data]")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    code, out, err = run(capsys, "quality", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_data_to_report_on_are_missed_before_anything_is_tuned(tmp_path, monkeypatch):
    raw = copy.deepcopy(PLAN)
    raw["data"].append({"name": "texts", "role": "report", "task": {"name": "byte-lm", "data": "nowhere"}})
    raw["data"].append({"name": "library", "role": "tune", "task": {"name": "byte-lm"}})
    plan = QualityPlan.model_validate(raw)
    with pytest.raises(UsageError, match=r"data set texts: .*nowhere"):
        carried_out(plan, tmp_path / "study")
    assert not (tmp_path / "study" / "runs.jsonl").exists()


def test_without_pyarrow_it_says_so_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(parquet.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs pyarrow, which is not installed; run: pip install"):
        parquet.check(tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_the_halves_of_the_digits_share_no_picture():
    from p2ptrain import tasks

    halves = [tasks.get(HALF, half=half) for half in (0, 1)]
    held = [{bytes(row.numpy()) for row in half.held_out.images} for half in halves]
    trained = [{bytes(row.numpy()) for row in half.train.images} for half in halves]
    assert not (held[0] | trained[0]) & (held[1] | trained[1])
    with pytest.raises(tasks.TaskError, match="half must be 0 or 1"):
        tasks.get(HALF, half=2)
