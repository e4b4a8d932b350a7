"""Weights & Biases, offline: a run's folder in `NODE/wandb/`, which `wandb sync FOLDER` uploads if its owner wants to.

Nothing is sent: not the run, not the library's own errors, not the machine's description or the command line. The mode
is set here and not taken from WANDB_MODE: a forgotten variable must not make a node send data.
"""

import os
from typing import Any, ClassVar

from node.events.event_types import Record
from node.exporters.base import About, numbers, round_of

_ABOUT_RUN = ("peer_id", "device", "parameters", "task", "aggregator", "compressor", "f")


class WeightsAndBiases:
    """Each process of a node is a run, and what comes after it has gone back to an earlier round is another: a run's
    steps only grow. The runs of one run folder are a group, those of one node have one name."""

    needs: ClassVar[str] = "wandb"

    def __init__(self, about: About) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read when it is imported
        import wandb

        self._about, self._step, self._told = about, 0, dict[str, object]()
        self._settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        self._run = self._begun()

    def export(self, record: Record, /) -> None:
        """Write the numbers of a round with those of its evaluation; at the start, what is trained and how."""
        step = round_of(record)
        if step is not None:
            if step < self._step and record["event"] == "evaluated":
                return  # of a round that another one has followed by now: it would be ignored, with a word on stderr
            if step < self._step:
                self._run.finish()
                self._run = self._begun()
                self._run.config.update(self._told, allow_val_change=True)
            self._step = step
            self._run.log(dict(numbers(record)), step=step)
        elif record["event"] == "started":
            self._told = {name: record.get(name) for name in _ABOUT_RUN}
            self._run.config.update(self._told, allow_val_change=True)

    def close(self) -> None:
        """Write and send what is left; nothing comes after it."""
        self._run.finish()

    def _begun(self) -> Any:
        import wandb

        about = self._about
        return wandb.init(
            mode="offline",
            dir=about.folder,
            project="p2ptrain",
            group=about.run,
            name=about.node,
            settings=self._settings,
        )
