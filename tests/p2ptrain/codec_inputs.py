"""Vectors that hypothesis draws for codecs: odd sizes, ties, zeros, denormals, huge values, outliers. What is lost."""

import numpy as np
import torch
from hypothesis import strategies as st

from p2ptrain.compress import Compressor

SIZES = [*range(1, 34), 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 1300, 4095, 4096, 4097]
"""Around the widths of bytes, of blocks (256, 1,024) and of chunks (4,096)."""
MAGNITUDES = [1e-44, 1e-40, 1e-37, 1e-20, 1e-5, 1.0, 60_000.0, 1e19, 1e30, 1e38]

any_float = st.floats(width=32, allow_nan=False, allow_infinity=False)


def gaussian(numel: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numel)


@st.composite
def finite_vectors(draw: st.DrawFn) -> torch.Tensor:
    """Finite fp32 vectors; half of them a Gaussian with something done to it, half any few floats."""
    if draw(st.booleans()):
        return torch.tensor(draw(st.lists(any_float, min_size=1, max_size=70)), dtype=torch.float32)
    numel, seed = draw(st.sampled_from(SIZES)), draw(st.integers(0, 1 << 16))
    x_d = gaussian(numel, seed)
    match draw(st.sampled_from(["plain", "ties", "zeros", "constant", "outlier", "scales"])):
        case "ties":
            x_d = np.rint(x_d * draw(st.sampled_from([0.7, 3.0]))) / 2
        case "zeros":
            x_d[np.random.default_rng(seed).random(numel) < draw(st.sampled_from([0.5, 0.97, 1.0]))] = 0
        case "constant":
            x_d = np.sign(x_d)
        case "outlier":
            x_d[seed % numel] = 1e4
        case "scales":
            x_d *= np.exp(3 * gaussian(numel, seed + 1))
    limit = float(torch.finfo(torch.float32).max)
    x_d = (x_d * draw(st.sampled_from(MAGNITUDES))).clip(-limit, limit)
    return torch.from_numpy(x_d.astype(np.float32))


def lost(codec: Compressor, x_d: torch.Tensor) -> float:
    """The squared error of one encoding, as a share of the vector's square."""
    error_d = codec.decode(codec.encode(x_d), x_d.numel()).double() - x_d.double()
    return float(error_d.square().sum() / x_d.double().square().sum())
