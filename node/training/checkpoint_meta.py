"""A checkpoint's meta.json: what may stand in it, and the digest that covers it.

    format        1
    round         the next round to train
    digest        BLAKE2b of state.safetensors, in hex
    meta_digest   BLAKE2b of all the other fields (as JSON with sorted keys), in hex; older releases wrote none
    config        the run's settings, as JSON
    distilled     of a student (node/training/distilling.py): its teachers, temperature, alpha and steps
    model         names, shapes and types of the model's state_dict (p2ptrain/training/layout.py); null where names are
                  not enough, and not there in older releases' files
    peer_id, first, steps, compute_s, wall_s, epoch    who trained, and how far it had come
    privacy       where the data are protected: the newest entry of the privacy ledger, {entries, digest}
    visits        the same of the visitors' ledger (node/visits/visitor_ledger.py)
    stood_with    where rounds withstood the liars: the peer ids of their members, the newest MAX_STOOD_WITH
    shift         where the data are watched for shift: what the detectors have seen (node/shift/watch.py)

A file without `meta_digest` is read as well, so every field is checked against its bounds, covered by a digest or not.
Nothing that `parse` returns can make a start fail.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Final

from gossip.core.ids import PeerId
from gossip.core.limits import MAX_COUNTER, MAX_STOOD_WITH
from node.privacy.chained_log import LedgerMark
from node.training.epochs import MAX_EPOCH
from p2ptrain.saved import files
from p2ptrain.saved.files import FORMAT
from p2ptrain.saved.files import MAX_META_BYTES as MAX_META_BYTES
from p2ptrain.saved.files import CheckpointError as CheckpointError
from p2ptrain.saved.files import Meta as Meta

PRIVACY: Final = "privacy"
VISITS: Final = "visits"
"""The fields of both ledgers."""

STOOD_WITH: Final = "stood_with"
"""The field of the members with whom rounds withstood the liars."""

MAX_MEASURES: Final = 64
"""Most names of first measures, such as losses; there are three today."""

MAX_NAME_CHARS: Final = 128
"""Most characters of a measure's name or of a peer id, which has 52."""

MAX_SECONDS: Final = 1e10
"""Three centuries of training."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Totals of a run's earlier processes."""

    first: dict[str, float] = field(default_factory=dict)
    """The first value of each measure; NaN where that was not a number."""
    steps: int = 0
    compute_s: float = 0.0
    wall_s: float = 0.0
    epoch: int = 0
    """The highest chain epoch that was used; 0: none, or it was not recorded."""


def dump(meta: Meta, *, round: int, state_digest: str) -> bytes:
    """Return the bytes of a meta.json that holds `meta`, which is JSON, and the other fields that `parse` needs."""
    whole = json.loads(json.dumps({**meta, "format": FORMAT, "round": round, "digest": state_digest}))
    whole["meta_digest"] = files.own_digest(whole)
    return json.dumps(whole, indent=1).encode("ascii")


def parse(data: bytes) -> Meta:
    """Return the fields of a meta.json. Raises CheckpointError where it is damaged or a field is out of bounds."""
    meta = files.parse(data)
    if not _is_name(meta.get("peer_id", "")):
        raise CheckpointError("its peer_id is none")
    totals_of(meta)
    mark_of(meta)
    mark_of(meta, VISITS)
    stood_with(meta)
    return meta


def stood_with(meta: Meta) -> list[PeerId] | None:
    """Return the members of rounds that withstood the liars; None where none did, or an older release wrote it. Raises
    CheckpointError for a field out of bounds."""
    peers = meta.get(STOOD_WITH)
    if peers is not None and (
        not isinstance(peers, list) or len(peers) > MAX_STOOD_WITH or not all(map(_is_name, peers))
    ):
        raise CheckpointError(f"its {STOOD_WITH} is no list of peer ids")
    return peers


def mark_of(meta: Meta, ledger: str = PRIVACY) -> LedgerMark | None:
    """Return the newest entry of the privacy ledger when the checkpoint was made, or of the visitors' (VISITS); None
    where there was none. Raises CheckpointError for a field out of bounds."""
    mark = meta.get(ledger)
    if mark is None:
        return None
    if not isinstance(mark, dict) or not _is_name(mark.get("digest")):
        raise CheckpointError("its place in the privacy ledger is none")
    return LedgerMark(_count(mark.get("entries"), "entries of the privacy ledger"), mark["digest"])


def totals_of(meta: Meta) -> Totals:
    """Return the totals in what `parse` returned. Raises CheckpointError for a field out of bounds."""
    return Totals(
        first=_measures(meta.get("first", {})),
        steps=_count(meta.get("steps", 0), "steps"),
        compute_s=_seconds(meta.get("compute_s", 0.0), "compute_s"),
        wall_s=_seconds(meta.get("wall_s", 0.0), "wall_s"),
        epoch=_count(meta.get("epoch", 0), "epoch", most=MAX_EPOCH),
    )


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
    """Return a first measure. A loss may be NaN (every step was skipped) or infinite: older releases wrote it so."""
    if type(value) is int and abs(value) <= MAX_COUNTER:
        return float(value)
    if not isinstance(value, float):
        raise CheckpointError("one of its first measures is no number")
    return value if math.isfinite(value) else math.nan


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS
