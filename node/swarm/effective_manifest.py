"""Which version of a manifest holds in a round, and how many rounds the run has by it. Imports no torch."""

from typing import Final

from gossip.membership import Manifest, ManifestChain
from node.swarm import agreed_settings

MORE_ROUNDS: Final = 20
"""How many rounds to add, as an example in messages. Chosen: a third of the default run."""


def more_rounds_hint(done: int) -> str:
    """Return the command that gives more rounds to a private swarm that has trained `done` rounds, all of its run. No
    member's own flag can do that."""
    return (
        f"an admin gives the swarm more with p2ptrain swarm rotate DIR --set train.rounds={done + MORE_ROUNDS}; "
        "then start this node again"
    )


def holding(chain: ManifestChain, round_: int) -> Manifest:
    """Return the version whose settings hold in a round, as every member finds by itself: the newest whose round has
    come, or which gives more rounds to a run that would be over by then."""
    held = next(iter(chain))
    for each in chain:
        more = (rounds_told(each) or 0) > (rounds_told(held) or 0)
        if each.applies_at <= round_ or (more and round_ >= (rounds_told(held) or 0)):
            held = each
    return held


def rounds_of(chain: ManifestChain) -> int | None:
    """Return how many rounds the run has in all, by the versions that come to hold; None where none says."""
    ends = rounds_told(next(iter(chain)))
    while ends is not None and (rounds_told(holding(chain, ends)) or 0) > ends:
        ends = rounds_told(holding(chain, ends))
    return None if ends is None else rounds_told(holding(chain, ends))


def rounds_told(manifest: Manifest) -> int | None:
    """Return how many rounds a version gives the run; None where it does not say."""
    found = agreed_settings.raw_of(manifest.terms.settings).get("train", {}).get("rounds")
    return found if isinstance(found, int) else None
