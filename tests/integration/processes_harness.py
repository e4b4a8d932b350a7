"""Real `p2ptrain` processes over loopback, their JSON events as they come, and what is left of them in the end.

Every wait ends with an event or with the process, and only a broken test waits for PATIENCE_S.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from warm_forks import ForkedPopen, warm

HERE = Path(__file__).parent
PATIENCE_S = 120.0
"""A node starts in some 4 s of a core's time; with many on a busy machine that is a minute."""

DIGITS = ("--task", "digits", "--set", "train.threads=1", "--set", "train.warmup_steps=10")
PACED = (*DIGITS[2:], "--task", "paced_digits:create", "--inner-steps", "20", "--set", "train.learning_rate=2e-4")
"""Rounds of 0.4 s, in which a core is mostly idle, and a loss that still falls in the sixtieth."""
STEP_S = 0.02
P2PTRAIN = ("-m", "p2ptrain")

Event = dict[str, Any]


def heed_ctrl_c() -> None:
    """As at a terminal. What a shell starts in the background ignores it, and so would the programs of a test there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _environment() -> dict[str, str]:
    """The tasks of this folder are found from any working directory. What is compiled is not kept: a test may write a
    task twice within a second, which Python would take for the same."""
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE)]
    more = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(path)}
    return os.environ | more


def _forking() -> type[subprocess.Popen[Any]]:
    """What starts processes by a fork. Its server is started once in each process that runs tests."""
    if ForkedPopen.warm is None and sys.platform == "linux":
        ForkedPopen.warm = warm(_environment())
    return ForkedPopen


class Program:
    """`python -m p2ptrain WORDS`, leading a process group of its own as a shell starts it. Kills whatever is left of
    it, nodes of an `up` included, when the block ends. `before`: words of a command that becomes ours (`nice`).
    `run`: what Python is to run instead of p2ptrain, a script that prints events as well. It is forked from a process
    that has the libraries imported, and so are its nodes (warm_forks.py). `real`: neither is."""

    def __init__(
        self,
        folder: Path,
        *words: object,
        before: tuple[str, ...] = (),
        run: Sequence[object] = P2PTRAIN,
        real: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stderr = folder / f"stderr-{len(list(folder.glob('stderr-*')))}"
        with self._stderr.open("wb") as stderr:
            popen, more = (subprocess.Popen, {"preexec_fn": heed_ctrl_c}) if real or before else (_forking(), {})
            self.process = popen(
                [*before, sys.executable, *map(str, run), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                cwd=HERE,
                env=_environment(),
                **more,
            )
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.ended_at = 0.0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in living([self.process.pid, *self.pids()]):
            os.kill(pid, signal.SIGKILL)
        self.process.kill()  # a script is not named p2ptrain
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def pids(self) -> list[int]:
        """Of the nodes that have told that they started (with `node`, of itself)."""
        return [event["pid"] for event in self.heard("started")]

    def heard(self, kind: str, **fields: object) -> list[Event]:
        """The events so far with these fields."""
        with self._news:
            return [
                event
                for event in self.events
                if event["event"] == kind and all(event.get(key) == value for key, value in fields.items())
            ]

    def hear(self, kind: str, *, count: int = 1, within_s: float = PATIENCE_S, **fields: object) -> Event:
        """Wait for the `count`th such event."""
        return self.until(lambda: self.heard(kind, **fields)[:count], count, f"{kind} {fields}", within_s)[-1]

    def hear_round(self, number: int, *, node: str | None = None, within_s: float = PATIENCE_S) -> Event:
        """Wait until a node (that one, where it is named) has closed round `number` or a later one."""

        def found() -> list[Event]:
            rounds = self.heard("round") if node is None else self.heard("round", node=node)
            return [event for event in rounds if event["round"] >= number]

        return self.until(found, 1, f"round {number} of {node}", within_s)[0]

    def until(self, found: Callable[[], list[Event]], count: int, what: str, within_s: float) -> list[Event]:
        """Wait until `found` gives `count` events."""
        deadline = time.monotonic() + within_s
        while len(events := found()) < count:
            over = not self._reader.is_alive()
            with self._news:
                self._news.wait(0.2)
            if (over and len(found()) < count) or time.monotonic() > deadline:
                raise AssertionError(f"no {what}: {self.lines[-5:]}\nstderr: {self.stderr[-2000:]}")
        return events

    def end(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(within_s)
        self._reader.join(PATIENCE_S)
        return code

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """As Ctrl-C at a terminal: to the whole foreground group."""
        os.killpg(self.process.pid, number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for raw in stdout:
                line = raw.decode(errors="replace")
                event = _parsed(line)
                with self._news:
                    self.lines.append(line)
                    if event is not None:
                        self.events.append(event)
                    self._news.notify_all()
        self.ended_at = time.time()


def _parsed(line: str) -> Event | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None


def up(folder: Path, *words: object, real: bool = False) -> Program:
    """`p2ptrain up --json` with its run in `folder`/run."""
    return Program(folder, "up", "--json", "--run-dir", folder / "run", *words, real=real)


def node(folder: Path, *words: object, real: bool = False) -> Program:
    """`p2ptrain node --json` on loopback with its run in `folder`/run."""
    listen = ("--listen", "/ip4/127.0.0.1/tcp/0")
    return Program(folder, "node", "--json", "--run-dir", folder / "run", *listen, *words, real=real)


def living(pids: Iterable[int]) -> list[int]:
    """Those that are still p2ptrain processes."""
    return [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "p2ptrain" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def gone(pids: Iterable[int], within_s: float = PATIENCE_S) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + within_s
    pids = list(pids)
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.02)  # they may be grandchildren, whose end nobody tells us
    return not living(pids)


def read_log(folder: Path) -> list[Event]:
    """Every line of a node's events.jsonl; each must be one JSON object with a time and a name."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert all(isinstance(event["ts"], float) and isinstance(event["event"], str) for event in events)
    return events


class Ran:
    """A program that has ended: its code, and what it printed."""

    def __init__(self, code: int | None, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def ran(folder: Path, *words: object, within_s: float = PATIENCE_S, run: Sequence[object] = P2PTRAIN) -> Ran:
    """Run `p2ptrain WORDS` to its end, or what Python is to `run` instead. The working directory is `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *map(str, run), *map(str, words)]
    with (folder / ".out").open("wb") as out, (folder / ".err").open("wb") as err:
        process = _forking()(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=_environment())
    try:
        code = process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"{command} did not end: {(folder / '.err').read_text()}") from None
    return Ran(code, (folder / ".out").read_text(), (folder / ".err").read_text())
