"""Does a teacher hold its student back? Students of teachers that were trained for long, and for too short a time.

    python scripts/distill_teachers.py --teacher-steps 100 200 300 600 --seeds 1 2 3

Digits: a student and the same model without a teacher have the same steps on all data, from the same initial model and
in the same order. Each line says by how many percent the student's held-out loss is above that of the model alone, by
seed: with a teacher's share that falls with its lead, and with a constant one.
"""

import argparse
import json

import torch

from node.system.script_end import ended_in_a_line
from p2ptrain import tasks
from p2ptrain.tasks import Shard, Task
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.distillation import DistillConfig, DistilledTask

TEACHER_SEED = 77


def main() -> None:
    """Print a line for each teacher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher-steps", type=int, nargs="+", default=[100, 200, 300, 600])
    parser.add_argument("--steps", type=int, default=300, help="of the student")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--constant", action="store_true", help="a constant share, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = tasks.get("digits")
    alone = {seed: trained(task, given.steps, seed).evaluate() for seed in given.seeds}
    for steps in given.teacher_steps:
        teacher = trained(task, steps, TEACHER_SEED)
        model = teacher.model_with().eval().requires_grad_(False)
        told: dict[str, object] = {"teacher_steps": steps, "teacher_loss": round(teacher.evaluate(), 3)}
        for fading in (True, False) if given.constant else (True,):
            losses = {}
            for seed in given.seeds:
                student = DistilledTask(task, model, DistillConfig(fading=fading))
                losses[seed] = trained(student, given.steps, seed).evaluate()
            told["fading" if fading else "constant"] = [
                round(100 * (losses[seed] / alone[seed] - 1), 1) for seed in given.seeds
            ]
        print(json.dumps(told), flush=True)
    print(json.dumps({"alone": [round(loss, 3) for loss in alone.values()]}), flush=True)


def trained(task: Task, steps: int, seed: int) -> Trainer:
    """Return a trainer after so many steps on all data."""
    config = TrainConfig(rounds=1, inner_steps=steps, warmup_steps=20, device="cpu", threads=1, seed=seed)
    trainer = Trainer(task, config, Shard())
    for _ in range(steps):
        trainer.step()
    return trainer


if __name__ == "__main__":
    with ended_in_a_line():
        main()
