"""A site: the processes of one `torchrun ... -m p2ptrain node` are one node.

Rank 0 is the node: its settings, folder, network, page and log are those of any other, and what trains is a
`SiteTrainer`, by which all ranks take each step. The others have none of that. They are given the settings by rank 0,
build their part of the model, and do what it says.

    rank 0    settings, folder -> meet() -> SiteTrainer -> node (trainer.py) -> ... -> END
    others    ------------------- meet() -> SiteRank.follow() ----------------------->

Where a rank ends or hangs, all end, rank 0 after a goodbye to its neighbours. torchrun starts them again, as many as
there then are, and the node goes on from its newest checkpoint.
"""

import os
import pickle
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from node.config.schema import Config
from node.events.log import EventLog
from node.roles import byzantine
from node.roles.assembly import own_data
from node.roles.trainer import main
from node.system import gc_tuning
from node.system.errors import EXIT_USAGE, RunError, translate
from node.system.interrupts import SOON_KILLED
from node.system.ranks import SiteProcess, site_process
from p2ptrain import tasks
from p2ptrain.tasks import Task, TaskError
from p2ptrain.training import Learner
from p2ptrain.training.machine import pick_device
from p2ptrain.training.site.cut_model import check_parallel
from p2ptrain.training.site.orders import ENDED, SILENT, OrderChannel, RankLostError, why_lost
from p2ptrain.training.site.site_rank import SiteRank
from p2ptrain.training.site.site_trainer import RankThread, SiteTrainer

BEAT_S: Final = 1.0
"""Seconds between two times that the ranks ask each other whether they are there. Chosen."""

LOOK_S: Final = 0.02
"""Seconds between two looks for those who have come."""

LAST_WORDS_S: Final = 2.0
"""Seconds for rank 0 to say what all ranks have found wrong, before torchrun ends it. Chosen."""

GUARDED: Final = 3
"""Times `site.timeout_s` without an answer after which a rank does not wait for the barrier's own limit, which may be
twice that; and which ranks have to meet. Chosen."""

FOR_EVER: Final = timedelta(days=365)
"""For rank 0's next order: its node may wait for neighbours, and whether it lives is watched apart."""


@dataclass(frozen=True, kw_only=True)
class SiteStart:
    """What rank 0 has all others begin with."""

    config: Config
    peer_id: str
    meeting: str
    """A name of this meeting: torchrun's store still has what earlier ones left."""


def lead(
    config: Config,
    *,
    node_dir: Path,
    emit: EventLog,
    fits: Callable[[], None] = lambda: None,
    passphrase: bytes | None = None,
) -> int:
    """Run the node of a site in its first rank, and return the exit code. Raises as `main`."""
    site = _Leader()
    try:
        return main(
            config,
            node_dir=node_dir,
            emit=emit,
            fits=fits,
            passphrase=passphrase,
            tried=True,
            trainer_of=site.trainer,
        )
    finally:
        _heed_no_signals()  # torchrun sends one where another rank has ended first, and this end takes a second at most
        site.end()


class _Leader:
    """Rank 0's side of the site."""

    def __init__(self) -> None:
        self._trainer: SiteTrainer | None = None
        self._watch: RankWatch | None = None

    def trainer(self, config: Config, peer_id: str) -> Learner:
        """Meet the other ranks, and build what trains (TrainerOf)."""
        process = site_process()
        assert process is not None, "check_site says so"
        task = _task(config)  # first: what is wrong with it is told by this rank alone
        check_parallel(task, config.site, _having)
        store = _store()
        meeting = uuid.uuid4().hex
        start = SiteStart(config=config, peer_id=peer_id, meeting=meeting)
        _welcome(store, start, process.count)
        orders, self._watch = _grouped(store, start, process)
        thread = RankThread()
        self._watch.start(thread.lose, orphaned=_end_in_order)  # first: the others watch while they build
        try:
            self._trainer = SiteTrainer(partial(_rank, start, process, orders, task), thread)
        except RuntimeError as error:
            why = str(error) if isinstance(error, RankLostError) else why_lost(error)
            if not why:
                raise
            raise RunError(
                f"while the model was built: {why}", "torchrun --max-restarts starts a site again"
            ) from error
        return self._trainer

    def end(self) -> None:
        """Let the other ranks go. Where one was lost they end by themselves."""
        if self._trainer is None or self._watch is None:
            return
        self._watch.ended = True
        with suppress(RuntimeError):
            self._trainer.end()


def follow() -> int:
    """Be one of a site's other ranks to the end, and return the exit code."""
    process = site_process()
    assert process is not None, "who calls has asked"
    store = _store()
    start = _welcomed(store, process.rank)
    _heed_no_signals()
    try:
        orders, watch = _grouped(store, start, process)
        watch.start(partial(_give_up, process.rank))
        rank = _rank(start, process, orders, _task(start.config))
        gc_tuning.running()
        rank.follow()
        watch.ended = True
        rank.part()
    except TaskError as error:
        print(f"error: rank {process.rank} of this site ends: {error}", file=sys.stderr, flush=True)
        time.sleep(LAST_WORDS_S)
        return EXIT_USAGE
    except Exception as error:
        _give_up(process.rank, why_lost(error) or translate(error).line())
    return 0


def _give_up(rank: int, why: str) -> NoReturn:
    print(f"error: rank {rank} of this site ends: {' '.join(why.split())}", file=sys.stderr, flush=True)
    os._exit(1)


def _task(config: Config) -> Task:
    """Build the task that this site trains."""
    attack = byzantine.attack_of(config.attack)
    return byzantine.poisoned(tasks.get(config.task.name, **config.task.options), attack)


def _having(method: str) -> list[str]:
    """The names of the tasks that have it."""
    return [name for name in tasks.TASKS.names() if hasattr(tasks.TASKS.factory(name), method)]


def _rank(start: SiteStart, process: SiteProcess, orders: OrderChannel, task: Task) -> SiteRank:
    """Build this rank's part of the model. Collective."""
    config = start.config
    device = pick_device(config.train.device)
    if device.type == "cuda":
        device = torch.device("cuda", process.local_rank)
        torch.cuda.set_device(device)
    shard, data_seed = own_data(config, start.peer_id)
    return SiteRank(task, config.train, config.site, shard, orders, data_seed=data_seed, device=device)


def _grouped(store: Store, start: SiteStart, process: SiteProcess) -> "tuple[OrderChannel, RankWatch]":
    """Make the groups in which the ranks compute, in which rank 0 gives its orders, and in which they watch. Ends this
    rank where another one stops meanwhile."""
    site = start.config.site
    kind = pick_device(start.config.train.device).type
    with _ending_after(GUARDED * site.timeout_s, process.rank):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
            store=PrefixStore(start.meeting, store),
            rank=process.rank,
            world_size=process.count,
            timeout=timedelta(seconds=site.timeout_s),
        )
        orders, watched = (dist.new_group(timeout=FOR_EVER, backend="gloo") for _ in range(2))
    assert orders is not None
    assert watched is not None
    return OrderChannel(orders), RankWatch(watched, site.timeout_s)


@contextmanager
def _ending_after(seconds: float, rank: int) -> Iterator[None]:
    """End this process where what is done within takes longer: nobody watches yet, and a group that may wait for orders
    for ever is made by waiting as long."""
    clock = threading.Timer(seconds, partial(_give_up, rank, f"{SILENT} ({GUARDED} times) while the ranks met"))
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()


class RankWatch:
    """Asks all ranks once a second whether they are there, in a thread beside what they compute."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.ended = False
        """Whether ranks may go now."""
        self._group, self._timeout = group, timedelta(seconds=timeout_s)
        self._met = 0
        """How often all ranks have answered."""

    def start(self, lost: Callable[[str], None], orphaned: Callable[[], None] | None = None) -> None:
        """Watch from now on. `lost` is told, once and in another thread, why the site cannot go on; `orphaned` is
        called, once and there, when the process that has started this rank is gone."""
        told = threading.Lock()

        def lost_once(why: str) -> None:
            if told.acquire(blocking=False):
                lost(why)

        threading.Thread(target=self._watch, args=(lost_once, orphaned), name="ranks", daemon=True).start()
        threading.Thread(target=self._guard, args=(lost_once,), name="ranks-guard", daemon=True).start()

    def _guard(self, lost: Callable[[str], None]) -> None:
        """Tell `lost` where the barrier does not even come back. Its own limit was missed once, on a busy machine, by a
        rank whose rank 0 was stopped. Beats are counted, not seconds: a rank that was stopped itself blames nobody."""
        met, waited_s, most_s = -1, 0.0, GUARDED * self._timeout.total_seconds()
        while not self.ended:
            time.sleep(BEAT_S)
            met, waited_s = (met, waited_s + BEAT_S) if self._met == met else (self._met, 0.0)
            if waited_s > most_s:
                lost(f"{SILENT} ({GUARDED} times)")
                return

    def _watch(self, lost: Callable[[str], None], orphaned: Callable[[], None] | None) -> None:
        parent = os.getppid()
        try:
            while not self.ended:
                if orphaned is not None and os.getppid() != parent:
                    orphaned()
                    orphaned = None
                dist.monitored_barrier(self._group, self._timeout, wait_all_ranks=True)
                self._met += 1
                time.sleep(BEAT_S)
        except RuntimeError as error:
            if not self.ended:
                lost(f"{why_lost(error) or ENDED} ({str(error).splitlines()[0]})")


def _end_in_order() -> None:
    """End as on SIGTERM, with the model saved: who has started the ranks was killed, and nobody else would end them."""
    os.kill(os.getpid(), signal.SIGTERM)


def _store() -> Store:
    """The store that torchrun has made, or that rank 0 makes where torchrun says so."""
    store, _, _ = next(rendezvous("env://", timeout=FOR_EVER))
    return PrefixStore("p2ptrain", store)


def _welcome(store: Store, start: SiteStart, count: int) -> None:
    """Meet all other ranks. What ranks of an earlier start have left in the store is not taken for theirs: each of them
    says hello with a token of its own, for which it waits. Raises RunError where one does not come: torchrun sees those
    that end, and none that hangs."""
    packed, answered = pickle.dumps(start).hex(), set[str]()
    within_s = GUARDED * start.config.site.timeout_s
    ends_at = time.monotonic() + within_s
    while lacking := [rank for rank in range(1, count) if not store.check([f"{start.meeting}/here/{rank}"])]:
        if time.monotonic() > ends_at:
            raise RunError(
                f"rank {', '.join(map(str, lacking))} of this site has not come within {within_s:g} s",
                "torchrun --max-restarts starts a site again; a machine that is slow to start wants a longer "
                "site.timeout_s, of which this is three times",
            )
        for rank in range(1, count):
            if not store.check([f"hello/{rank}"]):
                continue
            token = store.get(f"hello/{rank}").decode()
            if token not in answered:
                answered.add(token)
                store.set(f"welcome/{token}", packed)
        time.sleep(LOOK_S)


def _welcomed(store: Store, rank: int) -> SiteStart:
    """Meet rank 0, and return what it begins with. It may take its time: settings and folder come first."""
    token = uuid.uuid4().hex
    store.set(f"hello/{rank}", token)
    while not store.check([f"welcome/{token}"]):
        time.sleep(LOOK_S)
    start = pickle.loads(bytes.fromhex(store.get(f"welcome/{token}").decode()))  # of our own rank 0
    assert isinstance(start, SiteStart)
    store.set(f"{start.meeting}/here/{rank}", "")
    return start


def _heed_no_signals() -> None:
    """Do nothing on signals, which reach all ranks: rank 0 still needs the others, to save the model. If it ends, they
    do."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *SOON_KILLED):
        signal.signal(ignored, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass
