"""Runs a short swarm of real nodes on this machine, for `p2ptrain bench calibrate`.

What a round costs a node beside its steps no part of it tells: an event loop shares its interpreter with the trainer,
nodes share cores, and each writes logs, answers and averages. Rounds of two lengths tell it: what grows with their
steps is the steps', and what is left is the round's.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from node.planning.calibration import SwarmRounds
from node.planning.fitted_swarm import rounds_in
from node.system.errors import RunError

LIMIT_S: Final = 600.0
"""For all of a swarm: nodes import torch, meet and train."""
LONG_S: Final = 20.0
"""Seconds of training of a swarm, about."""
FEWEST: Final = 8
"""Rounds."""
LEAST_STEPS: Final = 3
"""Of a round."""
USUAL_STEPS: Final = 20
"""Of a round, where steps are short."""
BOUND: Final = 1.05
"""Steps over those asked for, from which on an exchange is what a round waits for."""


@dataclass(frozen=True, kw_only=True)
class PilotSwarm:
    """`members` nodes that train a task together, over loopback."""

    task: Mapping[str, Any]
    members: int
    batch: int
    device: str
    rounds: int
    """At most."""

    def fits(self, step_s: float) -> bool:
        """Return whether its shortest rounds of such steps end in half of the time that there is."""
        return FEWEST * LEAST_STEPS * step_s <= LIMIT_S / 2

    def both(self, step_s: float) -> tuple[SwarmRounds, SwarmRounds]:
        """Return rounds of as many steps as `USUAL_STEPS`, or fewer where `step_s` is long, and others of a third as
        many, or three times as many where the first waited for exchanges. RunError where a swarm does not finish. The
        first are run before and after the second: a machine is not as fast now as a minute ago."""
        steps = max(LEAST_STEPS, min(USUAL_STEPS, round(LONG_S / (FEWEST * step_s))))
        before = self.of(steps, step_s)
        second = self.of(self._other(before), step_s)
        return before.with_another(self.of(steps, step_s)), second

    def _other(self, first: SwarmRounds) -> int:
        """The steps of the second kind of rounds. Longer ones where they fit into half of the time."""
        longer = round(3 * first.steps)
        waited = first.steps > BOUND * first.inner_steps
        fits = FEWEST * first.round_s * longer / first.steps <= LIMIT_S / 2
        return longer if waited and fits else max(1, first.inner_steps // 3)

    def of(self, inner_steps: int, step_s: float) -> SwarmRounds:
        """Return rounds of so many steps. RunError where the swarm does not finish."""
        rounds = max(FEWEST, min(self.rounds, round(LONG_S / (inner_steps * step_s))))
        with tempfile.TemporaryDirectory(prefix="p2ptrain-pilot-") as name:
            file, run = Path(name) / "settings.toml", Path(name) / "run"
            file.write_text(tomli_w.dumps(self.settings(inner_steps, rounds)), encoding="utf-8")
            up(file, self.members, run)
            return rounds_in(run, inner_steps)

    def settings(self, inner_steps: int, rounds: int) -> dict[str, Any]:
        """Return what a node's file of settings says."""
        train = {"inner_steps": inner_steps, "rounds": rounds, "batch_size": self.batch, "device": self.device}
        return {"task": dict(self.task), "train": {**train, "eval_every": rounds}}


def up(settings: Path, nodes: int, run: Path) -> None:
    """Run a swarm of these settings to its end, by `p2ptrain up`, and leave its folder. RunError where it fails."""
    command = [sys.executable, "-m", "p2ptrain", "up", "--json", "--config", str(settings), "--nodes", str(nodes)]
    try:
        done = subprocess.run(
            [*command, "--run-dir", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"a swarm of {nodes} nodes has not finished within {LIMIT_S:.0f} s", "try fewer") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunError(f"a swarm of {nodes} nodes did not finish: {said}", "try it by itself: p2ptrain up")
