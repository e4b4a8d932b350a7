"""What `Swarm.state_dict` returns, and what of it `Swarm.load_state_dict` takes: all of it, or nothing.

`checked` looks at the state alone, `check_fits` at the member that is to go on from it. A state that passes both is
what a strategy with this member's settings would write itself.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from gossip.core.limits import MAX_COUNTER
from node.config.schema import Config
from node.roles.assembly import GENESIS_DIGITS
from node.roles.joined import GENESIS, GENESIS_KEY
from node.system.errors import UsageError
from node.training.checkpoint import Checkpoint
from node.training.checkpoint_meta import CheckpointError, totals_of
from p2ptrain.sync import build
from p2ptrain.training.flat import all_finite
from p2ptrain.training.late_average import LATE, LateAverage
from p2ptrain.training.user_model import UserModel

STATE_FORMAT: Final = 2
"""Of `state_dict`. Format 1 named neither model nor tensors; no release has written it."""

COUNTERS: Final = "trainer.counters"
"""Steps, tokens and skipped steps: int64 (3,)."""

_SYNC: Final = "sync."
_KEYS: Final = frozenset({"format", "round", "meta", "model", "names", "tensors"})


def state_of(checkpoint: Checkpoint, fingerprint: bytes) -> dict[str, Any]:
    """Return the state of a member whose model has this fingerprint, as a dict of JSON values and `tensors`."""
    return {
        "format": STATE_FORMAT,
        "round": checkpoint.round,
        "meta": checkpoint.meta,
        "model": fingerprint.hex(),
        "names": sorted(checkpoint.tensors),
        "tensors": checkpoint.tensors,
    }


def checked(state: object) -> tuple[Checkpoint, str]:
    """Return what `state_of` was made of: the checkpoint, and the fingerprint in hex. Raises UsageError for anything
    else, however it was damaged."""
    is_state = isinstance(state, Mapping) and type(state.get("format")) is int and state["format"] == STATE_FORMAT
    if not isinstance(state, Mapping) or not is_state:
        raise UsageError("this is no state of a swarm", "give what Swarm.state_dict returned")
    if state.keys() != _KEYS:
        wrong = sorted(map(str, state.keys() ^ _KEYS))
        raise _damaged(f"missing, or none of its keys: {', '.join(wrong)}")
    round_, meta, model, names, tensors = (state[key] for key in ("round", "meta", "model", "names", "tensors"))
    if type(round_) is not int or not 0 <= round_ <= MAX_COUNTER:
        raise _damaged(f"its round is {round_!r}")
    if not isinstance(model, str) or not isinstance(meta, Mapping):
        raise _damaged("it does not say of which model it is")
    if not isinstance(meta.get("peer_id"), str) or not isinstance(meta.get(GENESIS_KEY), str):
        raise _damaged("it does not say of which run it is")
    try:
        totals_of(dict(meta))
    except CheckpointError as error:
        raise _damaged(str(error)) from None
    if not isinstance(tensors, Mapping) or not isinstance(names, list) or names != sorted(map(str, tensors)):
        raise _damaged("its tensors are not those that it names")
    for name, value in tensors.items():
        _check_tensor(name, value)
    _check_counters(tensors.get(COUNTERS))
    held = {name: value.detach().to("cpu") for name, value in tensors.items()}
    return Checkpoint(round=round_, meta=dict(meta), tensors=held), model


def check_fits(
    checkpoint: Checkpoint, model: str, *, learner: UserModel, config: Config, peer_id: str, folder: Path
) -> None:
    """Raise UsageError unless the member with this learner, settings, key and run folder can go on from what `checked`
    has returned. Nothing of the learner is changed."""
    if checkpoint.meta["peer_id"] != peer_id:
        raise UsageError(
            f"this state is of the member {checkpoint.meta['peer_id']}, and the key in {folder} is that of {peer_id}",
            "give the run_dir that it was made with",
        )
    if model != learner.fingerprint.hex():
        raise UsageError(
            "this state is of another model: names or shapes of what is trained differ",
            "build the model, and freeze of it, as when the state was made",
        )
    genesis = folder / GENESIS
    if genesis.is_file() and checkpoint.meta[GENESIS_KEY] != _digest_of(genesis):
        raise UsageError(
            f"this state is of another run than the one in {folder}, which began with another initial model",
            "give the run_dir that it was made with",
        )
    _check_sync(checkpoint.part("sync"), learner.numel, config, peer_id)
    try:
        LateAverage(1.0).load_state_dict(checkpoint.part(LATE.removesuffix(".")), learner.numel)
    except ValueError as error:
        raise _damaged(str(error)) from None


def _check_sync(state: dict[str, torch.Tensor], numel: int, config: Config, peer_id: str) -> None:
    """Raise UsageError unless a strategy for a model of `numel` parameters takes this state, and would write the same
    one."""
    hint = "go on with the settings (sync.*) that it was made with, or from the checkpoint before"
    anchor_d = state.get("anchor")
    try:
        if anchor_d is None:
            raise ValueError("its anchor is missing")
        if anchor_d.shape != (numel,):
            raise ValueError(f"its anchor is no vector of {numel} parameters")
        strategy = build(config.sync, anchor_d, peer_id, judge=lambda model_d, round: 0.0, rounds=config.train.rounds)
        strategy.load_state_dict(state)
        again = strategy.state_dict()
    except (ValueError, TypeError, RuntimeError, LookupError) as error:  # of torch's, too: what it was given is a claim
        raise UsageError(f"the swarm's state does not fit these settings, or is damaged: {error}", hint) from None
    if again.keys() != state.keys() or not all(_same(again[name], value) for name, value in state.items()):
        raise UsageError("the swarm's state does not fit these settings, or is damaged", hint)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def _check_tensor(name: object, value: object) -> None:
    if not isinstance(name, str) or not (name == COUNTERS or name.startswith((_SYNC, LATE))):
        raise _damaged(f"{name!r} is no tensor of a swarm's state")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_complex() or value.is_meta:
        raise _damaged(f"{name} is no dense tensor of real numbers")
    if value.is_floating_point() and not all_finite(value.detach().flatten()):
        raise _damaged(f"{name} is not finite")


def _check_counters(counters: torch.Tensor | None) -> None:
    if counters is None or counters.dtype is not torch.int64 or counters.shape != (3,):
        raise _damaged("its counters are none")
    if not all(0 <= count <= MAX_COUNTER for count in counters.tolist()):
        raise _damaged("its counters are out of bounds")


def _digest_of(genesis: Path) -> str:
    """The first digits of the initial model's digest, as `Node.genesis` has them."""
    with genesis.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()[:GENESIS_DIGITS]


def _damaged(why: str) -> UsageError:
    return UsageError(f"the swarm's state is damaged: {why}", "take it from an earlier checkpoint")
