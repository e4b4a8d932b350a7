"""Moves of answers: what is asked of a hostile node is refused, delayed, cut short, or answered with a lie."""

import trio
from adversary_move import Act, move
from hostile_peer import ANSWERED, FAULTS, Fault
from moves_chains import take_part

REQUESTS = tuple(ANSWERED.values())[:9]
"""Those of members are for a private swarm (moves_members.py)."""


def _register(how: str) -> None:
    @move(f"answer.{how}", variants=(*REQUESTS, "dialback"), seconds=(10, 90), speaks=(*REQUESTS, "dialback"))
    async def _answer(act: Act) -> None:
        """The kind of request is the variant."""
        towards = frozenset(life.peer for life in act.targets) if act.move.targets else frozenset()
        with act.peer.lying(Fault(act.move.variant, how, towards)):
            if act.stage.scenario.kind == "meeting":
                await act.meet()
                await trio.sleep(act.move.seconds)
            else:
                await take_part(act, "mean")


for _how in FAULTS:
    _register(_how)


@move("mute", seconds=(20, 120))
async def _mute(act: Act) -> None:
    """Nothing passes to or from it, while its connections stay: a stopped process."""
    await act.meet()
    act.stage.network.stall(act.peer.peer)
    await trio.sleep(act.move.seconds)
    act.stage.network.unstall(act.peer.peer)


@move("silent", seconds=(20, 200))
async def _silent(act: Act) -> None:
    """A neighbour that answers hellos and has nothing to say."""
    await act.meet()
    await trio.sleep(act.move.seconds)


@move("hears_only", seconds=(20, 200))
async def _hears_only(act: Act) -> None:
    """Takes broadcasts in, and passes none on."""
    act.peer.passes_on = False
    await act.meet()


@move("no_room", seconds=(5, 60))
async def _no_room(act: Act) -> None:
    """Says that it has no room for anybody, again and again in between."""
    await act.meet()
    until = trio.current_time() + act.move.seconds
    while trio.current_time() < until:
        act.peer.admits = not act.peer.admits
        for life in act.targets:
            await act.peer.greet(life.peer)
        await trio.sleep(3.0)
    act.peer.admits = True
