"""What every privatizer must hold: one contribution moves a sum by no more than it says, and noise is its own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import privacy
from p2ptrain.privacy.base import Privatizer
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.registry import BadOptionError
from tests.seeded_bytes import seeded_bytes

every_privatizer = pytest.mark.parametrize("name", privacy.names())
protecting = pytest.mark.parametrize("name", [name for name in privacy.names() if name != "none"])
noising = pytest.mark.parametrize(
    "name", [name for name in privacy.names() if privacy.get(name).unit in ("example", "update")]
)
norms = st.floats(0, 1e30) | st.sampled_from([1.0, 1e-320])


@every_privatizer
def test_it_has_its_name_and_takes_no_other_option(name: str) -> None:
    privatizer = privacy.get(name)
    assert isinstance(privatizer, Privatizer)
    assert privatizer.name == name
    with pytest.raises(BadOptionError):
        privacy.get(name, no_such_option=1)


@protecting
@given(norm=norms, clip=st.floats(1e-6, 1e6))
def test_no_contribution_is_longer_than_the_clipping_norm_nor_lengthened(name: str, norm: float, clip: float) -> None:
    factor = float(privacy.get(name, clip=clip).factors(torch.tensor([norm], dtype=torch.float64))[0])
    assert 0 <= factor <= 1
    assert factor * norm <= clip * (1 + 1e-12)
    if norm <= clip:
        assert factor >= 1 - 1e-15


@protecting
@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_contribution_that_is_not_finite_counts_for_nothing(name: str, norm: float) -> None:
    assert float(privacy.get(name).factors(torch.tensor([norm]))[0]) == 0


@noising
def test_the_noise_has_the_standard_deviation_that_is_accounted_for(name: str) -> None:
    """Over 200,000 numbers the standard deviation is off by 0.16%, and the mean by 0.22% of it, one time in three."""
    count, noise, clip = 200_000, 0.7, 3.0
    sum_d = torch.full((count,), 5.0)
    privacy.get(name, noise=noise, clip=clip).add_noise_(sum_d, SecretRandom(seeded_bytes(1)))
    noise_d = sum_d.double() - 5
    assert float(noise_d.std()) == pytest.approx(noise * clip, rel=0.01)
    assert abs(float(noise_d.mean())) < 0.01 * noise * clip


@protecting
def test_what_is_released_is_what_is_accounted_for(name: str) -> None:
    release = privacy.get(name, noise=0.7, clip=3.0).release(rate=0.25, count=9)
    assert release is not None
    assert (release.mechanism, release.noise, release.rate, release.count) == (name, 0.7, 0.25, 9)


@protecting
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("option", ["noise", "clip"])
def test_an_option_that_protects_nothing_is_refused(name: str, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: {option} must be a number above 0"):
        privacy.get(name, **{option: value})


def test_noise_that_a_sum_has_is_not_added_here_too() -> None:
    """It is whole numbers, and comes under the masks (tests/p2ptrain/test_noise_shares.py)."""
    sum_d = torch.linspace(-1, 1, 5)
    privacy.get("secure_update", noise=3.0).add_noise_(sum_d, SecretRandom(seeded_bytes(1)))
    assert torch.equal(sum_d, torch.linspace(-1, 1, 5))


def test_none_leaves_all_as_it_is_and_spends_nothing() -> None:
    nothing = privacy.get("none")
    sum_d = torch.linspace(-1, 1, 5)
    nothing.add_noise_(sum_d, SecretRandom(seeded_bytes(1)))
    assert torch.equal(sum_d, torch.linspace(-1, 1, 5))
    assert nothing.factors(torch.tensor([1e9])).tolist() == [1]
    assert nothing.release(rate=1.0, count=1) is None
