"""From lists of choices to runs, and runs that are never made twice."""

import gc
import json

import pytest
import torch
from bench_words import TINY, rows, run

from node.bench.swarm import jobs, study
from node.bench.swarm.presets import asked
from node.bench.swarm.results import Results
from node.bench.swarm.run_spec import RunSpec
from node.cli import main
from node.system.errors import UsageError
from p2ptrain.sync import SYNC_STRATEGIES

DIGITS = {"task": "digits", "rounds": 2, "inner_steps": 2, "strategy": "tracked_gossip"}
WORDS = ("strategies", *TINY, "--strategy", "tracked_gossip", "--json")


def recipes(benchmark: str = "strategies", **given: object) -> list[RunSpec]:
    return asked(benchmark, {**DIGITS, **given}, quick=False).recipes({})


def test_lists_multiply_with_seeds_outermost():
    found = recipes(compressor="q2,none", seeds="0-1", vary=["train.learning_rate=1e-3,3e-3"])
    told = [(each.config.train.seed, each.config.train.learning_rate, each.config.sync.compressor) for each in found]
    assert told == [(seed, rate, codec) for seed in (0, 1) for rate in (1e-3, 3e-3) for codec in ("q2", "none")]


def test_all_is_every_member_once():
    found = asked("strategies", {"task": "digits", "strategy": "all"}, quick=True).recipes({})
    assert [each.config.sync.strategy for each in found] == SYNC_STRATEGIES.names()
    own = recipes(strategy="own", compressor="own,q2,q2")
    assert len(own) == 2
    assert len(study.distinct(own)) == 1  # the default, named


def test_several_inner_steps_at_equal_tokens():
    found = recipes(steps=120, vary=["train.inner_steps=5,20,40"])
    assert [each.config.train.rounds for each in found] == [24, 6, 3]
    baselines = [each for each in study.with_baselines(found) if each.kind != "swarm"]
    assert [each.kind for each in baselines] == ["alone", "synchronous"]  # the same for every H
    assert {each.config.train.total_steps for each in baselines} == {120}


def test_step_schedules_have_one_baseline_and_short_rounds_for_late_steps():
    vary = ["train.inner_steps_schedule=constant,qsr,post_local"]
    found = recipes(vary=vary, rounds=6, inner_steps=4)
    assert {(each.config.train.rounds, each.config.train.total_steps) for each in found} == {(6, 24)}
    assert len([each for each in study.with_baselines(found) if each.kind != "swarm"]) == 2
    optional = recipes(set_=["train.inner_steps_schedule=qsr", "train.least_inner_steps=2"], rounds=6, inner_steps=4)
    of_both = [
        [each.document() for each in study.with_baselines(runs) if each.kind != "swarm"] for runs in (optional, found)
    ]
    assert of_both[0] == of_both[1]
    refused: dict[str, str] = {}
    given = {**DIGITS, "vary": vary, "rounds": 6, "inner_steps": 4, "late_steps": 2}
    left = [each.config.train.inner_steps_schedule for each in asked("strategies", given, quick=False).recipes(refused)]
    assert left == ["constant", "qsr"]  # which is the same where the warm-up is as long as the run
    assert [*refused.values()] == ["late-steps must be between 0 and 1, the steps of the shortest round"]


@pytest.mark.slow
def test_aggregators_are_built_for_as_many_liars_as_there_are():
    found = recipes("robust", aggregator="trimmed_mean", attack="none,alie", byzantine="1,2", partition="iid")
    told = [(each.config.attack.name, each.shape.byzantine, each.config.sync.f) for each in found]
    assert told == [("none", 0, 1), ("alie", 1, 1), ("none", 0, 2), ("alie", 2, 2)]
    assert {each.config.sync.f for each in recipes("robust", set_=["sync.f=3"], byzantine="1")} == {3}


def test_what_was_given_wins_over_settings_over_files_over_presets(tmp_path):
    file = tmp_path / "swarm.toml"
    file.write_text('[train]\nrounds = 7\ninner_steps = 3\nbatch_size = 4\n[task]\nname = "digits"\n')
    given = {"config": [file], "set_": ["train.inner_steps=9"], "strategy": "tracked_gossip"}
    (found,) = asked("strategies", {**given, "rounds": 5}, quick=True).recipes({})
    assert (found.config.train.rounds, found.config.train.inner_steps, found.config.train.batch_size) == (5, 9, 4)
    assert found.config.train.threads == 1


def test_options_go_with_their_name(tmp_path):
    file = tmp_path / "swarm.toml"
    file.write_text('[task]\nname = "digits"\npartition = "label"\n[attack]\nname = "sign_flip"\nscale = 2.0\n')
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 400)
    given = {"config": [file], "attack": "sign_flip,alie", "byzantine": "1", "strategy": "tracked_gossip"}
    found = asked("strategies", {**given, "task": "byte-lm", "data": str(text)}, quick=False).recipes({})
    assert [each.config.attack.options for each in found] == [{"scale": 2.0}, {}]
    assert {each.config.task.options.get("partition") for each in found} == {None}


def test_a_mean_over_seeds_wants_all_of_them():
    rows = [{"loss": 1.0}, {"loss": 2.0}, {"loss": None}]
    assert (study.mean(rows[:2], "loss"), study.mean(rows, "loss"), study.mean([], "loss")) == (1.5, None, None)
    assert study.spread(rows[:2], "loss") == pytest.approx(0.5**0.5)
    assert (study.spread(rows[:1], "loss"), study.spread(rows, "loss")) == (None, None)


def test_a_presets_partition_goes_with_its_task(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 400)
    given = {"task": "byte-lm", "data": str(text), "aggregator": "mean", "attack": "none"}
    found = asked("robust", given, quick=False).recipes({})
    assert {each.config.task.options.get("partition") for each in found} == {None}


def test_combinations_that_cannot_be_are_told_and_left_out():
    refused: dict[str, str] = {}
    given = {**DIGITS, "strategy": "noloco,tracked_gossip", "set_": ["sync.f=1"]}
    found = asked("strategies", given, quick=False).recipes(refused)
    assert {each.config.sync.strategy for each in found} == {"tracked_gossip"}
    assert [why for what, why in refused.items() if what.startswith("noloco")]
    with pytest.raises(UsageError, match="noloco"):
        asked("strategies", {**given, "strategy": "noloco"}, quick=False).recipes({})


def test_a_document_tells_what_decides_and_nothing_else():
    (one,) = recipes()
    (other,) = recipes(set_=["train.threads=2", "train.eval_every=1"])
    assert one.document() == other.document() == json.loads(json.dumps(one.document()))
    (rate,) = recipes(set_=["train.learning_rate=1e-3"])
    (nodes,) = recipes(nodes=5)
    assert one.document() != rate.document() != nodes.document() != one.document()
    assert len(study.distinct([one, other, rate, nodes])) == 3
    # The baselines know no learning rule.
    (gamma,) = recipes(set_=["sync.gamma=0.5"])
    assert len(study.distinct(study.with_baselines([one, gamma]))) == 4


def test_a_row_of_before_a_setting_was_there_is_of_its_default(tmp_path):
    (recipe,) = recipes()
    path = tmp_path / "results.jsonl"
    old = recipe.document()
    del old["sync"]["staleness_exponent"], old["train"]["clip_norm"]
    path.write_text(json.dumps({"benchmark": "strategies", "recipe": old}) + "\n")
    assert Results(path, "strategies").find(recipe.document()) is not None
    (changed,) = recipes(set_=["train.clip_norm=2.0"])
    assert Results(path, "strategies").find(changed.document()) is None
    assert Results(path, "robust").find(recipe.document()) is None


def test_a_line_cut_short_spoils_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    first, second = recipes(seeds="0,1")
    Results(path, "strategies").add({"recipe": first.document(), "loss": 1.5})
    with path.open("a") as file:
        file.write('{"benchmark": "strategies", "rec')
    Results(path, "strategies").add({"recipe": second.document(), "loss": 2.5})
    found = Results(path, "strategies")
    assert [found.find(each.document())["loss"] for each in (first, second)] == [1.5, 2.5]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("content", [b"name,loss\nq2,1.5\n", b"\xff\xfe\x00binary"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no file of results"):
        Results(path, "strategies")
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_finished_run_is_not_made_again(capsys, tmp_path, monkeypatch):
    out = ("--out", str(tmp_path / "results.jsonl"))
    _, first, _ = run(capsys, *WORDS, *out)
    monkeypatch.setattr(jobs, "measure", lambda recipe: pytest.fail(f"{recipe} was there already"))
    code, again, err = run(capsys, *WORDS, *out)
    assert code == 0
    assert rows(again) == rows(first)
    assert "3 runs were there already" in err
    monkeypatch.undo()
    code, more, _ = run(capsys, *WORDS, *out, "--compressor", "own,none", "--seeds", "0,1")
    assert code == 0
    assert len(rows(more)) == 8
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8


def test_after_an_interruption_it_goes_on(capsys, tmp_path, monkeypatch):
    path, measure = tmp_path / "results.jsonl", jobs.measure

    def interrupted(recipe: RunSpec) -> dict:
        if recipe.kind == "swarm":
            raise KeyboardInterrupt
        return measure(recipe)

    monkeypatch.setattr(jobs, "measure", interrupted)
    code, _, err = run(capsys, *WORDS, "--out", str(path))
    assert code == 130
    assert err.splitlines()[-1].startswith("Interrupted. The same command goes on")
    kept = path.read_text()
    assert [json.loads(line)["strategy"] for line in kept.splitlines()] == ["alone", "synchronous"]
    monkeypatch.setattr(jobs, "measure", lambda recipe: measure(recipe) if recipe.kind == "swarm" else None)
    code, out, _ = run(capsys, *WORDS, "--out", str(path))
    assert code == 0
    assert path.read_text().startswith(kept)
    assert len(rows(out)) == 3


@pytest.mark.thorough
def test_processes_find_what_one_finds(capsys):
    def told(out: str) -> list[str]:
        return sorted(json.dumps({key: row[key] for key in row if key not in ("wall_s", "cpu_s")}) for row in rows(out))

    _, alone, _ = run(capsys, *WORDS)
    code, together, _ = run(capsys, *WORDS, "--jobs", "2")
    assert code == 0
    assert told(together) == told(alone)


@pytest.mark.thorough
def test_a_process_that_dies_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "deadly_task.py").write_text("import os\n\ndef create():\n    os._exit(9)\n")
    monkeypatch.chdir(tmp_path)
    words = ["bench", "strategies", "--task", "deadly_task:create", "--strategy", "tracked_gossip", "--jobs", "2"]
    code = main(words)
    captured = capsys.readouterr()
    assert code == 1
    assert "a process of the benchmark died" in captured.err
    assert captured.err.count("\n") == 1


def test_who_meets_knows_everybody_and_hears_one_and_the_same():
    refused: dict[str, str] = {}
    given = {**DIGITS, "nodes": 6, "degree": 2, "strategy": "moshpit,tracked_gossip"}
    found = {each.config.sync.strategy: each for each in asked("strategies", given, quick=False).recipes(refused)}
    assert found["moshpit"].shape.degree == 5
    assert found["tracked_gossip"].shape.degree == 2
    assert not refused
    for more in ({"graph": "dumbbell", "degree": None}, {"attack": "dissensus", "byzantine": "1"}):
        with pytest.raises(UsageError, match=r"all know each other|sends all the same"):
            asked("strategies", {**given, **more, "strategy": "moshpit"}, quick=False).recipes({})


@pytest.mark.slow
def test_no_run_leaves_its_models_behind() -> None:
    """Its nodes refer to each other: they would wait for a collection, which comes by count and not by size."""
    twice = recipes(strategy="tracked_gossip", compressor="q2", seeds="0-1", nodes=3, degree=2)
    was_frozen = gc.get_freeze_count() > 0
    gc.disable()
    try:
        list(jobs.run_all(twice[:1], 1))  # what is loaded once
        before = tensors()
        list(jobs.run_all(twice, 1))
        assert tensors() <= before
        assert (gc.get_freeze_count() > 0) == was_frozen, "what was there is for the collector again, or still is not"
    finally:
        gc.enable()


def tensors() -> int:
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
