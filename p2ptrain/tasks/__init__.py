"""Tasks by name: the built-in ones, plug-ins, and anyone's own as `module:factory`.

`get("byte-lm", size="micro")` builds a member of the registry; `get("my_task:create", width=8)` imports `my_task`,
from the current directory too, and calls `create(width=8)`. Whatever the user got wrong comes back as a ValueError
with one line that says what to do.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from p2ptrain.registry import BadOptionError, Registry, UnknownMemberError, build
from p2ptrain.tasks.base import Batch, Generative, Shard, Task, TaskError
from p2ptrain.tasks.byte_lm import ByteLM
from p2ptrain.tasks.calling import TaskFaultError, calling
from p2ptrain.tasks.digits import Digits
from p2ptrain.tasks.hf import HFLanguageModel, HFVision
from p2ptrain.tasks.quadratic import Quadratic

__all__ = ["TASKS", "Batch", "Generative", "Shard", "Task", "TaskError", "TaskFaultError", "UnknownMemberError", "get"]

TASKS: Registry[Task] = Registry("tasks")
TASKS.register("byte-lm")(ByteLM)
TASKS.register("digits")(Digits)
TASKS.register("hf-lm")(HFLanguageModel)
TASKS.register("hf-vision")(HFVision)
TASKS.register("quadratic")(Quadratic)

EXTERNAL = "external"
"""In place of a task: model, data and loop are in the members' own programs, which call `p2ptrain.join`."""

TASK_MEMBERS = ("name", "metric", "build_model", "train_batch", "eval_batches", "loss", "tokens")
"""What `Task` asks for, to be named in the message when an object of the user's lacks some."""


def get(name: str, **options: object) -> Task:
    """Return the task `name`, or the user's own when `name` is `module:factory`, built with `options`.

    Raises TaskError (missing data, an option that does not fit, a module that cannot be imported, a result that is
    no Task, and, as a TaskFaultError with file and line, what the user's own code raises) or UnknownMemberError, which
    lists the known names.
    """
    if name == EXTERNAL:
        raise TaskError(
            "the model of this run is in its members' own programs: train it with p2ptrain.join, "
            "take it home with swarm.export"
        )
    try:
        if ":" not in name:
            return TASKS.get(name, **options)
        factory = _factory(name)
        with calling(factory, "__call__"):
            return _checked(name, build(factory, f"task {name!r}", options))
    except BadOptionError as error:
        raise TaskError(str(error)) from error


def factory_of(name: str) -> Callable[..., object]:
    """Return what builds the task `name`, the user's own included: its parameters are the task's options. Raises as
    `get`."""
    return _factory(name) if ":" in name else TASKS.factory(name)


def _factory(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise TaskError(f"task {name!r}: write module:factory, such as my_task:create")
    factory = getattr(_import(module_name), attribute, None)
    if not callable(factory):
        raise TaskError(f"task {name!r}: {module_name} has no function {attribute!r}; define it, or correct the name")
    return factory  # type: ignore[no-any-return]  # getattr's Any, narrowed to a callable


def _import(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # and there it stays: the user's module may import its neighbours later
    with calling(None, "import"):  # what the module itself raises
        return _imported(module_name)


def _imported(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise TaskError(f"module {module_name!r} needs {error.name!r}, which is not installed") from error
        hint = "run from the folder that holds it, or install it"
        raise TaskError(f"there is no module {module_name!r}; {hint} (write a.b:factory for a/b.py)") from error
    except (ImportError, SyntaxError) as error:
        raise TaskError(f"module {module_name!r} cannot be imported: {error}") from error


def _checked(name: str, result: object) -> Task:
    if isinstance(result, Task):
        return result
    missing = ", ".join(member for member in TASK_MEMBERS if not hasattr(result, member))
    raise TaskError(
        f"task {name!r} returned a {type(result).__name__} that lacks {missing}; see p2ptrain/tasks/base.py"
    )
