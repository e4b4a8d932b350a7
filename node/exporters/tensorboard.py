"""TensorBoard: `tensorboard --logdir RUN` shows the nodes of a run beside each other. Written by torch's own writer.

Scalars have the names of the events' fields (docs/operations.md#events), and the round as their step.
"""

from contextlib import suppress
from typing import Any, ClassVar

from node.events.event_types import Record
from node.events.log import to_line
from node.exporters.base import About, numbers, round_of


class TensorBoard:
    """One file of events in `NODE/tensorboard/`; a restart adds another, which TensorBoard joins to it. So does what
    comes after a full disk: a writer that has failed once writes nothing any more."""

    needs: ClassVar[str] = "tensorboard"

    def __init__(self, about: About) -> None:
        self._folder = about.folder / "tensorboard"
        self._writer: Any = self._new_writer()

    def export(self, record: Record, /) -> None:
        """Write the numbers of a round or an evaluation, or the node's settings from its start."""
        step = round_of(record)
        if step is None and record["event"] not in {"started", "warning"}:
            return
        self._writer = self._writer or self._new_writer()
        try:
            self._write(record, step)
            self._writer.flush()  # the round is visible at once
        except Exception:
            failed, self._writer = self._writer, None
            with suppress(Exception):  # it has failed, and its thread may have ended
                failed.close()
            raise

    def close(self) -> None:
        """Write and send what is left; nothing comes after it."""
        if self._writer is not None:
            self._writer.close()

    def _new_writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        with suppress(FileNotFoundError):
            for file in self._folder.iterdir():  # each try on a full disk leaves one
                if not file.stat().st_size:
                    file.unlink()
        return SummaryWriter(log_dir=str(self._folder))

    def _write(self, record: Record, step: int | None) -> None:
        if step is None:
            text = f"```\n{to_line(record)}```"
            self._writer.add_text(record["event"], text, walltime=record.get("ts"))
            return
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, step, walltime=record.get("ts"))
