"""When a node takes part in training: policies by name, and which of them a word for everyday use stands for."""

from collections.abc import Mapping
from typing import Final

from node.participation.base import ParticipationPolicy
from node.participation.policies.battery_level import BatteryLevel
from node.participation.policies.energy_cap import EnergyCap
from node.participation.policies.gpu_busy import GpuBusy
from node.participation.policies.heat import Heat
from node.participation.policies.local_hours import LocalHours
from node.participation.policies.metered_link import MeteredLink
from node.participation.policies.on_charger import OnCharger
from node.participation.policies.others_load import OthersLoad
from node.participation.policies.spare_memory import SpareMemory
from p2ptrain.registry import Registry

PARTICIPATION: Registry[ParticipationPolicy] = Registry("participation")
_BUILT_IN: Final[Mapping[str, type[ParticipationPolicy]]] = {
    "battery": BatteryLevel,
    "plugged": OnCharger,
    "temperature": Heat,
    "gpu": GpuBusy,
    "load": OthersLoad,
    "memory": SpareMemory,
    "hours": LocalHours,
    "metered": MeteredLink,
    "energy": EnergyCap,
}
for _name, _member in _BUILT_IN.items():
    PARTICIPATION.register(_name)(_member)

PRESETS: Final[Mapping[str, tuple[str, ...]]] = {
    "always": (),
    "idle": ("gpu", "load", "memory"),
    "night": ("hours",),
    "plugged": ("plugged",),
}
"""The policies that each word of `participation.when` stands for."""

__all__ = ["PARTICIPATION", "PRESETS", "ParticipationPolicy"]
