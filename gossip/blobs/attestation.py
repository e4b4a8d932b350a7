"""Whether a snapshot that somebody offers of itself is what those who follow it hold: a pure function of their words.

Its author's word stands unless more than half of those who can tell say the same other thing, and more than `liars` of
them. So no `liars` can speak against an honest author, however few can tell, and of 2 * liars and more honest ones who
can, no author gets away with a state that it told nobody else.
"""

from collections import Counter
from collections.abc import Collection

from gossip.core.ids import Digest


def overruled(offered: Digest, said: Collection[Digest], liars: int, waiting: int = 0) -> bool | None:
    """Whether `said`, what each witness names, speaks against `offered`; `waiting`: witnesses that may yet say
    something. None: that depends on them."""
    against = max((count for named, count in Counter(said).items() if named != offered), default=0)
    if _outweighs(against, len(said) + waiting, liars):
        return True
    return None if _outweighs(against + waiting, len(said) + waiting, liars) else False


def _outweighs(against: int, heard: int, liars: int) -> bool:
    return against > liars and 2 * against > heard
