"""A rival's process at its host: it gets ready, waits for the start of all, and does step after step.

`python -m node.bench.race.host PLAN`, in a host's namespace. It ends when its stdin does, so that none outlives the
race. Everything but the step is the same for all rivals: model, batches, models kept, and, where their name
does not say otherwise, optimizer and learning rate.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

import torch
from torch import nn

from node.bench.race.spec import HostPlan
from node.bench.race.track import TrackWriter
from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.training.flat import places
from p2ptrain.training.model import build_model
from p2ptrain.training.train_config import TrainConfig, lr_at

READY: Final = "ready"
"""An empty file in the host's folder: it waits for the start."""
BETAS: Final = (0.9, 0.95)
WEIGHT_DECAY: Final = 0.1
"""Both as our own adamw has them (p2ptrain/inner/adamw.py): decay on tensors of two dimensions and more."""
MOMENTUM: Final = 0.95
"""As our own muon has it."""

STEPPERS: Final = {
    "ddp": "node.bench.race.ddp_host",
    "hivemind": "node.bench.race.hivemind_host",
}
"""Modules with a function `stepper(plan, model)`."""


class Stepper(Protocol):
    """A rival's way to train a model together with the other hosts."""

    def step(self, loss: Callable[[nn.Module], torch.Tensor], rate: float) -> None:
        """Do one step at this learning rate, from the loss of this host's batch."""


def main(text: str) -> None:
    """Run a host to its last step."""
    go = _started_by_parent()
    torch.set_num_threads(1)
    plan = HostPlan.from_json(text)
    spec, task = plan.spec, plan.spec.task()
    model = build_model(task, spec.seed)
    module = importlib.import_module(STEPPERS[plan.options["stepper"]])
    stepper: Stepper = module.stepper(plan, model)
    shard, config = Shard(index=plan.rank, count=spec.hosts), training(plan)

    def batch(step: int) -> Batch:
        return task.train_batch(step, seed=spec.seed, shard=shard, size=spec.batch)

    batch(0)
    track = TrackWriter(plan.folder)
    (plan.folder / READY).touch()
    go.wait()
    track.step(0)
    run(stepper, track, plan, model, lambda net, step: task.loss(net, batch(step)), config)
    threading.Event().wait()  # until the race is over: who leaves early takes the others' connections along


def run(
    stepper: Stepper,
    track: TrackWriter,
    plan: HostPlan,
    model: nn.Module,
    loss: Callable[[nn.Module, int], torch.Tensor],
    config: TrainConfig,
) -> None:
    """Do all steps; the first host keeps models."""
    for step in range(plan.spec.steps):
        stepper.step(lambda net: loss(net, step), lr_at(step, plan.spec.steps, config))  # noqa: B023  # called at once
        track.step(step + 1)
        if plan.rank == 0 and ((step + 1) % plan.spec.keep_every == 0 or step + 1 == plan.spec.steps):
            track.keep(step + 1, model)


def adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return torch's AdamW with the settings of ours."""
    return _adamw(list(model.parameters()), rate)


def muon(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return torch's Muon for the hidden matrices, and AdamW for the rest, with the settings of ours
    (p2ptrain/inner/muon.py)."""
    hidden = {place.name for place in places(model) if place.hidden}
    matrices = torch.optim.Muon(
        [each for name, each in model.named_parameters() if name in hidden],
        lr=config.learning_rate,
        weight_decay=WEIGHT_DECAY,
        momentum=MOMENTUM if config.momentum is None else config.momentum,
        nesterov=True,
        adjust_lr_fn="match_rms_adamw",
    )
    others = [each for name, each in model.named_parameters() if name not in hidden]
    return [matrices, _adamw(others, config.learning_rate)]


def optimizers(plan: HostPlan, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return those of this contestant's choice: AdamW, or Muon."""
    config = training(plan)
    return muon(model, config) if config.optimizer == "muon" else [adamw(model, config.learning_rate)]


def training(plan: HostPlan) -> TrainConfig:
    """Return the settings of training: what all have in common, under the contestant's own."""
    return replace(plan.spec.train(), **plan.options.get("train", {}))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _adamw(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    decayed = [each for each in parameters if each.ndim >= 2]
    others = [each for each in parameters if each.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=BETAS, fused=True)


def _started_by_parent() -> threading.Event:
    """Return an event for the parent's first line. When the parent has gone, so has this process."""
    go = threading.Event()

    def listen() -> None:
        with os.fdopen(os.dup(0)) as stdin:
            for _ in stdin:
                go.set()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return go


if __name__ == "__main__":
    main(sys.argv[1])
