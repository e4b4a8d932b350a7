"""Scenario files: every mistake is one line that says what was meant, and what is written is read back."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import LIBRARY, scenario_in

from node.cli.app import main
from node.simulation.regions import UTC_OFFSET_H, WORLD
from node.simulation.scenario import Scenario
from node.simulation.scenario_file import load_scenario
from node.simulation.units import bytes_per_s
from node.system.errors import UsageError

ALL = """
[sessions.nights]
kind = "diurnal"
from_h = 18
to_h = 8

[[events]]
kind = "kill"
at_s = 3
nodes = ["home"]
share = 0.5

[assert]
all_finish = true
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nodes.home.cuont=3", "unknown key nodes[0].cuont, did you mean count?"),
        ("links.home.upp=3", "unknown key links.home.upp, did you mean up?"),
        ("sessions.nights.form_h=3", "unknown key sessions.nights.form_h, did you mean from_h?"),
        ("events.0.shar=1", "unknown key events[0].shar, did you mean share?"),
        ("assert.all_finis=true", "unknown key assert.all_finis, did you mean all_finish?"),
        ("trian.rounds=3", "unknown section or key trian, did you mean train?"),
        ("train.round=3", "nodes.home: unknown key train.round, did you mean train.rounds?"),
        ("nodes.home.count=0", "nodes[0].count: input should be greater than or equal to 1"),
        ("nodes.home.count=two", "nodes[0].count: input should be a valid integer"),
        ("nodes.house.count=2", "there is no 'house'; there are home"),
        ("nodes.home.link=fast", "nodes.home.link: there is no 'fast', only home"),
        ("links.home.up=fast", "links.home.up: 'fast' is no rate"),
        ('events.0.nodes=["away"]', "events[0] names no node by 'away': groups are home"),
        ("events.0.kind=explode", "events[0]: input tag 'explode'"),
        ("nodes.home.lies=true", "nodes.home lies and nothing says how: add [attack] with a name"),
        ("sessions.nights.to_h=18", "the whole day is 0 to 24"),
        ("nodes.home.region=moon", "nodes.home.region: there is no 'moon'"),
        ("sync.aggregator=meen", "did you mean mean?"),
        ("seed.deep.key=1", "seed: input should be a valid integer"),
        ("rounds", "is not section.key=value"),
    ],
)
def test_a_mistake_is_one_line_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    monkeypatch.setattr("node.simulation.sealed.hashes_are_fixed", lambda: True)
    path = scenario_in(tmp_path, ALL).path
    assert main(["simulate", str(path), "--set", given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('network.quiet_hours=["22:00-07:00"]', "network.quiet_hours cannot be simulated; they follow"),
        ("network.mdns=true", "network.mdns cannot be simulated"),
        ("node.role=bootstrap", "bootstrap nodes are not simulated"),
        ("train.device=cuda", "a simulation computes on the CPU"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    monkeypatch.setattr("node.simulation.sealed.hashes_are_fixed", lambda: True)
    assert main(["simulate", str(scenario_in(tmp_path).path), "--set", given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nonsense", "none"])
def test_an_attack_that_no_node_can_begin_is_refused(tmp_path: Path, name: str) -> None:
    """Else the node ends at its event, and the file's promises are kept against nobody."""
    event = '[[events]]\nkind = "attack"\nat_s = 3\nnodes = ["home-0"]\n'
    with pytest.raises(UsageError, match=r"attack\.name|\[attack\]"):
        scenario_in(tmp_path, f'[attack]\nname = "{name}"\n{event}')


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no scenario"):
        load_scenario(tmp_path / "nothing.toml")
    (tmp_path / "broken.toml").write_text("[[nodes]\n", encoding="utf-8")
    with pytest.raises(UsageError, match="is not valid TOML"):
        load_scenario(tmp_path / "broken.toml")


def test_options_lie_over_the_file(tmp_path: Path) -> None:
    loaded = scenario_in(tmp_path, ALL, "nodes.home.count=7", "train.rounds=9", "sync.compressor=sign1", seed=5)
    assert (loaded.scenario.nodes[0].count, loaded.scenario.seed) == (7, 5)
    config = loaded.configs["home"]
    assert (config.train.rounds, config.sync.compressor) == (9, "sign1")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_what_is_written_is_read_back(tmp_path: Path, path: Path) -> None:
    first = load_scenario(path)
    (tmp_path / "again.toml").write_text(first.to_toml(), encoding="utf-8")
    again = load_scenario(tmp_path / "again.toml")
    assert (again.scenario, again.configs) == (first.scenario, first.configs)
    assert first.scenario.about


@given(st.floats(0.001, 1e6), st.sampled_from(["kbit/s", "Mbit/s", "Gbit/s", "B/s", "kB/s", "MB/s", "KiB/s", "MiB/s"]))
def test_rates_with_units(number: float, unit: str) -> None:
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1.0}[unit[0].replace("K", "k")] / (8 if "bit" in unit else 1)
    factor = {"KiB/s": 1024.0, "MiB/s": 1024.0**2}.get(unit, factor)
    assert bytes_per_s(f"{number:.6f} {unit}") == pytest.approx(float(f"{number:.6f}") * factor)


@given(st.text(max_size=20) | st.floats(max_value=0) | st.booleans() | st.none() | st.lists(st.integers()))
def test_what_is_no_rate_is_refused_and_nothing_else_happens(value: object) -> None:
    with suppress(ValueError):
        assert bytes_per_s(value) > 0


def test_the_worlds_latencies_are_whole() -> None:
    scenario = Scenario.model_validate({"nodes": [{}]})
    assert scenario.region_names[0] == "europe"
    assert set(scenario.region_names) == set(WORLD) == set(UTC_OFFSET_H)
    for one in WORLD:
        for other in WORLD:
            assert scenario.latency_s(one, other) == scenario.latency_s(other, one) > 0
    assert scenario.latency_s("europe", "na_east") == 0.070


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ([{"name": "a", "latency_ms": {"a": 1}}, {"name": "b", "latency_ms": {"b": 1}}], "between a and b"),
        ([{"name": "a", "latency_ms": {}}], "between a and a"),
        ([{"name": "a", "latency_ms": {"a": 1}}] * 2, "two regions have the same name"),
        ([{"name": "a", "latency_ms": {"a": 1, "c": 2}}], "there is no 'c'"),
        (
            [{"name": "a", "latency_ms": {"a": 1, "b": 2}}, {"name": "b", "latency_ms": {"b": 1, "a": 3}}],
            "name two latencies, 2.0 and 3.0 ms",
        ),
    ],
)
def test_tables_of_latencies_that_are_not_whole(regions: list[dict[str, object]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scenario.model_validate({"nodes": [{}], "regions": regions})


def test_selectors(tmp_path: Path) -> None:
    text = '\n[[nodes]]\nname = "far"\ncount = 2\nregion = "na_east"\n'
    scenario = scenario_in(tmp_path, text).scenario
    assert scenario.selected(["*"]) == ["home-0", "home-1", "home-2", "home-3", "far-0", "far-1"]
    assert scenario.selected(["home-1", "far"]) == ["home-1", "far-0", "far-1"]
    assert scenario.selected(["region:na_east"]) == ["far-0", "far-1"]
    assert scenario.selected(["nobody"]) == []
