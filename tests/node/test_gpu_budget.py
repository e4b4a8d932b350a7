"""A node's budget of a GPU's memory: what the driver keeps counts, and is followed. No GPU is needed."""

import pytest
import torch
import trio
import trio.testing

from node.system.errors import UsageError
from node.training.gpu_budget import GpuBudget, gpu_budget


class Driver:
    """A GPU's driver, which keeps `beside` bytes for the process beside the allocator's."""

    def __init__(self, beside: int | None = 0, reserved: int = 0) -> None:
        self.beside, self.reserved = beside, reserved
        self.bounds: list[int] = []

    def budget(self, most: int) -> GpuBudget:
        return GpuBudget(
            most,
            reserved=lambda: self.reserved,
            taken=lambda: None if self.beside is None else self.beside + self.reserved,
            bound=self.bounds.append,
        )


def test_a_gpus_budget_counts_what_the_driver_keeps_and_follows_it() -> None:
    driver = Driver(beside=700, reserved=100)
    budget = driver.budget(1600)
    budget.hold()
    driver.beside, driver.reserved = 830, 770
    budget.look()
    assert budget.used() == 1600
    for later in (830, 820, 1600, 2000):  # no more than before, and more than there is
        driver.beside = later
        budget.look()
    assert driver.bounds == [900, 770]


def test_a_gpus_budget_below_what_the_driver_keeps_is_refused() -> None:
    with pytest.raises(UsageError, match="the driver alone keeps 700 B"):
        Driver(beside=700).budget(700).hold()


def test_where_the_driver_tells_nothing_the_allocator_alone_is_bounded() -> None:
    driver = Driver(beside=None, reserved=100)
    budget = driver.budget(1600)
    budget.hold()
    assert (driver.bounds, budget.counts_driver, budget.used()) == ([1600], False, 100)


async def test_a_gpus_budget_is_followed_until_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    driver = Driver(beside=700)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.budget(1600).run)
        await trio.sleep(1)
        driver.beside = 800
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert driver.bounds == [900, 800]


def test_torch_is_bounded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed: torch is asked for its size, and told the share."""
    told: list[tuple[float, torch.device]] = []

    class Properties:
        total_memory = 16 << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append((share, device))
    )
    device = torch.device("cuda:0")
    for most in (4 << 30, 64 << 30):
        gpu_budget(most, device, None).hold()
    assert told == [(0.25, device), (1.0, device)]
    with pytest.raises(UsageError, match="trains on cpu"):
        gpu_budget(4 << 30, torch.device("cpu"), None)
