"""The section `[selection]`: whose updates this node fetches first, where its link does not carry all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from node.config.config_errors import did_you_mean
from node.selection import SELECTION, SelectionPolicy
from node.system.errors import UsageError

ALL: Final = "all"


@dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """Whose updates are fetched first; no member needs to know. The others' are fetched in spare time."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    policy: str = ALL
    """all: everybody's alike; random, nearest, useful, or a plug-in's: those of `most` neighbours first."""
    most: Annotated[int, Field(ge=2)] = 4
    """Neighbours that are first, the one that is being explored included: as many as the link carries in a round. At
    least one more than the aggregator needs."""
    oldest: Annotated[int, Field(ge=1)] = 64
    """Rounds after which a neighbour whose model was in none is explored next: its whole model is fetched for it."""
    explore: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Probability in each round with which one drawn from the others is explored before that, where nobody is."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Options of the policy, such as {link = 0.5}."""

    def find(self) -> SelectionPolicy | None:
        """Return the policy; None where all are alike. UsageError for an unknown name or option."""
        if self.policy == ALL:
            return None
        known = SELECTION.names()
        if self.policy not in known:
            words = [ALL, *known]
            message = f"unknown selection.policy {self.policy!r}{did_you_mean(self.policy, words)}"
            raise UsageError(message, f"there are {', '.join(words)}")
        try:
            return SELECTION.get(self.policy, **self.options)
        except ValueError as error:
            raise UsageError(f"[selection]: {error}") from None
