"""Compressors by composed names: stages joined by `+`, the outermost first, the base last: `lossless+rotated+int8`.

- A stage is a member whose factory takes `inner`. It may end a name: then it wraps its own default.
- A part stands once in a name, so that `part.option` names one option, and names that peers send stay few and shallow.
- An option goes to the one part that takes it. If several do, or to be plain: `part.option`. `inner` is no option: the
  name says it.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache

from p2ptrain.compress.base import Compressor
from p2ptrain.registry import BadOptionError, Registry, UnknownMemberError, build

Factory = Callable[..., Compressor]

MAX_PARTS = 4
"""`warmup+lossless+rotated+int8` is the deepest that makes sense; names come from peers, and each part costs time."""
MAX_NAME = 32
"""Characters of a codec's name in a signed link (docs/protocol.md)."""
INNER = "inner"
MAX_FACTORIES = 256
"""Factories whose options are remembered: more than there are members."""


class CodecCompositions(Registry[Compressor]):
    """The registry of compressors, whose `get` also knows composed names. `names` lists the parts there are."""

    def get(self, name: str, **options: object) -> Compressor:
        """Build `name`. UnknownMemberError for a name that cannot be, BadOptionError for an option, naming both."""
        factories = self.parts(name)
        given = _assign(name, factories, options)
        codec: Compressor | None = None
        for part, factory in reversed(factories.items()):
            inner = {} if codec is None else {INNER: codec}
            codec = build(factory, f"compressor {part!r}", {**given[part], **inner})
        assert codec is not None
        return codec

    def check(self, name: str) -> None:
        """UnknownMemberError unless `name` is a member or a composition of members. Builds nothing."""
        self.parts(name)

    def parts(self, name: str) -> dict[str, Factory]:
        """Return the factories of the name's parts, outermost first. Raises UnknownMemberError."""
        parts = name.split("+")
        if len(name) > MAX_NAME or len(parts) > MAX_PARTS:
            limits = f"a name has {MAX_NAME} characters and {MAX_PARTS} parts at most"
            raise UnknownMemberError(f"unknown compressor {name[:MAX_NAME]!r}: {limits}")
        factories = {part: self._factories.get(part) or self._load(part) for part in parts}
        if len(factories) < len(parts):
            raise UnknownMemberError(f"unknown compressor {name!r}: a part stands once in a name")
        for part in parts[:-1]:
            if INNER not in _parameters(factories[part]):
                raise UnknownMemberError(f"unknown compressor {name!r}: {part!r} is no stage, and wraps nothing")
        return factories


def _assign(name: str, factories: Mapping[str, Factory], options: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Each part's options. BadOptionError for one that no part takes, or that more than one does."""
    taken = {part: _options(factory) for part, factory in factories.items()}
    given: dict[str, dict[str, object]] = {part: {} for part in factories}
    for key, value in options.items():
        part, _, option = key.rpartition(".")
        takers = [part] if part else [part for part, names in taken.items() if option in names]
        if len(takers) > 1:
            meant = " or ".join(f"{part}.{option}" for part in takers)
            raise BadOptionError(f"compressor {name!r}: several parts take {option!r}; write {meant}")
        if not takers or option not in taken.get(takers[0], ()):
            there = ", ".join(f"{part}.{option}" for part, names in taken.items() for option in names) or "none"
            raise BadOptionError(f"compressor {name!r}: no part takes the option {key!r}; its options: {there}")
        if option in given[takers[0]]:
            raise BadOptionError(f"compressor {name!r}: {takers[0]}.{option} is given twice")
        given[takers[0]][option] = value
    return given


def _options(factory: Factory) -> list[str]:
    return [option for option in _parameters(factory) if option != INNER]


@lru_cache(MAX_FACTORIES)
def _parameters(factory: Factory) -> tuple[str, ...]:
    """Their names. A configuration asks some dozen times for each codec in it."""
    return tuple(inspect.signature(factory).parameters)
