"""How well models that stay personal do on their own nodes' data, beside the shared one and a node alone.

    python scripts/personal_models.py --seeds 0-4
    python scripts/personal_models.py --seeds 0-4 --liars 2      # of the ten; honest nodes are compared

Ten nodes learn the digits, dealt by Dirichlet draws of concentration --alpha. All know each other; real trainers and
strategies, round by round, without a network. Each node's model is tried on the held-out digits that are its own
(`shard_eval_batches`: the mix of digits of its shard). Ways:

- alone: the same steps, and nobody else.
- gossip: the shared model.
- head: the last layer is each node's own (train.local, FedPer); head first: its steps come first (FedRep).
- norms: the norms are each node's own (FedBN).
- ditto: the personal model v beside the shared one.

One JSON line a run: the share of digits named rightly, over all nodes' digits together (`pooled`) and as the mean over
nodes. Then a table: means over seeds with 95% intervals. With --liars every way but `alone` is run a second time, the
last nodes being liars that publish the negative of what they learned, and only the others are compared, in both; runs
without liars also have the shares over all nodes (`all_pooled`, `all_mean`).
"""

import argparse
import json
from statistics import fmean
from typing import Any, Final

import torch

from node.bench.lists import some_numbers
from node.bench.quality.intervals import estimate
from node.bench.swarm.run_spec import RunSpec, Shape
from node.bench.swarm.simulation import Swarm
from node.config.schema import Config, from_raw
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import Trainer
from p2ptrain.training.ditto import DittoTrainer

ALL: Final = 10**6
"""More digits than are held out."""

HEAD: Final = ["6.*"]
NORMS: Final = ["1.*", "4.*"]
ALONE: Final = "alone"
WAYS: Final = (ALONE, "gossip", "head", "head first", "norms", "ditto")


def config_of(way: str, seed: int, asked: argparse.Namespace, *, lies: bool) -> Config:
    """Return the nodes' settings."""
    train: dict[str, Any] = {
        "rounds": asked.rounds,
        "inner_steps": asked.inner_steps,
        "seed": seed,
        "device": "cpu",
        "local": {"head": HEAD, "head first": HEAD, "norms": NORMS}.get(way, []),
        "local_steps": asked.inner_steps // 2 if way == "head first" else 0,
    }
    return from_raw(
        {
            "task": {"name": "digits", "partition": "dirichlet", "alpha": asked.alpha},
            "train": train,
            "sync": {"aggregator": asked.aggregator, "f": asked.f},
            "attack": {"name": "sign_flip"} if lies else {},
            "personal": {"strength": asked.strength} if way == "ditto" else {},
        }
    )


def models(way: str, seed: int, asked: argparse.Namespace, *, lies: bool) -> list[torch.nn.Module]:
    """Train, and return each node's model."""
    config = config_of(way, seed, asked, lies=lies)
    task = Digits("dirichlet", asked.alpha)
    if way == ALONE:
        trainers = [Trainer(task, config.train, Shard(index=each, count=asked.nodes)) for each in range(asked.nodes)]
        for trainer in trainers:
            for _ in range(config.train.total_steps):
                trainer.step()
        return [trainer.model_with() for trainer in trainers]
    liars = asked.liars if lies else 0
    swarm = Swarm(RunSpec(config=config, shape=Shape(nodes=asked.nodes, degree=asked.nodes - 1, byzantine=liars)), task)
    for _ in range(config.train.rounds):
        swarm.round()
    return [_model(node.trainer, node.anchor_d) for node in swarm.nodes]


def _model(trainer: Trainer, anchor_d: torch.Tensor) -> torch.nn.Module:
    return trainer.personal.model_with() if isinstance(trainer, DittoTrainer) else trainer.model_with(anchor_d)


@torch.no_grad()
def rights(found: list[torch.nn.Module], asked: argparse.Namespace) -> list[tuple[int, int]]:
    """Return how many of each node's own held-out digits its model names rightly, and how many there are."""
    task, counts = Digits("dirichlet", asked.alpha), []
    for index, model in enumerate(found):
        batches = task.shard_eval_batches(Shard(index=index, count=asked.nodes), ALL)
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
        counts.append((right, sum(len(labels) for _, labels in batches)))
    return counts


def row(way: str, seed: int, asked: argparse.Namespace, *, lies: bool) -> dict[str, Any]:
    """Return a run's figures."""
    counts = rights(models(way, seed, asked, lies=lies), asked)
    told: dict[str, Any] = {"way": way, "lies": lies, "seed": seed, **_shares(counts[: asked.nodes - asked.liars])}
    if asked.liars and not lies:
        told |= {f"all_{key}": value for key, value in _shares(counts).items()}
    return {**told, "nodes": [f"{right}/{there}" for right, there in counts]}


def _shares(counts: list[tuple[int, int]]) -> dict[str, float]:
    held_out = [(right, there) for right, there in counts if there]
    return {
        "pooled": 100 * sum(right for right, _ in held_out) / sum(there for _, there in held_out),
        "mean": 100 * fmean(right / there for right, there in held_out),
    }


def main() -> None:
    """Measure every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=some_numbers, default="0-4", help="such as 0-4")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--strength", type=float, default=0.1, help="Ditto's lambda")
    parser.add_argument("--aggregator", default="trimmed_mean")
    parser.add_argument("--f", type=int, default=None)
    parser.add_argument("--liars", type=int, default=0)
    asked = parser.parse_args()
    asked.f = asked.liars if asked.f is None else asked.f
    torch.set_num_threads(1)
    ways = asked.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"there is no way {', '.join(sorted(unknown))}; there are: {', '.join(WAYS)}")
    rows: list[dict[str, Any]] = []
    for seed in asked.seeds:
        for way in ways:
            for lies in (False, True) if asked.liars and way != ALONE else (False,):
                rows.append(row(way, seed, asked, lies=lies))
                print(json.dumps(rows[-1]), flush=True)
    for lies in (False, True):
        for way in ways:
            of = [each for each in rows if each["way"] == way and each["lies"] == lies]
            if of:
                print(_line(way + (", liars" if lies else ""), of, ""))
    for way in ways if asked.liars else ():
        print(_line(f"{way}, all nodes", [each for each in rows if each["way"] == way and not each["lies"]], "all_"))


def _line(name: str, rows: list[dict[str, Any]], prefix: str) -> str:
    return f"{name:22} {_words(rows, prefix + 'pooled'):12} mean of nodes {_words(rows, prefix + 'mean')}"


def _words(rows: list[dict[str, Any]], key: str) -> str:
    found = estimate([each[key] for each in rows])
    assert found is not None, "called with rows"
    return f"{found.mean:.1f}" + ("" if found.half is None else f" ± {found.half:.1f}")


if __name__ == "__main__":
    with ended_in_a_line():
        main()
