"""Measure torchft's own `DiLoCo` class over a swarm against our strategy `diloco`, and both against the algorithm.

    python scripts/torchft_diloco.py --out FOLDER [--size nano] [--nodes 4] [--rounds 40] [--inner-steps 20]
        [--alpha 0.9] [--beta 0.7] [--seeds 0 1 2]

Four ways to the same thing, in turns: the same initial model, batches of each member, inner optimizer (AdamW), rounds
of H steps, and outer optimizer (SGD with Nesterov momentum).

    exact     one process, no network: the members' models one after the other, the mean of their pseudo-gradients
    torchft   a process for each member, on loopback: `torchft.local_sgd.DiLoCo` over `GossipManager`
    ours      a process for each member, on loopback: `p2ptrain.join` with sync.strategy = diloco, which trains on while
              a round closes
    waits     the same with node.overlap = false: a member waits until its round is closed, for all (network.quorum = 1)

Prints a Markdown table: the held-out loss of the mean of the members' last models, the mean and the spread of the
members' own, rounds in which a member had everybody's update, and seconds.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import p2ptrain
from node.system.script_end import ended_in_a_line
from p2ptrain import tasks
from p2ptrain.tasks import Shard

WAYS = ("exact", "torchft", "ours", "waits")
WAITING: dict[str, object] = {"node.overlap": False, "network.quorum": 1.0}
ON_LOOPBACK = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.checkpoint_every": 0,
}
RATE, WARMUP, LAST_RATE, BATCH, EVALUATED = 3e-3, 40, 0.1, 8, 512
"""Of the inner optimizer: peak, steps up to it, share of it at the end. Examples of a batch, and held-out ones."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one way."""

    size: str
    nodes: int
    rounds: int
    inner_steps: int
    alpha: float
    beta: float
    seed: int

    @property
    def steps(self) -> int:
        """How many inner steps a member takes."""
        return self.rounds * self.inner_steps


class Member:
    """One member's model, data and inner optimizer."""

    def __init__(self, run: Run, index: int) -> None:
        torch.set_num_threads(1)
        self.run, self.shard = run, Shard(index=index, count=run.nodes)
        self.task = tasks.get("byte-lm", size=run.size)
        torch.manual_seed(run.seed)  # all begin with the same model
        self.model = self.task.build_model()
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.inner, lambda step: _share(step, run.steps))

    def outer(self) -> torch.optim.Optimizer:
        """Return the outer optimizer, as torchft's users make it."""
        return torch.optim.SGD(
            self.model.parameters(), lr=self.run.beta, momentum=self.run.alpha, nesterov=self.run.alpha > 0
        )

    def train(self, steps: range) -> None:
        """Take inner steps."""
        for step in steps:
            batch = self.task.train_batch(step, seed=self.run.seed, shard=self.shard, size=BATCH)
            self.inner.zero_grad()
            self.task.loss(self.model, batch).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.inner.step()
            self.rate.step()

    @torch.no_grad()
    def loss(self) -> float:
        """Return the held-out loss of the model as it is."""
        batches = self.task.eval_batches(EVALUATED)
        weights = [self.task.tokens(batch) for batch in batches]
        return sum(
            self.task.loss(self.model, batch).item() * weight for batch, weight in zip(batches, weights, strict=True)
        ) / sum(weights)


def _share(step: int, steps: int) -> float:
    """The inner learning rate's share of its peak: a linear rise, then a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def exact(run: Run, out: Path) -> None:
    """DiLoCo as it is written (2311.08105), without a network: all members' models in one process."""
    members = [Member(run, index) for index in range(run.nodes)]
    outers = [member.outer() for member in members]
    for round_ in range(run.rounds):
        begun = [parameter.detach().clone() for parameter in members[0].model.parameters()]
        for member in members:
            member.train(range(round_ * run.inner_steps, (round_ + 1) * run.inner_steps))
        after = [list(member.model.parameters()) for member in members]
        for number, before in enumerate(begun):
            mean = torch.stack([parameters[number].detach() for parameters in after]).mean(0)
            for parameters in after:
                parameters[number].data.copy_(before)
                parameters[number].grad = before - mean
        for outer in outers:
            outer.step()
    for index, member in enumerate(members):
        torch.save(member.model.state_dict(), out / f"{index}.pt")


def over_torchft(member: Member, keywords: dict[str, Any]) -> None:
    """Train by torchft's class."""
    from torchft.local_sgd import DiLoCo

    from p2ptrain.integrations.torchft import GossipManager

    with (
        GossipManager([member.model], **keywords) as manager,
        DiLoCo(manager, [member.model], member.inner, member.outer(), sync_every=member.run.inner_steps),
    ):
        member.train(range(member.run.steps))


def by_our_own(member: Member, keywords: dict[str, Any]) -> None:
    """Train by our strategy."""
    run = member.run
    sync = {"sync.strategy": "diloco", "sync.alpha": run.alpha, "sync.beta": run.beta}
    keywords = {**keywords, "settings": {**keywords["settings"], **sync}}
    with p2ptrain.join(member.model, member.inner, inner_steps=run.inner_steps, rounds=run.rounds, **keywords):
        member.train(range(run.steps))


def be_member(way: str, run: Run, index: int, out: Path, peers: list[str]) -> None:
    """Process: one member of a swarm."""
    member = Member(run, index)
    keywords = {
        "peers": peers,
        "run_dir": out / f"run-{index}",
        "wait_for": run.nodes - 1,
        "settings": ON_LOOPBACK,
        "quiet": True,
    }
    if way == "waits":
        keywords["settings"] = ON_LOOPBACK | WAITING
    (over_torchft if way == "torchft" else by_our_own)(member, keywords)
    torch.save(member.model.state_dict(), out / f"{index}.pt")


def swarm(way: str, run: Run, out: Path) -> None:
    """Run all members as processes. RuntimeError where one fails."""
    processes = [started(way, run, 0, out, [])]
    try:
        peers = addresses_of(out, processes[0])
        processes += [started(way, run, index, out, peers) for index in range(1, run.nodes)]
        ended = [process.wait() for process in processes]  # all of them, also where one fails
        if any(ended):
            raise RuntimeError(f"a member failed: see {out}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def started(way: str, run: Run, index: int, out: Path, peers: list[str]) -> subprocess.Popen[bytes]:
    """Start one member."""
    words = [sys.executable, __file__, "--out", str(out), "--member", json.dumps([way, vars(run), index, peers])]
    with (out / f"{index}.log").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


def addresses_of(out: Path, first: subprocess.Popen[bytes]) -> list[str]:
    """Wait for the first member to listen, and return where."""
    while first.poll() is None:
        found = events(out, 0, "started")
        if found:
            return [str(address) for address in found[0]["addresses"]]
        time.sleep(0.1)
    raise RuntimeError(f"the first member failed: see {out}")


def events(out: Path, index: int, name: str) -> list[dict[str, Any]]:
    """Return a member's events of this name."""
    file = out / f"run-{index}" / "node" / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def measured(way: str, run: Run, out: Path) -> list[str]:
    """Run one way, and return its row of the table."""
    out.mkdir(parents=True)
    began = time.monotonic()
    if way == "exact":
        exact(run, out)
    else:
        swarm(way, run, out)
    took = time.monotonic() - began
    whole = [
        event["members"] == run.nodes
        for index in range(run.nodes)
        for event in events(out, index, "round")
        if event["round"] <= run.rounds
    ]
    states = [torch.load(out / f"{index}.pt") for index in range(run.nodes)]
    judge = Member(run, 0)
    own = [loss_of(judge, state) for state in states]
    mean = loss_of(judge, {name: sum(state[name] for state in states) / run.nodes for name in states[0]})
    return [
        str(run.seed),
        way,
        f"{mean:.4f}",
        f"{sum(own) / run.nodes:.4f}",
        f"{max(own) - min(own):.4f}",
        f"{sum(whole)} of {len(whole)}" if whole else "-",
        f"{took:.0f}",
    ]


def loss_of(judge: Member, state: dict[str, torch.Tensor]) -> float:
    """Return the held-out loss of a model."""
    judge.model.load_state_dict(state)
    return judge.loss()


def main() -> None:
    """Run all ways in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new folder, for everything that is written")
    parser.add_argument("--size", default="nano", help="of byte-lm's model")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--alpha", type=float, default=0.9, help="the outer optimizer's momentum")
    parser.add_argument("--beta", type=float, default=0.7, help="its rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        way, run, index, peers = json.loads(given.member)
        be_member(way, Run(**run), index, given.out, peers)
        return
    print(
        "| seed | way | loss of the mean | mean of own | spread | rounds with all | s |\n|---|---|---|---|---|---|---|"
    )
    for seed in given.seeds:
        run = Run(
            size=given.size,
            nodes=given.nodes,
            rounds=given.rounds,
            inner_steps=given.inner_steps,
            alpha=given.alpha,
            beta=given.beta,
            seed=seed,
        )
        for way in given.ways:
            print(f"| {' | '.join(measured(way, run, given.out / f'{way}-{seed}'))} |", flush=True)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
