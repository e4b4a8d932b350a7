"""Epsilon by numerical composition of privacy loss distributions (Gopi, Lee, Wutschitz, 2106.02848), for reports.

It is opacus' PRV accountant, which comes with `pip install 'p2ptrain[privacy]'`. It is tighter than Renyi divergences,
takes seconds, and cannot tell an epsilon of some hundreds. So nothing that has to be enforced depends on it.
"""

import importlib.util
import math
import warnings
from collections.abc import Iterable
from typing import Final

import numpy as np

from p2ptrain.privacy.accounting.renyi import epsilon_of
from p2ptrain.privacy.base import Release

ERROR: Final = 0.02
"""How far, over epsilon by Renyi divergences, the result may lie above the true value."""

LARGEST: Final = 100.0
"""Epsilon by Renyi divergences above which it is not tried: nothing is protected, and the mesh would be too large."""

DISCRETE: Final = "secure_update"
"""The privatizer whose noise is of whole numbers: its Renyi divergences are bounded by Gaussian noise's, and its loss
distribution is another."""

MOST_SUMS: Final = 1_000_000
"""Sums above which it is not tried: the mesh grows with the root of their number. Chosen: a few seconds."""


def is_installed() -> bool:
    """Return whether opacus is."""
    return importlib.util.find_spec("opacus") is not None


def tight_epsilon_of(releases: Iterable[Release], delta: float) -> float | None:
    """Return an upper bound of the epsilon of all of these together at `delta`; None where it cannot be told. Raises
    ImportError without opacus."""
    releases = list(releases)
    if any(release.mechanism == DISCRETE for release in releases):
        return None
    together: dict[tuple[float, float], int] = {}
    for release in releases:
        key = (release.noise, release.rate)
        together[key] = together.get(key, 0) + release.count
    history = [(noise, rate, count) for (noise, rate), count in together.items() if count]
    by_renyi = epsilon_of(
        [Release(mechanism="", noise=noise, rate=rate, count=count) for noise, rate, count in history], delta
    )
    if by_renyi == 0:
        return 0.0
    if by_renyi > LARGEST or sum(count for _, _, count in history) > MOST_SUMS:
        return None
    from opacus.accountants import PRVAccountant  # takes seconds, and 100 MB

    accountant = PRVAccountant()
    accountant.history = history
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of orders that it tries for its own mesh
        try:
            found = float(accountant.get_epsilon(delta, eps_error=ERROR * by_renyi))
        except (ArithmeticError, RuntimeError, ValueError):  # tiny noise, among others
            return None
    return found if math.isfinite(found) else None
