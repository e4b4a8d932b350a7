"""Measures exchanges among members that train on one machine at the same time."""

import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from node.bench.network.workers import Message, Workers

PATIENCE_S: Final = 300.0
"""For members to import torch, build a model and meet, on a busy machine."""
FIRST: Final = 2
"""Exchanges of each member that are left out: connections and their streams are new."""


@dataclass(frozen=True, kw_only=True)
class ExchangeFound:
    """What came of it."""

    seconds: Sequence[float]
    """Of each payload to each member, from the call to publish until its bytes are there and verified."""
    loop_s: float
    """Seconds of a core that an event loop took for an exchange: its own payload out to all, and all of theirs in."""
    lost_s: float
    """Seconds of its training that a member lost by an exchange."""


def exchanges(
    task: Mapping[str, Any],
    *,
    members: int,
    batch: int,
    threads: int,
    device: str,
    size: int,
    times: int,
    period_s: float,
) -> ExchangeFound:
    """Let members train `task` and publish `size` random bytes each, `times` times, all at once, at
    multiples of `period_s`. RunError
    where one fails or they do not meet."""
    swarm = f"bench-{secrets.token_hex(8)}"
    with Workers(PATIENCE_S) as workers:
        crew = [workers.hire(f"member {index}", "exchanger") for index in range(members)]
        addresses: list[str] = []
        for index, member in enumerate(crew):
            workers.tell(
                member,
                "start",
                swarm=swarm,
                addresses=addresses,
                task=dict(task),
                batch=batch,
                threads=threads,
                device=device,
                bytes=size,
                index=index,
                count=members,
            )
            addresses = [*addresses, workers.hear(member, "ready")["address"]][:1]
        workers.tell_all(crew, "meet")
        workers.hear_all(crew, "met")
        workers.tell_all(crew, "exchange", times=times + FIRST, period_s=period_s, first=1)
        return _found(workers.hear_all(crew, "exchanged"), times + FIRST)


def _found(told: Sequence[Message], times: int) -> ExchangeFound:
    published = {(each["peer"], 1 + number): at for each in told for number, at in enumerate(each["published"])}
    seconds = [
        at - published[peer, round_]
        for each in told
        for peer, round_, at in each["arrived"]
        if round_ > FIRST and (peer, round_) in published
    ]
    lost = [_lost(each["exchanging"], each["quiet"]) for each in told]
    return ExchangeFound(
        seconds=seconds,
        loop_s=statistics.median(each["loop_s"] for each in told) / times,
        lost_s=statistics.fmean(lost) / times,
    )


def _lost(exchanging: Sequence[float], quiet: Sequence[float]) -> float:
    """Seconds that training lost among exchanges, by the steps that it took beside none."""
    (seconds, steps), (quiet_s, quiet_steps) = exchanging, quiet
    return max(0.0, seconds - steps * quiet_s / quiet_steps) if quiet_steps else 0.0
