"""The trainable parameters of anybody's module as one fp32 vector, with every tensor left where it is.

FlatParameters (flat.py) moves the parameters of our own models into one buffer. A user's model may be known to DDP
buckets, CUDA graphs, optimizers and views of its own by the storage that it has: here it is read and added to in place.
"""

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.device_copies import Copies, Take, copies_for
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
        self._rests = {
            index: torch.zeros_like(parameter, requires_grad=False)
            for index, parameter in enumerate(self.parameters)
            if parameter.dtype not in (torch.float32, torch.float64)
        }
        self._copies: dict[torch.device, Copies] = {}

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self.parameters[0].device

    @property
    def is_rounded(self) -> bool:
        """Whether a parameter has fewer bits than fp32."""
        return bool(self._rests)

    def vector(self) -> torch.Tensor:
        """Return a copy of the parameters: fp32 (d,) on the CPU. It is whole: the user's loop may do anything to the
        parameters next, and says nothing before it does."""
        x_d = torch.empty(self.numel, device="cpu")  # whatever the default is in the thread that trains
        parts = self._split(x_d)
        gatherings = [
            copies.gather(
                [(self.parameters[index], parts[index]) for index in indices],
                added=[(self._rests[index], parts[index]) for index in indices if index in self._rests],
            )
            for copies, indices in self._by_device()
        ]
        for each in gatherings:
            each.finish()
        return x_d

    def add_(self, x_d: torch.Tensor) -> None:
        """Add `x_d` (d,) to the parameters. ValueError on another shape."""

        def add(index: int, part: torch.Tensor, places: tuple[torch.Tensor, ...]) -> None:
            if len(places) == 1:
                places[0].add_(part)
            else:
                parameter, rest = places
                _round(parameter, rest, parameter.float() + rest.float() + part)

        self._deliver(x_d, add)

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the parameters to `x_d` (d,). ValueError on another shape."""

        def load(index: int, part: torch.Tensor, places: tuple[torch.Tensor, ...]) -> None:
            if len(places) == 1:
                places[0].copy_(part)
            else:
                _round(places[0], places[1], part)

        self._deliver(x_d, load)

    def _deliver(self, x_d: torch.Tensor, take: Take) -> None:
        """Hand each parameter its part of `x_d`, with its rest where it has one."""
        parts = self._split(self._checked(x_d))
        for copies, indices in self._by_device():
            copies.deliver([parts[index] for index in indices], [self._places(index) for index in indices], take)

    def _by_device(self) -> list[tuple[Copies, list[int]]]:
        """The parameters' numbers by the device that they are on now."""
        devices = [parameter.device for parameter in self.parameters]
        for device in dict.fromkeys(devices):
            self._copies.setdefault(device, copies_for(device))
        return [
            (copies, [index for index, each in enumerate(devices) if each == device])
            for device, copies in self._copies.items()
        ]

    def _places(self, index: int) -> tuple[torch.Tensor, ...]:
        parameter = self.parameters[index].detach()
        return (parameter, self._rests[index]) if index in self._rests else (parameter,)

    def _split(self, x_d: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(x_d, self.sizes)
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters, strict=True)]

    def _checked(self, x_d: torch.Tensor) -> torch.Tensor:
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        return x_d


def _round(parameter: torch.Tensor, rest: torch.Tensor, exact: torch.Tensor) -> None:
    parameter.copy_(exact)
    rest.copy_(exact - parameter.float())
