"""What the callbacks for all Trainers share: a swarm that is joined when training begins and left once, with its state
in the Trainer's own checkpoints."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch import nn

from node.roles.joined import GENESIS
from node.system.errors import P2PTrainError, UsageError
from node.system.run_dir import CHECKPOINTS
from p2ptrain.integrations.swarm import Swarm, join

CHECKPOINT_EVERY: Final = "node.checkpoint_every"
"""Not what the node does without it: the Trainer's checkpoints decide, and the node writes one at its end only."""


class TrainerSwarm:
    """The swarm of one Trainer. Under DDP every rank has one, and only rank 0's has a state."""

    def __init__(self, keywords: Mapping[str, Any], *, to_resume: str) -> None:
        """`keywords`: of `p2ptrain.join`, all but model and optimizer. `to_resume`: what a user writes to go on from
        the Trainer's checkpoint."""
        self._keywords, self._to_resume = keywords, to_resume
        self._left: dict[str, Any] = {}
        self._thread = 0
        """In which it was joined."""
        self.swarm: Swarm | None = None
        """Once it is joined; None before and after."""

    def begin(
        self,
        model: nn.Module,
        optimizer: object,
        saved: Callable[[], dict[str, Any]],
        *,
        global_step: int,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Join; again, from where it was, if it is joined. `saved`: returns the state in the checkpoint from which the
        Trainer has resumed, {} where there is none. `global_step`: steps that the Trainer has behind it. Raises
        UsageError or RunError, in every rank."""
        again = self.leave(cut_short=True)
        swarm = join(model, optimizer, **{"process_group": process_group, **self._keywords})
        if swarm.protects == "example":
            swarm.refuse(
                UsageError(
                    "[privacy]: a Trainer computes gradients of batches, and privacy.privatizer=example is of examples",
                    "take privacy.privatizer=update, or a loop of your own (swarm.private_gradients)",
                )
            )
        if not swarm.is_private and CHECKPOINT_EVERY not in (self._keywords.get("settings") or {}):
            swarm.checkpoint_at_the_end()  # a private one goes on from the node's checkpoints, and so has some
        if swarm.has_node:
            _leave_abandoned(swarm.run_dir)
            try:
                self._go_on(swarm, again or saved(), global_step)
            except P2PTrainError as error:
                swarm.refuse(error)
        self.swarm, self._thread = swarm.__enter__(), threading.get_ident()
        _JOINED[swarm.run_dir] = self

    def tell(self, loss: float) -> None:
        """Pass the loss on to those who watch the node."""
        if self.swarm is not None:
            self.swarm.tell(loss=loss)

    @property
    def budget_spent(self) -> bool:
        """Whether more steps would tell more of the data than `privacy.epsilon` allows: training is to end."""
        return self.swarm is not None and self.swarm.budget_spent

    def state(self) -> dict[str, Any]:
        """Return the swarm's state for a checkpoint, or the last one where it was left; {} where there is none."""
        return self._left if self.swarm is None else self.swarm.state_dict()

    def leave(self, *, cut_short: bool) -> dict[str, Any]:
        """Leave, and return the state that the swarm had; {} where it was not joined."""
        swarm, self.swarm = self.swarm, None
        if swarm is None:
            return {}
        _JOINED.pop(swarm.run_dir, None)
        self._left = swarm.leave(cut_short=cut_short)
        return self._left

    @property
    def is_abandoned(self) -> bool:
        """Whether another training in this thread could only begin because this one has ended, by an exception."""
        return self._thread == threading.get_ident()

    def _go_on(self, swarm: Swarm, state: dict[str, Any], global_step: int) -> None:
        if swarm.is_private:
            if global_step and not (swarm.run_dir / GENESIS).is_file():
                raise UsageError(
                    "[privacy]: this Trainer has resumed, its model has own moves in it that were not released, and "
                    f"{swarm.run_dir} has no run to go on with",
                    "give the run_dir that it had, or train from the start",
                )
        elif state:
            swarm.load_state_dict(state)
        elif global_step == 0 and (swarm.run_dir / CHECKPOINTS).is_dir():
            raise UsageError(
                f"{swarm.run_dir} has the end of a run, and this training begins anew",
                f"resume it with {self._to_resume}, or give another run_dir; without {swarm.run_dir / CHECKPOINTS} it "
                "begins anew with its key",
            )
        elif global_step:  # a Trainer's checkpoint that was cut short, or made without the swarm: its model alone
            swarm.begin_anew()


_JOINED: Final[dict[Path, TrainerSwarm]] = {}
"""Those of this process, by the node's folder."""


def _leave_abandoned(node_dir: Path) -> None:
    """Leave the swarm that an earlier training has joined with this folder and not left: not every Trainer tells its
    callbacks of an exception, and a notebook goes on after one."""
    earlier = _JOINED.get(node_dir)
    if earlier is not None and earlier.is_abandoned:
        earlier.leave(cut_short=True)
