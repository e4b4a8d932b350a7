"""Numbers as people read them. Pure functions: the same value gives the same text everywhere."""

import shutil
import sys
import time
from pathlib import Path

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
_COUNT_UNITS = ("", "k", "M", "G", "T")
DAY_S = 86_400.0
NOTHING = "-"
"""Stands where there is no value yet."""


def size(count: float | None) -> str:
    """Format bytes in powers of a thousand: `999 B`, `1.2 MB`."""
    if count is None:
        return NOTHING
    return _scaled(count, _BYTE_UNITS, " ")


def amount(count: float | None) -> str:
    """Format a count: `950`, `12.3k`, `1.2M`."""
    if count is None:
        return NOTHING
    return _scaled(count, _COUNT_UNITS, "")


def bits(sent: float | None, published: float | None, *, unit: str = "bits per parameter and inner step") -> str:
    """Format what a node sends: `4.25 bits per parameter and inner step, 0.2 published`; empty where nothing is
    known, or nothing was sent."""
    if not sent:
        return ""
    once = "" if published is None else f", {published:.3g} published"
    return f"{sent:.3g} {unit}{once}"


def loss(value: float | None) -> str:
    """Format a loss with three decimals."""
    return NOTHING if value is None else f"{value:.3f}"


def measured(value: float, unit: str = "") -> str:
    """Format a number with four significant digits and its unit: `91.25 %`."""
    return f"{value:.4g} {unit}".rstrip()


def share(value: float | None) -> str:
    """Format a ratio of 0 to 1 as a percentage."""
    return NOTHING if value is None else f"{100 * value:.0f}%"


def duration(seconds: float | None) -> str:
    """Format seconds: `9 s`, `2 min 05 s`, `3 h 20 min`."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def progress(done: int, total: int) -> str:
    """Format progress: `12/60`, or `12` before the total is known."""
    return f"{done}/{total}" if total else str(done)


def peer(peer_id: str) -> str:
    """Shorten a peer id for a line: they all begin alike, so the end tells them apart."""
    return f"..{peer_id[-8:]}" if len(peer_id) > 12 else peer_id


def paused_until(at: float | None, now: float) -> str:
    """Format until when a member says that it is paused, by the local clock: `paused until 07:00`, or `paused`. Both
    in Unix seconds."""
    if at is None:
        return "paused"
    try:
        return f"paused until {time.strftime('%H:%M' if at - now < DAY_S else '%a %H:%M', time.localtime(at))}"
    except (OverflowError, ValueError, OSError):  # what another machine's page says is a claim
        return "paused"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Return the text, as long as it was, with a point for each character that a terminal would act on."""
    return "".join(char if char.isprintable() else "." for char in text)


def excerpt(text: str, limit: int = 240, lines: int = 8) -> str:
    """Return at most so many characters and lines, without anything that a terminal would act on."""
    shown = "\n".join(map(printable, text.split("\n")))
    shown = "\n".join(shown.split("\n")[:lines])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def _scaled(value: float, units: tuple[str, ...], gap: str) -> str:
    scaled, unit = float(value), 0
    while abs(scaled) >= 999.5 and unit < len(units) - 1:
        scaled, unit = scaled / 1000, unit + 1
    digits = f"{scaled:.0f}" if unit == 0 or abs(scaled) >= 99.95 else f"{scaled:.1f}"
    return f"{digits}{gap}{units[unit]}"


def program() -> str:
    """Return how the user calls this program again: `p2ptrain`, or its path when it is not on PATH."""
    called = Path(sys.argv[0])
    if called.name != "p2ptrain" or shutil.which("p2ptrain") is not None or not called.is_file():
        return "p2ptrain"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)
