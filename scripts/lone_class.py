"""Whether a class that the slowest node alone has is learned, beside a liar too: strategies in lockstep, by rule.

    python scripts/lone_class.py                                         # every row of ROWS, with nobody that lies
    python scripts/lone_class.py --rows trimmed_mean --liars sign_flip searched_ipm lone_lie orthogonal

Honest members take 20, 20, 10, 4 and 2 steps a round (--eight:
20, 20, 20, 20, 10, 10, 4, 2), lengthened by fednova; a liar is one more.
One JSON line a row: recall of the nines and of all others, means over honest members. Every payload arrives at once.
"""

import argparse
import json
from typing import Any, Final

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from node.bench.swarm.heterogeneous import Indices, LoneDigit
from node.bench.swarm.lockstep import LockstepMember, member_of, play_rounds
from node.system.script_end import ended_in_a_line
from p2ptrain import attacks
from p2ptrain.attacks import VectorAttack
from p2ptrain.sync import SyncConfig
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Pool
from p2ptrain.training import TrainConfig, Trainer

FIVE: Final = (20, 20, 10, 4, 2)
EIGHT: Final = (20, 20, 20, 20, 10, 10, 4, 2)
SCHEDULED: Final = 20
BLOCK: Final = 4096
"""Values that heloco corrects as one."""
CORRECTED: Final[dict[str, Any]] = {"strategy": "heloco", "turn": 0.0, "shrink": 2.0}
RULES: Final = (
    *("trimmed_mean", "bucketing+trimmed_mean", "nnm+trimmed_mean", "arc+trimmed_mean", "clipping+trimmed_mean"),
    *("meamed", "gts", "caf", "geometric_median", "centered_clipping", "cs_plus"),
    *("clipping+mean", "arc+mean", "clipped_gossip"),
)
ROWS: Final[dict[str, dict[str, Any]]] = {
    "mean": {"aggregator": "mean", "f": 0},
    **{rule: {"aggregator": rule, "f": 1} for rule in RULES},
    "clipped_gossip, 1.5": {"aggregator": "clipped_gossip", "f": 1, "tau_times": 1.5},
    "heloco, clipped_gossip": {"aggregator": "clipped_gossip", "f": 1, **CORRECTED},
    "heloco, clipped_gossip, 1.5": {"aggregator": "clipped_gossip", "f": 1, "tau_times": 1.5, **CORRECTED},
}
PRETENDERS: Final = {"lone_lie": (9, 4), "lone_other": (3, 8)}
"""Liars that train honestly on one class alone, which they call another."""


class Orthogonal:
    """Four times the honest mean, with the sign of every other coordinate changed, and no part along the mean: no check
    of directions objects to it."""

    name = "orthogonal"

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d)."""
        mean_d = honest_nd.mean(0)
        lie_d = 4 * mean_d
        lie_d[::2] *= -1
        lie_d -= (lie_d @ mean_d) / (mean_d @ mean_d).clamp(min=1e-12) * mean_d
        return lie_d.expand(f, -1).clone()


class OpposesLone:
    """Four times what leads back from the member that is farthest from the honest mean, less what of each block lies
    along the mean of the round before: the correction finds nothing to take back."""

    name = "opposes_lone"

    def __init__(self) -> None:
        self._before_d: torch.Tensor | None = None

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d)."""
        mean_d = honest_nd.mean(0)
        before_d, self._before_d = mean_d if self._before_d is None else self._before_d, mean_d
        off_nd = honest_nd - mean_d
        lie_d = -4 * off_nd[off_nd.norm(dim=1).argmax()]
        for first in range(0, lie_d.numel(), BLOCK):
            lie_b, before_b = lie_d[first : first + BLOCK], before_d[first : first + BLOCK]
            lie_b -= (lie_b @ before_b) / (before_b @ before_b).clamp(min=1e-12) * before_b
        return lie_d.expand(f, -1).clone()


OWN_LIARS: Final = {liar.name: liar for liar in (Orthogonal, OpposesLone)}


class Pretended(LoneDigit):
    """All examples of one class, called another."""

    def __init__(self, truly: int, called: int) -> None:
        super().__init__()
        labels = self.train.labels.clone()
        self.indices = np.flatnonzero((labels == truly).numpy())
        labels[labels == truly] = called
        self.train = Pool(self.train.images, labels)

    def examples(self, shard: Shard) -> Indices:
        """Return the indices of that class."""
        return self.indices


def main() -> None:
    """Print a line for each row and liar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=[*ROWS], default=[*ROWS])
    liars = ["none", *PRETENDERS, *OWN_LIARS, *attacks.names(VectorAttack)]
    parser.add_argument("--liars", nargs="*", choices=liars, default=["none"])
    parser.add_argument("--eight", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for row in asked.rows:
        for liar in asked.liars:
            for seed in asked.seeds:
                told = play(ROWS[row], liar, EIGHT if asked.eight else FIVE, asked.rounds, seed)
                print(json.dumps({"row": row, "liar": liar, "seed": seed, **told}), flush=True)


def play(sync: dict[str, Any], liar: str, steps: tuple[int, ...], rounds: int, seed: int) -> dict[str, float]:
    """Return what the honest members have learned. `liar`: an attack's name, of PRETENDERS or OWN_LIARS, or none."""
    members = [member(index, count, sync, steps, rounds, seed) for index, count in enumerate(steps)]
    if liar != "none":
        members.append(lying(liar, sync, steps, rounds, seed))
    play_rounds(members, rounds)
    found = [measured(each) for each in members[: len(steps)]]
    return {name: round(sum(each[name] for each in found) / len(found), 3) for name in found[0]}


def member(
    index: int,
    count: int,
    sync: dict[str, Any],
    steps: tuple[int, ...],
    rounds: int,
    seed: int,
    task: LoneDigit | None = None,
) -> LockstepMember:
    """An honest member with a shard of its own."""
    config = TrainConfig(
        rounds=rounds,
        inner_steps=SCHEDULED,
        batch_size=16,
        threads=1,
        warmup_steps=5,
        learning_rate=3e-3,
        seed=seed,
        step_normalization="fednova",
    )
    trainer = Trainer(task or LoneDigit(), config, Shard(index=index % len(steps), count=len(steps)))
    return member_of(trainer, SyncConfig(**sync), index=index, steps=count)


def lying(liar: str, sync: dict[str, Any], steps: tuple[int, ...], rounds: int, seed: int) -> LockstepMember:
    """One more member, which lies."""
    task = Pretended(*PRETENDERS[liar]) if liar in PRETENDERS else None
    found = member(len(steps), SCHEDULED, sync, steps, rounds, seed, task)
    if task is None:
        found.lie(OWN_LIARS[liar]() if liar in OWN_LIARS else attacks.get(liar), seed)
    return found


def measured(each: LockstepMember) -> dict[str, float]:
    """Recall of the nines and of all other digits, and the held-out loss, of a member's anchor."""
    task, model = LoneDigit(), each.trainer.model
    loss = each.trainer.evaluate(each.own.anchor_d)
    vector_to_parameters(each.own.anchor_d.clone(), model.parameters())
    labels = task.held_out.labels
    with torch.no_grad():
        right = (model(task.held_out.images).argmax(dim=1) == labels).float()
    nines = labels == task.lone
    return {"nines": float(right[nines].mean()), "others": float(right[~nines].mean()), "loss": loss}


if __name__ == "__main__":
    with ended_in_a_line():
        main()
