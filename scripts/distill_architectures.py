"""Do members whose models differ in shape gain from each other's logits, and what do two liars of eight do to it?

    python scripts/distill_architectures.py --seeds 1 2 3
    python scripts/distill_architectures.py --seeds 1 2 3 --liars

Eight members on digits, dealt by Dirichlet draws of 0.5, with three architectures in turn (mlp, wide, conv). All know
the same 300 digits without labels, which are in no shard. Each way has the same steps on the same own data:

    alone       nothing is exchanged
    parameters  each averages with those of its own architecture (`tracked_gossip`, q2)
    logits      each learns what a trimmed mean of all members' logits says of the public digits (int8)

The figures are means over honest members, on the held-out digits: of all ten digits, whatever a member's shard has. In
lockstep, without a network: the strategy, codec, aggregator and trainers are those that a node has.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

import torch

from node.system.script_end import ended_in_a_line
from p2ptrain import aggregate, tasks
from p2ptrain.sync import SyncConfig, SyncStrategy, build
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import CLASSES, MODELS, Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer
from p2ptrain.training.public_logits import LARGEST_LOGIT

MEMBERS: Final = 8
LIARS: Final = 2
Member = Trainer | LogitsTrainer
Lie = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def sign_flipped(x_d: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """What it thinks, with the opposite sign."""
    return -x_d


def constant_class(x_d: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Every digit is a 0, as surely as can be said."""
    lie_nc = torch.full((len(x_d) // CLASSES, CLASSES), -LARGEST_LOGIT / (CLASSES - 1))
    lie_nc[:, 0] = LARGEST_LOGIT
    return lie_nc.flatten()


def random_logits(x_d: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Anything, as large as can be said, another in each round."""
    return LARGEST_LOGIT * torch.randn(len(x_d), generator=drawn)


def quiet_constant(x_d: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Every digit is a 0, no louder than what it thinks: as far from zero as an honest member."""
    lie_d = constant_class(x_d, drawn)
    return lie_d * (x_d.norm() / lie_d.norm())


def leaning(x_d: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """What it thinks, with two nats more for 0: among the honest, and on one side of them in every round."""
    lie_nc = x_d.clone().view(-1, CLASSES)
    lie_nc[:, 0] += 2
    return (lie_nc - lie_nc.mean(1, keepdim=True)).flatten()


LIES: Final[dict[str, Lie]] = {
    each.__name__: each for each in (sign_flipped, constant_class, random_logits, quiet_constant, leaning)
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Means over honest members."""

    accuracy: float
    loss: float
    sent_bytes: float
    """A round, of one copy."""
    by_model: dict[str, float]
    """Accuracy, by architecture."""


def main() -> None:
    """Print a line for each way and seed, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in a round")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet draws")
    parser.add_argument("--public", type=int, default=300)
    parser.add_argument("--liars", action="store_true", help="the last two of the eight lie")
    parser.add_argument("--only", default="", help="ways whose name begins so")
    parser.add_argument("--aggregators", nargs="+", default=["trimmed_mean"])
    parser.add_argument("--f", type=int, default=LIARS, help="liars that the rule withstands")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=1.0)
    given = parser.parse_args()
    try:
        for rule in given.aggregators:
            aggregate.get(rule)
    except ValueError as error:
        parser.error(f"--aggregators: {error}")
    torch.set_num_threads(1)
    ways: dict[str, Callable[[int], Found]] = {}
    if given.liars:
        for rule in given.aggregators:
            for name, lie in LIES.items():
                ways[f"logits, {rule}, {name}"] = lambda seed, rule=rule, lie=lie: of_logits(given, seed, rule, lie)
    else:
        ways["alone"] = lambda seed: alone(given, seed)
        ways["parameters"] = lambda seed: of_parameters(given, seed)
        for rule in given.aggregators:
            ways[f"logits, {rule}"] = lambda seed, rule=rule: of_logits(given, seed, rule, None)
    for name, way in ways.items():
        if not name.startswith(given.only):
            continue
        found = [way(seed) for seed in given.seeds]
        each = [round(100 * it.accuracy, 1) for it in found]
        told = {
            "way": name,
            "accuracy_percent": round(mean(each), 1),
            "each_seed": each,
            "by_model": [it.by_model for it in found],
            "loss": round(mean(it.loss for it in found), 3),
            "bytes_a_round": round(mean(it.sent_bytes for it in found)),
        }
        print(json.dumps(told), flush=True)


def alone(given: argparse.Namespace, seed: int) -> Found:
    """Train each by itself."""
    members = [member_of(given, seed, index, shares="parameters") for index in range(MEMBERS)]
    for member in members:
        for _ in range(member.config.total_steps):
            member.take_step()
    return measured(members, 0.0)


def of_parameters(given: argparse.Namespace, seed: int) -> Found:
    """Let members of one architecture average their parameters."""
    members = [member_of(given, seed, index, shares="parameters") for index in range(MEMBERS)]
    groups = [[members[index] for index in range(MEMBERS) if architecture(index) == name] for name in MODELS]
    sent = [exchange(group, SyncConfig(aggregator="mean", f=0)) for group in groups]
    return measured(members, mean(sent))


def of_logits(given: argparse.Namespace, seed: int, aggregator: str, lie: Lie | None) -> Found:
    """Let all members share logits; where there is a lie, the last two tell it."""
    members = [member_of(given, seed, index, shares="logits") for index in range(MEMBERS)]
    f = 0 if aggregator == "mean" else given.f
    sent = exchange(members, SyncConfig(compressor="int8", aggregator=aggregator, f=f), lie, seed)
    return measured(members if lie is None else members[:-LIARS], sent)


def architecture(index: int) -> str:
    """Return the model of this member."""
    return MODELS[index % len(MODELS)]


def member_of(given: argparse.Namespace, seed: int, index: int, *, shares: str) -> Member:
    """Return a member. Seeds differ in the initial models and the order of data; the shards are the same."""
    task = tasks.get("digits", partition="dirichlet", alpha=given.alpha, public=given.public, model=architecture(index))
    config = TrainConfig(
        rounds=given.rounds,
        inner_steps=given.steps,
        learning_rate=given.learning_rate,
        warmup_steps=given.steps,
        seed=seed,
        device="cpu",
        threads=1,
        shares=shares,  # type: ignore[arg-type]
        distill_temperature=given.temperature,
        distill_rate=given.rate,
    )
    own = Trainer(task, config, Shard(index=index, count=MEMBERS), data_seed=1000 * seed + index)
    return LogitsTrainer(own) if shares == "logits" else own


def exchange(members: Sequence[Member], config: SyncConfig, lie: Lie | None = None, seed: int = 0) -> float:
    """Train the members, and close a round over all of them each `inner_steps`. Return the bytes of an update."""
    names = [f"member {index}" for index in range(len(members))]
    strategies = [strategy_of(member, config, name) for member, name in zip(members, names, strict=True)]
    for own, strategy in zip(names, strategies, strict=True):
        for peer in names:
            if peer != own:
                strategy.track(peer, None)
    drawn, sent = torch.Generator().manual_seed(seed), 0
    rounds = members[0].config.rounds
    for round_ in range(rounds):
        thetas = []
        for member in members:
            member.begin_round()
            for _ in range(member.config.inner_steps):
                member.take_step()
            thetas.append(member.snapshot()[0] if isinstance(member, LogitsTrainer) else member.vector())
        told = [
            lie(theta_d, drawn) if lie is not None and index >= len(members) - LIARS else theta_d
            for index, theta_d in enumerate(thetas)
        ]
        messages = [it.encode(theta_d, round=round_) for it, theta_d in zip(strategies, told, strict=True)]
        sent += sum(len(message.payload) for message in messages)
        for own, strategy in zip(names, strategies, strict=True):
            for peer, message in zip(names, messages, strict=True):
                if peer != own:
                    strategy.apply(peer, message.codec, message.payload)
        for index, (member, strategy) in enumerate(zip(members, strategies, strict=True)):
            others = dict.fromkeys((name for name in names if name != names[index]), 0)
            result = strategy.aggregate(thetas[index], others, round=round_)
            member.begin_round()
            member.correct(result.correction_d)
    return sent / rounds / len(members)


def strategy_of(member: Member, config: SyncConfig, name: str) -> SyncStrategy:
    """Return a member's strategy."""
    genesis_d = member.initial_vector() if isinstance(member, LogitsTrainer) else member.vector()
    return build(config, genesis_d, name, rounds=member.config.rounds)


def measured(members: Sequence[Member], sent: float) -> Found:
    """Return means over the members, on all held-out digits."""
    owns = [member.own if isinstance(member, LogitsTrainer) else member for member in members]
    accuracies = []
    for own in owns:
        assert isinstance(own.task, Digits)
        accuracies.append(own.task.accuracy(own.model_with()))
    by_model = {
        name: round(100 * mean(it for at, it in enumerate(accuracies) if architecture(at) == name), 1)
        for name in MODELS
    }
    return Found(
        accuracy=mean(accuracies),
        loss=mean(own.evaluate() for own in owns),
        sent_bytes=sent,
        by_model=by_model,
    )


if __name__ == "__main__":
    with ended_in_a_line():
        main()
