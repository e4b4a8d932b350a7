"""What was read of the machine at one moment, as data: policies decide by it, and by nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

Reading: TypeAlias = Literal["battery", "temperature", "gpu", "load", "memory", "metered", "energy"]
READINGS: Final[tuple[Reading, ...]] = get_args(Reading)
"""What can be read. The time is always there."""


@dataclass(frozen=True, kw_only=True)
class Battery:
    """A battery."""

    percent: float
    """0 to 100."""
    plugged: bool
    """Whether the machine runs on its charger. Also where the system cannot tell."""


@dataclass(frozen=True, kw_only=True)
class GpuUseByOthers:
    """Use of the GPU by the one process of somebody else that uses it most."""

    share: float
    """Share of the recent time in which it computed there, 0 to 1."""
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """The readings of one moment. None: the machine has no such thing, or nobody has asked for it."""

    now: float
    """Unix seconds."""
    battery: Battery | None = None
    """None on desktops, in most virtual machines and in containers: they run on mains."""
    temperature_c: float | None = None
    """Of the hottest processor or GPU, degrees Celsius."""
    gpu: GpuUseByOthers | None = None
    load: float | None = None
    """Share of the machine's cores that other processes keep busy, 0 to 1."""
    memory_bytes: int | None = None
    """Free for new use."""
    metered: bool | None = None
    """Whether the link to the internet is paid by volume."""
    energy_j: float | None = None
    """Joules that training took since midnight, local time."""
    unread: Mapping[Reading, str] = field(default_factory=dict)
    """Why a reading that should be there could not be taken."""

    def value(self, reading: Reading) -> object:
        """Return one reading."""
        return getattr(
            self, {"temperature": "temperature_c", "memory": "memory_bytes", "energy": "energy_j"}.get(reading, reading)
        )
