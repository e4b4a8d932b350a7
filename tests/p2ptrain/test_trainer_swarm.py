"""The swarm of a Trainer, before it begins: it is joined once, and who writes checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from p2ptrain.integrations import trainer_swarm
from p2ptrain.integrations.swarm import Swarm, join
from p2ptrain.integrations.trainer_swarm import TrainerSwarm

PRIVATE = {"privacy.privatizer": "update", "privacy.noise": 1.0, "privacy.clip": 1.0, "privacy.public_start": True}


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Swarm]:
    """Begins with these settings, and starts no node. Returns the one swarm that was joined."""
    joined: list[Swarm] = []

    def counted(*given: Any, **named: Any) -> Swarm:
        joined.append(join(*given, **named))
        return joined[-1]

    def begin(**settings: Any) -> Swarm:
        keywords = {"run_dir": tmp_path / "run"} | ({"settings": settings} if settings else {})
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        TrainerSwarm(keywords, to_resume="resume=True").begin(model, optimizer, dict, global_step=0)
        (swarm,) = joined
        return swarm

    monkeypatch.setattr(trainer_swarm, "join", counted)
    monkeypatch.setattr(Swarm, "__enter__", lambda swarm: swarm)
    monkeypatch.setattr(trainer_swarm, "_JOINED", {})
    return begin


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({}, 0),
        ({"train.inner_steps": 3}, 0),
        ({"node.checkpoint_every": 3}, 3),
        (PRIVATE, 10),
        (PRIVATE | {"node.checkpoint_every": 2}, 2),
    ],
    ids=["plain", "other settings", "said", "private", "private and said"],
)
def test_it_is_joined_once_and_only_a_private_node_keeps_checkpoints_unasked(
    begun: Callable[..., Swarm], settings: dict[str, Any], every: int
) -> None:
    swarm = begun(**settings)
    assert swarm._settings is not None
    assert swarm._settings.config.node.checkpoint_every == every
    assert swarm.is_private == ("privacy.privatizer" in settings)
