"""What every drift correction must hold: nothing at the start, a whole state in its buffers, and no dependence on where
in space the model stands."""

import pytest
import torch

from p2ptrain import drift
from p2ptrain.drift import DriftCorrection
from p2ptrain.registry import BadOptionError

D = 7
every_drift = pytest.mark.parametrize("name", drift.names())


def attached(name: str, theta_d: torch.Tensor) -> DriftCorrection:
    correction = drift.get(name)
    correction.attach(theta_d)
    return correction


def step(correction: DriftCorrection, theta_d: torch.Tensor, grad_d: torch.Tensor, rate: float = 0.1) -> None:
    bent_d = grad_d.clone()
    correction.adjust(bent_d, theta_d)
    theta_d.sub_(bent_d, alpha=rate)
    correction.nudge(theta_d, rate)


def live(correction: DriftCorrection, theta_d: torch.Tensor, rounds: int, *, late: int, seed: int = 0) -> None:
    """Rounds of four steps; the correction of each comes `late` steps into the next one."""
    generator = torch.Generator().manual_seed(seed)
    pending_d: torch.Tensor | None = None
    for _ in range(rounds):
        correction.begin_round(theta_d)
        for index in range(4):
            if index == late and pending_d is not None:
                theta_d.add_(pending_d)
                correction.close_round(pending_d)
            step(correction, theta_d, torch.randn(D, generator=generator, dtype=theta_d.dtype))
        pending_d = torch.randn(D, generator=generator, dtype=theta_d.dtype)


@every_drift
def test_changes_nothing_at_the_start(name: str) -> None:
    theta_d, grad_d = torch.full((D,), 0.1), torch.linspace(0, 1e-3, D)
    correction = attached(name, theta_d)
    assert isinstance(correction, DriftCorrection)
    correction.adjust(grad_d, theta_d)
    correction.nudge(theta_d, 0.1)
    assert torch.equal(grad_d, torch.linspace(0, 1e-3, D))
    assert torch.equal(theta_d, torch.full((D,), 0.1))


@every_drift
@pytest.mark.parametrize("late", [0, 3])
def test_the_buffers_are_the_whole_state_and_never_replaced(name: str, late: int) -> None:
    through_d, before_d = torch.zeros(D), torch.zeros(D)
    through, before = attached(name, through_d), attached(name, before_d)
    owned = dict(before.buffers)
    for correction, theta_d in ((through, through_d), (before, before_d)):
        live(correction, theta_d, 3, late=late)
    assert owned.keys() == before.buffers.keys()
    assert all(owned[key] is before.buffers[key] for key in owned)
    after_d = before_d.clone()
    after = attached(name, torch.zeros(D))
    for key, buffer in after.buffers.items():
        buffer.copy_(before.buffers[key])
    for correction, theta_d in ((through, through_d), (after, after_d)):
        live(correction, theta_d, 3, late=late, seed=1)
    assert torch.equal(after_d, through_d)


@every_drift
@pytest.mark.parametrize("late", [0, 3])
def test_space_has_no_middle(name: str, late: int) -> None:
    shift_d = torch.linspace(-3, 3, D, dtype=torch.float64)
    here_d, there_d = torch.zeros(D, dtype=torch.float64), shift_d.clone()
    for theta_d in (here_d, there_d):
        live(attached(name, theta_d.clone()), theta_d, 5, late=late)
    torch.testing.assert_close(there_d - shift_d, here_d, rtol=1e-12, atol=1e-12)


@every_drift
def test_a_round_without_a_step_is_survived(name: str) -> None:
    theta_d = torch.zeros(D)
    correction = attached(name, theta_d)
    for _ in range(2):
        correction.begin_round(theta_d)
        correction.close_round(torch.ones(D))
    step(correction, theta_d, torch.ones(D))
    assert torch.isfinite(theta_d).all()
    assert all(torch.isfinite(buffer).all() for buffer in correction.buffers.values())


@every_drift
def test_an_option_that_it_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(BadOptionError):
        drift.get(name, no_such_option=1)


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("fedprox", -1),
        ("fedprox", float("nan")),
        ("scaffold", 0),
        ("scaffold", 1.5),
        ("momentum_tracking", 0),
        ("qgm", 1),
        ("qgm", -0.1),
    ],
)
def test_a_strength_that_cannot_be_is_refused(name: str, strength: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: strength"):
        drift.get(name, strength=strength)
