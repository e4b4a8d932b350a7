"""Scripts end by Ctrl-C and by mistakes as commands do: in one line, with its exit code."""

import ast
import subprocess
from pathlib import Path

import pytest

from node.system.errors import UsageError
from node.system.script_end import ended_in_a_line

SCRIPTS = [
    path for path in sorted((Path(__file__).parents[1] / "scripts").glob("*.py")) if "__main__" in path.read_text()
]


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 40


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_all_that_a_script_does_ends_in_a_line(path: Path) -> None:
    begins = ast.parse(path.read_text()).body[-1]
    assert isinstance(begins, ast.If)
    assert ast.unparse(begins.test) == "__name__ == '__main__'"
    (block,) = begins.body
    assert isinstance(block, ast.With)
    assert [ast.unparse(item) for item in block.items] == ["ended_in_a_line()"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (BaseExceptionGroup("of a nursery", [BaseExceptionGroup("in", [KeyboardInterrupt()])]), 130, "interrupted"),
        (UsageError("no such rule", "take mean"), 2, "no such rule; take mean"),
        (FileNotFoundError(2, "No such file or directory", "rows"), 1, "[Errno 2] No such file or directory: 'rows'"),
        (
            subprocess.CalledProcessError(3, ["x"]),
            1,
            "a process that it started ended with code 3; see what that printed",
        ),
    ],
    ids=["alone", "in groups", "usage", "file", "process"],
)
def test_it_ends_in_a_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["scripts/some_cost.py", "--rounds", "3"])
    with pytest.raises(SystemExit) as ended, ended_in_a_line():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err == f"some_cost.py: {said}\n"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("usage: some_cost.py FILE")])
def test_what_else_is_raised_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as passed, ended_in_a_line():
        raise error
    assert passed.value is error
