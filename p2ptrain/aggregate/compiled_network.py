"""A network of minima and maxima as one compiled loop: all steps for a column's values while they are in registers.

The loop is written as source for one `Program`, since only straight code is kept in registers. The compiler uses the
processor's vectors where it can tell that the result overlaps no input: of a few rows by comparing addresses, of more
only if blocks of them are first copied side by side. NaN becomes +infinity on the way, so nothing is done twice.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.aggregate.sorting_networks import Program, Step
from p2ptrain.jit import compiled

Floats = npt.NDArray[np.float32]
Loop = Callable[[Floats, int, Floats, Floats], None]

BLOCK = 256
"""Columns side by side: 64 rows of them take 64 KiB, well within a core's second cache."""

FEW = 8
"""Rows whose addresses LLVM still compares with the result's."""

OF_FEW = """
def loop(x_f, stride, block_f, out_c):
    width = len(out_c)
    {rows}
    for c in range(width):
        {steps}
        out_c[c] = ({kept}) / COUNT
"""
OF_MANY = """
def loop(x_f, stride, block_f, out_c):
    for start in range(0, len(out_c), {block}):
        width = min({block}, len(out_c) - start)
        for row in range({n}):
            from_c = x_f[row * stride + start : row * stride + start + width]
            to_c = block_f[row * {block} : row * {block} + width]
            for c in range(width):
                to_c[c] = min(INFINITY, from_c[c])
        for c in range({block}):
            {steps}
            block_f[c] = ({kept}) / COUNT
        part_c = out_c[start : start + width]
        for c in range(width):
            part_c[c] = block_f[c]
"""
"""min(INFINITY, NaN) is INFINITY: numba's min keeps its first argument unless the second is lower."""


class MeanOfMiddle:
    """The mean of what a program leaves of every column. One for each thread: it holds a block."""

    def __init__(self, program: Program) -> None:
        self._loop = _compile(program)
        self._n = program.n
        self._block_f = np.zeros(program.n * BLOCK, dtype=np.float32)

    def __call__(self, x_nc: torch.Tensor, out_c: torch.Tensor) -> None:
        """Write the means of the columns of fp32 (n, c) to (c,). The vectors lie on the CPU."""
        width = len(out_c)
        if x_nc.stride(1) != 1 or x_nc.stride(0) < width:
            x_nc = x_nc.contiguous()
        stride = x_nc.stride(0)
        x_f = x_nc.detach().as_strided(((self._n - 1) * stride + width,), (1,))
        self._loop(x_f.numpy(), stride, self._block_f, out_c.numpy())


@lru_cache(maxsize=64)
def _compile(program: Program) -> Loop:
    n, few = program.n, program.n <= FEW
    values = {row: f"x{row}" for row in range(n)}
    lines = [
        f"x{row} = " + (f"min(INFINITY, row{row}[c])" if few else f"block_f[{row * BLOCK} + c]") for row in range(n)
    ]
    for number, step in enumerate(program.steps):
        lines.append(f"y{number} = {_expression(step, values)}")
        values[n + step.out] = f"y{number}"
    kept = " + ".join(values[n + row] for row in range(program.left))
    rows = "\n    ".join(f"row{row} = x_f[{row} * stride : {row} * stride + width]" for row in range(n))
    steps = ("\n        " if few else "\n            ").join(lines)
    source = (OF_FEW if few else OF_MANY).format(n=n, block=BLOCK, rows=rows, steps=steps, kept=kept)
    names = {"INFINITY": np.float32(np.inf), "COUNT": np.float32(program.left)}
    exec(compile(source, f"<{n} values, {program.left} kept>", "exec"), names)  # our own text, numbers filled in
    return compiled(cast(Loop, names["loop"]))


def _expression(step: Step, values: dict[int, str]) -> str:
    of = [values[each] for each in step.of]
    if step.kind == "clamp":
        return f"min(max({of[0]}, {of[1]}), {of[2]})"
    return f"{step.kind}({of[0]}, {of[1]})"
