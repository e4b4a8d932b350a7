"""The README's private swarm: its four commands as they stand there, on a task whose rounds take 0.4 s."""

import json
import re
import shlex
from pathlib import Path

import pytest
from processes_harness import Program, ran

pytestmark = pytest.mark.paired

README = Path(__file__).parents[2] / "README.md"
ROUNDS = 8


def commands() -> list[list[str]]:
    """The block of the section, without the program's name."""
    section = README.read_text(encoding="utf-8").partition("\n## A private swarm\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (?:\.venv/bin/)?(p2ptrain .*)$", section, flags=re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def within(folder: Path, words: list[str]) -> list[str]:
    """The same with its folders below `folder`."""
    takers = {"--out", "--swarm", "--invite", "--run-dir"}
    pairs = zip(["", *words], words, strict=False)
    return [str(folder / word) if before in takers else word for before, word in pairs]


def test_four_commands_make_a_private_swarm_of_three(tmp_path: Path) -> None:
    create, *nodes = [within(tmp_path, words) for words in commands()]
    assert create[:2] == ["swarm", "create"]
    assert [words[0] for words in nodes] == ["node"] * 3
    (tmp_path / "pass").write_text("correct horse\n")
    (tmp_path / "pass").chmod(0o600)
    recipe = (
        "--task",
        "paced_digits:create",
        "--inner-steps",
        "20",
        "--rounds",
        str(ROUNDS),
        "--config",
        recipe_in(tmp_path),
    )
    with Program(tmp_path, *create, *recipe, "--passphrase-file", tmp_path / "pass") as made:
        assert made.end() == 0, made.stderr
    own = ("--json", "--set", "train.threads=1", "--task", "paced_digits:create")
    with (
        Program(tmp_path, *nodes[0], *own) as first,
        Program(tmp_path, *nodes[1], *own) as second,
        Program(tmp_path, *nodes[2], *own) as third,
    ):
        for each in (first, second, third):
            each.hear("round", members=3)
            assert each.end() == 0, each.stderr
            assert not each.heard("join")
    listed = json.loads(ran(tmp_path, "swarm", "members", tmp_path / "friends", "--json").out)
    names = [(each["role"], each["name"], each["state"]) for each in listed["members"]]
    assert sorted(names) == [("trainer", "", "member"), ("trainer", "", "member"), ("trainer", "founder", "member")]


def recipe_in(folder: Path) -> Path:
    file = folder / "recipe.toml"
    file.write_text("[train]\nwarmup_steps = 10\nlearning_rate = 2e-4\neval_every = 4\n")
    return file
