"""Energy by source: what is read where, what is shared out, and that an estimate is called one."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typed_events import typed

from node.metrics import energy
from node.metrics.energy import SOURCES, Meter, SystemTimes, meter_for
from node.metrics.node_metrics import Metrics

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


class Times:
    """CPU seconds, as told."""

    def __init__(self):
        self.mine = self.all = 0.0

    def own(self):
        return self.mine

    def machine(self):
        return self.all


def package(powercap: Path, number: int, microjoules: int, *, span: int = 1_000_000_000) -> Path:
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{span}\n")
    return folder


def test_without_counters_it_is_an_estimate_and_says_so(tmp_path):
    times = Times()
    times.mine = 100.0
    meter = meter_for(CPU, watts=7.0, powercap=tmp_path / "none", times=times)
    assert meter.joules() == {"estimate": 0.0}
    times.mine = 110.0
    assert meter.joules() == {"estimate": 70.0}


def test_packages_are_shared_out_by_cpu_time(tmp_path):
    times = Times()
    for number in (0, 1):
        package(tmp_path, number, 5_000_000)
    package(tmp_path, 0, 5_000_000).with_name("intel-rapl:0:0").mkdir()  # a part of a package: counted already
    meter = meter_for(CPU, watts=7.0, powercap=tmp_path, times=times)
    package(tmp_path, 0, 35_000_000)
    package(tmp_path, 1, 15_000_000)
    times.mine, times.all = 2.0, 8.0
    assert meter.joules() == {"rapl": pytest.approx(40.0 * 2 / 8)}


@pytest.mark.parametrize(("own", "machine", "joules"), [(1.02, 1.0, 30.0), (0.5, 0.0, 0.0), (0.0, 1.0, 0.0)])
def test_clocks_that_tick_apart_give_no_more_than_the_packages_took(own, machine, joules, tmp_path):
    times = Times()
    package(tmp_path, 0, 0)
    meter = meter_for(CPU, watts=7.0, powercap=tmp_path, times=times)
    package(tmp_path, 0, 30_000_000)
    times.mine, times.all = own, machine
    assert meter.joules() == {"rapl": joules}


def test_a_packages_counter_goes_round(tmp_path):
    times = Times()
    package(tmp_path, 0, 90, span=100)
    meter = meter_for(CPU, watts=7.0, powercap=tmp_path, times=times)
    package(tmp_path, 0, 15, span=100)
    times.mine = times.all = 1.0
    assert meter.joules() == {"rapl": pytest.approx(25e-6)}


def test_a_counter_that_may_not_be_read_is_none(tmp_path):
    (package(tmp_path, 0, 1) / "energy_uj").write_text("")
    assert meter_for(CPU, watts=1.0, powercap=tmp_path, times=Times()).joules() == {"estimate": 0.0}


def test_a_counter_that_fails_later_keeps_what_it_counted():
    readings = iter([10.0, 30.0])

    def read():
        try:
            return next(readings)
        except StopIteration:
            raise OSError("gone") from None

    meter = Meter(counters={"rapl": read})
    assert [meter.joules(), meter.joules(), meter.joules()] == [{"rapl": 20.0}] * 3


class Driver:
    """NVML's few functions that are called, over one GPU. The real one needs a GPU; there is none where tests run."""

    class NVMLError(Exception):
        pass

    def __init__(self, *millijoules):
        self.readings = list(millijoules)
        self.asked = []

    def nvmlInit(self):
        if not self.readings:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        assert handle == "handle"
        if not self.readings:
            raise self.NVMLError("not supported")
        return self.readings.pop(0)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"u-{device.index}"))


def test_a_gpu_counts_beside_its_processor(gpu, tmp_path):
    driver, times = Driver(1000, 1000, 6000), Times()
    meter = meter_for(GPU, watts=7.0, nvml=driver, powercap=tmp_path, times=times)
    times.mine = 1.0
    assert meter.joules() == {"nvml": 5.0, "estimate": 7.0}
    assert driver.asked == ["GPU-u-1"]
    assert meter.joules() == {"nvml": 5.0, "estimate": 7.0}, "the driver fails from here on"


@pytest.mark.parametrize("driver", [Driver(), Driver(1)], ids=["no driver", "no counter"])
def test_a_gpu_that_does_not_say_is_not_taken_for_its_processor(gpu, driver, tmp_path):
    if driver.readings:
        driver.readings.clear()
        driver.nvmlInit = lambda: None
    assert meter_for(GPU, watts=7.0, nvml=driver, powercap=tmp_path, times=Times()).joules() == {}


def test_the_systems_own_times_move():
    times = SystemTimes()
    own, machine = times.own(), times.machine()
    while times.own() == own:
        sum(range(100_000))
    assert times.machine() >= machine > 0


def test_nvidias_module_is_asked_by_default_where_there_is_one():
    pynvml = pytest.importorskip("pynvml")
    assert list(energy._modules(None)) == [pynvml]
    for name in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption", "NVMLError"):
        assert hasattr(pynvml, name)


def test_the_metric_has_every_source_and_takes_totals():
    metrics = Metrics()
    for joules in (3.0, 5.0):
        metrics.observe(typed({"ts": 1.0, "event": "round", "round": 1, "steps": 1, "energy_j": {"estimate": joules}}))
    values = {
        source: metrics.registry.get_sample_value("p2ptrain_energy_joules_total", {"source": source})
        for source in SOURCES
    }
    assert values == {"nvml": 0.0, "rapl": 0.0, "estimate": 5.0}
