"""A report on nodes by their logs: how their losses fell, what that cost, who exchanged with whom, and who gained.

Bands are 95% intervals of the mean over nodes, by Student's t. Times are the nodes' own clocks.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.bench.quality.intervals import estimate
from node.page.history import Row
from node.page.members import points_for
from node.reporting.document import Cell, DataTable, Line, LineChart, ReportDocument, Section, Tile, Timeline
from node.reporting.node_story import Moments, NodeStory
from node.reporting.partitions import splits
from node.reporting.thinning import PICTURED, Frames
from node.system import text

BUCKETS: Final = 256
"""Rounds are gathered into so many for a band, as many as a screen tells apart."""

LINES: Final = 8
"""Nodes with a line of their own: as many as there are colours."""

LEVELS: Final = 5
"""Losses to which the time is told, evenly from the first almost to the best."""

MAX_METRIC: Final = 40
"""Most characters of a metric's name, which stands at axes."""

DECILES: Final = 10

Estimates = list[tuple[float, float, float | None, float | None]]
"""(x, mean, lower, upper)."""


@dataclass(frozen=True)
class Bucket:
    """The means over nodes of what they measured within some rounds."""

    round: int
    seconds: float | None
    sent: float | None
    loss: float
    half: float | None


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everything that was read."""

    stories: Sequence[NodeStory]
    frames: Frames
    moments: Moments
    notes: Sequence[str]


def gather(logs: Sequence[tuple[Path, Path]], notes: Iterable[str] = ()) -> Gathered:
    """Read the logs, one after the other. RunError where one cannot be read."""
    frames, moments = Frames(), Moments()
    names = _names([log for log, _ in logs])
    points = points_for(len(logs))
    stories = [NodeStory(number, names[log], run, points) for number, (log, run) in enumerate(logs)]
    for story, (log, _) in zip(stories, logs, strict=True):
        story.read(log, frames, moments)
    said = [*notes, *(note for story in stories for note in _notes(story)), *_twice(stories)]
    if frames.left_out:
        said.append(f"{text.plural(frames.left_out, 'exchange')} left out of the picture: it holds no more")
    return Gathered(stories=stories, frames=frames, moments=moments, notes=said)


def _names(logs: Sequence[Path]) -> dict[Path, str]:
    """Return each log's folder, with folders above it where several have the same name."""
    depth: dict[Path, int] = dict.fromkeys(logs, 1)
    while True:
        names = {log: "/".join(log.absolute().parent.parts[-depth[log] :]) for log in logs}
        seen: dict[str, list[Path]] = {}
        for log, name in names.items():
            seen.setdefault(name, []).append(log)
        twice = [log for each in seen.values() if len(each) > 1 for log in each]
        deeper = [log for log in twice if depth[log] < len(log.absolute().parent.parts)]
        if not deeper:
            return {log: f"{name}/{log.name}" if log in twice else name for log, name in names.items()}
        for log in deeper:
            depth[log] += 1


def _notes(story: NodeStory) -> list[str]:
    said = story.counts.notes(story.name)
    if not story.counts.events:
        said.append(f"{story.name}: there is no event in it")
    if story.uncounted_bytes:
        said.append(f"{story.name} is of a release that did not count all bytes sent")
    if story.links_left_out:
        said.append(f"{story.name}: {story.links_left_out} comings and goings of neighbours were not looked through")
    return said


def _twice(stories: Sequence[NodeStory]) -> list[str]:
    known: dict[str, str] = {}
    said = []
    for story in stories:
        peer = story.progress.peer_id
        if peer and peer in known:
            said.append(f"{known[peer]} and {story.name} are logs of the same node: it counts twice")
        known.setdefault(peer, story.name)
    return said


def run_document(gathered: Gathered) -> ReportDocument:
    """Return the report. `command`, `version` and `made` are the caller's to add."""
    stories = [story for story in gathered.stories if story.counts.events]
    runs: dict[Path, list[NodeStory]] = {}
    for story in stories:
        runs.setdefault(story.run, []).append(story)
    numbers = _numbers(stories)
    for own in runs.values():
        _tell_splits(own, numbers, gathered.moments)
    title = " and ".join(run.name or "/" for run in list(runs)[:3]) + (" and more" if len(runs) > 3 else "")
    return ReportDocument(
        title=title or "no events",
        about=_about(stories, runs),
        state=_state(stories),
        tiles=_tiles(stories),
        notes=gathered.notes,
        sections=_sections(runs, numbers),
        timeline=_timeline(gathered, numbers) if stories else None,
        tables=[_node_table(stories, several=len(runs) > 1)],
    )


def _numbers(stories: Sequence[NodeStory]) -> dict[str, int]:
    """Return nodes by peer id; of several logs of one node the last."""
    return {story.progress.peer_id: story.number for story in stories if story.progress.peer_id}


def _tell_splits(stories: Sequence[NodeStory], numbers: Mapping[str, int], moments: Moments) -> None:
    names = {story.number: story.name for story in stories}
    for split in splits(stories, numbers):
        *small, large = sorted(split.parts, key=len)
        parts = [" and ".join(names.get(each, str(each)) for each in part) for part in small]
        count = text.plural(len(split.parts), "part")
        words = f"{count} without a path to each other: {', '.join(parts)}; {len(large)} others"
        moments.add(split.start, small[0][0], "partition", words)
        if split.end is not None:
            moments.add(split.end, small[0][0], "partition", f"one swarm again, after {split.end - split.start:.1f} s")


# -- words


def _about(stories: Sequence[NodeStory], runs: Mapping[Path, object]) -> str:
    first = next((story.progress for story in stories if story.progress.parameters), None)
    parts = [text.plural(len(stories), "node")]
    if len(runs) > 1:
        parts.append(text.plural(len(runs), "run"))
    if first is not None:
        parts += [f"{first.parameters:,} parameters", f"{first.compressor}, {first.aggregator}"]
    start, end = _span(stories)
    if end > start:
        parts.append(text.duration(end - start))
    return " · ".join(parts)


def _span(stories: Sequence[NodeStory]) -> tuple[float, float]:
    first = [story.first_ts for story in stories if story.first_ts is not None]
    last = [story.last_ts for story in stories if story.last_ts is not None]
    return (min(first), max(last)) if first and last else (0.0, 0.0)


def _state(stories: Sequence[NodeStory]) -> str:
    states = {story.progress.state for story in stories}
    return next(iter(states)) if len(states) == 1 else "mixed ends" if states else "empty"


def _tiles(stories: Sequence[NodeStory]) -> list[Tile]:
    sent = [story.sent_bytes for story in stories if story.closed]
    known = [each for each in sent if each is not None]
    rounds = [story.progress.rounds_done for story in stories]
    bits = text.bits(
        *(_mean(getattr(story.progress, key) for story in stories) for key in ("sent_bits", "published_bits"))
    )
    losses = [story.progress.eval_loss for story in stories if story.progress.eval_loss is not None]
    last = estimate(losses)
    start, end = _span(stories)
    span = f"{min(rounds)} to {max(rounds)}" if rounds and min(rounds) < max(rounds) else str(max(rounds, default=0))
    metric = _metric(stories)
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
            value=_mean(story.progress.updates_in_time for story in stories),
            format="share",
            tip="Share of the neighbours' updates, over the newest rounds, that came in time",
        ),
    ]


def _metric(stories: Iterable[NodeStory]) -> str:
    return next((story.progress.metric for story in stories if story.progress.metric), "")[:MAX_METRIC]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# -- curves


def buckets(curves: Sequence[Sequence[Row]], loss: int, start: float) -> list[Bucket]:
    """Return the means over nodes, round by round or BUCKETS of them. `loss`: the row's index of the loss."""
    last = max((row[0] or 0 for curve in curves for row in curve), default=0)
    width = max(1, math.ceil(last / BUCKETS))
    found: dict[int, dict[int, list[Row]]] = {}
    for node, curve in enumerate(curves):
        for row in curve:
            if row[loss] is not None:
                found.setdefault(math.ceil((row[0] or 0) / width) * width, {}).setdefault(node, []).append(row)
    told = []
    for at in sorted(found):
        rows = list(found[at].values())
        each = estimate([statistics.fmean(row[loss] or 0.0 for row in own) for own in rows])
        assert each is not None, "a bucket has a row"
        ts, sent = (_mean(_mean(row[index] for row in own) for own in rows) for index in (1, 2))
        told.append(Bucket(at, None if ts is None else ts - start, sent, each.mean, each.half))
    return told


def _banded(told: Sequence[Bucket], x: str) -> Estimates:
    """Return the points over `round`, `seconds` or `sent`; what falls back (a node with fewer bytes came) is left
    out."""
    points: Estimates = []
    for each in told:
        at = getattr(each, x)
        if at is None or (points and at <= points[-1][0]):
            continue
        low, high = (None, None) if each.half is None else (each.loss - each.half, each.loss + each.half)
        points.append((at, each.loss, low, high))
    return points


def _sections(runs: Mapping[Path, Sequence[NodeStory]], numbers: Mapping[str, int]) -> list[Section]:
    several = len(runs) > 1
    held: dict[str, list[Bucket]] = {}
    trained: dict[str, list[Bucket]] = {}
    for run, stories in list(runs.items())[:LINES]:
        start, _ = _span(stories)
        name = run.name or "/"
        held[name] = buckets([story.held_out.rows for story in stories], 3, start)
        trained[name] = buckets([story.rounds.rows for story in stories], 3, start)
    metric = _metric(story for own in runs.values() for story in own)
    bands = {"held-out": held, "training": trained}
    nodes = [story for own in runs.values() for story in own]
    own_lines = [_own_line(story) for story in nodes] if len(nodes) <= LINES and not several else []
    loss = [
        LineChart(id="loss", title="Loss", unit=metric, wide=True, lines=_lines(bands, "round", several=several)),
        *(
            [LineChart(id="own-loss", title="Held-out loss of each node", unit=metric, dots=True, lines=own_lines)]
            if any(line.points for line in own_lines) and len(nodes) > 1
            else []
        ),
        LineChart(
            id="loss-seconds",
            title="Loss over time",
            unit=metric,
            x="seconds",
            x_format="seconds",
            lines=_lines(bands, "seconds", several=several),
        ),
    ]
    cost = LineChart(
        id="loss-bytes",
        title="Loss against bytes sent by a node",
        unit=metric,
        x="bytes sent",
        wide=True,
        x_format="bytes",
        lines=_lines(bands, "sent", several=several),
    )
    band = "Bands are 95% intervals of the mean over nodes." if len(nodes) > 1 else ""
    sections = [
        Section(id="losses", title="Loss", note=band, charts=loss),
        Section(id="costs", title="Bytes sent against loss", note=COST_NOTE, charts=[cost]),
        Section(id="times", title="Time to loss", note="", tables=[_time_table(runs, metric)]),
    ]
    fair = _fairness([each for own in runs.values() for each in own], numbers, metric)
    return [*sections, *([fair] if fair is not None else [])]


COST_NOTE: Final = "All bytes to peers: every copy of an update, whole models, announcements, framing and handshakes."


def _lines(bands: Mapping[str, Mapping[str, Sequence[Bucket]]], x: str, *, several: bool) -> list[Line]:
    lines = []
    for kind, by_run in bands.items():
        for run, told in by_run.items():
            points = _banded(told, x)
            if points and (not several or kind == "held-out"):
                lines.append(Line(name=run if several else kind, points=points))
    return lines


def _own_line(story: NodeStory) -> Line:
    return Line(name=story.name, points=[(row[0], row[3]) for row in story.held_out.rows if row[3] is not None])


# -- time to loss


def _time_table(runs: Mapping[Path, Sequence[NodeStory]], metric: str) -> DataTable:
    rows: list[list[Cell]] = []
    for run, stories in runs.items():
        curves = {story.number: _judged(story) for story in stories}
        starts = _span(stories)[0]
        for level in levels(buckets(list(curves.values()), 3, starts)):
            reached = [hit for curve in curves.values() if (hit := first_at(curve, level)) is not None]
            seconds = estimate([hit[1] - starts for hit in reached if hit[1] is not None])
            sent = estimate([hit[2] for hit in reached if hit[2] is not None])
            rounds = estimate([hit[0] for hit in reached if hit[0] is not None])
            rows.append(
                [
                    f"{level:.4g}" if len(runs) == 1 else f"{run.name}: {level:.4g}",
                    None if seconds is None else seconds.mean,
                    None if seconds is None else seconds.half,
                    None if sent is None else sent.mean,
                    None if rounds is None else rounds.mean,
                    f"{len(reached)} of {len(curves)}",
                ]
            )
    return DataTable(
        title=f"When nodes first had so low a held-out loss{f', {metric}' if metric else ''}",
        columns=["Loss", "Time", "± 95%", "Sent by a node", "Rounds", "Nodes"],
        formats=["text", "seconds", "seconds", "bytes", "plain", "text"],
        rows=rows,
        note="Means over the nodes that had it; where a node evaluated nothing, its training loss counts.",
    )


def _judged(story: NodeStory) -> list[Row]:
    held = [row for row in story.held_out.rows if row[3] is not None]
    return held if len(held) > 1 else story.rounds.rows


def levels(told: Sequence[Bucket]) -> list[float]:
    """Return LEVELS losses, evenly from the first mean to just above the best one: half of the nodes miss the best."""
    if len(told) < 2:
        return []
    first, best = told[0].loss, min(each.loss for each in told)
    return [first - (first - best) * (k + 1) / (LEVELS + 0.25) for k in range(LEVELS)] if best < first else []


def first_at(curve: Sequence[Row], level: float) -> Row | None:
    """Return the first row with a loss (index 3) of `level` or less."""
    return next((row for row in curve if row[3] is not None and row[3] <= level), None)


# -- fairness


def _fairness(stories: Sequence[NodeStory], numbers: Mapping[str, int], metric: str) -> Section | None:
    """Return what nodes got and gave, from the slowest tenth to the fastest; None where speeds are not known of two."""
    paced = [(speed, story) for story in stories if (speed := _mean(row[4] for row in story.rounds.rows)) is not None]
    if len(paced) < 2:
        return None
    paced.sort(key=lambda each: each[0])
    taken = _taken(stories, numbers)
    count = min(DECILES, len(paced))
    rows: list[list[Cell]] = []
    for group in range(count):
        own = paced[group * len(paced) // count : (group + 1) * len(paced) // count]
        shares = [taken[story.number][0] for _, story in own if story.number in taken]
        stale = [taken[story.number][1] for _, story in own if story.number in taken]
        rows.append(
            [
                f"{group + 1}",
                len(own),
                _mean(speed for speed, _ in own),
                _mean(float(story.progress.rounds_done) for _, story in own),
                _mean(story.progress.eval_loss for _, story in own),
                _mean(shares),
                _mean(stale),
            ]
        )
    name = "tenth" if count == DECILES else "group"
    table = DataTable(
        title=f"By {name} of speed, the slowest first",
        columns=[
            name.capitalize(),
            "Nodes",
            "Tokens/s",
            "Rounds",
            "Held-out loss",
            "Updates taken",
            "Staleness",
        ],
        formats=["text", "count", "amount", "plain", "plain", "share", "plain"],
        rows=rows,
        note="Updates taken: of the rounds that its peers closed, the share whose average had an update of the node's. "
        "Staleness: rounds by which these lagged.",
    )
    charts = [
        _by_group("fair-taken", "Updates taken by others", "share of their rounds", "share", rows, 5, name),
        _by_group("fair-loss", "Held-out loss", metric, "plain", rows, 4, name),
    ]
    note = "A swarm is fair where slow nodes count and gain as fast ones do: both lines are level."
    return Section(id="fairness", title="Fairness by speed", note=note, charts=charts, tables=[table])


def _by_group(
    id: str, title: str, unit: str, format: str, rows: Sequence[Sequence[Cell]], column: int, name: str
) -> LineChart:
    points = [(n + 1.0, value) for n, row in enumerate(rows) if isinstance(value := row[column], float)]
    assert format in ("share", "plain")
    return LineChart(
        id=id,
        title=title,
        unit=unit,
        x=f"{name} of speed",
        dots=True,
        from_zero=True,
        y_format="share" if format == "share" else "plain",
        lines=[Line(name=title.lower(), points=points)],
    )


def _taken(stories: Sequence[NodeStory], numbers: Mapping[str, int]) -> dict[int, tuple[float, float]]:
    """Return by node: of the rounds of those that averaged it at least once, the share with an update of it, and these
    updates' mean staleness."""
    sums: dict[int, list[float]] = {}
    for reader in stories:
        for peer, count in reader.averaged.items():
            author = numbers.get(peer)
            if author is not None and author != reader.number:
                found = sums.setdefault(author, [0.0, 0.0, 0.0])
                found[0] += count
                found[1] += reader.closed
                found[2] += reader.stale[peer]
    return {node: (count / closed, stale / count) for node, (count, closed, stale) in sums.items() if closed and count}


# -- timeline and nodes


def _timeline(gathered: Gathered, numbers: Mapping[str, int]) -> Timeline:
    stories = [story for story in gathered.stories if story.counts.events][:PICTURED]
    start, _ = _span(stories)
    places = {story.number: place for place, story in enumerate(stories)}
    members: list[tuple[str, str, bool]] = [(story.name, str(story.run), True) for story in stories]
    others: dict[str, int] = {}
    left_out = 0
    frames = []
    for end, frame in gathered.frames.ordered():
        edges = []
        for (peer, reader), count in frame.exchanges.items():
            if reader not in places:
                continue
            author = places.get(numbers[peer]) if peer in numbers else others.get(peer)
            if author is None and peer not in numbers and len(members) < PICTURED:
                author = others[peer] = len(members)
                members.append((text.peer(peer), str(gathered.stories[reader].run), False))
            if author is None:
                left_out += count
            elif author != places[reader]:
                edges.append((author, places[reader], count))
        rounds = [(places[node], *told) for node, told in frame.rounds.items() if node in places]
        frames.append((round(max(0.0, end - start), 3), edges, rounds))
    if frames and (over := round(_span(stories)[1] - start, 3)) > frames[-1][0]:
        frames.append((over, [], []))  # how it ended
    moments = gathered.moments
    _tell_rounds(gathered, moments)
    names = {story.number: story.name for story in gathered.stories}
    listed = [
        (
            round(max(0.0, ts - start), 3),
            places.get(node, -1),
            kind,
            words if node in places or kind == "partition" else f"{names[node]} {words}",
        )
        for ts, node, kind, words in moments.listed()
    ]
    said = []
    if (hidden := len(gathered.stories) - len(stories)) > 0:
        said.append(f"{text.plural(hidden, 'more node')} not drawn.")
    if len(members) > len(stories):
        said.append(f"{text.plural(len(members) - len(stories), 'member')} without a log here, as others see them.")
    if left_out:
        said.append(f"{left_out} exchanges of members that are not drawn.")
    ends = [
        (
            None if story.first_ts is None else round(story.first_ts - start, 3),
            None if story.last_ts is None else round(story.last_ts - start, 3),
            story.progress.state,
        )
        for story in stories
    ]
    return Timeline(
        members=members,
        frames=frames,
        moments=listed,
        counts=moments.counts(),
        ends=[*ends, *((None, None, "no log") for _ in others)],
        note=" ".join(said),
    )


def _tell_rounds(gathered: Gathered, moments: Moments) -> None:
    """Add when the foremost node closed each round, as far as the frames tell rounds apart."""
    most: dict[Path, int] = {}
    for end, frame in gathered.frames.ordered():
        for node, (closed, _) in frame.rounds.items():
            run = gathered.stories[node].run
            if closed > most.get(run, 0):
                most[run] = closed
                moments.add(end - gathered.frames.width_s / 2, node, "round", f"closed round {closed}, the foremost")


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
                _mean(row[4] for row in story.rounds.rows),
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
