"""Digits, whose model takes a while to be built: longer than `site.timeout_s` of its test, and in each rank another."""

import os
import time
from typing import Any, Final

from torch import nn

from p2ptrain.tasks.digits import Digits

BUILDS_S: Final = 4.0
"""Twice the time limit of the test."""


class SlowToBuild(Digits):
    """The task, and how long it takes: in a rank that is not the first one twice as long."""

    def build_model(self) -> nn.Module:
        """Wait, and build."""
        time.sleep(BUILDS_S * (1 + int(os.environ["RANK"])))
        return super().build_model()


def create(**options: Any) -> SlowToBuild:
    """Build the task."""
    return SlowToBuild(**options)
