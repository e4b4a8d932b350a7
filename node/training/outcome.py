"""Whether a run may begin, and whether its end is a success: a usable model on disk, learned together."""

from node.events.event_types import WarningEvent
from node.system.errors import LOOK_AT_THE_DEVICE, RunError, first_leaf, lost_device, translate
from node.system.next_command import command
from node.training import checkpoint_room
from node.training.node import Node
from node.training.remote_trainer import TrainerLostError
from p2ptrain.saved.filed_vector import OPTIMIZER, LostVectorError
from p2ptrain.sync.sliced_vectors import LostSliceError
from p2ptrain.training import Trainer
from p2ptrain.training.site.orders import RankLostError


def check_room(node: Node) -> None:
    """Raise RunError where the disk has no room for one checkpoint, and there are rounds left to train."""
    if not node.state.finished:
        store = node.checkpoints
        trainer = node.inner.trainer
        parameters = trainer.trained_numel if isinstance(trainer, Trainer) else trainer.numel
        checkpoint_room.check(store.folder, parameters, node.config, spare=store.spare_bytes())


def check_saved(node: Node) -> None:
    """Raise RunError where the newest model is not on disk."""
    if node.state.unsaved is None:
        return
    kept = node.checkpoints.newest_whole()
    newest = "no checkpoint is there" if kept is None else f"the newest checkpoint is {kept}"
    then = "begin again" if kept is None else "go on from there"
    raise RunError(
        f"trained {node.state.round} rounds, but the model was not saved: {node.state.unsaved}; {newest}",
        f"then {then}: {command(node.checkpoints.folder.parent)}",
    )


def note_lost_device(node: Node, error: BaseException) -> bool:
    """Note and report, the first time, that `error` in training means that the device is lost; False for any other."""
    said = lost_device(error)
    if said and not node.state.device_lost:
        node.state.device_lost = said
        device = node.inner.trainer.device
        message = f"{device} was lost ({said}): training has ended, and neighbours may still fetch what is here"
        node.journal.emit(WarningEvent(message=message, about="device"))
    return bool(said)


def device_lost(node: Node) -> RunError:
    """Return what to tell of a lost device. What it held cannot be read any more: the run goes on from the newest
    checkpoint."""
    again = command(node.checkpoints.folder.parent)
    return RunError(
        f"{node.inner.trainer.device} was lost in round {node.state.round} ({node.state.device_lost}); {_newest(node)}",
        f"{LOOK_AT_THE_DEVICE}, and go on with {again} (another device: --set train.device=...)",
    )


def trainer_lost(node: Node, error: BaseException) -> RunError | None:
    """Return what to tell of an `error` that means that the process that trains has ended for good; None for any
    other."""
    lost = translate(error)
    if not isinstance(lost, TrainerLostError):
        return None
    again = command(node.checkpoints.folder.parent)
    return RunError(f"{lost.message}; {_newest(node)}", f"{lost.hint}, and go on with {again}")


def rank_lost(node: Node, error: BaseException) -> RunError | None:
    """Return what to tell of an `error` that means that a rank of this model has ended or hangs, or has failed with its
    slice of the vectors; None for any other."""
    lost = first_leaf(error, RankLostError) or first_leaf(error, LostSliceError)
    if lost is None:
        return None
    return RunError(
        f"{lost}; {_newest(node)}", "torchrun --max-restarts starts all ranks again, which go on from there"
    )


def vector_lost(node: Node, error: BaseException) -> RunError | None:
    """Return what to tell of an `error` that means that a vector cannot be read from the disk; None for any other."""
    said = first_leaf(error, LostVectorError)
    if not isinstance(said, LostVectorError):
        return None
    again = command(node.checkpoints.folder.parent)
    setting = "node.optimizer_on" if said.holds == OPTIMIZER else "node.estimates_on"
    return RunError(f"{said}; {_newest(node)}", f"look at the disk, and go on with {again} --set {setting}=memory")


def _newest(node: Node) -> str:
    kept = node.checkpoints.newest_whole()
    return "no checkpoint was written before" if kept is None else f"the newest checkpoint is {kept}"


def check_taken(node: Node) -> None:
    """Report that a node has learned alone, where every update that arrived was refused. Raises RunError where more
    than f peers sent them, so that at least one is honest. Warns only where all of them may be liars, who must not
    decide how another node's run ends."""
    refused = node.counts.refused
    if not refused or node.counts.deltas:
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in node.service.stats.rejected_by_reason.items())
    message = (
        f"trained {node.state.round} rounds, but alone: "
        f"none of {refused.total()} updates of {len(refused)} neighbours could be taken ({reasons})"
    )
    hint = "the model is saved; see that all members run the same release, codecs and settings"
    if len(refused) > node.config.sync.f:
        raise RunError(message, hint)
    node.journal.emit(WarningEvent(message=f"{message}; {hint}"))
