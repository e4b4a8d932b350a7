"""What the learning core computes is fp32, whatever torch's default is: a user's process may have set another, and it
is set to fp64 for a moment wherever a model is drawn (`p2ptrain.training.model`)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from p2ptrain import aggregate, compress

CORE = ("aggregate", "attacks", "compress", "inner", "outer", "sync", "training")
MAKES = {"empty", "full", "ones", "rand", "randn", "zeros"}
ROOT = Path(__file__).parents[2] / "p2ptrain"


@pytest.fixture
def wide_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("folder", CORE)
def test_every_tensor_that_is_made_names_its_dtype(folder: str) -> None:
    nameless = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in MAKES
        and ast.unparse(call.func.value) == "torch"
        and not {"dtype", None} & {each.arg for each in call.keywords}
    ]
    assert nameless == []


@pytest.mark.usefixtures("wide_default")
@pytest.mark.parametrize("numel", [50, 5000])
def test_a_trimmed_mean_is_fp32_under_another_default(numel: int) -> None:
    x_nd = torch.randn(5, numel, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    mean_d = aggregate.get("trimmed_mean", f=1)(x_nd)
    assert mean_d.dtype is torch.float32
    torch.testing.assert_close(mean_d, x_nd.sort(0).values[1:-1].mean(0))


@pytest.mark.usefixtures("wide_default")
@pytest.mark.parametrize("name", ["int8", "powersgd"])
def test_a_codec_gives_fp32_under_another_default(name: str) -> None:
    codec = compress.get(name)
    x_d = torch.randn(4096, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    assert codec.decode(codec.encode(x_d), 4096).dtype is torch.float32
