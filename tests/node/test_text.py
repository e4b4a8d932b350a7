import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.system import text


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (999_960, "1.0 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(count, shown):
    assert text.size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(7, "7"), (999, "999"), (12_345, "12.3k"), (123_456, "123k")])
def test_amounts(count, shown):
    assert text.amount(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (9.4, "9 s"), (59.7, "1 min 00 s"), (125, "2 min 05 s"), (12_000, "3 h 20 min"), (-1, "0 s")],
)
def test_durations(seconds, shown):
    assert text.duration(seconds) == shown


@given(st.floats(0, 1e15))
def test_a_size_fits_its_column(count):
    assert len(text.size(count)) <= 7


@given(st.text())
def test_an_excerpt_cannot_steer_the_terminal(made):
    shown = text.excerpt(made, limit=50, lines=3)
    assert len(shown) <= 50
    assert shown.count("\n") <= 2
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_peers_are_told_apart_by_their_ends():
    assert text.peer("12D3KooWBqR1mAqEDv1Gd8S1bMbM1iV9pJ2YzPCf7oY8Zf7M8cVd") == "..Zf7M8cVd"


def test_commands_to_copy_name_the_program_as_it_was_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / ".venv" / "bin" / "p2ptrain"
    inside.parent.mkdir(parents=True)
    inside.touch()
    monkeypatch.setattr("sys.argv", [str(inside), "up"])
    monkeypatch.setenv("PATH", "")
    assert text.program() == ".venv/bin/p2ptrain"
    monkeypatch.setattr("sys.argv", ["/somewhere/pytest"])
    assert text.program() == "p2ptrain"
