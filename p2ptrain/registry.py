"""One registry for every extension point: built-in members by name, third parties' by Python entry point.

    COMPRESSORS: Registry[Compressor] = Registry("compressors")

    @COMPRESSORS.register("q2")
    class LloydMax2Bit: ...

A package that declares `[project.entry-points."p2ptrain.compressors"] mine = "pkg.module:Factory"` adds `mine`
with no edit here. Entry points are read on the first miss, so that a broken plug-in costs only its user.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from p2ptrain import faults
from p2ptrain.options import BadOptionError, Option, converted, options_of

__all__ = ["BadOptionError", "Registry", "UnknownMemberError", "build"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class UnknownMemberError(ValueError):
    """A name that no member of this extension point has; the message lists those there are."""


class Registry(Generic[T]):
    """Names to factories of `T`. A factory is any callable that takes keyword options and returns a `T`."""

    def __init__(self, point: str) -> None:
        self.point = point
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: make the factory known as `name`. ValueError when the name is taken."""
        if name in self._factories:
            raise ValueError(f"{self.point}: {name!r} is registered twice")

        def add(factory: F) -> F:
            self._factories[name] = factory  # type: ignore[assignment]  # checked by each point's contract suite
            return factory

        return add

    def names(self) -> list[str]:
        """Every known name, built in and plugged in, sorted."""
        return sorted(self._factories.keys() | self._plugged)

    def get(self, name: str, **options: object) -> T:
        """Build the member `name` with `options`. Raises UnknownMemberError, or ValueError on a bad option."""
        return build(self.factory(name), f"{self.point.removesuffix('s')} {name!r}", options)

    def factory(self, name: str) -> Callable[..., T]:
        """Return what builds the member `name`: its parameters are the member's options. Raises UnknownMemberError."""
        return self._factories.get(name) or self._load(name)

    def parts(self, name: str) -> Mapping[str, Callable[..., object]]:
        """Return the factories of the members that `name` is made of, by their names. Raises UnknownMemberError."""
        return {name: self.factory(name)}

    def options(self, name: str) -> Mapping[str, Option]:
        """Return the options of the one member `name` that a file can set, by name. Raises UnknownMemberError."""
        return options_of(self.parts(name)[name])

    @cached_property
    def _plugged(self) -> frozenset[str]:
        # Asked once: it reads the metadata of every installed package (30 ms), and names are checked often.
        return frozenset(entry.name for entry in entry_points(group=f"p2ptrain.{self.point}"))

    def _load(self, name: str) -> Callable[..., T]:
        for entry in entry_points(group=f"p2ptrain.{self.point}", name=name):
            faults.note_plug_in(entry.module)
            factory: Callable[..., T] = entry.load()
            self._factories[name] = factory
            return factory
        raise UnknownMemberError(
            f"unknown {self.point.removesuffix('s')} {name!r}; there are: {', '.join(self.names())}"
        )


def build(factory: Callable[..., T], what: str, options: Mapping[str, object]) -> T:
    """Call `factory(**options)`. BadOptionError, naming `what`, when the call does not fit its signature, or a value
    not the type that the factory declares."""
    signature = _signature_of(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise BadOptionError(f"{what} {_misfit(signature, options) or error}; its options: {takes}") from error
    return factory(**converted(factory, what, options))


@lru_cache(maxsize=256)
def _signature_of(factory: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(factory)


def _misfit(signature: inspect.Signature, options: Mapping[str, object]) -> str:
    """Return the option that is unknown or missing, in the words of a user; "" when something else does not fit."""
    given = signature.parameters.values()
    named = {each.name for each in given if each.kind is not each.POSITIONAL_ONLY}
    free = any(each.kind is each.VAR_KEYWORD for each in given)
    strange = [] if free else [each for each in options if each not in named]
    if strange:
        return f"takes no option {strange[0]!r}"
    missing = [
        each.name
        for each in given
        if each.default is each.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        and each.name not in options
    ]
    return f"needs the option {missing[0]!r}" if missing else ""
