"""What a private step takes, over a plain one: in turns, in one thread, in seconds of the processor; on a GPU, in
seconds until it has done the step.

    python scripts/private_steps_cost.py
    python scripts/private_steps_cost.py --device cuda
    python scripts/private_steps_cost.py --turns 40 --chunk 4

One JSON line a model: medians in milliseconds, and each over the plain step. `loop`: as `example`, in a loop of the
user's own with torch's AdamW (`swarm.private_gradients`), over the plain step of such a loop, `plain loop`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Final

import torch
from torch.utils import _pytree as pytree

from node.system.script_end import ended_in_a_line
from p2ptrain import privacy, tasks
from p2ptrain.tasks import Shard, Task, TaskError
from p2ptrain.tasks.base import HasExamples
from p2ptrain.training import TrainConfig, Trainer, UserModel
from p2ptrain.training.machine import pick_device
from p2ptrain.training.model import build_model
from p2ptrain.training.private_training import PrivateTraining

MODELS: Final = {
    "digits": ("digits", {}),
    "byte-lm pico": ("byte-lm", {"size": "pico"}),
    "byte-lm nano": ("byte-lm", {"size": "nano"}),
}
WARM_TURNS: Final = 2


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="steps of each kind, after two to warm up")
    parser.add_argument("--batch", type=int, default=16, help="examples of a plain step, and those expected")
    parser.add_argument("--chunk", type=int, default=None, help="gradients of examples in memory; as by default")
    parser.add_argument("--device", default="cpu", help="where to train: cpu or cuda")
    given = parser.parse_args()
    if min(given.turns, given.batch, 1 if given.chunk is None else given.chunk) < 1:
        parser.error("--turns, --batch and --chunk must be 1 or more")
    try:
        device = pick_device(given.device)
    except TaskError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    for name, (task, options) in MODELS.items():
        found = medians(tasks.get(task, **options), device, given.turns, given.batch, given.chunk)
        plain = {kind: "plain loop" if "loop" in kind else "plain" for kind in found}
        over = {kind: round(found[kind] / found[plain[kind]], 2) for kind in found}
        print(json.dumps({"model": name, "ms": found, "over_plain": over}), flush=True)


def medians(task: Task, device: torch.device, turns: int, batch: int, chunk: int | None) -> dict[str, float]:
    """Median milliseconds of a step, by kind."""
    config, shard = TrainConfig(device=str(device), batch_size=batch), Shard(index=0, count=4)
    protections = {kind: PrivateTraining(privatizer=privacy.get(kind), chunk=chunk) for kind in ("example", "update")}
    trainers = {"plain": Trainer(task, config, shard)}
    trainers |= {kind: Trainer(task, config, shard, privacy=given) for kind, given in protections.items()}
    steps: dict[str, Callable[[], object]] = {kind: trainer.step for kind, trainer in trainers.items()}
    steps["plain loop"] = plain_loop_of(task, device, shard, batch)
    steps["loop"] = loop_of(task, device, shard, batch, chunk)
    took: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(WARM_TURNS + turns):
        for kind, step in steps.items():
            began = seconds(device)
            step()
            took[kind].append(seconds(device) - began)
    return {kind: round(1e3 * statistics.median(times[WARM_TURNS:]), 2) for kind, times in took.items()}


def plain_loop_of(task: Task, device: torch.device, shard: Shard, batch: int) -> Callable[[], None]:
    """Return a step of a loop of the user's own that is not private."""
    assert isinstance(task, HasExamples), "tasks of ours name their examples"
    model = build_model(task, 0).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    count = task.example_count(shard)

    def step() -> None:
        rows = torch.randint(count, (batch,)).tolist()
        examples = pytree.tree_map(lambda part: part.to(device), task.examples_at(shard, rows))
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model, examples))
        optimizer.step()

    return step


def loop_of(task: Task, device: torch.device, shard: Shard, batch: int, chunk: int | None) -> Callable[[], None]:
    """Return a private step of a loop of the user's own, with all that is looked at around it."""
    assert isinstance(task, HasExamples), "tasks of ours name their examples"
    model = build_model(task, 0).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    learner = UserModel(model, optimizer, TrainConfig(), shard, data_seed=0)
    count = task.example_count(shard)
    protection = PrivateTraining(privatizer=privacy.get("example"), chunk=chunk, rate=batch / count)
    learner.protect(protection, learner.vector())
    private = learner.private_steps
    assert private is not None, "the unit is an example"
    examples = private.examples(task.loss, lambda rows: task.examples_at(shard, rows), count)

    def step() -> None:
        learner.fill_gradient(examples)
        private.check_step(has_closure=False)
        optimizer.step()
        private.step_taken()

    return step


def seconds(device: torch.device) -> float:
    """Seconds of the processor so far; where a GPU computes, those of the clock, once it has done all it was given."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    with ended_in_a_line():
        main()
