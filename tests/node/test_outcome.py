"""What is told of ranks that are lost, in a line, and where their model goes on."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from node.training.outcome import rank_lost
from p2ptrain.sync.sliced_vectors import LostSliceError
from p2ptrain.training.site.orders import RankLostError


@pytest.mark.parametrize("kind", [RankLostError, LostSliceError])
def test_a_lost_rank_is_no_mistake_of_the_user(kind: type[Exception]) -> None:
    node = SimpleNamespace(checkpoints=SimpleNamespace(newest_whole=lambda: Path("run/node/checkpoint/7")))
    told = rank_lost(node, ExceptionGroup("tasks", [kind("rank 1 is gone")]))  # type: ignore[arg-type]
    assert told is not None
    assert told.message == "rank 1 is gone; the newest checkpoint is run/node/checkpoint/7"
    assert "--max-restarts" in told.hint
    assert rank_lost(node, ValueError("rank 1 is gone")) is None  # type: ignore[arg-type]
