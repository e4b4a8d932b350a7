"""What rank 0 of several shares with the others when its node begins."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from node.config.schema import Config
from node.roles.joined_ranks import FollowingNode, LeadingNode, LoopNode, Ranks
from node.system.errors import RunError
from p2ptrain.training.user_model import UserModel


class OnDevice(torch.Tensor):
    """A tensor elsewhere than on the host."""

    def cpu(self, *given: Any, **options: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_the_optimizers_state_travels_on_the_host() -> None:
    moments = torch.ones(3).as_subclass(OnDevice)
    state = {"state": {0: {"step": torch.tensor(2.0), "exp_avg": moments}}, "param_groups": [{"lr": 0.1}]}
    optimizer = SimpleNamespace(state_dict=lambda: state)
    learner = SimpleNamespace(global_step=2, tokens=0, skipped_steps=0, changes=0, optimizer=optimizer)
    shared: list[Any] = []
    ranks: Any = SimpleNamespace(shards=None, learner=None, begun=shared.append, share_parameters=lambda: None)
    inner: Any = SimpleNamespace(
        start=lambda: None, now=lambda: SimpleNamespace(peer_id="one"), addresses=[], page=None
    )
    found = cast(Callable[[], UserModel], lambda: learner)
    LeadingNode(cast(LoopNode, inner), cast(Ranks, ranks), found, cast(Config, None), Path()).start()
    (begun,) = shared
    assert type(begun.optimizer["state"][0]["exp_avg"]) is torch.Tensor
    assert begun.optimizer["state"][0]["step"] == 2
    assert begun.optimizer["param_groups"] == [{"lr": 0.1}]


def test_a_rank_whose_rank_0_is_gone_or_waits_for_too_long_ends_with_a_line() -> None:
    def begun() -> Any:
        raise RuntimeError("[/pytorch/third_party/gloo/...] Timed out waiting 3600000ms for recv operation to complete")

    ranks: Any = SimpleNamespace(begun=begun)
    node = FollowingNode(cast(Ranks, ranks), cast(Callable[..., UserModel], None), lambda folder: None)
    with pytest.raises(RunError, match=r"rank 0's node has not begun.*1:00:00"):
        node.start()
