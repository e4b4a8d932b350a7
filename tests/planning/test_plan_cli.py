"""`p2ptrain plan` from the outside."""

import errno
import json
import tomllib

import pytest
import tomli_w
from plan_requests import LLAMA_8B, PARAMETERS
from sizes import thorough_but

from node.cli import main
from node.config.schema import from_raw

SMALL = ("plan", "--params", "125M", "--nodes", "4", "--uplink", "20Mbit")


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_as_tables(capsys):
    code, out, err = run(capsys, *SMALL)
    assert (code, err) == (0, "")
    for word in ("binding", "utilization", "memory, device", "Recommended", "Half and twice", "p2ptrain up --config"):
        assert word in out
    assert "EXTRAPOLATED" in out
    assert "assumed: rtx4090 reaches 33%" in out
    assert "nats" not in out, "no absolute loss without a pilot"


def test_as_json(capsys):
    code, out, _ = run(capsys, *SMALL, "--json", "--inner-steps", "50", "--compressor", "q2")
    assert code == 0
    found = json.loads(out)
    assert found["inner_steps"] == 50
    assert found["round"]["round_s"] >= found["round"]["train_s"] > 0
    assert 0 < found["utilization"] <= 1
    assert found["published_bits"] == pytest.approx(2.03, abs=0.01)
    assert found["loss_ratio"]["low"] < found["loss_ratio"]["high"]
    assert found["recommended"]["days_to_equal_loss"] <= found["days_to_equal_loss"]
    assert {each["what"] for each in found["sensitivity"]} >= {"uplink", "device", "members", "H"}
    assert any("parameters" in each for each in found["extrapolations"])


def test_what_is_given_is_kept_and_the_rest_is_recommended(capsys):
    _, out, _ = run(capsys, *SMALL, "--json", "--strategy", "sparse_loco", "--compressor", "q2", "--degree", "2")
    found = json.loads(out)
    assert (found["strategy"], found["compressor"], found["degree"]) == ("sparse_loco", "q2", 2)


CHOSEN = ("strategy", "compressor", "degree", "inner_steps")


def chosen(capsys, *words: str) -> dict:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    return {key: found[key] for key in (*CHOSEN, "days_to_equal_loss")}


@pytest.mark.parametrize(
    ("option", "value"), thorough_but({("--uplink", "2Mbit")}, [("--uplink", "2Mbit"), ("--liars", "0")])
)
def test_with_one_thing_given_as_it_is_recommended_all_others_are_recommended(capsys, option, value):
    asked = ("plan", "--params", "20M", "--nodes", "6", option, value)
    best = chosen(capsys, *asked)
    for key in CHOSEN:
        assert chosen(capsys, *asked, f"--{key.replace('_', '-')}", str(best[key])) == best, key


@pytest.mark.parametrize(
    ("option", "value"), thorough_but({("--degree", "4")}, [("--degree", "4"), ("--inner-steps", "40")])
)
def test_what_is_recommended_beside_it_is_the_best_of_all_codecs(capsys, option, value):
    asked = ("plan", "--params", "20M", "--nodes", "9", "--uplink", "1Mbit", option, value)
    best = chosen(capsys, *asked)
    assert str(best[option[2:].replace("-", "_")]) == value
    compared = [chosen(capsys, *asked, "--compressor", each) for each in ("q2", "sign1", "int8", "lossless+topk")]
    assert best["days_to_equal_loss"] == min(each["days_to_equal_loss"] for each in compared)


def test_a_strategy_that_is_not_compared_has_its_own_codec_and_aggregator(capsys, tmp_path):
    raw = settings_of(capsys, tmp_path, "plan", "--params", "1M", "--nodes", "4", "--strategy", "noloco")
    assert from_raw({"sync": raw["sync"]}).sync == from_raw({"sync": {"strategy": "noloco"}}).sync


def test_few_neighbours_go_with_no_strategy_that_wants_all(capsys):
    asked = ("plan", "--params", "125M", "--nodes", "8", "--liars", "0")
    assert chosen(capsys, *asked)["strategy"] == "allreduce"
    assert chosen(capsys, *asked, "--degree", "7")["strategy"] == "allreduce"
    assert chosen(capsys, *asked, "--degree", "4")["strategy"] == "tracked_gossip"


@pytest.mark.parametrize("strategy", ["sparse_loco", "mime"])
def test_neighbours_of_a_strategy_that_is_asked_for_are_the_usual_where_none_can_be_recommended(
    capsys, tmp_path, strategy
):
    """Twenty members are too many to know each other; and groups are no neighbours."""
    raw = settings_of(capsys, tmp_path, "plan", "--params", "1M", "--nodes", "20", "--strategy", strategy)
    assert raw["sync"]["strategy"] == strategy
    assert "degree" not in raw.get("network", {})


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), {"gamma": 0.5}),
        pytest.param(("--strategy", "streaming"), {"fragments": 5}, marks=pytest.mark.thorough),
        (("--strategy", "tracked_gossip"), {"gamma": 0.5, "estimates": "bf16"}),
        (("--compressor", "topk"), {"compressor": "topk", "ratio": 0.05}),
        pytest.param(
            ("--compressor", "topk", "--strategy", "sparse_loco"),
            {"ratio": 0.05, "estimates": "bf16"},
            marks=pytest.mark.thorough,
        ),
        (("--inner-steps", "30"), {"strategy": "sparse_loco", "staleness_exponent": 0.25}),
        (("--strategy", "allreduce", "--liars", "0"), {"strategy": "allreduce", "compressor": "int8"}),
    ],
)
@pytest.mark.parametrize("by", thorough_but({"--set"}, ["--set", "--config"]))
def test_settings_of_sync_are_kept(capsys, tmp_path, words, kept, by):
    (tmp_path / "mine.toml").write_text(tomli_w.dumps({"sync": kept}))
    sets = [word for key, value in kept.items() for word in ("--set", f"sync.{key}={value}")]
    settings = sets if by == "--set" else ["--config", str(tmp_path / "mine.toml")]
    raw = settings_of(capsys, tmp_path, "plan", "--params", "1M", "--nodes", "6", *words, *settings)
    sync = from_raw({"sync": raw["sync"]}).sync
    assert {key: getattr(sync, key) if hasattr(sync, key) else sync.options[key] for key in kept} == kept


def test_options_of_a_codec_leave_those_codecs_that_take_them(capsys, tmp_path):
    words = ("--set", "sync.compressor=lossless+topk", "--set", "sync.value_bits=4")
    raw = settings_of(capsys, tmp_path, "plan", "--params", "1M", "--nodes", "6", *words)
    assert raw["sync"]["value_bits"] == 4


def test_files_are_ready_to_run(capsys, tmp_path):
    settings, scenario = tmp_path / "plan.toml", tmp_path / "scenario.toml"
    words = ("plan", "--size", "pico", "--device", "cpu-core", "--nodes", "4", "--tokens", "1e6")
    code, _, _ = run(capsys, *words, "--write", str(settings), "--scenario", str(scenario), "--json")
    assert code == 0
    assert tomllib.loads(settings.read_text())["task"]["size"] == "pico"
    assert main(["config", "check", "--config", str(settings)]) == 0
    assert tomllib.loads(scenario.read_text())["nodes"][0]["count"] == 4


def settings_of(capsys, tmp_path, *words: str) -> dict:
    file = tmp_path / "plan.toml"
    code, _, err = run(capsys, *words, "--write", str(file), "--json")
    assert (code, err) == (0, "")
    return tomllib.loads(file.read_text())


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--liars", "3"), ("trimmed_mean", 3)),
        pytest.param(("--liars", "3", "--compressor", "q2"), ("trimmed_mean", 3), marks=pytest.mark.thorough),
        pytest.param(
            ("--liars", "3", "--inner-steps", "50", "--degree", "8"), ("trimmed_mean", 3), marks=pytest.mark.thorough
        ),
        pytest.param(("--strategy", "sparse_loco"), ("trimmed_mean", 1), marks=pytest.mark.thorough),
        (("--strategy", "sparse_loco", "--liars", "0"), ("mean", 0)),
        (("--set", "sync.f=2"), ("trimmed_mean", 2)),
        pytest.param(("--strategy", "async", "--liars", "2"), ("trimmed_mean", 2), marks=pytest.mark.thorough),
        (("--set", "sync.aggregator=median", "--compressor", "q2"), ("median", 1)),
    ],
)
def test_what_is_written_withstands_as_many_liars_as_was_asked_for(capsys, tmp_path, words, rule):
    raw = settings_of(capsys, tmp_path, "plan", "--params", "1M", "--nodes", "9", *words)
    sync = from_raw({"sync": raw.get("sync", {})}).sync
    assert (sync.aggregator, sync.f) == rule


def test_more_liars_than_the_usual_degrees_outvote_have_neighbours_enough(capsys):
    code, out, _ = run(capsys, "plan", "--params", "1M", "--nodes", "50", "--liars", "10", "--json")
    assert code == 0
    assert json.loads(out)["degree"] == 20


def test_what_is_written_keeps_what_a_plan_does_not_count(capsys, tmp_path):
    """Who plans with [privacy] and runs the plan trains in private."""
    config = tmp_path / "mine.toml"
    config.write_text('[privacy]\nprivatizer = "example"\nepsilon = 4.0\n[budget]\nmemory = "4GB"\n')
    raw = settings_of(capsys, tmp_path, "plan", "--size", "pico", "--nodes", "4", "--config", str(config))
    assert raw["privacy"] == {"privatizer": "example", "epsilon": 4.0}
    assert raw["budget"]["memory"] == 4e9


@pytest.mark.parametrize("option", ["--write", "--scenario"])
@pytest.mark.parametrize("read", ["--config", "--calibration", "--hf-config"])
def test_a_file_that_is_read_is_not_written_over(capsys, tmp_path, option, read):
    file = tmp_path / "config.json"
    file.write_text("mine")
    (tmp_path / "link").symlink_to(file)
    model = () if read == "--hf-config" else ("--params", "1M")
    code, out, err = run(
        capsys, "plan", *model, read, str(tmp_path if not model else file), option, str(tmp_path / "link")
    )
    assert (code, out, file.read_text()) == (2, "", "mine")
    assert f"{option}: {tmp_path / 'link'} is what the plan is made of" in err


@pytest.mark.parametrize("option", ["--write", "--scenario"])
def test_a_full_disk_leaves_the_file_of_before(capsys, tmp_path, monkeypatch, option):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "plan.toml"
    file.write_text("of before")
    monkeypatch.setattr("os.fsync", full)
    code, out, err = run(capsys, "plan", "--params", "1M", option, str(file))
    assert (code, out, file.read_text()) == (2, "", "of before")
    assert "cannot be written: No space left on device; free some disk space" in err
    assert list(tmp_path.iterdir()) == [file]


def test_a_large_degree_has_a_share_of_the_time(capsys):
    """Of 1,100 neighbours the ways to choose half are beyond a float."""
    words = ("plan", "--params", "1M", "--nodes", "2000", "--compressor", "q2", "--degree", "1100", "--json")
    code, out, err = run(capsys, *words, "--availability", "50%", "--liars", "275")
    assert (code, err) == (0, "")
    assert json.loads(out)["robust_share"] == pytest.approx(0.5 + 0.5 * 0.024, abs=0.001)


def test_a_model_of_hugging_face(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    code, out, _ = run(capsys, "plan", "--hf-config", str(tmp_path), "--device", "h200", "--trained", "40M", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["parameters"] == PARAMETERS["8B"]
    assert found["trained"] == 40_000_000
    assert found["problems"] == []
    assert not found["shape_is_assumed"]


@pytest.mark.thorough
def test_published_runs(capsys):
    code, out, _ = run(capsys, "plan", "--published")
    assert code == 0
    assert "INTELLECT-1" in out
    assert "not explained" in out
    assert "NO" not in out.split()
    _, out, _ = run(capsys, "plan", "--published", "--json")
    found = json.loads(out)
    rows = found["runs"]
    assert len(found["utilization"]) == 75
    assert all(bool(cell["reason"]) is not cell["at_or_above"] for cell in found["utilization"])
    assert len(rows) >= 15
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan",), "a plan is of one model"),
        (("plan", "--params", "7e9", "--size", "nano"), "--params and --size: a plan is of one model"),
        (("plan", "--params", "seven"), "--params: 'seven' is no number"),
        ((*SMALL[:5], "--uplink", "20Mb"), "--uplink: 'Mb"),
        ((*SMALL, "--uplink", "20"), "--uplink: '20' is no rate"),
        ((*SMALL, "--downlink", "wide"), "--downlink"),
        ((*SMALL, "--rtt", "80"), "--rtt: '80' is no time"),
        ((*SMALL, "--device", "abacus"), "--device: there is no device 'abacus' in the table; there are: a100"),
        ((*SMALL, "--mfu", "2"), "--mfu"),
        ((*SMALL, "--availability", "0"), "--availability"),
        ((*SMALL, "--host-memory", "64"), "--host-memory"),
        ((*SMALL, "--tokens", "many"), "--tokens"),
        ((*SMALL, "--strategy", "magic"), "--strategy: unknown sync.strategy 'magic'"),
        ((*SMALL, "--strategy", "gradient"), "--strategy: gradient averages at every step"),
        ((*SMALL, "--compressor", "adaptive"), "--compressor: adaptive sends what the link carries"),
        ((*SMALL, "--step-time", "0s"), "--step-time: '0s' must be above 0 and finite: write 350ms"),
        (("plan", "--params", "0"), "--params: '0' must be above 0 and finite: write 7e9 or 7B"),
        ((*SMALL, "--uplink", "0Mbit"), "--uplink: '0Mbit' must be above 0 and finite: write 20Mbit"),
        ((*SMALL, "--nodes", "1"), "--nodes: a swarm has two members or more, not 1"),
        ((*SMALL, "--inner-steps", "0"), "--inner-steps: 1 or more, not 0"),
        ((*SMALL, "--degree", "0"), "--degree: 1 or more"),
        ((*SMALL, "--price-kwh", "nan"), "--price-kwh: 0 or more"),
        ((*SMALL, "--step-time", "1s", "--mfu", "50%"), "--step-time and --mfu: both say"),
        ((*SMALL, "--nodes", "4", "--liars", "3"), "--liars: 3 of 4 members cannot be outvoted; give --nodes 7"),
        ((*SMALL, "--nodes", "2"), "--nodes: 1 of 2 members cannot be outvoted; give --nodes 3 or more, or --liars 0"),
        ((*SMALL, "--nodes", "4", "--set", "sync.f=3"), "sync.f: 3 of 4 members cannot be outvoted"),
        ((*SMALL, "--calibration", "none.json"), "--calibration: none.json cannot be read"),
        ((*SMALL, "--write", "no/folder/plan.toml"), "cannot be written"),
        ((*SMALL, "--trained", "8B"), "--trained: trained parameters must be fewer"),
        (("plan", "--hf-config", "none"), "--hf-config"),
        ((*SMALL, "--liars", "1", "--set", "sync.f=0"), "--liars 1 and sync.f = 0: both say how many lie"),
        ((*SMALL, "--strategy", "allreduce", "--liars", "1"), "--liars: under allreduce members who average parts"),
        ((*SMALL, "--degree", "1"), "--degree: among 1 neighbour 1 liar cannot be outvoted; give --degree 2 or more"),
        ((*SMALL, "--tokens", "1e308"), "--tokens: 1e308 are more than there are"),
        ((*SMALL, "--json", "--price-kwh", "1e308"), "cost is too large for a number"),
        ((*SMALL, "--json", "--step-time", "1e300d"), "days is too large for a number"),
        (
            (*SMALL, "--write", "plan.toml", "--scenario", "./plan.toml"),
            "--write and --scenario: both would be written",
        ),
        ((*SMALL, "--write", "."), "cannot be written: "),
        (("plan", "--size", "huge"), "--size: byte-lm has no size 'huge'"),
        ((*SMALL, "--set", "train.lr=1"), "train.lr"),
        (
            (*SMALL, "--strategy", "noloco", "--set", "sync.strategy=allreduce"),
            "--strategy noloco and sync.strategy = allreduce: a plan has one; give one of them",
        ),
        (
            (*SMALL, "--compressor", "q2", "--set", "sync.compressor=int8"),
            "--compressor q2 and sync.compressor = int8: a plan has one; give one of them",
        ),
        ((*SMALL, "--compressor", "int8", "--set", "sync.ratio=0.1"), "ratio is for topk, not for int8"),
        ((*SMALL, "--strategy", ""), "unknown sync.strategy ''"),
        ((*SMALL, "--set", "sync.layers=['q2']"), "plan without sync.layers"),
        ((*SMALL, "--set", "sync.compressor=adaptive"), "adaptive sends what the link carries"),
        ((*SMALL, "--set", "sync=5"), "sync"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    if said != "--uplink: 'Mb":
        assert said in err
    else:
        assert "may be bits or bytes" in err


def test_more_members_than_one_exchange_has_are_said_to_be_cut_into_groups(capsys):
    for nodes, cut in (("64", False), ("70", True)):
        code, out, _ = run(capsys, *SMALL, "--strategy", "allreduce", "--nodes", nodes)
        assert code == 0
        assert (f"{nodes} are cut into groups" in " ".join(out.split())) is cut
