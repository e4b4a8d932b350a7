"""What is no event: the libraries' logging and our own tracebacks, by structlog, into `node.log`.

    a library's logging.warning(...) ─┐                                        ┌─ node.log: a JSON object a line
    structlog.get_logger().error(...) ┴─ level, logger, time, traceback, redact ┴─ --debug: stderr, words on a terminal

Events go another way (log.py, docs/decisions/0031): they are records with a vocabulary, not lines. They pass the
same Redactor. Tracebacks are written without the frames' variables, among which secrets stand.
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

LOG_BYTES = 5 << 20
"""Two files of 5 MiB: enough to see what led to a failure, and nothing that fills a volunteer's disk."""

_NAMED: list[Processor] = [structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name]

OURS = "p2ptrain"
"""The logger of a failed node's traceback, which the command line shows by itself."""

FIRST = ("ts", "level", "logger", "message")
"""The order in which a line has its fields; then whatever else was given, `exception` last."""


def configure(path: Path, redact: Redactor, *, debug: bool = False, stream: IO[str] | None = None) -> None:
    """Send all logging of this process to the file at `path`, which is made with the first line. `debug`: all that the
    libraries say, and their warnings on `stream` (stderr) as well. Without it libp2p, which has set its loggers apart
    when it was imported, says nothing: strangers decide how much it would be."""
    handler = _LogFile(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(formatter(redact, people=False))
    handlers: list[logging.Handler] = [handler]
    if debug:
        shown = logging.StreamHandler(stream or sys.stderr)
        shown.setLevel(logging.WARNING)  # a library's chatter is a hundred lines a second
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


class _LogFile(RotatingFileHandler):
    """A line that the disk does not take is lost, without a traceback of logging's own on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def formatter(redact: Redactor, *, people: bool) -> logging.Formatter:
    """For any handler: words for people on a terminal, else a JSON object a line. Both hide secrets."""
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
            structlog.processors.format_exc_info,  # a traceback is text before it is redacted, whoever renders it
            redact,
            *render,
        ],
    )


def _stamp(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Unix seconds of the record, as events have them."""
    line["ts"] = round(line["_record"].created, 3)
    return line


def _clock(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["ts"] = time.strftime("%H:%M:%S", time.localtime(line["ts"]))
    return line


def _ordered(_logger: object, _method: str, line: MutableMapping[str, Any]) -> dict[str, Any]:
    tail = {"exception": line.pop("exception")} if "exception" in line else {}
    return {name: line[name] for name in FIRST if name in line} | dict(line) | tail
