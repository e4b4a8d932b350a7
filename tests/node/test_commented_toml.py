"""`config show` has every key that may be set, says what it means, and is read back to the same configuration."""

import tomllib

import pytest

from node.cli import main
from node.config.commented_toml import field_texts, to_commented_toml
from node.config.schema import known_keys, load
from node.config.sections import NetworkConfig

SETTINGS = [
    [],
    ["task.name=digits", "task.alpha=0.5"],
    ["train.betas=[0.9, 0.99]", "train.weight_decay=0.2", "node.shard_index=0"],
    ["task.size=micro", "attack.name=sign_flip", "attack.scale=2.0", 'network.listen=["/ip4/0.0.0.0/tcp/4001"]'],
    ["task.name=on_another_machine:create", "task.width=8", 'network.swarm="a # b"'],
]


@pytest.mark.parametrize("sets", SETTINGS)
def test_it_is_read_back_to_the_same_configuration(tmp_path, sets: list[str]) -> None:
    path, config = tmp_path / "shown.toml", load(sets=sets)
    path.write_text(to_commented_toml(config))
    assert load([path]) == config
    assert tomllib.loads(path.read_text()) == tomllib.loads(config.to_toml())


@pytest.mark.slow
def test_every_key_stands_there_with_its_meaning(capsys) -> None:
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for section, keys in known_keys().items():
        part = lines[lines.index(f"[{section}]") + 1 :]
        part = part[: next((at for at, line in enumerate(part) if line.startswith("[") and line[1].isalpha()), None)]
        for key in keys or ():
            (at,) = [number for number, line in enumerate(part) if line.removeprefix("# ").startswith(f"{key} = ")]
            assert part[at - 1].startswith("# "), f"{key} has no comment"
    for unset in ("# weight_decay = (not set)", "# betas = (not set)", '# size = "nano"', "# context = (not set)"):
        assert unset in lines


def test_the_chosen_members_options_are_shown() -> None:
    shown = to_commented_toml(load(sets=["task.name=digits", "task.partition=label", "attack.name=sign_flip"]))
    assert 'partition = "label"\n' in shown
    assert "# alpha = 0.3" in shown
    assert "# scale = 4.0" in shown
    assert "# context" not in shown


def test_units_are_said_where_the_text_does_not() -> None:
    lines = to_commented_toml(load()).splitlines()
    assert "[seconds]" in lines[lines.index("wait_timeout_s = 60.0") - 1]


def test_a_base_classs_fields_have_their_texts_too() -> None:
    texts = field_texts(NetworkConfig)
    assert texts["degree"]
    assert texts["listen"]


def test_json_is_as_it_was(capsys) -> None:
    import json

    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == load().model_dump(mode="json")
