"""How much outer momentum a run has rounds for, as a pure function of their number.

Momentum alpha is a mean over the last h = 1 / (1 - alpha) rounds, its horizon. With the rate beta the anchor goes
beta h times as far as by averaging: that is its gain. DiLoCo's 0.9 with 0.7 (2311.08105) has a gain of 7, for rounds of
500 steps. In rounds of few steps the model overshoots: after 30 it ends far behind one node alone, and it does so after
1,000. A gain of 1 overshoots nowhere, and a horizon up to a hundredth of the rounds costs little. Decision 60 has the
runs.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ROUNDS_OF_A_HORIZON: Final = 100
"""Rounds for each round of the horizon that is chosen here. Measured: with a horizon of 3 a run of 100 rounds ends 13%
behind the same without momentum, one of 300 rounds 5%."""
MOST_GAIN: Final = 1.4
"""Times as far as averaging goes that are chosen here: NoLoCo's published 0.5 with 0.7 (2506.10911), and no more."""
LEAST_ROUNDS_OF_A_HORIZON: Final = 10
"""With fewer a choice of the user's own is called one that cannot pay."""


class Momentum(NamedTuple):
    """An outer step's momentum and rate."""

    alpha: float
    beta: float

    @property
    def horizon(self) -> float:
        """Return over how many rounds the momentum is a mean."""
        return round(1 / (1 - self.alpha), 9)  # 1 / (1 - 0.9) is a little above 10


def suited(published: Momentum, rounds: int) -> Momentum:
    """Return what suits a run of so many rounds: a horizon of a ROUNDS_OF_A_HORIZON-th of them, and a rate that goes as
    far as averaging does. Where that is the published horizon, or more, the published values, but for MOST_GAIN.

    >>> suited(Momentum(0.9, 0.7), rounds=30)
    Momentum(alpha=0.0, beta=1.0)
    >>> suited(Momentum(0.9, 0.7), rounds=400)
    Momentum(alpha=0.75, beta=0.25)
    >>> suited(Momentum(0.5, 0.7), rounds=200)
    Momentum(alpha=0.5, beta=0.7)
    """
    horizon = max(1.0, rounds / ROUNDS_OF_A_HORIZON)
    if horizon < published.horizon:
        return Momentum(alpha=1 - 1 / horizon, beta=1 / horizon)
    return Momentum(alpha=published.alpha, beta=min(published.beta, MOST_GAIN / published.horizon))


def filled(published: Momentum | None, options: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return an outer optimizer's options, with those that suit so many rounds where neither momentum nor rate is set.
    Who sets one of the two means the published other one. None: it has no momentum."""
    if published is None or options.keys() & set(Momentum._fields):
        return dict(options)
    return {**options, **suited(published, rounds)._asdict()}


def doubt(name: str, published: Momentum | None, options: Mapping[str, Any], rounds: int) -> str:
    """Return in a line why a momentum that a user has set cannot pay in so many rounds; "" where it may."""
    if published is None or "alpha" not in options:
        return ""
    horizon = Momentum(float(options["alpha"]), 1.0).horizon
    if horizon == 1 or rounds >= LEAST_ROUNDS_OF_A_HORIZON * horizon:
        return ""
    return (
        f"{name} with alpha = {options['alpha']:g} averages over {horizon:.0f} rounds, and cannot pay in {rounds}: "
        f"leave sync.alpha unset, or train {LEAST_ROUNDS_OF_A_HORIZON * horizon:.0f} rounds and more"
    )
