"""What a swarm in two regions loses to a flat one, and by what: trimming, or how seldom regions are averaged.

    python scripts/region_trimming.py --seeds 0-2 --out DIR

Eight nodes of byte-lm, real trainers and strategies without a network: every update comes, and in time. Flat, and as
two regions of four; each with f = 1 and f = 0; regions averaged every --every rounds, in int8, and in int4 with f = 1.
One JSON line a run: by rounds, the nodes' mean held-out loss, and that of the mean of their models. Then for each
layout both at the end over the nodes' loss in the flat swarm with f = 1 of the same seed. Runs that --out has are not
played again.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from node.system.script_end import ended_in_a_line
from p2ptrain.sync import SyncConfig, SyncStrategy, build
from p2ptrain.sync.base import RoundResult
from p2ptrain.sync.regional import RegionalAveraging, RegionalStrategy, RegionModels
from p2ptrain.tasks import Shard
from p2ptrain.tasks.byte_lm import ByteLM
from p2ptrain.training import TrainConfig, Trainer

NODES = 8
FLAT = "flat f=1"

Curve = Mapping[int, tuple[float, float]]
"""By round, the mean of the nodes' held-out losses, and the loss of the mean of their models."""


@dataclass(frozen=True)
class Layout:
    """`regions`: how many there are. `every`: rounds between two averagings of them."""

    name: str
    regions: int
    f: int
    every: int = 8
    compressor: str = "int8"
    """What regions' models travel in."""


class InMemorySwarm:
    """Nodes that close their rounds at the same time."""

    def __init__(self, layout: Layout, task: ByteLM, train: TrainConfig, compressor: str) -> None:
        self._train = train
        labels = tuple(f"region-{number}" for number in range(layout.regions)) if layout.regions > 1 else ()
        self._config = SyncConfig(
            f=layout.f,
            compressor=compressor,
            regions=labels,
            region_every=layout.every,
            region_compressor=layout.compressor,
        )
        self.trainers = [Trainer(task, train, Shard(index=each, count=NODES)) for each in range(NODES)]
        genesis_d = self.trainers[0].vector()
        self._strategies = [self._strategy(genesis_d, node) for node in range(NODES)]
        self._averaging = RegionalAveraging(self._config, genesis_d)
        self._groups = [list(range(first, NODES, layout.regions)) for first in range(layout.regions)]
        for group in self._groups:
            for node in group:
                for other in group:
                    if other != node:
                        self._strategies[node].track(str(other), None)
        self._published: list[RegionModels] = []

    def round(self, number: int) -> None:
        """Train, average within regions, and publish or move where it is time."""
        for trainer in self.trainers:
            for _ in range(self._train.inner_steps):
                trainer.step()
        results = {node: result for group in self._groups for node, result in self._close(group, number)}
        if len(self._groups) > 1:
            results = self._regions(results, number)
        for node, trainer in enumerate(self.trainers):
            trainer.correct(results[node].correction_d)

    def losses(self) -> tuple[float, float]:
        """Return the mean of the nodes' held-out losses, of their anchors, and the loss of the mean of these."""
        anchors = [self._regional(node).regional_model(self._train.rounds - 1) for node in range(NODES)]
        each = [trainer.evaluate(anchor_d) for trainer, anchor_d in zip(self.trainers, anchors, strict=True)]
        return fmean(each), self.trainers[0].evaluate(torch.stack(anchors).mean(0))

    def _strategy(self, genesis_d: torch.Tensor, node: int) -> SyncStrategy:
        return build(self._config, genesis_d.clone(), own=str(node), rounds=self._train.rounds)

    def _close(self, group: Sequence[int], number: int) -> Iterator[tuple[int, RoundResult]]:
        thetas = {node: self.trainers[node].vector() for node in group}
        messages = {node: self._strategies[node].encode(thetas[node], round=number) for node in group}
        for node in group:
            others = [other for other in group if other != node]
            for other in others:
                self._strategies[node].apply(str(other), messages[other].codec, messages[other].payload)
            self.trainers[node].begin_round()
            yield node, self._strategies[node].aggregate(thetas[node], {str(each): 0 for each in others}, round=number)

    def _regions(self, results: dict[int, RoundResult], number: int) -> dict[int, RoundResult]:
        if self._averaging.moves_after(number, self._train.rounds) and self._published:
            for place, group in enumerate(self._groups):
                others = [models for at, models in enumerate(self._published) if at != place]
                shift = self._averaging.shift(self._published[place], others, beside=len(others))
                assert shift.shift_d is not None, "all models are here"
                for node in group:
                    results[node] = self._regional(node).move_(results[node], shift.shift_d)
        if self._averaging.publishes_after(number, self._train.rounds):
            self._published = [self._models(group, number) for group in self._groups]
        return results

    def _models(self, group: Sequence[int], number: int) -> RegionModels:
        drawn = group[: 3 * self._config.f + 1]
        models = [self._averaging.encode(self._regional(node).regional_model(number)) for node in drawn]
        return RegionModels(models=models, needed=2 * self._config.f + 1, members=len(group), round=number)

    def _regional(self, node: int) -> RegionalStrategy:
        strategy = self._strategies[node]
        assert isinstance(strategy, RegionalStrategy), "tracked_gossip is one"
        return strategy


def main() -> None:
    """Play what is missing, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="pico")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--inner-steps", type=int, default=8)
    parser.add_argument("--compressor", default="q2", help="of updates")
    parser.add_argument("--eval-every", type=int, default=24)
    parser.add_argument("--every", type=int, nargs="*", default=[8, 4])
    parser.add_argument("--layouts", nargs="*", help="names of those to play; without it all")
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    chosen = [each for each in layouts(asked.every) if asked.layouts is None or each.name in asked.layouts]
    found = {each.name: [curve(asked, each, seed) for seed in seeds] for each in chosen}
    for name, curves in found.items():
        for place, what in enumerate(("nodes", "mean model")):
            pairs = zip(curves, found.get(FLAT, []), strict=False)
            ratios = [of[max(of)][place] / flat[max(flat)][0] for of, flat in pairs]
            told = ", ".join(f"{100 * ratio - 100:+.2f}%" for ratio in ratios)
            print(f"{name}, {what}: mean {100 * fmean(ratios) - 100:+.2f}% ({told})" if ratios else name)


def layouts(every: Sequence[int]) -> Iterator[Layout]:
    """Return what is compared, the flat swarm first."""
    for f in (1, 0):
        yield Layout(f"flat f={f}", 1, f)
        for rounds in every:
            yield Layout(f"regions f={f} every {rounds}", 2, f, rounds)
    for rounds in every:
        yield Layout(f"regions f=1 every {rounds} int4", 2, 1, rounds, "int4")


def curve(asked: argparse.Namespace, layout: Layout, seed: int) -> Curve:
    """Return one run's losses."""
    length = f"{asked.size}-{asked.batch_size}-{asked.rounds}x{asked.inner_steps}-{asked.compressor}"
    kept = asked.out / f"{length}-{layout.name.replace(' ', '_')}-{seed}.json"
    if not kept.exists():
        train = TrainConfig(
            rounds=asked.rounds,
            inner_steps=asked.inner_steps,
            batch_size=asked.batch_size,
            seed=seed,
            threads=1,
            device="cpu",
        )
        swarm, losses = InMemorySwarm(layout, ByteLM(asked.size), train, asked.compressor), {}
        for number in range(asked.rounds):
            swarm.round(number)
            if (number + 1) % asked.eval_every == 0:
                losses[number + 1] = swarm.losses()
        kept.write_text(json.dumps(losses))
        print(json.dumps({"layout": layout.name, "seed": seed, "losses": losses}), flush=True)
    return {int(at): tuple(losses) for at, losses in json.loads(kept.read_text()).items()}


if __name__ == "__main__":
    with ended_in_a_line():
        main()
