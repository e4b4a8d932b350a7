"""What a node does when the process that trains has died: another one goes on from the newest model.

The node holds its anchor, the outer parameters after the newest closed round, and its disk the optimizer's buffers of
the newest checkpoint. So what is lost are the steps of the round that was being trained. A trainer that dies twice in
one round would do so again: then the node ends.
"""

from collections.abc import Generator, Mapping

import torch
import trio

from node.events.event_types import WarningEvent
from node.system.errors import RunError
from node.system.next_command import command
from node.training.node import Node
from node.training.remote_trainer import LOOK_WHY, RemoteTrainer, TrainerLostError
from p2ptrain.inner.inner_state import whole_buffers
from p2ptrain.sync import StepsAnchor


async def go_on_anew(node: Node, lost: TrainerLostError) -> None:
    """Start another trainer, and give it the newest model. Raises TrainerLostError where one was lost in this round
    before, and where none can be started."""
    trainer = node.inner.trainer
    assert isinstance(trainer, RemoteTrainer)
    trained = node.state.round + node.state.closing
    if node.state.trainer_lost_in == trained:
        raise TrainerLostError(f"{lost.message}, for the second time in round {trained + 1}") from lost
    node.state.trainer_lost_in = trained
    message = f"{lost.message}: another one begins round {trained + 1} again, from the newest model; {LOOK_WHY}"
    node.journal.emit(WarningEvent(message=message, about="trainer"))
    await trio.to_thread.run_sync(trainer.restart, abandon_on_cancel=True)
    await node.state.until_closed()  # its correction is of the model that is lost, and its anchor is newer
    node.inner.forget_corrections()
    async with node.strategy_lock:
        anchor_d = _anchor(node)
        common = node.strategy.optimizer_state() if isinstance(node.strategy, StepsAnchor) else {}
    await node.executor.drive(_taking_over(node, trainer, anchor_d, common))
    message = f"training goes on in process {trainer.pid}"
    node.journal.emit(WarningEvent(message=message, about="trainer", recovered=True))


def forget_trainer(node: Node, lost: TrainerLostError) -> None:
    """Go on without a trainer: the last round is trained, and only evaluations are left, which start one."""
    node.inner.forget_corrections()
    message = f"{lost.message} after its last step: the model is here, and is kept; {LOOK_WHY}"
    node.journal.emit(WarningEvent(message=message, about="trainer"))


def _taking_over(
    node: Node, trainer: RemoteTrainer, anchor_d: torch.Tensor, common: Mapping[str, torch.Tensor]
) -> Generator[None, None, None]:
    """Give the new trainer its state, as work for an executor. `common`: what all members' optimizers have alike."""
    trainer.take_over(anchor_d, _kept_state(node))
    trainer.take_optimizer_state(whole_buffers(common))
    yield from ()


def _anchor(node: Node) -> torch.Tensor:
    """Return the outer parameters fp32 (d,), not a copy. Raises RunError for a strategy of a plug-in that has none."""
    anchor_d = node.strategy.state_dict().get("anchor")
    if anchor_d is None:
        again = command(node.checkpoints.folder.parent)
        raise RunError(f"the strategy {node.strategy.name} keeps no model to go on with", f"go on with {again}")
    return anchor_d


def _kept_state(node: Node) -> Mapping[str, torch.Tensor] | None:
    """Return the trainer's state in the newest checkpoint; None where there is none."""
    kept = node.checkpoints.newest()
    return None if kept is None else kept.trainer_state
