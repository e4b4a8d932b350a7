"""A model whose outputs are kept: how logits are had of any task, which alone knows how its model is called."""

from typing import Any

import torch
from torch import nn


class HeardModel(nn.Module):
    """A model whose newest output is kept. The task's own loss calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.logits = torch.empty(0, dtype=torch.float32)
        """Of the newest call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        output = self.model(*args, **kwargs)
        self.logits = logits_in(output)
        return output


def logits_in(output: Any) -> torch.Tensor:
    """Return the logits that a model returned, alone or, as transformers' models do, in a record."""
    return getattr(output, "logits", output)  # type: ignore[no-any-return]  # whatever the task's model returns
