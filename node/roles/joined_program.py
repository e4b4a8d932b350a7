"""The program of a node in a process of its own: `python -m node.roles.joined_program STEPS BESIDE`.

`ProcessNode` (joined_process.py) starts it and calls it. The arguments are descriptors of two sockets: STEPS for what
happens between two steps, BESIDE for evaluations. Signals are the caller's: when its process ends, in whatever way, the
sockets close, and the node leaves the swarm.
"""

import os
import signal
import sys
import threading
from typing import Any, Final

from node.system import free_memory, gc_tuning

gc_tuning.starting()  # before the imports that take seconds

import torch  # noqa: E402

from node.config.schema import Config  # noqa: E402
from node.roles.joined import JoinedNode  # noqa: E402
from node.roles.joined_process import NodeStart, NodeStarted, StepCounted  # noqa: E402
from node.system.calls import Calls  # noqa: E402
from node.system.interrupts import SOON_KILLED  # noqa: E402
from node.system.tensor_channel import channel_on  # noqa: E402
from node.training.remote_learner import Counters, RemoteLearner  # noqa: E402

LEAVE_S: Final = 30.0
"""Seconds for leaving the swarm when the process that trains is gone. Chosen: a goodbye takes a round trip, and there
is no model left to save."""


class _Program:
    """Answers the calls of `ProcessNode`."""

    def __init__(self, steps: int, beside: int) -> None:
        self._node: JoinedNode | None = None
        self._learner: RemoteLearner | None = None
        self._doubt: str | None = None
        self._beside = Calls(channel_on(beside))
        self._steps = Calls(channel_on(steps), at_once=self._at_once)

    def run(self) -> None:
        """Answer until the caller is gone or lets go, and leave the swarm."""
        self._steps.serve(self._answer)
        if self._node is not None:
            self._node.stop(cut_short=True)

    def _at_once(self, name: str | None) -> None:
        """Begin to end the node while the main thread may be waiting in it."""
        if name in (None, "abandon") and self._node is not None:
            threading.Thread(target=self._node.abandon, daemon=True).start()
        if name is None:
            late = threading.Timer(LEAVE_S, os._exit, (1,))
            late.daemon = True
            late.start()

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "start":
            return self._start(*arguments)
        assert self._node is not None, "start is called first"
        match name, arguments:
            case "step", (taken,):
                self._note(taken)
                self._node.step()
                return StepCounted(round=self._node.rounds_done, over=self._node.is_over)
            case "stop" | "abandon", (taken,):
                self._note(taken)
                return self._node.stop(cut_short=name == "abandon")
            case "now", ():
                return self._node.now()
            case "snapshot", (taken,):
                self._note(taken)
                return self._node.snapshot()
            case _:
                raise LookupError(name)

    def _start(self, start: NodeStart) -> NodeStarted:
        torch.set_num_threads(start.threads)
        self._doubt = start.doubt
        self._node = JoinedNode(self._learner_of, start.settings, start.go_on)
        self._node.start()
        gc_tuning.running()
        return NodeStarted(addresses=self._node.addresses, page=self._node.page)

    def _learner_of(self, config: Config, peer_id: str) -> RemoteLearner:
        facts, taken = self._steps.call("learner", config, peer_id)
        self._learner = RemoteLearner(facts, taken, self._steps, self._beside, told=self._doubt)
        return self._learner

    def _note(self, taken: Counters) -> None:
        if self._learner is not None:
            self._learner.note(taken)


def main(arguments: list[str]) -> int:
    """Run the node until the caller lets go of it, and return the exit code."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *SOON_KILLED):
        signal.signal(ignored, signal.SIG_IGN)
    sys.setswitchinterval(gc_tuning.SWITCH_INTERVAL_S)
    free_memory.keep_little()
    steps, beside = map(int, arguments)
    _Program(steps, beside).run()
    gc_tuning.ending()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
