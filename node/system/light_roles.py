"""Roles of nodes that neither train nor evaluate: they need no task, no data and no torch."""

from typing import Final

WITHOUT_MODEL: Final[frozenset[str]] = frozenset({"bootstrap", "relay"})
