"""The swarm as a live table with a progress bar: a pure function of the nodes' progress."""

from collections.abc import Mapping, Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.events.progress import NodeProgress
from node.events.summary import mean
from node.system import text
from node.training.in_time import LOW

BAR_WIDTH = 40
LEAST_BAR = 8
"""Columns below which a bar is left out: it would show eighths of a run. Chosen."""
NARROW, WIDE = 80, 92
"""Widths of a terminal: the least that the table fits, and from which on it has wider gaps."""
MAX_NOTES = 5
"""Most notes (deaths, refusals, warnings) below the table; older ones scroll away."""

_STATE_STYLES = {
    "starting": "dim",
    "running": "",
    "paused": "yellow",
    "finished": "green",
    "interrupted": "yellow",
    "silent": "yellow",
    "failed": "red",
    "dead": "red",
}
_COLUMNS = ("node", "round", "loss", "eval", "tok/s", "sent", "recv", "peers", "acc", "rej", "arr", "util", "state")
"""sent, recv: all bytes to peers and from them, copies and overhead included; acc, rej: neighbours' updates accepted
and rejected; arr: the share of them that arrives in time; util: the share of time spent computing."""

_LEAVES_FIRST = ("arr", "acc", "recv", "sent", "tok/s", "rej", "eval")
"""Columns that a narrow terminal omits, the first one first: a table with fewer columns is easier to read than one in
which the state is cut to `finish...`."""


def nodes_table(
    nodes: Sequence[NodeProgress], byzantine: frozenset[str] = frozenset(), *, width: int = NARROW
) -> Table:
    """Return a table with one row a node; liars are marked with a star. A column that does not fit into `width` is left
    out whole; only the name is cut."""
    gap = 1 if width < WIDE else 2
    rows = [dict(zip(_COLUMNS, _row(node, lies=node.name in byzantine), strict=True)) for node in nodes]
    widths = {column: max([len(column), *(row[column].cell_len for row in rows)]) for column in _COLUMNS}
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)
    shown = _fitting(widths, gap, width)
    for column in shown:
        justify: JustifyMethod = "left" if column in {"node", "state"} else "right"
        least = None if column == "node" else widths[column]
        table.add_column(column, justify=justify, no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    return table


def _fitting(widths: Mapping[str, int], gap: int, width: int) -> list[str]:
    """Return the columns for which there is room."""
    shown = list(_COLUMNS)
    for column in _LEAVES_FIRST:
        if sum(widths[each] + gap for each in shown) - gap <= width:
            break
        shown.remove(column)
    return shown


def swarm_view(
    nodes: Sequence[NodeProgress],
    *,
    now: float,
    began: float,
    notes: Sequence[str] = (),
    byzantine: frozenset[str] = frozenset(),
    width: int = NARROW,
) -> RenderableType:
    """Return the table, the bar and the newest notes. `now` and `began` are Unix seconds."""
    lines = [Text(note, style="yellow", no_wrap=True, overflow="ellipsis") for note in notes[-MAX_NOTES:]]
    return Group(
        Text(""),
        nodes_table(nodes, byzantine, width=width),
        *sent_lines(nodes, width),
        Text(""),
        _bar(nodes, now=now, began=began, width=width),
        *lines,
    )


def sent_lines(nodes: Sequence[NodeProgress], width: int) -> list[Text]:
    """Return the line of what a node sends in all, and publishes, on average; none where that is not known. On a narrow
    terminal it leaves the unit out, so that no number is cut."""
    each = mean([node.sent_bits for node in nodes]), mean([node.published_bits for node in nodes])
    bits = text.bits(*each)
    if not bits:
        return []
    words = f"a node sends {bits}"
    if len(words) > width:
        words = f"a node sends {text.bits(*each, unit='bits')}"
    return [Text(words, style="dim", no_wrap=True)]


def swarm_round(nodes: Sequence[NodeProgress]) -> int:
    """Return the round that every working node has closed; that of all nodes when none is working."""
    working = [node for node in nodes if not node.over] or list(nodes)
    return min((node.rounds_done for node in working), default=0)


def pause_of(nodes: Sequence[NodeProgress]) -> str:
    """Return by what all working nodes are paused, as `paused by hours`; empty where one trains, or starts."""
    working = [node for node in nodes if not node.over]
    if not working or not all(node.shown_state == "paused" for node in working):
        return ""
    return f"paused by {', '.join(sorted({node.paused.partition(':')[0] for node in working}))}"


def remaining_s(nodes: Sequence[NodeProgress], now: float) -> float | None:
    """Return the seconds until the slowest working node is done, at its pace so far; None before there is a pace."""
    estimates = [estimate for node in nodes if not node.over and (estimate := _remaining(node, now)) is not None]
    return max(estimates) if estimates else None


def _remaining(node: NodeProgress, now: float) -> float | None:
    if not node.rounds or node.first_round is None or node.first_round_at is None or node.updated_at is None:
        return None
    done = node.rounds_done - node.first_round
    if done < 1:
        return None
    pace = (node.last_round_at - node.first_round_at) / done
    since = now - node.last_round_at - node.paused_s
    return max(0.0, pace * (node.rounds - node.rounds_done) - since)


def _bar(nodes: Sequence[NodeProgress], *, now: float, began: float, width: int) -> RenderableType:
    total = max((node.rounds for node in nodes), default=0)
    done = swarm_round(nodes)
    words = [
        Text(f"round {text.progress(done, total)}" if total else pause_of(nodes) or "starting"),
        Text(text.duration(now - began), style="dim"),
        Text((total and pause_of(nodes)) or _eta(nodes, now), style="dim"),
    ]
    room = width - sum(len(each) + 2 for each in words)
    row = Table.grid(padding=(0, 2))
    if room >= LEAST_BAR:
        row.add_row(ProgressBar(total=total or 1, completed=done, width=min(BAR_WIDTH, room)), *words)
    else:  # no word is cut for the bar, which says nothing that they do not
        row.add_row(*words)
    return row


def _eta(nodes: Sequence[NodeProgress], now: float) -> str:
    left = remaining_s(nodes, now)
    return "" if left is None else f"about {text.duration(left)} left"


def _row(node: NodeProgress, *, lies: bool) -> list[Text]:
    cells = [
        text.progress(node.rounds_done, node.rounds),
        text.loss(node.train_loss),
        text.loss(node.eval_loss),
        text.amount(node.tokens_per_s) if node.tokens_per_s else text.NOTHING,
        text.size(node.bytes_sent),
        text.size(node.bytes_received),
        str(node.neighbours),
        text.amount(node.accepted),
    ]
    name = Text(f"{node.name or text.peer(node.peer_id)}{'*' if lies else ''}", style="magenta" if lies else "bold")
    rejected = Text(text.amount(node.rejected), style="yellow" if node.rejected else "")
    state = Text(node.shown_state, style=_STATE_STYLES.get(node.shown_state, ""))
    few = node.updates_in_time is not None and node.updates_in_time < LOW
    arrived = Text(text.share(node.updates_in_time), style="yellow" if few else "")
    return [name, *(Text(cell) for cell in cells), rejected, arrived, Text(text.share(node.utilization)), state]
