"""What each clinic's patients gain: alone, by one shared model, and by a shared body with heads of the clinics' own.

    python -m examples.clinics.compare --seeds 0-4
    python -m examples.clinics.compare --seeds 0-4 --epsilon 1      # another budget than that of the settings

The trainers, task and settings are those of `clinics.toml`, in one process and without a network: after each round the
mean of the clinics' shared parameters is what a secure sum of all five gives. Each clinic's model is tried on its own
test split, 114 patients in all. Each way is run with differential privacy and without. One JSON line a run: patients
that are named rightly, by clinic, and their share. Then a table of the means over the seeds.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from examples.clinics.task import SHARES, create
from node.config.schema import Config, from_raw
from node.roles.assembly import own_trainer
from node.sweep.seeds import parse_seeds
from node.system.errors import UsageError
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer

CLINICS: Final = len(SHARES)
SETTINGS: Final = Path(__file__).with_name("clinics.toml")
WAYS: Final = ("alone", "together", "own head")
ALL: Final = 1000
"""More patients than a test split has."""


def config_of(way: str, seed: int, clinic: int, *, private: bool, epsilon: float | None = None) -> Config:
    """Return a clinic's settings."""
    raw: dict[str, Any] = tomllib.loads(SETTINGS.read_text())
    raw["train"] |= {"seed": seed, "device": "cpu"}
    if way != "own head":
        raw["train"]["local"] = []
    if private:
        privacy, steps = raw["privacy"], raw["train"]["rounds"] * raw["train"]["inner_steps"]
        if epsilon is not None:
            privacy["noise"] = noise_for(epsilon, privacy["delta"], rate=privacy["rate"], steps=steps)
        del privacy["epsilon"]  # nobody counts here: the settings' steps and noise are what spends it
    else:
        del raw["privacy"]
    raw["node"] |= {"shard_index": clinic, "shard_count": CLINICS}
    return from_raw(raw)


def trained(way: str, seed: int, *, private: bool, epsilon: float | None = None) -> list[Trainer]:
    """Return what has trained the clinics' models."""
    configs = [config_of(way, seed, clinic, private=private, epsilon=epsilon) for clinic in range(CLINICS)]
    clinics = [own_trainer(config, "", spend=unaccounted) for config in configs]
    for _ in range(configs[0].train.rounds):
        for clinic in clinics:
            clinic.begin_round()
            for _ in range(configs[0].train.inner_steps):
                clinic.take_step()
            clinic.end_round()
        if way != "alone":
            mean_d = torch.stack([clinic.vector() for clinic in clinics]).mean(0)
            for clinic in clinics:
                clinic.load_vector(mean_d)
    return clinics


@torch.no_grad()
def rights(clinics: list[Trainer]) -> list[tuple[int, int]]:
    """Return how many of each clinic's own test split its model names rightly, and how many there are."""
    task, found = create(), []
    for index, clinic in enumerate(clinics):
        model = clinic.model_with()
        (batch,) = task.shard_eval_batches(Shard(index=index, count=CLINICS), ALL)
        found.append((int((model(batch[0]).argmax(1) == batch[1]).sum()), len(batch[1])))
    return found


def rows(seeds: Sequence[int], epsilon: float | None) -> Iterator[dict[str, Any]]:
    """Train every way with every seed, and yield a run's figures."""
    for private in (False, True):
        for way in WAYS:
            for seed in seeds:
                counts = rights(trained(way, seed, private=private, epsilon=epsilon))
                share = 100 * sum(right for right, _ in counts) / sum(there for _, there in counts)
                clinics = [f"{right}/{there}" for right, there in counts]
                yield {"private": private, "way": way, "seed": seed, "right": round(share, 1), "clinics": clinics}


def main() -> None:
    """Measure every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-4", help="such as 0-4")
    parser.add_argument("--epsilon", type=float, help="the budget, in place of the settings'")
    asked = parser.parse_args()
    try:
        seeds = parse_seeds(asked.seeds)
    except UsageError as error:
        parser.error(str(error))
    if asked.epsilon is not None and not 0 < asked.epsilon < float("inf"):
        parser.error("--epsilon must be above 0")
    torch.set_num_threads(1)
    found = []
    for row in rows(seeds, asked.epsilon):
        print(json.dumps(row), flush=True)
        found.append(row)
    for private in (False, True):
        shares = {
            way: [row["right"] for row in found if (row["private"], row["way"]) == (private, way)] for way in WAYS
        }
        means = ", ".join(f"{way} {fmean(each):.1f}% ({min(each)} to {max(each)})" for way, each in shares.items())
        print(f"{'with' if private else 'without'} differential privacy: {means}")


if __name__ == "__main__":
    main()
