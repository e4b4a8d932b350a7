"""One node (or a few, one beside the other): does it compute, what does it wait for, has it room?"""

from dashboards.model import Dashboard, Panel, Query, Row

MEDIAN = "histogram_quantile(0.5, sum by (le, node) (rate(p2ptrain_{}_seconds_bucket[5m])))"

WORK = Row(
    title="Work",
    panels=(
        Panel(
            title="Share of time computing",
            help="Over five minutes. Below 0.8: docs/operations.md#lowutilization.",
            queries=(
                Query(
                    "rate(p2ptrain_compute_seconds_total[5m]) / (rate(p2ptrain_round_seconds_sum[5m]) > 0)",
                ),
            ),
            empty="no round was closed in five minutes",
            unit="percentunit",
            base="yellow",
            levels=((0.8, "green"),),
        ),
        Panel(
            title="Mean time of a step",
            help="Rises while nothing else changed: something else uses the device, or it is too hot.",
            queries=(
                Query(
                    "rate(p2ptrain_step_seconds_sum[5m]) / (rate(p2ptrain_step_seconds_count[5m]) > 0)",
                ),
            ),
            unit="s",
            empty="no round was closed in five minutes",
        ),
        Panel(
            title="Round, and its closing (median)",
            help="Closing as long as a round: neighbours are slow or the link is full; fewer bytes or more steps "
            "(docs/operations.md#tuning).",
            queries=(
                Query(MEDIAN.format("round"), "{{node}} round"),
                Query(MEDIAN.format("close"), "{{node}} closing"),
                Query("p2ptrain_exchange_seconds >= 0", "{{node}} exchange"),
            ),
            unit="s",
        ),
        Panel(
            title="Updates of neighbours that arrive in time",
            help="Over the newest 20 rounds: here before the phase after their round had ended. Below 0.5: "
            "docs/operations.md#updateslate.",
            queries=(Query("p2ptrain_updates_in_time_ratio >= 0"),),
            unit="percentunit",
            base="red",
            levels=((0.5, "yellow"), (0.8, "green")),
            empty="every node is alone, or has closed one round",
        ),
        Panel(
            title="Steps of the next round",
            help="train.inner_steps, or what its schedule and node.pace make of it.",
            queries=(Query("p2ptrain_inner_steps"),),
        ),
        Panel(
            title="Late steps of the newest correction",
            help="Steps between a round's snapshot and its correction. Above the steps of a round: closing takes "
            "longer than a round.",
            queries=(Query("p2ptrain_late_steps"),),
        ),
        Panel(
            title="Share of time paused, by reason",
            help="By the participation policy that paused training (privacy: its budget is spent), over five minutes.",
            queries=(Query("rate(p2ptrain_paused_seconds_total[5m])", legend="{{reason}}"),),
            unit="percentunit",
            empty="the node always trains",
        ),
        Panel(
            title="Visitors' differences, by result",
            help="Differences of visitors in five minutes: accepted, or why they were refused.",
            queries=(Query("increase(p2ptrain_visits_total[5m])", legend="{{result}}"),),
            empty="the node has no visitors",
        ),
        Panel(
            title="Tokens a second",
            help="Over the newest round.",
            queries=(Query("p2ptrain_tokens_per_second"),),
            unit="short",
        ),
    ),
)

WAITING = Row(
    title="What it waits for",
    panels=(
        Panel(
            title="Queues (highest of 5 minutes)",
            help="One that does not come down names the part that is stuck: docs/operations.md#what-waits-where.",
            queries=(
                Query("max by (node, queue) (max_over_time(p2ptrain_queue_depth[5m])) > 0", "{{node}} {{queue}}"),
            ),
            empty="nothing has waited for five minutes",
        ),
        Panel(
            title="Event loop lag (99%)",
            help="How late the event loop woke. Above 0.3 s: docs/operations.md#looplag.",
            queries=(
                Query(
                    "histogram_quantile(0.99, sum by (le, node) (rate(p2ptrain_event_loop_lag_seconds_bucket[5m])))",
                ),
            ),
            unit="s",
            levels=((0.05, "yellow"), (0.3, "red")),
        ),
        Panel(
            title="Most stale neighbour (rounds)",
            help="At network.max_staleness all the time: a neighbour is far slower than this node.",
            queries=(Query("p2ptrain_staleness_rounds"),),
        ),
    ),
)

ROOM = Row(
    title="Room",
    panels=(
        Panel(
            title="Memory",
            help="Resident. Growing from round to round: report it.",
            queries=(Query("p2ptrain_rss_bytes"),),
            unit="bytes",
        ),
        Panel(
            title="Share of the budget that is taken",
            help="By resource: docs/how-to/budgets.md. Memory near 1: fewer examples go through at a time.",
            queries=(Query("p2ptrain_budget_used / p2ptrain_budget", "{{node}} {{resource}}"),),
            unit="percentunit",
            empty="no node has a budget",
        ),
        Panel(
            title="Shift of own data",
            help="Standard deviations from what is usual, by signal: docs/how-to/data-shift.md. And shifts told.",
            queries=(
                Query("p2ptrain_shift_deviation", "{{node}} {{signal}}"),
                Query("increase(p2ptrain_shifts_total[10m]) > 0", "{{node}} told: {{where}}"),
            ),
            empty="no node watches its data for shift",
        ),
        Panel(
            title="Privacy spent, over its budget",
            help="Epsilon over privacy.epsilon: docs/how-to/privacy-budget.md. At 1 own data are not trained on. "
            "And of the visitor that has come most often, over visits.epsilon: at 1 it is refused.",
            queries=(
                Query("p2ptrain_privacy_epsilon / p2ptrain_privacy_epsilon_budget", "{{node}}"),
                Query("p2ptrain_visits_epsilon / p2ptrain_visits_epsilon_budget", "{{node}} visitors"),
            ),
            unit="percentunit",
            empty="no node has a privacy budget",
        ),
        Panel(
            title="GPU memory that is left",
            help="What the trainer can still get: free on the device, and held by its own allocator without a tensor "
            "in it. Near 0: docs/operations.md#gpumemorylow.",
            queries=(
                Query(
                    "p2ptrain_gpu_memory_free_bytes + p2ptrain_gpu_memory_reserved_bytes "
                    "- p2ptrain_gpu_memory_allocated_bytes"
                ),
            ),
            unit="bytes",
            base="red",
            levels=((1 << 28, "green"),),
            empty="no node trains on a GPU",
        ),
        Panel(
            title="GPU memory in tensors",
            help="Of this process, on the device that it trains on.",
            queries=(Query("p2ptrain_gpu_memory_allocated_bytes"),),
            unit="bytes",
            empty="no node trains on a GPU",
        ),
        Panel(
            title="Disk that is left",
            help="Where the run's folder lies. Less than two checkpoints and 1 GB: docs/operations.md#disknearlyfull.",
            queries=(Query("p2ptrain_disk_free_bytes >= 0"),),
            unit="bytes",
            base="red",
            levels=((10**9, "green"),),
        ),
        Panel(
            title="Age of the newest checkpoint",
            help="Above an hour: docs/operations.md#checkpointold.",
            queries=(Query("p2ptrain_checkpoint_age_seconds >= 0"),),
            unit="s",
            levels=((3600, "red"),),
            empty="no node has written one yet",
        ),
        Panel(
            title="Checkpoints that could not be written",
            help="Since the node started: the disk did not take them. At all: docs/operations.md#checkpointold.",
            queries=(Query("p2ptrain_checkpoint_failures_total"),),
            levels=((1, "red"),),
        ),
        Panel(
            title="What it runs",
            help="Task, aggregator, compressor, device and role: the same task on all nodes of a run.",
            queries=(Query("max by (node, role, task, aggregator, compressor, device) (p2ptrain_info)", "nodes"),),
            kind="table",
        ),
    ),
)

DASHBOARD = Dashboard(
    name="node",
    title="p2ptrain: Node",
    help="One node, or a few beside each other: does it compute, what does it wait for, has it room?",
    rows=(WORK, WAITING, ROOM),
)
