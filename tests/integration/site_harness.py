"""A site under torchrun: the ranks of one `p2ptrain node`, found and disturbed by their numbers."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from processes_harness import Program

MACHINE = ("--set", "train.device=cpu", "--set", "train.threads=1")
PICO = ("--set", "task.size=pico", *MACHINE)
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")


def site(folder: Path, ranks: int, *words: object, torchrun: tuple[str, ...] = ()) -> Program:
    """`torchrun --nproc-per-node RANKS -m p2ptrain node --json` with its run in `folder`/run."""
    meeting = () if "--rdzv-backend" in torchrun else ("--standalone",)
    launcher = ["-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(ranks), *torchrun]
    return Program(
        folder,
        *("--json", "--run-dir", folder / "run", *LOOPBACK, *words),
        run=[*launcher, "-m", "p2ptrain", "node"],
        real=True,
    )


def pid_of(rank: int, folder: Path) -> int:
    """The process of this rank of the site in `folder`."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
            if str(folder / "run").encode() in words and f"RANK={rank}".encode() in variables:
                return int(process.name)
    raise AssertionError(f"there is no rank {rank}")


def end(program: Program, number: signal.Signals) -> int:
    """Send torchrun a signal, as a terminal or an init system does, and wait for its end."""
    os.kill(program.pid, number)
    return program.end()
