"""Is the swarm well? One look, and where to look next."""

from dashboards.model import Dashboard, Panel, Query, Row

NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Nodes that answer",
            help="Nodes that answered Prometheus' last scrape. Fewer than you run: see the next panel.",
            queries=(Query('sum(up{job="p2ptrain"})', "nodes"),),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            title="Nodes that do not",
            help="Listed in targets/ and silent. Above 0: docs/operations.md#nodedown.",
            queries=(Query('count(up{job="p2ptrain"} == 0) or vector(0)', "nodes"),),
            kind="stat",
            levels=((1, "red"),),
            width=4,
            height=5,
        ),
        Panel(
            title="Round",
            help="The newest round that any node has closed. Standing still: docs/operations.md#swarmstalled.",
            queries=(Query("max(p2ptrain_round)", "round"),),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            title="Held-out loss",
            help="The median of the nodes that have measured it. Rising: see the dashboard Training quality.",
            queries=(Query("quantile(0.5, p2ptrain_eval_loss > 0)", "loss"),),
            kind="stat",
            empty="no node has measured it yet",
            width=4,
            height=5,
        ),
        Panel(
            title="Lowest robust margin",
            help="Members that may leave the worst placed node before its promise about sync.f liars is lost. Below "
            "0 it is lost: docs/operations.md#robustnesslost.",
            queries=(Query("min(p2ptrain_robust_margin)", "members"),),
            kind="stat",
            base="red",
            levels=((0, "green"),),
            width=4,
            height=5,
        ),
        Panel(
            title="Refused a minute",
            help="Updates that all nodes together refuse. Some are normal when nodes come and go; by reason and by "
            "peer in Robustness and trust.",
            queries=(Query('sum(rate(p2ptrain_updates_total{result="rejected"}[5m])) * 60', "updates"),),
            kind="stat",
            levels=((1, "yellow"), (60, "red")),
            width=4,
            height=5,
        ),
    ),
)

ALERTS = Row(
    title="What wants a look",
    panels=(
        Panel(
            title="Alerts that fire",
            help="Each has its section in docs/operations.md, under its name.",
            queries=(Query('sum by (alertname, severity, node) (ALERTS{alertstate="firing"})', "series"),),
            kind="table",
            empty="no alert fires",
            width=10,
        ),
        Panel(
            title="Nodes",
            help="The newest of each node; an observer has no loss of its own and computes nothing. Choose one "
            "above and follow the link Node.",
            queries=(
                Query("max by (swarm, run, node) (p2ptrain_round)", "round"),
                Query("max by (swarm, run, node) (p2ptrain_train_loss)", "training loss"),
                Query("max by (swarm, run, node) (p2ptrain_neighbours)", "neighbours"),
                Query("max by (swarm, run, node) (p2ptrain_utilization)", "share computing"),
                Query("max by (swarm, run, node) (p2ptrain_updates_in_time_ratio)", "updates in time"),
                Query("max by (swarm, run, node) (p2ptrain_robust_margin)", "margin"),
            ),
            kind="table",
            width=14,
        ),
    ),
)

TRENDS = Row(
    title="How it goes",
    panels=(
        Panel(
            title="Held-out loss by node",
            help="Nodes lie close together in a swarm that is well. One above the others has fallen behind, or "
            "averages with fewer: see its neighbours and its staleness.",
            queries=(Query("p2ptrain_eval_loss > 0"),),
            empty="no node has measured it yet",
        ),
        Panel(
            title="Rounds by node",
            help="Parallel lines. One that is flat: docs/operations.md#norounds. All flat: "
            "docs/operations.md#swarmstalled.",
            queries=(Query("p2ptrain_round"),),
        ),
        Panel(
            title="Tokens a second",
            help="Of all nodes together, and of each. Falls with nodes that leave; a node alone that falls is busy "
            "or hot.",
            queries=(
                Query("sum(rate(p2ptrain_tokens_total[5m]))", "all"),
                Query("rate(p2ptrain_tokens_total[5m])"),
            ),
            unit="short",
        ),
        Panel(
            title="Neighbours and members",
            help="Least and median number of neighbours, and of models in an aggregate (own included). Members far "
            "below neighbours + 1: neighbours are stale.",
            queries=(
                Query("min(p2ptrain_neighbours)", "neighbours, least"),
                Query("quantile(0.5, p2ptrain_neighbours)", "neighbours, median"),
                Query("quantile(0.5, p2ptrain_members)", "members, median"),
                Query("quantile(0.5, p2ptrain_neighbours_paused)", "neighbours paused, median"),
            ),
        ),
        Panel(
            title="Sent for training",
            help="All bytes of all nodes, copies and overhead included; of these payloads of updates, and whole models "
            "for nodes that join. Models sent all the time: nodes miss updates again and again "
            "(docs/operations.md#tuning).",
            queries=(
                Query('sum(rate(p2ptrain_network_bytes_total{direction="sent"}[5m]))', "all"),
                Query('sum(rate(p2ptrain_update_bytes_total{direction="sent"}[5m]))', "updates"),
                Query('sum(rate(p2ptrain_snapshot_bytes_total{direction="sent"}[5m]))', "models"),
            ),
            unit="Bps",
        ),
        Panel(
            title="Rounds closed a minute, by what closed them",
            help="Mostly `deadline`: a third or more of the neighbours are slower than this. No harm by itself. "
            "`alone`: docs/operations.md#alone.",
            queries=(Query("sum by (by) (rate(p2ptrain_rounds_closed_total[5m])) * 60", "{{by}}"),),
        ),
    ),
)

DASHBOARD = Dashboard(
    name="overview",
    title="p2ptrain: Swarm overview",
    help="Is the swarm well? One look, and where to look next.",
    rows=(NOW, ALERTS, TRENDS),
)
