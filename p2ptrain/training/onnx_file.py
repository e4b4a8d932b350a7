"""A model as an ONNX file, checked against what it was made of by onnxruntime (extra `onnx`)."""

import importlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import TaskError
from p2ptrain.training.evaluator import are_logits

OUTPUT: Final = "logits"
INPUT: Final = "inputs"
"""Of a model whose input has no name of its own."""

CHECKED_WITHIN: Final = 1e-3
"""Of the largest output: rounding differs between libraries by some 1e-6 of it, a wrong graph by all of it."""


def data_of(file: Path) -> Path:
    """Return where the weights of a graph are that is too large for one file (from 1.5 GiB on), beside it: the graph
    has this name in it."""
    return file.with_name(f"{file.name}.data")


def write_onnx(model: nn.Module, inputs: torch.Tensor, file: Path) -> float:
    """Write `model`, in eval mode on the CPU, as a graph from a batch of `inputs` to its logits; how many examples
    there are, and how long token rows are, is free. Return the largest difference between onnxruntime's outputs and the
    model's own, for a smaller batch. TaskError where the model cannot be exported, or does not come out the same;
    OSError where the disk does not take it. A large model's weights are in `data_of(file)`."""
    onnxruntime = _required("onnxruntime")
    _required("onnxscript")
    if len(inputs) == 1:  # what is done for all examples alike, as positions, would be taken for one example's
        inputs = torch.cat([inputs, inputs])
    name = getattr(model, "main_input_name", None) or INPUT
    plain = _Logits(model, name if hasattr(model, "main_input_name") else None).eval()
    with _told(), _quiet():
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
    with _quiet():
        program.save(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return _difference(session, plain, _smaller(inputs), name)


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A graph whose weights are 8-bit numbers, beside the graph that it was made of."""

    bytes_before: int
    bytes: int
    logit_error: float
    """The largest difference between the two graphs' outputs on held-out examples."""
    largest_logit: float
    """Of the graph before, to compare with."""
    loss_before: float | None
    """Held-out cross entropy of the graph before, in nats; None where the outputs are no logits of the targets."""
    loss: float | None


def quantize_onnx(file: Path, out: Path, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Quantized:
    """Write the graph `file` to `out` with 8-bit weights, and activations that are rounded to 8 bits as it runs
    (onnxruntime's dynamic quantization); compare both on `pairs` of inputs and targets. Embeddings stay 8-bit tables.
    TaskError where a library is missing; OSError where the disk does not take it. Where the weights of `file` are
    beside it, so are those of `out`.

    Weights are unsigned, with a scale a column: on a CPU without VNNI products of signed ones exceed 16 bits, and are
    cut. Logits were then 4 to 20 times as far off (docs/benchmarks.md).
    """
    onnxruntime = _required("onnxruntime")
    _required("onnx")
    quantization = _required("onnxruntime.quantization")
    with _quiet(""):
        quantization.quantize_dynamic(
            file,
            out,
            per_channel=True,
            weight_type=quantization.QuantType.QUInt8,
            use_external_data_format=data_of(file).exists(),
        )
    before, after = (onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"]) for each in (file, out))
    error = largest = torch.zeros((), dtype=torch.float32)
    losses = [_CrossEntropy(), _CrossEntropy()]
    for inputs, targets in pairs:
        wanted, found = (_run(session, inputs) for session in (before, after))
        error = torch.maximum(error, (found - wanted).abs().max())  # of nan, nan
        largest = torch.maximum(largest, wanted.abs().max())
        for loss, logits in zip(losses, (wanted, found), strict=True):
            loss.add(logits, targets)
    return Quantized(
        bytes_before=bytes_of(file),
        bytes=bytes_of(out),
        logit_error=float(error),
        largest_logit=float(largest),
        loss_before=losses[0].mean,
        loss=losses[1].mean,
    )


def bytes_of(file: Path) -> int:
    """Return how large a graph is, with the weights beside it."""
    return sum(each.stat().st_size for each in (file, data_of(file)) if each.exists())


class _CrossEntropy:
    """The mean over predictions that count: those whose target is 0 or more."""

    def __init__(self) -> None:
        self._total, self._count, self._fits = 0.0, 0, True

    def add(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        self._fits = self._fits and are_logits(logits, targets)
        if self._fits:
            counted = targets >= 0
            self._total += float(functional.cross_entropy(logits[counted], targets[counted], reduction="sum"))
            self._count += int(counted.sum())

    @property
    def mean(self) -> float | None:
        return self._total / self._count if self._fits and self._count else None


def _run(session: Any, inputs: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(session.run([OUTPUT], {session.get_inputs()[0].name: inputs.numpy()})[0])


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
    difference = float((found - wanted).abs().max()) if found.shape == wanted.shape else math.inf
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
def _told() -> Iterator[None]:
    """Make a TaskError of what the exporter raises: a dozen kinds, with pages of text."""
    try:
        yield
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise TaskError(f"this model cannot be an ONNX graph: {why}") from error


@contextmanager
def _quiet(name: str = "torch.onnx") -> Iterator[None]:
    """The exporter tells of libraries that are not there, and is warned by torch of torch's own deprecated names; the
    quantizer, by the root logger, of a step that its graph does not need."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
