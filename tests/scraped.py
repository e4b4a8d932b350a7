"""What Prometheus reads, as Prometheus' own parser reads it."""

from prometheus_client.parser import text_string_to_metric_families

from node.metrics.live_metrics import REACHABILITY

Scraped = dict[str, dict[str, float]]
"""By name, without the common prefix, and by the value of the only label; "" where there is none or are several."""


def parsed(text: str) -> Scraped:
    """An exposition's samples."""
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = "".join(sample.labels.values()) if len(sample.labels) == 1 else ""
            found.setdefault(sample.name.removeprefix("p2ptrain_"), {})[label] = sample.value
    return found


def reachability_in(scraped: Scraped) -> str:
    """The one state that holds."""
    states = scraped["reachability"]
    assert set(states) == set(REACHABILITY)
    (state,) = (state for state, holds in states.items() if holds)
    return state
