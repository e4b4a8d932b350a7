"""The swarm of a Trainer, before it begins: it is joined once, and who writes checkpoints."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from node.system.errors import UsageError
from p2ptrain.integrations import saved_state, trainer_swarm
from p2ptrain.integrations.swarm import Swarm, export_model, join
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


def test_checkpoints_that_a_file_asks_for_are_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[node]\ncheckpoint_every = 3\n")
    model = nn.Linear(3, 2)
    swarm = join(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path / "run", config=file)
    swarm.checkpoint_at_the_end()
    assert swarm._settings is not None
    assert swarm._settings.config.node.checkpoint_every == 3


def test_a_state_that_was_cut_while_it_replaced_another_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state(round: int) -> dict[str, Any]:
        return {"round": round, "tensors": {"sync.anchor": torch.full((3,), float(round))}}

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    saved_state.save_state(tmp_path, state(4))
    with monkeypatch.context() as patched:
        patched.setattr(saved_state, "write_atomic", cut)
        with pytest.raises(KeyboardInterrupt):
            saved_state.save_state(tmp_path, state(5))
    assert saved_state.load_state(tmp_path) == {}, "not the tensors of 5 as those of 4"
    saved_state.save_state(tmp_path, state(5))
    found = saved_state.load_state(tmp_path)
    assert (found["round"], found["tensors"]["sync.anchor"].tolist()) == (5, [5.0] * 3)


def test_what_the_end_of_a_run_leaves_to_do_is_said(begun: Callable[..., Swarm], tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "node" / "checkpoint"
    checkpoints.mkdir(parents=True)
    with pytest.raises(UsageError, match="resume it with resume=True, or give another run_dir") as refused:
        begun()
    assert f"without {checkpoints} it begins anew with its key" in str(refused.value)


def test_a_state_that_is_more_than_tensors_is_exported_by_its_owner(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

    with pytest.raises(UsageError, match="_extra_state of the model's state_dict is no tensor"):
        export_model(Counting(3, 2), tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # lightning's own, at its import
def test_what_lightning_trains_otherwise_is_refused_before_anything_begins(tmp_path: Path) -> None:
    strategies = pytest.importorskip("lightning.pytorch.strategies")
    from p2ptrain.integrations.lightning import SwarmCallback

    callback = SwarmCallback(run_dir=tmp_path / "run")
    alone = strategies.SingleDeviceStrategy(device="cpu")
    for trainer, words in (
        (SimpleNamespace(strategy=object(), optimizers=[None]), "wants the whole model in each process"),
        (SimpleNamespace(strategy=alone, optimizers=[None, None]), "has 2 optimizers, and which one counts"),
    ):
        with pytest.raises(UsageError, match=words):
            callback.on_train_start(trainer, nn.Linear(1, 1))
    assert callback.swarm is None
    assert list(tmp_path.iterdir()) == []
