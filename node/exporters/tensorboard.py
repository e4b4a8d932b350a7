"""TensorBoard: `tensorboard --logdir RUN` shows the nodes of a run beside each other. Written by torch's own writer.

Scalars have the names of the events' fields (docs/operations.md#events), and the round as their step.
"""

from typing import ClassVar

from node.events.event_types import Record
from node.events.log import to_line
from node.exporters.base import About, numbers, round_of


class TensorBoard:
    """One file of events in `NODE/tensorboard/`; a restart adds another, which TensorBoard joins to it."""

    needs: ClassVar[str] = "tensorboard"

    def __init__(self, about: About) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(about.folder / "tensorboard"))

    def export(self, record: Record, /) -> None:
        """Write the numbers of a round or an evaluation, or the node's settings from its start."""
        step = round_of(record)
        if step is not None:
            for name, value in numbers(record):
                self._writer.add_scalar(name, value, step, walltime=record.get("ts"))
        elif record["event"] in {"started", "warning"}:
            text = f"```\n{to_line(record)}```"
            self._writer.add_text(record["event"], text, walltime=record.get("ts"))
        else:
            return
        self._writer.flush()  # the round is visible at once

    def close(self) -> None:
        """Write and send what is left; nothing comes after it."""
        self._writer.close()
