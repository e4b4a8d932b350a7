"""Schedule-free AdamW (Defazio et al., 2405.15682, algorithm 1): an average of iterates in place of a decaying rate.

    y = (1 - b1) z + b1 x                  gradients are taken here
    v <- b2 v + (1 - b2) g^2               rate_t = rate sqrt(1 - b2^t)
    z <- z - rate_t (g / (sqrt(v) + eps) + w y)
    x <- (1 - c) x + c z                   c = rate_t^2 / (the sum of rate_i^2 so far)

x is the model: what is published, corrected, averaged and evaluated. The flat vector holds x between steps, and
u = z - x is kept beside it, which makes the update

    u' = u - rate_t (...);  x <- x + c u';  u <- (1 - c) u'

so that a correction of x shifts z and y by as much, and a checkpoint whose parameters are replaced stays whole. The
learning rate is constant after the warm-up, and larger than AdamW's (the authors' range is some 1 to 10 times it);
momentum is in the interpolation. Not for very unlike data: only x is averaged, and each node's z goes its own way. Six
nodes on digits with dirichlet 0.1 and 20 steps a round came to 0.30 nats, with AdamW to 0.10; averaging z as well,
which would put a second vector on the wire, to 0.12.

State: two vectors. Cost: two more at work while the gradient is taken.
"""

import math

import torch

from p2ptrain.inner.base import Parameters

EPSILON = 1e-8


class ScheduleFree:
    """betas (0.9, 0.95): b1 interpolates (0 is Polyak's averaging), b2 averages squares as AdamW's does."""

    name = "schedule_free"
    schedule = "constant"
    elementwise = True

    def __init__(self, *, weight_decay: float = 0.1, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        self.weight_decay, self.betas = weight_decay, betas
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. ValueError when they cannot be trained by this rule."""
        self._parameters = parameters
        self.buffers = {
            "ahead": torch.zeros_like(parameters.data_d),  # u = z - x
            "exp_avg_sq": torch.zeros_like(parameters.data_d),
            "weights": torch.zeros((), dtype=torch.float64),  # the sum of rate_i^2
            "updates": torch.zeros((), dtype=torch.int64),
        }

    def gradient_point(self) -> torch.Tensor:
        """Return where the next gradient is to be taken (d,); None: at the parameters: y = x + (1 - b1) u."""
        return self._parameters.data_d.add(self.buffers["ahead"], alpha=1 - self.betas[0])

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate."""
        self.buffers["updates"] += 1
        rate *= math.sqrt(1 - self.betas[1] ** int(self.buffers["updates"]))
        self.buffers["weights"] += rate**2
        total = float(self.buffers["weights"])
        share = rate**2 / total if total else 0.0
        ahead_d = self.buffers["ahead"].sub_(self._direction(), alpha=rate)
        self._parameters.data_d.add_(ahead_d, alpha=share)
        ahead_d.mul_(1 - share)

    def _direction(self) -> torch.Tensor:
        """g / (sqrt(v) + eps) + w y, y of the decayed parameters only. Takes the gradient's place."""
        grad_d, squares_d = self._parameters.grad_d, self.buffers["exp_avg_sq"]
        squares_d.mul_(self.betas[1]).addcmul_(grad_d, grad_d, value=1 - self.betas[1])
        direction_d = grad_d.div_(squares_d.sqrt().add_(EPSILON))
        if self.weight_decay:
            for place in self._parameters.places:
                if place.decayed:
                    part_d = direction_d[place.span]
                    part_d.add_(self._parameters.data_d[place.span], alpha=self.weight_decay)
                    part_d.add_(self.buffers["ahead"][place.span], alpha=self.weight_decay * (1 - self.betas[0]))
        return direction_d
