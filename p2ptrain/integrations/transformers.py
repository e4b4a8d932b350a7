"""`SwarmCallback`: the Trainer of Hugging Face, and with it those of TRL, trains together with others.

    from p2ptrain.integrations.transformers import SwarmCallback
    Trainer(..., callbacks=[SwarmCallback(swarm="invite.txt", run_dir="runs/mine")]).train()

The script stays as it is. The swarm is joined when training begins and left with the last step, before a best model is
loaded; its state lies in the Trainer's own checkpoints, and `train(resume_from_checkpoint=True)` goes on from it.
"""

from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from node.system.errors import UsageError
from node.system.run_dir import CHECKPOINTS
from p2ptrain.integrations.saved_state import load_state, save_state
from p2ptrain.integrations.swarm import Swarm, join

CHECKPOINT: Final = "checkpoint-{step}"
"""A checkpoint's folder, as the Trainer names it."""

OWN_CHECKPOINTS: Final = {"node.checkpoint_every": 0}
"""The Trainer's checkpoints decide: the node writes one at its end only."""


class SwarmCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Trains together with others. Takes the keywords of `p2ptrain.join`, all but model and optimizer.

    Give `run_dir` to be able to resume: it has the node's key. `resume_from`: the folder of the Trainer's checkpoint
    where `train` resumes from one outside of its `output_dir`.
    """

    def __init__(self, *, resume_from: str | Path | None = None, **keywords: Any) -> None:
        self._keywords = keywords
        self._resume_from = None if resume_from is None else Path(resume_from)
        self._left: dict[str, Any] | None = None
        self.swarm: Swarm | None = None
        """The swarm, while training goes on; None before and after."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Join. A second time without an end between is the Trainer's way to try a smaller batch (OOM)."""
        if args.world_size > 1:
            raise UsageError(
                f"SwarmCallback is for one process, and this training has {args.world_size}",
                "use p2ptrain.join around a loop of your own under `accelerate launch`, or start a Trainer a member",
            )
        again = self._close(cut_short=True)
        settings = {**OWN_CHECKPOINTS, **self._keywords.get("settings", {})}
        swarm = join(given["model"], given["optimizer"], **{**self._keywords, "settings": settings})
        found = again or self._saved(args, state)
        if found is not None:
            swarm.load_state_dict(found)
        elif state.global_step == 0 and (swarm.run_dir / CHECKPOINTS).is_dir():
            raise UsageError(
                f"{swarm.run_dir} has the end of a run, and this training begins anew",
                "resume it with train(resume_from_checkpoint=True), or give another run_dir",
            )
        elif state.global_step:  # a Trainer's checkpoint that was cut short, or made without the swarm: its model alone
            swarm.begin_anew()
        self.swarm = swarm.__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave with the last step, so that what is evaluated and saved after it is the model with all corrections."""
        if control.should_training_stop:
            self._close(cut_short=False)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave where another callback has ended training early."""
        if control.should_training_stop:
            self._close(cut_short=False)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Pass the loss on to those who watch the node."""
        loss = (given.get("logs") or {}).get("loss")
        if self.swarm is not None and loss is not None:
            self.swarm.tell(loss=float(loss))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Write the swarm's state into the Trainer's checkpoint."""
        if not state.is_world_process_zero:
            return
        found = self._left if self.swarm is None else self.swarm.state_dict()
        folder = _folder(args, state)
        if found is not None and folder.is_dir():
            save_state(folder, found)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave, where nothing has before."""
        self._close(cut_short=False)

    def close(self) -> None:
        """Leave the swarm at once, with the model saved. For a loop that was ended by an exception, which the Trainer
        tells no callback of; at the end of the program it happens by itself."""
        self._close(cut_short=True)

    def _close(self, *, cut_short: bool) -> dict[str, Any] | None:
        """Leave, and return the state that the swarm had; None where it was not joined."""
        swarm, self.swarm = self.swarm, None
        if swarm is None:
            return None
        self._left = swarm.leave(cut_short=cut_short)
        return self._left

    def _saved(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
        """The swarm's state in the checkpoint from which the Trainer has resumed."""
        if state.global_step == 0:
            return None
        folder = self._resume_from or _folder(args, state)
        return load_state(folder)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / CHECKPOINT.format(step=state.global_step)
