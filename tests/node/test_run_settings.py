"""What a run folder goes on with: every key may change or may not, and the folder alone is enough."""

from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import digits, node_folder, tree

from node.cli import main
from node.config.run_settings import kept_in, laid_over, may_change, node_name, of_node, refuse_changes, with_defaults
from node.config.schema import from_raw, known_keys
from node.system.errors import RunError, UsageError

DECIDED = {
    *(f"sync.{key}" for key in known_keys()["sync"] or ()),
    *(f"train.{key}" for key in ("seed", "optimizer", "weight_decay", "betas", "epsilon", "momentum", "nesterov")),
    *(f"train.{key}" for key in ("shares", "public_digest", "distill_temperature", "distill_rate")),
    *("train.local", "train.drift", "train.drift_strength", "task.name", "task.size", "attack.name", "attack.z"),
    *("network.swarm", "network.swarm_id", "node.role"),
}
"""What makes another model, another state of the optimizer, other messages or another swarm."""

FREE_OPTIONS = [("task", "name"), ("task", "size"), ("task", "data"), ("attack", "name"), ("attack", "z")]
KEYS = [*FREE_OPTIONS, *((section, key) for section, keys in known_keys().items() for key in keys or ())]
FOLDER = Path("runs/x/node")


@pytest.mark.parametrize(("section", "key"), KEYS, ids=lambda word: word)
def test_every_key_may_change_or_is_refused_by_name(section: str, key: str) -> None:
    kept = with_defaults({"task": {"name": "digits"}})
    same = {section: {key: kept[section][key]}} if key in kept[section] else {}
    refuse_changes(kept, same, FOLDER)
    other = {section: {key: "another"}}
    if f"{section}.{key}" not in DECIDED:
        assert may_change(section, key)
        refuse_changes(kept, other, FOLDER)
        return
    with pytest.raises(UsageError) as caught:
        refuse_changes(kept, other, FOLDER)
    line = caught.value.line()
    there = kept[section].get(key)
    assert line.startswith(f"{section}.{key}=another cannot change in the run in {FOLDER}: there it is ")
    assert (f"it is {there};" in line) or (there in (None, "") and "it is not set;" in line)
    assert "--run-dir" in line
    assert "\n" not in line


def test_no_decided_key_is_missing_above() -> None:
    assert {f"{s}.{k}" for s, k in KEYS} >= DECIDED


def test_one_value_compares_alike_wherever_it_comes_from() -> None:
    kept = with_defaults({"train": {"betas": [0.9, 0.95], "weight_decay": 0.0}})
    refuse_changes(kept, {"train": {"betas": (0.9, 0.95), "weight_decay": 0}}, FOLDER)


def test_settings_given_win_and_options_go_with_their_name() -> None:
    kept = with_defaults({"task": {"name": "byte-lm", "size": "micro"}, "train": {"rounds": 150}})
    assert laid_over(kept, {"train": {"rounds": 200}})["train"]["rounds"] == 200
    assert laid_over(kept, {"task": {"name": "digits"}})["task"] == {"name": "digits"}
    other = from_raw(laid_over(kept, {"sync": {"strategy": "noloco"}}))
    assert other.sync == from_raw({"sync": {"strategy": "noloco"}}).sync, "none of the old strategy's own defaults"
    assert kept["task"]["size"] == "micro", "what is kept is left as it is"


def test_a_fresh_folder_adds_nothing(tmp_path: Path) -> None:
    given = {"train": {"rounds": 3}}
    assert of_node(tmp_path / "run" / "node", given) == (given, ())


@pytest.mark.parametrize(("file", "checkpoint"), [(True, True), (True, False), (False, True)])
def test_the_folder_alone_is_the_same_run(tmp_path: Path, file: bool, checkpoint: bool) -> None:
    config = digits("network.peers=[]", "node.checkpoint_every=2")
    folder = node_folder(tmp_path / "node", config, file=file, checkpoint=checkpoint)
    before = tree(tmp_path)
    raw, notes = of_node(folder, {})
    assert from_raw(raw) == config
    assert notes == ()
    more, _ = of_node(folder, {"train": {"rounds": 200}})
    assert from_raw(more).train.rounds == 200
    assert tree(tmp_path) == before


def test_a_checkpoint_decides_and_before_the_first_one_nothing_is_decided(tmp_path: Path) -> None:
    young = node_folder(tmp_path / "young", digits(), checkpoint=False)
    assert from_raw(of_node(young, {"train": {"seed": 4}})[0]).train.seed == 4
    old = node_folder(tmp_path / "old", digits(), file=False)
    with pytest.raises(UsageError, match=r"train.seed=4 cannot change .* there it is 3"):
        of_node(old, {"train": {"seed": 4}})


def test_what_the_file_says_of_what_may_change_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "node", digits())
    (folder / "config.toml").write_text(digits("train.rounds=200").to_toml())
    assert from_raw(of_node(folder, {})[0]).train.rounds == 200


def test_a_file_that_an_older_release_overwrote_is_passed_over_and_said(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "node", digits())
    (folder / "config.toml").write_text(from_raw({}).to_toml())
    raw, (note,) = of_node(folder, {})
    assert from_raw(raw) == digits()
    assert "task.name is byte-lm there, and digits in the checkpoint" in note


def test_a_file_of_an_older_release_is_read(tmp_path: Path) -> None:
    """With a key that is gone, without one that has come, and a checkpoint that does not know that one either."""
    folder = node_folder(tmp_path / "node", digits(), drop=("train", "epsilon"))
    text = digits().to_toml().replace("[train]\n", "[train]\nold_key = 3\n").replace('drift = "none"\n', "")
    (folder / "config.toml").write_text(text + "\n[gone]\nkey = 1\n")
    raw, (note,) = of_node(folder, {})
    assert from_raw(raw) == digits()
    assert "train.old_key" in note
    assert "gone.key" in note


def test_a_file_without_what_is_decided_is_completed_from_the_checkpoint(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "node", digits())
    (folder / "config.toml").write_text("[train]\nrounds = 170\n")
    config = from_raw(of_node(folder, {})[0])
    assert (config.task.name, config.train.seed, config.train.rounds) == ("digits", 3, 170)


def test_a_damaged_file_is_passed_over_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "node", digits())
    (folder / "config.toml").write_text("[train\n")
    raw, (note,) = of_node(folder, {})
    assert from_raw(raw) == digits()
    assert "is not valid TOML" in note
    young = node_folder(tmp_path / "young", digits(), checkpoint=False)
    (young / "config.toml").write_text("[train\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        kept_in(young)


@pytest.mark.parametrize("text", ["", "\n", "\ufeff"])
def test_a_file_that_was_cut_to_nothing_does_not_set_all_back_to_the_defaults(tmp_path: Path, text: str) -> None:
    folder = node_folder(tmp_path / "node", digits())
    (folder / "config.toml").write_text(text, encoding="utf-8")
    raw, (note,) = of_node(folder, {})
    assert from_raw(raw) == digits()
    assert note == f"{folder / 'config.toml'} is empty: going on with the checkpoint's settings"


def test_a_file_that_an_editor_of_windows_saved_is_read(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "node", digits())
    text = digits("train.rounds=170").to_toml().replace("\n", "\r\n").replace(" = ", "\t=\t")
    (folder / "config.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    raw, notes = of_node(folder, {})
    assert (from_raw(raw).train.rounds, notes) == (170, ())


def test_a_folder_with_another_name_is_that_node(tmp_path: Path) -> None:
    folder = node_folder(tmp_path / "a", digits("node.name=a"))
    raw, _ = of_node(folder.rename(tmp_path / "b"), {"node": {"name": "b"}})
    assert from_raw(raw).node.name == "b"


def test_the_address_book_of_the_folder_moves_with_it(tmp_path: Path) -> None:
    raw, _ = of_node(node_folder(tmp_path / "node", digits(), file=False), {})
    assert from_raw(raw).network.address_book is None


def test_a_bootstrap_nodes_folder_goes_on_as_one(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "config.toml").write_text('[network]\nswarm = "lab"\n[node]\nrole = "bootstrap"\n')
    raw, notes = of_node(folder, {})
    assert (raw["node"]["role"], raw["network"]["swarm"], notes) == ("bootstrap", "lab", ())


def test_settings_are_kept_at_once_or_when_the_checkpoint_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder is enough from the first moment on; one with a checkpoint is not touched before that is read."""
    node_folder(tmp_path / "old" / "node", digits())
    before = (tmp_path / "old" / "node" / "config.toml").read_bytes()
    fit = [False]

    def main_of_node(*_: object, fits: Callable[[], None], **__: object) -> int:
        if fit[0]:
            fits()
        raise RunError("killed")

    monkeypatch.setattr("node.roles.trainer.main", main_of_node)
    words = ["node", "--task", "digits", "--seed", "3", "--rounds", "200", "--run-dir"]
    for run in ("new", "old"):
        assert main([*words, str(tmp_path / run)]) == 1
    assert kept_in(tmp_path / "new" / "node") is not None
    assert from_raw(of_node(tmp_path / "new" / "node", {})[0]).task.name == "digits"
    assert (tmp_path / "old" / "node" / "config.toml").read_bytes() == before
    fit[0] = True
    assert main([*words, str(tmp_path / "old")]) == 1
    assert from_raw(of_node(tmp_path / "old" / "node", {})[0]).train.rounds == 200


def test_which_node_is_meant(tmp_path: Path) -> None:
    assert node_name(tmp_path / "fresh", {}) == "node"
    assert node_name(tmp_path / "fresh", {"node": {"name": "x"}}) == "x"
    node_folder(tmp_path / "gpu1", digits(), checkpoint=False)
    assert node_name(tmp_path, {}) == "gpu1", "the only one"
    node_folder(tmp_path / "gpu2", digits(), checkpoint=False)
    with pytest.raises(UsageError, match="has the nodes gpu1, gpu2"):
        node_name(tmp_path, {})
    (tmp_path / "gpu2" / "lock").write_text("1\n")
    with pytest.raises(UsageError, match="is a node's own folder"):
        node_name(tmp_path / "gpu2", {})
    node_folder(tmp_path / "node", digits(), checkpoint=False)
    assert node_name(tmp_path, {}) == "node", "the default, where it is one of them"
