"""Logging other than events: the libraries' and our own tracebacks, by structlog, into `node.log`.

    a library's logging.warning(...) ─┐                                        ┌─ node.log: a JSON object a line
    structlog.get_logger().error(...) ┴─ level, logger, time, traceback, redact ┴─ --debug: stderr, words on a terminal

Events are written by log.py instead (docs/decisions/0031): they are typed records, not lines. They pass the same
Redactor. Tracebacks are written without the frames' variables, which may hold secrets.
"""

import logging
import sys
import time
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

import structlog
from structlog.types import Processor

from node.events.redaction import Redactor
from node.system.safe_io import say

LOG_BYTES = 5 << 20
"""Bytes of each of two files: enough to see what led to a failure, and too little to fill a volunteer's disk."""

_NAMED: list[Processor] = [structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name]

OURS = "p2ptrain"
"""The logger of a failed node's traceback. The command line shows that traceback itself."""

FIRST = ("ts", "level", "logger", "message")
"""The first fields of a line, in this order; then all others, `exception` last."""


def configure(path: Path, redact: Redactor, *, debug: bool = False, stream: IO[str] | None = None) -> None:
    """Send all logging of this process to the file at `path`, which is created with the first line. `debug`: everything
    that the libraries log, and their warnings on `stream` (stderr) as well. Without it libp2p, which detached its
    loggers when it was imported, logs nothing: strangers could decide how much it logs."""
    handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(formatter(redact, people=False))
    handlers: list[logging.Handler] = [handler]
    if debug:
        shown = _Shown(stream or sys.stderr)
        shown.setLevel(logging.WARNING)  # a library may log a hundred lines a second
        shown.addFilter(lambda record: record.name != OURS)
        shown.setFormatter(formatter(redact, people=shown.stream.isatty()))
        handlers.append(shown)
        network = logging.getLogger("libp2p")
        network.propagate = True
        network.setLevel(logging.NOTSET)
    logging.basicConfig(handlers=handlers, level=logging.DEBUG if debug else logging.WARNING, force=True)
    structlog.configure(
        processors=[*_NAMED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # another node in this process (tests) has another file
    )


class _Discreet(logging.Handler):
    """Handler that says of a line that it cannot write where it is from, and not what it says: `logging` would print
    the line's arguments, which have not passed the redactor. A line that the disk or the terminal does not take is lost
    in silence."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            where = f"{record.name} ({record.pathname}:{record.lineno})"
            say(sys.stderr, f"warning: a log line of {where} could not be written: {type(error).__name__}\n")


class _LogFile(_Discreet, RotatingFileHandler):
    """Log file."""


class _Shown(_Discreet, logging.StreamHandler[IO[str]]):
    """Lines on a stream."""


def formatter(redact: Redactor, *, people: bool) -> logging.Formatter:
    """Return a formatter for any handler: text for people on a terminal, else one JSON object a line. Both hide
    secrets."""
    render: list[Processor] = [
        structlog.processors.EventRenamer("message"),
        _ordered,
        structlog.processors.JSONRenderer(),
    ]
    if people:
        plain = structlog.dev.plain_traceback
        render = [_clock, structlog.dev.ConsoleRenderer(timestamp_key="ts", exception_formatter=plain)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_NAMED, structlog.stdlib.ExtraAdder()],
        processors=[
            _stamp,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,  # a traceback becomes text before redaction, with either renderer
            redact,
            *render,
        ],
    )


def _stamp(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the record's Unix seconds, as events have them."""
    line["ts"] = round(line["_record"].created, 3)
    return line


def _clock(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["ts"] = time.strftime("%H:%M:%S", time.localtime(line["ts"]))
    return line


def _ordered(_logger: object, _method: str, line: MutableMapping[str, Any]) -> dict[str, Any]:
    tail = {"exception": line.pop("exception")} if "exception" in line else {}
    return {name: line[name] for name in FIRST if name in line} | dict(line) | tail
