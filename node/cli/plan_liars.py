"""How many liars a plan is to withstand, and by which rule: what --liars and the settings say of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from node.system import text
from node.system.errors import UsageError

if TYPE_CHECKING:
    from node.config.schema import Config
    from p2ptrain.sync import SyncConfig

USUAL: Final = 1
"""The default of `sync.f`."""


@dataclass(frozen=True, kw_only=True)
class Withstands:
    """What a plan is to withstand."""

    liars: int
    aggregator: str
    """That the settings name; empty: none."""
    is_asked: bool
    """Whether --liars says so."""


def withstands(asked: int | None, config: "Config", given: dict[str, Any], nodes: int) -> Withstands:
    """Return what --liars and the settings say together. UsageError where they contradict each other, or where so many
    members cannot outvote so many liars."""
    if asked is not None and given.get("f", asked) != asked:
        raise UsageError(f"--liars {asked} and sync.f = {given['f']}: both say how many lie", "give one of them")
    liars = asked
    if liars is None:
        liars = config.sync.f if {"f", "aggregator"} & set(given) else USUAL
    if liars and nodes < 2 * liars + 1:
        least = 2 * liars + 1
        whose = "--liars" if asked is not None else "sync.f" if {"f", "aggregator"} & set(given) else "--nodes"
        raise UsageError(  # who has said nothing of liars is not told that an option of theirs is wrong
            f"{whose}: {liars} of {nodes} members cannot be outvoted",
            f"give --nodes {least} or more, or --liars {(nodes - 1) // 2}",
        )
    return Withstands(liars=liars, aggregator=str(given.get("aggregator", "")), is_asked=asked is not None)


def check_withstands(asked: Withstands, sync: "SyncConfig", *, degree: int | None, nodes: int) -> None:
    """Raise UsageError where a strategy, or --degree, does not give what --liars asks for."""
    from node.planning.advice import WITHSTANDS_LIARS, degree_for
    from p2ptrain.sync import ALLREDUCE

    liars = asked.liars
    if sync.strategy not in WITHSTANDS_LIARS and not asked.is_asked:
        return
    if liars and sync.spec().averager == ALLREDUCE:
        raise UsageError(
            f"--liars: under {sync.strategy} members who average parts are believed",
            f"give --liars 0, or --strategy {' or '.join(WITHSTANDS_LIARS)}",
        )
    least = degree_for(liars, nodes)
    if degree is not None and degree < least:
        raise UsageError(
            f"--degree: among {text.plural(degree, 'neighbour')} {text.plural(liars, 'liar')} cannot be outvoted",
            f"give --degree {least} or more, or --liars {degree // 2}",
        )
