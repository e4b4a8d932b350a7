"""Starts the nodes, listens to them, lets them find each other, and sees to it that none is left behind.

Each node is `python -m p2ptrain node --json` in a session of its own, so that Ctrl-C reaches the supervisor alone,
which passes it on. Nodes write one event a line to stdout; their addresses go into the peers file that all of them
re-read. A node that dies is reported and the rest goes on. stdin is a pipe that nothing is written to: when the
supervisor is killed it closes, and the nodes stop by themselves.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from node.events.event_types import Died, Event, Finished, Started, WarningEvent
from node.events.liveness import HEARTBEAT_S, judge, look, words
from node.events.log import event_in
from node.events.progress import NodeProgress
from node.system import text
from node.system.errors import EXIT_INTERRUPTED, RunError, describe_code
from node.system.run_dir import CONFIG, STDERR, TARGETS, make_dir, write_atomic
from node.system.signals import asked_again, stopping
from node.top.prometheus_sd import entry, to_text
from node.up.plan import NodePlan, Plan

STOP_GRACE_S = 4.5
"""The least from SIGINT to SIGKILL: Ctrl-C ends everything within five seconds, where no checkpoint takes longer."""
CHECKPOINT_BYTES_PER_PARAMETER = 20
"""As training/checkpoint_room.py has measured it; importing that would import torch."""
SLOW_DISK_BYTES_PER_S = 50e6
"""What all nodes together write at least: a hard disk that does other things too. Chosen."""
GOODBYE_S = 1.0
"""For goodbyes and closing connections, beside the checkpoint."""
LAST_LINES_S = 1.0
"""To read what an ended node has left in its pipe: 64 KiB, which are there at once. A process that it had started may
hold the pipe open for as long as it lives."""
LEAVE_GRACE_S = 30.0
"""A node that said it is finished, and its linger time is over, is killed when it still has not left after this."""
MAX_LINE_BYTES = 1 << 20
"""An event is a few hundred bytes, a summary a few thousand."""
READ_BYTES = 1 << 16
TAIL_LINES = 12
"""Of a dead node's stderr: the end of a traceback."""
TAIL_BYTES = 1 << 14

Listener = Callable[[str, Event], None]
"""Called with a node's name and each of its events, and with the supervisor's own: `died` (code, why, tail)."""
Command = Callable[[Plan, NodePlan], Sequence[str]]


@dataclass(kw_only=True)
class NodeProcess:
    """A node that was started."""

    plan: NodePlan
    folder: Path
    progress: NodeProgress
    process: trio.Process | None = None
    patience: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Around its life; it gets a deadline once the node says that it is finished."""
    code: int | None = None
    """Its exit code, once it has one; below 0: killed by that signal."""

    @property
    def running(self) -> bool:
        """Return whether there is a process to be signalled."""
        return self.process is not None and self.process.returncode is None

    @property
    def checkpoint_bytes(self) -> int:
        """Return how large its checkpoint is; 0 while it has not said how large its model is."""
        return CHECKPOINT_BYTES_PER_PARAMETER * self.progress.parameters

    @property
    def step_s(self) -> float:
        """Return the seconds of one step, which a node ends before it stops; 0 before its first round."""
        told = self.progress
        return told.tokens / told.steps / told.tokens_per_s if told.steps and told.tokens_per_s else 0.0


@dataclass(kw_only=True)
class Outcome:
    """How the swarm ended."""

    nodes: list[NodeProcess] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def finished(self) -> list[NodeProcess]:
        """Return the nodes that trained to the last round."""
        return [node for node in self.nodes if node.code == 0]

    @property
    def failed(self) -> list[NodeProcess]:
        """Return the honest nodes that did not train to the last round. How a liar ends does not matter."""
        return [node for node in self.nodes if node.code != 0 and not node.plan.byzantine]


class Supervisor:
    """Runs a plan. `listener` is called with every event, in the order in which the lines arrive."""

    def __init__(self, plan: Plan, listener: Listener, *, command: Command | None = None) -> None:
        self.nodes = [
            NodeProcess(plan=node, folder=plan.run_dir / node.name, progress=NodeProgress(node.name))
            for node in plan.nodes
        ]
        self._plan = plan
        self._listener = listener
        self._command = command or node_command
        self._interrupted = False
        self._untold = False
        """Whether the newest addresses could not be written."""

    async def run(self, *, stop_grace_s: float = STOP_GRACE_S) -> Outcome:
        """Start all, and return when the last one has ended. A `stopping` signal ends them early: each ends its step,
        writes its checkpoint and says goodbye, and is killed when it has not done so in `stop_grace_s` seconds, or in
        as many as the checkpoints take."""
        began = trio.current_time()
        write_peers(self._plan.peers_file, [])
        self._write_settings()
        with trio.open_signal_receiver(*stopping()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_on_signal, signals, stop_grace_s, name="signals")
                nursery.start_soon(self._watch_heartbeats, name="heartbeats")
                async with trio.open_nursery() as nodes:
                    for node in self.nodes:
                        nodes.start_soon(self._run_node, node, stop_grace_s, name=node.plan.name)
                nursery.cancel_scope.cancel()
        return Outcome(nodes=self.nodes, interrupted=self._interrupted, seconds=trio.current_time() - began)

    async def _run_node(self, node: NodeProcess, grace_s: float) -> None:
        process = node.process = await self._start(node)
        if self._interrupted:  # while it was being started
            process.send_signal(signal.SIGINT)
        try:
            with node.patience:
                async with trio.open_nursery() as listening:
                    listening.start_soon(self._listen, node, process, name=f"{node.plan.name}'s lines")
                    await process.wait()
                    listening.cancel_scope.deadline = trio.current_time() + LAST_LINES_S
        finally:
            with trio.CancelScope(shield=True):
                if not node.patience.cancelled_caught:  # what goes wrong here is not worth its checkpoint
                    await _stop(process, max(grace_s, self._needed_to_stop_s()))
                await _end(process)
        self._ended(node, process.returncode)

    async def _start(self, node: NodeProcess) -> trio.Process:
        with (node.folder / STDERR).open("ab") as stderr:
            return await trio.lowlevel.open_process(
                list(self._command(self._plan, node.plan)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(self._plan.threads)},
            )

    def _write_settings(self) -> None:
        """What each node is started with, and goes on with after a crash: all of them, before the first one starts."""
        for node in self.nodes:
            make_dir(node.folder)
            write_atomic(node.folder / CONFIG, node.plan.config.to_toml().encode())

    async def _listen(self, node: NodeProcess, process: trio.Process) -> None:
        assert process.stdout is not None
        pending = b""
        while chunk := await process.stdout.receive_some(READ_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(node, line)
            if len(pending) > MAX_LINE_BYTES:
                pending = b""  # not an event, whatever it is

    def _take(self, node: NodeProcess, line: bytes) -> None:
        event = event_in(line)
        if event is None:
            return
        node.progress.observe(event)
        if isinstance(event, Started):
            self._introduce(node.plan.name)
        if isinstance(event, Finished):
            node.patience.deadline = trio.current_time() + node.plan.config.node.linger_s + LEAVE_GRACE_S
        self._listener(node.plan.name, event)

    def _introduce(self, name: str) -> None:
        """Write anew what the nodes (and Prometheus) read to find the nodes known so far. What a full disk does not
        take is tried again: nodes that train are worth more."""
        before = self._untold
        try:
            write_peers(self._plan.peers_file, [address for node in self.nodes for address in node.progress.addresses])
            self._write_targets()
        except RunError as error:
            self._untold = True
            if not before:
                message = f"the other nodes do not learn of this one yet: {error.message}"
                self._listener(name, WarningEvent(ts=time.time(), message=message))
        else:
            self._untold = False

    def _write_targets(self) -> None:
        """Nodes that have finished are not there to be scraped: Prometheus would call them down."""
        run = self._plan.run_dir.resolve().name
        entries = [
            entry(url, swarm=node.plan.config.network.swarm, run=run, node=node.plan.name)
            for node in self.nodes
            if node.code != 0 and (url := node.progress.metrics_url)
        ]
        write_atomic(self._plan.run_dir / TARGETS, to_text(entries).encode())

    async def _watch_heartbeats(self) -> None:
        """Tell of a node whose process lives and gives no heartbeat, and when it does again. Until cancelled."""
        while True:
            await trio.sleep(HEARTBEAT_S)
            if self._untold:
                self._introduce(self.nodes[0].plan.name)
            for node in self.nodes:
                if node.running and node.progress.started_at is not None:
                    self._look_at(node)

    def _look_at(self, node: NodeProcess) -> None:
        before, now = node.progress.state, time.time()
        # A process that is about to be waited for has released its lock: its last lines are still to be read.
        judge(node.progress, replace(look(node.folder), held=True), now)
        if node.progress.state == before:
            return
        message = words(node.progress, now) or "there is news again"
        self._listener(node.plan.name, WarningEvent(ts=now, message=message))

    def _ended(self, node: NodeProcess, code: int | None) -> None:
        node.code = code
        # A node that has not said anything yet has nothing to lose: Python itself may end with 1 while it starts.
        silent = node.progress.started_at is None
        asked = self._interrupted and (silent or code in {EXIT_INTERRUPTED, -signal.SIGINT})
        if code == 0:
            with suppress(RunError):  # a full disk: not worth the other nodes
                self._write_targets()
        if code == 0 or asked:
            return
        if not node.progress.over:
            node.progress.state, node.progress.ended_at = "dead", time.time()
        why = node.progress.error or describe_code(code)
        self._listener(node.plan.name, Died(ts=time.time(), code=code, why=why, tail=_tail(node.folder)))

    async def _stop_on_signal(self, signals: AsyncIterator[int], grace_s: float) -> None:
        await anext(signals)
        self._interrupted = True
        self._signal_all(signal.SIGINT)
        needed_s = self._needed_to_stop_s()
        if needed_s > grace_s:
            self._tell_of_patience(needed_s)
        with trio.move_on_after(max(grace_s, needed_s)):
            await asked_again(signals)  # no more patience
        self._signal_all(signal.SIGKILL)

    def _needed_to_stop_s(self) -> float:
        """How long the nodes may take, which write to one disk at the same time."""
        running = [node for node in self.nodes if node.running]
        written = sum(node.checkpoint_bytes for node in running)
        return GOODBYE_S + max((node.step_s for node in running), default=0.0) + written / SLOW_DISK_BYTES_PER_S

    def _tell_of_patience(self, seconds: float) -> None:
        for node in self.nodes:
            if node.running:
                size = text.size(node.checkpoint_bytes)
                message = f"it has up to {seconds:.0f} s for its checkpoint of {size}; Ctrl-C again ends it without one"
                self._listener(node.plan.name, WarningEvent(ts=time.time(), message=message))

    def _signal_all(self, number: signal.Signals) -> None:
        for node in self.nodes:
            if node.running:
                assert node.process is not None
                node.process.send_signal(number)


def node_command(plan: Plan, node: NodePlan) -> list[str]:
    """Return the command line of a node: `p2ptrain node` with a configuration file of its own."""
    folder = plan.run_dir / node.name
    words = ["-m", "p2ptrain", "node", "--json", "--with-parent"]
    return [sys.executable, *words, "--run-dir", str(plan.run_dir), "--config", str(folder / CONFIG)]


def write_peers(path: Path, addresses: Sequence[str]) -> None:
    """Write the peers file, whole or not at all: nodes read it while it changes."""
    write_atomic(path, "".join(f"{address}\n" for address in addresses).encode())


async def _stop(process: trio.Process, grace_s: float) -> None:
    """Stop a process as Ctrl-C would, where it is still there, and wait for it for `grace_s` seconds."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with trio.move_on_after(grace_s):
            await process.wait()


async def _end(process: trio.Process) -> None:
    """Release a process; kill it first if it is still there. No node outlives its supervisor."""
    if process.returncode is None:
        process.kill()
        await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()


def _tail(folder: Path) -> list[str]:
    """Nothing where it cannot be read: somebody has removed the folder, and the node with it."""
    path = folder / STDERR
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
