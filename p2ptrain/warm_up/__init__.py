"""A newcomer's warm-up: its local parameters are trained on synthetic examples before its first round.

    each member's examples ── ClassSums ── clipped, noised where private ── ClassStatistics ── bytes to neighbours
    a newcomer: statements of 2 f + 1 members a class ── robust_statistics ── SyntheticExamples ── warm-up steps

A member's statement is a normal distribution a class, with independent coordinates. Virtual examples drawn from such
statistics calibrate a classifier (CCVR, 2106.05001); here they are of the inputs, so that a statement is made once and
stays true while the model changes.
"""

from p2ptrain.warm_up.class_statistics import ClassStatistics, ClassSums, parse_statistics
from p2ptrain.warm_up.robust_statistics import SharedStatistics, robust_statistics
from p2ptrain.warm_up.synthetic_examples import SyntheticExamples

__all__ = [
    "ClassStatistics",
    "ClassSums",
    "SharedStatistics",
    "SyntheticExamples",
    "parse_statistics",
    "robust_statistics",
]
