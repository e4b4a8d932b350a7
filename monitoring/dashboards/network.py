"""Bytes, links, and who reaches whom."""

from dashboards.model import Dashboard, Panel, Query, Row

BYTES = Row(
    title="Bytes",
    panels=(
        Panel(
            title="All bytes sent and received",
            help="Every copy of an update, whole models and all overhead; without the headers of TCP and IP. Compare "
            "them with the line's own speed: docs/operations.md#what-a-node-needs.",
            queries=(
                Query('rate(p2ptrain_network_bytes_total{direction="sent"}[5m])', "{{node}} sent"),
                Query('rate(p2ptrain_network_bytes_total{direction="received"}[5m])', "{{node}} received"),
            ),
            unit="Bps",
        ),
        Panel(
            title="Bits per parameter and inner step",
            help="All that a node sends since it started, copies and overhead included, and one copy of each update. A "
            "ring all-reduce of fp32 at every step sends up to 64.",
            queries=(
                Query("8 * p2ptrain_parameter_sent_bytes", "{{node}} sent"),
                Query("8 * p2ptrain_parameter_published_bytes", "{{node}} published"),
            ),
        ),
        Panel(
            title="Updates sent and received",
            help="Payloads alone, a copy for each neighbour.",
            queries=(
                Query('rate(p2ptrain_update_bytes_total{direction="sent"}[5m])', "{{node}} sent"),
                Query('rate(p2ptrain_update_bytes_total{direction="received"}[5m])', "{{node}} received"),
            ),
            unit="Bps",
        ),
        Panel(
            title="Whole models sent and received",
            help="For nodes that join, restart or miss updates. All the time: links too slow for train.inner_steps.",
            queries=(
                Query('rate(p2ptrain_snapshot_bytes_total{direction="sent"}[5m])', "{{node}} sent"),
                Query('rate(p2ptrain_snapshot_bytes_total{direction="received"}[5m])', "{{node}} received"),
            ),
            unit="Bps",
        ),
        Panel(
            title="Newest update",
            help="Bytes of its payload: what a round sends to each neighbour.",
            queries=(Query("p2ptrain_payload_bytes"),),
            unit="bytes",
        ),
        Panel(
            title="Compression ratio",
            help="fp32 bytes over payload bytes: about 15.7 for q2, 31 for sign1, 4 for int8.",
            queries=(Query("p2ptrain_compression_ratio"),),
        ),
        Panel(
            title="Rung of the compressor `adaptive` (nodes)",
            help="Coarse all the time: more inner steps a round, or a smaller model.",
            queries=(Query("sum by (rung) (p2ptrain_rung)", "{{rung}}"),),
            empty="no node uses sync.compressor = adaptive",
        ),
        Panel(
            title="Slowest link that a quorum waits for",
            help="Far below the line's own speed: somebody else uses it, or the neighbours' machines are busy.",
            queries=(Query("p2ptrain_link_bytes_per_second"),),
            unit="Bps",
        ),
        Panel(
            title="Time to pull a blob",
            help="An update's payload or a whole model. As long as a round: the link or the neighbour's machine is "
            "busy.",
            queries=(
                Query("histogram_quantile(0.5, sum by (le) (rate(p2ptrain_blob_seconds_bucket[5m])))", "median"),
                Query("histogram_quantile(0.99, sum by (le) (rate(p2ptrain_blob_seconds_bucket[5m])))", "99%"),
            ),
            unit="s",
        ),
    ),
)

REACH = Row(
    title="Who reaches whom",
    panels=(
        Panel(
            title="Nodes by reachability",
            help="As peers have shown it. `outbound` is how every node behind a router looks: "
            "docs/operations.md#can-others-dial-this-node.",
            queries=(Query("sum by (state) (p2ptrain_reachability)", "{{state}}"),),
        ),
        Panel(
            title="Neighbours, and peers in the address book",
            help="No neighbours: docs/operations.md#alone.",
            queries=(
                Query("p2ptrain_neighbours", "{{node}} neighbours"),
                Query("p2ptrain_peers_known", "{{node}} known"),
            ),
        ),
        Panel(
            title="Neighbours lost a minute",
            help="Many: an unstable link.",
            queries=(Query('rate(p2ptrain_peer_events_total{event="lost"}[5m]) * 60'),),
        ),
        Panel(
            title="Dropped by the transport a minute, by kind",
            help="Needs nothing done; which kind rises says what is tried: docs/operations.md#what-is-dropped. "
            "`handler` at all: report it.",
            queries=(Query("sum by (kind) (rate(p2ptrain_drops_total[5m])) * 60 > 0", "{{kind}}"),),
            empty="nothing was dropped in five minutes",
        ),
    ),
)

RELAYS = Row(
    title="Relays",
    panels=(
        Panel(
            title="Relayed for others, of what may be",
            help="Near 1: what others want is more than network.relay_bytes_per_s (docs/operations.md#relaysaturated).",
            queries=(Query("rate(p2ptrain_relay_bytes_total[5m]) / (p2ptrain_relay_limit_bytes_per_second > 0)"),),
            unit="percentunit",
            levels=((0.9, "red"),),
            empty="no node relays",
        ),
        Panel(
            title="Circuits",
            help="Circuits relayed now. At 16 there is no room for more.",
            queries=(Query("p2ptrain_relay_circuits"),),
            levels=((16, "red"),),
        ),
        Panel(
            title="Refused by relays a minute, by status",
            help="The statuses: docs/operations.md#reachability.",
            queries=(Query("sum by (status) (rate(p2ptrain_relay_refused_total[5m])) * 60 > 0", "{{status}}"),),
            empty="nothing was refused in five minutes",
        ),
    ),
)

DASHBOARD = Dashboard(
    name="network", title="p2ptrain: Network", help="Bytes, links, and who reaches whom.", rows=(BYTES, REACH, RELAYS)
)
