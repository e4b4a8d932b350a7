"""Whether a peer's snapshot is what its followers hold of it: a pure function of their answers.

The author's claim holds unless more than half of the witnesses that can answer agree on another state, and more than
`liars` of them. So `liars` witnesses can never overrule an honest author, however few can answer. And with 2 * liars or
more honest witnesses that can, no author succeeds with a state that it gave nobody else.
"""

from collections import Counter
from collections.abc import Collection

from gossip.core.ids import Digest


def overruled(offered: Digest, said: Collection[Digest], liars: int, waiting: int = 0) -> bool | None:
    """Return whether `said`, the answer of each witness, overrules `offered`; `waiting`: witnesses that may yet answer.
    None: that depends on them."""
    against = max((count for named, count in Counter(said).items() if named != offered), default=0)
    if _outweighs(against, len(said) + waiting, liars):
        return True
    return None if _outweighs(against + waiting, len(said) + waiting, liars) else False


def _outweighs(against: int, heard: int, liars: int) -> bool:
    return against > liars and 2 * against > heard
