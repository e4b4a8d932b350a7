"""A node for a training loop that is not ours: `p2ptrain.join` (p2ptrain/integrations/swarm.py).

The node runs in a thread of its own: the same trio loop, network, rounds and checkpoints as `p2ptrain node`. The steps
are the user's, in the user's thread. After each of them, and nowhere else, that thread runs the node's inner loop on,
which counts the step, adds what corrections there are, and at a round's end copies the parameters:

    the user's thread                          the node's thread (trio)
    optimizer.step()
      post-step hook -> executor.advance()     synchronize(): publish, wait for a quorum, aggregate
        correction added, between two steps <- inner.correct()
        round over: copy of the parameters  -> the next round to close

No lock is needed around the user's own code, and nothing of the user's is touched from another thread.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import trio

from gossip.core.atomic_file import write_pieces_atomic
from node.config.schema import Config
from node.events.event_types import Event, Failed, RoundTrained, WarningEvent
from node.events.lines import LastingConsole, LineSink, left_out
from node.events.log import EventLog, opened
from node.privacy.budget import PrivacyBudget
from node.roles.assembly import UserLearner
from node.roles.privacy_check import private_training
from node.roles.trainer import main
from node.system import run_dir as folders
from node.system.aside import Aside
from node.system.errors import P2PTrainError, RunError, UsageError, told_to_a_program, translate
from node.system.forks import ForkGuard
from node.training.checkpoint import Checkpoint
from node.training.executors.caller import CallerExecutor
from node.training.joining import LOOK_AGAIN_S
from node.training.node import Node
from node.training.round_report import checkpoint_of
from p2ptrain.protocols import implements
from p2ptrain.saved.models import VECTOR
from p2ptrain.training.base import HoldsSlices, Learner
from p2ptrain.training.flat import all_finite, vector_pieces
from p2ptrain.training.private_training import PrivateTraining

LAST_ROUND_S: Final = 30.0
"""Seconds that a private loop's last round gets to be closed, once the loop has ended. Chosen."""

UNTOLD_SHARE: Final = 0.2
"""Of a round's steps: so many may be taken, the one that tells of them included, before a node is told. A correction
waits as long at most, beside what the exchange takes. Chosen."""

UNTOLD_S: Final = 0.5
"""The same in seconds: a pause begins within a second. Chosen."""

GENESIS: Final = "genesis.f32"
"""The model with which the run began, in the node's folder: fp32 little-endian. Newcomers are tracked from it, and it
cannot be drawn again from a seed as a task's can."""

GENESIS_KEY: Final = "genesis"
"""In the meta of a state that a loop keeps itself: the first digits of that model's digest, in hex."""

INSIDE_TRIO: Final = "the training loop runs inside trio.run, and its steps would block that event loop"
IN_A_THREAD: Final = (
    "call the function with the loop in a thread of its own, await trio.to_thread.run_sync(train), "
    'or give settings={"node.lane": "process"}'
)

LOADED_STATE: Final = (
    "[privacy]: a state that the loop keeps itself is not loaded: nothing says that its model has released moves alone"
)
GO_ON_BY_FOLDER: Final = "give the run_dir alone: the node goes on from its own checkpoint"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """How a user's loop takes part."""

    config: Config
    node_dir: Path
    settle: Callable[[], None] | None = None
    """Makes the folder a member's, once it is locked; nothing in an open swarm."""
    secrets: tuple[bytes | None, ...] = ()
    """What no log may show."""
    passphrase: bytes | None = None
    quiet: bool = False
    """Whether nothing is printed on stderr."""


@dataclass(frozen=True, kw_only=True)
class NodeNow:
    """What a node is at."""

    round: int
    peers: list[str]
    """Peer ids of its neighbours; none once the run is over."""
    peer_id: str


class LoopLearner(Learner, Protocol):
    """A learner whose steps somebody else's loop takes."""

    ended: bool
    """Whether that loop takes no more steps."""

    global_step: int
    """The next step's number."""

    def doubts(self) -> list[str]:
        """Return what the user should know of it, a line each, and each once. For the thread that trains."""

    def counters(self) -> torch.Tensor:
        """Return the counters of its state, int64 (3,)."""


@runtime_checkable
class PrivateLoopLearner(LoopLearner, Protocol):
    """One that can protect what the loop trains on."""

    budget_spent: bool
    """Whether no round is released any more."""

    def protect(self, privacy: PrivateTraining, public_d: torch.Tensor) -> None:
        """Release own moves only as `privacy` says. The model begins at `public_d` (d,). Raises TaskError."""


@dataclass
class JoinedNode:
    """The node of one user's loop. `start`, `step` and `stop` belong to the thread that trains."""

    learner_of: Callable[[Config, str], LoopLearner]
    """Builds the learner, for the node with this peer id."""
    settings: JoinSettings
    go_on: "Checkpoint | Literal['newest', 'genesis']" = "newest"
    """Where to go on from: this checkpoint, the folder's newest where there is one, or from the beginning."""
    executor: CallerExecutor = field(default_factory=CallerExecutor)
    node: Node | None = None
    """Once it is built."""
    model: LoopLearner | None = None
    addresses: list[str] = field(default_factory=list)
    """Where other nodes reach this one."""
    page: str | None = None
    """The address of the node's page."""
    _locks: ExitStack = field(default_factory=ExitStack)
    _thread: threading.Thread | None = None
    _token: trio.lowlevel.TrioToken | None = None
    _stop: trio.Event | None = None
    _error: P2PTrainError | None = None
    _ending: bool = False
    _pid: int = 0
    """Of the process that has started it."""
    _private: PrivateLoopLearner | None = None
    """The model, where what it trains on is protected."""

    def __post_init__(self) -> None:
        self.executor.goes_on = lambda: self.budget_spent

    def start(self) -> None:
        """Start the node, and return once training may begin: where neighbours are awaited, when they are there.
        Raises P2PTrainError; UsageError, with nothing begun, where this thread runs a trio loop."""
        if trio.lowlevel.in_trio_run():  # every call of the node's loop would wait in this one, which trio refuses
            raise UsageError(INSIDE_TRIO, IN_A_THREAD)
        with ExitStack() as stack:
            stack.callback(ForkGuard(self.settings.node_dir).end)
            secrets = self.settings.passphrase, *self.settings.secrets
            log = stack.enter_context(opened(self.settings.node_dir, self.settings.settle, secrets))
            self._locks = stack.pop_all()
        if not self.settings.quiet:
            spoken = _Spoken(LineSink(LastingConsole(file=sys.stderr, force_jupyter=False)))
            log.add_sink(self._locks.enter_context(Aside(spoken, left_out)))
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, args=(log,), name="p2ptrain", daemon=True)
        self._thread.start()
        try:
            going = self.executor.begin()
        except BaseException:  # Ctrl-C, while neighbours were awaited
            self.stop(cut_short=True)
            raise
        if not going:
            self._join()
            self._check()
            raise RunError("the run is over: all its rounds are done", "give another run_dir, or more rounds")

    @property
    def budget_spent(self) -> bool:
        """Whether no round is released any more: the loop's steps are its own then, and the node serves on."""
        return self._private is not None and self._private.budget_spent

    def serve(self) -> None:
        """Serve until the run is over, once the budget of privacy is spent. Raises UsageError before, and P2PTrainError
        where the node has failed."""
        if self._ending or not self.is_here:
            return
        if not self.budget_spent:
            raise UsageError("the budget of privacy is not spent: the node wants the loop's steps", "train on")
        self._serve_until(lambda: False)

    def finish_paid_round(self) -> None:
        """Do for the round whose move was released last what it asks of the thread that trains, once the budget of
        privacy is spent: until it is closed, or for as long as a round may take. Raises P2PTrainError where the node
        has failed."""
        if self._ending or not self.is_here:
            return
        over = threading.Event()
        with suppress(trio.RunFinishedError):  # just now
            self._tell(partial(self._begin_telling_settled, over))
        self._serve_until(over.is_set)

    @property
    def has_trained(self) -> bool:
        """Whether a step was counted in this process."""
        return self.node is not None and (self.node.inner.phase_steps > 0 or self.node.state.closed_round is not None)

    @property
    def is_here(self) -> bool:
        """Whether it was started, and in this process: a forked child has a copy, but neither thread nor sockets."""
        return self._thread is not None and self._pid == os.getpid()

    @property
    def goes_on(self) -> bool:
        """Whether the node runs: not after the run's last round."""
        return self._thread is not None and self._thread.is_alive()

    def step(self, taken: int = 1) -> None:
        """Count the steps that were taken since the last call. Raises P2PTrainError where the node has failed; after
        the run's last round, only count."""
        if not self.is_here:
            return
        if self._ending:  # the loop goes on alone
            if self.model is not None:
                self.model.global_step += 1
            return
        if self.node is not None:
            self.node.inner.told_together = taken
        try:
            if self.executor.advance():
                self._look_again()
                return
        except BaseException:  # Ctrl-C, while a correction was added or the parameters were copied
            self.stop(cut_short=True)
            raise
        self._ending = True
        self._join()
        self._check()

    def untold(self) -> int:
        """Return how many steps may now be taken before `step` is called for all of them."""
        if self.node is None or self._ending or self._private is not None:
            return 0
        state = self.node.state
        share = UNTOLD_SHARE * min(1.0, state.overlap_steps / self.node.pace.steps)  # no correction waits longer
        return self.node.inner.untold(share, UNTOLD_S)

    def wait_closed(self) -> None:
        """Wait until the newest round is closed, and apply its correction: for a loop that cannot go on without it."""
        node, token = self._running()
        trio.from_thread.run(node.state.until_closed, trio_token=token)
        node.inner.settle()

    def stop(self, *, cut_short: bool) -> None:
        """End the node: the steps since the last round are one more, unless `cut_short`; the model is saved, and the
        neighbours are told. Raises P2PTrainError where it had failed."""
        if not self.is_here:
            return
        if not self._ending:
            self._ending = True
            try:
                self._ask_to_end(cut_short)
                self.executor.serve()
                self._join()
            except BaseException:  # Ctrl-C, while the last round was waited for. With another one, not even saved
                self._end_at_once()
                raise
        self._join()
        if not cut_short:
            self._check()

    @property
    def rounds_done(self) -> int:
        """How many rounds are closed."""
        return 0 if self.node is None else self.node.state.round

    @property
    def is_over(self) -> bool:
        """Whether the node has ended, or is about to."""
        return self._ending

    def abandon(self) -> None:
        """Have the node end at once, as `stop` does when it is cut short. Any thread may call it; `stop` waits."""
        if self._thread is not None:
            self._tell(self._set_stop)

    def close(self) -> None:
        """Do nothing: all ends with `stop`."""

    def now(self) -> NodeNow:
        """Return what the node is at, or was when it ended. Raises RunError where there is none."""
        return self.ask(
            lambda node: NodeNow(
                round=node.state.round,
                peers=sorted(map(str, node.service.neighbours())) if self.goes_on else [],
                peer_id=node.peer_id,
            )
        )

    def ask(self, function: Callable[[Node], T]) -> T:
        """Return what `function` makes of the node, on its own loop; once that has ended, of the node as it was then.
        Raises RunError where there is none."""
        if self.goes_on:
            node, token = self._running()
            with suppress(trio.RunFinishedError):  # just now
                return trio.from_thread.run_sync(function, node, trio_token=token)
        if self.node is None:
            raise RunError("the swarm was left", "ask inside the with block")
        return function(self.node)

    def snapshot(self) -> Checkpoint:
        """Return the state with which another process can go on: all but the parameters and the optimizer, which are
        the caller's. Call it between two steps, or once the node has ended."""
        assert self.model is not None
        assert self.node is not None
        if self.goes_on:
            node, token = self._running()
            try:
                return trio.from_thread.run(_snapshot, node, self.model.counters(), trio_token=token)
            except (trio.RunFinishedError, trio.Cancelled):  # the run has ended just now
                self._join()
        return _state_of(self.node, self.model.counters())

    def learner(self, config: Config, peer_id: str, privacy: PrivacyBudget | None) -> UserLearner:
        """Return the user's model (UserLoop)."""
        self.model = self.learner_of(config, peer_id)
        if privacy is None:
            return UserLearner(learner=self.model, genesis_d=self._genesis(self.model), start=self.go_on)
        if not implements(self.model, PrivateLoopLearner):
            raise UsageError("[privacy] is not for this loop: it averages more than its model's moves", "leave it out")
        protection = private_training(config, privacy.spend)
        assert protection is not None, "it has a budget"
        genesis_d = self._public_genesis(self.model, privacy)
        self.model.protect(protection, genesis_d)
        self._private = self.model
        return UserLearner(learner=self.model, genesis_d=genesis_d, start=self.go_on)

    def built(self, node: Node) -> None:
        """Note the node (UserLoop)."""
        self.node = node
        assert self.model is not None, "it is what was built"
        _tell(node, self.model.doubts())

    def listens(self, addresses: list[str], page: str | None) -> None:
        """Note where the node is reached (UserLoop)."""
        self.addresses, self.page = addresses, page

    async def until_stopped(self, *, task_status: trio.TaskStatus[trio.Event]) -> None:
        """Pass on the event that stops the node (UserLoop)."""
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        task_status.started(self._stop)
        await trio.sleep_forever()

    def _look_again(self) -> None:
        """Tell what has become doubtful of the model, such as layers that were thawed, with the first step of each
        round."""
        assert self.node is not None
        assert self.model is not None
        if self.node.inner.phase_steps or self._token is None:
            return
        if found := self.model.doubts():
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(_tell, self.node, found)

    def _running(self) -> tuple[Node, trio.lowlevel.TrioToken]:
        if self.node is None or self._token is None or self._thread is None or not self._thread.is_alive():
            raise RunError("the swarm was left", "ask inside the with block")
        return self.node, self._token

    def _run(self, log: EventLog) -> None:
        """Thread: the node, from its start to its end."""
        settings = self.settings
        try:
            main(
                settings.config,
                node_dir=settings.node_dir,
                emit=log,
                fits=partial(folders.keep_settings, settings.node_dir, settings.config.to_toml()),
                passphrase=settings.passphrase,
                tried=True,
                user_loop=self,
            )
        except BaseException as error:
            trace = settings.node_dir / folders.LOG
            self._error = told_to_a_program(translate(error), trace)
            _note(trace, log, error)
            log(Failed(error=self._error.message, hint=self._error.hint))
        finally:
            self.executor.close()
            self._locks.close()

    def _genesis(self, model: LoopLearner) -> torch.Tensor:
        """The model with which the run began: the folder's, or the user's as it is now, which is then kept."""
        file = self.settings.node_dir / GENESIS
        if file.is_file() and not self._begins_anew():
            return self._kept_genesis(file, model)
        if isinstance(self.go_on, Checkpoint):
            raise RunError(
                f"there is no {GENESIS} in {self.settings.node_dir}, with which the run began",
                "go on with the run_dir that the checkpoint was made with",
            )
        genesis_d = model.vector()
        write_pieces_atomic(file, vector_pieces(genesis_d))
        return genesis_d

    def _kept_genesis(self, file: Path, model: LoopLearner) -> torch.Tensor:
        kept_d = _genesis_in(file, mapped=model.slices is not None if isinstance(model, HoldsSlices) else False)
        if kept_d.shape != (model.numel,):
            raise RunError(
                f"the run in {self.settings.node_dir} is of a model of {kept_d.numel()} parameters, "
                f"and this one has {model.numel}",
                "give another run_dir",
            )
        return kept_d

    def _public_genesis(self, model: LoopLearner, privacy: PrivacyBudget) -> torch.Tensor:
        """The same of a loop whose data are protected: only before the first release may it be the user's model. Later
        that has seen the data, whatever was said of it."""
        if isinstance(self.go_on, Checkpoint):
            raise UsageError(LOADED_STATE, GO_ON_BY_FOLDER)
        file = self.settings.node_dir / GENESIS
        if privacy.is_new:
            genesis_d = self._genesis(model)
        elif file.is_file():
            genesis_d = self._kept_genesis(file, model)
        else:
            raise RunError(
                f"{self.settings.node_dir} has a privacy ledger, and no {GENESIS}, with which its run began",
                "put that back, or give another run_dir",
            )
        if self.go_on == "genesis" and not torch.equal(genesis_d, model.vector()):
            raise UsageError(f"the run in {self.settings.node_dir} began with another model", GO_ON_BY_FOLDER)
        return genesis_d

    def _begins_anew(self) -> bool:
        """Whether nothing was trained from the model that the folder's run began with. It may be one that the others
        have refused, and the user's is another now."""
        return self.go_on == "newest" and not any((self.settings.node_dir / folders.CHECKPOINTS).glob("*"))

    def _ask_to_end(self, cut_short: bool) -> None:
        """Have the node end: at once, or after one more round of the steps since the last."""
        try:
            if cut_short:
                self._tell(self._set_stop)
            elif self.budget_spent:  # this thread may be asked for a part of that round's work: it does not wait here
                self._tell(self._begin_end_with_paid_round)
            else:
                trio.from_thread.run(self._wind_down, trio_token=self._running()[1])
        except (RunError, trio.RunFinishedError, trio.Cancelled):  # it has ended meanwhile
            pass
        if self.model is not None:
            self.model.ended = True

    def _end_at_once(self) -> None:
        """Have the node save the model and end, after an interruption on the way to its end."""
        self._tell(self._set_stop)
        if self.model is not None:
            self.model.ended = True
        self.executor.forsake()
        self.executor.serve()
        self._join()

    def _tell(self, function: Callable[[], None]) -> None:
        """Call `function` on the node's loop, as soon as there is one."""
        assert self._thread is not None
        while self._thread.is_alive():
            if self._token is not None:
                self._token.run_sync_soon(function)
                return
            self._thread.join(LOOK_AGAIN_S)

    def _set_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def _wind_down(self) -> None:
        """Wait for the round that is being closed, whose correction belongs into the last one; then let the run end
        with the steps since."""
        assert self.node is not None
        state = self.node.state
        await state.until_closed()
        if self.node.inner.phase_steps:
            state.end_after(state.round + 1)

    def _begin_end_with_paid_round(self) -> None:
        trio.lowlevel.spawn_system_task(self._end_with_paid_round)

    async def _end_with_paid_round(self) -> None:
        """Wait for the round whose move was released last, for as long as a round may take, and end."""
        assert self.node is not None
        with trio.move_on_after(LAST_ROUND_S):
            await self.node.state.settled.wait()
        self._set_stop()

    def _begin_telling_settled(self, over: threading.Event) -> None:
        trio.lowlevel.spawn_system_task(self._tell_settled, over)

    def _serve_until(self, over: Callable[[], bool]) -> None:
        """Do what the node asks of this thread until `over`, or until the node has ended."""
        try:
            if self.executor.serve_until(over):
                return
        except BaseException:  # Ctrl-C
            self.stop(cut_short=True)
            raise
        self._ending = True
        self._join()
        self._check()

    async def _tell_settled(self, over: threading.Event) -> None:
        assert self.node is not None
        with trio.move_on_after(LAST_ROUND_S):
            await self.node.state.settled.wait()
        over.set()
        self.executor.wake()

    def _check(self) -> None:
        """Raise what the node has failed with: one line, with what to do, in place of the node's own traceback."""
        if self._error is not None:
            kind = UsageError if isinstance(self._error, UsageError) else RunError
            raise kind(self._error.line()) from None

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def _tell(node: Node, doubts: list[str]) -> None:
    for doubt in doubts:
        node.journal.emit(WarningEvent(message=doubt))


def _genesis_in(file: Path, *, mapped: bool) -> torch.Tensor:
    """Read a kept model, or have it `mapped`: in memory as far as it is read. Raises RunError where it is damaged,
    OSError where it cannot be read."""
    kept_d, size = None, file.stat().st_size
    if size and size % 4 == 0:
        kept = np.memmap(file, dtype="<f4", mode="c") if mapped else np.frombuffer(file.read_bytes(), dtype="<f4")
        kept_d = torch.from_numpy(kept.astype(np.float32, copy=not mapped))
    if kept_d is None or not all_finite(kept_d):
        raise RunError(f"{file} is damaged", "put a copy of it back, or give another run_dir")
    return kept_d


async def _snapshot(node: Node, counters: torch.Tensor) -> Checkpoint:
    async with node.strategy_lock:
        return _with(node, counters, await node.executor.offload(lambda: _copied(node)))


def _state_of(node: Node, counters: torch.Tensor) -> Checkpoint:
    return _with(node, counters, _copied(node))


def _copied(node: Node) -> dict[str, torch.Tensor]:
    """The strategy's own state, whole also where it lies in slices."""
    return {name: value.clone() for name, value in node.strategy.state_dict().items()}


def _with(node: Node, counters: torch.Tensor, sync: dict[str, torch.Tensor]) -> Checkpoint:
    checkpoint = checkpoint_of(node, torch.empty(0), {"counters": counters}, sync, None, node.state.round)
    tensors = {name: value for name, value in checkpoint.tensors.items() if name != VECTOR}
    return Checkpoint(round=checkpoint.round, meta={**checkpoint.meta, GENESIS_KEY: node.genesis}, tensors=tensors)


def _note(path: Path, log: EventLog, error: BaseException) -> None:
    """Append the traceback to the node's log. Not by `logging`, which is the user's in this process."""
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(log.redact.text("".join(traceback.format_exception(error))))


class _Spoken:
    """Prints what a person wants to see beside a loop's own output: not every round."""

    def __init__(self, sink: LineSink) -> None:
        self._sink = sink

    def __call__(self, event: Event) -> None:
        """Print the event, if it is no round."""
        if not isinstance(event, RoundTrained):
            self._sink(event)
