"""Our own setups on the links of a published table: at or above it, or a sentence why not."""

import tomllib
from importlib import resources

import pytest

from node.planning import published_links
from node.planning.published_links import utilization_cells


@pytest.fixture(scope="module")
def cells():
    return utilization_cells()


@pytest.mark.thorough
def test_every_cell_is_at_or_above_or_says_why(cells):
    assert len(cells) == 75
    assert all(bool(cell.reason) is not cell.at_or_above for cell in cells)
    assert all(0 < cell.ours <= 100 for cell in cells)
    assert sum(cell.at_or_above for cell in cells) > 50


@pytest.mark.slow
def test_a_cell_below_names_what_binds_and_from_which_h_on_it_would_be_reached():
    slow = published_links._cell(
        {"members": 2, "inner_steps": 100},
        {"parameters": 1e9, "step_s": 0.001, "method": "any"},
        0.001,
        99.0,
    )
    assert not slow.at_or_above
    assert "uplink" in slow.reason
    assert "no H up to" in slow.reason


def test_the_table_is_whole():
    text = (resources.files("node.planning") / "published_links.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    assert len(table["rows"]) == 15
    for row in table["rows"]:
        assert row["gbit"] == sorted(row["gbit"]), "more of the time computing takes no slower a link"
        assert len(row["gbit"]) == len(table["targets"])
