"""Python processes forked from one that has the libraries imported already, which saves some 3 s of a core for each.

`warm(...)` starts that process, the server; `Warm.start` asks it for a process. What it forks is a child of the process
that asked, with the pid, the session, the files, the surroundings and the command line that it was asked for; it runs
what `python -m MODULE WORDS` or `python FILE WORDS` would run, and nothing tells it that it was forked.

A program that itself starts Python, as `p2ptrain up` its nodes, is given a server of its own, forked before its first
line, and starts those from there (`ForkedPopen` stands where `subprocess.Popen` was). Nothing in the product knows of
this. What cannot be had by a fork is started as ever: other programs, and other settings of the interpreter.

How a grandchild becomes a child: who asks is a "child subreaper" of Linux, to whom the kernel gives the children of
those that have ended; the server forks a process that forks the wanted one and ends.
"""

import atexit
import ctypes
import gc
import json
import os
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ("node.cli.app", "node.roles.trainer", "gossip.transport.libp2p.libp2p_transport", "sklearn.datasets")
"""Imported before the first fork: what a node and `up` import."""

PADDING = "-" * 8192
"""The last word of the server's command line: forked processes write their own over it, where `ps` reads it. Longer
than any of theirs."""

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER, of <sys/prctl.h>."""

SERVER = "the server of warm_forks"
"""What `ps` shows of the server that a forked program has."""

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the server ignores, and that what it forks heeds as a new Python does."""

HEAD = struct.Struct("!I")

"""Bytes of the request that follows."""

ADOPTED_WITHIN = 20_000
"""Half milliseconds for the middle process to be gone: it has only to end. Chosen, for a busy machine."""

REAL = ("PYTHON", "LD_", "OPENBLAS", "MKL_")
"""Beginnings of names of variables that are read before our first line: where one differs, nothing is forked."""


class Unforkable(Exception):
    """This process cannot be had by a fork."""


def words_of(command: Sequence[str]) -> list[str]:
    """What follows `python`: `-m MODULE WORDS` or `FILE WORDS`. Unforkable for anything else."""
    python, *words = command
    if python != sys.executable or not words or (words[0][:1] == "-" and words[0] != "-m"):
        raise Unforkable(command)
    return words


class Warm:
    """A server, seen from the process that asks it."""

    def __init__(self, channel: socket.socket, environment: Mapping[str, str]) -> None:
        self._channel = channel
        self._context = _context(environment)
        self._lock = threading.Lock()
        _adopt_orphans()

    def start(
        self, command: Sequence[str], files: tuple[int, int, int], cwd: str, env: Mapping[str, str], session: bool
    ) -> int:
        """Fork what `command` would run, with these standard files; the pid of this process's new child."""
        words = words_of(command)
        if _context(env) != self._context:
            raise Unforkable("its interpreter has other settings")
        request = json.dumps([words, cwd, dict(env), session]).encode()
        with self._lock:
            socket.send_fds(self._channel, [HEAD.pack(len(request))], files)
            self._channel.sendall(request)
            answer = self._channel.recv(HEAD.size, socket.MSG_WAITALL)
        if len(answer) < HEAD.size:
            raise RuntimeError("the server of forks has ended: its stderr is this process's")
        return int(HEAD.unpack(answer)[0])


_DETAILS = (
    *("args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags"),
    *("shell", "in_read", "in_write", "out_read", "out_write", "err_read", "err_write", "restore_signals"),
    *("gid", "gids", "uid", "umask", "start_new_session", "process_group"),
)
"""What the standard library hands to the method that starts a process, in this order."""


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks from a server where it can."""

    warm: Warm | None = None

    def _execute_child(self, *details: Any) -> None:
        asked = dict(zip(_DETAILS, details, strict=True))
        try:
            self.pid = self._forked(asked)
        except Unforkable:
            super()._execute_child(*details)  # type: ignore[misc]
            return
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in _DETAILS if name.endswith(("_read", "_write"))))  # type: ignore[attr-defined]

    def _forked(self, asked: Mapping[str, Any]) -> int:
        unusual = asked["shell"] or asked["pass_fds"] or asked["executable"] or asked["preexec_fn"]
        if self.warm is None or unusual or isinstance(asked["args"], str | bytes):
            raise Unforkable(asked["args"])
        given = (asked["in_read"], asked["out_write"], asked["err_write"])
        files = tuple(number if each == -1 else each for number, each in enumerate(given))
        cwd = os.fspath(asked["cwd"] or os.getcwd())  # noqa: PTH109  # as it is at this moment
        env = os.environ if asked["env"] is None else asked["env"]
        command = [os.fsdecode(word) for word in asked["args"]]
        return self.warm.start(command, files, cwd, env, asked["start_new_session"])


def warm(environment: Mapping[str, str]) -> Warm:
    """Start a server with these environment variables. OSError or AttributeError where the system is no Linux."""
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, __file__, str(its.fileno()), PADDING]
        null = subprocess.DEVNULL
        server = subprocess.Popen(command, stdin=null, stdout=null, pass_fds=[its.fileno()], env=dict(environment))
    atexit.register(_end, ours, server)
    return Warm(ours, environment)


def _end(channel: socket.socket, server: subprocess.Popen[bytes]) -> None:
    channel.close()  # nobody can ask it any more
    server.wait()


def _context(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(REAL)}


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# What follows runs in the server and in what it forks.


def serve(channel: socket.socket) -> None:
    """Fork what is asked for, until nobody is left who asks. Returns in each forked process alone."""
    for number in HEEDED:
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C to the group is not for us
    gc.collect()
    gc.freeze()
    while True:
        head, files, *_ = socket.recv_fds(channel, HEAD.size, 3)
        if len(head) < HEAD.size:
            os._exit(0)
        request = json.loads(channel.recv(HEAD.unpack(head)[0], socket.MSG_WAITALL))
        reading, writing = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)  # what comes early waits
        between = os.fork()
        if between == 0:
            middle = os.getpid()
            if (pid := os.fork()) != 0:
                os.write(writing, HEAD.pack(pid))
                os._exit(0)
            for _ in range(ADOPTED_WITHIN):
                if os.getppid() != middle:
                    break  # now it is the child of who asked
                time.sleep(0.0005)
            else:
                os._exit(70)
            for descriptor in (reading, writing):
                os.close(descriptor)
            channel.close()
            _become(files, *request)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
        for descriptor in (writing, *files):
            os.close(descriptor)
        os.waitpid(between, 0)
        channel.sendall(os.read(reading, HEAD.size))
        os.close(reading)


def _become(files: Sequence[int], words: list[str], cwd: str, env: dict[str, str], session: bool) -> None:
    """Be a Python that has just started, run what it is to run, and end."""
    if session:
        os.setsid()
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    _show(words)
    _draw_anew()
    if words[0] == "-m":
        sys.path.insert(0, cwd)
        run, what, words = runpy.run_module, words[1], words[2:]
    else:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        run, what, words = runpy.run_path, words[0], words[1:]
    sys.argv = [what, *words]
    if sys.modules.get("torch") is not None and env.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
    if (what, *words[:1]) in {("p2ptrain", "up"), ("p2ptrain", "bench")}:
        _warm_its_own(env)
    for number in HEEDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    more = {"alter_sys": True} if run is runpy.run_module else {}
    code: object = 0
    try:
        run(what, run_name="__main__", **more)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    _leave(code or 0)


def _leave(code: int) -> None:
    """End as an interpreter does: threads are waited for, what was registered is called, what was printed is told. It
    does not take itself apart: to touch every object would copy the server's memory, page by page, for 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _warm_its_own(env: Mapping[str, str]) -> None:
    ours, its = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)  # whoever waits for the program's last word does not wait for us
        os.close(null)
        _show([SERVER])
        serve(its)
    its.close()
    ForkedPopen.warm = Warm(ours, env)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]


def _show(words: Sequence[str]) -> None:
    """Make these the command line that `ps` shows."""
    start, end = (int(each) for each in Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[45:47])
    line = b"\0".join(os.fsencode(word) for word in [sys.executable, *words]) + b"\0"
    room = end - start
    ctypes.memmove(start, line[: room - 1].ljust(room, b"\0"), room)


def _draw_anew() -> None:
    """Draw what a new process would draw: nobody knows, and no two the same. (torch begins with a seed of its own.)"""
    for generator in GENERATORS:
        generator.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


GENERATORS: list[random.Random] = []
"""Those that libraries keep, as trio does."""


def main() -> None:
    """Be a server."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]
    sys.modules["pandas"] = None  # type: ignore[assignment]  # scikit-learn imports it where it is; pyarrow has threads
    for library in LIBRARIES:
        __import__(library)
    del sys.modules["pandas"]
    GENERATORS.extend(each for each in gc.get_objects() if issubclass(type(each), random.Random))
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, "a fork takes one thread along, and what the others held stays locked"
    serve(channel)


if __name__ == "__main__":
    main()
