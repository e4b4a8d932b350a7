"""A training loop with `p2ptrain.join` and `[privacy]` that is killed again and again.

    python killed_private_loop.py FOLDER SEED RESTARTS PRIVATIZER

Each life is a fork of this process, which has the libraries, and joins with the same run folder. It writes a byte to
`released` before each round or step is noised, and is killed (SIGKILL) at a random moment. A line of JSON tells how
many were released and how many the ledger has, after each life.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from killed_private_steps import LONGEST_S, STEPPING, _await_growth, _size
from test_join import ALONE, WEIGHTS, model_of, train
from torch import nn

import p2ptrain
from node.privacy.ledger import read_ledger
from node.system.run_dir import PRIVACY
from p2ptrain.privacy.base import NormalSource
from p2ptrain.privacy.clipped_gaussian import ClippedGaussian
from p2ptrain.tasks.base import Batch

_add_noise = ClippedGaussian.add_noise_


def live(folder: Path, privatizer: str) -> None:
    """Train until killed."""
    log = os.open(folder / "released", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add_noise(self: ClippedGaussian, sum_d: torch.Tensor, source: NormalSource) -> None:
        os.write(log, b".")
        _add_noise(self, sum_d, source)

    ClippedGaussian.add_noise_ = add_noise  # type: ignore[method-assign]
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {**ALONE, "privacy.privatizer": privatizer, "privacy.public_start": True, "node.checkpoint_every": 2}
    settings |= {"privacy.rate": 0.1} if privatizer == "example" else {}
    with p2ptrain.join(model, optimizer, run_dir=folder, inner_steps=4, settings=settings, quiet=True) as swarm:
        if privatizer == "update":
            train(model, optimizer, range(100_000))
        else:
            for _ in swarm.private_gradients(loss_of_one, examples_at, len(X)):
                optimizer.step()


X = torch.randn(200, 8, generator=torch.Generator().manual_seed(5))


def examples_at(rows: list[int]) -> Batch:
    """Return inputs and targets."""
    return X[rows], X[rows] @ WEIGHTS


def loss_of_one(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the squared error."""
    inputs, targets = batch
    return (model(inputs).squeeze(-1) - targets).square().mean()


def _end_with(parent: int) -> None:
    """Thread: end this life where who is to kill it has died, as at a test's time limit."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(folder: Path, seed: int, restarts: int, privatizer: str) -> None:
    """Kill so many lives, and tell of each."""
    torch.set_num_threads(1)
    import gossip.transport.libp2p.libp2p_transport  # noqa: F401  # takes seconds, which no life is to take again

    rng, released, own = random.Random(seed), folder / "released", os.getpid()
    for _ in range(restarts):
        pid = os.fork()
        if not pid:
            threading.Thread(target=_end_with, args=(own,), daemon=True).start()
            live(folder, privatizer)
        if rng.random() < STEPPING:
            _await_growth(released)
        time.sleep(rng.uniform(0.0, LONGEST_S))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        contents = read_ledger(folder / "node" / PRIVACY)
        told = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
            "released": _size(released),
            "written": sum(contents.releases.values()),
            "entries": contents.mark.entries,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
