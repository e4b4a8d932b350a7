"""Says to the neighbours that we are paused, at once and again before the word ends; to new ones as they come."""

from collections.abc import Callable
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.errors import GossipError, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import KIB, PAUSE_PROTOCOL
from gossip.core.messages import PauseRequest, Refused, parse_empty_answer
from gossip.session import ask_once
from gossip.updates.announced_pauses import WORD_S

REPEAT_S: Final = WORD_S / 3
"""Seconds after which a neighbour is told again: one that was not reached once does not wait for us."""

LOOK_S: Final = 5.0
"""Seconds between two looks for neighbours that do not know. Chosen."""


async def say_paused(context: ServiceContext, seconds: Callable[[], float | None]) -> None:
    """Tell every neighbour until cancelled. `seconds`: for how long we are paused from now on; None: unknown."""
    told_at: dict[PeerId, float] = {}
    async with trio.open_nursery() as nursery:
        while True:
            now = trio.current_time()
            told_at = {peer: at for peer, at in told_at.items() if peer in context.engine.neighbours}
            due = [peer for peer in context.engine.neighbours if now - told_at.get(peer, -REPEAT_S) >= REPEAT_S]
            word = context.engine.pause_after(seconds()) if due else None
            if word is not None:
                for peer in due:
                    told_at[peer] = now
                    nursery.start_soon(_tell, context, peer, word)
            await trio.sleep(LOOK_S)


async def _tell(context: ServiceContext, peer: PeerId, word: PauseRequest) -> None:
    """Tell one neighbour. A release that does not know of pauses refuses the stream, and waits as for anybody."""
    patience_s = context.config.request_timeout_s
    try:
        raw = await ask_once(context.transport, peer, word, patience_s, KIB, protocol=PAUSE_PROTOCOL)
        parse_empty_answer(raw)
    except Refused:
        return  # we are no neighbour of it any more, or another link of ours is its newest by now
    except RemoteError as error:
        context.offence(peer, error)
    except GossipError:
        return
