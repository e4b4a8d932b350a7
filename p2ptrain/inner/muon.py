"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): hidden matrices move by an orthogonalized momentum.

    b <- mu b + (1 - mu) g;  O = NewtonSchulz_5((1 - mu) g + mu b  with Nesterov, else b)
    W <- (1 - rate w) W - rate 0.2 sqrt(max(rows, columns)) O

O has its singular values near 1 (roughly 0.5 to 1.5: five iterations, in bf16), so all directions of a matrix move much
alike. Embeddings, the output layer, norms and biases go with AdamW, as the authors have it. The factor 0.2 sqrt(max)
is that of "Muon is Scalable" (2502.16982): a step is as long as AdamW's. A rate of its own serves it better all the
same: on byte-lm 2.4e-2 was best, eight times AdamW's, and AdamW's far too low (docs/benchmarks.md).

Not for very unlike data: a move has the same length however small the gradient. Six nodes on digits with dirichlet 0.1
and 20 steps a round came to 0.35 nats, with AdamW to 0.10; on like data both to 0.09.

State: one vector for the hidden matrices, two for the rest. Cost: five iterations of three matrix products a step, each
of at most rows x columns x min(rows, columns): small against a batch's forward and backward pass, unless it is tiny.
"""

import torch
from torch import nn

from p2ptrain.inner.base import Parameters, Place, decay


class Muon:
    """torch's own (2.9 and newer) beside torch's AdamW. ValueError on a bad momentum, an older torch, or a model with
    no hidden matrix. What is hidden is decided in training/flat.py.

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
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"muon: needs torch 2.9 or newer, and this is {torch.__version__}")
        self.weight_decay, self.betas, self.momentum, self.nesterov = weight_decay, betas, momentum, nesterov
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. ValueError when they cannot be trained by this rule."""
        self._parameters = parameters
        hidden = [place for place in parameters.places if place.hidden]
        others = [place for place in parameters.places if not place.hidden]
        if not hidden:
            raise ValueError("muon: the model has no hidden matrix; train it with adamw")
        self._optimizers: list[torch.optim.Optimizer] = [self._muon(hidden)]
        if others:
            self._optimizers.append(self._adamw(others))

    def gradient_point(self) -> None:
        """Return where the next gradient is to be taken (d,); None: at the parameters: at the parameters."""

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate."""
        decay(self._parameters, rate * self.weight_decay)
        for optimizer in self._optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

    def _muon(self, places: list[Place]) -> torch.optim.Optimizer:
        masters = [self._master(place) for place in places]
        muon = torch.optim.Muon(
            masters,
            weight_decay=0.0,
            momentum=self.momentum,
            nesterov=self.nesterov,
            adjust_lr_fn="match_rms_adamw",
        )
        for master, momentum in zip(masters, self._split("momentum", masters), strict=True):
            muon.state[master]["momentum_buffer"] = momentum
        return muon

    def _adamw(self, places: list[Place]) -> torch.optim.Optimizer:
        masters = [self._master(place) for place in places]
        adamw = torch.optim.AdamW(masters, betas=self.betas, weight_decay=0.0, fused=True)
        # torch counts the updates of each tensor apart.
        self.buffers["updates"] = torch.zeros(len(masters), device=masters[0].device)
        averages, squares = self._split("exp_avg", masters), self._split("exp_avg_sq", masters)
        for master, average, square, updates in zip(masters, averages, squares, self.buffers["updates"], strict=True):
            adamw.state[master] = {"step": updates, "exp_avg": average, "exp_avg_sq": square}
        return adamw

    def _master(self, place: Place) -> nn.Parameter:
        """One parameter as torch's optimizers want it: a view of the flat vector, with its gradient."""
        master = nn.Parameter(self._parameters.data_d[place.span].view(place.shape))
        master.grad = self._parameters.grad_d[place.span].view(place.shape)
        return master

    def _split(self, name: str, masters: list[nn.Parameter]) -> list[torch.Tensor]:
        """A flat buffer for all of them under `name`, as one view for each."""
        numels = [master.numel() for master in masters]
        self.buffers[name] = torch.zeros(sum(numels), device=masters[0].device)
        parts = torch.split(self.buffers[name], numels)
        return [part.view_as(master) for part, master in zip(parts, masters, strict=True)]
