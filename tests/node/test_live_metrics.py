"""What is read at the scrape, read back with Prometheus' own parser; and the memory of the one GPU that matters."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from scraped import Scraped, parsed

from gossip.core.api import Durations, Relaying
from gossip.transport.drop_reasons import DROPS, counted
from node.metrics.gpu_metrics import GpuMemory, register_gpu
from node.metrics.live_metrics import QUEUES, REACHABILITY, REFUSALS, Readings
from node.metrics.node_metrics import Metrics
from node.system.disk import disk_free


def scrape(metrics: Metrics) -> Scraped:
    return parsed(metrics.exposition().decode())


def test_before_there_is_a_node_nothing_is_known_and_nothing_missing():
    seen = scrape(Metrics())
    assert seen["reachability"] == {"unknown": 1, "outbound": 0, "reached": 0}
    assert seen["queue_depth"] == dict.fromkeys(QUEUES, 0)
    assert seen["blob_seconds_count"] == {"": 0}
    assert seen["blob_seconds_sum"] == {"": 0}
    assert seen["drops_total"] == dict.fromkeys(DROPS, 0)
    assert seen["spectral_gap"] == {"": -1}
    assert seen["relay_circuits"] == seen["relay_bytes_total"] == {"": 0}
    assert seen["relay_refused_total"] == dict.fromkeys(REFUSALS, 0)


def test_the_gap_of_the_known_graph_is_read():
    metrics = Metrics()
    metrics.live.watch(lambda: Readings(spectral_gap=0.25))
    assert scrape(metrics)["spectral_gap"] == {"": 0.25}


def test_what_is_relayed_is_read():
    metrics = Metrics()
    relaying = Relaying(circuits=2, carried_bytes=3_000_000, refused={"no_reservation": 5})
    metrics.live.watch(lambda: Readings(relaying=relaying))
    seen = scrape(metrics)
    assert (seen["relay_circuits"], seen["relay_bytes_total"]) == ({"": 2}, {"": 3_000_000})
    assert seen["relay_refused_total"] == dict.fromkeys(REFUSALS, 0) | {"no_reservation": 5}


def test_paused_neighbours_are_counted():
    metrics = Metrics()
    assert scrape(metrics)["neighbours_paused"] == {"": 0}
    metrics.live.watch(lambda: Readings(neighbours_paused=3))
    assert scrape(metrics)["neighbours_paused"] == {"": 3}


def test_what_a_relay_may_carry_and_what_the_disk_still_takes_are_read():
    metrics = Metrics()
    assert scrape(metrics)["relay_limit_bytes_per_second"] == {"": 0}
    assert scrape(metrics)["disk_free_bytes"] == {"": -1}
    metrics.live.watch(lambda: Readings(relay_limit=1e6, disk_free=7 << 30))
    assert scrape(metrics)["relay_limit_bytes_per_second"] == {"": 1e6}
    assert scrape(metrics)["disk_free_bytes"] == {"": 7 << 30}


def test_the_disk_is_that_of_the_folder_or_of_the_nearest_above_it(tmp_path, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path)
        return SimpleNamespace(total=9, used=2, free=5)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert disk_free(tmp_path) == disk_free(tmp_path / "not" / "yet") == 5
    assert asked == [tmp_path, tmp_path]


def test_a_disk_that_cannot_be_asked_is_unknown(tmp_path, monkeypatch):
    def usage(path):
        raise OSError("gone")

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert disk_free(tmp_path) == -1


def test_drops_are_read_by_kind():
    metrics = Metrics()
    metrics.live.watch(lambda: Readings(drops={"made_room": 3}))
    assert scrape(metrics)["drops_total"] == dict.fromkeys(DROPS, 0) | {"made_room": 3}


def test_a_kind_without_a_name_is_counted_as_another():
    assert counted({"handshake": 2, "new": 1, "newer": 1}) == dict.fromkeys(DROPS, 0) | {"handshake": 2, "other": 2}


def test_updates_that_were_taken_are_counted_by_neighbour_as_long_as_it_is_one():
    metrics, totals = Metrics(), {"one": 3, "two": 5}
    assert "peer_accepted_total" not in scrape(metrics)
    metrics.live.watch(lambda: Readings(accepted=totals))
    assert scrape(metrics)["peer_accepted_total"] == {"one": 3, "two": 5}
    del totals["two"]
    totals["one"] = 4
    assert scrape(metrics)["peer_accepted_total"] == {"one": 4}


@pytest.mark.parametrize("state", REACHABILITY)
def test_exactly_one_state_holds(state):
    metrics = Metrics()
    metrics.live.watch(lambda: Readings(reachability=state))
    assert scrape(metrics)["reachability"] == {each: float(each == state) for each in REACHABILITY}


def test_every_scrape_reads_anew():
    metrics, depths = Metrics(), {"pulls": 3}
    metrics.live.watch(lambda: Readings(queues=depths))
    assert scrape(metrics)["queue_depth"] == dict.fromkeys(QUEUES, 0) | {"pulls": 3}
    depths |= {"pulls": 0, "updates": 8}
    assert scrape(metrics)["queue_depth"] == dict.fromkeys(QUEUES, 0) | {"updates": 8}


def test_durations_become_cumulative_buckets_as_prometheus_wants_them():
    metrics, durations = Metrics(), Durations()
    for seconds in (0.0005, 0.02, 0.03, 45.0, 3600.0):
        durations.add(seconds)
    metrics.live.watch(lambda: Readings(blob_seconds=durations))
    seen = scrape(metrics)
    buckets = seen["blob_seconds_bucket"]
    assert list(map(float, buckets)) == [*durations.bounds_s, float("inf")]
    wanted = {"0.001": 1, "0.01": 1, "0.03": 3, "30.0": 3, "100.0": 4, "600.0": 4, "+Inf": 5}
    assert {bound: buckets[bound] for bound in wanted} == wanted
    assert seen["blob_seconds_count"] == {"": 5}
    assert seen["blob_seconds_sum"][""] == pytest.approx(3645.0505)
    assert "blob_seconds_created" not in seen


def test_a_node_that_trains_on_the_cpu_asks_no_gpu(monkeypatch):
    """Where there is one, asking is enough for CUDA to take memory on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    registry = CollectorRegistry()
    assert not register_gpu(registry, torch.device("cpu"))
    assert not generate_latest(registry)


def test_the_gpu_that_is_asked_is_the_one_that_trains(monkeypatch):
    second = torch.device("cuda", 1)
    amounts = {torch.device("cuda", 0): 1, second: 2}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=torch.device("cuda", 0): 100 * amounts[device])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=torch.device("cuda", 0): 200 * amounts[device])
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device=torch.device("cuda", 0): (300 * amounts[device], 9000)
    )
    metrics = Metrics()
    assert register_gpu(metrics.registry, second)
    gpu = {name: value[""] for name, value in scrape(metrics).items() if name.startswith("gpu_")}
    assert gpu == {"gpu_memory_allocated_bytes": 200, "gpu_memory_reserved_bytes": 400, "gpu_memory_free_bytes": 600}
    apart = Metrics()
    told = [GpuMemory(allocated=1, reserved=2, free=3), None]
    register_gpu(apart.registry, second, lambda: told[0])  # another process trains
    seen = scrape(apart)
    assert [seen[f"gpu_memory_{name}_bytes"][""] for name in ("allocated", "reserved", "free")] == [1, 2, 3]
    told.pop(0)
    assert scrape(apart)["gpu_memory_free_bytes"] == {"": 0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_memory_is_read_at_the_scrape():
    metrics, device = Metrics(), torch.device("cuda")
    held = torch.ones(1 << 20, device=device)
    register_gpu(metrics.registry, device)
    seen = scrape(metrics)
    assert seen["gpu_memory_allocated_bytes"][""] >= held.numel() * 4
    assert seen["gpu_memory_reserved_bytes"][""] >= seen["gpu_memory_allocated_bytes"][""]
    assert seen["gpu_memory_free_bytes"][""] > 0
