"""Whether a node that sits out rounds in which it would add little saves bytes at an equal loss.

    python scripts/sitting_out.py --seeds 0-1
    python scripts/sitting_out.py --seeds 0-1 --policies all --rounds 20 --inner-steps 15      # for all, longer rounds

Eight nodes learn the digits, real trainers and strategies without a network: every update comes, and in time. Four have
a shard of their own each; four have one shard together, so that three of these add nothing but steps. A node that sits
out trains on, and neither publishes nor averages, as in a longer round: to average again with what it was known as
would count the same correction twice. Its neighbours average with what they hold of it while that is at most
--stalest rounds old, four as with one that is late. Everybody publishes in one round of four at least, and one time in
ten against its own judgement. Policies:

- all: nobody sits out.
- lots: each publishes with a probability of --share.
- size: who is in the smaller part by the length of its difference, over the median of its neighbours' newest ones.
- novelty: one that has n neighbours whose models are nearer than half of its median distance, with 1 - 1 / (n + 1).
- oracle: it is known who has copies; one of the four publishes, in turn.

Nothing that a neighbour says is read. One JSON line a run: bytes published by all, held-out loss by round.
Then for each policy the loss of `all` at the same bytes, by interpolation, beside its own.
"""

import argparse
import json
import random
from collections.abc import Iterator
from statistics import fmean, median

import numpy as np
import torch

from node.system.script_end import ended_in_a_line
from p2ptrain.sync import ModelAveraging, SyncConfig, build
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits, Indices
from p2ptrain.training import TrainConfig, Trainer

NODES = 8
OWN = 4
"""Nodes with a shard of their own."""
SELDOM = 4
"""Rounds of which everybody publishes in one at least."""
EXPLORE = 0.1
NEAR = 0.5
POLICIES = ("all", "lots", "size", "novelty", "oracle")

Curve = list[tuple[int, float]]
"""Bytes published by all so far, and the mean of the nodes' held-out losses."""


class CopiedDigits(Digits):
    """The last shard is dealt to every node from OWN on."""

    def _deal(self, count: int) -> list[Indices]:
        dealt = super()._deal(OWN + 1)
        return [np.asarray(dealt[min(node, OWN)]) for node in range(count)]


class SittingSwarm:
    """Nodes that close their rounds at the same time, and publish as a policy says."""

    def __init__(self, policy: str, train: TrainConfig, asked: argparse.Namespace) -> None:
        task = CopiedDigits(asked.partition)
        sync = SyncConfig(aggregator=asked.aggregator, f=0 if asked.aggregator == "mean" else 1)
        self._policy, self._asked, self._train = policy, asked, train
        self._rng = random.Random(f"{policy}/{train.seed}")
        self.trainers = [Trainer(task, train, Shard(index=each, count=NODES)) for each in range(NODES)]
        genesis_d = self.trainers[0].vector()
        self._strategies = [self._strategy(sync, genesis_d, node) for node in range(NODES)]
        for node, strategy in enumerate(self._strategies):
            for other in set(range(NODES)) - {node}:
                strategy.track(str(other), None)
        self._public = [genesis_d.clone() for _ in range(NODES)]
        """What each is known as."""
        self._lengths = [0.0] * NODES
        """Of the newest update of each."""
        self._at = [-1] * NODES
        """The round of the newest update of each."""
        self.bytes = 0
        self.published = [0] * NODES

    def round(self, number: int) -> None:
        """Train, let those publish that the policy lets, and average."""
        for trainer in self.trainers:
            for _ in range(self._train.inner_steps):
                trainer.step()
        thetas = [trainer.vector() for trainer in self.trainers]
        here = [node for node in range(NODES) if self._publishes(node, number, thetas)]
        for node in here:
            self._publish(node, number, thetas[node])
        for node in here:
            trainer = self.trainers[node]
            ages = {str(other): number - self._at[other] for other in range(NODES) if other != node}
            members = {other: age for other, age in ages.items() if age <= self._asked.stalest}
            trainer.begin_round()
            trainer.correct(self._strategies[node].aggregate(thetas[node], members, round=number).correction_d)

    def _strategy(self, sync: SyncConfig, genesis_d: torch.Tensor, node: int) -> ModelAveraging:
        strategy = build(sync, genesis_d.clone(), own=str(node), rounds=self._train.rounds)
        assert isinstance(strategy, ModelAveraging), "tracked_gossip is one"
        return strategy

    def loss(self) -> float:
        """Return the mean of the nodes' held-out losses."""
        return fmean(trainer.evaluate(trainer.vector()) for trainer in self.trainers)

    def _publish(self, node: int, number: int, theta_d: torch.Tensor) -> None:
        message = self._strategies[node].encode(theta_d, round=number)
        others = [other for other in range(NODES) if other != node]
        for other in others:
            self._strategies[other].apply(str(node), message.codec, message.payload)
        known_d = self._strategies[node].public_d
        self._lengths[node] = float((known_d - self._public[node]).norm())
        self._public[node], self._at[node] = known_d.clone(), number
        self.bytes += len(message.payload) * len(others)
        self.published[node] += 1

    def _publishes(self, node: int, number: int, thetas: list[torch.Tensor]) -> bool:
        due = number - self._at[node] >= SELDOM or self._at[node] < 0
        return due or self._rng.random() < EXPLORE or self._is_worth_it(node, number, thetas)

    def _is_worth_it(self, node: int, number: int, thetas: list[torch.Tensor]) -> bool:
        others = [other for other in range(NODES) if other != node]
        match self._policy:
            case "lots":
                return self._rng.random() < self._asked.share
            case "size":
                mine = float((thetas[node] - self._public[node]).norm())
                return mine >= median(self._lengths[other] for other in others)
            case "novelty":
                distances = [float((thetas[node] - self._public[other]).norm()) for other in others]
                near = sum(distance < NEAR * median(distances) for distance in distances)
                return self._rng.random() < 1 / (near + 1)
            case "oracle":
                return node < OWN or number % (NODES - OWN) == node - OWN
            case _:
                return True


def curve(asked: argparse.Namespace, policy: str, seed: int) -> tuple[Curve, list[int]]:
    """Play one run; return its curve, and how often each node published."""
    train = TrainConfig(
        rounds=asked.rounds,
        inner_steps=asked.inner_steps,
        batch_size=16,
        warmup_steps=5,
        seed=seed,
        threads=1,
        device="cpu",
    )
    swarm, found = SittingSwarm(policy, train, asked), []
    for number in range(asked.rounds):
        swarm.round(number)
        if number % 2:
            found.append((swarm.bytes, swarm.loss()))
    return found, swarm.published


def at_bytes(of_all: Curve, spent: int) -> float:
    """Return the loss of a curve at so many bytes."""
    return float(np.interp(spent, [each for each, _ in of_all], [loss for _, loss in of_all]))


def rows(asked: argparse.Namespace) -> Iterator[str]:
    """Yield a line a run, then one a policy."""
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    found = {}
    for policy in asked.policies:
        for seed in seeds:
            found[policy, seed], published = curve(asked, policy, seed)
            spent, loss = found[policy, seed][-1]
            line = {"policy": policy, "seed": seed, "bytes": spent, "loss": round(loss, 4), "published": published}
            yield json.dumps(line)
    for policy in asked.policies if "all" in asked.policies else ():
        ends = [found[policy, seed][-1] for seed in seeds]
        beside = [at_bytes(found["all", seed], spent) for seed, (spent, _) in zip(seeds, ends, strict=True)]
        told = ", ".join(f"{loss:.4f} ({of_all:.4f})" for (_, loss), of_all in zip(ends, beside, strict=True))
        saved = 1 - fmean(spent for spent, _ in ends) / fmean(found["all", seed][-1][0] for seed in seeds)
        yield f"{policy}: {saved:.0%} fewer bytes; loss, and that of all at as many bytes: {told}"


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=POLICIES, choices=POLICIES)
    parser.add_argument("--partition", default="iid", help="of the five shards: iid, dirichlet, label")
    parser.add_argument("--aggregator", default="trimmed_mean", help="with f = 1; mean: f = 0")
    parser.add_argument("--share", type=float, default=0.6, help="of lots")
    parser.add_argument("--stalest", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--inner-steps", type=int, default=10)
    parser.add_argument("--seeds", default="0-1")
    for line in rows(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
