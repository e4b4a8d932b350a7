"""The tighter epsilon of reports: never above that by Renyi divergences, near what dp-accounting says."""

import json
import math
import subprocess
import venv
from pathlib import Path

import pytest

from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.accounting.loss_distributions import LARGEST, is_installed, tight_epsilon_of
from p2ptrain.privacy.base import Release

with_opacus = pytest.mark.skipif(not is_installed(), reason="opacus is not installed: the extra `privacy`")
DELTA = 1e-5
DP_ACCOUNTING = "dp-accounting==0.6.0"
COMPARED = [(1.0, 0.01, 1000), (0.6, 0.02, 100), (2.0, 1.0, 10), (1.1, 0.1, 50), (5.0, 0.2, 500)]

THEIRS = """
import json, sys
import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

found = []
for noise, rate, count in json.loads(sys.argv[1]):
    event = dp_accounting.GaussianDpEvent(noise)
    event = event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)
    event = dp_accounting.SelfComposedDpEvent(event, count)
    accountants = (RdpAccountant(orders=json.loads(sys.argv[2])), PLDAccountant())
    found.append([accountant.compose(event).get_epsilon(1e-5) for accountant in accountants])
print(json.dumps(found))
"""


def release(noise: float, rate: float, count: int) -> Release:
    return Release(mechanism="example", noise=noise, rate=rate, count=count)


@with_opacus
@pytest.mark.thorough
def test_it_is_never_above_the_one_by_renyi_divergences() -> None:
    told = 0
    for noise in (0.3, 0.5, 0.8, 1.0, 2.0, 10.0):
        for rate, count in ((0.001, 1), (0.001, 1000), (0.01, 1000), (0.1, 1), (0.1, 100), (1.0, 1), (1.0, 30)):
            releases = [release(noise, rate, count)]
            tight, by_renyi = tight_epsilon_of(releases, DELTA), epsilon_of(releases, DELTA)
            assert tight is not None or by_renyi > LARGEST
            if tight is not None:
                told += 1
                assert 0 <= tight <= by_renyi, (noise, rate, count)
    assert told >= 30


@with_opacus
@pytest.mark.thorough
def test_unlike_releases_together() -> None:
    releases = [release(1.0, 0.01, 500), release(0.7, 0.02, 100), release(1.0, 0.01, 500), release(3.0, 1.0, 5)]
    tight = tight_epsilon_of(releases, DELTA)
    assert tight is not None
    assert tight <= epsilon_of(releases, DELTA)
    alone = tight_epsilon_of(releases[:1], DELTA)
    assert alone is not None
    assert tight > alone


def test_what_it_cannot_tell_is_none_and_nothing_is_nothing() -> None:
    assert tight_epsilon_of([], DELTA) == 0
    assert tight_epsilon_of([release(0.01, 1.0, 1)], DELTA) is None


@with_opacus
@pytest.mark.thorough
def test_dp_accounting_says_the_same_within_one_percent(tmp_path: Path) -> None:
    """In an environment of its own, as it wants older packages than this project has."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    made = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", DP_ACCOUNTING],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"{DP_ACCOUNTING} cannot be installed: {made.stderr.strip().splitlines()[-1:]}")
    from p2ptrain.privacy.accounting import ORDERS

    arguments = [python, "-c", THEIRS, json.dumps(COMPARED), json.dumps(list(ORDERS))]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=200, check=False, env={"PATH": "/usr/bin"})
    assert ran.returncode == 0, ran.stderr
    for (noise, rate, count), (renyi, loss_distribution) in zip(COMPARED, json.loads(ran.stdout), strict=True):
        releases = [release(noise, rate, count)]
        assert math.isclose(epsilon_of(releases, DELTA), renyi, rel_tol=0.01), (noise, rate, count)
        tight = tight_epsilon_of(releases, DELTA)
        assert tight is not None
        assert 0.99 * loss_distribution <= tight <= 1.03 * loss_distribution, "2% above at most, by our own setting"
