"""Which rule over secure groups' means withstands liars in two of seven groups: held-out loss of the digits.

    python scripts/secure_rules.py --partition iid --seeds 0-2
    python scripts/secure_rules.py --partition dirichlet --seeds 0 --rules trimmed_mean,mda --attacks none,sign_flip

28 members in seven groups of four, drawn anew each round; each liar is in a group of its own, always. Members' steps,
fixed point and rules are those of a node; all members' models are stepped as one batch, and there is no network
between, so a run takes seconds. `p2ptrain bench robust` runs the real trainers, one after another.

Two kinds of liars. `sign_flip` and the like send the attack's vector as their own move: of their group's mean it is a
quarter. `group:alie` and the like know all honest moves of the round, and add what makes their group's mean the
attack's vector, as far as the range allows: no protocol tells a member so much.

`five` is the mean of the groups without liars, as if these were known: what two groups' data are worth. One JSON line
a run: rule, attack, partition, seed, and the loss after the last round.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from node.bench.lists import some_numbers
from node.system.script_end import ended_in_a_line
from p2ptrain import aggregate, attacks
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync.fixed_point import FixedPoint
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import EPSILON, Digits
from p2ptrain.training import TrainConfig
from p2ptrain.training.train_config import lr_at

MEMBERS: Final = 28
GROUP: Final = 4
LIARS: Final = 2
RANGE: Final = 0.1
BITS: Final = 16
BETAS: Final = (0.9, 0.95)
DECAY: Final = 0.1
RULES: Final = (
    "mean,five,trimmed_mean,median,geometric_median,centered_clipping,last_clipping,multi_krum,mda,faba,"
    "nnm+trimmed_mean,nnm+geometric_median"
)
ATTACKS: Final = "none,sign_flip,scaled,alie,ipm,gaussian,group:sign_flip,group:alie,group:ipm"

Rule = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
"""The aggregate (d,) of groups' means (groups, d), and which of the groups have liars."""


def main() -> None:
    """Run each rule under each attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="iid", choices=("iid", "dirichlet"))
    parser.add_argument("--seeds", type=some_numbers, default="0-2", help="such as 0-2")
    parser.add_argument("--rules", default=RULES)
    parser.add_argument("--attacks", default=ATTACKS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--inner-steps", type=int, default=10)
    given = parser.parse_args()
    try:
        for rule in given.rules.split(","):
            _rule(rule)
    except ValueError as error:
        parser.error(f"--rules: {error}")
    torch.set_num_threads(1)
    for seed in given.seeds:
        members = Members(given.partition, seed, given.rounds, given.inner_steps)
        for attack in given.attacks.split(","):
            for rule in given.rules.split(","):
                told = {"rule": rule, "attack": attack, "partition": given.partition, "seed": seed}
                print(json.dumps({**told, "loss": round(members.loss_after(rule, attack), 4)}), flush=True)


class Members:
    """All members' models, stepped as one batch."""

    def __init__(self, partition: str, seed: int, rounds: int, inner_steps: int) -> None:
        self.task = Digits(partition)
        self.config = TrainConfig(rounds=rounds, inner_steps=inner_steps, seed=seed)
        torch.manual_seed(seed)
        model = self.task.build_model()
        self.shapes = [parameter.shape for parameter in model.parameters()]
        self.initial_d = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        self.decays_d = torch.cat([torch.full((shape.numel(),), float(len(shape) > 1)) for shape in self.shapes])
        self.batches = [self._batch(step, seed) for step in range(rounds * inner_steps)]

    def loss_after(self, rule_name: str, attack: str) -> float:
        """Return the held-out loss of the anchor after the last round, in nats."""
        rule, rng = _rule(rule_name), np.random.default_rng(self.config.seed)
        anchor_d, codec = self.initial_d.clone(), FixedPoint(RANGE, BITS, GROUP)
        theta_nd = anchor_d.expand(MEMBERS, -1).clone()
        moments = torch.zeros_like(theta_nd), torch.zeros_like(theta_nd)
        residual_nd, rounding = torch.zeros_like(theta_nd), SecretRandom()
        generator = torch.Generator().manual_seed(self.config.seed)
        for round in range(self.config.rounds):
            for step in range(round * self.config.inner_steps, (round + 1) * self.config.inner_steps):
                self._step_(theta_nd, moments, step)
            move_nd = theta_nd - anchor_d + residual_nd
            groups = _groups(rng)
            lying = [place for place, group in enumerate(groups) if max(group) >= MEMBERS - LIARS]
            said_nd = _with_lies(move_nd, groups, lying, attack, generator)
            words_nd = np.stack([codec.encode(each_d, rounding).words_d for each_d in said_nd])
            means_gd = torch.stack([codec.mean(words_nd[group].sum(0, dtype=np.uint32), GROUP) for group in groups])
            residual_nd = move_nd - torch.stack([codec.mean(words_d, 1) for words_d in words_nd])
            residual_nd[MEMBERS - LIARS :] = 0.0  # what a liar holds back is nobody's business
            anchor_d = anchor_d + rule(means_gd, lying)
            theta_nd = anchor_d.expand(MEMBERS, -1).clone()
        return self._held_out(anchor_d)

    def _step_(self, theta_nd: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor], step: int) -> None:
        """AdamW for each member, its gradient clipped by itself, as the trainer does."""
        images_nbp, labels_nb = self.batches[step]
        leaf_nd = theta_nd.requires_grad_()
        logits_nbc = self._logits(leaf_nd, images_nbp)
        loss = functional.cross_entropy(logits_nbc.flatten(0, 1), labels_nb.flatten(), reduction="sum")
        (gradient_nd,) = torch.autograd.grad(loss / labels_nb.shape[1], leaf_nd)
        theta_nd.requires_grad_(False)
        norm_n = torch.linalg.vector_norm(gradient_nd, dim=1, keepdim=True)
        gradient_nd *= (self.config.clip_norm / norm_n).clamp(max=1.0)
        rate, (first_nd, second_nd) = lr_at(step, self.config.total_steps, self.config), moments
        first_nd.lerp_(gradient_nd, 1 - BETAS[0])
        second_nd.lerp_(gradient_nd.square_(), 1 - BETAS[1])
        theta_nd -= rate * DECAY * self.decays_d * theta_nd
        root_nd = (second_nd / (1 - BETAS[1] ** (step + 1))).sqrt_().add_(EPSILON)
        theta_nd -= rate / (1 - BETAS[0] ** (step + 1)) * first_nd / root_nd

    def _logits(self, theta_nd: torch.Tensor, x_nbp: torch.Tensor) -> torch.Tensor:
        parts, at = [], 0
        for shape in self.shapes:
            parts.append(theta_nd[:, at : at + shape.numel()].unflatten(1, shape))
            at += shape.numel()
        for start in range(0, len(parts), 4):
            weight_noi, bias_no, *scale_and_shift = parts[start : start + 4]
            x_nbp = torch.baddbmm(bias_no.unsqueeze(1), x_nbp, weight_noi.transpose(1, 2))
            if scale_and_shift:
                scale_no, shift_no = scale_and_shift
                x_nbp = functional.layer_norm(x_nbp, x_nbp.shape[-1:]) * scale_no.unsqueeze(1) + shift_no.unsqueeze(1)
                x_nbp = functional.gelu(x_nbp)
        return x_nbp

    def _batch(self, step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        shards = [Shard(index=index, count=MEMBERS) for index in range(MEMBERS)]
        drawn = [self.task.train_batch(step, seed=seed, shard=each, size=self.config.batch_size) for each in shards]
        return torch.stack([each[0] for each in drawn]), torch.stack([each[1] for each in drawn])

    def _held_out(self, theta_d: torch.Tensor) -> float:
        images, labels = self.task.held_out
        logits_bc = self._logits(theta_d.unsqueeze(0), images.unsqueeze(0))[0]
        return float(functional.cross_entropy(logits_bc, labels))


def _groups(rng: np.random.Generator) -> list[list[int]]:
    """Seven groups of four, at random of all draws in which the liars, who are the last, are in groups of their own."""
    while True:
        drawn = rng.permutation(MEMBERS).reshape(-1, GROUP).tolist()
        if sum(max(group) >= MEMBERS - LIARS for group in drawn) == LIARS:
            return drawn


def _with_lies(
    move_nd: torch.Tensor,
    groups: Sequence[Sequence[int]],
    lying: Sequence[int],
    attack: str,
    generator: torch.Generator,
) -> torch.Tensor:
    """What members add to their groups' sums."""
    if attack == "none":
        return move_nd
    name, said_nd, honest = attack.rpartition(":")[2], move_nd.clone(), MEMBERS - LIARS
    lie = attacks.get(name)
    if name == attack:
        said_nd[honest:] = lie(move_nd[:honest], LIARS, generator)
        return said_nd
    kept_nd = move_nd.clamp(-RANGE, RANGE)
    clean_gd = torch.stack([kept_nd[group].mean(0) for place, group in enumerate(groups) if place not in lying])
    for place, target_d in zip(lying, lie(clean_gd, LIARS, generator), strict=True):
        liar, others = max(groups[place]), [member for member in groups[place] if member < honest]
        said_nd[liar] = GROUP * target_d - kept_nd[others].sum(0)
    return said_nd


def _rule(name: str) -> Rule:
    if name == "five":
        return lambda means_gd, lying: means_gd[[at for at in range(len(means_gd)) if at not in lying]].mean(0)
    if name == "last_clipping":
        return LastClipping()
    if name.startswith("last_direction"):
        return LastDirection("nnm+trimmed_mean" if name.endswith("+nnm") else "mean")
    rule = aggregate.get(name, f=LIARS)
    return lambda means_gd, lying: rule(means_gd)


class LastClipping:
    """Centered clipping from the last round's aggregate, as the paper has it; tau is the median distance from it."""

    def __init__(self) -> None:
        self.last_d: torch.Tensor | None = None

    def __call__(self, means_gd: torch.Tensor, lying: Sequence[int]) -> torch.Tensor:
        """Return the aggregate of a round, and begin the next one at it."""
        centre_d = means_gd.median(0).values if self.last_d is None else self.last_d
        for _ in range(3):
            off_gd = means_gd - centre_d
            far_g = torch.linalg.vector_norm(off_gd, dim=1, keepdim=True)
            centre_d = centre_d + (off_gd * (far_g.median() / far_g).clamp(max=1.0)).mean(0)
        self.last_d = centre_d
        return centre_d


class LastDirection:
    """Leaves out the f means that go least in the direction of the last aggregate, and takes a rule over the others."""

    def __init__(self, rest: str) -> None:
        self.first, self.rest = aggregate.get("nnm+trimmed_mean", f=LIARS), aggregate.get(rest, f=LIARS)
        self.last_d: torch.Tensor | None = None

    def __call__(self, means_gd: torch.Tensor, lying: Sequence[int]) -> torch.Tensor:
        """Return the aggregate of a round, and judge the next one by it."""
        if self.last_d is None:
            self.last_d = self.first(means_gd)
        else:
            kept = (means_gd @ self.last_d).argsort(descending=True)[: len(means_gd) - LIARS]
            self.last_d = self.rest(means_gd[kept])
        return self.last_d


if __name__ == "__main__":
    with ended_in_a_line():
        main()
