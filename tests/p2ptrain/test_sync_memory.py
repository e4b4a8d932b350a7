"""A round makes no vector of the model's size: the process's peak memory, read from the kernel, shows it."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from p2ptrain.saved.tensor_file import save_file
from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.base import InPlace

D = 24_000_000
"""So large that what the C library keeps, up to 25 MB on a busy machine, is little beside a vector."""
VECTOR = 4 * D
LITTLE = VECTOR // 2
"""Chunks of a few threads, copies of a payload, and what the C library keeps: below a vector, bf16 or not."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's peak of resident memory is read")


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def added(work: Callable[[], object]) -> int:
    """Bytes by which the peak while `work` runs is above what was resident before. What the C library keeps of earlier
    work goes back to the kernel first: `work` would use it unseen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"estimates": "fp32"}, {"estimates": "bf16"}, {"outer": "noloco"}, {"strategy": "async"}], ids=str
)
def test_a_round_makes_no_vector(settings: dict[str, Any], tmp_path: Path) -> None:
    theta_d = torch.randn(D, generator=torch.Generator().manual_seed(0))
    node = build(SyncConfig(**settings), theta_d, "own")
    assert isinstance(node, InPlace)
    peers = ["one", "two", "three"]
    for peer in peers:
        node.track(peer, None)
    for round_ in range(2):  # in the first, vectors that were shared become their holders' own
        theta_d = theta_d + 0.01
        messages = []

        def encode(theta_d: torch.Tensor = theta_d, round_: int = round_) -> None:
            messages.append(node.encode(theta_d, round=round_))  # noqa: B023

        def apply() -> None:
            for peer in peers:
                node.apply(peer, messages[0].codec, messages[0].payload)  # noqa: B023

        def close(theta_d: torch.Tensor = theta_d, round_: int = round_) -> None:
            node.aggregate_(theta_d, dict.fromkeys(peers, 0), round=round_)

        costs = [added(encode), added(apply), added(close), added(lambda: save_file(node.state_dict(), tmp_path / "x"))]
        (tmp_path / "x").unlink()
        costs[0] -= len(messages[0].payload)  # the message itself, which is kept
    assert max(costs) < LITTLE, costs
    assert added(lambda: node.aggregate(theta_d, dict.fromkeys(peers, 0), round=3)) > VECTOR, "this is what it measures"
