"""Makes a run a function of its seed: trio's order, and no clock, entropy or thread of the machine.

The seal holds in the thread that simulates. No other thread is started inside, and one that stood before (a library's
that sweeps a cache) takes no part in the run: it goes on as outside.

What breaks determinism without it (each found in the source): trio reverses and shuffles runnable tasks by a generator
of the system's entropy; sets of strings are ordered by PYTHONHASHSEED; a thread lets the virtual clock jump while it
works; torch sums in another order with other threads; dropout draws from a generator that all of a process share.
"""

import itertools
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Final, Literal, NoReturn
from unittest import mock

import torch
import trio

from gossip.core import envelope, identity
from node.simulation.rare_collections import rare_collections
from node.simulation.seeded_generators import seeded_generators
from node.system.errors import RunError

CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime")
OWN_CLOCKS: Final = frozenset({"torch", "trio", "rich", "logging", "psutil", "_pytest", "numpy"})
"""Libraries that may look at the machine's clock: what they see stays with them."""

CALLER: Final = 2
"""Frames from a replacement to the code that called it: its own and the choice by thread."""

OPENED: Final = 1 << 14
"""Envelopes that are kept, opened, for all nodes: those of many seconds, some 20 MB."""


class SealBrokenError(Exception):
    """Code inside of a simulation asked the machine for something that differs from run to run."""


def hashes_are_fixed() -> bool:
    """Return whether this process was started with PYTHONHASHSEED=0."""
    return os.environ.get("PYTHONHASHSEED") == "0" and not sys.flags.hash_randomization


@contextmanager
def sealed(seed: int, crypto: Literal["shared", "each"]) -> Iterator[None]:
    """Make what runs inside repeatable. `crypto`: "shared" checks and opens each signed envelope once for all nodes: an
    open one cannot be changed, and a refusal is raised anew each time. Raises RunError where this trio cannot be made
    deterministic."""
    _order_tasks(seed)
    inside = threading.get_ident()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    numbers = itertools.count()
    with ExitStack() as patches:
        patches.enter_context(rare_collections())
        patches.enter_context(seeded_generators(seed))

        def replace(owner: object, name: str, within: Callable[..., Any]) -> None:
            chosen = _in_thread(inside, within, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, chosen))

        for name in CLOCKS:
            replace(time, name, _guarded(name, getattr(time, name)))
        replace(os, "urandom", _refused("os.urandom"))
        replace(random, "_urandom", _refused("os.urandom"))
        replace(threading.Thread, "start", _refused("a thread"))
        replace(trio.to_thread, "run_sync", _refused("trio.to_thread"))
        # Names of files that are renamed at once; and a virtual disk loses nothing when the power fails.
        replace(secrets, "token_hex", lambda size=8: f"{next(numbers):0{2 * size}x}")
        replace(os, "fsync", lambda descriptor: None)
        if crypto == "shared":
            opened, name_of = lru_cache(OPENED)(envelope.opened), lru_cache(1 << 12)(identity.peer_id_of)
            patches.enter_context(mock.patch.object(envelope, "opened", opened))
            patches.enter_context(mock.patch.object(envelope, "peer_id_of", name_of))
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _order_tasks(seed: int) -> None:
    """Make trio's scheduling a function of the seed. It has no public way to do so: this is what pytest-trio does."""
    scheduler: Any = sys.modules.get("trio._core._run")
    shuffler = getattr(scheduler, "_r", None)
    if not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING") or not isinstance(shuffler, random.Random):
        message = f"trio {trio.__version__} cannot be made deterministic: its scheduler has changed"
        raise RunError(message, "simulate with trio 0.35, which is in constraints.txt")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    shuffler.seed(seed)


def _in_thread(inside: int, within: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(*arguments: Any, **named: Any) -> Any:
        called = within if threading.get_ident() == inside else outside
        return called(*arguments, **named)

    return chosen


def _guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any) -> Any:
        caller = sys._getframe(CALLER).f_globals.get("__name__", "")
        if caller.partition(".")[0] in OWN_CLOCKS:
            return real(*arguments)
        raise SealBrokenError(f"{caller} read time.{name} inside of a simulation: take the clock that is given")

    return guarded


def _refused(what: str) -> Callable[..., NoReturn]:
    def refused(*arguments: Any, **named: Any) -> NoReturn:
        caller = sys._getframe(CALLER).f_globals.get("__name__", "")
        raise SealBrokenError(f"{caller} used {what} inside of a simulation: it would differ from run to run")

    return refused
