"""A node's events as lines for people: `p2ptrain node` on a terminal. One event, one line (the start has a few)."""

import re
import sys
import time
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from node.events.event_types import (
    KEPT,
    Banned,
    BudgetPlanned,
    CheckpointSkipped,
    CheckpointWritten,
    DialFailed,
    Equivocation,
    Evaluated,
    Event,
    Finished,
    Interrupted,
    JoinCommand,
    Joined,
    LearnerStarted,
    ManifestHolds,
    MembersKnown,
    NeighbourLost,
    NeighbourUp,
    Paused,
    PrivacyBudgetSpent,
    ReachabilityTold,
    RegionChosen,
    RegionsAveraged,
    Rejected,
    Resumed,
    RoundClosed,
    RoundTrained,
    RouterAnswered,
    SecureRound,
    ShiftDetected,
    Started,
    StatisticsShared,
    Throttled,
    Unpaused,
    WaitingFor,
    WarmedUp,
    WarningEvent,
)
from node.events.page_address import page_words
from node.events.shift_words import of_shift
from node.events.warm_up_words import of_warm_up
from node.system import text
from node.system.safe_io import silence


class LastingConsole(Console):
    """A console whose reader may disappear (`| head`, a closed terminal). rich would end the process; a node trains
    on. Brackets are text: they stand in names of folders, which rich would take for markup and leave out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def on_broken_pipe(self) -> None:
        """Discard all output from now on."""
        self.quiet = True
        silence(sys.stdout)


class LineSink:
    """Prints events on a console. Lines that a person copies are never wrapped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: Event) -> None:
        """Print the event, if it is one that people want to see."""
        for line in describe(event):
            line.plain = "\n".join(map(text.printable, line.plain.split("\n")))  # as long as it was
            self._console.print(line, soft_wrap=True, highlight=False)


def left_out(count: int) -> Event:
    """Return the event that says how many were not printed, as their reader had stopped."""
    return WarningEvent(message=words_of_left_out(count)).at(round(time.time(), 3))


def words_of_left_out(count: int) -> str:
    """Return what is said of so many."""
    return f"{text.plural(count, 'line')} left out here, as nothing read on; events.jsonl has all events"


def describe(event: Event) -> list[Text]:
    """Return the lines for an event; none for an event that would only be noise."""
    match event:
        case Started():
            return _started(event)
        case JoinCommand():
            return _join(event)
        case RoundTrained() | RoundClosed() | Evaluated() | Finished():
            return [_line(event, _numbers(event))]
        case _:
            words, style = _words(event)
            return [_line(event, Text(words, style=style))] if words else []


def _started(event: Started) -> list[Text]:
    about = {"role": f"{event.role}: trains nothing"}
    if isinstance(event, LearnerStarted):
        about = _learning(event)
    if event.role == "observer":
        about = {"role": "observer: trains and publishes nothing", **about}
    rows = {
        "node": event.peer_id,
        **about,
        "listens": _places(event.addresses),
        "page": page_words(event.metrics_url, event.token_file) if event.metrics_url else "off",
        "folder": event.run_dir or "",
    }
    return [Text.assemble((f"{name:<9}", "dim"), value) for name, value in rows.items()]


def _places(addresses: list[str]) -> str:
    more = len(addresses) - SHOWN_ADDRESSES
    return "  ".join(addresses[:SHOWN_ADDRESSES] or ["nowhere"]) + (f"  and {more} more" if more > 0 else "")


def _learning(event: LearnerStarted) -> dict[str, str]:
    return {
        "model": f"{event.task}, {event.parameters:,} parameters on {event.device}",
        "sync": f"{event.compressor}, {event.aggregator} against f={event.f}",
        **({"regions": event.residency} if event.residency else {}),
    }


SHOWN_ADDRESSES: Final = 8
"""As many as a peer record holds; a machine with bridges for its containers may have hundreds."""

_ON_LOOPBACK: Final = re.compile(r"/ip4/127\.|/ip6/::1/")
"""In a command to join by: who runs it elsewhere would dial itself."""


def _join(event: JoinCommand) -> list[Text]:
    who = "Another node of this machine" if _ON_LOOPBACK.search(event.command) else "Another machine"
    head = Text(f"{who} joins with:", style="dim")
    return [Text(""), head, Text(f"  {event.command}", style="bold"), Text("")]


def _numbers(event: RoundTrained | RoundClosed | Evaluated | Finished) -> Text:
    match event:
        case RoundTrained():
            return _trained(event)
        case RoundClosed():
            return _observed(event)
        case Evaluated():
            return _evaluated(event)
        case Finished():
            return _finished(event)


def _trained(event: RoundTrained) -> Text:
    return Text.assemble(
        ("round ", ""),
        (text.progress(event.round, event.known_rounds), "bold"),
        f"  loss {text.loss(event.train_loss)}" if event.epsilon is None else f"  epsilon {event.epsilon:.3g}",
        f"  {text.amount(event.tokens_per_s)} tokens/s",
        f"  {text.plural(event.neighbours, 'neighbour')}",
        f"  sent {text.size(event.bytes_sent)}",
        f" ({event.rung})" if event.rung else "",
        f"  received {text.size(event.bytes_received)}",
        (f"  refused {event.rejected}" if event.rejected else "", "yellow"),
    )


def _observed(event: RoundClosed) -> Text:
    members = text.plural(event.members, "neighbour")
    taken = f"  the model of {members}  received {text.size(event.bytes_received)}"
    return Text.assemble("round ", (text.progress(event.round, event.known_rounds), "bold"), taken)


def _evaluated(event: Evaluated) -> Text:
    numbers = ((name, value) for name, value in event.own.items() if isinstance(value, int | float))
    own = "".join(f"  {name} {text.measured(value)}" for name, value in numbers)
    return Text(f"eval loss {text.loss(event.eval_loss)}{own}", style="cyan")


def _finished(event: Finished) -> Text:
    summary: dict[str, Any] = event.summary or {}
    first, last = summary.get("eval_loss_first"), summary.get("eval_loss_last")
    untold = first is None and last is None  # a loop of the user's own need not evaluate here
    return Text.assemble(
        ("finished", "bold green"),
        "" if untold else f"  eval loss {text.loss(first)} -> {text.loss(last)}",
        f"  in {text.duration(summary.get('wall_s'))}",
        f"  utilization {text.share(summary.get('utilization'))}",
        _sent(summary),
    )


def _sent(summary: dict[str, Any]) -> str:
    """Return what a node sent in all; empty in records of older releases."""
    if summary.get("bytes_sent") is None:
        return ""
    each = text.bits(summary.get("sent_bits"), summary.get("published_bits"))
    return f"  sent {text.size(summary['bytes_sent'])}{f' ({each})' if each else ''}"


def _of_spent_privacy(event: PrivacyBudgetSpent) -> str:
    spent = (
        f"epsilon {event.epsilon:.4g} of {event.budget:g} at delta {event.delta:g}, {event.would_be:.4g} with the next"
    )
    return f"privacy budget spent ({spent}): it serves on, without own steps, until it is started with a larger one"


def _of_region(event: RegionChosen) -> str:
    """Return which region was chosen, and by what."""
    measured = [
        f"{region} {milliseconds:.1f} ms ({text.plural(event.members.get(region, 0), 'member')})"
        for region, milliseconds in event.round_trips_ms.items()
    ]
    why = {
        "nearest": "the nearest",
        "as near": "the first of the nearest, which are as near as can be told",
        "nobody": "the first that the run names, as no member of any has answered",
    }.get(event.why, event.why)
    return f"node.region is {event.region}: {why}{': ' if measured else ''}{', '.join(measured)}"


def _words(event: Event) -> tuple[str, str]:
    """Return a sentence about an event, and its style; an empty sentence when nothing is shown."""
    match event:
        case NeighbourUp() | NeighbourLost() | DialFailed() | Rejected() | Throttled() | Banned() | Equivocation():
            return _of_peer(event)
        case Resumed():
            return f"resumed at round {event.round} from {event.checkpoint}", ""
        case RegionsAveraged():
            if not event.moved:  # a warning names once the region that is not heard: this would be a line every turn
                return "", ""
            heard = f"{max(0, event.regions - 1)} of {text.plural(event.beside, 'other region')}"
            return f"moved by the models of {heard}", "dim"
        case SecureRound(result=result, why=why):
            return (f"nothing was summed in this round: {why}", "yellow") if result == KEPT else ("", "")
        case RegionChosen():
            return _of_region(event), "cyan"
        case Joined():
            return f"joined at round {event.round} with {event.whose_model}", ""
        case WaitingFor(message=message):
            return message, "dim"
        case Paused():
            return f"paused by {event.reason}: {event.why}", "yellow"
        case ShiftDetected():
            return of_shift(event), "yellow"
        case WarmedUp() | StatisticsShared():
            return of_warm_up(event), "dim"
        case PrivacyBudgetSpent():
            return _of_spent_privacy(event), "yellow"
        case Unpaused():
            return f"training goes on after {text.duration(event.seconds)}", ""
        case CheckpointWritten():
            return f"checkpoint of round {event.round} written", "dim"
        case CheckpointSkipped():
            return f"checkpoint {event.path} is not usable ({event.why}); taking the one before", "yellow"
        case ReachabilityTold():
            return event.detail, ""
        case ManifestHolds():
            return f"version {event.version} of the swarm's manifest holds from round {event.applies_at}", "cyan"
        case RouterAnswered(message=message):
            # Most routers do not forward: `reachability` reports it where an operator should act.
            return ("" if event.forwards is False else message), "dim"
        case BudgetPlanned(message=message):
            return f"budget: {message}", "cyan"
        case WarningEvent(message=message):
            return message, "yellow"
        case MembersKnown():
            known = text.plural(event.members_known, "member")
            answers = "that answers" if event.members_known == 1 else "that answer"
            clients = "" if event.clients is None else f"; {text.plural(event.clients, 'client')} here"
            return f"{known} {answers}, in {text.plural(event.runs, 'run')}{clients}", "dim"
        case Interrupted():
            return _interrupted(event), "yellow"
        case _:
            return "", ""


def _interrupted(event: Interrupted) -> str:
    if not event.summary:  # a bootstrap node's
        return "interrupted"
    if not event.summary.get("wall_s"):
        return "interrupted before training began; there was no model to keep"
    return "interrupted; the checkpoint is written"


def _of_peer(
    event: NeighbourUp | NeighbourLost | DialFailed | Rejected | Throttled | Banned | Equivocation,
) -> tuple[str, str]:
    peer = text.peer(event.peer)
    match event:
        case NeighbourUp():
            return f"neighbour {peer} is here", ""
        case NeighbourLost():
            return f"neighbour {peer} is gone", "yellow"
        case DialFailed():
            return f"cannot reach {peer}: {event.detail}", "yellow"
        case Rejected():
            # A repeated link costs nobody anything: the peer that passed it on may be honest.
            replayed = event.reason == "replayed"
            return (
                "" if replayed else f"refused an update of {peer}: {event.reason or text.NOTHING} {event.detail}",
                "yellow",
            )
        case Throttled():
            return f"{peer} has to wait: {event.detail}", "yellow"
        case Banned():
            return f"banned {peer}: {event.reason or text.NOTHING} {event.detail}", "red"
        case Equivocation():
            return f"{peer} signed two different updates in one place", "red"


def _line(event: Event, body: Text) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(event.ts))
    return Text.assemble((f"{clock}  ", "dim"), body)
