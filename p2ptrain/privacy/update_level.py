"""Differential privacy of a whole member: what is protected is all that it learns in a round."""

from p2ptrain.privacy.clipped_gaussian import ClippedGaussian


class UpdateLevel(ClippedGaussian):
    """McMahan et al., 1710.06963, at the member itself: the move of a round is clipped and noised once, however many
    steps it has. Nobody draws who takes part, so the rate is 1."""

    name = "update"
    unit = "update"
