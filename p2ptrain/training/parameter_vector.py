"""The trainable parameters of anybody's module as one fp32 vector, with every tensor left where it is.

FlatParameters (flat.py) moves the parameters of our own models into one buffer. A user's model may be known to DDP
buckets, CUDA graphs, optimizers and views of its own by the storage that it has: here it is read and added to in place.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.device_copies import Copies, Take, copies_for
from p2ptrain.training.flat import trainable
from p2ptrain.training.names import canonical


class ParameterVector:
    """Reads and corrects the trainable parameters of `model`, in the order of `named_parameters`, tied ones once.

    A parameter in bf16 or fp16 cannot hold a small correction: what rounding takes is kept in its own type beside it,
    belongs to the vector, and goes into the next correction (Kahan's summation). One in float64 has more bits than the
    vector: corrections are added to all of them, and `finer` is what the vector lacks.

    Raises TaskError where nothing can be trained, or a parameter is sharded, sparse, not real, without memory, or in
    the memory of another one. Not thread-safe.
    """

    def __init__(self, model: nn.Module) -> None:
        _check_memory(model)
        self._begin(trainable(model))

    @classmethod
    def over(cls, named: Sequence[tuple[str, torch.Tensor]]) -> Self:
        """Make one of these tensors alone. Raises TaskError as for a model's parameters."""
        made = cls.__new__(cls)
        made._begin(named)
        return made

    def _begin(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        sharded = [name for name, parameter in named if is_sharded(parameter)]
        if sharded:
            raise TaskError(
                f"parameter {sharded[0]} is sharded (FSDP2 or tensor parallelism), and this is one of its ranks alone: "
                "all of them join together"
            )
        self.names = [canonical(name) for name, _ in named]
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise TaskError(f"two parameters are called {twice}, once wrappers are left out; rename one")
        self.parameters = [parameter for _, parameter in named]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self._kinds = [_kind(parameter) for parameter in self.parameters]
        self.numel = sum(self.sizes)
        _check_own_memory(named)
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

    @property
    def is_finer(self) -> bool:
        """Whether a parameter has more bits than fp32."""
        return any(parameter.dtype is torch.float64 for parameter in self.parameters)

    def finer(self) -> dict[str, torch.Tensor]:
        """Return what fp32 takes from each float64 parameter, by its place: float64, of its shape, on the CPU."""
        return {
            str(index): (parameter.detach() - parameter.detach().float()).cpu().contiguous()
            for index, parameter in enumerate(self.parameters)
            if parameter.dtype is torch.float64
        }

    def add_finer_(self, rests: Mapping[str, torch.Tensor]) -> None:
        """Add what `finer` returned to parameters that `load_` has set. What is of another shape is left out."""
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                rest = rests.get(str(index))
                if rest is not None and parameter.dtype is torch.float64 and rest.shape == parameter.shape:
                    parameter.add_(rest.to(parameter.device))

    def check_same(self, model: nn.Module) -> None:
        """Raise TaskError where a parameter is no longer `model`'s, or of another shape or type: then its optimizer
        moves other numbers than those that are read here."""
        there = {id(parameter) for parameter in model.parameters()}
        for name, parameter, kind in zip(self.names, self.parameters, self._kinds, strict=True):
            if id(parameter) not in there or _kind(parameter) != kind:
                raise TaskError(
                    f"parameter {name} was replaced or converted after the join: leave the swarm before that, and join "
                    "again with the new model and run_dir"
                )

    def vector(self) -> torch.Tensor:
        """Return a copy of the parameters: fp32 (d,) on the CPU. It is whole: the user's loop may do anything to the
        parameters next, and says nothing before it does."""
        x_d = torch.empty(self.numel, device="cpu", dtype=torch.float32)
        parts = self._split(x_d)
        gatherings = [
            copies.gather(
                [(self.parameters[index], parts[index]) for index in indices],
                added=[(self._places(index)[1], parts[index]) for index in indices if index in self._rests],
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
        if index not in self._rests:
            return (parameter,)
        self._rests[index] = self._rests[index].to(parameter.device)  # the user may have moved the model
        return parameter, self._rests[index]

    def _split(self, x_d: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(x_d, self.sizes)
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters, strict=True)]

    def _checked(self, x_d: torch.Tensor) -> torch.Tensor:
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        return x_d


def is_sharded(value: object) -> bool:
    """Whether `value` is a DTensor. By name: importing it takes half a second that most processes never need."""
    return any(kind.__name__ == "DTensor" for kind in type(value).__mro__)


def _check_memory(model: nn.Module) -> None:
    """Raise TaskError for a model whose parameters are not there yet, or of which none is to be trained."""
    named = list(model.named_parameters())
    for name, parameter in named:
        if is_lazy(parameter):
            raise TaskError(f"parameter {name} has no shape yet: give the model one batch before it joins")
        if parameter.is_meta:
            raise TaskError(f"parameter {name} is on the meta device, without values: load the model before it joins")
    if not any(parameter.requires_grad and parameter.numel() for _, parameter in named):
        raise TaskError("the model has no trainable parameter: nothing of it could be shared")


def _check_own_memory(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise TaskError where a number of one parameter is one of another's, or twice its own: a correction would be
    added to it twice."""
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, parameter in named:
        if any(size > 1 and stride == 0 for size, stride in zip(parameter.shape, parameter.stride(), strict=True)):
            raise TaskError(f"parameter {name} is expanded: many of its numbers are one; make it contiguous")
        by_storage.setdefault(parameter.untyped_storage()._cdata, []).append((name, parameter))
    for (name, first), *others in by_storage.values():
        for other_name, other in others if _overlap([first, *(each for _, each in others)]) else ():
            raise TaskError(
                f"parameters {name} and {other_name} share memory and are two ({tuple(other.shape)}): tie them by "
                "giving both modules the same Parameter"
            )


def _overlap(parameters: list[torch.Tensor]) -> bool:
    """Whether parameters of one storage have a number in common: most are its consecutive parts."""
    spans = sorted((each.storage_offset(), _end(each)) for each in parameters)
    if all(end <= start for (_, end), (start, _) in pairwise(spans)):
        return False
    if len({each.dtype for each in parameters}) > 1:
        return True
    times = torch.zeros(max(end for _, end in spans), dtype=torch.uint8)  # columns of one matrix, and such
    for each in parameters:
        times.as_strided(each.shape, each.stride(), each.storage_offset()).add_(1)
    return bool(times.max() > 1)


def _end(parameter: torch.Tensor) -> int:
    """One past the last place in its storage, in numbers."""
    reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return int(parameter.storage_offset()) + (reach + 1 if parameter.numel() else 0)


def _kind(parameter: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return parameter.shape, parameter.dtype


def _round(parameter: torch.Tensor, rest: torch.Tensor, exact: torch.Tensor) -> None:
    parameter.copy_(exact)
    rest.copy_(exact - parameter.float())
