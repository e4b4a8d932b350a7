"""Marks: links that name the state after them. This file makes ours, and compares the neighbours' with what we hold of
them. Each takes a hundredth of the time at most: for a large model that means fewer of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from gossip.blobs.hashing_task import Hasher
from gossip.context import ServiceContext
from gossip.core.api import StateSource
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.statements import UpdateHeader
from gossip.updates.neighbour import Neighbour
from gossip.updates.publisher import Payload, Publisher

MARK_REST: Final = 99.0
"""The pause after a mark is so many times what it took, for each chain: so marks take a hundredth of the time for our
own chain, and for each neighbour's (for 8 of them less than a tenth in all). 25M parameters take 0.1 s."""


class DutyCycle:
    """Work that is followed by a pause `times` as long."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._until = float("-inf")

    @property
    def over(self) -> bool:
        """Return whether work may begin again."""
        return trio.current_time() >= self._until

    @contextmanager
    def after(self) -> Iterator[None]:
        """Run the work, then begin the pause."""
        began = trio.current_time()
        try:
            yield
        finally:
            now = trio.current_time()
            self._until = now + self._times * (now - began)


class StateDigestPublisher:
    """Names the state in our own headers, now and then."""

    def __init__(self, publisher: Publisher, hasher: Hasher) -> None:
        self._publisher = publisher
        self._hasher = hasher
        self._rest = DutyCycle(MARK_REST)

    async def cut(self, state: StateSource | None) -> Payload | None:
        """Return the state after our next link, if that is to be marked. What `state` raises passes through."""
        if state is None or not self._publisher.may_mark or not self._rest.over:
            return None
        with self._rest.after():
            return await self._hasher.payload(await state())


class StateDigestVerifier:
    """Compares the states that one neighbour names with what the runtime holds of it."""

    def __init__(self, peer: PeerId, neighbour: Neighbour, context: ServiceContext) -> None:
        self._peer = peer
        self._neighbour = neighbour
        self._context = context
        self._rest = DutyCycle(MARK_REST)

    async def check(self, link: UpdateHeader) -> None:
        """Check the mark of `link`, which must be the newest applied update. Raises RemoteError(CONTRADICTED)."""
        tracked = self._context.tracked
        if link.body.state is None or tracked is None:
            return
        if not self._rest.over:
            self._neighbour.marked(link.place, None)
            return
        with self._rest.after():
            async with tracked.reading():
                data = await tracked.estimate(self._peer)
                held = None if data is None else (await self._context.hasher.manifest(data)).address
        if held is not None and held != link.body.state:
            raise RemoteError(Reason.CONTRADICTED, f"its link {link.seq} names a state that its updates do not lead to")
        self._neighbour.marked(link.place, held)
