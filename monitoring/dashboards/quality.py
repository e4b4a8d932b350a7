"""Does it learn, does everybody take part, and what does it cost?"""

from dashboards.model import Dashboard, Panel, Query, Row

LOSS = Row(
    title="Loss",
    panels=(
        Panel(
            title="Held-out loss",
            help="Loss of the averaged model, every train.eval_every rounds. Rising while the training loss falls: too "
            "many passes over the data.",
            queries=(Query("p2ptrain_eval_loss > 0"),),
            empty="no node has measured it yet",
        ),
        Panel(
            title="Training loss",
            help="Mean of the newest round. Rising on all nodes: a lower train.learning_rate. On one: its data. NaN: "
            "docs/operations.md#lossnotfinite.",
            queries=(Query("p2ptrain_train_loss"),),
        ),
        Panel(
            title="Held-out loss, highest less lowest",
            help="How much the nodes' models differ in their predictions. Growing: averaging does not keep up; see the "
            "consensus distance and the members.",
            queries=(
                Query("max by (run) (p2ptrain_eval_loss > 0) - min by (run) (p2ptrain_eval_loss > 0)", "{{run}}"),
            ),
            empty="no node has measured it yet",
        ),
        Panel(
            title="Consensus distance",
            help="Root mean square L2 distance of the members' models to their mean.",
            queries=(Query("p2ptrain_consensus_distance"),),
        ),
        Panel(
            title="Output divergence",
            help="KL of the neighbours' mean predictions from the node's own, in nats a prediction, at each "
            "evaluation. Growing on all: averaging does not keep up. On one: it has fallen behind.",
            queries=(Query("p2ptrain_output_divergence_nats >= 0"),),
            empty="no node with neighbours has measured it yet, or the task's loss is not in nats",
        ),
        Panel(
            title="Steps skipped a minute",
            help="Their loss or gradient was not finite: docs/operations.md#stepsskipped.",
            queries=(Query("rate(p2ptrain_skipped_steps_total[5m]) * 60"),),
            levels=((1, "red"),),
        ),
    ),
)

SHARES = Row(
    title="Who takes part",
    panels=(
        Panel(
            title="Tokens a second by node",
            help="Or examples. Over five minutes.",
            queries=(Query("rate(p2ptrain_tokens_total[5m])"),),
            unit="short",
        ),
        Panel(
            title="Fairness of shares (Jain)",
            help="Of tokens over five minutes: 1 when all nodes do the same, 1/n when one does all of it. Low is no "
            "fault where machines differ.",
            queries=(
                Query(
                    "sum by (run) (rate(p2ptrain_tokens_total[5m])) ^ 2 / (count by (run) (p2ptrain_tokens_total) "
                    "* sum by (run) (rate(p2ptrain_tokens_total[5m]) ^ 2))",
                    "{{run}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Rounds behind the foremost node",
            help="A node that falls further and further behind takes the others' model in the end: fewer steps for it "
            "(node.pace), or another machine.",
            queries=(Query("max by (run) (p2ptrain_round) - on (run) group_right () p2ptrain_round"),),
        ),
    ),
)


def _time_to(share: float, words: str) -> Query:
    reached = (
        "p2ptrain_compute_seconds_total and "
        f"(p2ptrain_eval_loss > 0) <= {share} * max_over_time(p2ptrain_eval_loss[1d])"
    )
    return Query(f"max by (run) (min_over_time(({reached})[1d:1m]))", f"{{{{run}}}} to {words}")


COST = Row(
    title="What it costs",
    panels=(
        Panel(
            title="Bytes sent for a token",
            help="All bytes of all nodes, copies and overhead included, over their tokens. Less: more inner steps, or "
            "a coarser compressor.",
            queries=(
                Query(
                    'sum by (run) (rate(p2ptrain_network_bytes_total{direction="sent"}[5m])) '
                    "/ (sum by (run) (rate(p2ptrain_tokens_total[5m])) > 0)",
                    "{{run}}",
                ),
            ),
            unit="bytes",
            empty="nobody trained in five minutes",
        ),
        Panel(
            title="Energy for a token (joules)",
            help="Of all nodes, measured or estimated: docs/operations.md#energy.",
            queries=(
                Query(
                    "sum by (run) (rate(p2ptrain_energy_joules_total[5m])) "
                    "/ (sum by (run) (rate(p2ptrain_tokens_total[5m])) > 0)",
                    "{{run}}",
                ),
            ),
            unit="joule",
            empty="nobody trained in five minutes",
        ),
        Panel(
            title="Energy for an update (joules)",
            help="Of all nodes, per round of a node: steps, exchange and everything else.",
            queries=(
                Query(
                    "sum by (run) (rate(p2ptrain_energy_joules_total[5m])) "
                    "/ (sum by (run) (rate(p2ptrain_rounds_closed_total[5m])) > 0)",
                    "{{run}}",
                ),
            ),
            unit="joule",
            empty="nobody trained in five minutes",
        ),
        Panel(
            title="Energy so far, by what says so",
            help="nvml and rapl are the machine's own counters, estimate is CPU time at monitoring.watts_per_core: "
            "docs/operations.md#energy.",
            queries=(Query("sum by (run, source) (p2ptrain_energy_joules_total)", "{{run}} {{source}}"),),
            unit="joule",
        ),
        Panel(
            title="Time to loss",
            help="Seconds that a node had computed, since it was started, when its held-out loss had come down to a "
            "share of its highest of a day; of the nodes that have come so far the one with most, since others may "
            "have come late or been started again.",
            queries=tuple(_time_to(share, words) for share, words in ((0.75, "3/4"), (0.5, "1/2"), (0.25, "1/4"))),
            unit="s",
            empty="no held-out loss has come down to three quarters within a day",
        ),
        Panel(
            title="Tokens so far",
            help="Of all nodes, since their processes started.",
            queries=(Query("sum by (run) (p2ptrain_tokens_total)", "{{run}}"),),
            unit="short",
        ),
        Panel(
            title="Seconds of computing so far",
            help="Of all nodes, since their processes started.",
            queries=(Query("sum by (run) (p2ptrain_compute_seconds_total)", "{{run}}"),),
            unit="s",
        ),
    ),
)

DASHBOARD = Dashboard(
    name="quality",
    title="p2ptrain: Training quality",
    help="Does it learn, does everybody take part, and what does it cost?",
    rows=(LOSS, SHARES, COST),
)
