"""Evaluates the models that contestants kept, after the run: one code, the same held-out examples, off everybody's
clock."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from node.bench.race.curves import Point
from node.bench.race.spec import RaceSpec
from node.bench.race.track import Mark
from p2ptrain.training.model import bind_parameters, build_model


class Judge:
    """Holds the model and the held-out batches of a race."""

    def __init__(self, spec: RaceSpec) -> None:
        """Build both. TaskError where the data cannot be had."""
        self._task = spec.task()
        self._model = build_model(self._task, spec.seed).eval()
        self._batches = self._task.eval_batches(spec.eval_examples)
        self._genesis_loss = self.loss(nn.utils.parameters_to_vector(self._model.parameters()).detach().clone())

    def curve(self, marks: Sequence[Mark], start: float) -> list[Point]:
        """Return the initial model's loss, and those of the models that were kept after `start` (Unix seconds)."""
        return [Point(seconds=0.0, step=0, loss=round(self._genesis_loss, 4)), *self._points(marks, start)]

    def loss(self, x_d: torch.Tensor) -> float:
        """Return the mean held-out loss of the parameters `x_d`, fp32 (d,)."""
        model = bind_parameters(x_d, self._model)
        total, count = 0.0, 0
        with torch.no_grad():
            for batch in self._batches:
                tokens = self._task.tokens(batch)
                total, count = total + float(self._task.loss(model, batch)) * tokens, count + tokens
        return total / count

    def _points(self, marks: Sequence[Mark], start: float) -> Iterator[Point]:
        for mark in marks:
            if mark.model is not None and mark.at > start:
                loss = self.loss(torch.from_numpy(np.load(mark.model)))
                yield Point(seconds=round(mark.at - start, 3), step=mark.step, loss=round(loss, 4))
