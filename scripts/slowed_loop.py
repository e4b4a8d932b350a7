"""A member whose steps take as long as they are told to: the digits, in a loop of its own, by `p2ptrain.join`.

    python scripts/slowed_loop.py --index 4 --count 5 --step-s 0.2 --rounds 40 --folder DIR [--peer ADDRESS ...]

It sleeps for the rest of each step, so that several members share a core without slowing each other down. Its address
and what it measures are in DIR/node/events.jsonl, and the time of its first step in DIR/began.json.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import nn

import p2ptrain
from node.bench.swarm.heterogeneous import LoneDigit
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import EPSILON, Digits

BATCH, HELD_OUT = 16, 512
"""Examples of a step, and of a measurement."""
LAST_RATE = 0.1
"""Share of the learning rate that the last round has."""
BEGAN = "began.json"
DATA: Final[dict[str, Callable[[], Digits]]] = {
    "dirichlet": partial(Digits, partition="dirichlet"),
    "lone": LoneDigit,
}
"""`lone`: the last member alone has the nines, and measures how many of them are known."""

NODE: Final[dict[str, object]] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "network.mdns": False,
    "node.metrics_port": -1,
    "node.linger_s": 3.0,
    "node.wait_timeout_s": 300.0,
    "train.eval_every": 2,
}


def main(words: Sequence[str] | None = None) -> None:
    """Train until the run's rounds are over. `words`: by default those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=int, required=True, help="which of the shards is its own, from 0")
    parser.add_argument("--count", type=int, required=True, help="members, which all wait for each other")
    parser.add_argument("--step-s", type=float, required=True, help="least seconds of a step")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--folder", type=Path, required=True, help="its run folder")
    parser.add_argument("--peer", action="append", default=[], help="the address of another member")
    parser.add_argument("--data", choices=[*DATA], default="dirichlet", help="who has which digits")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate of the first round")
    parser.add_argument("--seed", type=int, default=0, help="of the initial model, and of the order of the data")
    parser.add_argument("--settings", type=json.loads, default={}, help='such as {"node.pace": "dylu"}')
    train(parser.parse_args(words))


def train(asked: argparse.Namespace) -> None:
    """Join, and take steps of `asked.step_s` seconds."""
    torch.set_num_threads(1)
    task = DATA[asked.data]()
    torch.manual_seed(asked.seed)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.rate, eps=EPSILON)
    swarm = p2ptrain.join(
        model,
        optimizer,
        peers=asked.peer,
        run_dir=asked.folder,
        name="node",
        inner_steps=asked.inner_steps,
        rounds=asked.rounds,
        wait_for=asked.count - 1,
        evaluate=lambda it: measured(task, it),
        settings=NODE | asked.settings,
        quiet=True,
    )
    shard, step = Shard(index=asked.index, count=asked.count), 0
    with swarm:
        (asked.folder / BEGAN).write_text(json.dumps({"ts": time.time(), "event": "began"}))
        while (round_ := swarm.round) < asked.rounds:
            until_s = time.monotonic() + asked.step_s
            optimizer.param_groups[0]["lr"] = asked.rate * share_of_rate(round_, asked.rounds)
            task.loss(model, task.train_batch(step, seed=asked.seed, shard=shard, size=BATCH)).backward()
            time.sleep(max(0.0, until_s - time.monotonic()))
            optimizer.step()
            optimizer.zero_grad()
            step += 1


def share_of_rate(round_: int, rounds: int) -> float:
    """Return the share of the learning rate that a round has: half a cosine over the run."""
    return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * round_ / rounds)) / 2


def log_of(folder: Path) -> Path:
    """Return the event log of the member whose run folder that is."""
    return folder / "node" / "events.jsonl"


@torch.no_grad()
def measured(task: Digits, model: nn.Module) -> dict[str, float]:
    """Return the mean loss of the held-out digits, in nats, and the task's own metrics."""
    images, labels = zip(*task.eval_batches(HELD_OUT), strict=True)
    batch = torch.cat(images), torch.cat(labels)
    own = task.metrics(model, batch) if isinstance(task, LoneDigit) else {}
    return {"loss": float(task.loss(model, batch)), **own}


if __name__ == "__main__":
    with ended_in_a_line():
        try:
            main()
        except p2ptrain.P2PTrainError as error:
            sys.exit(f"slowed_loop: {error}")
