"""What a peer can make libp2p raise stays with that peer: one counter of guarded faults, one guarded task manager.

libp2p runs every connection, pubsub message and stream handler as a child task of a service, and a child that raises
ends the service and with it the host (trap 1: trio_manager.py:385 calls cancel() for any exception). Remote bytes
reach such raises by many ways: a protocol name that is not UTF-8, a malformed protobuf, a garbage public key. So the
guard stands at the root, around every child task; the narrower guards (`libp2p_host`, `libp2p_pubsub`) only add that
the offending stream alone is reset and nothing else of that connection.

The names that multistream-select exchanges, before and after the handshake and from both ends, are bounded here too:
stock code reads as many bytes as are announced (utils/varint.py:137), so that anybody who can reach the port could
fill the memory within the ten seconds that a handshake may take.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from libp2p.exceptions import ParseError
from libp2p.io.abc import Reader
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.tools.anyio_service.trio_manager import TrioManager
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

logger = logging.getLogger(__name__)

RESTART_S: Final = 1.0
"""Pause before a daemon task (gossipsub's heartbeat) runs again: one heartbeat, so that a bug cannot spin."""

MAX_KINDS: Final = 64
"""Distinct kinds counted. Kinds are named in this package's code; the bound keeps metrics' labels few if that fails."""

MAX_NAME_BYTES: Final = 1024
"""The longest name of multistream-select: go and rust libp2p take as much; ours have under 30 characters."""


async def _read_name(reader: Reader) -> bytes:
    """One name without its newline, as libp2p's `read_delim`. Raises ParseError, or IOException when it is too long."""
    name = bytes(await read_varint_prefixed_bytes_limited(reader, MAX_NAME_BYTES))
    if not name.endswith(b"\n"):
        raise ParseError("a name must end in a newline")
    return name[:-1]


# For the whole process, as the module that uses it takes no parameter; stock hosts beside ours are none the worse.
multiselect_communicator.read_delim = _read_name


class Faults:
    """How often something of a remote's was caught or refused, by kind; for metrics, so kinds are a small set."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, kind: str, error: BaseException | None = None) -> None:
        """Count one fault; the error goes to the debug log, since a remote must not be able to fill ours."""
        self._counts[kind if kind in self._counts or len(self._counts) < MAX_KINDS else "other"] += 1
        logger.debug("guarded %s: %r", kind, error)

    @property
    def counts(self) -> Mapping[str, int]:
        """A copy: kind -> times."""
        return dict(self._counts)


class GuardedManager(TrioManager):  # type: ignore[misc]
    """A service manager whose child tasks cannot end the service. The service's own `run` is not guarded."""

    def __init__(self, service: Any, faults: Faults) -> None:
        super().__init__(service)
        self._faults = faults

    def run_task(
        self,
        async_fn: Callable[..., Awaitable[Any]],
        *args: Any,
        daemon: bool = False,
        name: str | None = None,
        _internal: bool = False,
    ) -> None:
        """As the base class's, with `async_fn` guarded."""
        name = name or getattr(async_fn, "__name__", "task")
        if not _internal:
            async_fn = self._guarded(async_fn, daemon)
        super().run_task(async_fn, *args, daemon=daemon, name=name, _internal=_internal)

    def _guarded(self, async_fn: Callable[..., Awaitable[Any]], daemon: bool) -> Callable[..., Awaitable[None]]:
        async def guarded(*args: Any) -> None:
            while True:
                try:
                    await async_fn(*args)
                    return
                except Exception as error:
                    self._faults.note("task", error)
                if not daemon:
                    return
                await trio.sleep(RESTART_S)

        return guarded
