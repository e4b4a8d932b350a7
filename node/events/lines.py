"""A node's events as lines for people: `p2ptrain node` on a terminal. One event, one line (the start has a few)."""

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from node.events.log import Event
from node.events.page_address import page_words
from node.system import text
from node.system.safe_io import silence


class LastingConsole(Console):
    """A console whose reader may go away (`| head`, a closed terminal): rich would end the process; we train on."""

    def on_broken_pipe(self) -> None:
        """Print to nowhere from now on."""
        self.quiet = True
        silence(sys.stdout)


class LineSink:
    """Prints events on a console. Lines that a person copies are never wrapped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: Event) -> None:
        """Print the event, if it is one that people want to see."""
        for line in describe(event):
            self._console.print(line, soft_wrap=True, highlight=False)


def describe(event: Event) -> list[Text]:
    """The lines for an event; none for those that would only be noise."""
    maker = _LINES.get(event["event"])
    return [] if maker is None else maker(event)


def _started(event: Event) -> list[Text]:
    about = {"role": "bootstrap: trains nothing"} if event.get("role") == "bootstrap" else _learning(event)
    if event.get("role") == "observer":
        about = {"role": "observer: trains and publishes nothing", **about}
    rows = {
        "node": f"{event.get('peer_id', '')}",
        **about,
        "listens": "  ".join(event.get("addresses") or ["nowhere"]),
        "page": page_words(event["metrics_url"], event.get("token_file")) if event.get("metrics_url") else "off",
        "folder": str(event.get("run_dir", "")),
    }
    return [Text.assemble((f"{name:<9}", "dim"), value) for name, value in rows.items()]


def _learning(event: Event) -> dict[str, str]:
    return {
        "model": f"{event.get('task', '')}, {event.get('parameters', 0):,} parameters on {event.get('device', '')}",
        "sync": f"{event.get('compressor', '')}, {event.get('aggregator', '')} against f={event.get('f', 0)}",
    }


def _join(event: Event) -> list[Text]:
    head = Text("Another machine joins with:", style="dim")
    return [Text(""), head, Text(f"  {event.get('command', '')}", style="bold"), Text("")]


def _round(event: Event) -> list[Text]:
    get = event.get
    if "steps" not in event:  # nothing was trained
        return _observed(event)
    return [
        _line(
            event,
            Text.assemble(
                ("round ", ""),
                (text.progress(int(get("round", 0)), int(get("rounds") or 0)), "bold"),
                f"  loss {text.loss(get('train_loss'))}",
                f"  {text.amount(get('tokens_per_s'))} tokens/s",
                f"  {text.plural(int(get('neighbours') or 0), 'neighbour')}",
                f"  sent {text.size(get('payload_bytes_sent'))}",
                f" ({get('rung')})" if get("rung") else "",
                f"  received {text.size(get('payload_bytes_received'))}",
                (f"  refused {get('rejected')}" if get("rejected") else "", "yellow"),
            ),
        )
    ]


def _observed(event: Event) -> list[Text]:
    members = text.plural(int(event.get("members") or 0), "neighbour")
    received = (event.get("payload_bytes_received") or 0) + (event.get("snapshot_bytes_received") or 0)
    round_ = text.progress(int(event.get("round", 0)), int(event.get("rounds") or 0))
    taken = f"  the model of {members}  received {text.size(received)}"
    return [_line(event, Text.assemble("round ", (round_, "bold"), taken))]


def _finished(event: Event) -> list[Text]:
    summary: dict[str, Any] = event.get("summary") or {}
    first, last = text.loss(summary.get("eval_loss_first")), text.loss(summary.get("eval_loss_last"))
    return [
        _line(
            event,
            Text.assemble(
                ("finished", "bold green"),
                f"  eval loss {first} -> {last}",
                f"  in {text.duration(summary.get('wall_s'))}",
                f"  utilization {text.share(summary.get('utilization'))}",
            ),
        )
    ]


def _interrupted(event: Event) -> list[Text]:
    kept = "interrupted; the checkpoint is written" if event.get("summary") else "interrupted"
    return [_line(event, Text(kept, style="yellow"))]


def _joined(event: Event) -> list[Text]:
    donors = text.plural(int(event.get("donors") or 0), "neighbour")
    return [_line(event, Text(f"joined at round {event.get('round', text.NOTHING)} with the model of {donors}"))]


def _members(event: Event) -> list[Text]:
    known, runs = (int(event.get(key) or 0) for key in ("members_known", "runs"))
    answer = "that answers" if known == 1 else "that answer"
    return [_line(event, Text(f"{text.plural(known, 'member')} {answer}, in {text.plural(runs, 'run')}", style="dim"))]


def _router(event: Event) -> list[Text]:
    """Most routers do not forward: `reachability` says where somebody should do something about it."""
    return [] if event.get("forwards") is False else _said("{message}", "dim")(event)


def _rejected(event: Event) -> list[Text]:
    """A link that was heard before costs nobody anything: whoever passes it on may have done so in good faith."""
    if event.get("reason") == "replayed":
        return []
    return _said("refused an update of {peer}: {reason} {detail}", "yellow")(event)


def _said(template: str, style: str = "") -> Callable[[Event], list[Text]]:
    """A line from a template over the event's fields, peers shortened."""

    def make(event: Event) -> list[Text]:
        fields = {**event, "peer": text.peer(str(event.get("peer", "")))}
        return [_line(event, Text(template.format_map(_Lenient(fields)), style=style))]

    return make


class _Lenient(dict[str, Any]):
    """A field that an event lacks reads as `-`."""

    def __missing__(self, key: str) -> str:
        return text.NOTHING


def _evaluated(event: Event) -> list[Text]:
    told = (event.get("own") or {}).items()
    own = "".join(f"  {name} {text.measured(value)}" for name, value in told if isinstance(value, int | float))
    return [_line(event, Text(f"eval loss {text.loss(event.get('eval_loss'))}{own}", style="cyan"))]


def _line(event: Event, body: Text) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(event["ts"]))
    return Text.assemble((f"{clock}  ", "dim"), body)


_LINES: dict[str, Callable[[Event], list[Text]]] = {
    "started": _started,
    "join": _join,
    "round": _round,
    "evaluated": _evaluated,
    "neighbour_up": _said("neighbour {peer} is here"),
    "neighbour_lost": _said("neighbour {peer} is gone", "yellow"),
    "dial_failed": _said("cannot reach {peer}: {detail}", "yellow"),
    "rejected": _rejected,
    "throttled": _said("{peer} has to wait: {detail}", "yellow"),
    "banned": _said("banned {peer}: {reason} {detail}", "red"),
    "equivocation": _said("{peer} signed two different updates in one place", "red"),
    "resumed": _said("resumed at round {round} from {checkpoint}"),
    "joined": _joined,
    "waiting": _said("{message}", "dim"),
    "checkpoint": _said("checkpoint of round {round} written", "dim"),
    "checkpoint_skipped": _said("checkpoint {path} is not usable ({why}); taking the one before", "yellow"),
    "reachability": _said("{detail}"),
    "manifest": _said("version {version} of the swarm's manifest holds from round {applies_at}", "cyan"),
    "router": _router,
    "warning": _said("{message}", "yellow"),
    "members": _members,
    "interrupted": _interrupted,
    "finished": _finished,
}
