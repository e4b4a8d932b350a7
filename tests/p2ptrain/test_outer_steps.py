"""The outer steps' algebra, against float64 references, and the settings that they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sync_reference import ReferenceOuter

from p2ptrain import outer
from p2ptrain.outer.momentum import MOST_GAIN, ROUNDS_OF_A_HORIZON, Momentum, doubt, filled, suited


@st.composite
def settings(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(["average", "noloco", "nesterov", "delayed_nesterov"]))
    if name == "average":
        return name, {}
    if name == "noloco":
        alpha = draw(st.floats(0, 0.8))
        return name, {"alpha": alpha, "beta": draw(st.floats(alpha + 0.01, 1.4))}
    options: dict[str, Any] = {"alpha": draw(st.floats(0, 0.95)), "beta": draw(st.floats(0.1, 1))}
    return name, options | ({"every": draw(st.integers(1, 5))} if name == "delayed_nesterov" else {})


@given(choice=settings(), rounds=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_every_step_is_its_recurrence(choice: tuple[str, dict[str, Any]], rounds: int, seed: int) -> None:
    name, options = choice
    rng = np.random.default_rng(seed)
    built, reference = outer.get(name, **options), ReferenceOuter(name, **options)
    phi_d = torch.from_numpy(rng.standard_normal(7)).float()
    phi = phi_d.double().numpy()
    for _ in range(rounds):
        # Where training goes is decided by the reference: small errors must not feed on themselves.
        target = phi + rng.standard_normal(7)
        phi_d = built.step(phi_d, torch.from_numpy(target).float())
        phi = reference.step(phi, target)
        np.testing.assert_allclose(phi_d.numpy(), phi, rtol=0, atol=1e-4 * max(1.0, float(np.abs(phi).max())))


def test_average_goes_to_the_target() -> None:
    assert outer.get("average").step(torch.zeros(3), torch.arange(3.0)).tolist() == [0, 1, 2]


def test_noloco_without_momentum_at_full_step_is_averaging() -> None:
    target_d = torch.randn(50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(outer.get("noloco", alpha=0, beta=1).step(torch.ones(50), target_d), target_d)


def test_nesterov_as_diloco_writes_it() -> None:
    """Two rounds by hand: v <- 0.9 v + Delta, phi <- phi - 0.7 (Delta + 0.9 v), Delta = phi - theta."""
    optimizer, phi_d = outer.get("nesterov"), torch.zeros(1)
    phi_d = optimizer.step(phi_d, phi_d + 1)
    assert phi_d.item() == pytest.approx(0.7 * (1 + 0.9))
    phi_d = optimizer.step(phi_d, phi_d + 1)
    assert phi_d.item() == pytest.approx(0.7 * (1 + 0.9) + 0.7 * (1 + 0.9 * (0.9 + 1)))


def test_delayed_nesterov_of_every_round_is_nesterov() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = outer.get("delayed_nesterov", every=1), outer.get("nesterov")
    phi_d = psi_d = torch.zeros(9)
    for _ in range(6):
        move_d = torch.randn(9, generator=generator)
        phi_d, psi_d = one.step(phi_d, phi_d + move_d), other.step(psi_d, psi_d + move_d)
        torch.testing.assert_close(phi_d, psi_d)


def test_momentum_comes_once_in_n_rounds_and_pushes_for_all_of_them() -> None:
    """Equal moves, N = 3: rounds 1 and 2 are plain, round 3 adds what Nesterov would have added to three."""
    optimizer, phi_d = outer.get("delayed_nesterov", alpha=0.5, beta=1.0, every=3), torch.zeros(1)
    seen = []
    for _ in range(6):
        phi_d = optimizer.step(phi_d, phi_d + 1)
        seen.append(phi_d.item())
    assert seen == pytest.approx([1, 2, 3 + 3 * 0.5, 5.5, 6.5, 7.5 + 3 * 0.5 * (1 + 0.5)])


@pytest.mark.parametrize(("alpha", "beta"), [(0.9, 0.7), (0.7, 0.7), (-0.1, 0.7), (0.5, 1.51), (0.0, 0.0)])
def test_noloco_refuses_what_gossip_cannot_bear(alpha: float, beta: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        outer.get("noloco", alpha=alpha, beta=beta)


@pytest.mark.parametrize("name", ["nesterov", "delayed_nesterov"])
@pytest.mark.parametrize("options", [{"alpha": 1.0}, {"alpha": -0.1}, {"beta": 0.0}, {"beta": 1.1}, {"beta": -1.0}])
def test_nesterov_refuses_what_cannot_be_meant(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{name}: needs"):
        outer.get(name, **options)


def test_delayed_nesterov_refuses_no_rounds_and_a_state_of_another_period() -> None:
    with pytest.raises(ValueError, match="every=0"):
        outer.get("delayed_nesterov", every=0)
    gathering = outer.get("delayed_nesterov", every=5)
    for _ in range(3):
        gathering.step(torch.zeros(2), torch.ones(2))
    state = gathering.state_dict()
    with pytest.raises(ValueError, match="3 movements were gathered, and every is 2"):
        outer.get("delayed_nesterov", every=2).load_state_dict(state)
    with pytest.raises(ValueError, match="gathered"):
        outer.get("delayed_nesterov").load_state_dict({"gathered": torch.zeros(2)})


@pytest.mark.parametrize("name", ["nesterov", "noloco", "delayed_nesterov"])
def test_momentum_follows_the_rounds_up_to_the_published(name: str) -> None:
    published = Momentum(outer.OUTER.factory(name).published.alpha, outer.OUTER.factory(name).published.beta)  # type: ignore[attr-defined]
    built = outer.get(name)
    assert (built.alpha, built.beta) == published, "what one gets without a run"  # type: ignore[attr-defined]
    assert suited(published, 0) == suited(published, ROUNDS_OF_A_HORIZON) == Momentum(0.0, 1.0), "plain averaging"
    enough = round(ROUNDS_OF_A_HORIZON * published.horizon)
    most = suited(published, enough)
    assert most == suited(published, 50 * enough)
    assert (most.alpha, most.beta * most.horizon) == (published.alpha, pytest.approx(MOST_GAIN))
    shorter = [suited(published, rounds) for rounds in range(enough)]
    assert all(each.horizon <= max(1.0, rounds / ROUNDS_OF_A_HORIZON) + 1e-9 for rounds, each in enumerate(shorter))
    assert all(each.beta * each.horizon == pytest.approx(1.0) for each in shorter), "as far as averaging goes"
    assert sorted(each.alpha for each in shorter) == [each.alpha for each in shorter]
    for each in shorter:
        outer.get(name, **each._asdict())  # none that the member itself would refuse


def test_what_a_user_sets_is_not_replaced() -> None:
    published = Momentum(0.9, 0.7)
    assert filled(published, {}, 30) == {"alpha": 0.0, "beta": 1.0}
    assert filled(published, {"every": 2}, 30) == {"alpha": 0.0, "beta": 1.0, "every": 2}
    assert filled(published, {"alpha": 0.5}, 30) == {"alpha": 0.5}
    assert filled(published, {"beta": 0.5}, 30) == {"beta": 0.5}
    assert filled(None, {"alpha": 0.5}, 30) == {"alpha": 0.5}


def test_momentum_that_cannot_pay_is_told() -> None:
    published = Momentum(0.9, 0.7)
    assert doubt("nesterov", published, {"alpha": 0.9}, 30) == (
        "nesterov with alpha = 0.9 averages over 10 rounds, and cannot pay in 30: "
        "leave sync.alpha unset, or train 100 rounds and more"
    )
    assert doubt("nesterov", published, {"alpha": 0.9}, 100) == ""
    assert doubt("nesterov", published, {"alpha": 0.0}, 1) == ""
    assert doubt("nesterov", published, {"beta": 0.7}, 1) == ""
    assert doubt("average", None, {"alpha": 0.9}, 1) == ""
