"""The task's model as every node must begin with it, and models that lend it other parameters."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from p2ptrain.tasks.base import Task, TaskError, keeps_dtypes
from p2ptrain.tasks.calling import calling
from p2ptrain.training.flat import Named, trainable


def build_model(task: Task, seed: int) -> nn.Module:
    """Return the model that `seed` gives, on the CPU in fp32, in training mode. TaskError when replicas cannot be
    averaged.

    Drawn in fp64 and rounded: torch's fp32 draws differ in the last bits between CPU types, and then machines would
    begin from different models and refuse each other. The caller's random numbers are left alone. What a task that
    `keeps_dtypes` returns is as it should be.
    """
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):  # the model is built on the CPU, so only its generator is used
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            with calling(task, "build_model"):
                model = _checked(task.build_model())
                model = model if keeps_dtypes(task) else model.to(torch.float32)
        finally:
            torch.set_default_dtype(default)
    if any(isinstance(module, _BatchNorm) and module.track_running_stats for module in model.modules()):
        raise TaskError("the task's model has BatchNorm, whose statistics are not averaged: use LayerNorm or GroupNorm")
    return model.train()


def _checked(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TaskError(f"build_model() returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def frozen_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters that are not trained, with the scales of those that bitsandbytes holds in 4
    bits."""
    frozen = [each for each in model.parameters() if not each.requires_grad]
    scales = [state.absmax for each in frozen if (state := getattr(each, "quant_state", None)) is not None]
    return sum(each.nbytes for each in (*frozen, *scales))


def shell_of(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in eval mode that has buffers of its own, but no memory for parameters: those that train
    are to be lent to it (`bind_parameters`), the frozen ones are the model's own."""
    lent: dict[int, object] = {
        id(parameter): _hollow(parameter) if parameter.requires_grad else parameter for parameter in model.parameters()
    }
    return copy.deepcopy(model, lent).eval()


def twin_of(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in its mode, with the model's own parameters, and so their gradients: all else that it
    carries (buffers, attributes) is the copy's. Whatever copying the model raises."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def release_parameters(shell: nn.Module) -> None:
    """Let go of what `bind_parameters` lent."""
    for _, parameter in trainable(shell):
        parameter.data = _hollow(parameter).data


def _hollow(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter of the same shape, all of whose values are one."""
    return nn.Parameter(parameter.data.new_zeros(()).expand(parameter.shape))


def bind_parameters(x_d: torch.Tensor, model: nn.Module, named: Named | None = None) -> nn.Module:
    """`model` with its trainable parameters, or those `named` of them, made views of `x_d` (d,), on its device.
    ValueError on another shape."""
    parameters = [parameter for _, parameter in (trainable(model) if named is None else named)]
    numel = sum(parameter.numel() for parameter in parameters)
    if x_d.shape != (numel,):
        raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {numel} parameters")
    nn.utils.vector_to_parameters(x_d.to(parameters[0].device, torch.float32), parameters)
    return model
