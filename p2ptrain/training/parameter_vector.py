"""The trainable parameters of anybody's module as one fp32 vector, with every tensor left where it is.

FlatParameters (flat.py) moves the parameters of our own models into one buffer. A user's model may be known to DDP
buckets, CUDA graphs, optimizers and views of its own by the storage that it has: here it is read and added to in place.
"""

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.flat import trainable
from p2ptrain.training.names import canonical


class ParameterVector:
    """Reads and corrects the trainable parameters of `model`, in the order of `named_parameters`, tied ones once.

    A parameter in bf16 or fp16 cannot hold a small correction: what rounding takes is kept in its own type beside it,
    belongs to the vector, and goes into the next correction (Kahan's summation).

    Raises TaskError where nothing can be trained, or a parameter is sharded, sparse or not real. Not thread-safe.
    """

    def __init__(self, model: nn.Module) -> None:
        named = trainable(model)
        sharded = [name for name, parameter in named if type(parameter.data).__name__ == "DTensor"]
        if sharded:
            raise TaskError(
                f"parameter {sharded[0]} is sharded (FSDP2 or tensor parallelism), which cannot be averaged yet: "
                "use DDP, or one process"
            )
        self.names = [canonical(name) for name, _ in named]
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise TaskError(f"two parameters are called {twice}, once wrappers are left out; rename one")
        self.parameters = [parameter for _, parameter in named]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.numel = sum(self.sizes)
        self._exact: list[torch.Tensor] = [parameter for parameter in self.parameters if _is_exact(parameter)]
        self._rests = {
            index: torch.zeros_like(parameter, requires_grad=False)
            for index, parameter in enumerate(self.parameters)
            if not _is_exact(parameter)
        }

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self.parameters[0].device

    @property
    def is_rounded(self) -> bool:
        """Whether a parameter has fewer bits than fp32."""
        return bool(self._rests)

    def vector(self) -> torch.Tensor:
        """Return a copy of the parameters: fp32 (d,) on the CPU."""
        x_d = torch.empty(self.numel, device="cpu")  # whatever the default is in the thread that trains
        with torch.no_grad():
            for index, (part, parameter) in enumerate(zip(self._split(x_d), self.parameters, strict=True)):
                part.copy_(parameter)
                if index in self._rests:
                    part.add_(self._rests[index].to(part.device, torch.float32))
        return x_d

    def add_(self, x_d: torch.Tensor) -> None:
        """Add `x_d` (d,) to the parameters. ValueError on another shape."""
        with torch.no_grad():
            parts = self._split(self._checked(x_d))
            exact = [part for index, part in enumerate(parts) if index not in self._rests]
            moved = [part.to(own) for part, own in zip(exact, self._exact, strict=True)]
            if moved:
                torch._foreach_add_(self._exact, moved)
            for index, rest in self._rests.items():
                self._round(index, self.parameters[index].float() + rest.float() + parts[index].to(rest.device))

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the parameters to `x_d` (d,). ValueError on another shape."""
        with torch.no_grad():
            for index, part in enumerate(self._split(self._checked(x_d))):
                if index in self._rests:
                    self._round(index, part.to(self.parameters[index].device, torch.float32))
                else:
                    self.parameters[index].copy_(part)

    def _round(self, index: int, exact: torch.Tensor) -> None:
        parameter = self.parameters[index]
        parameter.copy_(exact)
        self._rests[index].copy_(exact - parameter.float())

    def _split(self, x_d: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(x_d, self.sizes)
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters, strict=True)]

    def _checked(self, x_d: torch.Tensor) -> torch.Tensor:
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        return x_d


def _is_exact(parameter: torch.Tensor) -> bool:
    return parameter.dtype in (torch.float32, torch.float64)
