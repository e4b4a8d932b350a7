"""What a node costs beside learning, as a swarm grows: wake-ups and control bytes, once everybody has joined.

A wake-up is a step of a task in the scheduler: a timer, a message, an answer. Control bytes are all that a node sends
but updates and models. Both are means over nodes and virtual seconds between two moments; how a swarm comes about is
left out, and so is how it ends.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gossip.updates.audits import LOG_SHARE, LOG_SHARE_OF_REGION, audit_every
from node.simulation.control_ledger import ControlLedger, control_of
from node.simulation.twin import Played

SETTLED_S: Final = 10.0
"""Virtual seconds after which members that started together know their neighbours."""


@dataclass(frozen=True, kw_only=True)
class NodeCosts:
    """Of one node and virtual second, in a swarm of `nodes`."""

    nodes: int
    wake_ups: float
    control_bytes: float
    by_kind: Mapping[str, float] = field(default_factory=dict)
    """Control bytes of each kind (control_ledger.py), most first."""
    audits: Mapping[int, int] = field(default_factory=dict)
    """How many nodes passed on every k-th link of others at the end, by k."""


def steady_costs(
    played: Played,
    *,
    begin_s: float = SETTLED_S,
    end_s: float,
    ledger: ControlLedger | None = None,
    in_regions: bool = False,
) -> NodeCosts:
    """Return the costs between two virtual seconds, by kind where a ledger was kept. ValueError where the run has not
    so many."""
    share_of_links = LOG_SHARE_OF_REGION if in_regions else LOG_SHARE
    seconds = sorted(played.steps_by_second.keys() & played.twin.sent.keys())
    within = [second for second in seconds if begin_s <= second <= end_s]
    if len(within) < 2:
        raise ValueError(f"the run has no virtual seconds between {begin_s:g} and {end_s:g}: give it more rounds")
    first, last = within[0], within[-1]
    share = 1 / (len(played.members) * (last - first))
    (sent, payload), (sent_before, payload_before) = played.twin.sent[last], played.twin.sent[first]
    kinds: Counter[str] = Counter()
    for second in range(first, last) if ledger else ():
        kinds.update(ledger.sent.get(second, {}) if ledger else {})
    return NodeCosts(
        nodes=len(played.members),
        wake_ups=(played.steps_by_second[last] - played.steps_by_second[first]) * share,
        control_bytes=(sent - payload - sent_before + payload_before) * share,
        by_kind={kind: size * share for kind, size in control_of(kinds, payload - payload_before).items()},
        audits=dict(sorted(Counter(audit_every(each, share_of_links) for each in played.twin.believed[last]).items())),
    )


def scenario_text(
    nodes: int, rounds: int, *, mode: str = "faithful", regions: int = 1, cut_s: float | None = None
) -> str:
    """Return a scenario of so many alike nodes, with a task so small that what they cost beside it is what they send:
    rounds of two seconds, links and distances as in one country. `regions`: how many of them the nodes are shared out
    among; 1 is a flat swarm. `cut_s`: the virtual second at which all are killed at once; None: they train to the end
    and leave, which takes longer to simulate than all that was measured."""
    session = (
        "" if cut_s is None else f'[sessions.cut]\nkind = "trace"\nintervals_s = [[0, {cut_s}]]\nends_by = "kill"\n'
    )
    labels = [f"region-{number}" for number in range(regions)] if regions > 1 else []
    groups = (
        [_group(label, nodes // regions + (at < nodes % regions), label) for at, label in enumerate(labels)]
        if labels
        else [_group("home", nodes)]
    )
    if session:
        groups = [f'{group}session = "cut"\n' for group in groups]
    sync = f"[sync]\nregions = {labels}\nregion_every = 4\n" if labels else ""
    return f"""
mode = "{mode}"
until_s = {600.0 if cut_s is None else cut_s}

[task]
name = "quadratic"
functions = {nodes}

{sync}
[train]
rounds = {rounds}
inner_steps = 4
batch_size = 4
warmup_steps = 4
eval_every = {rounds}
eval_examples = 64

[links.home]
up = "20 Mbit/s"
down = "100 Mbit/s"
jitter_ms = 3

[devices.desktop]
step_s = 0.5
sigma = 0.1
encode_s = 0.002
decode_s = 0.002
verify_s = 0.0002

{session}
{"".join(groups)}
"""


def _group(name: str, count: int, region: str = "") -> str:
    settings = f'settings = {{ node = {{ region = "{region}" }} }}' if region else ""
    return f"""
[[nodes]]
name = "{name}"
count = {count}
link = "home"
device = "desktop"
{settings}
"""
