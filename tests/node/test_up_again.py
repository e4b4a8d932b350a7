"""A swarm's run folder is enough to make the same swarm again, and so is the command that an interrupted one prints."""

import json
import shlex
from pathlib import Path

import pytest
from run_folders import node_folder, tree

from node.cli import main
from node.cli.up_cmd import _again, _opening, _say
from node.config.schema import from_raw, load
from node.config.toml_source import Raw
from node.events.lines import LastingConsole
from node.system.errors import UsageError
from node.up.plan import Plan, make_plan
from node.up.resume import check_fits, start_in, swarm_in

QUICK = ["task.name=digits", "train.rounds=150"]


def planned(tmp_path: Path, sets: list[str], byzantine: int, nodes: int = 4) -> Plan:
    return make_plan(load([], sets), run_dir=tmp_path / "my runs; $(x)", nodes=nodes, byzantine=byzantine, cores=4)


def left_behind(plan: Plan, *, checkpoint: bool = True, file: bool = True) -> Plan:
    for node in plan.nodes:
        node_folder(plan.run_dir / node.name, node.config, checkpoint=checkpoint, file=file)
    return plan


def again(run_dir: Path, given: Raw | None = None, nodes: int | None = None, byzantine: int | None = None) -> Plan:
    start = start_in(run_dir, given or {}, nodes=nodes, byzantine=byzantine)
    return make_plan(from_raw(start.raw), run_dir=run_dir, nodes=start.nodes, byzantine=start.byzantine, cores=4)


SWARMS = [
    (["train.rounds=3"], 0),
    (["train.seed=7"], 1),
    (["attack.name=alie", "attack.z=1.5"], 2),
    (["attack.name=sign_flip", "attack.scale=-3.0", "sync.f=1"], 1),
]


@pytest.mark.parametrize(("sets", "byzantine"), SWARMS)
@pytest.mark.parametrize(("checkpoint", "file"), [(True, True), (True, False), (False, True)])
def test_the_line_after_an_interruption_makes_the_same_swarm(tmp_path, sets, byzantine, checkpoint, file):
    plan = left_behind(planned(tmp_path, ["task.name=digits", *sets], byzantine), checkpoint=checkpoint, file=file)
    words = shlex.split(_again(plan))
    assert words == ["p2ptrain", "up", "--run-dir", str(plan.run_dir)]
    before = tree(tmp_path)
    assert again(Path(words[-1])) == plan
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["runs[a]", "runs[/a]", "runs [bold]", "runs"])
def test_the_line_is_printed_whole_whatever_the_folder_is_called(tmp_path, capsys, name):
    plan = make_plan(load([], QUICK), run_dir=tmp_path / name, nodes=2, byzantine=0, cores=4)
    console = LastingConsole()
    _say(console, _opening(plan))
    _say(console, _again(plan))
    opening, again = capsys.readouterr().out.splitlines()
    assert opening.endswith(f"Files in {plan.run_dir}")
    assert shlex.split(again)[-1] == str(plan.run_dir)


def test_more_rounds_are_a_flag(tmp_path):
    plan = left_behind(planned(tmp_path, QUICK, 1))
    longer = again(plan.run_dir, {"train": {"rounds": 200}})
    assert {node.config.train.rounds for node in longer.nodes} == {200}
    assert (len(longer.nodes), longer.byzantine) == (4, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 6}, "--nodes 6 cannot change in the run in .*: there it is 4"),
        ({"byzantine": 0}, "--byzantine 0 cannot change .* there it is 1"),
        ({"given": {"attack": {"name": "alie"}}}, "attack.name=alie cannot change .* there it is sign_flip"),
        ({"given": {"sync": {"f": 2}}}, "sync.f=2 cannot change .* there it is 1"),
    ],
)
def test_the_arrangement_is_decided_once_there_is_a_checkpoint(tmp_path, change, said):
    plan = left_behind(planned(tmp_path, QUICK, 1))
    with pytest.raises(UsageError, match=said):
        again(plan.run_dir, **change)
    assert again(plan.run_dir, nodes=4, byzantine=1) == plan, "what is said again is no change"
    young = left_behind(planned(tmp_path / "young", QUICK, 1), checkpoint=False)
    again(young.run_dir, **change)


def test_liars_that_are_taken_back_leave_no_attack_behind(tmp_path):
    plan = left_behind(planned(tmp_path, QUICK, 1), checkpoint=False)
    assert {node.config.attack.name for node in again(plan.run_dir, byzantine=0).nodes} == {"none"}


def test_a_folder_that_lost_nodes_is_still_of_as_many(tmp_path):
    plan = planned(tmp_path, QUICK, 2)
    for index in (1, 3):
        node_folder(plan.run_dir / f"node-{index}", plan.nodes[index].config)
    start = swarm_in(plan.run_dir)
    assert (start.nodes, start.byzantine) == (4, 1), "as far as the folder tells"


def test_a_folder_that_an_older_release_spoiled_is_mended(tmp_path):
    """`up --run-dir run` on two nodes of digits made four of byte-lm, of which two found a checkpoint of digits."""
    plan = left_behind(planned(tmp_path, [*QUICK, "train.seed=3"], 0, nodes=2), file=False)
    for node in planned(tmp_path, [], 0).nodes:
        folder = plan.run_dir / node.name
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(node.config.to_toml())
    start = swarm_in(plan.run_dir)
    assert again(plan.run_dir) == plan
    assert "task.name is byte-lm there, and digits in the checkpoint" in start.notes[0]


def test_a_single_nodes_run_is_none_of_a_swarm(tmp_path):
    node_folder(tmp_path / "run" / "node", load([], QUICK))
    with pytest.raises(UsageError, match="has the run of the node node"):
        start_in(tmp_path / "run", {}, nodes=None, byzantine=None)


def test_a_checkpoint_of_another_run_among_them_is_found_before_anything_is_written(tmp_path):
    plan = left_behind(planned(tmp_path, QUICK, 0, nodes=2))
    other = planned(tmp_path, [*QUICK, "train.seed=9"], 0, nodes=2)
    with pytest.raises(UsageError, match=r"train.seed=9 cannot change in the run in .*node-0: there it is 0"):
        check_fits(other)
    check_fits(plan)


def one_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "byte-lm"], "task.name=byte-lm cannot change"),
        (["--seed", "4"], "train.seed=4 cannot change"),
        (["--set", "sync.strategy=moshpit"], "sync.strategy=moshpit cannot change"),
        (["--set", "train.lr=1"], "unknown key train.lr, did you mean train.learning_rate?"),
    ],
)
def test_every_verb_refuses_alike_and_leaves_the_folder_as_it_was(tmp_path, capsys, words, said):
    node_folder(tmp_path / "one" / "node", load([], QUICK))
    plan = left_behind(planned(tmp_path, QUICK, 0, nodes=2))
    before = tree(tmp_path)
    for verb, run in (("node", tmp_path / "one"), ("up", plan.run_dir)):
        assert said in one_line(capsys, verb, "--run-dir", run, *words)
    if "--seed" not in words:
        assert said in one_line(capsys, "doctor", "--run-dir", tmp_path / "one", *words)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("gone", ["file", "key"])
def test_evaluate_needs_no_file_and_takes_an_older_ones(tmp_path, capsys, gone):
    plan = left_behind(planned(tmp_path, QUICK, 1, nodes=3), file=gone != "file")
    for node in plan.nodes if gone == "key" else ():
        file = plan.run_dir / node.name / "config.toml"
        file.write_text(file.read_text().replace("[train]\n", "[train]\nold_key = 3\n"))
    assert main(["evaluate", str(plan.run_dir), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["models"], told["round"]) == (2, 6), "the liar's is left out"
