"""What goes between a device and the host is whole and in order, whenever the device does its work."""

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from queued_devices import QueuedDevice
from vectors import vector

from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer, device_copies
from p2ptrain.training.device_copies import BUFFERS, Copies, HostCopies, StagedCopies, add, at_once, overwrite

CPU = torch.device("cpu")


def all_kinds() -> list[torch.Tensor]:
    """Tensors of every sort that a model may have."""
    return [
        vector(1000).view(10, 100),
        vector(37, seed=1),
        vector(600, seed=2).view(2, 3, 10, 10).to(memory_format=torch.channels_last),
        vector(300, seed=3).view(100, 3).t(),
        vector(1, seed=4).view(()),
        torch.empty(0, 5),
        vector(257, seed=5).bfloat16(),
        vector(90, seed=6).double(),
        torch.arange(50),
        vector(40, seed=7)[::2],
    ]


def staged(size: int) -> Copies:
    return StagedCopies(at_once(CPU), staged=size)


every_way = pytest.mark.parametrize(
    "copies", [HostCopies(), staged(16), staged(100), staged(1 << 20)], ids=["host", "16", "100", "whole"]
)


@every_way
def test_all_kinds_of_tensors_arrive(copies: Copies) -> None:
    sources = all_kinds()
    found = [torch.full(each.shape, 7, dtype=each.dtype) for each in sources]
    copies.gather(list(zip(sources, found, strict=True))).finish()
    for source, arrived in zip(sources, found, strict=True):
        assert torch.equal(source, arrived)


@every_way
def test_they_are_delivered(copies: Copies) -> None:
    targets = all_kinds()
    sources = [torch.full(each.shape, 2, dtype=each.dtype) for each in targets]
    expected = [each + 2 for each in targets]
    copies.deliver(sources, [(each,) for each in targets], add)
    assert all(map(torch.equal, targets, expected))
    copies.deliver(sources, [(each,) for each in targets], overwrite)
    assert all(map(torch.equal, targets, sources))


@every_way
def test_what_is_added_comes_on_top(copies: Copies) -> None:
    value, rest = vector(300).bfloat16(), (vector(300, seed=1) / 1000).bfloat16()
    found = torch.empty(300)
    copies.gather([(value, found)], added=[(rest, found)]).finish()
    assert torch.equal(found, value.float() + rest.float())


@every_way
def test_a_delivery_knows_its_tensor_and_all_its_places(copies: Copies) -> None:
    values = [vector(70), vector(30, seed=1).view(5, 6)]
    places = [(torch.zeros_like(each), torch.zeros_like(each)) for each in values]

    def take(index: int, part: torch.Tensor, targets: tuple[torch.Tensor, ...]) -> None:
        targets[0].add_(part)
        targets[1].fill_(index + 1)

    copies.deliver(values, places, take)
    for index, (value, (written, numbered)) in enumerate(zip(values, places, strict=True)):
        assert torch.equal(written, value)
        assert (numbered == index + 1).all()


def test_parameters_that_need_gradients_are_read_and_written_without_a_record() -> None:
    parameter = torch.nn.Parameter(vector(50))
    found = torch.empty(50)
    copies = staged(64)
    copies.gather([(parameter, found)]).finish()
    copies.deliver([found], [(parameter,)], add)
    assert parameter.is_leaf
    assert torch.equal(parameter, 2 * vector(50))


seeds = pytest.mark.parametrize("seed", range(30))


@seeds
@pytest.mark.parametrize("pace", [0, 1, 3])
def test_any_order_that_the_device_may_take_gives_the_same(seed: int, pace: int) -> None:
    """Steps, gatherings and deliveries in any order, against the same done one after another."""
    rng = random.Random(seed)
    device = QueuedDevice(seed, pace)
    copies = StagedCopies(device.queues(), staged=64)
    model_d, reference_d = vector(75), vector(75)
    gathered: list[tuple[torch.Tensor, torch.Tensor, Callable[[], None]]] = []
    for number in range(12):
        match rng.choice(["compute", "gather", "add", "load", "finish"]):
            case "compute":
                copies.settle()
                factor = 1 + number / 100
                device.computing.run(partial(model_d.mul_, factor))
                reference_d.mul_(factor)
            case "gather":
                found_d = torch.empty(75)
                gathering = copies.gather([(model_d, found_d)])
                gathered.append((found_d, reference_d.clone(), gathering.finish))
            case "finish" if gathered:
                gathered[rng.randrange(len(gathered))][2]()
            case "add" | "load" as what:
                given_d = vector(75, seed=number)
                copies.deliver([given_d], [(model_d,)], add if what == "add" else overwrite)
                reference_d = given_d + (reference_d if what == "add" else 0)
                given_d.fill_(torch.nan)  # ours again
            case _:
                pass
    for found_d, expected_d, finish in gathered:
        finish()
        assert torch.equal(found_d, expected_d)
    device.drain()
    assert torch.equal(model_d, reference_d)
    assert len(device.locked_sizes) <= BUFFERS
    assert len(device.scratch_sizes) <= BUFFERS


@seeds
def test_a_gathering_is_of_what_was_computed_before_it(seed: int) -> None:
    device = QueuedDevice(seed)
    copies = StagedCopies(device.queues(), staged=64)
    model_d, found_d = vector(100), torch.empty(100)
    device.computing.run(partial(model_d.add_, 1))
    copies.gather([(model_d, found_d)]).finish()
    assert torch.equal(found_d, vector(100) + 1)


def test_the_copies_go_on_while_it_computes() -> None:
    """Both buffers are on their way at once, and nothing that is computed waits for them."""
    device = QueuedDevice(pace=0)
    copies = StagedCopies(device.queues(), staged=64)
    model_d, found_d, read = vector(64), torch.zeros(64), []
    gathering = copies.gather([(model_d, found_d)])
    device.computing.run(lambda: read.append(float(model_d.sum())))
    device.computing.mark().wait()  # a step's forward pass
    assert read
    assert not gathering.ended
    assert not found_d.any()
    device.drain()
    gathering.finish()
    assert gathering.ended
    assert torch.equal(found_d, vector(64))


def test_two_threads_may_finish_it() -> None:
    for seed in range(20):
        device = QueuedDevice(seed)
        copies = StagedCopies(device.queues(), staged=64)
        model_d, found_d = vector(1000), torch.empty(1000)
        gathering = copies.gather([(model_d, found_d)])
        other = threading.Thread(target=gathering.finish)
        other.start()
        copies.settle()
        assert gathering.ended
        model_d.zero_()
        other.join()
        assert torch.equal(found_d, vector(1000))


def test_what_fails_once_fails_again() -> None:
    class Lost:
        def wait(self) -> None:
            raise RuntimeError("CUDA error: unspecified launch failure")

    device = QueuedDevice()
    device.copying.mark = Lost  # type: ignore[method-assign,assignment]
    copies = StagedCopies(device.queues(), staged=64)
    gathering = copies.gather([(vector(100), torch.empty(100))])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="launch failure"):
            gathering.finish()
    assert not gathering.ended


def trainer_with(copies: Copies | None = None, **options: str) -> Trainer:
    config = TrainConfig(batch_size=8, warmup_steps=0, device="cpu", threads=1, **options)  # type: ignore[arg-type]
    trainer = Trainer(Digits(), config, Shard())
    trainer.flat.copies = copies or trainer.flat.copies
    return trainer


@pytest.mark.parametrize("drift", ["none", "scaffold"])
def test_a_snapshot_is_of_its_moment_though_steps_go_on(drift: str) -> None:
    device = QueuedDevice(pace=0, computes_at_once=True)  # nothing is copied before somebody waits
    trainer = trainer_with(StagedCopies(device.queues(), staged=4096), drift=drift)
    trainer.step()
    for change in (
        trainer.step,
        lambda: trainer.apply_gradient(vector(trainer.numel)),
        lambda: trainer.correct(vector(trainer.numel)),
        lambda: trainer.load_vector(vector(trainer.numel, seed=1)),
        lambda: trainer.load_state_dict(trainer_with(drift=drift).state_dict()),
        trainer.vector,
    ):
        expected_d = trainer.flat.data_d.clone()
        snapshot_d, gathering = trainer.snapshot()
        change()
        gathering.finish()
        assert torch.equal(snapshot_d, expected_d)


def test_a_snapshot_is_not_of_where_an_optimizer_takes_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule-free AdamW computes at another point, which lies in the parameters' place meanwhile."""
    device = QueuedDevice(pace=0, computes_at_once=True)
    trainer = trainer_with(StagedCopies(device.queues(), staged=4096), optimizer="schedule_free")
    for _ in range(3):
        trainer.step()
    loss = trainer.task.loss

    def loss_while_it_copies(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        device.drain()
        return loss(model, batch)

    monkeypatch.setattr(trainer.task, "loss", loss_while_it_copies)
    expected_d = trainer.flat.data_d.clone()
    snapshot_d, gathering = trainer.snapshot()
    trainer.step()
    gathering.finish()
    assert torch.equal(snapshot_d, expected_d)


@pytest.mark.parametrize("drift", ["none", "scaffold"])
def test_a_staged_trainer_is_the_same_bit_by_bit(drift: str) -> None:
    plain, other = trainer_with(drift=drift), trainer_with(staged(1000), drift=drift)
    for trainer in (plain, other):
        trainer.begin_round()
        trainer.step()
        snapshot_d, gathering = trainer.snapshot()
        trainer.step()
        gathering.finish()
        trainer.begin_round()
        trainer.correct(snapshot_d / 100)
        trainer.step()
    expected, found = plain.state_dict(), other.state_dict()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    again = trainer_with(staged(1000), drift=drift)
    again.load_state_dict(found)
    assert torch.equal(again.vector(), plain.vector())


def test_a_drift_correction_is_told_the_whole_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_with(staged(1000), drift="scaffold")
    told: list[torch.Tensor] = []
    monkeypatch.setattr(trainer.drift, "close_round", told.append)
    trainer.correct(vector(trainer.numel))
    assert torch.equal(told[0], vector(trainer.numel))


def test_a_cpu_stages_nothing_and_any_other_device_does() -> None:
    assert isinstance(device_copies.copies_for(CPU), HostCopies)
    assert isinstance(device_copies.copies_for(torch.device("mps")), StagedCopies)
