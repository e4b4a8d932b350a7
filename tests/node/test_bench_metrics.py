"""`p2ptrain bench metrics`: of a real page, a real server and a real step, and its arithmetic."""

from pathlib import Path

import pytest
from bench_words import rows, run

from gossip.core.errors import Reason
from node.bench import plot
from node.bench.metrics_cost import LAG_PERIOD_S, SCRAPES_S, MetricsCost

SMALL = ("metrics", "--peers", "70", "--size", "pico", "--repetitions", "2")


def test_as_json_and_what_the_cost_is_made_of(capsys):
    code, out, _ = run(capsys, *SMALL, "--json")
    found = rows(out)
    assert (code, [row["repetition"] for row in found]) == (0, [1, 2])
    for row in found:
        assert (row["benchmark"], row["peers"], row["size"]) == ("metrics", 70, "pico")
        assert 30 < row["kilobytes"] < 150
        assert row["scrape_ms"] > 0 < row["page_ms"]
        seconds = row["event_us"] / row["step_ms"] / 1e3
        seconds += row["lag_us"] / 1e6 / LAG_PERIOD_S + row["page_ms"] / 1e3 / SCRAPES_S
        assert row["cost"] == pytest.approx(100 * seconds)


def test_as_a_table_with_medians(capsys):
    code, out, _ = run(capsys, *SMALL)
    assert code == 0
    assert f"knows 70 peers, each refused for {len(Reason)} reasons" in out
    assert "median" in out
    assert "% of a step" in out


def test_what_cannot_be_is_said_in_a_line(capsys):
    for words, said in ((["--size", "huge"], "no size 'huge'"), (["--peers", "0"], "--peers")):
        code, out, err = run(capsys, "metrics", *words)
        assert (code, out) == (2, "")
        assert said in err
    with pytest.raises(ValueError, match="peers"):
        MetricsCost(peers=0, repetitions=1)


@pytest.mark.slow
def test_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    found = [{"repetition": 1, "scrape_ms": 5.0, "page_ms": 3.0, "step_ms": 60.0}]
    path = tmp_path / "metrics.png"
    plot.write(path, lambda figure: MetricsCost(peers=1, repetitions=1).draw(found, figure))
    assert path.read_bytes().startswith(b"\x89PNG")
