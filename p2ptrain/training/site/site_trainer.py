"""The trainer of a site, in its first rank: what a node has in place of a `Trainer`.

Each method is an order to all ranks, which this one follows as well. All of a rank's collectives run in one thread, so
that they come in the same order everywhere; who calls waits for that thread, and stops waiting once a rank is lost.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import torch

from p2ptrain.tasks.base import OWN_SHARD
from p2ptrain.tasks.metrics import Measures, metric_units, own_metrics
from p2ptrain.training.layout import StateLayout, take_up_untrained, untrained_of
from p2ptrain.training.site.orders import RankLostError, SiteOrder, why_lost
from p2ptrain.training.site.site_rank import LossKind, SiteRank
from p2ptrain.training.train_config import lr_at
from p2ptrain.training.trainer import UNTRAINED_PREFIX

T = TypeVar("T")

_COUNTERS: Final = 3


class RankThread:
    """Runs functions one after another, in a thread of its own. `lose` gives up on the one that runs."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: Future[object] | None = None
        self._lost: RankLostError | None = None
        threading.Thread(target=self._run, name="site", daemon=True).start()

    def do(self, function: Callable[[], T]) -> T:
        """Return what `function` returns, or raise what it raises. RankLostError as soon as a rank is lost."""
        pending: Future[object] = Future()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._pending = pending
        self._work.put((function, pending))
        return pending.result()  # type: ignore[return-value]  # of this function

    def lose(self, why: str) -> None:
        """Have all that waits, and all that comes, fail: a rank has ended, or does not answer. Any thread may call."""
        with self._lock:
            self._lost = self._lost or RankLostError(why)
            pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(InvalidStateError):  # done just now
                pending.set_exception(self._lost)

    def _run(self) -> None:
        while True:
            function, pending = self._work.get()
            try:
                result, error = function(), None
            except BaseException as raised:
                result, error = None, raised
            with suppress(InvalidStateError):  # given up on
                if error is None:
                    pending.set_result(result)
                else:
                    pending.set_exception(error)


class SiteTrainer:
    """Learner whose model is shared out among the ranks of a site. `make` builds this one's part: it is called in the
    thread that all collectives are in. RankLostError where a rank is lost meanwhile."""

    steps_elsewhere: Final = False
    micro_batch: Final = None
    compile_fault: Final = ""

    def __init__(self, make: Callable[[], SiteRank], thread: RankThread) -> None:
        """`thread`: in which all of this rank's collectives are from now on."""
        self.thread = thread
        self._site = self.thread.do(make)
        self._live = threading.Lock()
        self._failed = False
        """Whether an order failed here, so that it is not known what the other ranks do."""
        self.task, self.config = self._site.task, self._site.config
        self.shard, self.data_seed = self._site.shard, self._site.data_seed
        self.fingerprint, self.identity = self._site.cut.fingerprint, self._site.cut.identity
        self.numel = self._site.sharded.numel
        self.device = self._site.machine.device
        self.metric, self.units = self.task.metric, metric_units(self.task)
        self.global_step = self.tokens = self.skipped_steps = 0
        self.learning_rate: float | None = None

    @property
    def evaluates(self) -> bool:
        """Whether it can tell a held-out loss: every task can."""
        return True

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Take one step in all ranks, and return its mean loss (not finite where it was skipped)."""
        at = self.global_step if schedule_step is None else schedule_step
        rate = rate_factor * lr_at(at, self.config.total_steps, self.config)

        def step() -> float:
            self._site.orders.tell(SiteOrder.STEP, self.global_step, rate)
            step = self._site.step(self.global_step, rate)
            self.tokens += step.tokens
            self.skipped_steps += not step.taken
            self.learning_rate = rate if step.taken else self.learning_rate
            self.global_step += 1
            return step.loss

        return self._together(step)

    def vector(self) -> torch.Tensor:
        """Return a copy of the whole model, fp32 (d,) on the CPU."""
        return self._together(self._site.sharded.vector)

    def doubts(self) -> list[str]:
        """Return nothing: a site trains tasks, not a user's loop."""
        return []

    def begin_round(self) -> None:
        """Do nothing: a site has no drift correction."""

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the parts of all ranks. ValueError on another shape."""
        self._together(lambda: self._site.sharded.add_(correction_d))

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the parts of all ranks to those of `x_d` (d,). ValueError on another shape."""
        self._together(lambda: self._site.sharded.load_(x_d))

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Return the held-out loss of the model `x_d` (d,), or of the live one. No step is taken meanwhile."""
        return self._together(lambda: self._loss(x_d, LossKind.HELD_OUT))

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Return the same, and the task's own metrics."""

        def measure() -> Measures:
            has_own = self._site.has_own()
            with self._model(x_d):
                loss = self._told_loss(LossKind.HELD_OUT)
                of_own = self._told_loss(LossKind.OWN) if has_own else math.nan
                more = Measures(loss=loss)
                if own_metrics(self.task) is not None:
                    self._site.orders.tell(SiteOrder.MEASURE, LossKind.METRICS)
                    more = self._site.metrics()
            own = self._site.derived(loss)  # the task's code, which may raise: the ranks have the live model again
            if math.isfinite(of_own):
                own[OWN_SHARD] = of_own
            return Measures(loss=loss, own={**own, **more.own}, fault=more.fault)

        return self._together(measure)

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Return the loss of the model `x_d` (d,) on a batch of own data, the same in a round."""
        return self._together(lambda: self._loss(x_d, LossKind.JUDGE, round))

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return None: a site would have to stop training for each neighbour's model."""
        return None

    def layout(self) -> StateLayout | None:
        """Return names, shapes and types of the whole model's `state_dict`."""
        return self._site.cut.layout

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what a `Trainer` of one process returns: whole tensors, as copies on the CPU."""

        def state() -> dict[str, torch.Tensor]:
            parameters_d = self._site.sharded.vector()
            self._site.orders.tell(SiteOrder.SAVE)
            buffers = self._site.optimizer_state()
            untrained = {UNTRAINED_PREFIX + name: each for name, each in untrained_of(self._site.model).items()}
            counts = [self.global_step, self.tokens, self.skipped_steps]
            return {
                "parameters": parameters_d,
                **buffers,
                **untrained,
                "counters": torch.tensor(counts, dtype=torch.int64, device="cpu"),
            }

        return self._together(state)

    def state_view(self) -> dict[str, torch.Tensor]:
        """Return `state_dict`."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up a `state_dict`, a site's or a `Trainer`'s. ValueError, with nothing changed, where it is of another
        model or optimizer."""
        optimizers = self._site.optimizers
        self._check_state(state)

        def load() -> None:
            self._site.sharded.load_(state["parameters"])
            self._site.orders.tell(SiteOrder.RESUME)
            self._site.take_optimizer_state({name: state[name] for name in optimizers.names})
            untrained = {
                name.removeprefix(UNTRAINED_PREFIX): state[name] for name in state if name.startswith(UNTRAINED_PREFIX)
            }
            if untrained:
                take_up_untrained(self._site.model, untrained)
                self._site.sharded.level()

        self._together(load)
        self.global_step, self.tokens, self.skipped_steps = (int(count) for count in state["counters"])

    def end(self) -> None:
        """Tell the other ranks that nothing more is to come. Where an order has failed they may be in the midst of it,
        and end by themselves. Nothing may be asked after that."""

        def end() -> None:
            self._site.orders.tell(SiteOrder.END)
            self._site.part()

        if not self._failed:
            self._together(end)

    def _check_state(self, state: Mapping[str, torch.Tensor]) -> None:
        optimizers, name = self._site.optimizers, self.config.optimizer
        shapes = {each: () if optimizers.is_counter(each) else (self.numel,) for each in optimizers.names}
        shapes |= {"parameters": (self.numel,), "counters": (_COUNTERS,)}
        given = {each for each in state if not each.startswith(UNTRAINED_PREFIX)}
        if given != shapes.keys():
            unlike = ", ".join(sorted(given ^ shapes.keys()))
            raise ValueError(
                f"the trainer's state is not that of optimizer {name} without a drift correction: {unlike}"
            )
        for each, shape in shapes.items():
            if state[each].shape != shape:
                raise ValueError(
                    f"{each} has shape {tuple(state[each].shape)}, not {shape}: the model has {self.numel} parameters"
                )

    def _loss(self, x_d: torch.Tensor | None, measured: LossKind, round_: int = 0) -> float:
        with self._model(x_d):
            return self._told_loss(measured, round_)

    def _told_loss(self, measured: LossKind, round_: int = 0) -> float:
        self._site.orders.tell(SiteOrder.MEASURE, measured, round_)
        return self._site.loss(measured, round_)

    @contextmanager
    def _model(self, x_d: torch.Tensor | None) -> Iterator[None]:
        """Have the ranks hold the model `x_d` (d,) within the block; None: they hold the live one."""
        if x_d is None:
            yield
            return
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        self._site.orders.tell(SiteOrder.KEEP)
        self._site.keep()
        self._site.sharded.load_(x_d)
        yield
        self._site.orders.tell(SiteOrder.RESTORE)
        self._site.restore()

    def _together(self, function: Callable[[], T]) -> T:
        """Do what all ranks do together. RankLostError where one cannot be reached."""
        with self._live:
            try:
                return self.thread.do(function)
            except BaseException as error:
                self._failed = self._failed or type(error) is not ValueError  # those are raised before any order
                why = why_lost(error)
                if not why:
                    raise
                self.thread.lose(why)
                raise RankLostError(why) from error
