"""A whole plan: it answers to its inputs as it must, says what does not fit, and never hides that it extrapolates."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_requests import LLAMA_8B, LLAMA_70B, PARAMETERS, request

from node.planning.accelerators import accelerator
from node.planning.device_memory import device_memory, layer_bytes
from node.planning.forecast import forecast
from node.planning.loss_penalties import codec_label, entries, loss_tables, outlook
from node.planning.model_shape import (
    llama_parameters,
    shape_of_byte_lm,
    shape_of_config,
    shape_of_size,
)
from node.roles.memory_forecast import memory_forecast
from p2ptrain.sync import SyncConfig

GOSSIP = {"sync": {"strategy": "tracked_gossip"}}


@settings(max_examples=30, deadline=None)
@given(
    st.floats(1e6, 1e9),
    st.integers(2, 64),
    st.sampled_from(["q2", "sign1", "int8"]),
    st.integers(1, 200),
    st.floats(1.01, 8),
)
def test_more_bandwidth_is_never_slower_and_more_bits_are_never_cheaper(up, nodes, compressor, inner_steps, times):
    def of(up: float, compressor: str = compressor):
        sync = {"sync": {"compressor": compressor}, "train": {"inner_steps": inner_steps}}
        return forecast(request(up=up, nodes=nodes, settings=sync))

    before = of(up)
    assert 0 <= before.times.utilization <= 1
    assert of(up * times).days <= before.days
    finer = of(up, "none")
    assert finer.days >= before.days
    assert finer.sent_gb > before.sent_gb


@pytest.mark.parametrize("nodes", [4, 16, 100])
def test_twice_the_members_take_half_the_time_for_as_many_tokens_and_send_as_much(nodes):
    one, two = (forecast(request(nodes=each, settings={"network": {"degree": 3}})) for each in (nodes, 2 * nodes))
    assert two.days == pytest.approx(one.days / 2, rel=0.02)
    assert two.sent_gb == pytest.approx(one.sent_gb, rel=0.02)
    assert two.loss.total() >= one.loss.total(), "and no gain in loss is made up"


def test_twice_the_tokens_take_twice_the_time():
    one, two = (forecast(request(tokens=each)) for each in (1e9, 2e9))
    assert two.days == pytest.approx(2 * one.days, rel=0.01)
    assert two.kwh == pytest.approx(2 * one.kwh, rel=0.01)


def test_a_uplink_that_is_slow_binds_and_is_named():
    found = forecast(request(up=1e6, settings={"train": {"inner_steps": 5}}))
    assert found.binding.startswith("uplink: ")
    assert found.times.utilization < 0.5
    assert found.times.staleness_rounds == pytest.approx(1.0)
    assert forecast(request(up=1e6, down=1e5)).binding.startswith("downlink: ")
    assert forecast(request(up=1e9)).binding.startswith("computing: ")


def test_members_that_are_seldom_there_together_are_no_swarm():
    found = forecast(request(nodes=2, availability=0.1, settings={"sync": {"f": 0}}))
    assert found.binding.startswith("members: 0.2 of 2 are there on average")
    together = (request(nodes=4, availability=0.5), request(nodes=1, availability=0.1))
    assert not any(each.startswith("members: ") for asked in together for each in forecast(asked).problems)


def test_what_does_not_fit_binds_before_everything():
    found = forecast(request(parameters=7e9, nodes=200))
    assert found.binding.startswith("device memory: ")
    assert "of 24 GB" in found.binding
    assert any("the network's bound" in each for each in found.problems)
    small = forecast(request(parameters=125e6, host_bytes=2e9))
    assert small.binding.startswith("main memory: ")
    assert forecast(request(parameters=125e6, host_bytes=64e9)).problems == ()


def test_main_memory_is_the_nodes_own_forecast():
    asked = request(parameters=125e6, settings={"network": {"degree": 5}})
    found = forecast(asked)
    own = memory_forecast(asked.shape.trained, "cuda", asked.config, kept=0, neighbours=5)
    assert found.host.total == own.total
    assert found.host.estimates == 6 * 4 * asked.shape.trained, "own public estimate, and one a neighbour"
    bf16 = forecast(request(parameters=125e6, settings={"sync": {"estimates": "bf16"}, "network": {"degree": 5}}))
    assert bf16.host.estimates == found.host.estimates / 2


def test_a_cpu_has_all_of_it_in_main_memory():
    found = forecast(request(parameters=125e6, device="cpu-core"))
    assert found.host.parameters == 4 * 125_000_000
    assert not found.request.on_gpu


def test_sixteen_bytes_a_parameter_and_the_casts_are_fixed_on_a_device():
    asked = request(parameters=1e9)
    found = device_memory(asked.config, asked.shape, asked.length, on_gpu=True)
    assert found.parameters + found.gradient + found.optimizer == pytest.approx(16e9, rel=1e-3)
    assert found.total > found.least > found.fixed
    assert found.sequences(found.fixed + 3.5 * found.least_activations) == 3
    assert found.sequences(found.fixed - 1) == 0


def test_adapters_train_and_send_what_they_are():
    whole = shape_of_size(7e9)
    adapters = whole.with_trained(40e6)
    found = forecast(replace(request(), shape=adapters))
    assert found.device.least < 24e9
    assert found.device.frozen == pytest.approx(2 * (7e9 - 40e6))
    assert found.traffic.payload_bytes == pytest.approx(40e6 * 2.03 / 8, rel=0.01)
    assert adapters.flops(1, 512) == pytest.approx(4 / 6 * whole.flops(1, 512), rel=0.05)
    with pytest.raises(ValueError, match="must be fewer"):
        whole.with_trained(8e9)


@pytest.mark.parametrize(("name", "config"), [("8B", LLAMA_8B), ("70B", LLAMA_70B)])
def test_parameters_of_a_configuration_are_exact_by_arithmetic(name, config):
    assert llama_parameters(config) == PARAMETERS[name]


@pytest.mark.parametrize(("name", "config", "published_gb"), [("8B", LLAMA_8B, 16.1), ("70B", LLAMA_70B, 141.0)])
def test_parameters_of_a_configuration_are_exact_and_nothing_is_allocated(tmp_path, name, config, published_gb):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = shape_of_config(tmp_path)
    assert shape.parameters == PARAMETERS[name]
    assert shape.multiplied == shape.parameters - config["vocab_size"] * config["hidden_size"]
    frozen = shape.with_trained(1e6)
    assert frozen.frozen_bytes / 1e9 == pytest.approx(published_gb, rel=0.05)
    found = forecast(replace(request(), shape=shape))
    assert found.device.parameters + found.device.gradient + found.device.optimizer == pytest.approx(
        16 * shape.parameters, rel=0.001
    )


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "mistral"])
def test_arithmetic_counts_as_transformers_does(tmp_path, kind):
    pytest.importorskip("transformers")
    small = LLAMA_8B | {
        "model_type": kind,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "head_dim": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(small))
    assert llama_parameters(small) == shape_of_config(tmp_path / "config.json").parameters


def test_without_transformers_an_unknown_model_is_refused_in_a_line(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_8B))
    assert shape_of_config(file).parameters == PARAMETERS["8B"]
    file.write_text(json.dumps(LLAMA_8B | {"model_type": "rwkv"}))
    with pytest.raises(ValueError, match="without transformers only llama"):
        shape_of_config(file)
    file.write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        shape_of_config(file)
    with pytest.raises(ValueError, match="cannot be read"):
        shape_of_config(tmp_path / "none.json")


def test_a_byte_lm_is_counted_as_it_is_built():
    assert shape_of_byte_lm("nano").parameters == 467_808
    with pytest.raises(ValueError, match="there are: pico"):
        shape_of_byte_lm("huge")


def test_penalties_are_ratios_with_an_interval_of_named_measurements():
    found = forecast(request(nodes=8, up=1e9, settings={"train": {"inner_steps": 10}}))
    low, middle, high = found.loss.ratio
    assert low < middle < high
    assert middle > 1
    assert found.days_to_equal_loss > found.days
    for each in found.loss.penalties:
        assert each.low <= each.middle <= each.high
        assert each.entry or each.middle == 0
    more = forecast(request(nodes=8, up=1e9, settings={"train": {"inner_steps": 40}}))
    assert more.loss.total() > found.loss.total()


def test_members_beyond_those_measured_bring_less_than_half_the_steps():
    four, eight, thirty_two = (forecast(request(nodes=each, up=1e10)) for each in (4, 8, 32))
    members = [{each.cause: each for each in found.loss.penalties}["members"] for found in (four, eight, thirty_two)]
    assert members[0].middle < 0 == members[1].middle < members[2].middle
    assert all(each.low <= each.middle <= each.high for each in members)
    assert thirty_two.days < eight.days / 3
    assert thirty_two.days_to_equal_loss > eight.days_to_equal_loss / 3, "as many tokens are not the same loss"


def test_few_values_in_few_rounds_cost_more_than_in_many():
    sparse = {"sync": {"strategy": "sparse_loco"}, "train": {"inner_steps": 20}}
    short, long = (forecast(request(tokens=each, settings=sparse)) for each in (2.5e8, 2.5e10))
    codec = [{each.cause: each.middle for each in found.loss.penalties}["codec"] for found in (short, long)]
    assert codec[0] == pytest.approx(10 * codec[1], rel=0.05)


def test_neighbours_cost_a_strategy_what_they_cost_it():
    def of(strategy: str) -> float:
        settings = {"sync": {"strategy": strategy}, "network": {"degree": 3}}
        return {each.cause: each.middle for each in forecast(request(settings=settings)).loss.penalties}["neighbours"]

    assert of("sparse_loco") > 3 * of("tracked_gossip") > 0


def kept_by_a_layer(*, half: bool, key_heads: int, inner: int) -> float:
    """Bytes of a token and unit of width that a layer of transformers' Llama keeps for the backward pass."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from transformers import LlamaConfig, LlamaForCausalLM

    def kept(layers: int) -> int:
        config = LlamaConfig(
            hidden_size=256,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=key_heads,
            vocab_size=64,
            attn_implementation="sdpa",
            use_cache=False,
        )
        model = LlamaForCausalLM(config).train()
        weights = {each.data_ptr() for each in (*model.parameters(), *model.buffers())}
        shapes = {shape for each in model.parameters() for shape in (tuple(each.shape), tuple(each.t().shape))}
        seen: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            is_cast = tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
            if tensor.untyped_storage().data_ptr() not in weights and not is_cast:
                seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        ids = torch.randint(0, 64, (1, 128))
        with saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=half):
            model(input_ids=ids, labels=ids)
        return sum(each.untyped_storage().nbytes() for each in seen.values())

    return (kept(3) - kept(1)) / 2 / 128 / 256


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("key_heads", "inner"), [(2, 896), (8, 640)])
def test_what_a_layer_like_llamas_keeps_is_within_five_per_cent(half, key_heads, inner):
    pytest.importorskip("transformers")
    shape = replace(shape_of_size(1e9), gated_width=inner / 256, key_share=key_heads / 8)
    found = kept_by_a_layer(half=half, key_heads=key_heads, inner=inner)
    assert layer_bytes(shape, half=half) == pytest.approx(found, rel=0.05)


def test_every_row_of_the_loss_tables_names_an_entry_that_there_is():
    from pathlib import Path

    log = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ") for line in log.splitlines() if line.startswith("#")}
    assert entries() <= headings
    rows = [row for rows in loss_tables().values() if isinstance(rows, list) for row in rows]
    quoted = [loss for row in rows for loss in row.get("loss", ())]
    assert len(quoted) > 40
    assert [loss for loss in quoted if f"{loss:.3f}" not in log and f"{loss:.4f}" not in log] == []


def test_lateness_counts_as_the_log_measured_it():
    """H + 2 L: 3 steps late cost 1.8%, 10 steps 5.0% (of H = 10)."""
    asked = request(settings={"train": {"inner_steps": 10}})
    base = forecast(asked).loss.penalties[0]
    for row in loss_tables()["late"]:
        from node.planning.loss_penalties import LearningChoice

        def of(late: float):
            return outlook(
                LearningChoice(
                    strategy="tracked_gossip",
                    compressor="none",
                    inner_steps=10,
                    late_steps=late,
                    neighbours=3,
                    nodes=4,
                    parameters=5e5,
                    rounds=30,
                    exact=True,
                )
            ).penalties[0]

        before, after = of(0), of(row["late"])
        rise = row["loss"][1] / row["loss"][0] - 1
        assert after.low - before.low <= rise <= after.high - before.high
    assert base.cause == "H and lateness"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": 125e6}, "parameters"),
        ({"parameters": 1e6, "nodes": 1000}, "nodes"),
        ({"parameters": 1e6, "settings": {"train": {"inner_steps": 500}}}, "H"),
        ({"parameters": 1e6, "tokens": 1e12}, "rounds"),
    ],
)
def test_what_is_far_beyond_what_was_measured_is_said(change, said):
    found = forecast(request(**change)).loss.extrapolations
    assert any(each.startswith(f"{said}: ") and "times beyond" in each for each in found)
    assert forecast(request(parameters=1e6, tokens=1e8)).loss.extrapolations == ()


def test_a_share_of_values_has_a_penalty_of_its_own():
    few, many = (
        forecast(request(nodes=8, settings={"sync": {"strategy": "sparse_loco", **more}}))
        for more in ({}, {"ratio": 0.1, "value_bits": 2})
    )
    assert codec_label(few.request.config.sync) == "lossless+topk@0.015625"
    assert few.loss.penalties[1].middle > many.loss.penalties[1].middle
    assert codec_label(SyncConfig()) == "q2"


def test_members_that_come_and_go_are_counted_as_there_on_average():
    always, seldom = (forecast(request(nodes=20, availability=each)) for each in (1.0, 0.5))
    assert seldom.days == pytest.approx(2 * always.days, rel=0.02)
    assert always.robust_share == 1
    assert 0.9 < seldom.robust_share < 1
    alone = forecast(request(nodes=4, availability=0.5, settings={"network": {"degree": 2}}))
    assert alone.robust_share == pytest.approx(0.25), "trimmed mean of three needs both neighbours"


def test_money_and_energy_follow_time_and_bytes():
    from node.planning.forecast import Prices

    found = forecast(request(prices=Prices(kwh=0.3, gpu_hour=0.2, gb_sent=0.05)))
    hours = found.days * 24 * 8
    assert found.kwh == pytest.approx(hours * accelerator("rtx4090").watts / 1000)
    assert found.cost == pytest.approx(0.3 * found.kwh + 0.2 * hours + 0.05 * found.sent_gb)


def test_what_all_send_and_what_a_crash_costs_follow_from_the_parts() -> None:
    found = forecast(request(nodes=20, availability=0.5))
    assert found.request.present == 10
    assert found.sent_gb == pytest.approx(10 * found.rounds * found.sent_bytes / 1e9)
    steps_s = found.request.config.train.inner_steps * found.step_s
    models_s = 3 * 4 * found.request.shape.trained / found.request.link.down  # 2 f + 1 donors, in fp32
    assert found.crash_s == pytest.approx(steps_s / 2 + models_s)
