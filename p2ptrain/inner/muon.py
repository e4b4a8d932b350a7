"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): hidden matrices move by an orthogonalized momentum.

    b <- mu b + (1 - mu) g;  O = NewtonSchulz_5((1 - mu) g + mu b  with Nesterov, else b)
    W <- (1 - rate w) W - rate 0.2 sqrt(max(rows, columns)) O

O has its singular values near 1 (roughly 0.5 to 1.5: five iterations), so all directions of a matrix move much alike.
Embeddings, the output layer, norms and biases go with AdamW, as the authors have it. The factor 0.2 sqrt(max) is that
of "Muon is Scalable" (2502.16982): a step is as long as AdamW's. A rate of its own serves it better all the same: on
byte-lm 2.4e-2 was best, eight times AdamW's, and AdamW's far too low (docs/benchmarks.md).

Not for very unlike data, unless gradients are averaged before it (sync/mime.py): a move has the same length however
small the gradient. Six nodes on digits with dirichlet 0.1 and 20 steps a round came to 0.35 nats, with AdamW to 0.10;
on like data both to 0.09.

Matrices of one shape are iterated together: a layer's are small, and many small products take a core, and more so a
GPU, much longer than few larger ones. For byte-lm nano on one core a step takes 5.0 ms, and torch's own 7.9.

Iterations are in bf16, as the authors have it, but in fp32 on a CPU: one without instructions for bf16 takes
28 times as long with it (docs/benchmarks.md), and members with unlike CPUs make much the same move of a momentum.

State: one vector for the hidden matrices, two for the rest. Cost: five iterations of three matrix products a step, each
of at most rows x columns x min(rows, columns): small against a batch's forward and backward pass, unless it is tiny.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from p2ptrain.inner.base import Moment, Parameters, Place, decay, steepest

ITERATIONS: Final = 5
COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Both the authors'."""
ITERATED_IN: Final = {"cpu": torch.float32}
"""By kind of device, where it is not bf16."""
LEAST_NORM: Final = 1e-7
"""Of a momentum: below it a matrix hardly moves."""
AS_ADAMW: Final = 0.2
"""2502.16982: AdamW's usual root mean square of a move, over its rate."""
TOGETHER: Final = 1 << 20
"""Values that are iterated together at most, however many matrices there are: their temporaries take twenty bytes each.
A larger matrix goes alone. Chosen."""


@dataclass(frozen=True)
class _Matrices:
    """Hidden matrices of one shape, with their gradients and momenta: views of the flat vectors."""

    data: list[torch.Tensor]
    grads: list[torch.Tensor]
    momenta: list[torch.Tensor]

    def step(self, rate: float, *, momentum: float, nesterov: bool) -> None:
        """Move them by their orthogonalized momentum."""
        torch._foreach_lerp_(self.momenta, self.grads, 1 - momentum)
        moves = torch._foreach_lerp(self.grads, self.momenta, momentum) if nesterov else self.momenta
        moves_nrc = orthogonalized(torch.stack(list(moves))).float()
        scale = AS_ADAMW * math.sqrt(max(moves_nrc.shape[1:]))
        torch._foreach_add_(self.data, list(moves_nrc.unbind()), alpha=-rate * scale)


class Muon:
    """Muon for the hidden matrices beside torch's AdamW. ValueError on a bad momentum, or a model with no hidden
    matrix. What is hidden is decided in training/flat.py.

    momentum 0.95 and Nesterov's form are the authors'; betas are those of the AdamW beside it.
    """

    name = "muon"
    schedule = "cosine"

    def __init__(
        self,
        *,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        momentum: float = 0.95,
        nesterov: bool = True,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"muon: momentum must be in [0, 1), not {momentum}")
        self.weight_decay, self.betas, self.momentum, self.nesterov = weight_decay, betas, momentum, nesterov
        self.buffers: dict[str, torch.Tensor] = {}

    @property
    def moments(self) -> Mapping[str, Moment]:
        """What its buffers are averages of. A model with hidden matrices alone has the first one only."""
        return {
            "momentum": Moment(order="first"),
            "exp_avg": Moment(order="first", scaled_by="exp_avg_sq", steepest=steepest(self.betas)),
            "exp_avg_sq": Moment(order="second"),
        }

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. ValueError when they cannot be trained by this rule."""
        self._parameters = parameters
        hidden = [place for place in parameters.places if place.hidden]
        others = [place for place in parameters.places if not place.hidden]
        if not hidden:
            raise ValueError("muon: the model has no hidden matrix; train it with adamw")
        momenta = self._split("momentum", hidden)
        self._matrices = [self._together(group, momenta) for group in _groups(hidden)]
        self._adamw = self._adamw_of(others) if others else None

    def gradient_point(self) -> None:
        """Return where the next gradient is to be taken (d,); None: at the parameters: at the parameters."""

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate."""
        decay(self._parameters, rate * self.weight_decay)
        with torch.no_grad():
            for matrices in self._matrices:
                matrices.step(rate, momentum=self.momentum, nesterov=self.nesterov)
        if self._adamw is not None:
            self._adamw.param_groups[0]["lr"] = rate
            self._adamw.step()

    def _together(self, places: list[Place], momenta: dict[str, torch.Tensor]) -> _Matrices:
        data_d, grad_d = self._parameters.data_d, self._parameters.grad_d
        return _Matrices(
            data=[data_d[place.span].view(place.shape) for place in places],
            grads=[grad_d[place.span].view(place.shape) for place in places],
            momenta=[momenta[place.name] for place in places],
        )

    def _adamw_of(self, places: list[Place]) -> torch.optim.Optimizer:
        masters = [self._master(place) for place in places]
        adamw = torch.optim.AdamW(masters, betas=self.betas, weight_decay=0.0, fused=True)
        # torch counts the updates of each tensor apart.
        self.buffers["updates"] = torch.zeros(len(masters), device=masters[0].device, dtype=torch.float32)
        averages, squares = self._split("exp_avg", places), self._split("exp_avg_sq", places)
        for master, place, updates in zip(masters, places, self.buffers["updates"], strict=True):
            adamw.state[master] = {
                "step": updates,
                "exp_avg": averages[place.name],
                "exp_avg_sq": squares[place.name],
            }
        return adamw

    def _master(self, place: Place) -> nn.Parameter:
        """One parameter as torch's optimizers want it: a view of the flat vector, with its gradient."""
        master = nn.Parameter(self._parameters.data_d[place.span].view(place.shape))
        master.grad = self._parameters.grad_d[place.span].view(place.shape)
        return master

    def _split(self, name: str, places: list[Place]) -> dict[str, torch.Tensor]:
        """Make a flat buffer for all of them under `name`; return each one's view, by its place's name."""
        numels = [place.shape.numel() for place in places]
        self.buffers[name] = torch.zeros(sum(numels), device=self._parameters.data_d.device, dtype=torch.float32)
        parts = torch.split(self.buffers[name], numels)
        return {place.name: part.view(place.shape) for place, part in zip(places, parts, strict=True)}


def orthogonalized(x_nrc: torch.Tensor) -> torch.Tensor:
    """Return these matrices (n, rows, columns) with singular values near 1 and the same singular vectors, in fp32 on a
    CPU and in bf16 elsewhere: Newton-Schulz iterations of the fifth order."""
    first, third, fifth = COEFFICIENTS
    is_tall = x_nrc.shape[1] > x_nrc.shape[2]
    x_nrc = x_nrc.to(ITERATED_IN.get(x_nrc.device.type, torch.bfloat16))
    x_nsl = x_nrc.mT if is_tall else x_nrc  # short by long
    x_nsl = x_nsl / x_nsl.norm(dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(ITERATIONS):
        gram_nss = torch.bmm(x_nsl, x_nsl.mT)
        factor_nss = torch.baddbmm(gram_nss, gram_nss, gram_nss, beta=third, alpha=fifth)
        x_nsl = torch.baddbmm(x_nsl, factor_nss, x_nsl, beta=first)
    return x_nsl.mT if is_tall else x_nsl


def _groups(places: list[Place]) -> Iterator[list[Place]]:
    """Yield places of one shape, as many together as TOGETHER allows."""
    for shape in dict.fromkeys(place.shape for place in places):
        same = [place for place in places if place.shape == shape]
        count = max(1, TOGETHER // max(1, shape.numel()))
        for start in range(0, len(same), count):
            yield same[start : start + count]
