"""Events of a short run, as a node tells them, and what it costs to have none of an exporter's libraries."""

import math
from pathlib import Path

import pytest

from node import exporters
from node.exporters import EXPORTERS, About

BEGAN = 1_800_000_000.0


def about(folder: Path, node: str = "node-0") -> About:
    (folder / node).mkdir(parents=True, exist_ok=True)
    return About(folder=folder / node, run=folder.name, node=node)


def story(rounds: int = 3) -> list[dict]:
    """Rounds of ten seconds: eight of steps, then two of closing."""
    events: list[dict] = [
        {"ts": BEGAN, "event": "started", "peer_id": "12D3KooW", "task": "digits", "device": "cpu", "parameters": 650},
        {"ts": BEGAN, "event": "evaluated", "round": 0, "eval_loss": 2.5},
        {"ts": BEGAN + 1, "event": "rejected", "peer": "liar", "reason": "oversize", "detail": "1 GB"},
    ]
    for number in range(1, rounds + 1):
        ts = BEGAN + 10 * number
        closing = {"close_s": 2.0, "publish_s": 0.5, "collect_s": 1.25, "aggregate_s": 0.25}
        counts = {"rounds": rounds, "steps": 16, "step_s": 0.5, "round_s": 10.0, "members": 3, "closed_by": "quorum"}
        maps = {"staleness": {"a": 0, "b": number}, "rejected_by_reason": {"oversize": number}, "weights": {"a": 1.0}}
        loss = {"train_loss": 2.0 / number, "utilization": None, "rung": ""}
        events.append({"ts": ts, "event": "round", "round": number, **counts, **closing, **maps, **loss})
        events.append({"ts": ts, "event": "evaluated", "round": number, "eval_loss": 2.5 / number})
    return [*events, {"ts": ts, "event": "finished", "summary": {"rounds": rounds}}]


ODD = [
    {"ts": BEGAN, "event": "something_new", "field": object()},
    {"ts": BEGAN, "event": "started"},
    {"ts": BEGAN, "event": "round", "round": 7},
    {"ts": BEGAN, "event": "round"},
    {"ts": BEGAN, "event": "round", "round": 8, "train_loss": math.nan, "close_s": None, "staleness": {}},
    {"ts": BEGAN, "event": "evaluated", "round": 8, "eval_loss": math.inf},
    {"ts": BEGAN, "event": "warning", "message": "x" * 100_000},
]
"""Events of another version of the program, with fields missing."""


def built(name: str, folder: Path) -> exporters.Exporter:
    """The exporter, or the test is skipped where its extra is not installed."""
    try:
        exporters.check([name])
    except exporters.UsageError as error:
        pytest.skip(error.line())
    return EXPORTERS.get(name, about=about(folder))
