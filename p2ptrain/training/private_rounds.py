"""A member's whole round as one release: how far the model moved by own steps, clipped and noised in place.

The live model itself takes the noised move, before it is copied, and nothing that is made of it later knows the other.
What others' models add meanwhile (a correction) is no own move, and is not clipped.
"""

import torch

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.training.flat import FlatParameters
from p2ptrain.training.private_training import PrivateTraining


class PrivateRounds:
    """Bounds and hides the moves of the parameters `flat`. Memory: a vector, and two for the time of a release."""

    def __init__(self, flat: FlatParameters, privacy: PrivateTraining) -> None:
        self._flat, self._privacy = flat, privacy
        self.allowance = Allowance(privacy.privatizer, rate=1.0, spend=privacy.spend)
        self._origin_d = flat.data_d.clone()
        """Where the model would be without the own steps since the last release."""

    @property
    def shown_d(self) -> torch.Tensor:
        """Return the model without the own steps since the last release (d,): what may be seen of it."""
        return self._origin_d

    def begin(self) -> None:
        """Own steps begin at the model as it is."""
        self._origin_d.copy_(self._flat.data_d)

    def undo_(self) -> None:
        """Take the own steps since the last release out of the model: of a round that was left, none is released."""
        self._flat.copies.settle()
        self._flat.data_d.copy_(self._origin_d)

    def add_(self, correction_d: torch.Tensor) -> None:
        """Note that `correction_d` (d,) was added to the model: it is of others' data, or of moves that were
        released."""
        self._origin_d.add_(correction_d.to(self._origin_d.device))

    def release_(self) -> None:
        """Clip and noise the own move, in the model. Raises BudgetSpentError, with the move undone."""
        data_d = self._flat.data_d
        self._flat.copies.settle()
        move_d = data_d.sub(self._origin_d)
        data_d.copy_(self._origin_d)
        self.allowance.take()
        hide_(move_d, self._privacy)
        data_d.add_(move_d)
        self.begin()


def hide_(move_d: torch.Tensor, privacy: PrivateTraining) -> None:
    """Make the own move (d,) of a round what may be released of it, in place: clipped whole, then noised. One that is
    not finite counts as none."""
    norm = torch.linalg.vector_norm(move_d, dtype=torch.float64)
    factor = float(privacy.privatizer.factors(norm[None])[0])
    move_d = move_d.mul_(factor) if factor else move_d.zero_()
    privacy.privatizer.add_noise_(move_d, privacy.source)
