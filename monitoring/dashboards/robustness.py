"""Can liars affect the model, who is refused and why, how fresh are the averaged models?"""

from dashboards.model import Dashboard, Panel, Query, Row

PROMISE = Row(
    title="The promise about sync.f liars",
    panels=(
        Panel(
            title="Robust margin",
            help="Members that may leave before the promise is lost. Below 0 it is: docs/operations.md#robustnesslost.",
            queries=(Query("p2ptrain_robust_margin"),),
            base="red",
            levels=((0, "green"),),
        ),
        Panel(
            title="Members of the newest aggregate",
            help="Own model included. Far below neighbours + 1: neighbours are stale.",
            queries=(Query("p2ptrain_members"),),
        ),
        Panel(
            title="Spectral gap of the known graph",
            help="How fast one node's progress reaches all; 0: the swarm is in parts; -1: alone. Below 0.1 with more "
            "than ten members: raise network.degree.",
            queries=(Query("p2ptrain_spectral_gap"),),
        ),
    ),
)

REGIONS = Row(
    title="Regions",
    panels=(
        Panel(
            title="Regions averaged",
            help="Regions in the newest averaging, own included. Fewer than there are: docs/how-to/regions.md.",
            queries=(Query("p2ptrain_regions"),),
        ),
        Panel(
            title="Region robust margin",
            help="Regions that may leave before one of liars cannot be left out. Below 0 it cannot be, as always with "
            "fewer than four.",
            queries=(Query("p2ptrain_region_robust_margin"),),
        ),
        Panel(
            title="Crossed between regions",
            help="Bytes a second of regions' models to other regions and from them. What may: docs/how-to/regions.md.",
            unit="Bps",
            queries=(
                Query('rate(p2ptrain_region_crossed_bytes_total{direction="sent"}[5m])', "{{node}} sent"),
                Query('rate(p2ptrain_region_crossed_bytes_total{direction="received"}[5m])', "{{node}} received"),
            ),
        ),
    ),
)

SECURE = Row(
    title="Secure sums",
    panels=(
        Panel(
            title="Members in the secure sum",
            help="Of the own group. 0: nothing was opened, or the strategy has no secure sums: "
            "docs/how-to/secure-aggregation.md.",
            queries=(Query("p2ptrain_secure_survivors"),),
        ),
        Panel(
            title="Groups with a secure sum",
            help="Groups whose sums were here when the newest round closed.",
            queries=(Query("p2ptrain_secure_groups"),),
        ),
        Panel(
            title="Clipped share",
            help="Share of own values beyond sync.clipping_range. Above 0.01 for long: give the run a larger range.",
            unit="percentunit",
            queries=(Query("p2ptrain_secure_clipped_share"),),
        ),
        Panel(
            title="Secure rounds a minute",
            help="By what they came to. `kept`: own values stay, and the event secure_round says why.",
            queries=(Query("60 * rate(p2ptrain_secure_rounds_total[5m])", "{{node}} {{result}}"),),
        ),
    ),
)

REFUSED = Row(
    title="Refused",
    panels=(
        Panel(
            title="Updates refused a minute, by reason",
            help="What each reason usually means: docs/operations.md#manyrejections.",
            queries=(
                Query('sum by (reason) (rate(p2ptrain_updates_total{result="rejected"}[5m])) * 60 > 0', "{{reason}}"),
            ),
            empty="nothing was refused in five minutes",
        ),
        Panel(
            title="Refused since the start, by peer (the first ten)",
            help="Of a flood only a part is counted. The same peer on every node: it is broken, or lies.",
            queries=(Query("topk(10, sum by (peer, reason) (p2ptrain_peer_rejected_total))", "{{peer}} {{reason}}"),),
            empty="nothing was ever refused",
        ),
        Panel(
            title="Clipped since the start, by peer (the first ten)",
            help="Rounds in which the aggregator did not follow a peer in full, on all nodes. centered_clipping clips "
            "the farther half each round; one peer far above the rest is broken, lies, or has other data.",
            queries=(Query("topk(10, sum by (peer) (p2ptrain_peer_clipped_total))", "{{peer}}"),),
            empty="nobody was ever clipped, or the aggregator does not clip",
        ),
        Panel(
            title="Share of updates that are refused",
            help="By node. High on one node: its own settings or its clock. High on all: see the peers.",
            queries=(
                Query(
                    'sum by (node) (rate(p2ptrain_updates_total{result="rejected"}[5m])) '
                    "/ (sum by (node) (rate(p2ptrain_updates_total[5m])) > 0)"
                ),
            ),
            unit="percentunit",
            levels=((0.1, "yellow"), (0.5, "red")),
            empty="no update came in five minutes",
        ),
        Panel(
            title="Peers banned or caught, since the node's start",
            help="The node's page shows which peer, and why: docs/operations.md#peerbanned.",
            queries=(
                Query(
                    'sum by (node, event) (p2ptrain_peer_events_total{event=~"banned|equivocation"})',
                    "{{node}} {{event}}",
                ),
            ),
            levels=((1, "red"),),
        ),
        Panel(
            title="Comings and goings a minute",
            help="Neighbours that came and that were lost.",
            queries=(
                Query('sum by (event) (rate(p2ptrain_peer_events_total{event=~"up|lost"}[5m])) * 60', "{{event}}"),
            ),
        ),
    ),
)

FRESH = Row(
    title="How fresh, how far apart",
    panels=(
        Panel(
            title="Updates taken a minute, by neighbour",
            help="On the average of the nodes that have it for a neighbour. One far below the others is slower, is "
            "refused (above), or its link is full.",
            queries=(Query("avg by (peer) (rate(p2ptrain_peer_accepted_total[5m])) * 60", "{{peer}}"),),
            empty="every node is alone, or the strategy averages by group all-reduce",
        ),
        Panel(
            title="Weight of a member by its staleness",
            help="1: fresh. Below 1 for the same peer on all nodes: it is slower than the rest.",
            queries=(Query("avg by (peer) (p2ptrain_peer_weight)", "{{peer}}"),),
            empty="every node is alone",
        ),
        Panel(
            title="Most stale neighbour (rounds)",
            help="At network.max_staleness all the time: one node is far slower.",
            queries=(Query("p2ptrain_staleness_rounds"),),
        ),
        Panel(
            title="Consensus distance",
            help="Root mean square L2 distance of the members' models to their mean. Growing for many rounds: the "
            "learning rate is too high for this many steps between exchanges, or a member is not honest.",
            queries=(Query("p2ptrain_consensus_distance"),),
        ),
    ),
)

DASHBOARD = Dashboard(
    name="robustness",
    title="p2ptrain: Robustness and trust",
    help="Can liars affect the model, who is refused and why, how fresh are the averaged models?",
    rows=(PROMISE, REGIONS, SECURE, REFUSED, FRESH),
)
