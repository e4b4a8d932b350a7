"""A model as an ONNX file, checked against what it was made of by onnxruntime (extra `onnx`)."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError

OUTPUT: Final = "logits"
INPUT: Final = "inputs"
"""Of a model whose input has no name of its own."""

CHECKED_WITHIN: Final = 1e-3
"""Of the largest output: rounding differs between libraries by some 1e-6 of it, a wrong graph by all of it."""


def write_onnx(model: nn.Module, inputs: torch.Tensor, file: Path) -> float:
    """Write `model`, in eval mode on the CPU, as a graph from a batch of `inputs` to its logits; how many examples
    there are, and how long token rows are, is free. Return the largest difference between onnxruntime's outputs and the
    model's own, for a smaller batch. TaskError where the model cannot be exported, or does not come out the same."""
    onnxruntime = _required("onnxruntime")
    _required("onnxscript")
    name = getattr(model, "main_input_name", None) or INPUT
    plain = _Logits(model, name if hasattr(model, "main_input_name") else None).eval()
    try:
        with _quiet():
            program = torch.onnx.export(
                plain,
                (inputs,),
                dynamo=True,
                verbose=False,
                input_names=[name],
                output_names=[OUTPUT],
                dynamic_shapes={"inputs": _free(inputs)},
            )
            assert program is not None, "dynamo gives a program"
            program.save(file)
    except Exception as error:  # the exporter raises a dozen kinds, with pages of text
        raise TaskError(f"this model cannot be an ONNX graph: {str(error).strip().splitlines()[0][:300]}") from error
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return _difference(session, plain, _smaller(inputs), name)


class _Logits(nn.Module):
    """Transformers' models take their input by name, keep a cache, and return a record."""

    def __init__(self, model: nn.Module, name: str | None) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.name is None:
            found: Any = self.model(inputs)
        elif inputs.is_floating_point():
            found = self.model(**{self.name: inputs})
        else:
            found = self.model(**{self.name: inputs}, use_cache=False)
        logits: torch.Tensor = getattr(found, OUTPUT, found)
        return logits


def _free(inputs: torch.Tensor) -> dict[int, Any]:
    rows_of_tokens = inputs.ndim == 2 and not inputs.is_floating_point()
    return dict.fromkeys(range(2 if rows_of_tokens else 1), torch.export.Dim.DYNAMIC)


def _smaller(inputs: torch.Tensor) -> torch.Tensor:
    fewer = inputs[: max(1, len(inputs) - 1)]
    return fewer[:, : max(1, fewer.shape[1] - 1)] if len(_free(inputs)) == 2 else fewer


@torch.no_grad()
def _difference(session: Any, model: nn.Module, inputs: torch.Tensor, name: str) -> float:
    wanted = model(inputs)
    found = torch.from_numpy(session.run([OUTPUT], {name: inputs.numpy()})[0])
    difference = float((found - wanted).abs().max())
    if not difference <= CHECKED_WITHIN * float(wanted.abs().max()):
        raise TaskError(f"the ONNX graph is another function: its outputs are {difference:.3g} away from the model's")
    return difference


def _required(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TaskError(
            f"{error.name or module} is not installed; it comes with: pip install 'p2ptrain[onnx]'"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of libraries that are not there, and is warned by torch of torch's own deprecated names."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
