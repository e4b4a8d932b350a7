"""How many steps a phase has: what `train.inner_steps_schedule` gives its round (`train.inner_steps`, where that is
constant), or fewer by `node.pace`. It changes between phases only.

    fixed   the schedule's
    dylu    the schedule's * own speed / fastest neighbour's, so that unequal machines end their rounds together
    auto    as few as hide the exchange over the measured links, and enough to keep rounds as long as the neighbours'

All that is needed of the others is on the wire anyway: each update says how many steps it covers. The time between two
updates is the time of these steps, as training does not wait; with `node.overlap = false` it does, and only `fixed` is
possible. Measurements waver with whatever else a machine does, so a plan changes only when those of the last AGREEING
rounds ask for it alike; `dylu` follows its first ones as they come. Claims are trusted no further than necessary. For
`dylu` the `sync.f` fastest neighbours are ignored, and no plan is below LEAST_SHARE of the schedule's steps. For
`auto`, which wants a constant schedule, the low median of the neighbours decides how long rounds are. A peer that
claims to be slow can keep them at their present length, but no plan is above train.inner_steps, which `fixed` has
anyway. docs/decisions/0012 and 0107 have the reasons.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low
from typing import Final

from p2ptrain.training.pace import agreed, auto_h, dylu_steps

WINDOW: Final = 5
"""Updates remembered of each neighbour: they span four rounds, so that one late update hardly shows."""

LEAST_SHARE: Final = 1 / 16
"""Least share of the schedule's steps that is planned. A neighbour that claims to be more than 16 times as fast is
followed no further. A node that really is that slow does the least, and catches up by the shorter rounds of a lagging
node (run_state.py)."""

AGREEING: Final = 7
"""Rounds whose measurements agree before a plan changes, so that it changes every fourth round at most, whatever is
measured. Where phases vary by a fifth, five nodes' plans changed up to 128 times in 200 rounds without it under `dylu`
and 185 under `auto`, and 9 times with it; a machine that becomes half as fast is followed after ten rounds
(docs/decisions/0107)."""

BEGINNING: Final = WINDOW - 1
"""First measurements that `dylu` follows as they come, where they ask for a tenth more or less: each is the median of
one round more, until it is of as many as a Pulse spans. The first alone would be held until others outvote it."""

SLACK: Final = 1.05
"""Measured speeds vary: a share of 1.97 steps counts as 2, not 1."""

STRIDE: Final = 1.5
"""Largest factor by which an `auto` round is longer or shorter than the one before and than the neighbours'. Nodes with
different links so stay close to each other, and all together go from 20 steps to 2 in six rounds."""


class Pulse:
    """A node's newest updates: when each arrived, and how many steps it covers."""

    def __init__(self) -> None:
        self._updates: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def update(self, steps: int, now: float) -> None:
        """Note one more update of `steps` steps at `now`."""
        self._updates.append((now, steps))

    @property
    def speed(self) -> float | None:
        """Return the median of recent rounds' steps a second, which one slow round does not move; None when too little
        is known, or no step was done."""
        gaps = ((later - sooner, steps) for (sooner, _), (later, steps) in pairwise(self._updates))
        speeds = [steps / seconds for seconds, steps in gaps if seconds > 0 and steps > 0]
        return median(speeds) if speeds else None

    @property
    def round_seconds(self) -> float | None:
        """Return the recent seconds from one update to the next; None when too little is known."""
        gaps = [later - sooner for (sooner, _), (later, _) in pairwise(self._updates)]
        return median(gaps) if gaps else None


@dataclass(frozen=True, kw_only=True)
class Link:
    """What decides how long a round's exchange takes. `bytes_per_s`: speed of the slowest link that the quorum waits
    for, in the slower direction; None before it was measured. `overlap_steps`: None for as many as the round has."""

    bytes_per_s: float | None
    payload_bytes: int
    overlap_steps: int | None


class Pace:
    """The plan for the current phase, and the measurements behind it. All of it is used on the event loop, except
    `steps`."""

    def __init__(self, mode: str, inner_steps: int, *, f: int, own: str, clock: Callable[[], float]) -> None:
        self.steps = inner_steps
        """Planned steps of the current phase; read by the training thread."""
        self._mode = mode
        self._most = inner_steps
        self._f = f
        self._own = own
        self._clock = clock
        self._pulses: dict[str, Pulse] = {own: Pulse()}
        self._work_seconds = 0.0
        self._shares: deque[float] = deque(maxlen=AGREEING)
        """What the measurements of the last rounds asked for, as shares of the schedule's steps."""

    def begin(self, most: int) -> None:
        """Begin to plan a phase that has `most` steps by the schedule: until `plan`, as large a share of them as of the
        phase before."""
        if most != self._most:
            self.steps = max(1, self.steps * most // self._most)
            self._most = most

    def took(self, peer: str, steps: int | None) -> None:
        """Note an update of `peer`, which may be this node, of so many steps. None: `peer` began a new chain, or its
        model came as a snapshot, so the time since its last update means nothing."""
        if steps is None:
            self._pulses.pop(peer, None)
        else:
            self._pulses.setdefault(peer, Pulse()).update(steps, self._clock())

    @contextmanager
    def work(self) -> Iterator[None]:
        """Time a block that encodes, decodes or aggregates: it lengthens an exchange as a slow link does."""
        began = self._clock()
        try:
            yield
        finally:
            self._work_seconds += self._clock() - began

    def plan(self, neighbours: Collection[str], step_seconds: float, link: Link) -> None:
        """Plan the next phase's steps. `step_seconds`: this node's mean in the phase before."""
        work_seconds, self._work_seconds = self._work_seconds, 0.0
        self._pulses = {peer: it for peer, it in self._pulses.items() if peer in neighbours or peer == self._own}
        if self._mode == "dylu":
            if (share := self._dylu_share()) is not None:
                self.steps = self._agreed(share)
        elif self._mode == "auto" and step_seconds > 0:
            self.steps = self._auto(step_seconds, work_seconds, link)

    def _agreed(self, share: float) -> int:
        """Note what this round's measurements ask for. The steps that all of the last rounds' do."""
        self._shares.append(share)
        wanted = [self._steps_of(each) for each in self._shares]
        begins = self._mode == "dylu" and len(wanted) <= BEGINNING
        return agreed(self.steps, wanted[-1:] if begins else wanted)

    def _steps_of(self, share: float) -> int:
        if self._mode == "dylu":
            return max(math.ceil(LEAST_SHARE * self._most), dylu_steps(self._most, speed=share, fastest=1.0))
        return max(1, round(share * self._most))

    def _dylu_share(self) -> float | None:
        """DyLU (2401.09135): own speed over the fastest's, at most 1. None: too little is known."""
        own, others = self._own_speed, self._speeds()
        fastest = others[-1 - self._f] if len(others) > self._f else None
        return None if own is None or fastest is None else min(1.0, SLACK * own / max(own, fastest))

    def _auto(self, step_seconds: float, work_seconds: float, link: Link) -> int:
        a_step = 1 / self._own_speed if self._own_speed else step_seconds
        if link.bytes_per_s is None or link.payload_bytes == 0:
            return self.steps
        hidden = auto_h(
            step_seconds=step_seconds,
            link_bytes_per_s=link.bytes_per_s,
            payload_bytes=link.payload_bytes,
            latency_s=work_seconds,
            overlap_steps=link.overlap_steps,
            maximum=self._most,
        )
        wanted = self._agreed(min(self._most, max(hidden, self._slowest_step(a_step))) / self._most)
        if (around := self._neighbours_round()) is not None:
            wanted = _within(wanted, around / a_step)
        return agreed(self.steps, [min(self._most, _within(wanted, self.steps))])

    def _slowest_step(self, a_step: float) -> int:
        """Return this node's steps in the time of the slowest neighbour's step: no node can do less than one a
        round."""
        others = self._speeds()
        return max(1, math.ceil(1 / (SLACK * others[0]) / a_step)) if others else 1

    def _neighbours_round(self) -> float | None:
        """Return the low median of the neighbours' round times in seconds, which no minority can move."""
        lengths = [it.round_seconds for peer, it in self._pulses.items() if peer != self._own]
        known = [seconds for seconds in lengths if seconds]
        return median_low(known) if known else None

    @property
    def _own_speed(self) -> float | None:
        own = self._pulses.get(self._own)
        return own.speed if own else None

    def _speeds(self) -> list[float]:
        """Return the known speeds of the neighbours, the slowest first."""
        speeds = (it.speed for peer, it in self._pulses.items() if peer != self._own)
        return sorted(speed for speed in speeds if speed is not None)


def _within(wanted: int, around: float) -> int:
    """Return `wanted`, but within a factor STRIDE of `around`. One step up or down is always allowed: small numbers
    would otherwise never change."""
    most = max(math.floor(around * STRIDE + 1e-9), math.floor(around) + 1)
    least = min(math.ceil(around / STRIDE - 1e-9), round(around) - 1)
    return max(1, least, min(wanted, most))
