"""Measures what visitors do to a swarm's loss, and what a visit costs in bytes.

    python scripts/visitors_loss.py --visitors 100 --liars 0.1

A few hosts train on the digits, each on a twentieth of them, and average their models after every round. The visitors
have the other digits, a dozen each. In a round some of them come by chance: they ask the host's real HTTP application,
in this process, and train with examples/visitors/visit.py. Some came rounds ago and have their difference ready only
now. Liars leave ten times the opposite of what they learned. Everything follows from the seed.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import numpy as np
import torch
import trio
from nacl.signing import SigningKey

from node.config.visits_section import VisitsConfig
from node.visits.visit_server import VisitServer
from node.visits.visitors import StepAdvice, VisitedRun, Visitors
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "visitors"))
import visit as program

from node.system.script_end import ended_in_a_line

HOST_SHARDS = 20
LATE_ROUNDS = 3
"""A visitor takes up to so many rounds less one for its steps."""
ALL_HELD_OUT = 359
SEEDS_APART = 1000
LIE = -10.0


class Host:
    """A host that trains, and its visitors' application."""

    def __init__(self, nth: int, config: TrainConfig, most: int, *, agree: bool) -> None:
        shard = Shard(index=nth, count=HOST_SHARDS)
        self.trainer = Trainer(tasks.get("digits"), config, shard, data_seed=nth + SEEDS_APART * config.seed)
        layout = self.trainer.layout()
        assert layout is not None
        run = VisitedRun(
            run_id=bytes(16),
            task="digits",
            numel=self.trainer.numel,
            parameters=[(each.name, each.shape) for each in layout.parameters],
        )
        settings = VisitsConfig(listen="127.0.0.1:8443", most_a_round=most, most_of_network=most, agreement=agree)
        self.visitors = Visitors(settings, run, self._advice)
        self.app = VisitServer(settings, self.visitors, here).app()

    def _advice(self) -> StepAdvice:
        config, rate = self.trainer.config, self.trainer.learning_rate
        return StepAdvice(
            steps=config.inner_steps,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate if rate is None else rate,
            clip_norm=config.clip_norm,
        )

    def close(self, model_d: torch.Tensor, theta_d: torch.Tensor, round: int) -> None:
        """Close a round that made `model_d` of the model after its steps."""
        correction_d = model_d - theta_d
        closed = self.visitors.begin_closing().close(model_d, correction_d, round=round)
        self.trainer.correct(correction_d)
        if closed.visited_d is not None:
            self.trainer.correct(closed.visited_d)
        self.visitors.finish_closing(closed)


async def here(function: Any) -> Any:
    """Compute on the event loop."""
    await trio.lowlevel.checkpoint()
    return function()


@dataclass
class Visitor:
    """A visitor: its digits, its key, and the models that it has, by host."""

    data: program.Floats
    key: SigningKey
    lies: bool
    models: dict[int, program.Model] = field(default_factory=dict)


@dataclass
class Wire:
    """Bytes of a visit: bodies, and heads as HTTP/1.1 writes them."""

    first: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0


async def begin(visitor: Visitor, at: int, host: Host, rng: np.random.Generator) -> tuple[bytes, int, bool]:
    """Take the model and train. Return the body of the request to come, the bytes so far, and whether it was the first
    visit to this host."""
    spent = 0
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1:8443") as client:
        answer = await client.get("/v1/visit")
        spent += wire_bytes(answer)
        told, have = answer.json(), visitor.models.get(at)
        blocks = -(-told["numel"] // told["block"])
        answer = await client.get("/v1/model", params={} if have is None else {"have": have.digest.hex()})
        spent += wire_bytes(answer)
    form, text = answer.headers["p2ptrain-form"], answer.content
    if have is not None and form != "whole":
        text = have.payload if form == "same" else program.changed(have.payload, text, blocks)
    model = visitor.models[at] = program.Model(text, int(answer.headers["p2ptrain-round"]))
    assert model.digest.hex() == answer.headers["p2ptrain-model"]
    start = program.decode(model.payload, told["numel"], told["block"])
    trained, _ = program.train(start, told, visitor.data, rng)
    payload = program.encode((trained - start) * (LIE if visitor.lies else 1.0), told["block"])
    head = bytes(visitor.key.verify_key) + model.round.to_bytes(8, "little") + model.digest
    signed = b"p2ptrain-visit-1\0" + bytes.fromhex(told["run"]) + head + sha256(payload).digest()
    return head + visitor.key.sign(signed).signature + payload, spent, have is None


async def leave(body: bytes, host: Host) -> tuple[bool, int]:
    """Leave a difference. Return whether it was taken, and the bytes."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1:8443") as client:
        answer = await client.post("/v1/difference", content=body)
    return answer.status_code == httpx.codes.OK, wire_bytes(answer)


def wire_bytes(answer: httpx.Response) -> int:
    """Return the bytes of a request and its answer: first lines, headers and bodies."""
    sent, lines = answer.request, 2
    heads = [*sent.headers.raw, *answer.headers.raw]
    head = sum(len(name) + len(value) + 4 for name, value in heads) + len(sent.url.raw_path) + 30 + 2 * lines
    return head + len(sent.content) + len(answer.content)


async def run(given: argparse.Namespace) -> dict[str, object]:
    """Run a swarm with its visitors to the end."""
    config = TrainConfig(
        rounds=given.rounds,
        inner_steps=given.inner_steps,
        threads=1,
        warmup_steps=20,
        learning_rate=given.rate,
        eval_examples=ALL_HELD_OUT,
        seed=given.seed,
    )
    hosts = [Host(nth, config, max(given.visitors, 4), agree=given.agree) for nth in range(given.hosts)]
    task, rng = tasks.get("digits"), np.random.default_rng(given.seed)
    left = [task.examples(Shard(index=nth, count=HOST_SHARDS)) for nth in range(given.hosts, HOST_SHARDS)]
    parts = np.array_split(rng.permutation(np.concatenate(left)), max(given.visitors, 1))
    rows = torch.cat([task.train.images * 16, task.train.labels[:, None].float()], dim=1).numpy()
    visitors = [
        Visitor(
            rows[parts[nth]], SigningKey(sha256(f"{nth}".encode()).digest()), lies=nth < given.liars * given.visitors
        )
        for nth in range(given.visitors)
    ]
    wire, ready, losses = Wire(), {}, []
    for round_ in range(given.rounds):
        for host in hosts:
            for _ in range(given.inner_steps):
                host.trainer.step()
        for body, at, spent, first in ready.pop(round_, []):
            taken, more = await leave(body, hosts[at])
            wire.accepted, wire.refused = wire.accepted + taken, wire.refused + (not taken)
            (wire.first if first else wire.later).append(spent + more)
        thetas = [host.trainer.vector() for host in hosts]
        model_d = torch.stack(thetas).mean(0)
        for host, theta_d in zip(hosts, thetas, strict=True):
            host.close(model_d, theta_d, round_)
        come = rng.choice(given.visitors, min(given.come, given.visitors), replace=False) if given.visitors else ()
        for nth in come:
            at = int(rng.integers(given.hosts))
            begun = await begin(visitors[nth], at, hosts[at], rng)
            body, spent, first = begun
            ready.setdefault(round_ + 1 + int(rng.integers(LATE_ROUNDS)), []).append((body, at, spent, first))
        losses.append(hosts[0].trainer.evaluate(model_d))
    payload = hosts[0].visitors.body_bytes
    return {
        "visitors": given.visitors,
        "liars": given.liars,
        "seed": given.seed,
        "loss": round(losses[-1], 4),
        "loss_half_way": round(losses[len(losses) // 2], 4),
        "best_loss": round(min(losses), 4),
        "accepted": wire.accepted,
        "refused": wire.refused,
        "difference_bytes": payload,
        "first_visit_bytes": round(mean(wire.first)) if wire.first else 0,
        "later_visit_bytes": round(mean(wire.later)) if wire.later else 0,
        "longest_visit_bytes": max([*wire.first, *wire.later], default=0),
    }


def main() -> None:
    """Print one JSON line."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--hosts", type=int, default=3)
    words.add_argument("--visitors", type=int, default=100)
    words.add_argument("--come", type=int, default=12, help="visitors that come in a round")
    words.add_argument("--liars", type=float, default=0.0, help="the part of the visitors that lie")
    words.add_argument("--rounds", type=int, default=60)
    words.add_argument("--inner-steps", type=int, default=20)
    words.add_argument("--rate", type=float, default=2e-3)
    words.add_argument("--agree", action="store_true", help="visits.agreement")
    words.add_argument("--seed", type=int, default=0)
    print(json.dumps(trio.run(run, words.parse_args())))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
