"""What a node says that trained nothing in this start, as all its rounds were done when it began."""

from types import SimpleNamespace

import pytest

from node.events.event_types import Finished, Interrupted, WarningEvent
from node.events.summary import NodeSummary
from node.roles.trainer import _announce_over


def summary(rounds: int) -> NodeSummary:
    return NodeSummary(
        peer_id="12D3", rounds=rounds, steps=800, tokens=480, wall_s=2.0, compute_s=1.9, utilization=0.95,
        train_loss_first=2.3, train_loss_last=0.1, eval_loss_first=2.3, eval_loss_last=0.1,
        consensus_distance=0.1, payload_bytes_sent=1000, payload_bytes_received=3000, dense_bytes_equivalent=16_000,
        compression_ratio=16.0, updates_accepted=9, updates_rejected={}, neighbours=3, aggregator="trimmed_mean",
        compressor="q2", bytes_sent=1250, bytes_received=3300, parameters=2410, sent_bits=0.5, published_bits=0.125,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "of", "says"), [(40, 40, ["all 40 rounds are done already"]), (40, 60, []), (1, 1, ["the only round"])]
)
def test_only_a_node_with_no_rounds_left_says_that_all_are_done(trained: int, of: int, says: list[str]) -> None:
    """An admin's manifest gave more while it waited for neighbours, and Ctrl-C came before the first of them."""
    said: list[object] = []
    node = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(rounds=of)),
        state=SimpleNamespace(private=True, finished=trained >= of),
        journal=SimpleNamespace(emit=said.append),
    )
    event = Finished if trained >= of else Interrupted
    _announce_over(node, summary(trained), event)  # type: ignore[arg-type]
    warnings = [it.message for it in said if isinstance(it, WarningEvent)]
    assert len(warnings) == len(says)
    assert all(start in message for start, message in zip(says, warnings, strict=True))
    assert isinstance(said[-1], event)
