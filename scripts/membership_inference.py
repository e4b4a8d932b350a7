"""Whether a model tells who was in its training data: membership inference by likelihood ratios (LiRA), on the digits.

    python scripts/membership_inference.py                # without a privatizer, and at epsilon 2 and 8
    python scripts/membership_inference.py --epsilons 2 --nodes 8 --models 17     # of the model that eight nodes make
    python scripts/membership_inference.py --epsilons inf 2 --nodes 8 --digits 90 # of eight that have half as many

Each model is trained on a half, drawn apart, of 360 digits: as many as a node of eight has (`--digits` 180). Each is
attacked with the help of all others (LiRA online, Carlini et al., 2112.03570): of each digit the others' confidence
log(p / (1 - p)) in its label is a normal variable with one mean where it was trained on and one where not, and one
variance over all digits; the score is the ratio of the two likelihoods. An attack that guesses has an AUC of 0.5. By
(epsilon, delta) no attack has a rate of true positives above exp(epsilon) times that of false ones, plus delta. With
`--nodes` the model that is attacked is the mean of so many nodes' models, averaged every two steps, and members are the
first node's digits. One JSON line for each epsilon.
"""

import argparse
import json
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from node.system.script_end import ended_in_a_line
from p2ptrain import privacy
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits, Indices
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining

DELTA: Final = 1e-4
CLIP: Final = 0.5
DIGITS: Final = 180
"""Of a node. A model has half of twice as many that may be trained on."""
PLAIN_STEPS: Final = 400
"""After so many it knows its digits by heart."""
PRIVATE_STEPS: Final = 20
"""At the rate of scripts/private_digits.py for epsilon 2."""
STEPS_A_ROUND: Final = 2
FALSE_POSITIVES: Final = 0.01

Floats = NDArray[np.float64]
Members = NDArray[np.bool_]


class SomeDigits(Digits):
    """The digits of which these are trained on."""

    def __init__(self, chosen: Indices) -> None:
        super().__init__()
        self.chosen = chosen

    def examples(self, shard: Shard) -> Indices:
        """Return them, whichever the shard."""
        return self.chosen


class Attack(NamedTuple):
    """How well an attack tells members, over all models and digits."""

    auc: float
    true_positives: float
    """The rate of true positives at FALSE_POSITIVES."""
    train_accuracy: float
    held_out_accuracy: float


def main() -> None:
    """Attack the models of each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[math.inf, 8.0, 2.0], help="inf: no privatizer")
    parser.add_argument("--models", type=int, default=33, help="each in turn is attacked, by the others as shadows")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--digits", type=int, default=DIGITS, help="of a node, on average")
    parser.add_argument("--plain-steps", type=int, default=PLAIN_STEPS, help="of each node, without a privatizer")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.nodes < 1 or not all(each > 0 for each in given.epsilons):
        parser.error("--nodes must be 1 or more, and --epsilons above 0")
    if given.plain_steps < STEPS_A_ROUND:
        parser.error(f"--plain-steps must be {STEPS_A_ROUND} or more: a round has so many")
    if not 10 <= given.digits <= DIGITS:
        parser.error(f"--digits must be 10 to {DIGITS}: so many has a node of eight")
    if given.models < 8:
        parser.error("--models must be 8 or more: each digit needs shadows with it and without it")
    torch.set_num_threads(1)
    for epsilon in given.epsilons:
        found = attacked(epsilon, given)
        bound = min(1.0, math.exp(min(epsilon, 100.0)) * FALSE_POSITIVES + DELTA)
        told = {name: round(value, 3) for name, value in found._asdict().items()}
        line = {"epsilon": epsilon if math.isfinite(epsilon) else None, **told, "bound": round(bound, 3)}
        print(json.dumps(line), flush=True)


def attacked(epsilon: float, asked: argparse.Namespace) -> Attack:
    """Train the models that are asked for, each by so many nodes, and attack each with the others."""
    rng = np.random.default_rng(asked.seed)
    task, models = Digits(), asked.models
    pool, beside = dealt(rng.permutation(len(task.train.labels)), asked.nodes, asked.digits)
    members = rng.random((models, len(pool))) < 0.5
    shards = [pool[row] for row in members]
    steps = PRIVATE_STEPS if math.isfinite(epsilon) else asked.plain_steps
    trainers = [trained([shard, *beside], epsilon, index, steps) for index, shard in enumerate(shards)]
    confidence = np.stack([confidences(trainer, pool) for trainer in trainers])
    scores = np.stack([likelihood_ratios(confidence, members, target) for target in range(models)])
    false_rates, true_rates, _ = roc_curve(members.ravel(), scores.ravel())
    return Attack(
        auc=float(roc_auc_score(members.ravel(), scores.ravel())),
        true_positives=float(true_rates[np.searchsorted(false_rates, FALSE_POSITIVES, side="right") - 1]),
        train_accuracy=float(np.mean([accuracy(*pair) for pair in zip(trainers, shards, strict=True)])),
        held_out_accuracy=float(np.mean([task.accuracy(trainer.model_with()) for trainer in trainers])),
    )


def dealt(order: Indices, nodes: int, digits: int) -> tuple[Indices, list[Indices]]:
    """Return the digits of which the first node has half, and those of each other node, no more than `digits`."""
    pool, rest = order[: 2 * digits], order[2 * digits :]
    return pool, [part[:digits] for part in np.array_split(rest, nodes - 1)] if nodes > 1 else []


def trained(shards: Sequence[Indices], epsilon: float, index: int, steps: int) -> Trainer:
    """Return a trainer with the model that was trained on these digits, by a node for each shard. All begin alike."""
    trainers = [trainer_of(shard, epsilon, index * len(shards) + node, steps) for node, shard in enumerate(shards)]
    for _ in range(trainers[0].config.rounds):
        for trainer in trainers:
            for _ in range(trainer.config.inner_steps):
                trainer.step()
        mean_d = torch.stack([trainer.vector() for trainer in trainers]).mean(0)
        for trainer in trainers:
            trainer.load_vector(mean_d)
    return trainers[0]


def trainer_of(chosen: Indices, epsilon: float, data_seed: int, steps: int) -> Trainer:
    """Return what trains on these digits."""
    private = math.isfinite(epsilon)
    config = TrainConfig(
        device="cpu",
        threads=1,
        warmup_steps=0,
        rounds=steps // STEPS_A_ROUND,
        inner_steps=STEPS_A_ROUND,
        optimizer="sgd",
        learning_rate=1.0 if private else 0.1,
        weight_decay=0.0,
        clip_norm=0.0,
    )
    protection = None
    if private:
        noise = noise_for(epsilon, DELTA, rate=1.0, steps=steps)
        protection = PrivateTraining(privatizer=privacy.get("example", noise=noise, clip=CLIP), rate=1.0)
    shard = Shard(index=0, count=1)
    return Trainer(SomeDigits(chosen), config, shard, data_seed=data_seed, privacy=protection)


@torch.no_grad()
def accuracy(trainer: Trainer, chosen: Indices) -> float:
    """Return the share of these training digits that are named rightly."""
    train = Digits().train
    return float((trainer.model_with()(train.images[chosen]).argmax(dim=1) == train.labels[chosen]).float().mean())


@torch.no_grad()
def confidences(trainer: Trainer, pool: Indices) -> Floats:
    """Return log(p / (1 - p)) of each digit's label, (n,): above the most of the other logits, as p is above 0.5."""
    task = Digits()
    images, labels = task.train.images[pool], task.train.labels[pool]
    logits = trainer.model_with()(images).double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).logsumexp(dim=1)
    return np.asarray((own - others).numpy())


def likelihood_ratios(confidence: Floats, members: Members, target: int) -> Floats:
    """Return the score of each digit (n,) for one model, by the confidences (m, n) of all others."""
    others = np.delete(np.arange(len(members)), target)
    known, inside = confidence[others], members[others]
    mean_in, mean_out = (_means(known, rows) for rows in (inside, ~inside))
    variance = float(np.where(inside, known - mean_in, known - mean_out).var())
    own = confidence[target]
    ratio: Floats = ((own - mean_out) ** 2 - (own - mean_in) ** 2) / (2 * variance)
    return ratio


def _means(known: Floats, rows: Members) -> Floats:
    """Return the mean of each column (n,) over the rows (m, n) that are chosen; of one with none, over all."""
    count = rows.sum(0)
    chosen: Floats = (known * rows).sum(0) / np.maximum(count, 1)
    return np.where(count > 0, chosen, known.mean(0))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
