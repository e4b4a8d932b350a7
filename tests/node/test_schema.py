"""Configuration: every way in, every mistake one line, and what it says comes back as it was."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from node.config.schema import Config, changed, join_command, load
from node.config.toml_source import merge, parse_set, parse_value
from node.system.errors import UsageError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))

toml_values = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(toml_values)
def test_a_toml_value_in_set_is_that_value(value):
    written = tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    if "\n" not in written:
        assert parse_set(f"train.x={written}") == ("train", "x", value)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_any_text_is_a_setting_or_a_usage_error(text):
    parts = text.partition("=")[0].strip().split(".")
    if "=" in text and len(parts) == 2 and all(parts):
        assert parse_set(text)[:2] == tuple(parts)
    else:
        with pytest.raises(UsageError, match=r"is not section\.key=value"):
            parse_set(text)


@given(st.text(st.characters(categories=["L"]), min_size=1))
def test_bare_words_are_strings(word):
    expected = {"true": True, "false": False}.get(word)
    assert parse_value(word) == (word if expected is None else expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3e-4", 3e-4),
        ("true", True),
        ("cpu", "cpu"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        ("/a b/c.txt", "/a b/c.txt"),
        ("2024-01-01", "2024-01-01"),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("1 # one", "1 # one"),
        ("1\nw = 2", "1\nw = 2"),
        ("", ""),
    ],
)
def test_values_as_people_write_them(text, value):
    assert parse_value(text) == value


def test_merge_lays_keys_over_keys():
    raw = {"train": {"rounds": 1, "seed": 2}}
    merge(raw, {"train": {"rounds": 3}, "sync": {"f": 0}})
    assert raw == {"train": {"rounds": 3, "seed": 2}, "sync": {"f": 0}}


def test_flags_win_over_sets_and_sets_over_files(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[train]\nrounds = 1\ninner_steps = 1\nseed = 1\n")
    config = load([file], ["train.inner_steps=2", "train.seed=2"], {"train": {"seed": 3}})
    assert (config.train.rounds, config.train.inner_steps, config.train.seed) == (1, 2, 3)


def test_another_task_takes_none_of_the_options_along(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[task]\nname = "byte-lm"\nsize = "micro"\n')
    assert load([file], ["task.context=32"]).task.options == {"size": "micro", "context": 32}
    assert load([file], ["task.partition=label"], {"task": {"name": "digits"}}).task.options == {"partition": "label"}


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["train.lr=1"], "unknown key train.lr, did you mean train.learning_rate?"),
        (["train.round=1"], "did you mean train.rounds?"),
        (["train.compressor=q2"], "did you mean sync.compressor?"),
        (["trian.rounds=1"], "unknown section [trian], did you mean train?"),
        (["sync.compressor=q3"], "q2, "),
        (["sync.aggregator=trimmed-mean"], "did you mean trimmed_mean?"),
        (["sync.strategy=magic"], "streaming, tracked_gossip"),
        (["sync.outer=nolocco"], "did you mean noloco?"),
        (["attack.name=signflip"], "did you mean sign_flip?"),
        (["task.name=bytelm"], "did you mean byte-lm?"),
        (["train.optimizer=adam"], "did you mean adamw?"),
        (["train.drift=fedpros"], "did you mean fedprox?"),
        (["train.rounds=many"], "train.rounds: input should be a valid integer"),
        (["train.rounds=0"], "rounds must be at least 1"),
        (["network.peers=/ip4/1.2.3.4/tcp/1"], "network.peers must be a list"),
        (["network.quorum=2"], "quorum must lie in (0, 1]"),
        (["node.lane=gpu"], "not 'gpu'"),
        (["node.shard_index=2"], "must be below shard_count"),
        (["node.metrics_port=70000"], "node.metrics_port"),
        (["rounds=3"], "is not section.key=value"),
    ],
)
def test_a_mistake_is_one_line_that_helps(sets, said):
    with pytest.raises(UsageError) as caught:
        load([], sets)
    assert said in caught.value.line()
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("# mine\n[train]\nrounds = 3\nroundz = 4\n", 4, "unknown key train.roundz, did you mean train.rounds?"),
        ("train.roundz = 4\n", 1, "unknown key train.roundz"),
        ('[task]\nname = "digits"\n\n  [ trian ]\nrounds = 3\n', 4, "unknown section [trian], did you mean train?"),
        ("[train]\n", None, None),
        ("train = { roundz = 4 }\n", 0, "unknown key train.roundz"),
    ],
)
def test_an_unknown_key_of_a_file_is_said_with_file_and_line(tmp_path, content, line, said):
    file, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    file.write_text(content)
    other.write_text("[train]\nrounds = 2\n")
    if said is None:
        assert load([file, other], ["train.seed=1"]).train.rounds == 2
        return
    for files in ([file], [other, file], [file, other]):
        with pytest.raises(UsageError) as caught:
            load(files, ["train.seed=1"])
        assert caught.value.message.startswith(f"{file}, line {line}: {said}" if line else f"{file}: {said}")
    with pytest.raises(UsageError, match=r"^unknown key train\.roundz"):
        load([other], ["train.roundz=1"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[train\n", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"train = 3\n", "train must be a section"),
        (b"#" * (2 << 20), "too large"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, said):
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        load([file])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no configuration file"):
        load([tmp_path / "none.toml"])


@pytest.mark.parametrize("file", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(file):
    config = load([file])
    for section, keys in tomllib.loads(file.read_text()).items():
        shown = config.model_dump(mode="json")[section]
        assert {key: shown[key] for key in keys} == keys


def test_there_are_the_four_shipped_configurations():
    assert {file.stem for file in CONFIGS} >= {"local", "volunteer-gpu", "low-bandwidth", "byzantine"}


PEER = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWE7xjnskgWFnf9XF6Bfqsm8fBFrbv8M7DR6pCifMJ4hUJ"


@pytest.mark.parametrize(
    "text",
    [
        'network.listen=["127.0.0.1:4001"]',
        'network.listen=["/ip4/127.0.0.1/udp/4001/quic"]',
        'network.announce=["example.org"]',
        'network.peers=["/ip4/192.0.2.1/tcp/4001"]',
        f'network.peers=["{PEER[:-1]}"]',
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_starts(text):
    with pytest.raises(
        UsageError, match=r"network\.(listen|announce|peers): .*(is no address|is no peer's address|does not end in)"
    ):
        load([], [text])


def test_what_is_shown_loads_to_the_same(tmp_path):
    peers = f'network.peers=["{PEER}", "{PEER}"]'
    config = load([], ["task.size=micro", "sync.gamma=0.5", "network.peers_file=/tmp/p", peers])
    file = tmp_path / "shown.toml"
    file.write_text(config.to_toml())
    assert load([file]) == config


def test_the_join_command_carries_what_members_agree_on_and_nothing_else():
    sets = ["task.size=micro", "task.data=/my books/a.txt", "train.seed=7", "train.device=cpu", "train.threads=2"]
    sets += ["node.name=mine", "network.swarm=night shift", "sync.compressor=sign1"]
    config = load([], sets)
    words = shlex.split(join_command(config, "/ip4/10.0.0.1/tcp/4001/p2p/12D3"))
    assert words[:4] == ["p2ptrain", "node", "--peer", "/ip4/10.0.0.1/tcp/4001/p2p/12D3"]
    given = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    joined = load([], given)
    assert (joined.task.options, joined.sync, joined.train.seed) == ({"size": "micro"}, config.sync, 7)
    assert joined.network.swarm == "night shift"
    assert (joined.train.device, joined.train.threads, joined.node.name) == ("auto", 0, "node")


@pytest.mark.parametrize("strategy", ["tracked_gossip", "sparse_loco", "allreduce", "diloco", "streaming"])
@pytest.mark.parametrize("rule", [[], ["aggregator=trimmed_mean", "f=1"], ["aggregator=median", "f=0"], ["f=0"]])
def test_who_joins_by_the_command_runs_the_same_rule(strategy, rule):
    config = load([], [f"sync.strategy={strategy}", *(f"sync.{each}" for each in rule)])
    words = shlex.split(join_command(config, "/ip4/10.0.0.1/tcp/4001/p2p/12D3"))
    assert load([], [words[at + 1] for at, word in enumerate(words) if word == "--set"]).sync == config.sync


def test_only_what_differs_counts_as_changed():
    assert changed(Config(), ["task", "train", "sync", "network", "node", "attack", "monitoring"]) == []


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
def test_any_string_survives_the_join_command(text):
    given_ = changed(load([], [], {"task": {"data": text}}), ["task"])
    assert load([], given_).task.options == {"data": text}


def test_the_join_command_carries_the_pace_and_none_by_default():
    address = "/ip4/10.0.0.1/tcp/4001/p2p/12D3"
    assert "node.pace=dylu" in shlex.split(join_command(load([], ["node.pace=dylu"]), address))
    assert "pace" not in join_command(load(), address)


def test_steps_and_bits_may_not_both_follow_the_link():
    for compressor in ("adaptive", "lossless+adaptive"):
        with pytest.raises(UsageError, match="both follow the link"):
            load([], ["node.pace=auto", f"sync.compressor={compressor}"])
    assert load([], ["node.pace=dylu", "sync.compressor=adaptive"]).node.pace == "dylu"
    with pytest.raises(UsageError, match=r"node\.pace"):
        load([], ["node.pace=fast"])


def test_the_link_and_the_schedule_may_not_both_choose_the_steps():
    for schedule in ("qsr", "post_local"):
        with pytest.raises(UsageError, match=f"inner_steps_schedule={schedule} both choose how many steps") as caught:
            load([], ["node.pace=auto", f"train.inner_steps_schedule={schedule}"])
        assert "\n" not in caught.value.line()
        assert load([], ["node.pace=dylu", f"train.inner_steps_schedule={schedule}"]).node.pace == "dylu"
    assert load([], ["node.pace=auto", "train.inner_steps_schedule=constant"]).node.pace == "auto"
    with pytest.raises(UsageError, match=r"unknown train\.inner_steps_schedule 'qrs', did you mean qsr"):
        load([], ["train.inner_steps_schedule=qrs"])


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("sync.strategy=streaming", "which streaming does not tell apart"),
        ("sync.strategy=mime", "which mime does not tell apart"),
        ("node.pace=auto", "of which node.pace=auto is to take fewer"),
        ("train.drift=scaffold", "which train.drift=scaffold would take for the others'"),
    ],
)
def test_what_a_step_normalization_cannot_stand_beside_is_refused(beside: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        load([], ["train.step_normalization=fednova", beside])
    assert "\n" not in caught.value.line()
    assert load([], ["train.step_normalization=none", beside]).train.step_normalization == "none"


def test_a_step_normalization_goes_with_dylu_and_an_unknown_one_is_named() -> None:
    config = load([], ["train.step_normalization=fednova", "node.pace=dylu", "train.normalization_exponent=0.5"])
    assert config.train.normalization().factor(5, 20) == 2
    with pytest.raises(UsageError, match=r"unknown train\.step_normalization 'fednov', did you mean fednova"):
        load([], ["train.step_normalization=fednov"])


def test_the_join_command_carries_the_schedule():
    address = "/ip4/10.0.0.1/tcp/4001/p2p/12D3"
    sets = ["train.inner_steps_schedule=qsr", "train.least_inner_steps=2"]
    assert set(sets) <= set(shlex.split(join_command(load([], sets), address)))
