"""What a node that reaches all others through one relay says of it."""

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from gossip.core.identity import Identity
from gossip.reachability.relay_link_task import RelayLink

ABSENT_S = 15.0
"""By when the link says that the relay does not answer."""
RELAY = Identity(b"\x05" * 32).peer_id


async def told_by(*, connected_at: float, gone_at: float, until: float) -> list[str]:
    """What a link says until then whose relay answers from `connected_at` to `gone_at`."""
    said: list[str] = []
    begun = trio.current_time()

    class Transport:
        @property
        def peers(self) -> set[str]:
            return {RELAY} if connected_at <= trio.current_time() - begun < gone_at else set()

        async def relayed_by(self, peer: str) -> None:
            return None

    context: Any = SimpleNamespace(
        transport=Transport(), engine=SimpleNamespace(tell_reachability=said.append), perform=lambda: None
    )
    with trio.move_on_after(until):
        await RelayLink(context, RELAY).run()
    return said


async def test_a_relay_that_never_answers_is_told_once(autojump_clock: trio.testing.MockClock) -> None:
    said = await told_by(connected_at=1e9, gone_at=1e9, until=20 * ABSENT_S)
    assert len(said) == 1
    assert said[0].startswith(f"no answer of the relay {RELAY}, through which this node reaches all others: ")


async def test_one_that_answers_in_time_is_told_when_it_is_there_and_when_it_is_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    said = await told_by(connected_at=ABSENT_S / 2, gone_at=3 * ABSENT_S, until=20 * ABSENT_S)
    assert [each.split(str(RELAY))[0] for each in said] == [
        "this node reaches the others through the relay ",
        "the relay ",
    ]


async def test_one_that_comes_later_is_told_as_well(autojump_clock: trio.testing.MockClock) -> None:
    said = await told_by(connected_at=2 * ABSENT_S, gone_at=1e9, until=20 * ABSENT_S)
    assert [each.split(" ")[0] for each in said] == ["no", "this"]
