"""Ctrl-C at random moments of a program's first seconds: how it ends, and how soon.

    python scripts/interrupts.py --count 200 --seed 1

Starts `p2ptrain up` and `p2ptrain node` in turn, each in a process group of its own as a shell does, and sends SIGINT
(or, with --signal, SIGTERM) to the group at a moment that is drawn evenly from the first `--within` seconds. Prints
what came of it: exit codes, the longest time to the end, what was printed on stderr, and children that were left. Exit
code 1 when a start ended in a way that it should not.

The first tens of milliseconds are Python's own (site, an editable install's finder): a signal there ends it at once,
with Python's traceback, and exit code 1 or death by the signal. No program can change that; such starts are counted
apart.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from node.system.script_end import ended_in_a_line

PROMISE_S = 5.0
"""Within which Ctrl-C ends everything."""

PATIENCE_S = 30.0
"""After which a program that has not ended is killed, and counted as one that swallowed the signal."""

COMMANDS = {
    "up": ("up", "--task", "digits", "--nodes", "2", "--rounds", "500", "--run-dir", "{folder}"),
    "node": ("node", "--task", "digits", "--rounds", "5000", "--run-dir", "{folder}"),
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One start. `code` below 0: killed by that signal, as a shell says 128 + its number."""

    command: str
    at_s: float
    code: int | None
    took_s: float
    stderr: str
    left: int

    @property
    def before_ours(self) -> bool:
        """Whether Python had not come to our first line."""
        return "init_import_site" in self.stderr or ("<frozen runpy>" in self.stderr and ", in main" not in self.stderr)

    def fine(self, number: signal.Signals) -> bool:
        """Whether it ended as it should: in time, with the signal's exit code, without a word or a child left."""
        if self.before_ours:
            return self.took_s < PROMISE_S and not self.left
        told = {128 + number, 128 + signal.SIGINT, -number}  # a running node ends with 130 on SIGTERM, too
        return self.code in told and self.took_s < PROMISE_S and not self.stderr and not self.left


def start(command: str, at_s: float, number: signal.Signals, folder: Path) -> Ended:
    """Start it, send the signal `at_s` seconds later, and wait for the end."""
    words = [word.format(folder=folder / "run") for word in COMMANDS[command]]
    with (folder / "stderr").open("wb+") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "p2ptrain", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        time.sleep(at_s)
        family = _family(process.pid)
        began = time.monotonic()
        os.killpg(process.pid, number)
        try:
            code: int | None = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        took_s = time.monotonic() - began
        left = _outlasting(family, until=began + PROMISE_S)
        for each in left:
            each.kill()
        process.wait()
        stderr.seek(0)
        said = stderr.read().decode(errors="replace").strip()
    return Ended(command=command, at_s=at_s, code=code, took_s=took_s, stderr=said, left=len(left))


def heed_ctrl_c() -> None:
    """As at a terminal: what a shell starts in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _outlasting(family: list[psutil.Process], *, until: float) -> list[psutil.Process]:
    """Which of them still run at `until`, or none as soon as none does. One that has ended counts as ended, though its
    new parent has not waited for it: after a start that ended at once, that is init's part."""
    while (running := [each for each in family if _runs(each)]) and time.monotonic() < until:
        time.sleep(0.01)
    return running


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def table(ended: list[Ended], number: signal.Signals) -> list[str]:
    """What came of all of them."""
    lines = [f"{'command':8} {'starts':>6} {'fine':>5} {'longest':>8}  exit codes"]
    for command in COMMANDS:
        ours = [each for each in ended if each.command == command]
        if ours:
            codes = ", ".join(
                f"{count} x {code}" for code, count in sorted(Counter(it.code for it in ours).items(), key=str)
            )
            fine, longest = sum(each.fine(number) for each in ours), max(each.took_s for each in ours)
            lines.append(f"{command:8} {len(ours):6} {fine:5} {longest:6.2f} s  {codes}")
    apart = [each for each in ended if each.before_ours]
    if apart:
        lines.append(
            f"of these {len(apart)} before p2ptrain's first line, at {max(each.at_s for each in apart):.3f} s at most"
        )
    for each in ended:
        if not each.fine(number):
            last = each.stderr.splitlines()[-1:] or [""]
            lines.append(
                f"not fine: {each.command} at {each.at_s:.3f} s: exit code {each.code} after {each.took_s:.2f} s, "
                f"{each.left} left, {last[0]!r}"
            )
    return lines


def main() -> int:
    """Run it as a script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--count", type=int, default=200, help="starts in all")
    parser.add_argument("--within", type=float, default=3.0, metavar="SECONDS", help="the latest moment")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--signal", choices=("SIGINT", "SIGTERM"), default="SIGINT")
    given = parser.parse_args()
    rng, number = random.Random(given.seed), signal.Signals[given.signal]
    ended = []
    for at in range(given.count):
        with tempfile.TemporaryDirectory() as folder:
            ended.append(start(tuple(COMMANDS)[at % len(COMMANDS)], rng.uniform(0, given.within), number, Path(folder)))
    print("\n".join(table(ended, number)))
    return 0 if all(each.fine(number) for each in ended) else 1


if __name__ == "__main__":
    with ended_in_a_line():
        sys.exit(main())
