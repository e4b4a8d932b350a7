"""What every outer optimizer must hold: a pure step, and a state that survives a checkpoint."""

import pytest
import torch

from p2ptrain import outer
from p2ptrain.outer import BySlices, OuterOptimizer

every_outer = pytest.mark.parametrize("name", outer.names())


def walk(optimizer: OuterOptimizer, steps: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    phi_d = torch.zeros(20)
    for _ in range(steps):
        phi_d = optimizer.step(phi_d, phi_d + torch.randn(20, generator=generator))
    return phi_d


@every_outer
def test_step_changes_no_argument(name: str) -> None:
    optimizer = outer.get(name)
    assert isinstance(optimizer, OuterOptimizer)
    phi_d, target_d = torch.zeros(5), torch.ones(5)
    for _ in range(2):
        optimizer.step(phi_d, target_d)
    assert torch.equal(phi_d, torch.zeros(5))
    assert torch.equal(target_d, torch.ones(5))


@every_outer
def test_rests_at_its_target(name: str) -> None:
    optimizer, phi_d, target_d = outer.get(name), torch.zeros(5), torch.arange(5.0)
    for _ in range(100):
        phi_d = optimizer.step(phi_d, target_d)
    torch.testing.assert_close(phi_d, target_d)


@every_outer
def test_state_carries_on(name: str) -> None:
    through, before = outer.get(name), outer.get(name)
    walk(through, 3)
    walk(before, 3)
    after = outer.get(name)
    after.load_state_dict(before.state_dict())
    assert torch.equal(walk(after, 4, seed=1), walk(through, 4, seed=1))


@every_outer
def test_fresh_state_can_be_loaded(name: str) -> None:
    used, fresh = outer.get(name), outer.get(name)
    walk(used, 3)
    used.load_state_dict(fresh.state_dict())
    assert torch.equal(walk(used, 2), walk(fresh, 2))


@every_outer
def test_foreign_state_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="foreign"):
        outer.get(name).load_state_dict({"foreign": torch.zeros(1)})


@every_outer
def test_a_step_by_slices_is_the_step_of_the_whole(name: str) -> None:
    one, other = outer.get(name), outer.get(name)
    if not isinstance(other, BySlices):
        pytest.skip("it takes whole vectors")
    generator = torch.Generator().manual_seed(3)
    phi_d = moving_d = torch.randn(1000, generator=generator)
    for width in (1000, 1, 333, 64, 7):
        target_d = phi_d + torch.randn(1000, generator=generator)
        phi_d, moving_d = one.step(phi_d, target_d), moving_d.clone()
        kept_d, move = target_d.clone(), other.begin_step(1000)
        for start in reversed(range(0, 1000, width)):  # in any order
            at = slice(start, min(start + width, 1000))
            move(at, moving_d[at], target_d[at])
        assert torch.equal(moving_d, phi_d)
        assert torch.equal(target_d, kept_d), "the target stays"
    for state, same in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(state, same)


@every_outer
def test_a_step_by_slices_makes_no_buffer_anew(name: str) -> None:
    optimizer = outer.get(name)
    if not isinstance(optimizer, BySlices):
        pytest.skip("it takes whole vectors")
    walk(optimizer, 8)  # whatever gathers has begun
    before = {key: value.data_ptr() for key, value in optimizer.state_dict().items() if value.numel() == 20}
    walk(optimizer, 1)
    after = {key: value.data_ptr() for key, value in optimizer.state_dict().items() if value.numel() == 20}
    assert before.items() <= after.items()
