"""Whether slow nodes count and gain as fast ones do."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from typing import Final

from node.page.columns import number
from node.reporting.document import Cell, DataTable, Format, Line, LineChart, Section
from node.reporting.gathered import MAX_METRIC, mean_of, metric_of
from node.reporting.node_story import NodeStory, clipped

DECILES: Final = 10

MAX_METRICS: Final = 4
"""Most of the task's own metrics that have a column."""


def fairness_sections(stories: Sequence[NodeStory], numbers: Mapping[str, int]) -> list[Section]:
    """Return what nodes got and gave, from the slowest tenth to the fastest; nothing where speeds are not known of
    two."""
    paced = [(speed, story) for story in stories if (speed := mean_of(row[4] for row in story.rounds.rows)) is not None]
    if len(paced) < 2:
        return []
    metric = metric_of(stories)
    paced.sort(key=lambda each: each[0])
    taken = _taken(stories, numbers)
    count = min(DECILES, len(paced))
    measured = sorted({name for _, story in paced for name in story.progress.own})[:MAX_METRICS]
    formats: list[Format] = ["text", "count", "amount", "plain", "plain", "share", "plain", "plain", "plain"]
    formats += ["plain" for _ in measured]
    rows: list[list[Cell]] = []
    for group in range(count):
        own = paced[group * len(paced) // count : (group + 1) * len(paced) // count]
        shares = [taken[story.number][0] for _, story in own if story.number in taken]
        stale = [taken[story.number][1] for _, story in own if story.number in taken]
        rows.append(
            [
                f"{group + 1}",
                len(own),
                mean_of(speed for speed, _ in own),
                mean_of(float(story.progress.rounds_done) for _, story in own),
                mean_of(story.progress.eval_loss for _, story in own),
                mean_of(shares),
                mean_of(stale),
                mean_of(story.steps for _, story in own),
                mean_of(story.progress.train_loss for _, story in own),
                *(mean_of(number(story.progress.own.get(name)) for _, story in own) for name in measured),
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
            "Steps",
            "Training loss",
            *(clipped(name)[:MAX_METRIC] for name in measured),
        ],
        formats=formats,
        rows=rows,
        note="Updates taken: of the rounds that its peers closed, the share whose average had an update of the node's. "
        "Staleness: rounds by which these lagged. Training loss: on the node's own data, in its newest round"
        + (". Then the task's own metrics, of the newest evaluation." if measured else "."),
    )
    charts = [
        _by_group("fair-taken", "Updates taken by others", "share of their rounds", "share", rows, 5, name),
        _by_group("fair-loss", "Held-out loss", metric, "plain", rows, 4, name),
        _by_group("fair-own-loss", "Training loss, on own data", metric, "plain", rows, 8, name),
    ]
    note = "A swarm is fair where slow nodes count and gain as fast ones do: the lines are level." + _jain_words(
        steps=jain(story.steps for _, story in paced),
        updates=jain(taken[story.number][0] if story.number in taken else 0.0 for _, story in paced),
    )
    return [Section(id="fairness", title="Fairness by speed", note=note, charts=charts, tables=[table])]


def jain(shares: Iterable[float]) -> float | None:
    """Return Jain's index of what each of n nodes has, at least 0: 1 where all have the same, 1 / n where one has all
    (Jain, Chiu and Hawe, 1984). None where nobody has anything."""
    held = list(shares)
    length = hypot(*held)
    return (sum(share / length for share in held)) ** 2 / len(held) if length > 0 else None


def _jain_words(*, steps: float | None, updates: float | None) -> str:
    told = [
        f"{index:.2f} of {what}" for what, index in (("steps", steps), ("updates taken", updates)) if index is not None
    ]
    return f" Jain's index, 1 where all nodes have the same: {', '.join(told)}." if told else ""


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
