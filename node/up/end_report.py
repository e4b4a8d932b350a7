"""The end of `p2ptrain up`: the averaged model is evaluated, the summary written, and what came of it said plainly."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.config.schema import TaskSection
from node.events.sent_bits import ring_all_reduce_bits
from node.events.summary import (
    NodeSummary,
    SwarmSummary,
    SwarmTotals,
    last_evaluation,
    mean,
    read_node_summary,
    write_atomic,
)
from node.system import text
from node.system.errors import describe_code
from node.system.next_command import OF_TRANSFORMERS, export_options
from node.system.run_dir import STDERR, SUMMARY
from node.training.evaluation import LoadedModel, adapter_gap, consensus_distance, load_run, mean_model
from node.training.in_time import LENGTHENED, LOW
from node.up.plan import Plan
from node.up.supervisor import NodeProcess, Outcome
from p2ptrain.tasks import Generative
from p2ptrain.tasks.hf import ProductGap
from p2ptrain.tasks.metrics import metric_units
from p2ptrain.training.logits_trainer import is_of_logits

SAMPLE_BYTES = 200
SAMPLE_TEMPERATURE = 0.8
"""Length and temperature of the sample: long enough to see words; neither repetitive nor random."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of the swarm."""

    summary: SwarmSummary
    metric: str
    """What losses are measured in."""
    units: dict[str, str]
    """Of the task's own metrics."""
    own_before: dict[str, float]
    """These, of the initial model."""
    gap: ProductGap | None
    """Of LoRA adapters; None where there are none, or one node only."""
    before: str | None
    """Text from the initial model; None when the task has none to give."""
    after: str | None
    """Text from the averaged model, from the same random choices."""


def make_report(plan: Plan, outcome: Outcome) -> Report:
    """Evaluate the mean of the honest finished nodes' models (there is one at least) and write the summary."""
    honest = [node for node in outcome.finished if not node.plan.byzantine]
    assert honest, "the caller has checked that an honest node finished"
    models = [load_run(node.folder, device=plan.nodes[0].config.train.device) for node in honest]
    shares_logits = is_of_logits(models[0].trainer.config)  # then each has a model of its own, and there is no mean
    shown_d = models[0].vector_d if shares_logits else mean_model(models)
    summaries = _summaries(honest)
    measures = models[0].measure(shown_d)
    totals = SwarmTotals(
        eval_loss_first=mean([each.eval_loss_first for each in summaries]),
        eval_loss_last=last_evaluation(summaries),
        eval_loss_mean_model=None if shares_logits else measures.loss,
        consensus_distance=None if shares_logits else consensus_distance(models),
        honest=len(plan.nodes) - plan.byzantine,
        byzantine=plan.byzantine,
        wall_s=round(outcome.seconds, 3),
        updates_in_time=mean([each.updates_in_time for each in summaries]),
        own={} if shares_logits else dict(measures.own),
        bytes_sent=mean([each.bytes_sent for each in summaries]),
        sent_bits=mean([each.sent_bits for each in summaries]),
        published_bits=mean([each.published_bits for each in summaries]),
        all_reduce_bits=None if shares_logits else ring_all_reduce_bits(len(plan.nodes)),
    )
    summary = SwarmSummary(nodes=tuple(_summaries(outcome.finished)), swarm=totals)
    write_atomic(summary, plan.run_dir / SUMMARY)
    first = models[0]
    seed = plan.nodes[0].config.train.seed
    return Report(
        summary=summary,
        metric=first.task.metric,
        units=metric_units(first.task),
        own_before=dict(first.measure(first.genesis_d).own) if measures.own else {},
        gap=None if shares_logits else adapter_gap(models),
        before=_sample(first, seed, x_d=first.genesis_d),
        after=_sample(first, seed, x_d=shown_d),
    )


def render(report: Report, plan: Plan, outcome: Outcome) -> RenderableType:
    """Return the report for people."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, value in (*_figures(report, plan, outcome), *_samples(report)):
        rows.add_row(Text(label), value)  # of a task: brackets in it are text
    return Group(Text(""), Text(_headline(report, plan), style="bold"), Padding(rows, (1, 0, 1, 2)))


def _headline(report: Report, plan: Plan) -> str:
    totals = report.summary.swarm
    rounds = max(node.rounds for node in report.summary.nodes)
    liars = f", {totals.byzantine} of them lying," if totals.byzantine else ""
    who, what = text.plural(len(plan.nodes), "node"), text.plural(rounds, "round")
    return f"{who}{liars} trained {what} in {text.duration(totals.wall_s)}"


def _figures(report: Report, plan: Plan, outcome: Outcome) -> list[tuple[str, Text]]:
    nodes, totals = report.summary.nodes, report.summary.swarm
    rows = [("eval loss", _loss_line(report))]
    if len(nodes) > 1:
        own = text.loss(totals.eval_loss_last)
        what = f"of the averaged model; the nodes' own: {own} on average"
        if totals.eval_loss_mean_model is None:
            what = "of the nodes' own models, on average: they share logits, and have no common model"
        rows.append(("", Text(what)))
    rows += [(name, Text(_own_line(report, name, value))) for name, value in totals.own.items()]
    if report.gap is not None:
        rows.append(("product gap", Text(report.gap.words())))
    rows += _sent(totals, mean([node.compression_ratio for node in nodes]))
    shares = sorted(node.utilization for node in nodes)
    ends = dict.fromkeys(text.share(value) for value in (shares[0], shares[-1]))
    rows.append(("utilization", Text(f"{' to '.join(ends)} of the time computing")))
    rows += _rounds(nodes, plan.nodes[0].config.train.inner_steps)
    refused = _refused(nodes)
    if refused:
        rows.append(("refused", Text(refused)))
    if totals.consensus_distance is not None:
        rows.append(("agreement", Text(f"models {totals.consensus_distance:.3g} apart (root mean square, L2)")))
    for node in outcome.nodes:
        if node.code != 0:
            why = node.progress.error or describe_code(node.code)
            at = text.progress(node.progress.rounds_done, node.progress.rounds)
            lost = f"{node.plan.name} at round {at}: {why}; see {node.folder / STDERR}"
            rows.append(("failed" if node in outcome.failed else "lost", Text(lost, style="red")))
    rows.append(("files", Text(f"{plan.run_dir}/  (summary.json, and a folder for each node)")))
    return rows


def _rounds(nodes: Sequence[NodeSummary], inner_steps: int) -> list[tuple[str, Text]]:
    """Whether updates came in time, and whether rounds had to be longer for it."""
    shares = sorted(node.updates_in_time for node in nodes if node.updates_in_time is not None)
    if not shares:
        return []
    ends = dict.fromkeys(text.share(value) for value in (shares[0], shares[-1]))
    style = "yellow" if shares[0] < LOW else ""
    rows = [("updates", Text(f"{' to '.join(ends)} of the neighbours' updates arrived in time", style=style))]
    steps = sum(node.steps for node in nodes) / max(1, sum(node.rounds for node in nodes))
    if steps >= LENGTHENED * inner_steps:
        rows.append(("rounds", Text(f"of {steps:.0f} steps, not {inner_steps}: as long as an exchange took")))
    return rows


def _loss_line(report: Report) -> Text:
    totals = report.summary.swarm
    first, last = totals.eval_loss_first, totals.eval_loss_mean_model
    last = totals.eval_loss_last if last is None else last
    part = f"  ({last / first:.2f} of the first)" if first and last is not None else ""
    return Text.assemble(
        f"{text.loss(first)} -> ",
        (text.loss(last), "bold green"),
        f" {report.metric}{part}",
    )


def _own_line(report: Report, name: str, value: float) -> str:
    before = report.own_before.get(name)
    first = "" if before is None else f"{text.measured(before)} -> "
    return f"{first}{text.measured(value, report.units.get(name, ''))}"


def _sent(totals: SwarmTotals, ratio: float | None) -> list[tuple[str, Text]]:
    """All that left a node, against what would have left it in synchronous data parallel; and one copy of it, against
    fp32."""
    if not totals.sent_bits:
        return []
    unit = "shared logit" if totals.all_reduce_bits is None else "parameter"
    each = f"{totals.sent_bits:.3g} bits per {unit} and inner step, copies and overhead included"
    rows = [("sent", Text(f"{text.size(totals.bytes_sent)} by each node: {each}"))]
    if totals.all_reduce_bits:
        times = totals.all_reduce_bits / totals.sent_bits
        by = f"{times:.1f} times less than" if times >= 1 else f"{1 / times:.1f} times as much as"
        fewer = f"{by} synchronous data parallel sends"
        rows.append(("", Text(f"{fewer}: {totals.all_reduce_bits:.3g}, an fp32 ring all-reduce at every step")))
    if totals.published_bits and ratio:
        copy = f"one copy of each update, {ratio:.1f} times smaller than in fp32"
        rows.append(("published", Text(f"{totals.published_bits:.3g} bits: {copy}")))
    return rows


def _refused(nodes: Sequence[NodeSummary]) -> str:
    reasons: dict[str, int] = {}
    for node in nodes:
        for reason, count in node.updates_rejected.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()) if count)


def _samples(report: Report) -> list[tuple[str, Text]]:
    rows = []
    if report.before is not None:  # noise: two lines of it are enough
        rows.append(("text before", Text(text.excerpt(report.before.strip("\n"), limit=120, lines=2), style="dim")))
    if report.after is not None:
        rows.append(("text after", Text(text.excerpt(report.after.strip("\n")))))
    return rows


def next_lines(plan: Plan) -> list[Text]:
    """Return what to try next. Commands stand on lines of their own, never to be wrapped."""
    config = plan.nodes[0].config
    us = text.program()
    tries = [("one node, and the line that joins another machine to it", f"{us} node")]
    if len(plan.nodes) >= 4 and plan.byzantine == 0:
        tries.insert(0, ("a liar among six", f"{us} up --nodes 6 --byzantine 1 --attack sign_flip"))
    if config.task.name == "byte-lm":
        prompt = "def " if "data" not in config.task.options else "The "
        command = f"{us} " + shlex.join(["generate", str(plan.run_dir), "--prompt", prompt])
        tries.insert(0, ("more text from the model", command))
    shares_logits = is_of_logits(config.train)
    own = plan.run_dir / plan.nodes[0].name if shares_logits else plan.run_dir  # then the run has no mean to export
    home = f"{us} {shlex.join(['export', str(own), *export_options(config.task.name)])}"
    whose = "a node's own model" if shares_logits else "the model"
    tries.insert(0, (f"{whose}, taken home: {_opened_by(config.task)}", home))
    tries.insert(1, ("all nodes on one page", f"{us} {shlex.join(['page', str(plan.run_dir)])}"))
    lines = [Text("Next", style="bold")]
    for what, command in tries:
        lines += [Text(f"  {what}", style="dim"), Text(f"    {command}", style="cyan")]
    return lines


def _opened_by(task: TaskSection) -> str:
    if task.name not in OF_TRANSFORMERS:
        return "for load_state_dict in plain torch"
    return "adapters for peft" if task.options.get("lora") else "for from_pretrained of transformers"


def _summaries(nodes: Sequence[NodeProcess]) -> list[NodeSummary]:
    found = (read_node_summary(node.folder / SUMMARY) for node in nodes)
    return [summary for summary in found if summary is not None]


def _sample(model: LoadedModel, seed: int, x_d: torch.Tensor) -> str | None:
    if not isinstance(model.task, Generative):
        return None
    return model.generate("", length=SAMPLE_BYTES, temperature=SAMPLE_TEMPERATURE, seed=seed, x_d=x_d)
