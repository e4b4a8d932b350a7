"""Private rounds of a model whose steps somebody else's loop takes, and whose parameters stay where they are.

As private_rounds.py, for a `ParameterVector`. Whatever the loop does with the model within a round is its own move: its
steps, a state that it loads, an averaged copy that it swaps in. What may leave lies in a vector beside the model, the
public one, of which nothing but released moves and others' corrections becomes a part.
"""

import torch

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.privacy.base import Release
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.private_rounds import hide_
from p2ptrain.training.private_training import PrivateTraining


class PrivateMoves:
    """Bounds and hides the moves of the parameters `values`. Memory: a vector on the CPU, and two for the time of a
    release. Calls belong to the thread that trains."""

    def __init__(self, values: ParameterVector, privacy: PrivateTraining, public_d: torch.Tensor) -> None:
        """`public_d` (d,): the model that counts as known to everybody. The parameters are set to it."""
        self._values, self._privacy = values, privacy
        self.allowance = Allowance(privacy.privatizer, rate=1.0, spend=privacy.spend)
        self.public_d = public_d.clone()
        """The model without the own moves since the last release (d,): what may leave."""
        self.undo_()

    def ask_ahead(self, steps: int) -> None:
        """Ask for the release of a round, however many steps it has. Raises BudgetSpentError."""
        self.allowance.ask_ahead(1)

    def release_of(self, steps: int) -> Release | None:
        """Return what a round will release."""
        return self.allowance.release_of(1)

    def begin_round(self) -> None:
        """Take out of the model what was not released of a round that was left."""
        self.undo_()

    def undo_(self) -> None:
        """Take the own moves since the last release out of the model: of a round that was left, none is released."""
        self._values.load_(self.public_d)

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the model to `x_d` (d,), which is of others' data, or of moves that were released."""
        self._values.load_(x_d)
        self.public_d.copy_(x_d)

    def add_(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the model, which is of the same kind."""
        self._values.add_(correction_d)
        self.public_d.add_(correction_d)

    def end_round(self) -> None:
        """Clip and noise the own move, in the model. Raises BudgetSpentError, with the move undone."""
        move_d = self._values.vector().sub_(self.public_d)
        self.undo_()
        self.allowance.take()
        hide_(move_d, self._privacy)
        self.public_d.add_(move_d)
        self.undo_()
