"""What noise that a secure group shares out saves beside each member's own: of noise in the mean, and in accuracy.

    python scripts/noise_shares_gain.py                   # noise in a group's mean, for some sizes; draws a second
    python scripts/noise_shares_gain.py --learn 16        # sixteen members learn the digits, each way, at --epsilons

Members clip a round's move to the same norm either way, and epsilon is the same: with `update` each adds all of the
noise itself, with `secure_update` a share of it (docs/how-to/secure-aggregation.md). The members' models are trained,
packed, summed and closed as by nodes; there is no network between. One JSON line a size, or a way and epsilon.
"""

import argparse
import json
import math
import time
from typing import Final

import numpy as np
import torch

from node.system.script_end import ended_in_a_line
from p2ptrain import privacy
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.privacy.discrete_gaussian import DiscreteGaussian
from p2ptrain.privacy.noise_shares import NoiseShares, honest_members
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync import GroupSum, SyncConfig, build
from p2ptrain.sync.fixed_point import FixedPoint, Words_d
from p2ptrain.sync.noised_fixed_point import NoisedFixedPoint
from p2ptrain.sync.secure_average import SecureAverage
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining

VALUES: Final = 200_000
DRAWS: Final = 4_000_000
DELTA: Final = 1e-4
CLIP: Final = 0.5
ROUNDS: Final = 20
STEPS: Final = 10
WAYS: Final = ("update", "secure_update")


def main() -> None:
    """Measure one or the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 5, 8, 16, 32])
    parser.add_argument("--learn", type=int, default=0, help="members of the group that learns")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 32.0])
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.learn:
        for epsilon in given.epsilons:
            for way in WAYS:
                found = [accuracy(way, epsilon, given.learn, seed) for seed in range(given.seeds)]
                told = {"mean": round(float(np.mean(found)), 3), "each": [round(each, 3) for each in found]}
                print(json.dumps({"epsilon": epsilon, "privatizer": way, "accuracy": told}), flush=True)
        return
    for size in given.sizes:
        print(json.dumps(noise_in_mean(size)), flush=True)
    print(json.dumps(draws_a_second()))


def noise_in_mean(members: int) -> dict[str, float]:
    """Return the standard deviation of the noise in the mean of members that did not move, over noise times clip."""
    shared = NoisedFixedPoint(16.0, 16, members, NoiseShares(1.0, 1.0))
    own = FixedPoint(16.0, 16, members)
    source, update = SecretRandom(), privacy.get("update", noise=1.0, clip=1.0)
    totals = [np.zeros(VALUES, np.uint64), np.zeros(VALUES, np.uint64)]
    for _ in range(members):
        noise_d = torch.zeros(VALUES)
        update.add_noise_(noise_d, source)
        totals[0] += own.encode(noise_d, source).words_d
        totals[1] += shared.noised(shared.encode(torch.zeros(VALUES), source).words_d, np.random.default_rng().bytes)
    mask = np.uint64((1 << shared.width) - 1)
    each, share = (
        float(codec.mean((total & mask).astype(np.uint32), members).double().std())
        for codec, total in zip((own, shared), totals, strict=True)
    )
    told = {"update": each, "secure_update": share, "ratio": each / share, "root": math.sqrt(honest_members(members))}
    return {"members": members, **{name: round(value, 4) for name, value in told.items()}}


def draws_a_second() -> dict[str, float]:
    """Return millions of numbers drawn a second, by continuous noise and by discrete."""
    noise, source = DiscreteGaussian(1024.0), SecretRandom()
    began = time.perf_counter()
    source.normals(DRAWS)
    between = time.perf_counter()
    noise.draw(DRAWS)
    ended = time.perf_counter()
    found = {"normals": DRAWS / (between - began) / 1e6, "discrete": DRAWS / (ended - between) / 1e6}
    return {name: round(value, 2) for name, value in found.items()}


def accuracy(way: str, epsilon: float, members: int, seed: int) -> float:
    """Return the accuracy on held-out digits of what so many members learn at `epsilon`."""
    noise = noise_for(epsilon, DELTA, rate=1.0, steps=ROUNDS)
    shared = {"sum_noise": noise, "sum_clip": CLIP} if way == "secure_update" else {}
    config = SyncConfig(
        strategy="secure_average", group=max(4, members // 2 + 1), clipping_range=16 * noise * CLIP, **shared
    )
    trainers = [
        Trainer(
            Digits(),
            TrainConfig(device="cpu", optimizer="sgd", learning_rate=0.3, warmup_steps=0, seed=seed),
            Shard(index=place, count=members),
            privacy=PrivateTraining(privatizer=privacy.get(way, noise=noise, clip=CLIP)),
        )
        for place in range(members)
    ]
    names = [f"n{place:02}" for place in range(members)]
    genesis_d = trainers[0].vector()
    nodes = [build(config, genesis_d, name) for name in names]
    for round in range(ROUNDS):
        played([node for node in nodes if isinstance(node, SecureAverage)], trainers, names, round)
    trainers[0].load_vector(nodes[0].anchor_d)
    return Digits().accuracy(trainers[0].model_with())


def played(nodes: list[SecureAverage], trainers: list[Trainer], names: list[str], round: int) -> None:
    """Train, sum and close one round of one group."""
    thetas, words = [], dict[str, Words_d]()
    (group,) = nodes[0].groups(names, round=round)
    for node, trainer, name in zip(nodes, trainers, names, strict=True):
        trainer.begin_round()
        for _ in range(STEPS):
            trainer.take_step()
        trainer.end_round()
        thetas.append(trainer.vector())
        words[name] = node.pack(thetas[-1], round=round, members=len(group))
    total = np.sum(list(words.values()), axis=0, dtype=np.uint64) & np.uint64((1 << nodes[0].width(len(group))) - 1)
    opened = GroupSum(members=group, survivors=frozenset(group), words_v=total.astype(np.uint32))
    for node, trainer, theta_d in zip(nodes, trainers, thetas, strict=True):
        trainer.correct(node.finish_(theta_d, {0: opened}, 0, round=round).correction_d)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
