"""Shift of a node's own data: detectors by name, what they watch, and who else says that data have shifted."""

from typing import Final

from node.shift.base import ShiftDetector
from node.shift.detectors.adwin import Adwin
from node.shift.detectors.kswin import Kswin
from node.shift.detectors.page_hinkley import PageHinkleyTest
from p2ptrain.registry import Registry

SHIFT_DETECTORS: Final[Registry[ShiftDetector]] = Registry("shift_detectors")
SHIFT_DETECTORS.register("adwin")(Adwin)
SHIFT_DETECTORS.register("kswin")(Kswin)
SHIFT_DETECTORS.register("page_hinkley")(PageHinkleyTest)

__all__ = ["SHIFT_DETECTORS", "ShiftDetector"]
