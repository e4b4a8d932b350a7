"""What a machine with an NVIDIA GPU shows of this project, a JSON line a check: run it where there is one.

    python scripts/gpu_checks.py                       # all, some five minutes
    python scripts/gpu_checks.py --checks pause,budget

    same     rounds of one node on the CPU and on the GPU, both in fp32: how far apart their held-out losses are
    speed    steps a second of a node, and of the training alone that it does, in turns
    pause    another program takes the GPU: seconds until the node stands still, what of the GPU's memory it gives
             back, seconds until it trains again
    budget   the GPU's memory that a node takes without a budget, and with one of a part of that
    offload  the GPU's memory of a site of one rank under NCCL, its parts on the GPU and in the host's memory
    swarm    four nodes on the one GPU: rounds, faults, held-out losses

A node's memory is what the driver counts for its process, the CUDA context of some hundred MB included. `pause` needs
nvidia-ml-py.
"""

import argparse
import json
import operator
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from node.system.script_end import ended_in_a_line
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

PATIENCE_S: Final = 300.0
LOOPBACK: Final = ("--listen", "/ip4/127.0.0.1/tcp/0")
MIB: Final = 1 << 20
BUSY: Final = """
import sys, torch
held = torch.empty(4 << 30, dtype=torch.uint8, device=sys.argv[1])
a = torch.randn(4096, 4096, device=sys.argv[1])
print("busy", flush=True)
while True:
    (a @ a).sum().item()
"""
"""Somebody's game: 4 GiB, and the GPU without a pause."""
EMPTY: Final = """
import sys, torch
print((torch.ones(8, 8, device=sys.argv[1]) @ torch.ones(8, 8, device=sys.argv[1])).sum().item(), flush=True)
sys.stdin.read()
"""
"""A process with a context on the GPU, and next to nothing else there."""
STEPS: Final = 20
SPEED_TURNS: Final = 5
SPEED_ROUNDS: Final = 20
HELD_BACK: Final = 0.6
"""Of what a node takes beyond an empty context: what a budget gives it, the empty context besides."""

Event = dict[str, Any]


class Told:
    """A program that prints its events as JSON lines. Killed with its group when the block ends."""

    def __init__(self, *words: object, torchrun: int = 0) -> None:
        python: list[str] = [sys.executable, "-m"]
        if torchrun:
            python += ["torch.distributed.run", "--nproc-per-node", str(torchrun), "-m"]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed when the block ends
        self.process = subprocess.Popen(
            [*python, "p2ptrain", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        self.events: list[Event] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()

    def heard(self, kind: str) -> list[Event]:
        """The events of this kind so far."""
        return [each for each in tuple(self.events) if each["event"] == kind]

    def hear(self, kind: str, count: int = 1) -> Event:
        """Wait for the `count`th such event. RuntimeError, with the program's last words, where none comes."""
        ends = time.monotonic() + PATIENCE_S
        while len(found := self.heard(kind)) < count:
            if time.monotonic() > ends or (self.process.poll() is not None and not self._reader.is_alive()):
                raise RuntimeError(f"no {kind}: {self.last_words()}")
            time.sleep(0.01)
        return found[count - 1]

    def end(self) -> None:
        """Wait for the program's end. RuntimeError where its exit code is not 0."""
        if self.process.wait(PATIENCE_S):
            raise RuntimeError(self.last_words())
        self._reader.join(PATIENCE_S)

    def last_words(self) -> str:
        """What it wrote to stderr at last, and its last event."""
        self.errors.seek(0)
        return f"{self.errors.read()[-1500:]} {self.events[-1:]}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if "event" in told:
                self.events.append(told)


def node(run: Path, *words: object, torchrun: int = 0) -> Told:
    """`p2ptrain node` on loopback."""
    return Told("node", "--json", "--run-dir", run, *LOOPBACK, *words, torchrun=torchrun)


def settings(**values: object) -> list[str]:
    """`--set` for each; two underscores stand for the dot."""
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.', 1)}={value}")]


def same(device: str, run: Path) -> Mapping[str, object]:
    """Train as many rounds on the CPU and on the device, in fp32, from the same start on the same batches."""
    losses: list[list[float]] = []
    for name in ("cpu", device):
        words = settings(train__device=name, train__precision="fp32", train__eval_every=2, node__shard_index=0)
        with node(run / str(len(losses)), "--rounds", 6, "--inner-steps", STEPS, *words) as told:
            told.end()
            losses.append([each["eval_loss"] for each in told.heard("evaluated")])
    on_cpu, there = losses
    return {"on_cpu": on_cpu, "there": there, "most_apart": max(map(abs, map(operator.sub, on_cpu, there)))}


def speed(device: str, run: Path) -> Mapping[str, object]:
    """Time the rounds of a node against the same steps of its trainer alone, in turns."""
    size = "micro"
    alone, inside = [], []
    config = TrainConfig(device=device)
    trainer = Trainer(tasks.get("byte-lm", size=size), config, Shard())
    for turn in range(SPEED_TURNS):
        _steps(trainer, STEPS)
        since = time.perf_counter()
        _steps(trainer, SPEED_ROUNDS * STEPS)
        alone.append(SPEED_ROUNDS * STEPS / (time.perf_counter() - since))
        words = settings(task__size=size, train__device=device, train__eval_every=1000)
        with node(run / str(turn), "--rounds", SPEED_ROUNDS + 5, "--inner-steps", STEPS, *words) as told:
            told.end()
            rounds = told.heard("round")[4:]
            inside.append(sum(each["steps"] for each in rounds[1:]) / (rounds[-1]["ts"] - rounds[0]["ts"]))
    ratios = [one / other for one, other in zip(inside, alone, strict=True)]
    return {"alone": alone, "node": inside, "ratios": ratios, "median": median(ratios)}


def _steps(trainer: Trainer, count: int) -> None:
    for _ in range(count):
        trainer.step()


def pause(device: str, run: Path) -> Mapping[str, object]:
    """Let another program take the GPU from a node that trains, and give it back."""
    words = settings(task__size="micro", train__device=device, participation__policy='["gpu"]', participation__calm_s=3)
    with node(run, "--rounds", 100_000, "--inner-steps", STEPS, *words) as told:
        told.hear("round", 3)
        before = held_by(told.process.pid)
        with busy(device) as since:
            paused = told.hear("paused")
            stood = time.time() - since
            time.sleep(2.0)
            during, rounds = held_by(told.process.pid), len(told.heard("round"))
            time.sleep(3.0)
            still = len(told.heard("round")) == rounds
            left = time.time()
        told.hear("unpaused")
        back = time.time() - left
        told.hear("round", len(told.heard("round")) + 2)
        after = held_by(told.process.pid)
    return {
        "reason": paused.get("reason", paused),
        "paused_after_s": stood,
        "stood_still": still,
        "unpaused_after_s": back,
        "calm_s": 3,
        "held_mib": {"before": before / MIB, "paused": during / MIB, "after": after / MIB},
    }


def budget(device: str, run: Path) -> Mapping[str, object]:
    """Train with all of the GPU, and with a part of what that took."""
    empty = held_by_an_empty_context(device)
    words = settings(task__size="micro", train__device=device, train__batch_size=256)
    found: dict[str, object] = {"empty_context_mib": empty / MIB}
    free, free_speed, _ = _most_held(run / "free", *words)
    found["free"] = {"held_mib": free / MIB, "steps_s": free_speed}
    given = int(empty + (free - empty) * HELD_BACK)
    most, steps_s, losses = _most_held(run / "bounded", "--gpu-memory", f"{given // MIB}MiB", *words)
    found["bounded"] = {"given_mib": given / MIB, "held_mib": most / MIB, "steps_s": steps_s, "losses": losses}
    found["beyond_budget"] = most / given - 1 if given else None
    return found


def offload(device: str, run: Path) -> Mapping[str, object]:
    """Train a site of one rank under NCCL with its parts on the GPU and in the host's memory."""
    found: dict[str, object] = {}
    for name in ("false", "true"):
        words = settings(task__size="micro", train__device=device, train__precision="fp32", site__offload=name)
        most, steps_s, losses = _most_held(run / name, *words, torchrun=1)
        found[f"offload_{name}"] = {"held_mib": most / MIB, "steps_s": steps_s, "losses": losses}
    words = settings(task__size="micro", train__device=device, train__precision="fp32")
    _, steps_s, losses = _most_held(run / "one", *words)
    found["one_process"] = {"steps_s": steps_s, "losses": losses}
    return found


def _most_held(run: Path, *words: object, torchrun: int = 0) -> tuple[int, float, list[float]]:
    """The most bytes of the GPU that a node's process held in twelve rounds, its steps a second, and its losses."""
    options = settings(train__eval_every=4, node__shard_index=0)
    with node(run, "--rounds", 12, "--inner-steps", STEPS, *options, *words, torchrun=torchrun) as told:
        most = 0
        pid = told.hear("started")["pid"]
        while told.process.poll() is None:
            most = max(most, held_by(pid))
            time.sleep(0.05)
        told.end()
        rounds = told.heard("round")[3:]
        steps_s = sum(each["steps"] for each in rounds[1:]) / (rounds[-1]["ts"] - rounds[0]["ts"])
        return most, steps_s, [each["eval_loss"] for each in told.heard("evaluated")]


def swarm(device: str, run: Path) -> Mapping[str, object]:
    """Run four nodes on the one device."""
    words = settings(train__device=device)
    with Told("up", "--json", "--nodes", 4, "--run-dir", run, "--rounds", 30, "--inner-steps", STEPS, *words) as told:
        told.end()
        losses = [each["eval_loss"] for each in told.heard("evaluated")]
        faults = [each for each in told.events if each["event"] in ("rejected", "failed", "banned")]
        return {"rounds": len(told.heard("round")), "last_losses": losses[-4:], "faults": faults}


@contextmanager
def busy(device: str) -> Iterator[float]:
    """Another program that uses the device while the block runs. Gives the Unix time since when it does."""
    other = subprocess.Popen([sys.executable, "-c", BUSY, device], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        other.stdout.readline()
        yield time.time()
    finally:
        other.kill()
        other.wait()


def held_by_an_empty_context(device: str) -> int:
    """Bytes of the GPU that a process has which computes next to nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", EMPTY, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        return held_by(other.pid)


def held_by(pid: int) -> int:
    """Bytes of all GPUs that the driver counts for a process; 0 where there is no NVIDIA GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no such module, or no driver
        return 0
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    running = [each for handle in handles for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return sum(each.usedGpuMemory or 0 for each in running if each.pid == pid)


CHECKS: Final[Mapping[str, Callable[[str, Path], Mapping[str, object]]]] = {
    "same": same,
    "speed": speed,
    "pause": pause,
    "budget": budget,
    "offload": offload,
    "swarm": swarm,
}


def main() -> None:
    """Run the checks, one after the other. One that fails says why, and the next one runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", default=",".join(CHECKS), help="names, with commas between")
    parser.add_argument("--device", default="cuda:0")
    asked = parser.parse_args()
    unknown = set(asked.checks.split(",")) - CHECKS.keys()
    if unknown:
        parser.error(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that blocks end, and the nodes with them
    failed = False
    for name in asked.checks.split(","):
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                found: Mapping[str, object] = CHECKS[name](asked.device, Path(folder))
            except (RuntimeError, AssertionError, KeyError, IndexError, ValueError, subprocess.TimeoutExpired) as error:
                found, failed = {"failed": f"{type(error).__name__}: {error}"}, True
        print(
            json.dumps({"check": name, "took_s": round(time.monotonic() - since, 1), **found}, default=str), flush=True
        )
    sys.exit(failed)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
