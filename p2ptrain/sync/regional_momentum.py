"""Nesterov's step on the regions' mean: DiLoCo's outer step (2311.08105), with a rate of 1 and regions as its workers.

    P_t = M_t + mu (M_t - M_(t-1))

M_t is where the regions' mean is at turn t, by what they publish, and P_t where all of them go. The velocity of that
step, v_t = mu v_(t-1) + M_t - P_(t-1), is M_t - M_(t-1), since P_(t-1) = M_(t-1) + mu v_(t-1). So the mean of the turn
before is all that has to be known. It is the same at all members that hear the same models, and they move alike.
Regions that are averaged seldom fall behind a swarm that averages each round, and this makes up for some of it
(decision 0119).

Who has not seen the turn before goes to the mean: one that has just begun, or missed a turn, or whose regions have met
after a time apart (a turn at which they take the medoid's surroundings counts as missed). Its region's rounds bring it
to the others, and from the next turn on it goes where they go.

What a liar gains: the rule between regions has bounded M, and a pull on it, the same at each turn, comes to
1 / (1 - mu) times as much.
"""

import torch


class RegionalMomentum:
    """The regions' mean at the turn before, as one node has seen it. Memory: that vector (d,), and none where mu is
    0."""

    def __init__(self, momentum: float, every: int) -> None:
        """`every`: rounds from one turn to the next."""
        self._momentum, self._every = momentum, every
        self._before: tuple[int, torch.Tensor] | None = None
        """After which round of ours, and the mean (d,)."""

    def go_beyond_(self, shift_d: torch.Tensor, own_d: torch.Tensor, round: int) -> None:
        """Add to a shift (d,) to the regions' mean, in place, what our region goes beyond it. `own_d`: the model (d,)
        that it is the shift of, which our region had after this round."""
        if self._momentum == 0:
            return
        mean_d = own_d + shift_d
        if self._before is not None and 0 < round - self._before[0] <= self._every:
            shift_d.add_(mean_d, alpha=self._momentum).sub_(self._before[1], alpha=self._momentum)
        self._before = (round, mean_d)

    def forget(self) -> None:
        """Begin anew: the next turn goes to the mean."""
        self._before = None
