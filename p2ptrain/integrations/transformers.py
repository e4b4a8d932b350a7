"""`SwarmCallback`: the Trainer of Hugging Face, and with it those of TRL, trains together with others.

    from p2ptrain.integrations.transformers import SwarmCallback
    Trainer(..., callbacks=[SwarmCallback(swarm="invite.txt", run_dir="runs/mine")]).train()

The script stays as it is, and so does the way it is started: under `torchrun` or `accelerate launch` its processes are
one member. The swarm is joined when training begins and left with the last step, before a best model is loaded; its
state lies in the Trainer's own checkpoints, and `train(resume_from_checkpoint=True)` goes on from it.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from node.system.errors import UsageError
from p2ptrain.integrations.saved_state import load_state, save_state
from p2ptrain.integrations.swarm import Swarm
from p2ptrain.integrations.trainer_swarm import TrainerSwarm

CHECKPOINT: Final = "checkpoint-{step}"
"""A checkpoint's folder, as the Trainer names it."""

SHARDED: Final = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)
"""Ways to train in which no process has the whole model."""


class SwarmCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Trains together with others. Takes the keywords of `p2ptrain.join`, all but model and optimizer.

    Give `run_dir` to be able to resume: it has the node's key. `resume_from`: the folder of the Trainer's checkpoint
    where `train` resumes from one outside of its `output_dir`.
    """

    def __init__(self, *, resume_from: str | Path | None = None, **keywords: Any) -> None:
        self._training = TrainerSwarm(keywords, to_resume="train(resume_from_checkpoint=True)")
        self._resume_from = None if resume_from is None else Path(resume_from)

    @property
    def swarm(self) -> Swarm | None:
        """The swarm, while training goes on; None before and after."""
        return self._training.swarm

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Join. A second time without an end between is the Trainer's way to try a smaller batch (OOM)."""
        how = AcceleratorState().distributed_type
        if how in SHARDED:
            raise UsageError(
                f"SwarmCallback wants the whole model in each process, and {how.value} shards it",
                "train with DDP (torchrun or accelerate launch, without fsdp and deepspeed), or in one process",
            )
        self._training.begin(
            given["model"],  # without its DDP wrapper, which would say of which ranks it is
            given["optimizer"],
            partial(self._saved, args, state),
            global_step=state.global_step,
            process_group=dist.group.WORLD if args.world_size > 1 else None,
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave with the last step, so that what is evaluated and saved after it is the model with all corrections. It
        is the last one, too, once the budget of privacy is spent."""
        control.should_training_stop = control.should_training_stop or self._training.budget_spent
        if control.should_training_stop:
            self._training.leave(cut_short=False)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave where another callback has ended training early."""
        if control.should_training_stop:
            self._training.leave(cut_short=False)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Pass the loss on to those who watch the node."""
        loss = (given.get("logs") or {}).get("loss")
        if loss is not None:
            self._training.tell(float(loss))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Write the swarm's state into the Trainer's checkpoint."""
        if not state.is_world_process_zero:
            return
        found, folder = self._training.state(), _folder(args, state)
        if found and folder.is_dir():
            save_state(folder, found)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave, where nothing has before."""
        self._training.leave(cut_short=False)

    def close(self) -> None:
        """Leave the swarm at once, with the model saved. For a loop that was ended by an exception, which the Trainer
        tells no callback of; at the end of the program it happens by itself."""
        self._training.leave(cut_short=True)

    def _saved(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
        """The swarm's state in the checkpoint from which the Trainer has resumed."""
        if state.global_step == 0:
            return {}
        return load_state(self._resume_from or _folder(args, state))


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / CHECKPOINT.format(step=state.global_step)
