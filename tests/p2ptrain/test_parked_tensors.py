"""Tensors whose memory is given back: they come back as they were, and training goes on bit for bit."""

import pytest
import torch

from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.machine import Machine
from p2ptrain.training.parked_tensors import ParkedTensors


def trainer(optimizer: str) -> Trainer:
    config = TrainConfig(rounds=4, inner_steps=3, batch_size=4, threads=1, warmup_steps=0, optimizer=optimizer)
    return Trainer(tasks.get("digits"), config, Shard())


def test_views_share_what_comes_back() -> None:
    x_d = torch.arange(12.0)
    view = x_d[4:8].view(2, 2)
    parked = ParkedTensors([view, x_d, x_d[1:]])
    assert parked.nbytes == x_d.nbytes, "a storage counts once"
    assert x_d.untyped_storage().nbytes() == 0
    assert torch.equal(parked.on_host(view), torch.tensor([[4.0, 5.0], [6.0, 7.0]]))
    parked.bring_back()
    assert torch.equal(x_d, torch.arange(12.0))
    view.zero_()
    assert not x_d[4:8].any()


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "schedule_free", "sgd"])
def test_training_goes_on_bit_for_bit(optimizer: str) -> None:
    never, parked = trainer(optimizer), trainer(optimizer)
    for it in (never, parked):
        it.step()
    assert parked.park() >= 2 * 4 * parked.numel, "parameters and gradients at least"
    assert parked.flat.data_d.untyped_storage().nbytes() == 0
    expected = never.state_dict()
    for state in (parked.state_dict(), parked.state_view()):  # as a checkpoint at Ctrl-C reads it
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    parked.take_memory()
    assert [parked.step() for _ in range(3)] == [never.step() for _ in range(3)]
    assert torch.equal(parked.vector(), never.vector())


def test_where_there_is_no_room_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.ones(4), torch.ones(8)]
    parked = ParkedTensors(tensors)
    resize = torch.UntypedStorage.resize_

    def full(storage: torch.UntypedStorage, size: int) -> object:
        if size == 32:
            raise torch.OutOfMemoryError("full")
        return resize(storage, size)

    with monkeypatch.context() as patched:
        patched.setattr(torch.UntypedStorage, "resize_", full)
        with pytest.raises(torch.OutOfMemoryError):
            parked.bring_back()
    assert [it.untyped_storage().nbytes() for it in tensors] == [0, 0], "what had come back is given back again"
    parked.bring_back()
    assert all(it.eq(1).all() for it in tensors)


def test_workspaces_are_given_back_unless_somebody_computes_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(Machine, "free_workspaces", lambda machine: freed.append(machine.device.type))
    it = trainer("sgd")
    it.park()
    assert freed == ["cpu"]
    it.take_memory()
    with it._evaluator._lock:  # an evaluation
        it.park()
    assert freed == ["cpu"], "what it computes in stays"
