import io

import pytest
from rich.console import Console
from swarm_story import round_event
from typed_events import typed

from node.events.lines import describe
from node.events.progress import NodeProgress
from node.events.sent_bits import bits_each, ring_all_reduce_bits
from node.system import text


def test_bytes_are_bits_for_each_parameter_and_inner_step():
    assert bits_each(1000, parameters=100, steps=20) == 4.0
    assert bits_each(1000, parameters=100, steps=0) is None, "nothing was trained yet"


@pytest.mark.parametrize(("nodes", "bits"), [(1, 0.0), (2, 32.0), (4, 48.0), (8, 56.0)])
def test_a_ring_all_reduce_sends_2_n_minus_1_over_n_of_the_vector(nodes, bits):
    assert ring_all_reduce_bits(nodes) == bits


def test_words_have_sent_first_and_published_beside_it():
    assert text.bits(0.2089, 0.10156) == "0.209 bits per parameter and inner step, 0.102 published"
    assert text.bits(4.0, None) == "4 bits per parameter and inner step"
    assert text.bits(None, None) == ""


def test_the_state_of_a_node_has_all_bytes_and_of_an_older_log_none():
    node, older = NodeProgress("node"), NodeProgress("older")
    event = round_event(2, ts=1.0)
    node.observe(typed(event))
    assert (node.bytes_sent, node.bytes_received) == (250_000, 750_000)
    assert (node.sent_bits, node.published_bits) == (0.109, 0.035)
    later = {"bytes_sent", "bytes_received", "sent_bits", "published_bits"}
    older.observe(typed({key: value for key, value in event.items() if key not in later}))
    assert (older.bytes_sent, older.bytes_received) == (None, None), "not the payload, which is less"
    assert (older.sent_bits, older.published_bits) == (None, None)


def shown(record):
    console = Console(file=io.StringIO(), width=300)
    console.print(*describe(typed(record)))
    return console.file.getvalue()


def test_a_nodes_last_line_has_what_it_sent():
    summary = {"wall_s": 9.0, "bytes_sent": 2_439_084, "sent_bits": 0.2089, "published_bits": 0.1016}
    line = shown({"ts": 1.0, "event": "finished", "summary": summary})
    assert "sent 2.4 MB (0.209 bits per parameter and inner step, 0.102 published)" in line


def test_lines_of_rounds_have_all_bytes():
    event = round_event(2, ts=1.0)
    assert "sent 250 kB  received 750 kB" in shown(event)
    observed = {key: value for key, value in event.items() if key not in {"train_loss", "steps"}}
    assert shown(observed).rstrip().endswith("received 750 kB")


def test_a_private_round_shows_what_is_spent_in_place_of_a_loss():
    event = {**round_event(2, ts=1.0), "epsilon": 1.4781, "epsilon_budget": 1.5}
    assert "  epsilon 1.48  " in shown(event)
    assert "loss" not in shown(event)
