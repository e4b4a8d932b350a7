"""The learning rule's configuration: mistakes are refused with what would be right; a strategy brings its own parts."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from gossip.core.limits import MAX_GROUP
from p2ptrain import compress
from p2ptrain.compress.int4 import FORMATS
from p2ptrain.registry import build as call
from p2ptrain.sync import SYNC_STRATEGIES, ModelAveraging, StrategySpec, SyncConfig, averages_gradients, build


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "x"}, "tracked_gossip"),
        ({"compressor": "zip"}, "q2"),
        ({"compressor": "zip+q2"}, "q2"),
        ({"aggregator": "krumm"}, "trimmed_mean"),
        ({"outer": "adam"}, "noloco"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"f": -1}, "f must not"),
        ({"staleness_exponent": -1.0}, "staleness_exponent"),
        ({"staleness_exponent": float("inf")}, "staleness_exponent"),
        ({"alpha": 0.3}, "alpha is for delayed_nesterov and nesterov and noloco, not for average"),
        ({"every": 3}, "every is for randomk and delayed_nesterov, not for q2 and average"),
        ({"outer": "noloco", "alpha": 0.9}, "alpha=0.9"),
        ({"period": 4}, "period is for gossip_pga and sparta, not for tracked_gossip"),
        ({"fragments": 4}, "fragments is for streaming"),
        ({"mixing": 0.5}, "mixing is for streaming"),
        ({"group": 4}, "group is for moshpit"),
        ({"decay": 0.9}, "decay is for sparse_loco"),
        ({"strategy": "gossip_pga", "period": 0}, "period must be"),
        ({"strategy": "streaming", "fragments": 0}, "fragments must be"),
        ({"strategy": "streaming", "fragments": 65}, "fragments must be"),
        ({"strategy": "streaming", "mixing": 1.0}, "mixing must be"),
        ({"strategy": "moshpit", "group": 1}, "group must be"),
        ({"strategy": "moshpit", "graph": "torus"}, "unknown graph 'torus'; there are: base"),
        ({"strategy": "moshpit", "graph": "matching"}, "the graph matching is made of pairs: set group to 2, not 4"),
        ({"graph": "base"}, "graph is for moshpit"),
        ({"strategy": "sparse_loco", "decay": 1.1}, "decay must be"),
        ({"strategy": "sparse_loco", "ratio": 2.0}, "ratio must be"),
        ({"strategy": "sparse_loco", "value_bits": 1}, "value_bits must be"),
        ({"ratio": 0.1}, "ratio is for topk, not for q2"),
        ({"tau": 1.0}, "tau is for .* not for trimmed_mean"),
        ({"aggregator": "clipped_gossip", "tau": -1.0}, "tau must be a positive number"),
        ({"aggregator": "clipped_gossip", "tau": 2.0, "tau_times": 1.5}, "tau_times is of the adaptive choice"),
        ({"aggregator": "clipped_gossip", "tau_times": 0.0}, "tau_times must be a positive number"),
        ({"strategy": "sparse_loco", "decay": float("nan")}, "decay must be"),
    ],
)
def test_mistakes_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyncConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "noloco", "f": 1}, "none can outvote the other: set f to 0"),
        ({"strategy": "noloco", "aggregator": "trimmed_mean"}, "set f to 0"),
        ({"strategy": "noloco", "outer": "nesterov"}, "swings under nesterov: use one of average, noloco"),
        ({"strategy": "gossip_pga", "f": 1}, "set f to 0"),
        ({"strategy": "gossip_pga", "compressor": "sign1"}, "further in a global round than sign1"),
        ({"strategy": "gossip_pga", "compressor": "q2"}, "further in a global round than q2"),
        ({"strategy": "diloco", "compressor": "q2"}, "nesterov makes grow what q2 loses: use int4"),
        ({"strategy": "async", "compressor": "q2"}, "delayed_nesterov makes grow"),
        ({"outer": "nesterov"}, "nesterov makes grow what q2 loses"),
        ({"strategy": "streaming", "mixing": 0.0, "compressor": "sign1"}, "nesterov makes grow"),
        ({"strategy": "moshpit", "aggregator": "trimmed_mean", "f": 2}, "needs 5 members, and a group has 4"),
        ({"strategy": "moshpit", "compressor": "q2"}, "which q2 does not keep: use one of none, fp16, bf16, int8"),
        ({"strategy": "moshpit", "graph": "base", "aggregator": "median"}, "steps beyond what median bounds: use the"),
        ({"strategy": "moshpit", "graph": "base", "compressor": "none", "outer": "nesterov"}, "base swings under nest"),
        ({"strategy": "moshpit", "graph": "null_cascade"}, "no graph of groups, which moshpit exchanges"),
        ({"strategy": "moshpit", "graph": "directed_exponential", "group": 2}, "no graph of groups"),
        ({"strategy": "moshpit", "graph": "matching", "group": 2, "aggregator": "median"}, "and a group has 2"),
        ({"strategy": "noloco", "compressor": "adaptive"}, "which adaptive does not keep"),
        ({"strategy": "moshpit", "aggregator": "zeno"}, "which zeno cannot try"),
        ({"strategy": "moshpit", "group": MAX_GROUP + 1}, "the network has no larger exchanges"),
        ({"strategy": "moshpit", "aggregator": "clipped_gossip"}, "looks from one's own"),
        ({"strategy": "moshpit", "aggregator": "arc+trimmed_mean"}, "looks from one's own"),
        ({"strategy": "sparse_loco", "gamma": 0.5}, "it has no gamma"),
        ({"strategy": "sparse_loco", "regions": ("a", "b")}, "take back each move towards other regions"),
        ({"strategy": "gradient", "outer": "nesterov"}, "no outer optimizer"),
    ],
)
def test_combinations_that_cannot_work_are_refused_in_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        SyncConfig(**wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "right",
    [
        {"outer": "nesterov", "compressor": "int4"},
        {"strategy": "diloco", "compressor": "q2", "alpha": 0.5},
        {"strategy": "diloco", "aggregator": "trimmed_mean", "f": 2},
        {"strategy": "streaming", "compressor": "sign1"},
        {"strategy": "sparse_loco", "compressor": "sign1", "outer": "nesterov"},
        {"strategy": "moshpit", "group": 3, "aggregator": "trimmed_mean"},
        {"strategy": "moshpit", "group": MAX_GROUP},
        {"strategy": "moshpit", "graph": "base", "group": 3, "outer": "noloco"},
        {"strategy": "moshpit", "graph": "exponential", "group": 2},
        {"strategy": "noloco", "compressor": "int8", "outer": "average"},
        {"strategy": "sparse_loco", "compressor": "topk", "ratio": 0.1, "value_bits": 8},
        {"compressor": "rotated+topk", "ratio": 0.3},
        {"strategy": "async", "every": 8, "staleness_exponent": 1.0},
    ],
)
def test_what_is_set_overrides_the_strategys_own(right: dict[str, Any]) -> None:
    config = SyncConfig(**right)
    assert {name: getattr(config, name, config.options.get(name)) for name in right} == right


@pytest.mark.parametrize("name", SYNC_STRATEGIES.names())
def test_defaults_are_the_strategys_own_and_valid(name: str) -> None:
    config, method = SyncConfig(strategy=name), SYNC_STRATEGIES.get(name)
    assert method.name == name
    assert method.__doc__
    for key in ("compressor", "aggregator", "f", "outer", "staleness_exponent"):
        assert getattr(config, key) == getattr(method, key)
    assert config.options == {key: option.default for key, option in SYNC_STRATEGIES.options(name).items()}
    assert (method.models is None) == averages_gradients(name) == (method.gradients is not None)
    again = SyncConfig(**{key: value for key, value in vars(config).items() if value is not None})
    assert again == config, "what is filled in can be given back: config files, --set, and replace"


def test_tracked_gossip_is_what_it_was() -> None:
    config = SyncConfig()
    assert (config.compressor, config.aggregator, config.f, config.outer) == ("q2", "trimmed_mean", 1, "average")
    assert config.staleness_exponent == 0.5


def test_who_names_an_aggregator_means_one_liar() -> None:
    assert SyncConfig(strategy="diloco").f == 0
    assert SyncConfig(strategy="diloco", aggregator="trimmed_mean").f == 1
    assert SyncConfig(aggregator="mean").f == 1


def test_pydantic_takes_it_and_refuses_unknown_keys() -> None:
    adapter = TypeAdapter(SyncConfig)
    config = adapter.validate_python({"compressor": "sign1", "outer": "noloco", "alpha": 0.4})
    assert (config.compressor, config.options, config.f) == ("sign1", {"alpha": 0.4}, 1)
    assert adapter.validate_python(adapter.dump_python(config, exclude_none=True)) == config
    for wrong in (
        {"compresor": "sign1"},
        {"compressor": "zip"},
        {"f": None},
        {"f": "one"},
        {"strategy": "noloco", "f": 1},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


@pytest.mark.parametrize(
    ("options", "format"),
    [
        ({"strategy": "streaming"}, "e3m0"),
        ({"strategy": "streaming", "compressor": "lossless+int4"}, "e3m0"),
        ({"strategy": "streaming", "format": "nf4"}, "nf4"),
        ({"strategy": "diloco", "compressor": "int4"}, "nf4"),
        ({"strategy": "diloco", "compressor": "int4", "format": "uniform"}, "uniform"),
        ({"strategy": "async"}, "nf4"),
    ],
)
def test_streamings_four_bits_are_the_papers(options: dict[str, Any], format: str) -> None:
    genesis_d = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    node = build(SyncConfig(**options), genesis_d, "own")
    codec, payload = node.encode(1.5 * genesis_d, round=0)
    assert payload["lossless" in codec] == FORMATS.index(format), "after lossless's byte: it did not pay"
    other = build(SyncConfig(), genesis_d, "other")  # whatever it would say itself
    other.track("own", None)
    other.apply("own", codec, payload)
    assert other.estimates["own"].numpy().tobytes() == node.snapshot()  # type: ignore[attr-defined]


def test_formats_are_int4s_alone() -> None:
    with pytest.raises(ValueError, match="format"):
        SyncConfig(format="e3m0")
    with pytest.raises(ValueError, match="format must be one of nf4, uniform, e3m0"):
        SyncConfig(compressor="int4", format="e2m1")
    assert SyncConfig(strategy="streaming", compressor="int8").codec_options() == {}


def test_outer_momentum_is_what_suits_the_rounds_unless_set() -> None:
    assert SyncConfig(strategy="diloco").for_rounds(30).outer_options() == {"alpha": 0.0, "beta": 1.0}
    assert SyncConfig(strategy="diloco", alpha=0.9).for_rounds(30).outer_options() == {"alpha": 0.9}
    assert SyncConfig(strategy="noloco").for_rounds(1000).outer_options() == {"alpha": 0.5, "beta": 0.7}
    assert SyncConfig(strategy="async", every=2).for_rounds(30).outer_options() == {
        "every": 2,
        "alpha": 0.0,
        "beta": 1.0,
    }
    assert SyncConfig().for_rounds(30) == SyncConfig(), "average has none"
    whole = SyncConfig(strategy="diloco").for_rounds(400).outer_options()
    assert SyncConfig(strategy="streaming").for_rounds(1600).outer_options() == whole, "a fragment's turn is one of 4"
    assert SyncConfig(strategy="streaming", fragments=2).for_rounds(800).outer_options() == whole
    assert "cannot pay in 30" in SyncConfig(strategy="diloco", alpha=0.9).doubt(30)
    assert SyncConfig(strategy="diloco").doubt(30) == SyncConfig(alpha=None).doubt(30) == ""


def test_a_short_diloco_takes_the_step_of_averaging() -> None:
    theta_d = torch.randn(10, generator=torch.Generator().manual_seed(0))
    moved = {}
    for rounds in (None, 30):
        node = build(SyncConfig(strategy="diloco"), torch.zeros(10), "own", rounds=rounds)
        node.encode(theta_d, round=0)
        moved[rounds] = node.aggregate(theta_d, {}, round=0).anchor_d
    torch.testing.assert_close(moved[30], theta_d)
    torch.testing.assert_close(moved[None], theta_d * 0.7 * 1.9)


def test_gamma_is_the_compressors_unless_set() -> None:
    genesis_d = torch.zeros(10)
    for config, moved in [
        (SyncConfig(compressor="sign1"), compress.get("sign1").gamma),
        (SyncConfig(compressor="sign1", gamma=0.5), 0.5),
    ]:
        strategy = build(config, genesis_d)
        strategy.track("a", torch.full((10,), 2.0).numpy().tobytes())
        result = strategy.aggregate(genesis_d, {"a": 0}, round=0)
        torch.testing.assert_close(result.correction_d, torch.full((10,), moved))


def test_a_codec_whose_name_does_not_fit_the_wire_is_refused() -> None:
    config = SyncConfig(strategy="streaming", fragments=12, compressor="warmup+lossless+rotated+int8")
    with pytest.raises(ValueError, match="at most 32 characters"):
        build(config, torch.zeros(5000))


def test_a_model_smaller_than_its_fragments_is_refused() -> None:
    with pytest.raises(ValueError, match="part 0 of 4 in a model of 3"):
        build(SyncConfig(strategy="streaming"), torch.zeros(3))


def test_a_plug_in_is_a_function_that_returns_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> StrategySpec:
        return StrategySpec(name="mine", models=SYNC_STRATEGIES.get("diloco").models, compressor="int8", f=0)

    monkeypatch.setitem(SYNC_STRATEGIES._factories, "mine", mine)
    config = SyncConfig(strategy="mine")
    assert config.compressor == "int8"
    strategy = build(config, torch.zeros(10), "own")
    assert isinstance(strategy, ModelAveraging)
    assert strategy.name == "mine"
    assert call(mine, "strategy", {}).name == "mine"


def disagreement(rounds: int, **options: Any) -> float:
    """How far eight members that do not train are apart after so many rounds, in units of where they began."""
    generator = torch.Generator().manual_seed(0)
    genesis_d = torch.zeros(3000)
    names = [f"n{i}" for i in range(8)]
    nodes = {own: build(SyncConfig(**options), genesis_d, own) for own in names}
    thetas = {own: torch.randn(3000, generator=generator) for own in names}
    for own, node in nodes.items():
        for peer in set(names) - {own}:
            node.track(peer, None)
    for round in range(rounds):
        messages = {own: node.encode(thetas[own], round=round) for own, node in nodes.items()}
        for own, node in nodes.items():
            for peer in set(names) - {own}:
                node.apply(peer, *messages[peer])
            result = node.aggregate(thetas[own], dict.fromkeys(set(names) - {own}, 0), round=round)
            thetas[own] = thetas[own] + result.correction_d
    stacked = torch.stack(list(thetas.values()))
    return float((stacked - stacked.mean(0)).square().mean().sqrt())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "together"),
    [
        pytest.param({"compressor": "int4"}, True, marks=pytest.mark.thorough),
        pytest.param({"compressor": "int4", "format": "e3m0"}, True, marks=pytest.mark.thorough),
        ({"compressor": "q2", "alpha": 0.5}, True),
        pytest.param({"compressor": "q2", "alpha": 0.9}, False, marks=pytest.mark.thorough),
        pytest.param({"compressor": "sign1", "alpha": 0.9}, False, marks=pytest.mark.thorough),
    ],
)
def test_what_momentum_makes_of_what_a_codec_loses(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], together: bool
) -> None:
    monkeypatch.setattr("p2ptrain.sync.diloco.check_momentum", lambda config: None)
    later, latest = disagreement(24, strategy="diloco", **options), disagreement(48, strategy="diloco", **options)
    assert (latest < 0.1) == together
    assert (latest < 1.2 * later) == together


def test_sparse_loco_stays_together_under_any_codec_and_momentum() -> None:
    assert disagreement(12, strategy="sparse_loco", compressor="sign1", outer="nesterov") < 1e-3


def test_tau_reaches_the_aggregator() -> None:
    """A neighbour 10 away is followed by its weight times tau, no more and no less."""
    genesis_d = torch.zeros(4)
    config = SyncConfig(compressor="none", aggregator="clipped_gossip", f=1, tau=2.0, staleness_exponent=0.0, gamma=1.0)
    node = build(config, genesis_d, own="a")
    for peer in "bcd":
        message = build(config, genesis_d, own=peer).encode(torch.tensor([10.0, 0.0, 0.0, 0.0]), round=1)
        node.track(peer, None)
        node.apply(peer, message.codec, message.payload)
    node.encode(genesis_d, round=1)
    node.aggregate(genesis_d, dict.fromkeys("bcd", 0), round=1)
    torch.testing.assert_close(node.anchor_d, torch.tensor([1.5, 0.0, 0.0, 0.0]))


def test_members_with_unlike_graphs_are_in_unlike_runs() -> None:
    def key(**options: object) -> str:
        return SyncConfig(strategy="moshpit", **options).run_key()

    assert key() == key(group=4) == key(graph="grid") == "moshpit 4 fp16", "as it was before there was a choice"
    chosen = [{"graph": "base"}, {"graph": "base", "group": 2}, {"graph": "exponential", "group": 2}]
    more = [{"graph": "matching", "group": 2}, {"group": 2}, {"moshpit.group": 3}, {"compressor": "int8"}]
    assert len({key(**options) for options in ({}, *chosen, *more)}) == 8
    assert SyncConfig(strategy="noloco").run_key() == "noloco None fp16"
