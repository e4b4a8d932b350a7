"""A training loop with `p2ptrain.join` and `[privacy]` that is killed again and again: `FOLDER SEED RESTARTS`.

Each life is a fork of this process, which has the libraries, and joins with the same run folder. It writes a byte to
`released` before each round is noised, and is killed (SIGKILL) at a random moment. A line of JSON tells how many were
released and how many the ledger has, after each life.
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
from test_join import ALONE, model_of, train

import p2ptrain
from node.privacy.ledger import read_ledger
from node.system.run_dir import PRIVACY
from p2ptrain.training import private_moves
from p2ptrain.training.private_training import PrivateTraining

_hide = private_moves.hide_


def live(folder: Path) -> None:
    """Train until killed."""
    log = os.open(folder / "released", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hide(move_d: torch.Tensor, privacy: PrivateTraining) -> None:
        os.write(log, b".")
        _hide(move_d, privacy)

    private_moves.hide_ = hide
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {**ALONE, "privacy.privatizer": "update", "privacy.public_start": True, "node.checkpoint_every": 2}
    with p2ptrain.join(model, optimizer, run_dir=folder, inner_steps=4, settings=settings, quiet=True):
        train(model, optimizer, range(100_000))


def _end_with(parent: int) -> None:
    """Thread: end this life where who is to kill it has died, as at a test's time limit."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(folder: Path, seed: int, restarts: int) -> None:
    """Kill so many lives, and tell of each."""
    torch.set_num_threads(1)
    import gossip.transport.libp2p.libp2p_transport  # noqa: F401  # takes seconds, which no life is to take again

    rng, released, own = random.Random(seed), folder / "released", os.getpid()
    for _ in range(restarts):
        pid = os.fork()
        if not pid:
            threading.Thread(target=_end_with, args=(own,), daemon=True).start()
            live(folder)
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
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
