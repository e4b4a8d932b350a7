"""A report on nodes by their logs: how their losses fell, what that cost, who exchanged with whom, and who gained.

Times are the nodes' own clocks.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.bench.quality.intervals import estimate
from node.reporting.document import Cell, DataTable, ReportDocument, Tile
from node.reporting.fairness import fairness_sections
from node.reporting.gathered import Gathered, mean_of, metric_of, span_of
from node.reporting.loss_curves import loss_sections
from node.reporting.node_story import NodeStory
from node.reporting.timeline import tell_splits, timeline_of
from node.system import text


def run_document(gathered: Gathered) -> ReportDocument:
    """Return the report. `command`, `version` and `made` are the caller's to add."""
    stories = [story for story in gathered.stories if story.counts.events]
    runs: dict[Path, list[NodeStory]] = {}
    for story in stories:
        runs.setdefault(story.run, []).append(story)
    numbers = _numbers(stories)
    for own in runs.values():
        tell_splits(own, numbers, gathered.moments)
    title = " and ".join(run.name or "/" for run in list(runs)[:3]) + (" and more" if len(runs) > 3 else "")
    return ReportDocument(
        title=title or "no events",
        about=_about(stories, runs),
        state=_state(stories),
        tiles=_tiles(stories),
        notes=gathered.notes,
        sections=[*loss_sections(runs), *fairness_sections(stories, numbers)],
        timeline=timeline_of(gathered, numbers) if stories else None,
        tables=[_node_table(stories, several=len(runs) > 1)],
    )


def _numbers(stories: Sequence[NodeStory]) -> dict[str, int]:
    """Return nodes by peer id; of several logs of one node the last."""
    return {story.progress.peer_id: story.number for story in stories if story.progress.peer_id}


def _about(stories: Sequence[NodeStory], runs: Mapping[Path, object]) -> str:
    first = next((story.progress for story in stories if story.progress.parameters), None)
    parts = [text.plural(len(stories), "node")]
    if len(runs) > 1:
        parts.append(text.plural(len(runs), "run"))
    if first is not None:
        parts += [f"{first.parameters:,} parameters", f"{first.compressor}, {first.aggregator}"]
    start, end = span_of(stories)
    if end > start:
        parts.append(text.duration(end - start))
    return " · ".join(parts)


def _state(stories: Sequence[NodeStory]) -> str:
    states = {story.progress.state for story in stories}
    return next(iter(states)) if len(states) == 1 else "mixed ends" if states else "empty"


def _tiles(stories: Sequence[NodeStory]) -> list[Tile]:
    sent = [story.sent_bytes for story in stories if story.closed]
    known = [each for each in sent if each is not None]
    rounds = [story.progress.rounds_done for story in stories]
    bits = text.bits(
        *(mean_of(getattr(story.progress, key) for story in stories) for key in ("sent_bits", "published_bits"))
    )
    losses = [story.progress.eval_loss for story in stories if story.progress.eval_loss is not None]
    last = estimate(losses)
    start, end = span_of(stories)
    span = f"{min(rounds)} to {max(rounds)}" if rounds and min(rounds) < max(rounds) else str(max(rounds, default=0))
    metric = metric_of(stories)
    tokens = sum(story.progress.tokens for story in stories)
    half = None if last is None else last.half
    return [
        Tile(
            title="Sent by a node",
            value=statistics.fmean(known) if known else None,
            format="bytes",
            detail=bits,
            tip="All bytes to peers, copies and overhead included, the mean over nodes; published: each update once",
            wide=True,
        ),
        Tile(
            title="Held-out loss",
            value=None if last is None else last.mean,
            detail=" ".join(filter(None, [f"± {half:.3g}" if half is not None else "", metric])),
            tip="Each node's newest, the mean and its 95% interval over nodes",
            wide=True,
        ),
        Tile(
            title="Rounds",
            value=span,
            format="text",
            detail=f"of {max((s.progress.rounds for s in stories), default=0)}",
        ),
        Tile(title="Time", value=end - start, format="seconds", tip="From the first event to the last"),
        Tile(
            title="Sent by all",
            value=sum(known) if known else None,
            format="bytes",
            tip="All nodes together",
            wide=True,
        ),
        Tile(
            title="Tokens", value=tokens, format="amount", tip="Or samples, as the task counts: trained on by all nodes"
        ),
        Tile(
            title="Refused",
            value=sum(story.progress.rejected for story in stories),
            format="count",
            detail="updates",
            tip="Updates that nodes did not take",
        ),
        Tile(
            title="Updates in time",
            value=mean_of(story.progress.updates_in_time for story in stories),
            format="share",
            tip="Share of the neighbours' updates, over the newest rounds, that came in time",
        ),
    ]


def _node_table(stories: Sequence[NodeStory], *, several: bool) -> DataTable:
    rows: list[list[Cell]] = []
    for story in stories:
        it = story.progress
        name = f"{story.run.name}/{story.name}" if several else story.name
        seconds = None if story.first_ts is None or story.last_ts is None else story.last_ts - story.first_ts
        rows.append(
            [
                name,
                text.peer(it.peer_id),
                it.state if it.over else f"{it.state} when its log ends",
                f"{it.rounds_done}/{it.rounds}" if it.rounds else str(it.rounds_done),
                it.train_loss,
                it.eval_loss,
                mean_of(row[4] for row in story.rounds.rows),
                story.sent_bytes if story.closed else None,
                it.bytes_received,
                it.rejected,
                it.updates_in_time,
                seconds,
                story.counts.events,
            ]
        )
    return DataTable(
        title="Nodes",
        columns=[
            "Node",
            "Peer",
            "End",
            "Rounds",
            "Training loss",
            "Held-out loss",
            "Tokens/s",
            "Sent",
            "Received",
            "Refused",
            "In time",
            "Time",
            "Events",
        ],
        formats=[
            "text",
            "text",
            "text",
            "text",
            "plain",
            "plain",
            "amount",
            "bytes",
            "bytes",
            "count",
            "share",
            "seconds",
            "count",
        ],
        rows=rows,
        note="Tokens, or samples, as the task counts. Received: since its last start. A log is its node's claim.",
    )
