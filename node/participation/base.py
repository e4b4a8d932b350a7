"""The contract of a participation policy: whether this machine should train now, by what was read of it."""

from typing import ClassVar, Protocol, runtime_checkable

from node.participation.device_state import DeviceState, Reading


class ParticipationPolicy(Protocol):
    """Decides by readings alone. It has no state: what it needs to know of the past is `paused`."""

    reads: ClassVar[tuple[Reading, ...]]
    """What it decides by, beside the time. It is not asked while one of these could not be read."""
    at_once: ClassVar[bool]
    """Whether it pauses training however short a time that has gone on: for what a person feels, or a machine suffers
    from. The others let it go on for `participation.stay_s`."""

    def forbids(self, state: DeviceState, *, paused: bool) -> str | None:
        """Return why training should not go on, in words; None where it may. `paused`: whether this policy forbade it
        at the last look. It then goes on forbidding until the reading is better by a margin (hysteresis). A reading of
        None never forbids: the machine has no such thing."""


@runtime_checkable
class TellsReturn(Protocol):
    """Optional: a policy that knows when it will let training go on."""

    def returns_at(self, state: DeviceState) -> float | None:
        """Return the first Unix time after `state.now` at which it forbids nothing, if all other readings are good
        then; None where it cannot be told. Asked while it forbids training; neighbours are told, and do not wait until
        then."""
