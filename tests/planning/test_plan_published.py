"""The model against published runs: within what each row allows, by the functions that every plan is computed by."""

from node.planning import published_runs, round_timing
from node.planning.published_runs import misses, published_rows


def test_rows_are_as_near_as_they_may_be():
    rows = {row.name: row for row in published_rows()}
    assert misses(list(rows.values())) == []
    for name, share in (("USA", 95.7), ("USA and Europe", 85.6), ("world", 83.0)):
        assert abs(rows[f"INTELLECT-1 10B, {name}"].predicted - share) <= 0.5
    assert abs(rows["Covenant-72B, exchange as measured"].predicted - 94.5) <= 1
    assert abs(rows["DiLoCo 150M, 8 workers"].predicted - 500) < 1
    assert abs(rows["Streaming DiLoCo 1B, data parallel"].predicted - 222) < 11
    for size, gbit in (("1B", 2.0), ("10B", 1.4), ("100B", 1.1)):
        assert abs(rows[f"Streaming DiLoCo {size}, 4 bits"].predicted - gbit) < 0.2
    assert sum(row.met is True for row in rows.values()) >= 10


def test_every_row_has_its_source_and_says_what_is_assumed():
    for row in published_rows():
        assert row.source, row.name
        assert row.assumed, row.name


def test_what_the_inputs_do_not_lead_to_is_said_and_not_counted_as_met():
    unexplained = [row for row in published_rows() if not row.explains]
    assert {row.name for row in unexplained} == {"Covenant-72B, by its link", "SWARM 1B, a stage of a pipeline"}
    assert all(row.met is not True for row in unexplained)


def test_rows_are_computed_by_the_functions_of_every_plan(monkeypatch):
    """Another rule for a round's time is another prediction."""
    before = {row.name: row.predicted for row in published_rows()}

    def twice(*given, **more):
        found = round_timing.round_times(*given, **more)
        return type(found)(**{**vars(found), "utilization": found.utilization / 2})

    monkeypatch.setattr(published_runs, "round_times", twice)
    after = {row.name: row.predicted for row in published_rows()}
    assert after["INTELLECT-1 10B, world"] == before["INTELLECT-1 10B, world"] / 2
