"""One recipe carried out: settings in, a row out. What a worker process calls."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from node.bench.swarm import baselines
from node.bench.swarm.gradients import GradientSwarm
from node.bench.swarm.run_spec import Document, RunSpec
from node.bench.swarm.simulation import Swarm
from node.bench.swarm.traffic import Traffic
from node.events.sent_bits import BITS
from p2ptrain import tasks
from p2ptrain.sync import averages_gradients
from p2ptrain.sync.vectors import is_sane
from p2ptrain.tasks import Task
from p2ptrain.training import Trainer
from p2ptrain.training.late_average import LateAverage

Curve = list[tuple[int, float, float | None]]
"""(inner steps done, bits a parameter that a node has sent, held-out loss of the mean model)."""


@runtime_checkable
class Classifies(Protocol):
    """A task that can say how often its model is right."""

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of the held-out examples that the model gets right."""


def measure(recipe: RunSpec) -> Document:
    """Carry out a run. ValueError on settings that do not go together; a run that diverges is a result."""
    torch.set_num_threads(max(1, recipe.config.train.threads))
    section = recipe.config.task
    task = tasks.get(section.name, **section.options)
    wall, cpu = time.perf_counter(), time.process_time()
    result = _way(recipe)(recipe, task)
    took = {"wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    return {**labels(recipe), **result, **took, "recipe": recipe.document()}


def _way(recipe: RunSpec) -> Callable[[RunSpec, Task], Document]:
    if recipe.kind == "swarm":
        return _gradients if averages_gradients(recipe.config.sync.strategy) else _rounds
    return _alone if recipe.kind == "alone" else _synchronous


def labels(recipe: RunSpec) -> Document:
    """Return what a row is called by."""
    config, swarm = recipe.config, recipe.kind == "swarm"
    return {
        "strategy": config.sync.strategy if swarm else recipe.kind,
        "compressor": config.sync.compressor if swarm else "none",
        "aggregator": config.sync.aggregator if swarm else "mean",
        "f": config.sync.f if swarm else 0,
        "attack": config.attack.name if swarm else "none",
        "byzantine": recipe.shape.byzantine if swarm else 0,
        "seed": config.train.seed,
    }


def _rounds(recipe: RunSpec, task: Task) -> Document:
    """Nodes that average models, round by round."""
    swarm = Swarm(recipe, task)
    train, judge = recipe.config.train, swarm.nodes[0].trainer
    first, distance, curve, diverged = judge.evaluate(), 0.0, Curve(), False
    for number in range(1, train.rounds + 1):
        try:
            distance = swarm.round()
        except ValueError:
            if all(is_sane(node.trainer.vector()) for node in swarm.nodes):
                raise
            diverged = True
            break
        if number % train.eval_every == 0 or number == train.rounds:
            sent = _bits(swarm.traffic.sent, judge.numel * len(swarm.honest))
            curve.append((train.first_step(number), sent, _number(judge.evaluate(swarm.mean_model()))))
    return {
        **_judged(task, judge, None if diverged else swarm.mean_model(), first),
        **_nodes(task, judge, [] if diverged else [node.judged_d for node in swarm.honest]),
        "consensus_distance": _number(distance),
        "robust_share": round(swarm.robust_share, 4),
        **_costs(swarm.traffic, judge.numel, len(swarm.honest), train.total_steps),
        "curve": curve,
    }


def _gradients(recipe: RunSpec, task: Task) -> Document:
    """Nodes that average gradients, step by step."""
    swarm, train = GradientSwarm(recipe, task), recipe.config.train
    judge, nodes = swarm.trainers[0], len(swarm.trainers)
    first, curve, late = judge.evaluate(), Curve(), LateAverage(train.late_average)
    for step in range(1, train.total_steps + 1):
        swarm.step()
        if late.covers(step, train.total_steps):
            late.add(swarm.model(), round=step, rounds=train.total_steps)
        if step % (train.eval_every * train.inner_steps) == 0 or step == train.total_steps:
            curve.append((step, _bits(swarm.traffic.sent, judge.numel * nodes), _number(judge.evaluate(late.mean_d))))
    return {
        **_judged(task, judge, swarm.model() if late.mean_d is None else late.mean_d, first),
        **_costs(swarm.traffic, judge.numel, nodes, train.total_steps),
        "curve": curve,
    }


def _alone(recipe: RunSpec, task: Task) -> Document:
    trainer = baselines.alone(task, recipe.config.train)
    return _baseline(recipe, task, trainer, Traffic())


def _synchronous(recipe: RunSpec, task: Task) -> Document:
    nodes, steps = recipe.shape.nodes, recipe.config.train.total_steps
    trainer = baselines.synchronous(task, recipe.config.train, nodes)
    dense = baselines.FP32_BYTES * trainer.numel
    sent = round(baselines.ring_all_reduce_bytes(trainer.numel, nodes) * steps)
    return _baseline(recipe, task, trainer, Traffic(published=dense * steps, sent=sent, peak=dense))


def _baseline(recipe: RunSpec, task: Task, trainer: Trainer, traffic: Traffic) -> Document:
    """One trainer's whole run; `traffic` is one node's of all of it."""
    train, first, curve = recipe.config.train, trainer.evaluate(), Curve()
    late = LateAverage(train.late_average)
    for step in range(1, train.total_steps + 1):  # a baseline's rounds are single steps
        trainer.step()
        if late.covers(step, train.total_steps):
            late.add(trainer.vector(), round=step, rounds=train.total_steps)
        if step % train.eval_every == 0 or step == train.total_steps:
            sent = _bits(traffic.sent, trainer.numel) * step / train.total_steps
            curve.append((step, sent, _number(trainer.evaluate(late.mean_d))))
    return {
        **_judged(task, trainer, trainer.vector() if late.mean_d is None else late.mean_d, first),
        **_costs(traffic, trainer.numel, 1, train.total_steps),
        "curve": curve,
    }


def _judged(task: Task, judge: Trainer, model_d: torch.Tensor | None, first: float) -> Document:
    loss = None if model_d is None else _number(judge.evaluate(model_d))
    return {
        "metric": task.metric,
        "eval_loss_first": _number(first),
        "eval_loss": loss,
        "accuracy": None if model_d is None else _accuracy(task, judge, model_d),
        "diverged": loss is None,
    }


def _nodes(task: Task, judge: Trainer, models: Sequence[torch.Tensor]) -> Document:
    """What each honest node's own model is worth: an average may hide that they are torn apart."""
    losses = [judge.evaluate(model_d) for model_d in models]
    right = [share for model_d in models if (share := _accuracy(task, judge, model_d)) is not None]
    return {
        "eval_loss_nodes_mean": _number(sum(losses) / len(losses)) if losses else None,
        "eval_loss_nodes_max": _number(max(losses)) if losses else None,
        "accuracy_nodes_mean": round(sum(right) / len(right), 4) if right else None,
        "accuracy_nodes_min": min(right, default=None),
    }


def _accuracy(task: Task, judge: Trainer, model_d: torch.Tensor) -> float | None:
    return round(task.accuracy(judge.model_with(model_d)), 4) if isinstance(task, Classifies) else None


def _costs(traffic: Traffic, numel: int, nodes: int, steps: int) -> Document:
    """Bits a parameter and an inner step, of one node on average: comparable between runs of any length and model."""
    return {
        "published_bits": _bits(traffic.published, numel * nodes * steps),
        "sent_bits": _bits(traffic.sent, numel * nodes * steps),
        "peak_bits": _bits(traffic.peak, numel),
        "payload_bytes_published": traffic.published,
        "payload_bytes_sent": traffic.sent,
        "refused": dict(traffic.refused),
        "parameters": numel,
        "steps": steps,
    }


def _bits(size: int, by: int) -> float:
    return round(BITS * size / by, 6)


def _number(value: Any) -> float | None:
    """A finite number, rounded; None for what JSON cannot express."""
    return round(float(value), 5) if math.isfinite(value) else None
