"""The program of a node's trainer in a process of its own: `python -m node.roles.trainer_program STEPS BESIDE LIFE`.

`RemoteTrainer` (node/training/remote_trainer.py) starts it and calls it. The arguments are descriptors: sockets for
what is done in order, and for evaluations beside it; and a pipe whose end is the node's, and so this one's. Signals are
the node's. Nothing here is to be put in order: what is kept is the node's, too.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from node.system import free_memory, gc_tuning
from node.system.parent_death import die_with_parent

if __name__ == "__main__":  # before the imports, which take seconds
    die_with_parent(int(sys.argv[3]))
    gc_tuning.starting()

import torch

from node.config.schema import Config
from node.events import library_logs
from node.events.redaction import Redactor
from node.roles.assembly import own_trainer
from node.roles.task_check import check_task
from node.system.calls import Calls
from node.system.child_process import keep_from_children
from node.system.errors import RunError, translate
from node.system.interrupts import SOON_KILLED
from node.system.tensor_channel import ChannelClosedError, channel_on
from node.training.remote_learner import Counters, LearnerFacts, LearnerHost
from node.training.remote_trainer import NO_ROOM, TrainerStart
from p2ptrain import faults
from p2ptrain.tasks.base import TaskError
from p2ptrain.training import Trainer


class TrainerProgram:
    """Answers the calls of `RemoteTrainer`. `begins` is called with what it is to train, before the model is built."""

    def __init__(self, steps: int, beside: int, *, begins: Callable[[TrainerStart], None]) -> None:
        self._begins = begins
        self._host: _TrainerHost | None = None
        self._steps = Calls(channel_on(steps))
        self._beside = Calls(channel_on(beside))

    def run(self) -> None:
        """Answer until the node lets go."""
        threading.Thread(target=self._beside.serve, args=(self._answer,), name="beside", daemon=True).start()
        self._steps.serve(self._answer)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call. What is raised is what the node can tell as well as this process could."""
        try:
            if name == "start":
                return self._begin(*arguments)
            assert self._host is not None, "start is called first"
            if name == "divergence":
                (own_d,) = arguments
                return self._host.learner.divergence(own_d, _models(self._beside))
            return self._host.answer(name, arguments)
        except (ChannelClosedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            told = _told(error)
            if not isinstance(error, TaskError | ValueError):  # those are told in one line, and may be expected
                told.add_note("".join(traceback.format_exception(error)))
            raise told from None

    def _begin(self, start: TrainerStart) -> tuple[LearnerFacts, Counters]:
        self._begins(start)
        self._host = _TrainerHost(start.config, own_trainer(start.config, start.peer_id))
        return self._host.facts(), self._host.taken()


class _TrainerHost(LearnerHost):
    """Answers for a trainer, which takes its steps when it is told to."""

    learner: Trainer

    def __init__(self, config: Config, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._config = config

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call of `RemoteTrainer`. Raises what the trainer raises."""
        it = self.learner
        match name, arguments:
            case "take_step", (schedule_step, rate_factor, newer):
                it.config = newer or it.config
                return self.taken(it.step(schedule_step, rate_factor=rate_factor))
            case "begin_round", ():
                return it.begin_round()
            case "give_back_memory", ():
                return it.give_back_memory()
            case "take_memory", ():
                try:
                    return it.take_memory()
                except torch.OutOfMemoryError:
                    return NO_ROOM
            case "inner_state", ():
                return it.inner_state()
            case "take_optimizer_state", (parts,):
                return it.take_optimizer_state(parts)
            case "set_counters", (taken,):
                it.global_step, it.tokens, it.skipped_steps = taken.global_step, taken.tokens, taken.skipped_steps
                return None
            case "check_task", ():
                return check_task(self._config, it.task, it.shard, data_seed=it.data_seed)
            case _:
                return super().answer(name, arguments)


def _models(beside: Calls) -> Iterator[torch.Tensor]:
    """Fetch the neighbours' models from the node, one at a time."""
    while (model_d := beside.call("next_model")) is not None:
        yield model_d


def _told(error: BaseException) -> BaseException:
    """Return what the node is to raise: its errors' places are found here, where the traceback is."""
    if isinstance(error, SystemExit):
        place = faults.place_of(error)
        return RunError(f"{place or 'the task'} ended the program (exit code {error.code})", "raise an exception there")
    if isinstance(error, TaskError | ValueError) or faults.is_device_lost(error):
        return error
    return translate(error)


def _leave_signals_to_the_node() -> None:
    """Do nothing on signals that reach all processes of a service, for the node still needs the model. What is forked
    here ends by SIGTERM, as multiprocessing and DataLoaders count on."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *SOON_KILLED):
        signal.signal(ignored, _nothing)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _begin(start: TrainerStart) -> None:
    library_logs.configure(start.log, Redactor())
    torch.set_num_threads(start.threads)
    gc_tuning.running()


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def main(arguments: list[str]) -> int:
    """Train until the node lets go, and return the exit code."""
    _leave_signals_to_the_node()
    descriptors = steps, beside, _ = tuple(map(int, arguments))
    keep_from_children(descriptors)
    free_memory.keep_little()
    TrainerProgram(steps, beside, begins=_begin).run()
    gc_tuning.ending()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
