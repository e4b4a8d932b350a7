"""A run on 80 columns and 24 lines, drawn by pure functions.

Texts from nodes and peers are shortened, and characters that control a terminal are removed.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.events.liveness import lines
from node.events.page_address import page_of
from node.events.progress import NodeProgress
from node.events.summary import mean
from node.system import text
from node.top.source import Watched
from node.top.table import pause_of, remaining_s, sent_lines, swarm_round

BARS = "".join(map(chr, range(0x2581, 0x2589)))
"""Eighths of a block, from one to eight."""
PLAIN_BARS = "_.-:=+*#"
"""Bars for terminals without these characters."""

NARROW, WIDE, WIDEST = 76, 100, 132
"""Widths of the terminal from which on more columns are shown; below the first, fewer are."""

_LEAVES_FIRST = (
    *(">memory", ">rate", ">tok/s", ">lag", ">util", ">in time", "trend", ">recv", ">behind"),
    *(">eval", ">rej", ">sent", ">loss", ">peers"),
)
"""Columns that long numbers or a narrow terminal leave no room for, the first one first; node, round and state stay."""

_STYLES = {"running": "green", "finished": "green", "interrupted": "yellow", "silent": "yellow", "paused": "yellow"}
_FRAME_LINES = 6
"""Lines of the headline, the headers of two tables, gaps, and the line about keys."""


def screen(
    nodes: Sequence[Watched], *, now: float, width: int = 80, height: int = 24, bars: str = BARS, hint: str = ""
) -> RenderableType:
    """Return the whole screen. `now`: Unix seconds; `hint`: the last line, about keys."""
    own = _own_line(nodes, width)
    notes = list(lines(((node.folder, node.progress) for node in nodes), now))
    notes = notes[: max(0, height // 4)]
    sent = sent_lines([node.progress for node in nodes], width)
    room = max(2, height - _FRAME_LINES - bool(hint) - (own is not None) - len(sent) - len(notes))
    peers = _peer_rows(nodes, now)
    shown_nodes = nodes[: max(1, room - min(len(peers), room // 2))]
    shown_peers = peers[: max(1, room - len(shown_nodes))]
    left_out = len(nodes) - len(shown_nodes), len(peers) - len(shown_peers)
    headline = _headline(nodes, now, width)
    pages = Text(_pages(nodes, width), style="dim", no_wrap=True)
    tables = _nodes_table(shown_nodes, nodes, width, bars)
    parts: list[RenderableType] = [headline, *sent, *([] if own is None else [own]), pages, tables]
    parts += [Text(_clean(note, width), style="yellow", no_wrap=True) for note in notes]
    if shown_peers:
        parts += [Text(""), _peers_table(shown_peers, width)]
    if any(left_out):
        more = (text.plural(count, noun) for count, noun in zip(left_out, ("node", "peer"), strict=True) if count)
        parts.append(Text(f"and {', '.join(more)} more", style="dim"))
    if hint:
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Return the values as bars, scaled from the lowest to the highest; more values than columns are averaged."""
    if not values:
        return ""
    count = min(width, len(values))
    cuts = [len(values) * n // count for n in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    span = high - low or 1.0
    return "".join(bars[min(len(bars) - 1, int((mean - low) / span * len(bars)))] for mean in means)


def as_json(nodes: Iterable[Watched]) -> list[dict[str, Any]]:
    """Return every field of every node."""
    return [node.progress.as_dict() for node in nodes]


def _headline(nodes: Sequence[Watched], now: float, width: int) -> Text:
    all_of = [node.progress for node in nodes]
    done, total = swarm_round(all_of), max(it.rounds for it in all_of)
    left, in_time = remaining_s(all_of, now), mean([it.updates_in_time for it in all_of if not it.over])
    paused = _clean(pause_of(all_of), width)
    parts = [
        f"round {text.progress(done, total)}" if total or done else paused or "starting",
        paused if total or done else "",
        "" if left is None or paused else f"about {text.duration(left)} left",
        "" if in_time is None else f"{text.share(in_time)} in time",
        _privacy(all_of),
        f"sent {text.size(sum(it.bytes_sent or 0 for it in all_of))}",
        f"received {text.size(sum(it.bytes_received or 0 for it in all_of))}",
    ]
    title = _clean(all_of[0].name or "node", 24) if len(nodes) == 1 else text.plural(len(nodes), "node")
    words = ""
    for part in filter(None, parts):  # a part that does not fit is left out whole
        if len(title) + len(words) + len(part) + 3 <= width:
            words += f"   {part}" if words else f"  {part}"
    return Text.assemble((title, "bold"), words, no_wrap=True)


def _privacy(nodes: Sequence[NodeProgress]) -> str:
    """Return what the node that has spent most of its privacy has spent, as `epsilon 1.53 of 4`, and the same of the
    nodes' visitors; empty where nothing protects anybody's data."""
    own = _most_spent((it.epsilon, it.epsilon_budget) for it in nodes)
    visitors = _most_spent((it.visits_epsilon, it.visits_epsilon_budget) for it in nodes)
    return "   ".join(filter(None, (own, visitors and f"visitors' {visitors}")))


def _most_spent(of_nodes: Iterable[tuple[float | None, float | None]]) -> str:
    private = [(spent, budget) for spent, budget in of_nodes if spent is not None]
    if not private:
        return ""
    epsilon, budget = max(private, key=lambda it: it[0] / it[1] if it[1] else it[0])
    return f"epsilon {epsilon:.3g}" + (f" of {budget:g}" if budget else "")


def _pages(nodes: Sequence[Watched], width: int) -> str:
    """Return the addresses of the nodes' pages, as many as fit a line; empty where there is none."""
    living = [node.progress for node in nodes if node.progress.metrics_url and not node.progress.over]
    words = "page" if len(living) == 1 else "pages"
    shown = 0
    for it in living:
        address = text.printable(page_of(it.metrics_url or ""))
        part = f"  {address}" if len(nodes) == 1 else f"  {_clean(it.name, 10)} {address}"
        if len(words) + len(part) > width - (0 if len(nodes) == 1 else len(", ...")):
            words += "  ..." if shown else ""
            break
        words, shown = words + part, shown + 1
    return words if shown else ""


def _own_line(nodes: Sequence[Watched], width: int) -> Text | None:
    """Return the task's own metrics, as means over the nodes, as far as they fit; None where there are none."""
    units = {name: unit for node in nodes for name, unit in node.progress.units.items()}
    words = ""
    for name in dict.fromkeys(name for node in nodes for name in node.progress.own):
        value = mean([node.progress.own.get(name) for node in nodes]) or 0.0
        part = f"{_clean(name, 40)} {text.measured(value, _clean(units.get(name, ''), 16))}"
        if len(words) + len(part) + 3 <= width:
            words += f"   {part}" if words else part
    return Text(words, style="cyan", no_wrap=True) if words else None


def _nodes_table(shown: Sequence[Watched], nodes: Sequence[Watched], width: int, bars: str) -> Table:
    """Return the table with as many columns as fit: no number is cut short."""
    front = max(node.progress.rounds_done for node in nodes)
    names = ["node", ">round", ">loss", ">eval", "trend", ">sent", ">peers", ">rej", "state"]
    if width >= NARROW:
        names = ["node", ">round", ">behind", ">loss", ">eval", "trend", ">sent", ">recv", ">peers", ">rej", "state"]
    if width >= WIDE:
        names += [">in time", ">util", ">lag", ">tok/s"]
    if width >= WIDEST:
        names += [">rate", ">memory"]
    trend = 20 if width >= WIDE else 6 if width >= NARROW else 4
    rows = [_cells(node, front, trend, bars) for node in shown]
    fitting = _fitting(names, rows, width)
    table = _table(*fitting)
    for cells in rows:
        table.add_row(*(cells[name.removeprefix(">")] for name in fitting))
    return table


def _fitting(names: Sequence[str], rows: Sequence[Mapping[str, str | Text]], width: int) -> list[str]:
    """Return the columns for which there is room: long numbers take that of those that are least missed."""
    widths = {
        name: max([cell_len(column), *(cell_len(str(cells[column])) for cells in rows)])
        for name, column in ((name, name.removeprefix(">")) for name in names)
    }
    shown = list(names)
    for name in _LEAVES_FIRST:
        if sum(widths[each] + 1 for each in shown) <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


def _cells(node: Watched, front: int, trend: int, bars: str) -> dict[str, str | Text]:
    """Return the cell of every possible column. `trend`: number of bars that fit."""
    it = node.progress
    return {
        "node": Text(_clean(it.name or text.peer(it.peer_id), 10), style="bold"),
        "round": text.progress(it.rounds_done, it.rounds),
        "behind": str(front - it.rounds_done),
        "loss": text.loss(it.train_loss),
        "eval": text.loss(it.eval_loss),
        "trend": Text(sparkline(node.losses(), trend, bars), style="cyan"),
        "sent": text.size(it.bytes_sent),
        "recv": text.size(it.bytes_received),
        "peers": str(it.neighbours),
        "rej": Text(text.amount(it.rejected), style="yellow" if it.rejected else ""),
        "state": Text(_clean(it.shown_state, 11), style=_STYLES.get(it.shown_state, "red" if it.over else "")),
        "in time": text.share(it.updates_in_time),
        "util": text.share(it.utilization),
        "lag": text.NOTHING if it.loop_lag_s is None else f"{1000 * it.loop_lag_s:.1f} ms",
        "tok/s": text.amount(it.tokens_per_s),
        "rate": text.NOTHING if it.learning_rate is None else f"{it.learning_rate:.2g}",
        "memory": _memory(it),
    }


def _memory(it: NodeProgress) -> str:
    """Return what is resident; of a node with a budget what counts of it, and the budget."""
    if it.memory_budget is not None and it.held_bytes is not None:
        return f"{text.size(it.held_bytes)} of {text.size(it.memory_budget)}"
    return text.NOTHING if it.rss_bytes is None else text.size(it.rss_bytes)


_Row = tuple[str, str, str, list[str]]
"""A peer: its name, its trust, the style of that word, and the other cells."""


def _peer_rows(nodes: Sequence[Watched], now: float) -> list[_Row]:
    """Return every peer that any of the nodes knows, with the worst judgement of any; the least trusted first."""
    names = {node.progress.peer_id: node.progress.name for node in nodes}
    seen: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        for peer, it in node.progress.peers.items():
            seen.setdefault(peer, []).append(it)
    rows = [(_score(told), _peer_row(names.get(peer) or text.peer(peer), told, now)) for peer, told in seen.items()]
    return [row for _, row in sorted(rows, key=lambda pair: (-pair[0], pair[1][0]))]


def _score(told: Sequence[dict[str, Any]]) -> float:
    """Return the highest score that any node gives; a ban is 100."""
    return max(100.0 if it.get("banned") else _number(it.get("score")) or 0.0 for it in told)


def _peer_row(name: str, told: Sequence[dict[str, Any]], now: float) -> _Row:
    here = [it for it in told if it.get("here")]
    score = _score(told)
    words, style = _trust(score, here=bool(here), paused=_paused(here, now))
    refused = sum(int(_number(count) or 0) for it in told for count in _reasons(it).values())
    cells = [
        _most(told, "score"),
        _most(here, "round"),
        _most(here, "staleness"),
        f"{sum(bool(it.get('tracked')) for it in here)}/{len(here)}" if any("tracked" in it for it in here) else "-",
        _total(told, "accepted"),
        str(refused),
        _total(told, "averages"),
    ]
    return _clean(name, 12), words, style, cells


def _paused(here: Sequence[dict[str, Any]], now: float) -> str:
    """Return until when a peer is paused, as it has told most of its neighbours that were asked; empty where it has
    not."""
    asked = [it for it in here if "paused" in it]
    told = [it for it in asked if it["paused"]]
    if 2 * len(told) <= len(asked):
        return ""
    return text.paused_until(max((at for it in told if (at := _number(it.get("returns_at")))), default=None), now)


def _trust(score: float, *, here: bool, paused: str) -> tuple[str, str]:
    if score >= 100:
        return "banned", "red"
    if not here:
        return "gone", "dim"
    if score >= 1:  # who says that it is paused hides no charge by that
        return ", ".join(filter(None, ("charged", paused))), "yellow"
    return (paused, "yellow") if paused else ("no offence", "green")


def _peers_table(rows: Sequence[_Row], width: int) -> Table:
    numbers = [">score", ">round", ">stale", ">tracked", ">taken", ">refused", ">averaged"]
    shown = (
        numbers if width >= NARROW else [name for name in numbers if name not in {">round", ">tracked", ">averaged"}]
    )
    names, trusts = max(cell_len(name) for name, *_ in rows), max(cell_len(trust) for _, trust, *_ in rows)
    for name in (">stale", ">taken", ">score"):  # they leave before the word of trust is cut to three letters
        if names + 1 + min(trusts, len("charged")) + sum(len(each) for each in shown) > width:
            shown = [each for each in shown if each != name]
    table = _table("peer", "trust", *shown)
    table.columns[1].no_wrap = False  # this column alone gives way: `charged, paused until Sun 01:00` is long
    for name, words, style, cells in rows:
        kept = (cell for column, cell in zip(numbers, cells, strict=True) if column in shown)
        table.add_row(name, Text(words, style=style, no_wrap=True, overflow="ellipsis"), *kept)
    return table


def _table(*columns: str) -> Table:
    """Return an empty table. Columns whose name begins with `>` are numbers."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    return table


def _reasons(it: dict[str, Any]) -> dict[str, Any]:
    reasons = it.get("rejected")
    return reasons if isinstance(reasons, dict) else {}


def _most(told: Sequence[dict[str, Any]], key: str) -> str:
    values = [number for it in told if (number := _number(it.get(key))) is not None]
    return f"{max(values):.0f}" if values else text.NOTHING


def _total(told: Sequence[dict[str, Any]], key: str) -> str:
    values = [number for it in told if (number := _number(it.get(key))) is not None]
    return text.amount(sum(values)) if values else text.NOTHING


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _clean(words: str, limit: int) -> str:
    return text.excerpt(words.replace("\n", " "), limit=limit, lines=1)
