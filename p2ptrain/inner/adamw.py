"""AdamW (1711.05101): each coordinate moves by its running mean gradient over the root of its running mean square.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    theta <- (1 - rate w) theta - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)

State: two vectors. Cost: one fused kernel over the flat vector, whatever the number of tensors. The default.
"""

from collections.abc import Mapping

import torch
from torch.optim.adamw import adamw

from p2ptrain.inner.base import Moment, Parameters, decay, steepest


class AdamW:
    """torch's own, on the flat vector as one tensor. Decay is applied apart, since it spares some coordinates of it.

    The function, not the class `torch.optim.AdamW` around it: the class imports torch's compiler, which nothing here
    uses, and a node would wait for that longer than for everything else of ours (docs/benchmarks.md, start-up).

    betas (0.9, 0.95) are GPT-3's (2005.14165); 0.999 averages over more steps than a short run has. epsilon 1e-8 is the
    paper's. A larger one keeps a model that has learned its few examples by heart from taking whole steps on what is
    left of their gradients (federated Adam's adaptivity is 1e-3, 2003.00295); it costs a language model 0.06 nats.
    """

    name = "adamw"
    schedule = "cosine"
    elementwise = True

    def __init__(
        self, *, weight_decay: float = 0.1, betas: tuple[float, float] = (0.9, 0.95), epsilon: float = 1e-8
    ) -> None:
        if not 0 < epsilon < float("inf"):
            raise ValueError(f"epsilon must be a positive number, not {epsilon}")
        self.weight_decay, self.betas, self.epsilon = weight_decay, betas, epsilon
        self.buffers: dict[str, torch.Tensor] = {}

    @property
    def moments(self) -> Mapping[str, Moment]:
        """What its buffers are averages of."""
        first = Moment(order="first", scaled_by="exp_avg_sq", steepest=steepest(self.betas))
        return {"exp_avg": first, "exp_avg_sq": Moment(order="second")}

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. ValueError when they cannot be trained by this rule."""
        self._parameters = parameters
        data_d = parameters.data_d
        self.buffers = {
            "exp_avg": torch.zeros_like(data_d),
            "exp_avg_sq": torch.zeros_like(data_d),
            "updates": torch.zeros((), device=data_d.device, dtype=torch.float32),
        }

    def gradient_point(self) -> None:
        """Return where the next gradient is to be taken (d,); None: at the parameters: at the parameters."""

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate."""
        decay(self._parameters, rate * self.weight_decay)
        adamw(
            [self._parameters.data_d],
            [self._parameters.grad_d],
            [self.buffers["exp_avg"]],
            [self.buffers["exp_avg_sq"]],
            [],
            [self.buffers["updates"]],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=rate,
            weight_decay=0.0,
            eps=self.epsilon,
            maximize=False,
        )
