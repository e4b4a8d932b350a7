"""`p2ptrain bench graphs`: what is left of a distance for so many copies sent."""

from pathlib import Path

import pytest
import torch
from bench_words import rows, run

from node.bench.graphs import Graphs, _matrix
from p2ptrain import graphs
from p2ptrain.graphs import mixing_at


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[tuple[str, int], dict[str, object]]:
    code, out, _ = run(capsys, "graphs", *words, "--draws", "3", "--json")
    assert code == 0
    return {(row["graph"], row["group"]): row for row in rows(out)}


def test_eight_nodes(capsys):
    by_graph = found(capsys, "--nodes", "8", "--copies", "1,2,4")
    assert {name for name, _ in by_graph} == {*graphs.names(), "ring", "regular", "all to all", "all-reduce of all"}
    exact = {label: row["exact_copies"] for label, row in by_graph.items()}
    assert exact[("all-reduce of all", 8)] == 1.75
    assert exact[("all to all", 8)] == 7
    assert exact[("base", 2)] == exact[("grid", 2)] == exact[("directed_exponential", 2)] == 3
    assert exact[("base", 4)] == exact[("grid", 4)] == 2.5
    assert exact[("null_cascade", 3)] == 5, "its first hop is half the circle: one partner"
    assert exact[("matching", 2)] is exact[("ring", 3)] is None
    for (name, _), row in by_graph.items():
        assert row["left_1"] >= row["left_2"] >= row["left_4"], name
        assert row["curve"][0] == [0.0, 1.0]
    assert by_graph["matching", 2]["left_1"] == pytest.approx((3 / 7) ** 0.5, abs=1e-5)


def test_ten_nodes_fill_no_grid(capsys):
    by_graph = found(capsys, "--nodes", "10", "--group", "2")
    assert by_graph["base", 2]["exact_copies"] == 4.6
    assert by_graph["grid", 2]["exact_copies"] is None
    assert by_graph["base", 2]["copies_a_round"] == pytest.approx(4.6 / 6, abs=1e-4)


def test_what_is_left_is_what_random_values_have_left():
    row = next(row for row in Graphs(nodes=[7], draws=1, copies=[3.0]).run() if row["graph"] == "grid")
    names, graph = list(map(str, range(7))), graphs.get("grid", group=2)
    x_nd = torch.randn(7, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = (x_nd - x_nd.mean(0)).norm()
    for number, (_, left) in enumerate(row["curve"][1:]):
        x_nd = _matrix(mixing_at(graph, names, b"0 0", number)) @ x_nd
        assert float((x_nd - x_nd.mean(0)).norm() / before) == pytest.approx(left, rel=0.02)


def test_as_a_table_and_a_picture(capsys, tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "graphs.png"
    words = ("graphs", "--nodes", "5,8", "--draws", "1", "--group", "3", "--copies", "2", "--plot", str(picture))
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Graphs, 5 nodes" in out
    assert out.count("left: distance to the mean") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "2"), "nodes must be from 3 to 512, not 2"),
        (("--nodes", "8", "--group", "1"), "groups must be from 2 to 512, not 1"),
        (("--nodes", "some"), "no list of numbers"),
        (("--copies", "0"), "no list of numbers above 0"),
    ],
)
def test_mistakes_are_one_line(capsys, words: tuple[str, ...], message: str):
    code, _, err = run(capsys, "graphs", *words)
    assert code == 2
    assert message in err.replace("\n", " ")
