"""Learning together without a coordinator: the numerics of p2ptrain, with no network and no clock.

    >>> import torch
    >>> from p2ptrain import aggregate, attacks, compress

    >>> honest_nd = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    >>> lies_nd = attacks.get("sign_flip")(honest_nd, 2)
    >>> payloads = [compress.get("q2").encode(x_d) for x_d in torch.cat([honest_nd, lies_nd])]
    >>> seen_nd = torch.stack([compress.get("q2").decode(payload, numel=1000) for payload in payloads])
    >>> aggregate.get("trimmed_mean", f=2)(seen_nd).shape
    torch.Size([1000])

`join` trains a model of your own together with others, from a loop of your own:

    with p2ptrain.join(model, optimizer, swarm="invite.txt") as swarm:
        ...

What it raises is a `P2PTrainError`: a `UsageError` for what cannot be meant, a `RunError` for what has failed.

`load` reads the model of a run's folder, with the names of the task's own model:

    state = p2ptrain.load("runs/first")
    model.load_state_dict(state)

docs/api.md says what of this stays from release to release, docs/methods.md which member to choose when.

The parts are loaded when they are first asked for, so that a command that needs no torch does not wait for it.
"""

import importlib
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from p2ptrain.integrations.swarm import P2PTrainError as P2PTrainError
    from p2ptrain.integrations.swarm import RunError as RunError
    from p2ptrain.integrations.swarm import UsageError as UsageError
    from p2ptrain.integrations.swarm import join as join

_PARTS = ("aggregate", "attacks", "compress", "outer", "sync")
_OF_JOIN = ("P2PTrainError", "RunError", "UsageError", "join")
__all__ = [
    "P2PTrainError",
    "RunError",
    "UsageError",
    "aggregate",
    "attacks",
    "compress",
    "join",
    "load",
    "outer",
    "sync",
]


def load(run: str | PathLike[str], node: str | None = None) -> "dict[str, torch.Tensor]":
    """Return the model of a run's folder (the mean of its honest nodes' models), of a node's folder, or of the node
    `node`, as `load_state_dict(strict=True)` of the task's model takes it: fp32 on the CPU, buffers in types of their
    own.

    Raises ValueError, in one line, where there is no such run, node or whole checkpoint, or the model is not finite. A
    checkpoint of an older release has no names, and the task is built for them: then also TaskError, and what a task of
    your own raises.

    >>> load("runs/no-such-run")
    Traceback (most recent call last):
    ...
    p2ptrain.saved.models.SavedModelError: there is no run folder runs/no-such-run
    """
    from pathlib import Path

    from p2ptrain.saved.models import models_of, state_dict

    return state_dict(models_of(Path(run), node).models)


def __getattr__(name: str) -> Any:
    """Import a public part of the package on first use. AttributeError for any other name."""
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _OF_JOIN:
        return getattr(importlib.import_module(f"{__name__}.integrations.swarm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
