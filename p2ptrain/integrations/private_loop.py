"""What `p2ptrain.join` watches of a loop whose steps are private one by one: its optimizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from node.system.errors import UsageError
from p2ptrain.tasks import TaskError
from p2ptrain.training.private_loop_steps import PrivateLoopSteps
from p2ptrain.training.user_model import is_inherited_step


@contextmanager
def told_as_usage() -> Iterator[None]:
    """Raise what does not fit of the user's as a UsageError."""
    try:
        yield
    except TaskError as error:
        raise UsageError(str(error)) from None


def hooks_of_private_steps(optimizer: torch.optim.Optimizer, steps: PrivateLoopSteps) -> list[Any]:
    """Have each step looked at before it is taken, also another optimizer's, and no state loaded that nothing is known
    of."""

    def looked_at(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        closures = (*args[1:], *kwargs.values()) if args and args[0] is optimizer else (*args, *kwargs.values())
        with told_as_usage():
            steps.check_step(
                has_closure=any(each is not None for each in closures), inherited=is_inherited_step(optimizer)
            )

    def another(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with told_as_usage():
            steps.check_is_no_others(optimizer)

    def loaded(optimizer: torch.optim.Optimizer, state: Any) -> None:
        raise UsageError(
            "[privacy]: the optimizer is given a state, and nothing says what it was made of",
            "leave load_state_dict out: with the same run_dir the node goes on with its own",
        )

    return [
        optimizer.register_step_pre_hook(looked_at),
        optimizer.register_load_state_dict_pre_hook(loaded),
        register_optimizer_step_pre_hook(another),
    ]
