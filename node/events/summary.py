"""The summary of a finished run: `summary.json` of a node and of a swarm. Other programs read these keys."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from node.system.errors import UsageError
from node.system.run_dir import write_atomic as write_bytes


@dataclass(frozen=True, kw_only=True)
class NodeSummary:
    """One node's run. Losses are in the task's metric, times in seconds; None where there was nothing to measure."""

    peer_id: str
    rounds: int
    steps: int
    tokens: int
    wall_s: float
    compute_s: float
    utilization: float
    """Share of the wall time, from the first inner step to the last, in which the node computed on the task."""
    train_loss_first: float | None
    train_loss_last: float | None
    eval_loss_first: float | None
    eval_loss_last: float | None
    consensus_distance: float | None
    payload_bytes_sent: int
    payload_bytes_received: int
    dense_bytes_equivalent: int
    """Bytes that as many copies of the fp32 parameters would have taken as copies of updates were sent."""
    compression_ratio: float | None
    """dense_bytes_equivalent / payload_bytes_sent; None when nothing was sent."""
    updates_accepted: int
    updates_rejected: dict[str, int] = field(default_factory=dict)
    neighbours: int
    aggregator: str
    compressor: str
    resumed_from: str | None = None
    updates_in_time: float | None = None
    """Share of the neighbours' updates that arrived before the end of the phase after their round, in the last process
    only. None without neighbours, and in summaries of older releases."""
    eval_round: int | None = None
    """Rounds after which eval_loss_last was measured. None where it was not, and in summaries of older releases."""
    own: dict[str, float] = field(default_factory=dict)
    """The task's own metrics, measured with eval_loss_last."""
    bytes_sent: int | None = None
    """All bytes to peers in the last process: every copy of an update, whole models, announcements, framing and
    handshakes. None in summaries of older releases, as are the fields below."""
    bytes_received: int | None = None
    """All bytes from peers in the last process."""
    parameters: int | None = None
    sent_bits: float | None = None
    """`bytes_sent` as bits for each parameter and inner step."""
    published_bits: float | None = None
    """The same of one copy of each update, without any overhead."""


@dataclass(frozen=True, kw_only=True)
class SwarmTotals:
    """The honest nodes together. Losses are their means (the last losses only of those after the same, newest round);
    the distance is between their final models."""

    eval_loss_first: float | None
    eval_loss_last: float | None
    eval_loss_mean_model: float | None
    consensus_distance: float | None
    honest: int
    byzantine: int
    wall_s: float
    updates_in_time: float | None = None
    own: dict[str, float] = field(default_factory=dict)
    """The task's own metrics, of the averaged model."""
    bytes_sent: float | None = None
    """All bytes to peers, copies and overhead included: the mean over the honest nodes that finished."""
    sent_bits: float | None = None
    """The same as bits for each parameter and inner step."""
    published_bits: float | None = None
    """The same of one copy of each update, without any overhead."""
    all_reduce_bits: float | None = None
    """What each of as many nodes sends in synchronous data parallel: a ring all-reduce of fp32 at every inner step."""


@dataclass(frozen=True, kw_only=True)
class SwarmSummary:
    """The summary that `p2ptrain up` writes: every node that finished, and the swarm."""

    nodes: tuple[NodeSummary, ...]
    swarm: SwarmTotals


def to_json(summary: NodeSummary | SwarmSummary) -> dict[str, Any]:
    """Return the summary as JSON values: a NaN loss (every step of a phase was skipped) becomes null."""
    return {key: _finite(value) for key, value in asdict(summary).items()}


def _finite(value: Any) -> Any:  # JSON values
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_atomic(summary: NodeSummary | SwarmSummary, path: Path) -> None:
    """Write `summary.json` whole or not at all. Raises RunError when the disk does not take it."""
    write_bytes(path, (json.dumps(to_json(summary), indent=2, allow_nan=False, default=str) + "\n").encode())


def read_node_summary(path: Path) -> NodeSummary | None:
    """Return a node's summary; None when it never wrote one. Raises UsageError when the file is something else."""
    try:
        raw = json.loads(path.read_bytes())
        return NodeSummary(**{key.name: raw[key.name] for key in fields(NodeSummary) if key.name in raw})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a node's summary ({type(error).__name__}: {error})") from error


def last_evaluation(summaries: Sequence[NodeSummary]) -> float | None:
    """Return the mean of the last held-out losses, over the nodes that measured theirs after the most rounds: an
    earlier one is of an older model than the others'."""
    newest = max((each.eval_round for each in summaries if each.eval_round is not None), default=None)
    return mean([each.eval_loss_last for each in summaries if each.eval_round == newest])


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
