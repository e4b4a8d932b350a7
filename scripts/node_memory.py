"""Measure the memory of a real node with a large model, in a swarm whose other members hold no model.

    python scripts/node_memory.py --out FOLDER [--size base] [--context 64] [--neighbours 3] [--set sync.estimates=bf16]

One process trains as `p2ptrain node` does. The other members are light: one process speaks for all of them, over
libp2p as well. Each publishes a payload of q2's exact size in every round (all steps of it are tiny), and takes what
the node sends without decoding it. The node's resident memory is read twenty times a second. It runs three times: first
from the swarm's beginning until it is killed (-9); then on from its checkpoint; then in a new folder, joining others
that are a thousand rounds ahead. It evaluates in every third round, and writes a checkpoint in every fourth.

Prints a JSON line for each: the most resident bytes a parameter, less those of the program (docs/operations.md).
"""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import trio

from gossip.core.api import Head, RunInfo
from gossip.core.identity import Identity
from gossip.service import GossipService
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from node.config.schema import Config, from_raw
from node.roles.assembly import network_for, run_info
from node.system.script_end import ended_in_a_line
from p2ptrain import compress, tasks
from p2ptrain.sync.vectors import rounded, view_of
from p2ptrain.training.flat import fingerprint, trainable
from p2ptrain.training.model import build_model

PROGRAM_BYTES = 450_000_000
SAMPLE_S = 0.05
Samples = list[tuple[float, int]]
"""Seconds and resident bytes."""
STEP = 1e-9
"""The size of a light member's steps: the trimmed mean of them moves no model."""


class LightMember:
    """A member of the run that has no model: it announces rounds, and gives the initial model to whoever asks."""

    def __init__(self, number: int, config: Config, run: RunInfo, numel: int, payload: bytes, genesis: Path) -> None:
        key = Identity(hashlib.blake2b(b"light%d" % number, digest_size=32).digest())
        self.transport = Libp2pTransport(Libp2pConfig(listen=("/ip4/127.0.0.1/tcp/0",)), key.seed)
        self.round = 0
        self._payload, self._genesis = payload, genesis
        self.service = GossipService(
            identity=key,
            transport=self.transport,
            config=network_for(config, numel),
            run=run,
            rng=random.Random(number),
            snapshot_source=self._snapshot,
        )

    async def live(self, begins_at: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Take part from this round on."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            nursery.start_soon(self._consume)
            self.round = begins_at
            snapshot = self._genesis.read_bytes() if begins_at else None
            await self.service.begin_epoch(epoch=time.time_ns() // 1_000_000, round=begins_at, snapshot=snapshot)
            del snapshot
            task_status.started()
            await self._keep_up()

    async def _keep_up(self) -> None:
        """Publish a round as soon as anybody that trains publishes it."""
        while True:
            await trio.sleep(0.05)
            rounds = [it.round for it in self.service.neighbours().values() if it.gives]
            if rounds and max(rounds) > self.round:
                self.round = max(rounds)
                await self.service.publish(round=self.round, codec="q2", payload=self._payload, steps=1, tokens=1)

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, await trio.to_thread.run_sync(self._genesis.read_bytes)

    async def _consume(self) -> None:
        async for update in self.service.updates:
            self.service.accepted(update)
            del update


def initial_model(config: Config) -> tuple[bytes, torch.Tensor]:
    """Return the model's fingerprint and its initial parameters fp32 (d,), as every member draws them."""
    model = build_model(tasks.get(config.task.name, **config.task.options), config.train.seed)
    return fingerprint(model), torch.cat([each.detach().reshape(-1) for _, each in trainable(model)])


async def speak(config: Config, count: int, begins_at: int, genesis: Path) -> None:
    """Be `count` light members until killed; print their addresses, a line each."""
    name, genesis_d = initial_model(config)
    run, numel = run_info(config, name, genesis_d), genesis_d.numel()
    if not genesis.exists():  # noqa: ASYNC240  # nothing else runs yet
        genesis.write_bytes(view_of(rounded(genesis_d, config.sync.estimate_dtype)))  # noqa: ASYNC240
    step_d = torch.from_numpy(np.random.default_rng(0).standard_normal(numel, dtype=np.float32)).mul_(STEP)
    payload = compress.get("q2").encode(step_d)
    del genesis_d, step_d
    members = [LightMember(number, config, run, numel, payload, genesis) for number in range(count)]
    async with trio.open_nursery() as nursery:
        for member in members:
            await nursery.start(member.live, begins_at)
        print(*(member.transport.addresses[0] for member in members), flush=True)


class Sampler(threading.Thread):
    """The resident bytes of a process over time, until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        self._statm = Path(f"/proc/{pid}/status")

    def run(self) -> None:
        """Read until the process has ended."""
        while True:
            try:
                fields = dict(line.split(":", 1) for line in self._statm.read_text().splitlines())
            except OSError:
                return
            if "VmRSS" in fields:
                self.samples.append((time.time(), 1024 * int(fields["VmRSS"].split()[0])))
            time.sleep(SAMPLE_S)


def settings_of(given: argparse.Namespace) -> list[str]:
    """Return the settings of all members, as words of a command line."""
    own = [
        f"task.size={given.size}",
        f"task.context={given.context}",
        "train.batch_size=1",
        "train.eval_every=3",
        "train.eval_examples=4",
        "node.checkpoint_every=4",
        "node.wait_timeout_s=120",
        "network.request_timeout_s=60",
        "network.upnp=false",
        *given.set,
    ]
    return [word for setting in own for word in ("--set", setting)]


def node_run(given: argparse.Namespace, folder: Path, rounds: int, addresses: list[str], kill_at: int = 0) -> Samples:
    """One process of the node, to its end or until it has closed `kill_at` rounds; its samples."""
    words = [
        "node",
        "--task",
        "byte-lm",
        "--rounds",
        str(rounds),
        "--inner-steps",
        "1",
        "--run-dir",
        str(folder),
        "--json",
    ]
    peers = [word for address in addresses for word in ("--peer", address)]
    with (given.out / f"{folder.name}.out").open("a") as out:
        command = [
            sys.executable,
            "-m",
            "p2ptrain",
            *words,
            *peers,
            *settings_of(given),
            "--set",
            f"node.wait_for={given.neighbours}",
        ]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)
        sampler = Sampler(node.pid)
        sampler.start()
        closed = 0
        for line in node.stdout or ():
            out.write(line)
            closed += '"event":"round"' in line.replace(" ", "")
            if kill_at and closed >= kill_at:
                node.send_signal(signal.SIGKILL)
                break
        node.wait()
        sampler.join()
    return sampler.samples


def report(what: str, samples: Samples, numel: int, given: argparse.Namespace) -> None:
    """The peak of a run; and of each half of it, which shows growth."""

    def rest(part: Samples) -> float:
        return round((max(rss for _, rss in part) - PROGRAM_BYTES) / numel, 2)

    half = len(samples) // 2
    print(
        json.dumps(
            {
                "run": what,
                "parameters": numel,
                "bytes_a_parameter": rest(samples),
                "first_half": rest(samples[:half]),
                "second_half": rest(samples[half:]),
                "peak_bytes": max(rss for _, rss in samples),
                "seconds": round(samples[-1][0] - samples[0][0]),
            }
        ),
        flush=True,
    )
    lines = "".join(f"{at:.2f} {rss}\n" for at, rss in samples)
    (given.out / f"{what}.samples").write_text(lines)


def members(given: argparse.Namespace, begins_at: int) -> tuple[subprocess.Popen[str], list[str]]:
    """Start the light members at this round; return their process and their addresses."""
    config = config_of(given)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "members.toml").write_text(config.to_toml())
    command = [sys.executable, __file__, "--speak", str(given.neighbours), str(begins_at), str(given.out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def config_of(given: argparse.Namespace) -> Config:
    """Return the same as a configuration."""
    raw: dict[str, dict[str, object]] = {"task": {"name": "byte-lm"}}
    for setting in settings_of(given)[1::2]:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        raw.setdefault(section, {})[name] = _value(value)
    return from_raw(raw)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Measure what the command line asks for, or be the light members of such a measurement."""
    if "--speak" in sys.argv:
        count, begins_at, out = sys.argv[2:]
        config = from_raw(tomllib.loads((Path(out) / "members.toml").read_text()))
        trio.run(speak, config, int(count), int(begins_at), Path(out) / "genesis")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="base")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--neighbours", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--only", choices=("first", "resumed", "late"), nargs="+", default=["first", "resumed", "late"])
    given = parser.parse_args()
    numel = sum(each.numel() for _, each in trainable(meta_model(given)))
    for what, samples in runs(given):
        report(what, samples, numel, given)


def meta_model(given: argparse.Namespace) -> torch.nn.Module:
    """Return the model without its memory."""
    config = config_of(given)
    with torch.device("meta"):
        return tasks.get(config.task.name, **config.task.options).build_model()


def runs(given: argparse.Namespace) -> Iterator[tuple[str, Samples]]:
    """Yield the name and the samples of each run."""
    if "first" in given.only or "resumed" in given.only:
        process, addresses = members(given, 0)
        try:
            kill_at = given.rounds // 2 + 1
            samples = node_run(given, given.out / "begun", given.rounds, addresses, kill_at)
            yield "first", samples
            if "resumed" in given.only:
                yield "resumed", node_run(given, given.out / "begun", given.rounds, addresses)
        finally:
            process.kill()
    if "late" in given.only:
        process, addresses = members(given, 1000)
        try:
            yield "late", node_run(given, given.out / "late", 1000 + given.rounds // 2, addresses)
        finally:
            process.kill()


if __name__ == "__main__":
    with ended_in_a_line():
        main()
