"""A task is its author's code: what it raises, or returns amiss, is said to its author, with file and line.

Everything that calls a task goes through `calling`. A fault of a built-in task stays a fault of ours.
"""

from types import CodeType

import torch

from p2ptrain import faults
from p2ptrain.tasks.base import Task, TaskError

MEND = "mend it there; --debug shows how it was reached"

SMALLER_BATCH = (
    "lower train.batch_size (more train.grad_accumulation keeps a step's examples), train.eval_examples, or the model"
)


class TaskFaultError(TaskError):
    """The task's own code failed. `message` says what and where, `hint` what to do; the text is both."""

    def __init__(self, message: str, hint: str = MEND) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message, self.hint = message, hint


class calling:  # noqa: N801 - it is used as a function; one made of a generator costs a step of a small model 5%
    """Around a call of the task's `method`: what the task's code raises becomes a TaskFaultError with its place, and
    what is raised for want of memory one that says how much. What built-in tasks raise, TaskErrors, and what says that
    the device is lost, pass."""

    def __init__(self, task: object, method: str) -> None:
        self._task, self._method = task, method

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, TaskError):
            return
        if (fault := _fault_of(error, self._task, self._method)) is not None:
            raise fault from error


def _fault_of(error: Exception, task: object, method: str) -> TaskFaultError | None:
    if faults.is_device_lost(error):
        return None  # wherever it showed: it is no line of the task's that is to be mended
    place = faults.place_of(error, _package(task)) or place_of_method(task, method)
    if faults.is_out_of_memory(error):
        hint = "a smaller model" if method == "build_model" else SMALLER_BATCH
        return TaskFaultError(f"{faults.out_of_memory(error)}{f' at {place}' if place else f' in {method}'}", hint)
    return TaskFaultError(f"{place} raised {faults.what_of(error)}") if place else None


def checked_loss(task: Task, loss: object, *, trains: bool) -> torch.Tensor:
    """Return the scalar that `task.loss` returned. TaskFaultError for anything else, and, where it `trains`, for a
    number on which no parameter has an influence."""
    at = place_of_method(task, "loss") or f"the task {task.name}"
    if not isinstance(loss, torch.Tensor):
        raise TaskFaultError(
            f"{at}: loss() returned a {type(loss).__name__}", "return a tensor: the mean over the batch"
        )
    if loss.ndim:
        shape = tuple(loss.shape)
        raise TaskFaultError(
            f"{at}: loss() returned a tensor of shape {shape}, which is no scalar",
            "return the mean over the batch: .mean()",
        )
    if not loss.is_floating_point():
        raise TaskFaultError(f"{at}: loss() returned a number of type {loss.dtype}", "return a floating-point one")
    if trains and not loss.requires_grad:
        raise TaskFaultError(
            f"{at}: the loss does not depend on any parameter of the model",
            "compute it from model(...) without .item(), .detach() or torch.no_grad()",
        )
    return loss


def place_of_method(task: object, method: str) -> str:
    """`file:line` where a task of the user's own defines `method`; empty for our own, and where there is no source."""
    code = getattr(getattr(getattr(task, method, None), "__func__", None), "__code__", None)
    module = str(getattr(getattr(task, method, None), "__module__", ""))
    if not isinstance(code, CodeType) or module.partition(".")[0] in faults.OURS:
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _package(task: object) -> str:
    top = str(getattr(task, "__module__", "")).partition(".")[0]
    return "" if top in faults.OURS else top
