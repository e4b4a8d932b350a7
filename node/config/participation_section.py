"""The section `[participation]`: when this machine trains.

A policy's options stand below its name, as `[participation.temperature]` with `stop = 75`, or after it, as
`--set participation.temperature.stop=75`. `gathered` brings them together; the section itself has them as `options`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from node.config.config_errors import did_you_mean
from node.config.toml_source import Raw
from node.participation import PARTICIPATION, PRESETS, ParticipationPolicy
from node.system.errors import UsageError

Setting = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig:
    """When this machine trains; no member needs to know. Otherwise it is paused: it serves the network, and learns
    nothing."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    when: str = "always"
    """always; idle: while nobody else uses the GPU, the processor or the memory; night: from 22:00 to 07:00, local
    time; plugged: on the charger. Each stands for some policies."""
    policy: tuple[str, ...] = ()
    """More policies, each of which may pause training: battery, plugged, temperature, gpu, load, memory, hours,
    metered, energy, or a plug-in's."""
    calm_s: Annotated[float, Field(ge=0)] = 30.0
    """Training goes on once no policy has forbidden it for so long: a pause lasts as long at least."""
    stay_s: Annotated[float, Field(ge=0)] = 10.0
    """Training that has gone on lasts so long at least, where hours, load, metered or energy would pause it. The others
    pause it at once."""
    unread: Literal["train", "pause"] = "train"
    """What a policy says whose reading fails (a driver, a sensor): that training may go on, or that it may not. One
    warning tells it."""
    options: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    """Options of policies by their name, such as {temperature = {stop = 75.0}}. Also written
    participation.temperature.stop=75."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all policies that hold."""
        return tuple(dict.fromkeys((*PRESETS[self.when], *self.policy)))

    def policies(self) -> dict[str, ParticipationPolicy]:
        """Return the policies by name, in their order; none where it always trains. UsageError for an option that is
        none."""
        found = {}
        for name in self.names:
            try:
                found[name] = PARTICIPATION.get(name, **self.options.get(name, {}))
            except ValueError as error:
                raise UsageError(f"[participation]: {error}") from None
        return found

    def idle(self) -> list[str]:
        """Return a line for each policy whose options are given, and which does not hold: they do nothing."""
        others = (name for name in self.options if name not in self.names)
        return [f'participation.{name} does nothing: name it, as in participation.policy=["{name}"]' for name in others]

    def check(self) -> None:
        """Raise UsageError for a name that is none, and for options that are none."""
        if self.when not in PRESETS:
            words = list(PRESETS)
            message = f"unknown participation.when {self.when!r}{did_you_mean(self.when, words)}"
            raise UsageError(message, f"there are {', '.join(words)}")
        known = PARTICIPATION.names()
        for name in (*self.policy, *self.options):
            if name not in known:
                message = f"unknown participation.policy {name!r}{did_you_mean(name, known)}"
                raise UsageError(message, f"there are {', '.join(known)}")
        self.policies()


_OWN = frozenset(each.name for each in fields(ParticipationConfig))


def gathered(raw: Raw) -> Raw:
    """Return the settings with the options of policies in `participation.options`, however they are written."""
    section = raw.get("participation")
    if not isinstance(section, dict):
        return raw
    own: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    for key, value in section.items():
        name, _, option = key.partition(".")
        if option:
            options.setdefault(name, {})[option] = value
        elif isinstance(value, Mapping) and key not in _OWN:
            options.setdefault(key, {}).update(value)
        else:
            own[key] = value
    if options:
        before = own.get("options")
        kept = {name: dict(each) for name, each in before.items()} if isinstance(before, Mapping) else {}
        for name, each in options.items():
            kept.setdefault(name, {}).update(each)
        own["options"] = kept
    return {**raw, "participation": own}
