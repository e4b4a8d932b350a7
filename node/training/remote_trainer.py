"""The trainer of a node that is in another process (`node.lane = "process"`): `RemoteTrainer` starts it, and tells it
when to take a step.

If that process dies, `RemoteTrainer` starts another one, which builds the same model anew. Evaluations, which bring
their model with them, then go on by themselves. Steps do not: they raise TrainerLostError until `take_over` has given
the new trainer a state (trainer_restart.py).
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from node.config.schema import Config
from node.system.child_process import ChildProcess
from node.system.errors import RunError
from node.system.tensor_channel import ChannelClosedError
from node.training.remote_learner import Counters, LearnerFacts, RemoteLearner
from p2ptrain.inner.inner_state import BufferPart, InnerState
from p2ptrain.training.base import OptimizerPlace
from p2ptrain.training.train_config import TrainConfig

PROGRAM: Final = "node.roles.trainer_program"

LOG: Final = "trainer.log"
"""What libraries log in the trainer's process, in the node's folder."""


NO_ROOM: Final = "no room"
"""Answer to `take_memory` where the device has none."""

LOOK_WHY: Final = "where memory ran out (dmesg says so), lower train.batch_size"


class TrainerLostError(RunError):
    """The process that trains has ended, and its steps since the round began are lost."""

    def __init__(self, message: str, hint: str = LOOK_WHY) -> None:
        super().__init__(message, hint)


@dataclass(frozen=True, kw_only=True)
class TrainerStart:
    """What the trainer's process begins with."""

    config: Config
    peer_id: str
    log: Path
    threads: int
    """Of torch, as in the node's process."""


class RemoteTrainer(RemoteLearner):
    """Learner whose model and steps are in a child process. `close` ends that."""

    def __init__(self, config: Config, peer_id: str, node_dir: Path) -> None:
        """Start the process. Raises what building the task's model raises, and RunError where it dies meanwhile."""
        threads = torch.get_num_threads()
        self._start = TrainerStart(config=config, peer_id=peer_id, log=node_dir / LOG, threads=threads)
        self._change = threading.Lock()
        """Held while one process takes another's place."""
        self._closed = threading.Event()
        self._is_new = False
        """Whether the process has taken another's place, and was given no state yet."""
        self._how = ""
        """How the last process ended."""
        self._others: Iterator[torch.Tensor] = iter(())
        self._child, facts, taken = self._begun()
        super().__init__(facts, taken, self._child.steps, self._child.beside)
        self._config: TrainConfig | None = self.config
        """Of the trainer there, where that is known; `config` may be newer."""
        self._began_at = taken
        """The counters when the newest phase began."""

    @property
    def steps_elsewhere(self) -> bool:
        """Whether somebody else's loop takes the steps: no."""
        return False

    @property
    def pid(self) -> int:
        """Return the number of the process that trains."""
        return self._child.pid

    def check_task(self) -> list[str]:
        """Try a task of the user's own (roles/task_check.py), and return the doubts. Raises TaskFaultError."""
        return list(self._ask("check_task"))

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Take one step there, and return its mean loss (not finite where it was skipped)."""
        newer = None if self.config is self._config else self.config
        taken = self._ask("take_step", schedule_step, rate_factor, newer)
        assert isinstance(taken, Counters)
        self._config = newer or self._config
        self.note(taken)
        return taken.loss

    def begin_round(self) -> None:
        """Note that the model as it is now is a snapshot, from which the next correction is worked out."""
        self._ask("begin_round")
        self._began_at = self._counters()

    def inner_state(self) -> InnerState:
        """Return what the trainer there was built to tell, of the steps since the last call."""
        state = self._ask("inner_state")
        assert isinstance(state, InnerState)
        return state

    def take_optimizer_state(self, parts: Sequence[BufferPart]) -> None:
        """Set parts of the inner optimizer's buffers; what is not named stays. ValueError on another shape."""
        self._ask("take_optimizer_state", list(parts))

    def give_back_memory(self) -> None:
        """Have the trainer there do without its device's memory."""
        self._ask("give_back_memory")

    def take_memory(self) -> None:
        """Have it take the memory again. Raises torch.OutOfMemoryError, with nothing changed, without room."""
        if self._ask("take_memory") == NO_ROOM:
            raise torch.OutOfMemoryError("the device of the process that trains has no room for its model")

    def optimizer_place(self) -> OptimizerPlace:
        """Return what an optimizer like its own is built of."""
        place = self._facts.optimizer_place
        assert place is not None, "a trainer's facts have it"
        return place

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return how far the predictions of `own_d` are from the mean of the others', which are fetched one by one."""
        self._others = iter(others)
        found = self._ask_beside("divergence", own_d)
        assert found is None or isinstance(found, float)
        return found

    def restart(self) -> None:
        """After a TrainerLostError: start another process, unless that was done. Raises RunError."""
        if not self._is_new:
            self._replace(self._child)

    def take_over(self, theta_d: torch.Tensor, state: Mapping[str, torch.Tensor] | None) -> None:
        """Give a new process the model `theta_d` (d,), and the optimizer's buffers of `state`, where there is one; it
        goes on with the steps of the phase whose steps were lost. ValueError where they are of another model."""
        began = self._began_at
        self._is_new = False
        if state is not None:
            self.load_state_dict(state)
        self.load_vector(theta_d)
        self._ask("set_counters", began)
        self.note(replace(began, learning_rate=self.learning_rate))

    def close(self) -> None:
        """End the process. Any thread may call it."""
        self._closed.set()
        self._child.end(at_once=True)

    def _replace(self, dead: ChildProcess) -> None:
        """Start another process in place of `dead`, once."""
        with self._change:
            if self._closed.is_set() or dead is not self._child:
                return
            self._how, self._is_new = dead.how_it_ended(), True
            dead.end(at_once=True)
            self._child, _, _ = self._begun()
            self._config = None
            if self._closed.is_set():  # meanwhile
                self._child.end(at_once=True)

    def _begun(self) -> tuple[ChildProcess, LearnerFacts, Counters]:
        child = ChildProcess(PROGRAM, answers_beside=self._answer_beside, dies_with_us=True)
        try:
            facts, taken = child.steps.call("start", self._start)
        except ChannelClosedError:
            raise _lost(f"{child.how_it_ended()} before it began") from None
        except BaseException:
            child.end(at_once=True)
            raise
        return child, facts, taken

    def _answer_beside(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name != "next_model":
            raise LookupError(name)
        return next(self._others, None)

    def _counters(self) -> Counters:
        return Counters(
            global_step=self.global_step,
            tokens=self.tokens,
            skipped_steps=self.skipped_steps,
            learning_rate=self.learning_rate,
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        child = self._child
        if self._is_new:
            raise _lost(self._how)
        try:
            return child.steps.call(name, *arguments)
        except ChannelClosedError:
            raise _lost(child.how_it_ended()) from None

    def _ask_beside(self, name: str, *arguments: Any) -> Any:
        child = self._child
        try:
            return child.beside.call(name, *arguments)
        except ChannelClosedError:
            self._replace(child)
        child = self._child
        try:
            return child.beside.call(name, *arguments)
        except ChannelClosedError:
            raise _lost(child.how_it_ended()) from None


def _lost(how: str) -> TrainerLostError:
    return TrainerLostError(f"the process that trains {how}")
