"""Slow references for rounds that work in place: the outer steps and the mixing as they were, on whole vectors, each of
them a new one. The same operations in the same order, so that equal means equal to the last bit."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from p2ptrain.aggregate import Aggregator
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.model_averaging import ModelAveraging


class WholeOuter:
    """The outer steps on whole vectors."""

    def __init__(self, name: str, options: Mapping[str, Any], alpha: float, beta: float) -> None:
        self.name, self.alpha, self.beta = name, alpha, beta
        self.every = int(options.get("every", 4))
        self.momentum_d: torch.Tensor | None = None
        self.gathered_d: torch.Tensor | None = None
        self.pushes = 0

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        move_d = target_d - phi_d
        if self.name == "average":
            return target_d.clone()
        if self.name == "noloco":
            delta_d = move_d.mul_(self.beta)
            if self.momentum_d is not None:
                delta_d.add_(self.momentum_d, alpha=self.alpha)
            self.momentum_d = delta_d
            return phi_d + delta_d
        if self.name == "nesterov":
            old_d = self.momentum_d
            momentum_d = move_d.clone() if old_d is None else torch.add(move_d, old_d, alpha=self.alpha)
            self.momentum_d = momentum_d
            return move_d.add_(momentum_d, alpha=self.alpha).mul_(self.beta).add_(phi_d)
        assert self.name == "delayed_nesterov"
        self.gathered_d = move_d.clone() if self.gathered_d is None else self.gathered_d + move_d
        self.pushes += 1
        if self.pushes == self.every:
            momentum_d = self.gathered_d / self.every
            if self.momentum_d is not None:
                momentum_d.add_(self.momentum_d, alpha=self.alpha)
            self.momentum_d, self.gathered_d, self.pushes = momentum_d, None, 0
            move_d.add_(momentum_d, alpha=self.every * self.alpha)
        return move_d.mul_(self.beta).add_(phi_d)


class WholeRound:
    """What a round of a strategy comes to, from its vectors before it closes."""

    def __init__(self, node: ModelAveraging, theta_d: torch.Tensor, weights: Mapping[str, float], round: int) -> None:
        self.node, self.round = node, round
        self.part: Fragment = node.encoder.schedule.part(round)
        self.gamma = node.encoder.gamma(round)
        self.theta_d, self.anchor_d = theta_d.clone(), node.anchor_d.clone()
        self.public_p = self.part.of(node.public_d.float())
        self.others = [self.part.of(node.estimates[peer].float()) for peer in sorted(weights)]
        self.weights = [weights[peer] for peer in sorted(weights)]

    def close(
        self, rule: Aggregator | None, outer: WholeOuter, *, clips: bool, mixing: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return correction, anchor and snapshot as corrected, each (d,)."""
        theta_p, anchor_p = self.part.of(self.theta_d), self.part.of(self.anchor_d)
        if rule is None or not self.others:
            target_p = theta_p.clone()
        else:
            target_p = self._clipped(rule, anchor_p) if clips else self._tracked(rule, theta_p)
        phi_p = outer.step(anchor_p.clone(), target_p)
        correction_p = (phi_p - theta_p).mul_(1 - mixing)
        correction_d = self.part.put(torch.zeros_like(self.theta_d), correction_p)
        anchor_d = self.part.put(self.anchor_d, phi_p)
        whole = self.part.count == 1 and mixing == 0
        return correction_d, anchor_d, anchor_d if whole else self.theta_d + correction_d

    def _tracked(self, rule: Aggregator, theta_p: torch.Tensor) -> torch.Tensor:
        rows = [torch.zeros_like(theta_p)]
        rows += [
            (other_p - self.public_p).mul_(weight) for other_p, weight in zip(self.others, self.weights, strict=True)
        ]
        return rule(torch.stack(rows)).mul_(self.gamma).add_(theta_p)

    def _clipped(self, rule: Aggregator, anchor_p: torch.Tensor) -> torch.Tensor:
        norms = [_norm(x_p, anchor_p) for x_p in (self.public_p, *self.others)]
        scales = [min(1.0, median(norms) / norm) if norm > 0 else 1.0 for norm in norms]
        own_p = (self.public_p - anchor_p).mul_(scales[0])
        rows: Sequence[torch.Tensor] = [
            torch.zeros_like(own_p),
            *(
                (x_p - anchor_p).mul_(scale).sub_(own_p).mul_(weight)
                for x_p, scale, weight in zip(self.others, scales[1:], self.weights, strict=True)
            ),
        ]
        return own_p + anchor_p + rule(torch.stack(list(rows)))


def _norm(x_p: torch.Tensor, y_p: torch.Tensor) -> float:
    """||x - y||, added up by the chunks of `mixing.parts`."""
    squares = 0.0
    for start in range(0, x_p.numel(), 1 << 16):
        at = slice(start, start + (1 << 16))
        squares += float(torch.linalg.vector_norm(x_p[at] - y_p[at])) ** 2
    return float(squares**0.5)
