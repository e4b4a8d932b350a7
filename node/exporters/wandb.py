"""Weights & Biases, offline: a run's folder in `NODE/wandb/`, which `wandb sync FOLDER` uploads if its owner wants to.

Nothing is sent: not the run, not the library's own errors, not the machine's description or the command line. The mode
is set here and not taken from WANDB_MODE: a forgotten variable must not make a node send data.
"""

import os
from typing import ClassVar

from node.events.event_types import Record
from node.exporters.base import About, numbers, round_of

_ABOUT_RUN = ("peer_id", "device", "parameters", "task", "aggregator", "compressor", "f")


class WeightsAndBiases:
    """Each process of a node is a run. The runs of one run folder are a group, those of one node have one name."""

    needs: ClassVar[str] = "wandb"

    def __init__(self, about: About) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read when it is imported
        import wandb

        settings = wandb.Settings(
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
        self._run = wandb.init(
            mode="offline", dir=about.folder, project="p2ptrain", group=about.run, name=about.node, settings=settings
        )

    def export(self, record: Record, /) -> None:
        """Write the numbers of a round with those of its evaluation; at the start, what is trained and how."""
        step = round_of(record)
        if step is not None:
            self._run.log(dict(numbers(record)), step=step)
        elif record["event"] == "started":
            self._run.config.update({name: record.get(name) for name in _ABOUT_RUN}, allow_val_change=True)

    def close(self) -> None:
        """Write and send what is left; nothing comes after it."""
        self._run.finish()
