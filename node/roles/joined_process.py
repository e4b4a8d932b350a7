"""A node in a process of its own, for a training loop that is not ours (`node.lane = "process"`).

`ProcessNode` is the loop's side, with the same methods as `JoinedNode`. The other side is a child process
(`joined_program.py`), which runs a `JoinedNode` whose learner is a `RemoteLearner`:

    the user's process                            the node's process
    optimizer.step()
      post-step hook -> call "step"               JoinedNode.step -> executor.advance()
        parameters changed in place  <- "correct" the correction of a closed round
        round over                   <- "vector"  copied into shared memory

However long the user's loop keeps its interpreter, the node's event loop runs on. If the child dies, another one takes
its place, from the newest checkpoint and the model as it is. If the loop's process dies, the child leaves the swarm.
"""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import torch

from node.config.schema import Config
from node.roles.joined import JoinSettings, NodeNow
from node.system import run_dir as folders
from node.system.child_process import ChildProcess, require_support
from node.system.errors import P2PTrainError, RunError
from node.system.tensor_channel import ChannelClosedError
from node.training.checkpoint import Checkpoint
from node.training.remote_learner import Counters, LearnerFacts, LearnerHost
from p2ptrain.training.user_model import UserModel

_PORT: Final = re.compile(r"/(tcp|udp)/(\d+)")


@dataclass(frozen=True, kw_only=True)
class NodeStart:
    """What the child begins with."""

    settings: JoinSettings
    go_on: "Checkpoint | Literal['newest', 'genesis']"
    threads: int
    """Of torch, as in the loop's process."""
    doubt: str | None
    """What is to be told at its start."""


@dataclass(frozen=True, kw_only=True)
class NodeStarted:
    """Where the node is reached."""

    addresses: list[str]
    page: str | None


@dataclass(frozen=True, kw_only=True)
class StepCounted:
    """What the node made of a step."""

    round: int
    over: bool
    """Whether the run has ended: more steps are the loop's own."""


@dataclass
class ProcessNode:
    """The node of one user's loop, in a child process. `start`, `step` and `stop` belong to the thread that trains."""

    learner_of: Callable[[Config, str], UserModel]
    settings: JoinSettings
    go_on: "Checkpoint | Literal['newest', 'genesis']" = "newest"
    addresses: list[str] = field(default_factory=list)
    page: str | None = None
    has_trained: bool = False
    """Whether a step was counted in this process."""
    _host: LearnerHost | None = None
    _child: ChildProcess | None = None
    _over: bool = False
    _round: int = 0
    """The newest that the child has told."""
    _replaced_in: int = -1
    """The round in which a child died last."""
    _pid: int = 0
    """Of the process that has started it."""

    def start(self) -> None:
        """Start the node, and return once training may begin. Raises P2PTrainError."""
        require_support()
        self._pid = os.getpid()
        self._begin(self.go_on, None)

    def step(self, taken: int = 1) -> None:
        """Count a step that was taken, one at a time, as `untold` has it. Raises P2PTrainError where the node has
        failed; after the run's last round, only count. Where the child has died, start another one."""
        if not self._is_here or self._host is None:
            return
        assert taken == 1, "each step is told"
        counters = self._host.step_taken()
        if self._over:  # the loop goes on alone
            return
        try:
            self._note(self._call("step", counters))
        except ChannelClosedError:
            self._replace()
        except P2PTrainError:
            self._over = True
            raise
        except BaseException:  # Ctrl-C, while a correction was added or the parameters were copied
            self._over = True
            self.stop(cut_short=True)
            raise
        self.has_trained = True

    def untold(self) -> int:
        """Return 0: the child counts each step as it is taken."""
        return 0

    @property
    def _is_here(self) -> bool:
        """Whether it was started, and in this process: a forked child has a copy without the reading threads."""
        return self._child is not None and self._pid == os.getpid()

    def stop(self, *, cut_short: bool) -> None:
        """End the node: the steps since the last round are one more, unless `cut_short`; the model is saved, and the
        neighbours are told. Raises P2PTrainError where it had failed."""
        if not self._is_here or self._host is None:
            return
        try:
            self._call("abandon" if cut_short else "stop", self._host.taken())
        except ChannelClosedError:
            if not cut_short:
                hint = "the steps since its newest checkpoint are not saved; give the run_dir to go on"
                raise self._died(hint) from None
        except P2PTrainError:
            raise
        except BaseException:  # Ctrl-C, while the last round was waited for. With another one, not even saved
            if not cut_short:
                self.stop(cut_short=True)
            raise

    def close(self) -> None:
        """Let the child end, and wait for it."""
        if self._is_here and self._child is not None:
            self._child.end()
        self._child = None

    def now(self) -> NodeNow:
        """Return what the node is at. Raises RunError where it does not run."""
        found = self._asked("now")
        assert isinstance(found, NodeNow)
        return found

    def snapshot(self) -> Checkpoint:
        """Return the state with which another process can go on (JoinedNode.snapshot)."""
        assert self._host is not None
        found = self._asked("snapshot", self._host.taken())
        assert isinstance(found, Checkpoint)
        return found

    def _begin(self, go_on: "Checkpoint | Literal['newest', 'genesis']", doubt: str | None) -> None:
        self._child = ChildProcess("node.roles.joined_program", answers=self._answer)
        beside = partial(self._child.beside.serve, self._answer)
        threading.Thread(target=beside, name="p2ptrain-beside", daemon=True).start()
        start = NodeStart(settings=self.settings, go_on=go_on, threads=torch.get_num_threads(), doubt=doubt)
        try:
            started = self._call("start", start)
        except ChannelClosedError:
            died = self._died(f"see {self.settings.node_dir / folders.LOG}")
            self.close()
            raise died from None
        except BaseException:  # refused; or Ctrl-C, while neighbours were awaited
            self.close()
            raise
        assert isinstance(started, NodeStarted)
        self.addresses, self.page = started.addresses, started.page

    def _replace(self) -> None:
        """Start another child in place of the one that has died. RunError where that is the second one in a round."""
        died = self._died(f"it was the second one in round {self._round}; see {self.settings.node_dir / folders.LOG}")
        self.close()
        if self._replaced_in == self._round:
            self._over = True
            raise died
        self._replaced_in = self._round
        assert self._host is not None
        self._host = self._host.again()
        self.settings = replace(self.settings, config=_on_the_ports_of(self.addresses, self.settings.config))
        doubt = f"{died.message}: another one goes on, from the newest checkpoint and the model as it is"
        self._begin("newest", doubt)

    def _died(self, hint: str) -> RunError:
        assert self._child is not None
        return RunError(f"the node's process {self._child.how_it_ended()}", hint)

    def _note(self, stepped: Any) -> None:
        assert isinstance(stepped, StepCounted)
        self._round, self._over = stepped.round, stepped.over

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._child is None:
            raise RunError("the swarm was left", "ask inside the with block")
        return self._child.steps.call(name, *arguments)

    def _asked(self, name: str, *arguments: Any) -> Any:
        try:
            return self._call(name, *arguments)
        except ChannelClosedError:
            raise self._died("another one is started with the next step") from None

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call of the child: for its learner, or within one of its methods."""
        if name == "learner":
            return self._learner(*arguments)
        assert self._host is not None, "the learner is asked for first"
        return self._host.answer(name, arguments)

    def _learner(self, config: Config, peer_id: str) -> tuple[LearnerFacts, Counters]:
        if self._host is None:
            model = self.learner_of(config, peer_id)
            self._host = LearnerHost(model)
        return self._host.facts(), self._host.taken()


def _on_the_ports_of(addresses: list[str], config: Config) -> Config:
    """Return the settings with the ports that the system has chosen before: there the neighbours look for this node."""
    ports = {kind: port for address in addresses for kind, port in _PORT.findall(address)}
    listen = tuple(_PORT.sub(lambda at: f"/{at[1]}/{ports.get(at[1], at[2])}", it) for it in config.network.listen)
    return config.model_copy(update={"network": replace(config.network, listen=listen)})
