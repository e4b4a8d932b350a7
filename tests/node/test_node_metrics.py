"""Metrics are what Prometheus reads: so they are read back here with Prometheus' own parser."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import cast, get_args, get_type_hints

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from swarm_story import PEER, node_events, round_event
from typed_events import said, typed

from gossip.core.api import RoundView
from gossip.core.errors import Reason
from node.config.schema import from_raw
from node.events.journal import Journal
from node.metrics.declared import DECLARED
from node.metrics.node_metrics import PRIVATE_LOSS, Metrics
from node.metrics.peer_metrics import LABEL_S, MAX_PAIRS, MAX_PEERS, PeerMetrics
from node.roles.trainer import metrics_of
from node.training.round_report import told_loss
from p2ptrain.training.base import Learner


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name.removeprefix("p2ptrain_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_run_reads_back_as_it_was_told():
    metrics = Metrics()
    for event in node_events(0):
        metrics.observe(typed(event))
    seen = scrape(metrics)
    expected = {
        "round": 10,
        "steps_total": 200,
        "tokens_total": 204_800,
        "eval_loss": 2.5,
        "train_loss": 2.5,
        "consensus_distance": 1.25,
        "robust_margin": 1,
        "neighbours": 3,
        "utilization": 0.94,
        "parameters": 459_776,
        "compute_seconds_total": 28,
        "tokens_per_second": 6_800,
        "round_seconds_count": 10,
        "round_seconds_sum": 30,
        "step_seconds_count": 10,
        "staleness_rounds": 2,
        "peers_known": 5,
        "skipped_steps_total": 0,
        "updates_in_time_ratio": 0.97,
        "exchange_seconds": 0.3,
        "parameter_sent_bytes": 0.109 / 8,
        "parameter_published_bytes": 0.035 / 8,
    }
    assert {name: seen[name, ()] for name in expected} == expected
    assert seen["network_bytes_total", (("direction", "sent"),)] == 1_250_000
    assert seen["network_bytes_total", (("direction", "received"),)] == 3_750_000
    assert seen["update_bytes_total", (("direction", "sent"),)] == 1_200_000
    assert seen["update_bytes_total", (("direction", "received"),)] == 3_600_000
    assert seen["snapshot_bytes_total", (("direction", "sent"),)] == 0
    assert seen["snapshot_bytes_total", (("direction", "received"),)] == 3 * 1_871_232
    assert seen["updates_total", (("reason", ""), ("result", "accepted"))] == 30
    assert seen["rounds_closed_total", (("by", "quorum"),)] == 10
    assert seen["peer_weight", (("peer", f"{PEER}1"),)] == 0.25


@pytest.mark.parametrize("role", ["trainer", "observer", "bootstrap"])
def test_who_does_not_train_has_no_series_about_training(role):
    metrics = Metrics()
    metrics.observe(typed({"ts": 1, "event": "started", "role": role, "parameters": 7}))
    looked = {
        "ts": 2,
        "event": "round",
        "round": 20,
        "rounds": 60,
        "neighbours": 3,
        "closed_by": "quorum",
        "round_s": 9,
    }
    metrics.observe(typed(looked))
    seen = {name for name, _ in scrape(metrics)}
    of_training = {"utilization", "train_loss", "tokens_total", "compute_seconds_total", "energy_joules_total"}
    of_training |= {"step_seconds_count", "round_seconds_count", "rounds_closed_total", "inner_steps", "late_steps"}
    of_training |= {"updates_in_time_ratio", "exchange_seconds", "parameter_sent_bytes"}
    assert of_training & seen == (of_training if role == "trainer" else set())
    assert scrape(metrics)["round", ()] == 20
    assert {"neighbours", "eval_loss", "robust_margin", "update_bytes_total", "checkpoint_age_seconds"} <= seen


def test_totals_do_not_run_backwards_or_count_twice():
    metrics = Metrics()
    for done in (3, 3, 2, 4):
        metrics.observe(typed(round_event(done, ts=1.0)))
    assert scrape(metrics)["tokens_total", ()] == 4 * 20_480


def test_a_resumed_process_counts_from_where_it_took_up_the_runs_totals():
    metrics = Metrics()
    metrics.observe(typed({"ts": 1, "event": "resumed", "round": 40, "checkpoint": "x"}))
    for done in (41, 42, 43):
        own = {"skipped_steps": 5 + done // 43, "payload_bytes_sent": 120_000 * (done - 40)}
        metrics.observe(typed(round_event(done, ts=1.0) | own))
    seen = scrape(metrics)
    assert seen["tokens_total", ()] == 2 * 20_480
    assert seen["compute_seconds_total", ()] == pytest.approx(2 * 2.8)
    assert seen["skipped_steps_total", ()] == 1
    assert seen["update_bytes_total", (("direction", "sent"),)] == 3 * 120_000


def test_a_name_that_is_no_more_has_no_series():
    metrics = Metrics()
    for done, rung in ((1, "int8"), (2, "topk 1/128")):
        metrics.observe(typed(round_event(done, ts=1.0) | {"rung": rung}))
        own = {rung: 0.5, "always": float(done)}
        metrics.observe(said("evaluated", round=done, eval_loss=1.0, own=own))
    seen = {labels for (_, labels) in scrape(metrics)}
    assert (("rung", "topk 1/128"),) in seen
    assert (("name", "topk 1/128"),) in seen
    assert (("name", "always"),) in seen
    assert not {(("rung", "int8"),), (("name", "int8"),)} & seen


def test_refusals_are_counted_whole_although_their_events_are_thinned_out():
    metrics = Metrics()
    metrics.observe(typed({"ts": 1, "event": "rejected", "peer": PEER, "reason": "forged", "detail": ""}))
    for done, totals in enumerate(({"forged": 400}, {"forged": 1_000, "stale": 2}, {"forged": 1_000, "stale": 2}), 1):
        metrics.observe(typed(round_event(done, ts=1.0) | {"rejected_by_reason": totals}))
    seen = scrape(metrics)
    assert seen["updates_total", (("reason", "forged"), ("result", "rejected"))] == 1_000
    assert seen["updates_total", (("reason", "stale"), ("result", "rejected"))] == 2
    assert seen["peer_rejected_total", (("peer", PEER), ("reason", "forged"))] == 1


def weights(metrics: Metrics) -> dict[str, float]:
    return {dict(labels)["peer"]: value for (name, labels), value in scrape(metrics).items() if name == "peer_weight"}


def test_who_is_no_member_any_more_has_no_weight():
    metrics = Metrics()
    metrics.observe(typed(round_event(1, ts=1.0) | {"weights": {"a": 0.5, "b": 0.25}}))
    metrics.observe(typed(round_event(2, ts=1.0) | {"weights": {"b": 0.75}}))
    assert weights(metrics) == {"b": 0.75}
    metrics.observe(typed(round_event(3, ts=1.0) | {"weights": {}}))
    assert weights(metrics) == {}


def test_the_weights_of_peers_beyond_the_cap_are_one_sum():
    metrics = Metrics()
    many = {f"peer-{number}": 0.01 for number in range(MAX_PEERS + 4)}
    metrics.observe(typed(round_event(1, ts=1.0) | {"weights": many}))
    assert len(weights(metrics)) == MAX_PEERS + 1
    assert weights(metrics)["other"] == pytest.approx(0.04)


def test_refusals_are_counted_by_peer_and_peers_are_capped():
    metrics = Metrics()
    for number in range(MAX_PEERS + 10):
        metrics.observe(said("rejected", peer=f"peer-{number}", reason="forged"))
    seen = scrape(metrics)
    by_peer = {dict(labels)["peer"]: value for (name, labels), value in seen.items() if name == "peer_rejected_total"}
    assert len(by_peer) == MAX_PEERS + 1
    assert by_peer["other"] == 10


def test_a_label_goes_from_who_is_long_gone_to_who_is_here():
    now = [0.0]
    peers = PeerMetrics(DECLARED, lambda: now[0])
    registry = CollectorRegistry()
    registry.register(peers)

    def counted(name: str) -> Counter[str]:
        by_peer: Counter[str] = Counter()
        for family in registry.collect():
            for sample in family.samples:
                if sample.name == f"p2ptrain_{name}_total":
                    by_peer[sample.labels["peer"]] += sample.value
        return by_peer

    peers.clipped(["old-0", "old-0", "old-1"])
    for number in range(MAX_PEERS):
        peers.rejected(f"old-{number}", "forged")
    now[0] = LABEL_S / 2
    peers.rejected("old-1", "stale")
    peers.rejected("new", "forged")
    assert counted("peer_rejected")["other"] == 1, "no place for it yet"
    now[0] = LABEL_S
    for _ in range(3):
        peers.rejected("new", "forged")
    assert counted("peer_rejected")["new"] == 3
    assert counted("peer_rejected")["other"] == 2, "what had no place, and what is gone"
    assert counted("peer_clipped") == {"old-1": 1, "other": 2}
    assert "old-0" not in counted("peer_rejected")
    assert counted("peer_rejected").total() == MAX_PEERS + 5, "none is lost"


def test_peers_that_are_refused_for_everything_do_not_make_the_scrape_large():
    metrics = Metrics()
    for number in range(200):
        for reason in Reason:
            metrics.observe(said("rejected", peer=f"{PEER}{number}", reason=reason))
    metrics.observe(typed(round_event(1, ts=1.0) | {"weights": {f"{PEER}{number}": 1.0 for number in range(200)}}))
    seen = scrape(metrics)
    pairs = {labels: value for (name, labels), value in seen.items() if name == "peer_rejected_total"}
    assert MAX_PAIRS <= len(pairs) <= MAX_PAIRS + len(Reason)
    assert sum(pairs.values()) == 200 * len(Reason), "none is lost"
    assert len(metrics.exposition()) < 150_000


def test_series_with_known_labels_stand_at_zero_before_anything_happened():
    """`increase()` sees differences only: a series that appeared with its first event would hide that event."""
    seen = scrape(Metrics())
    closed_by = set(get_args(get_type_hints(RoundView)["closed_by"]))
    reasons = {dict(labels)["reason"] for (name, labels) in seen if name == "updates_total"}
    assert reasons == {"", *(reason.value for reason in Reason)}
    assert {dict(labels)["by"] for (name, labels) in seen if name == "rounds_closed_total"} == closed_by
    assert {dict(labels)["event"] for (name, labels) in seen if name == "peer_events_total"} == {
        "up",
        "lost",
        "banned",
        "equivocation",
    }
    assert all(value == 0 for (name, _), value in seen.items() if name.endswith("_total"))


def test_missing_fields_and_events_of_no_metric_change_nothing():
    metrics = Metrics()
    before = scrape(metrics)
    metrics.observe(said("evaluated", round=3))
    metrics.observe(said("failed"))
    assert scrape(metrics) == before


def test_two_nodes_of_one_process_do_not_mix():
    one, other = Metrics(), Metrics()
    one.observe(typed(round_event(1, ts=1.0)))
    assert scrape(one)["tokens_total", ()] == 20_480
    assert scrape(other)["tokens_total", ()] == 0


async def test_the_lag_of_the_event_loop_is_measured(autojump_clock):
    metrics = Metrics()
    with trio.move_on_after(2.2):
        await metrics.watch_loop()
    assert scrape(metrics)["event_loop_lag_seconds_count", ()] == 4


def test_checkpoint_age_is_read_at_the_scrape():
    metrics = Metrics()
    assert scrape(metrics)["checkpoint_age_seconds", ()] == -1
    metrics.observe(typed({"ts": 1.0, "event": "checkpoint", "round": 10, "path": "x"}))
    assert scrape(metrics)["checkpoint_age_seconds", ()] > 1e6


def test_a_node_that_does_not_tell_its_loss_has_no_series_of_it() -> None:
    """NaN in its place is what the alert LossNotFinite fires on, and 0 before the first round is no loss."""
    metrics = Metrics()
    metrics.leave_out(PRIVATE_LOSS)
    for event in node_events(0):
        metrics.observe(typed(event))
    seen = {name for name, _ in scrape(metrics)}
    assert "train_loss" not in seen
    assert "eval_loss" in seen


@pytest.mark.parametrize(("privatizer", "role", "there"), [("none", "trainer", 1), ("example", "trainer", 0)])
def test_a_node_that_protects_its_data_serves_no_training_loss(privatizer: str, role: str, there: int) -> None:
    metrics = metrics_of(from_raw({"privacy": {"privatizer": privatizer}, "node": {"role": role}}))
    assert sum(name == "train_loss" for name, _ in scrape(metrics)) == there


def test_an_observer_with_such_settings_leaves_out_all_of_training_once() -> None:
    metrics = metrics_of(from_raw({"privacy": {"privatizer": "example"}, "node": {"role": "observer"}}))
    for event in node_events(0):
        metrics.observe(typed(event | ({"role": "observer"} if event["event"] == "started" else {})))
    assert "train_loss" not in {name for name, _ in scrape(metrics)}


@pytest.mark.parametrize(
    ("own_loop", "told_before", "loss", "told"),
    [
        (True, {}, math.nan, None),
        (True, {}, 2.0, 2.0),
        (True, {"train_loss": 2.0}, math.nan, math.nan),
        (False, {}, math.nan, math.nan),
    ],
)
def test_a_loop_that_tells_no_loss_has_none_that_is_no_number(
    own_loop: bool, told_before: dict[str, float], loss: float, told: float | None
) -> None:
    """NaN is what the alert LossNotFinite fires on: it is for losses that were numbers, or should be."""
    learner, journal = SimpleNamespace(steps_elsewhere=own_loop), SimpleNamespace(last=told_before)
    found = told_loss(loss, cast(Learner, learner), cast(Journal, journal))
    assert found == pytest.approx(told, nan_ok=True) if told is not None else found is None
