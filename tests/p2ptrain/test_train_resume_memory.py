"""A trainer that takes up a state from a file holds one tensor of it at a time."""

import weakref
from collections.abc import Iterator, Mapping

import torch

from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer


class OneAtATime(Mapping[str, torch.Tensor]):
    """Fails where a tensor is asked for while another one is held."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self._given: list[weakref.ref[torch.Tensor]] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        assert not any(each() is not None for each in self._given), f"{name}, while another one is held"
        found = self.tensors[name].clone()
        self._given.append(weakref.ref(found))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_a_state_is_taken_up_tensor_by_tensor() -> None:
    trainers = [Trainer(Digits(), TrainConfig(batch_size=8, device="cpu"), Shard()) for _ in range(2)]
    for _ in range(3):
        trainers[0].step()
    trainers[1].load_state_dict(OneAtATime(trainers[0].state_dict()))
    assert trainers[0].step() == trainers[1].step()
    assert torch.equal(trainers[0].vector(), trainers[1].vector())
