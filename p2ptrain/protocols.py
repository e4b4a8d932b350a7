"""Whether a member has an optional protocol, where it is asked every round."""

from collections.abc import Callable
from typing import TypeGuard, TypeVar, cast
from weakref import WeakKeyDictionary

P = TypeVar("P")

_known: WeakKeyDictionary[type, dict[object, bool]] = WeakKeyDictionary()


def implements(value: object, protocol: Callable[..., P]) -> TypeGuard[P]:
    """Return `isinstance(value, protocol)` for a runtime-checkable protocol. It is asked once a type, whose instances
    all have the same members: Python 3.11 puts the protocol's names together anew at every call."""
    answers = _known.setdefault(type(value), {})
    if protocol not in answers:
        answers[protocol] = isinstance(value, cast(type[P], protocol))  # as a callable: no type[P] may be abstract
    return answers[protocol]
