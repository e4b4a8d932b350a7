"""The forecast of a node's memory: its parts are the tensors that trainer and strategy really hold."""

from operator import sub
from pathlib import Path
from typing import Any

import pytest
import torch
import visit_harness

from node.config.schema import Config, from_raw
from node.roles.assembly import own_trainer
from node.roles.memory_forecast import FP32, PROGRAM_BYTES, memory_forecast, payload_bytes, visits_bytes
from p2ptrain import tasks
from p2ptrain.compress.blocks import CHUNK_NUMEL
from p2ptrain.sync import ModelAveraging, Reduced, build
from p2ptrain.sync.difference_packing import counting
from p2ptrain.sync.mime import Mime
from p2ptrain.tasks import Shard
from p2ptrain.training import Trainer
from p2ptrain.training.anchor_optimizer import AnchorOptimizer
from p2ptrain.training.ditto import DittoTrainer
from p2ptrain.visits.model_versions import VERSIONS_KEPT
from p2ptrain.visits.visitor_mean import AT_ONCE

PEERS = ("one", "two", "three")


def config_of(**sections: Any) -> Config:
    return from_raw({"task": {"name": "digits"}, **sections})


def held(config: Config) -> tuple[Trainer, ModelAveraging]:
    """A trainer and its strategy after a round with three neighbours."""
    task = tasks.get("digits")
    trainer = Trainer(task, config.train, Shard(index=0, count=1))
    strategy = build(config.sync, trainer.vector())
    assert isinstance(strategy, ModelAveraging)
    trainer.step()
    message = strategy.encode(trainer.vector(), round=0)
    for peer in PEERS:
        strategy.track(peer, None)
        strategy.apply(peer, message.codec, message.payload)
    strategy.aggregate_(trainer.vector(), dict.fromkeys(PEERS, 0), round=0)
    return trainer, strategy


def sizes(*tensors: torch.Tensor) -> int:
    """Bytes of tensors, those with the same memory once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "schedule_free", "muon"])
def test_what_a_trainer_holds(optimizer: str) -> None:
    config = config_of(train={"optimizer": optimizer})
    trainer = Trainer(tasks.get("digits"), config.train, Shard(index=0, count=1))
    seen = memory_forecast(trainer.numel, "cpu", config, neighbours=3)
    assert seen.parameters == sizes(trainer.flat.data_d)
    assert seen.gradient == sizes(trainer.flat.grad_d)
    buffers = sizes(*trainer.optimizer.buffers.values())
    # muon has two vectors for what is no hidden matrix; the rest are counters.
    assert seen.optimizer == pytest.approx(buffers, rel=0.5 if optimizer == "muon" else 0.001)


@pytest.mark.parametrize("drift", ["none", "qgm", "scaffold"])
def test_what_a_drift_correction_holds(drift: str) -> None:
    config = config_of(train={"drift": drift, "optimizer": "sgd", "momentum": 0.0})
    trainer = Trainer(tasks.get("digits"), config.train, Shard(index=0, count=1))
    seen = memory_forecast(trainer.numel, "cpu", config)
    assert seen.optimizer == pytest.approx(sizes(*trainer.drift.buffers.values()), rel=0.001)


@pytest.mark.parametrize("estimates", ["fp32", "bf16"])
@pytest.mark.parametrize("outer", ["average", "noloco", "nesterov", "delayed_nesterov"])
def test_what_a_strategy_holds(estimates: str, outer: str) -> None:
    sync = {"estimates": estimates, "outer": outer, "f": 1, "compressor": "int4", "strategy": "async"}
    if outer == "delayed_nesterov":
        sync["every"] = 1  # the momentum of the first round
    config = config_of(sync=sync, network={"degree": 3})
    trainer, strategy = held(config)
    seen = memory_forecast(trainer.numel, "cpu", config)
    assert seen.estimates == sizes(strategy.public_d, *strategy.estimates.values())
    assert seen.anchor == sizes(strategy.anchor_d) == seen.snapshot
    outers = {name: value for name, value in strategy.state_dict().items() if name.startswith("outer.")}
    assert seen.outer == pytest.approx(sizes(*outers.values()), abs=8)
    assert seen.work == 0
    on_disk = memory_forecast(trainer.numel, "cpu", config_of(sync=sync, node={"estimates_on": "disk"}))
    assert on_disk.estimates == sizes(strategy.public_d)


def test_what_a_strategy_that_steps_the_anchor_holds() -> None:
    config = config_of(sync={"strategy": "mime"}, train={"inner_steps": 1})
    trainer = Trainer(tasks.get("digits"), config.train, Shard(index=0, count=1), tells=["gradient"])
    steps = AnchorOptimizer(config.train, trainer.optimizer_place())
    strategy = build(config.sync, trainer.vector(), "own", steps=steps)
    assert isinstance(strategy, Mime)
    trainer.step()
    strategy.take_gradient(trainer.mean_gradient())
    theta_d = trainer.vector()
    packed = strategy.pack(theta_d, round=0)
    reduced = counting(strategy.packing.pack(torch.zeros(strategy.packing.numel)), 0b11)
    strategy.finish_(theta_d, ["own", "other"], [Reduced("other", slice(0, len(packed)), reduced)], round=0)
    before = strategy._before
    assert before is not None
    seen = memory_forecast(trainer.numel, "cpu", config)
    assert trainer._gradients_d is not None
    assert seen.gradient == sizes(trainer.flat.grad_d, trainer._gradients_d)
    vectors = [strategy.residual_d, strategy._gradient_d, before.anchor_d, before.moved_d]
    vectors += [steps._anchor.data_d, steps._anchor.grad_d, *steps.buffers.values(), *before.buffers.values()]
    assert seen.outer == pytest.approx(sizes(*vectors), rel=0.001)


def test_what_a_strategy_that_averages_moments_holds() -> None:
    plain, with_moments = (
        memory_forecast(10**6, "cpu", config_of(sync={"strategy": it})) for it in ("allreduce", "des_loc")
    )
    assert with_moments.outer - plain.outer == pytest.approx(2 * 4 * 10**6, rel=1e-4), "copies of AdamW's"
    assert with_moments.gradient == plain.gradient


def test_what_a_personal_model_holds() -> None:
    config = config_of(personal={"strength": 0.1})
    trainer = own_trainer(config, "node")
    assert isinstance(trainer, DittoTrainer)
    trainer.begin_round()
    own = trainer.personal
    buffers = (*own.optimizer.buffers.values(), *own.drift.buffers.values())
    assert trainer._snapshot_d is not None
    holds = sizes(own.flat.data_d, own.flat.grad_d, trainer._snapshot_d, *buffers)
    assert memory_forecast(trainer.numel, "cpu", config).personal == pytest.approx(holds, rel=0.001)
    assert memory_forecast(trainer.numel, "cuda", config).personal == 0
    assert memory_forecast(trainer.numel, "cpu", config_of()).personal == 0


def test_the_model_that_is_kept_to_notice_shifts_is_counted() -> None:
    config = config_of(shift={"detector": "page_hinkley"})
    assert memory_forecast(1000, "cpu", config).total == memory_forecast(1000, "cpu", config_of()).total + 8000


def test_the_mean_of_late_weights_is_a_vector_more() -> None:
    plain, averaged = (memory_forecast(10**6, "cpu", config_of(train={"late_average": it})) for it in (0.0, 0.2))
    assert averaged.total - plain.total == averaged.late_average == 2 * 4 * 10**6, "and one while a round is added"


def test_what_gathers_is_forecast_at_its_fullest() -> None:
    seen = memory_forecast(10**6, "cpu", config_of(sync={"strategy": "async"}))
    assert seen.outer == 2 * 4 * 10**6, "three rounds of movements beside the momentum"


def test_vectors_of_a_round_are_counted_where_there_are_any() -> None:
    vector = 4 * 10**6
    streaming = memory_forecast(10**6, "cpu", config_of(sync={"strategy": "streaming"}))
    assert streaming.work == pytest.approx(1.25 * vector / 4), "a correction of a quarter of the model"
    config = config_of(sync={"strategy": "sparse_loco"})
    sparse = memory_forecast(10**6, "cpu", config)
    strategy = build(config.sync, torch.ones(1000))
    assert isinstance(strategy, ModelAveraging)
    assert sizes(*strategy.encoder.state_dict().values()) == 4 * 1000
    assert sparse.outer == vector, "what was to be told and did not fit"
    assert sparse.work == 2 * vector
    apart = memory_forecast(10**6, "cpu", config_of(node={"lane": "process"}))
    assert apart.program == 2 * PROGRAM_BYTES


@pytest.mark.parametrize("compressor", ["q2", "int8", "none", "topk"])
def test_payloads_are_as_large_as_real_ones(compressor: str) -> None:
    config = config_of(sync={"compressor": compressor})
    trainer, strategy = held(config)
    payload = strategy.encode(trainer.vector(), round=1).payload
    assert payload_bytes(config, trainer.numel) == pytest.approx(len(payload), rel=0.05)


def test_the_base_model_fits_the_budget() -> None:
    """The targets of bytes a parameter, with three neighbours, beside the program and activations."""
    numel = 125_492_864
    for estimates, most in (("fp32", 44.0), ("bf16", 36.0)):
        seen = memory_forecast(numel, "cpu", config_of(sync={"estimates": estimates}), neighbours=3)
        assert (seen.total - PROGRAM_BYTES) / numel < most
        assert seen.initial == 0, "it lies in a file"


def test_what_is_on_a_gpu_is_not_in_main_memory() -> None:
    config = config_of()
    on_cpu, on_gpu = (memory_forecast(10**7, device, config, kept=10**6) for device in ("cpu", "cuda:0"))
    moved = on_cpu.parameters + on_cpu.gradient + on_cpu.optimizer + on_cpu.activations
    assert on_cpu.total - on_gpu.total == moved
    fewer = memory_forecast(10**7, "cpu", config, neighbours=1)
    assert on_cpu.estimates - fewer.estimates == (config.network.degree - 1) * 4 * 10**7


def test_files_hold_what_is_large(tmp_path: Path) -> None:
    config = config_of()
    small, large = (memory_forecast(numel, "cpu", config) for numel in (10**6, 10**9))
    assert small.initial == 4 * 10**6
    assert large.initial == 0
    history = config.network.history
    assert small.payloads == (history + 1 + 2 * config.network.degree) * payload_bytes(config, 10**6)
    assert large.payloads == (1 + 2 * config.network.degree) * payload_bytes(config, 10**9)


async def test_visitors_are_in_the_forecast_as_many_as_a_round_takes() -> None:
    most, numel = 6, visit_harness.NUMEL
    visits = {"listen": "127.0.0.1:8443", "most_a_round": most, "buffer": most}
    config = config_of(visits=visits)
    host = visit_harness.VisitedHost(most_a_round=most, buffer=most)
    for _ in range(VERSIONS_KEPT + 1):
        host.close_round()
    for nth in range(most):
        await host.take(host.left_by(str(nth)))
    its = host.visitors
    left = [each.difference.payload for each in its._left if each.difference is not None]
    held = sum(map(len, left)) + sum(len(each.payload) for each in its._versions._versions.values())
    assert len(left) == most, "all wait for the end of the round"
    assert its._base_d is not None
    assert held + its._base_d.nbytes <= visits_bytes(config, numel)
    assert memory_forecast(numel, "cpu", config_of()).visits == 0
    apart = (visits_bytes(config_of(visits={**visits, "most_a_round": it}), 10**8) for it in (10, 11))
    assert -sub(*apart) >= 10**8, "a byte a parameter for each at least"


def test_with_noise_a_mean_takes_a_chunk_of_one_at_a_time() -> None:
    visits = {"listen": "127.0.0.1:8443"}
    plain, noised = (
        visits_bytes(config_of(visits={**visits, **it}), 10**6) for it in ({}, {"noise": 1.0, "trim": 0.0})
    )
    assert plain - noised > 3 * FP32 * (AT_ONCE - CHUNK_NUMEL)
