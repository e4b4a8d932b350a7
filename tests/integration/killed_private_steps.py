"""A program that is killed again and again while it takes private steps by the real ledger and the real trainer.

    python killed_private_steps.py FOLDER SEED RESTARTS PRIVATIZER

Each life is a fork of this process, which has the libraries. It writes a byte to `released`
before each noised sum, and is killed (SIGKILL) at a random moment. A line of JSON tells how many were released and how
many the ledger has, after each life.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from node.config.schema import Config, from_raw
from node.privacy import chained_log
from node.privacy.ledger import read_ledger
from node.roles.assembly import own_trainer
from node.roles.privacy_check import privacy_budget
from node.system.run_dir import PRIVACY
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import NormalSource
from p2ptrain.privacy.clipped_gaussian import ClippedGaussian

STEPS = 5
"""Of a round."""

STEPPING = 0.7
"""Share of the lives that are left alone until they have taken a step; the others may be killed as they begin."""

LONGEST_S = 0.2
"""Of a life from there."""

FIRST_STEP_S = 60.0
"""Within which it comes, on a busy machine."""

_add_noise = ClippedGaussian.add_noise_


def live(folder: Path, config: Config) -> None:
    """Take private steps until killed."""
    log = os.open(folder / "released", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add_noise(self: ClippedGaussian, sum_d: torch.Tensor, source: NormalSource) -> None:
        os.write(log, b".")
        _add_noise(self, sum_d, source)

    ClippedGaussian.add_noise_ = add_noise  # type: ignore[method-assign]
    with privacy_budget(config, folder, lambda event: None) as budget:
        assert budget is not None, "a privatizer is set"
        trainer = own_trainer(config, "peer", spend=budget.spend)
        while True:
            trainer.begin_round()
            trainer.ask_ahead(STEPS)
            for _ in range(STEPS):
                trainer.take_step()
            trainer.end_round()


def _await_growth(file: Path) -> None:
    before, ends = _size(file), time.monotonic() + FIRST_STEP_S
    while _size(file) == before and time.monotonic() < ends:
        time.sleep(0.005)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def main(folder: Path, seed: int, restarts: int, privatizer: str) -> None:
    """Kill so many lives, and tell of each."""
    torch.set_num_threads(1)
    chained_log.TAIL_BYTES = 500  # type: ignore[misc]  # entries are summed up again and again
    rng = random.Random(seed)
    config = from_raw(
        {"task": {"name": "digits"}, "train": {"threads": 1}, "privacy": {"privatizer": privatizer, "noise": 1.0}}
    )
    own_trainer(config, "peer", spend=unaccounted)  # imports what takes seconds; one thread, so that forks can compute
    released = folder / "released"
    for _ in range(restarts):
        pid = os.fork()
        if not pid:
            live(folder, config)
        if rng.random() < STEPPING:
            _await_growth(released)
        time.sleep(rng.uniform(0.0, LONGEST_S))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        contents = read_ledger(folder / PRIVACY)
        told = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
            "released": _size(released),
            "written": sum(contents.releases.values()),
            "entries": contents.mark.entries,
            "torn": contents.torn,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
