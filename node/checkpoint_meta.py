"""A checkpoint's meta.json: what may stand in it, and the digest that covers it.

    format        1
    round         the next round to train
    digest        BLAKE2b of state.safetensors, in hex
    meta_digest   BLAKE2b of all the other fields (as JSON with sorted keys), in hex; older releases wrote none
    config        the run's settings, as JSON
    peer_id, first, steps, compute_s, wall_s, epoch    who trained, and how far it had come

A file without `meta_digest` is read as well, so every field is held to its bounds whether or not a digest covers it.
Nothing that `parse` returns can stop a start.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from gossip.protocol.limits import MAX_COUNTER
from node.epochs import MAX_EPOCH

Meta = dict[str, Any]

FORMAT: Final = 1

MAX_META_BYTES: Final = 1 << 20
"""The settings of a run take some 6 kB; chosen, so that a file of junk is not read to its end."""

MAX_MEASURES: Final = 64
"""Names of first losses and the like; there are three today."""

MAX_NAME_CHARS: Final = 128
"""Of a measure or a peer id, which has 52."""

MAX_SECONDS: Final = 1e10
"""Three centuries of training."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class CheckpointError(ValueError):
    """A folder that is no valid checkpoint; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a run's earlier processes came to."""

    first: dict[str, float] = field(default_factory=dict)
    """The first value of each measure; NaN where that was no number."""
    steps: int = 0
    compute_s: float = 0.0
    wall_s: float = 0.0
    epoch: int = 0
    """The highest chain epoch that was used; 0: none, or nobody wrote it down."""


def digest_of(data: bytes) -> str:
    """BLAKE2b with 32 bytes, in hex."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def dump(meta: Meta, *, round: int, state_digest: str) -> bytes:
    """The bytes of a meta.json that holds `meta`, which is JSON, and what `parse` wants beside it."""
    whole = json.loads(json.dumps({**meta, "format": FORMAT, "round": round, "digest": state_digest}))
    whole["meta_digest"] = _own_digest(whole)
    return json.dumps(whole, indent=1).encode("ascii")


def parse(data: bytes) -> Meta:
    """The fields of a meta.json. CheckpointError for what is damaged, or outside its bounds."""
    if len(data) > MAX_META_BYTES:
        raise CheckpointError(f"it has more than {MAX_META_BYTES} bytes")
    try:
        meta = json.loads(data.decode("utf-8"), parse_float=_finite)
        if not isinstance(meta, dict):
            raise CheckpointError("it holds no fields")
        if "meta_digest" in meta and meta["meta_digest"] != _own_digest(meta):
            raise CheckpointError("it does not match its digest: cut short or damaged")
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested a thousand deep
        raise CheckpointError(f"it is no JSON of a checkpoint's: {error}") from error
    _check(meta)
    return meta


def totals_of(meta: Meta) -> Totals:
    """The totals in what `parse` returned. CheckpointError for what is outside its bounds."""
    return Totals(
        first=_measures(meta.get("first", {})),
        steps=_count(meta.get("steps", 0), "steps"),
        compute_s=_seconds(meta.get("compute_s", 0.0), "compute_s"),
        wall_s=_seconds(meta.get("wall_s", 0.0), "wall_s"),
        epoch=_count(meta.get("epoch", 0), "epoch", most=MAX_EPOCH),
    )


def _check(meta: Meta) -> None:
    if type(meta.get("format")) is not int or meta["format"] != FORMAT:
        raise CheckpointError(f"it is not of format {FORMAT}")
    _count(meta.get("round"), "round")
    if not (isinstance(meta.get("digest"), str) and _DIGEST.fullmatch(meta["digest"])):
        raise CheckpointError("its digest of the tensors is none")
    if not isinstance(meta.get("config"), dict):
        raise CheckpointError("its config is none")
    if not _is_name(meta.get("peer_id", "")):
        raise CheckpointError("its peer_id is none")
    totals_of(meta)


def _own_digest(meta: Meta) -> str:
    covered = {key: value for key, value in meta.items() if key != "meta_digest"}
    return digest_of(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _finite(text: str) -> float:
    """Of a JSON number with a fraction or an exponent. `1e400` is infinite to `float`, and never what we wrote."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:MAX_NAME_CHARS]} is beyond all bounds")
    return value


def _count(value: object, name: str, most: int = MAX_COUNTER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise CheckpointError(f"its {name} is no count up to {most}")
    return value


def _seconds(value: object, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS:  # type: ignore[operator]  # a number
        raise CheckpointError(f"its {name} is no time")
    return float(value)  # type: ignore[arg-type]


def _measures(value: object) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MAX_MEASURES or not all(map(_is_name, value)):
        raise CheckpointError("its first measures are none")
    return {name: _measure(each) for name, each in value.items()}


def _measure(value: object) -> float:
    """A loss may be no number (every step was skipped) or infinite, and older releases wrote it like that."""
    if type(value) is int and abs(value) <= MAX_COUNTER:
        return float(value)
    if not isinstance(value, float):
        raise CheckpointError("one of its first measures is no number")
    return value if math.isfinite(value) else math.nan


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS
