"""Trainers at the other end of a channel, in a thread of this process: all of `node.lane = "process"` but the process.

A `ThreadChild` stands where `ChildProcess` does, and runs the trainer's program over real sockets and shared memory. It
dies when it is told to, as abruptly as a process can: its sockets close.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.config.schema import Config
from node.roles.trainer_program import TrainerProgram
from node.system.calls import Calls, Handler
from node.system.tensor_channel import channel_pair
from node.training import remote_trainer
from node.training.remote_trainer import RemoteTrainer


class ThreadChild:
    """Child that is a thread."""

    born: list["ThreadChild"]

    def __init__(self, module: str, *, answers_beside: Handler | None = None, dies_with_us: bool = False) -> None:
        (steps, its_steps), (beside, its_beside) = channel_pair(), channel_pair()
        self.steps, self.beside = Calls(steps), Calls(beside, handler=answers_beside)
        self.pid = len(self.born)
        program = TrainerProgram(its_steps.detach(), its_beside.detach(), begins=lambda start: None)
        threading.Thread(target=program.run, daemon=True).start()
        self.born.append(self)

    def kill(self) -> None:
        """Die."""
        self.steps.close()
        self.beside.close()

    def how_it_ended(self) -> str:
        """Return how, as a process does."""
        return "was killed by SIGKILL"

    def end(self, *, at_once: bool = False) -> None:
        """Let it end."""
        self.kill()


@contextmanager
def threads_as_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ThreadChild]]:
    """Let every RemoteTrainer of this block have a ThreadChild. The list has them, in the order of their birth."""
    ThreadChild.born = []
    monkeypatch.setattr(remote_trainer, "ChildProcess", ThreadChild)
    yield ThreadChild.born
    for child in ThreadChild.born:
        child.kill()


def apart(folder: Path, config: Config, peer_id: str) -> RemoteTrainer:
    """Build a trainer at the other end of a channel."""
    return RemoteTrainer(config, peer_id, folder)
