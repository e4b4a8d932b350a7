"""The end report and the commands on checkpoints, over checkpoints of a real (if short) training."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typed_events import said

from node.cli import main
from node.config.schema import load
from node.events.log import EventLog
from node.events.summary import NodeSummary, write_atomic
from node.system.run_dir import CHECKPOINTS, CONFIG, EVENTS, SUMMARY
from node.training.checkpoint import Checkpoint, CheckpointStore
from node.up.end_report import make_report, next_lines, render
from node.up.plan import Plan, make_plan
from node.up.supervisor import Outcome, Supervisor
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import Trainer

STEPS = 30


def train(plan: Plan, index: int) -> None:
    """What a node that finished leaves, less the network."""
    node = plan.nodes[index]
    task = tasks.get(node.config.task.name, **node.config.task.options)
    trainer = Trainer(task, node.config.train, Shard(index=index, count=len(plan.nodes)))
    folder = plan.run_dir / node.name
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(node.config.to_toml())
    first = trainer.evaluate()
    for _ in range(STEPS):
        trainer.step()
    meta = {"config": node.config.model_dump(mode="json")}
    store = CheckpointStore(folder / CHECKPOINTS)
    store.save(Checkpoint(round=3, meta=meta, tensors={"trainer.parameters": trainer.vector()}))
    with EventLog(folder / EVENTS) as emit:
        emit(said("interrupted"))
    write_atomic(node_summary(first, trainer.evaluate()), folder / SUMMARY)


def node_summary(first: float, last: float) -> NodeSummary:
    return NodeSummary(
        peer_id="12D3", rounds=3, steps=STEPS, tokens=480, wall_s=2.0, compute_s=1.9, utilization=0.95,
        train_loss_first=first, train_loss_last=last, eval_loss_first=first, eval_loss_last=last,
        consensus_distance=0.1, payload_bytes_sent=1000, payload_bytes_received=3000, dense_bytes_equivalent=16_000,
        compression_ratio=16.0, updates_accepted=9, updates_rejected={"nonfinite": 2}, neighbours=3,
        aggregator="trimmed_mean", compressor="q2", bytes_sent=1250, bytes_received=3300, parameters=2410,
        sent_bits=0.5, published_bits=0.125,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Plan, Outcome]:
    sets = ["task.name=digits", "train.rounds=3", "train.inner_steps=10", "train.warmup_steps=2", "train.threads=1"]
    run_dir = tmp_path_factory.mktemp("run")
    plan = make_plan(load([], [*sets, "train.device=cpu"]), run_dir=run_dir, nodes=3, byzantine=1, cores=2)
    nodes = Supervisor(plan, lambda name, event: None).nodes
    for index, node in enumerate(nodes):
        train(plan, index)
        node.code = 0
    return plan, Outcome(nodes=nodes, seconds=12.5)


def test_the_report_measures_the_mean_of_the_honest_models(trained):
    plan, outcome = trained
    report = make_report(plan, outcome)
    totals = report.summary.swarm
    assert json.loads((plan.run_dir / SUMMARY).read_text())["swarm"]["wall_s"] == 12.5
    assert (totals.honest, totals.byzantine, len(report.summary.nodes)) == (2, 1, 3)
    assert totals.eval_loss_last < totals.eval_loss_first
    assert totals.eval_loss_mean_model < totals.eval_loss_first
    assert totals.consensus_distance > 0
    assert (totals.bytes_sent, totals.sent_bits, totals.published_bits) == (1250, 0.5, 0.125)
    assert totals.all_reduce_bits == pytest.approx(2 * 2 / 3 * 32), "as many nodes, each 2 (n-1)/n of the vector"
    assert report.before is None


def test_the_report_says_what_matters(trained):
    plan, outcome = trained
    console = Console(file=io.StringIO(), width=100)
    console.print(render(make_report(plan, outcome), plan, outcome))
    shown = console.file.getvalue()
    assert "3 nodes, 1 of them lying, trained 3 rounds in 12 s" in shown
    words = " ".join(shown.split())
    assert "1.2 kB by each node: 0.5 bits per parameter and inner step, copies and overhead included" in words
    assert "85.3 times less than synchronous data parallel sends: 42.7, an fp32 ring all-reduce at every step" in words
    assert "published 0.125 bits: one copy of each update, 16.0 times smaller than in fp32" in words
    assert "95% of the time computing" in shown
    assert "6 nonfinite" in shown
    assert str(plan.run_dir) in shown.replace("\n", "").replace(" ", "")
    assert any("p2ptrain node" in line.plain for line in next_lines(plan))


def test_what_sends_more_than_an_all_reduce_is_not_called_less(trained):
    """A model of few parameters, or rounds of one step: headers and snapshots are more than the vector."""
    report = make_report(*trained)
    totals = report.summary.swarm
    assert totals.all_reduce_bits is not None
    much = replace(totals, sent_bits=2 * totals.all_reduce_bits)
    console = Console(file=io.StringIO(), width=100)
    console.print(render(replace(report, summary=replace(report.summary, swarm=much)), *trained))
    words = " ".join(console.file.getvalue().split())
    assert "2.0 times as much as synchronous data parallel sends: 42.7" in words
    assert "less than synchronous" not in words


def test_of_members_that_share_logits_one_node_s_model_is_exported(tmp_path):
    sets = ["task.name=digits", "task.public=20", "train.shares=logits"]
    plan = make_plan(load([], sets), run_dir=tmp_path / "run", nodes=3, byzantine=0, cores=2)
    (home,) = [line.plain for line in next_lines(plan) if " export " in line.plain]
    assert f" export {plan.run_dir / plan.nodes[0].name} " in home, "the run has no mean that could be"


@pytest.mark.parametrize(("options", "whose"), [((), "for from_pretrained"), (("task.lora=4",), "adapters for peft")])
def test_a_model_of_transformers_goes_home_as_their_folder(options, whose, tmp_path):
    """As safetensors it has the run's names and no configuration, and transformers cannot open it."""
    config = load([], ["task.name=hf-lm", *options])
    plan = make_plan(config, run_dir=tmp_path / "run", nodes=2, byzantine=0, cores=2)
    lines = [line.plain for line in next_lines(plan)]
    (at,) = [at for at, line in enumerate(lines) if " export " in line]
    assert lines[at].endswith(f"export {plan.run_dir} --to hf --out model")
    assert whose in lines[at - 1]


def test_a_lost_node_is_named_and_left_out(trained):
    plan, outcome = trained
    nodes = [*outcome.nodes]
    lost = Outcome(nodes=nodes, seconds=1.0)
    nodes[0].code = -9
    try:
        report = make_report(plan, lost)
        console = Console(file=io.StringIO(), width=100)
        console.print(render(report, plan, lost))
    finally:
        nodes[0].code = 0
    assert len(report.summary.nodes) == 2
    assert report.summary.swarm.consensus_distance == 0
    said = " ".join(console.file.getvalue().split())
    assert "failed node-0 at round" in said
    assert "killed by SIGKILL; see" in said


def test_evaluate_takes_a_run_or_a_node(trained, capsys):
    plan, outcome = trained
    whole = make_report(plan, outcome).summary.swarm.eval_loss_mean_model
    assert main(["evaluate", str(plan.run_dir), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"eval_loss": pytest.approx(whole), "metric": "nats per digit", "models": 2, "round": 3}
    assert main(["evaluate", str(plan.run_dir / "node-0")]) == 0
    assert "nats per digit (model, round 3)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_export_is_the_model_of_the_summary(trained, tmp_path, capsys):
    plan, outcome = trained
    told = make_report(plan, outcome).summary.swarm.eval_loss_mean_model
    out = tmp_path / "model.safetensors"
    (home,) = [line.plain for line in next_lines(plan) if "export" in line.plain]
    assert home.endswith(f"export {plan.run_dir} --out model.safetensors")
    assert main(["export", str(plan.run_dir), "--out", str(out)]) == 0
    config = plan.nodes[0].config
    model = tasks.get("digits").build_model()
    model.load_state_dict(load_file(out), strict=True)
    trainer = Trainer(tasks.get("digits"), config.train, Shard())
    assert trainer.evaluate(torch.nn.utils.parameters_to_vector(model.parameters()).detach()) == told


def test_generate_says_when_there_is_no_text(trained, capsys):
    assert main(["generate", str(trained[0].run_dir)]) == 2
    assert "no text to generate" in capsys.readouterr().err


def test_garbage_for_a_checkpoint_is_one_line(trained, tmp_path, capsys):
    plan, _ = trained
    folder = tmp_path / "node-0"
    shutil.copytree(plan.run_dir / "node-0", folder)
    for file in folder.glob(f"{CHECKPOINTS}/*/*.safetensors"):
        file.write_bytes(b"garbage")
    assert main(["evaluate", str(folder)]) == 1
    err = capsys.readouterr().err
    assert "no whole checkpoint" in err
    assert err.count("\n") == 1


def test_text_is_made_from_a_checkpoint(tmp_path, capsys):
    corpus = tmp_path / "text.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    sets = ["task.size=nano", "task.context=32", f"task.data={corpus}", "train.device=cpu", "train.threads=1"]
    config = load([], sets)
    task = tasks.get(config.task.name, **config.task.options)
    trainer = Trainer(task, config.train, Shard())
    folder = Path(tmp_path / "node")
    meta = {"config": config.model_dump(mode="json")}
    CheckpointStore(folder / CHECKPOINTS).save(
        Checkpoint(round=1, meta=meta, tensors={"trainer.parameters": trainer.vector()})
    )
    (folder / EVENTS).write_text("")
    arguments = ["generate", str(folder), "--prompt", "the q", "--length", "12", "--json"]
    texts = []
    for _ in range(2):
        assert main(arguments) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    assert texts[0].startswith("the q")


def test_the_tasks_own_metrics_stand_in_the_report(trained, monkeypatch):
    plan, outcome = trained

    def metrics(self, model, batch):
        return {"right[top]": 100 * float((model(batch[0]).argmax(1) == batch[1]).float().mean())}

    monkeypatch.setattr(Digits, "metrics", metrics, raising=False)
    monkeypatch.setattr(Digits, "units", {"right[top]": "%"}, raising=False)
    report = make_report(plan, outcome)
    console = Console(file=io.StringIO(), width=100)
    console.print(render(report, plan, outcome))
    (line,) = [line.split() for line in console.file.getvalue().splitlines() if line.split()[:1] == ["right[top]"]]
    assert (line[2], line[4]) == ("->", "%")
    assert float(line[3]) > float(line[1])
    assert json.loads((plan.run_dir / SUMMARY).read_text())["swarm"]["own"] == report.summary.swarm.own
