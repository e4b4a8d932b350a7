"""A member owns its options: [sync] passes a key to the chosen member that declares it, plug-ins included.

The package in tests/plug_ins is installed as any other: by its entry points, on the path.
"""

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import trio.testing
from sim_swarm import swarm

from node.cli import main
from node.config.commented_toml import to_commented_toml
from node.config.run_settings import kept_in, known_part
from node.config.schema import from_raw, load
from node.swarm.agreed_settings import raw_of, settings_of
from node.system.errors import UsageError
from p2ptrain.aggregate import AGGREGATORS
from p2ptrain.compress import COMPRESSORS
from p2ptrain.sync import ModelAveraging, SyncConfig, build
from p2ptrain.sync.sync_config import all_options

PACKAGE = Path(__file__).parents[1] / "plug_ins"
PLUG_INS = {"compressor": "rounded", "aggregator": "damped"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(PACKAGE), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    _forget()
    yield
    _forget()


def _forget() -> None:
    """Registries ask once which plug-ins there are, and keep what they loaded."""
    for registry, name in ((COMPRESSORS, "rounded"), (AGGREGATORS, "damped")):
        registry.__dict__.pop("_plugged", None)
        registry._factories.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_options_of_plug_ins_are_set_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[sync]\ncompressor = "rounded"\naggregator = "damped"\nrounded.step = 1\nshare = 0.5\n')
    config = load([file])
    assert config.sync.options == {"rounded.step": 1.0, "share": 0.5}
    assert type(config.sync.options["rounded.step"]) is float, "as the member declares it, and so one digest for all"
    node = build(config.sync, torch.zeros(3), "own")
    assert isinstance(node, ModelAveraging)
    told = node.encode(torch.tensor([0.4, 0.6, -7.2]), round=0)
    assert told.codec == "rounded"
    assert node.public_d.tolist() == [0.0, 1.0, -7.0]
    assert AGGREGATORS.get("damped", f=1, **config.sync.rule_options())(torch.ones(3, 2)).tolist() == [0.5, 0.5]


@pytest.mark.usefixtures("installed")
def test_what_is_set_goes_on_to_files_manifests_checkpoints_and_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load(sets=["sync.compressor=rounded", "sync.aggregator=damped", "sync.rounded.step=2", "sync.share=0.5"])
    for text in (config.to_toml(), to_commented_toml(config)):
        assert from_raw(tomllib.loads(text)) == config
    assert from_raw({"sync": raw_of(settings_of(config))["sync"]}).sync == config.sync
    assert from_raw(json.loads(config.model_dump_json())) == config
    assert known_part(config.model_dump())["sync"] == config.model_dump()["sync"], "no key of another release"
    (tmp_path / "config.toml").write_text(config.to_toml())
    kept = kept_in(tmp_path)
    assert kept is not None
    assert (from_raw(kept.raw), kept.notes) == (config, ())
    assert "# Of the trimmed mean, in (0, 1]. Only for damped.\nshare = 0.5" in to_commented_toml(config)
    assert main(["config", "schema"]) == 0
    properties = json.loads(capsys.readouterr().out)["properties"]["sync"]["properties"]
    assert properties["share"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert properties["ratio"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert "options" not in properties


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": 2.0}, "share must be in (0, 1], not 2.0"),
        ({"share": "half"}, "share must be a number, not 'half'"),
        ({"share": True}, "share must be a number, not True"),
        ({"shar": 0.5}, "unknown key sync.shar, did you mean sync.share?; [sync] has aggregator, "),
        ({"shar": 0.5}, ", share (damped), "),
        ({"step": 1.0}, "several chosen members take step: write rounded.step or damped.step"),
        ({"damped.stap": 1}, "unknown key sync.damped.stap"),
        ({"ratio": 0.1}, "ratio is for topk, not for rounded"),
        ({"compressor": "q2", "rounded.step": 1.0}, "rounded.step is for rounded, not for q2"),
    ],
)
def test_a_wrong_value_and_a_wrong_key_are_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_raw({"sync": PLUG_INS | given})
    assert said in caught.value.line()
    assert "\n" not in caught.value.line()


def test_the_package_is_installed_for_these_tests_alone() -> None:
    _forget()
    assert "rounded" not in COMPRESSORS.names()
    assert "damped" not in AGGREGATORS.names()


def test_what_older_releases_wrote_means_the_same() -> None:
    """Every key that [sync] itself had, and the nulls that their checkpoints hold for those that were not set."""
    nulls = dict.fromkeys(
        ("ratio", "value_bits", "format", "tau", "alpha", "beta", "every", "period", "group", "decay")
    )
    assert from_raw({"sync": nulls}).sync == SyncConfig()
    config = SyncConfig(strategy="async", compressor="randomk", outer="average")
    assert config.options == {}
    both = SyncConfig(strategy="sparse_loco", compressor="randomk", outer="delayed_nesterov", every=8)
    assert (both.outer_options(), both.codec_options()) == ({"every": 8}, {})
    apart = SyncConfig(strategy="sparse_loco", compressor="randomk", outer="delayed_nesterov", **{"randomk.every": 8})
    assert (apart.outer_options(), apart.codec_options()) == ({}, {"randomk.every": 8})
    assert settings_of(from_raw({"sync": {"strategy": "streaming"}}))["sync"] == {
        "strategy": "streaming",
        "compressor": "int4",
        "aggregator": "mean",
        "f": 0,
        "outer": "nesterov",
        "staleness_exponent": 0.5,
        "fragments": 4,
        "mixing": 0.5,
    }, "a swarm's signed settings are those of the release before, and so is their digest"


@pytest.mark.usefixtures("installed")
async def test_a_swarm_trains_with_them(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(3):
            sync = {**PLUG_INS, "f": 1, "rounded.step": 1e-4, "share": 0.5}
            await members.start(f"n{number}", wait_for=2, sync=sync, train={"rounds": 3, "eval_every": 3})
        await members.finished()
        for member in members.members.values():
            assert len(member.told("round")) == 3
            assert not member.told("rejected")
            assert member.eval_loss < member.node.journal.first["eval_loss"]
            assert member.node.strategy.config.options == {"rounded.step": 1e-4, "share": 0.5}


def test_every_option_of_a_built_in_member_says_what_it_is() -> None:
    known = all_options()
    assert {name: names for name, (names, option) in known.items() if not option.about} == {}
    assert known["every"][1].about == (
        "Rounds in which each parameter travels once. Of delayed_nesterov: Rounds between momentum steps."
    )
