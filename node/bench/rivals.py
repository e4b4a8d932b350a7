"""Other people's implementations of the same things, where they are installed: never needed, only measured against.

byzfl aggregates (n, d) tensors; hivemind compresses tensors into messages. A table says which of them was absent.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

Aggregate = Callable[[torch.Tensor], object]
Codec = tuple[Callable[[torch.Tensor], Any], Callable[[Any], object]]
"""Compress, and decompress what came of it."""

BYZFL_RULES = {
    "mean": ("Average", False),
    "trimmed_mean": ("TrMean", True),
    "median": ("Median", False),
    "krum": ("Krum", True),
    "multi_krum": ("MultiKrum", True),
    "geometric_median": ("GeometricMedian", False),
    "centered_clipping": ("CenteredClipping", False),
    "mda": ("MDA", True),
    "meamed": ("Meamed", True),
    "caf": ("CAF", True),
}
"""Our name: theirs, and whether it takes f."""
BYZFL_STAGES = {
    "nnm": ("NNM", True),
    "bucketing": ("Bucketing", False),
    "arc": ("ARC", True),
    "clipping": ("Clipping", False),
}
TRIED = 1000
"""Parameters on which a codec of theirs is tried first: some releases fail with newer libraries."""
HIVEMIND_CODECS = {"none": "NoCompression", "fp16": "Float16Compression", "int8": "Uniform8BitQuantization"}


def byzfl_rule(name: str, f: int) -> Aggregate | None:
    """Return byzfl's rule of our `name`, compositions included; None where it has none, or is not installed."""
    module = _byzfl()
    if module is None:
        return None
    *stages, base = name.split("+")
    known = [BYZFL_STAGES.get(stage) for stage in stages] + [BYZFL_RULES.get(base)]
    parts = [getattr(module, cls)(f=f) if takes_f else getattr(module, cls)() for cls, takes_f in filter(None, known)]
    if len(parts) < len(known):
        return None

    def run(x_nd: torch.Tensor) -> object:
        passed: Any = x_nd
        for part in parts:
            passed = part(passed)
        return passed

    return run


@cache
def hivemind_codec(name: str) -> Codec | None:
    """Return hivemind's counterpart of our compressor `name`; None where it has none, is not installed, or does not
    run."""
    theirs = HIVEMIND_CODECS.get(name)
    if theirs is None or importlib.util.find_spec("hivemind") is None:
        return None
    try:
        module = importlib.import_module("hivemind.compression")
        codec = getattr(module, theirs)()

        def compress(x_d: torch.Tensor) -> Any:
            return codec.compress(x_d, module.CompressionInfo.from_tensor(x_d))

        codec.extract(compress(torch.randn(TRIED)))
    except Exception:  # theirs, of whatever kind: a codec that fails with the libraries here cannot be measured
        return None
    return compress, codec.extract


def absent(name: str) -> list[str]:
    """Return a note when byzfl, or hivemind, cannot be measured here, or not all of it."""
    there = _byzfl() is not None if name == "byzfl" else importlib.util.find_spec(name) is not None
    if not there:
        return [f"{name} is not installed, and not measured: pip install {name}"]
    broken = [ours for ours in HIVEMIND_CODECS if name == "hivemind" and hivemind_codec(ours) is None]
    return [f"hivemind's {', '.join(broken)} does not run with the libraries here"] if broken else []


@cache
def _byzfl() -> ModuleType | None:
    """Its aggregators alone: the package itself wants torchvision, for benchmarks of its own."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or spec.submodule_search_locations is None:
            return None
        shell = ModuleType("byzfl")
        shell.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = shell
    try:
        return importlib.import_module("byzfl.aggregators")
    except ImportError:
        return None
