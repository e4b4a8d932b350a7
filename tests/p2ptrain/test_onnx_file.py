"""What of a graph's outputs is compared with the model's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from p2ptrain.tasks import TaskError
from p2ptrain.training.onnx_file import _difference


@pytest.mark.parametrize("rows", [1, 4])
def test_a_graph_whose_outputs_have_another_shape_is_another_function(rows: int) -> None:
    """One row is subtracted from each of three, and is none of them; four cannot be."""
    session = SimpleNamespace(run=lambda names, given: [np.zeros((rows, 2), np.float32)])
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad(), pytest.raises(TaskError, match="the ONNX graph is another function"):
        _difference(session, model, torch.ones(3, 2), "x")
