"""What people see of a swarm, from a recorded stream of events."""

import io
import json

import pytest
from rich.console import Console
from swarm_story import PEER, node_events, round_event
from typed_events import said, typed

from node.events.lines import LineSink
from node.events.progress import MAX_WARNINGS, NodeProgress, common_evaluation
from node.top.table import nodes_table, remaining_s, swarm_round, swarm_view
from node.up.view import JsonView, LiveView, NoteTaker, PlainView, choose, note


def swarm(count: int = 4, rounds: int = 6) -> list[NodeProgress]:
    nodes = [NodeProgress(f"node-{index}") for index in range(count)]
    for index, node in enumerate(nodes):
        for event in node_events(index, rounds=rounds):
            node.observe(typed(event))
    return nodes


def drawn(renderable, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(renderable)
    return console.export_text().rstrip().splitlines()


def test_progress_is_the_newest_state():
    node = swarm()[2]
    assert (node.state, node.rounds_done, node.rounds, node.steps) == ("running", 6, 10, 120)
    assert (node.eval_loss_first, node.eval_loss, node.rejected) == (5.5, 2.5, 2)
    node.observe(typed({"ts": 2000.0, "event": "finished", "summary": {"rounds": 10}}))
    assert node.over
    assert node.summary == {"rounds": 10}


def test_privacy_of_visitors_and_a_newcomers_warm_up_are_in_the_state():
    node = swarm()[0]
    assert (node.visits_epsilon, node.warmed_up) == (None, "")
    fields = {"round": 1, "steps": 8, "examples": 3, "members": 4, "classes": [0, 2], "of_classes": 10, "loss": None}
    node.observe(said("warmed_up", **fields))
    assert node.warmed_up == "8 steps on synthetic examples of 4 members' statistics"
    node.observe(typed(round_event(7, ts=1.0) | {"visits_epsilon": 0.5, "visits_epsilon_budget": 2.0}))
    assert (node.visits_epsilon, node.visits_epsilon_budget) == (0.5, 2.0)


def test_a_spent_budget_of_privacy_is_shown_until_the_next_start_whatever_else_pauses_it():
    node = NodeProgress("node")
    spent = {"round": 3, "epsilon": 3.9, "budget": 4.0, "delta": 1e-5, "would_be": 4.1}
    node.observe(said("privacy_budget_spent", **spent))
    node.observe(said("paused", reason="hours", why="it trains at 22:00-07:00"))
    assert node.paused.startswith("hours")
    node.observe(said("unpaused", reason="hours", seconds=60.0))
    assert node.paused == "privacy: its budget of epsilon 4 is spent"
    node.observe(typed(next(node_events(0))))
    assert node.paused == ""


def test_a_restart_and_a_late_join_count_from_the_swarms_round():
    node = NodeProgress("late")
    node.observe(typed({"ts": 1.0, "event": "joined", "round": 40, "donors": 3}))
    assert node.rounds_done == 40
    for done, ts in ((41, 10.0), (42, 13.0), (43, 16.0)):
        node.observe(typed(round_event(done, ts=ts, rounds=60)))
    assert remaining_s([node], 16.0) == pytest.approx(3.0 * 17)


def test_a_restart_in_a_log_begins_the_counts_anew():
    node = NodeProgress("node-0")
    for start in range(3):
        node.observe(typed({"ts": 1.0, "event": "resumed", "round": 6 * start, "checkpoint": "x"}))
        node.observe(typed({"ts": 1.0, "event": "warning", "message": "told before the start"}))
        story = node_events(0, rounds=6)
        node.observe(typed(next(story)))
        assert (node.rounds_done, node.steps, node.neighbours, node.rejected_by) == (6 * start, 0, 0, {})
        assert (node.bytes_sent, node.sent_bits, node.published_bits) == (0, None, None)
        node.observe(typed({"ts": 1.0, "event": "neighbour_up", "peer": "a"}))
        node.observe(typed({"ts": 1.0, "event": "rejected", "peer": "a", "reason": "stale"}))
        assert (node.neighbours, node.rejected_by) == (1, {"stale": 1})
        for event in story:
            node.observe(typed(event))
        node.observe(typed({"ts": 50.0, "event": "failed", "error": "power", "hint": ""}))
    assert (node.steps, node.error) == (120, "power")
    assert len(node.warnings) == 3
    node.observe(typed(next(node_events(0))))
    assert (node.state, node.error) == ("running", None)


def test_refusals_are_those_of_the_round_not_the_thinned_out_events():
    node = NodeProgress("node-0")
    node.observe(typed({"ts": 1.0, "event": "rejected", "peer": "a", "reason": "forged"}))
    node.observe(typed(round_event(1, ts=1.0) | {"rejected": 400, "rejected_by_reason": {"forged": 400}}))
    assert (node.rejected, node.rejected_by) == (400, {"forged": 400})


def test_progress_forgets_old_warnings_and_passes_over_what_it_does_not_know():
    node = NodeProgress("node")
    for number in range(MAX_WARNINGS + 5):
        node.observe(typed({"ts": 1.0, "event": "warning", "message": str(number)}))
    node.observe(said("router", message="no", forwards=False))
    assert len(node.warnings) == MAX_WARNINGS
    assert node.warnings[-1] == str(MAX_WARNINGS + 4)


def test_progress_is_json():
    assert json.loads(json.dumps(swarm()[0].as_dict()))["peer_id"] == f"{PEER}0"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_state_is_never_cut(width):
    """Six digits of rounds, megabytes, and thousands of updates: what does not fit goes as a whole column."""
    wide = round_event(100_000, ts=9.0) | {
        "rounds": 100_000,
        "payload_bytes_sent": 123_400_000,
        "payload_bytes_received": 370_200_000,
        "accepted": 299_999,
        "rejected": 12_345,
        "updates_in_time": 1.0,
    }
    nodes = swarm()
    for node in nodes:
        node.observe(typed(wide))
    nodes[0].observe(typed({"ts": 10.0, "event": "finished", "summary": None}))
    nodes[1].observe(typed({"ts": 10.0, "event": "interrupted"}))
    lines = drawn(nodes_table(nodes, width=width), width)
    assert [line.split()[-1] for line in lines[:3]] == ["state", "finished", "interrupted"]
    assert "100,000/100,000" in lines[1] or "100000/100000" in lines[1]
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width


def test_the_table_has_a_row_a_node_and_fits_a_terminal():
    lines = drawn(nodes_table(swarm(), frozenset({"node-3"})))
    assert lines[0].split() == [
        "node",
        "round",
        "loss",
        "eval",
        "tok/s",
        "sent",
        "recv",
        "peers",
        "acc",
        "rej",
        "arr",
        "util",
        "state",
    ]
    assert lines[1].split() == [
        "node-0",
        "6/10",
        "3.700",
        "2.500",
        "6.8k",
        "750",
        "kB",
        "2.2",
        "MB",
        "3",
        "18",
        "0",
        "97%",
        "94%",
        "running",
    ]
    assert lines[4].startswith("node-3*")
    assert max(map(len, lines)) <= 80


def test_the_view_shows_the_bar_the_time_left_and_what_went_wrong():
    nodes = swarm()
    nodes[1].state = "dead"
    text = "\n".join(drawn(swarm_view(nodes, now=1019.0, began=1000.0, notes=["node-1: ended early"])))
    assert "round 6/10" in text
    assert "a node sends 0.109 bits per parameter and inner step, 0.035 published" in text
    assert "19 s" in text
    assert "about 12 s left" in text
    assert "node-1: ended early" in text


def test_the_view_before_anything_happened():
    text = "\n".join(drawn(swarm_view([NodeProgress("node-0")], now=1.0, began=0.0)))
    assert "starting" in text
    assert "left" not in text


def test_the_view_of_nodes_that_are_all_paused_says_why():
    nodes = swarm()
    for node in nodes:
        node.paused = "load: others use 80% of the processor"
    text = "\n".join(drawn(swarm_view(nodes, now=1019.0, began=1000.0)))
    assert "round 6/10" in text
    assert "paused by load" in text
    assert "left" not in text
    waiting = NodeProgress("node-0", state="running", paused="hours: it trains at 22:00-07:00, and it is 14:05")
    assert "paused by hours" in "\n".join(drawn(swarm_view([waiting], now=1.0, began=0.0)))


def test_a_dead_node_does_not_hold_the_swarms_round_back():
    nodes = swarm()
    for event in node_events(0, rounds=9):
        nodes[0].observe(typed(event))
    assert swarm_round(nodes) == 6
    for node in nodes[1:]:
        node.state = "dead"
    assert swarm_round(nodes) == 9


def test_plain_output_is_a_line_a_round_of_the_swarm():
    nodes, stream = [NodeProgress("node-0"), NodeProgress("node-1")], io.StringIO()
    streams = [list(node_events(index, rounds=3)) for index in range(2)]
    with PlainView(stream, nodes) as view:
        for events in zip(*streams, strict=True):
            for node, event in zip(nodes, events, strict=True):
                node.observe(typed(event))
                view.event(node.name, typed(event))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "2/10", "3/10"]
    assert "loss 4.600" in lines[2]
    assert "13.6k tokens/s" in lines[2]


def test_what_nodes_send_and_take_is_told_where_their_losses_are_withheld():
    node, stream = NodeProgress("node-0"), io.StringIO()
    with PlainView(stream, [node]) as view:
        for event in node_events(0, rounds=1):
            told = typed({**event, "train_loss": None} if "train_loss" in event else event)
            node.observe(told)
            view.event(node.name, told)
    assert node.train_loss is None
    assert "loss -" in stream.getvalue()
    assert " 0 tokens/s" not in stream.getvalue()


def test_the_last_line_waits_for_the_evaluations_of_the_last_round_and_no_stale_one_counts():
    nodes, stream = [NodeProgress("node-0"), NodeProgress("node-1")], io.StringIO()
    with PlainView(stream, nodes) as view:

        def tell(index: int, event: str, round_: int, **fields: object) -> None:
            it = {"ts": 1.0, "event": event, "round": round_, "rounds": 20, **fields}
            nodes[index].observe(typed(it))
            view.event(nodes[index].name, typed(it))

        for index in range(2):
            tell(index, "round", 10, train_loss=0.5)
            tell(index, "evaluated", 10, eval_loss=0.5 + index / 10)
        tell(0, "round", 20, train_loss=0.2)
        tell(0, "evaluated", 20, eval_loss=0.1)
        tell(1, "round", 20, train_loss=0.2)
        assert "20/20" not in stream.getvalue()
        assert common_evaluation(nodes) == (10, pytest.approx(0.55))
        tell(1, "evaluated", 20, eval_loss=0.2)
    assert "round 20/20  loss 0.200  eval 0.150" in stream.getvalue().splitlines()[-1]


def test_json_output_is_each_event_with_its_node():
    stream = io.StringIO()
    with JsonView(stream) as view:
        view.event("node-2", typed({"ts": 1.0, "event": "interrupted"}))
    told = {"ts": 1.0, "event": "interrupted", "summary": None, "node": "node-2"}
    assert json.loads(stream.getvalue()) == told


def test_the_live_view_draws_on_a_terminal_and_keeps_the_newest_notes():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    view = choose(swarm(), json=False, console=console)
    assert isinstance(view, LiveView)
    with view:
        view.event("node-0", typed({"ts": 1.0, "event": "warning", "message": "disk nearly full"}))
    assert "disk nearly full" in stream.getvalue()
    assert "node-3" in stream.getvalue()


def test_a_pipe_gets_plain_lines():
    assert isinstance(choose([], json=False, console=Console(file=io.StringIO())), PlainView)
    assert isinstance(choose([], json=True), JsonView)


def test_a_node_that_begins_with_another_model_is_named_and_a_ban_says_why():
    taker = NoteTaker()
    started = {"ts": 1.0, "event": "started"}
    assert taker.note("node-0", typed(started | {"genesis": "aa"})) is None
    assert taker.note("node-1", typed(started | {"genesis": "aa"})) is None
    assert taker.note("node-2", typed(started)) is None  # of an older release
    words = taker.note("node-3", typed(started | {"genesis": "bb"}))
    assert words is not None
    assert words.startswith("node-3: its initial model is another one than node-0's")
    banned = {"ts": 1.0, "event": "banned", "peer": PEER, "reason": "wrong_model", "detail": "another initial model"}
    assert str(note("node-0", typed(banned))).endswith(": wrong_model another initial model")


def test_only_what_matters_becomes_a_note():
    died = {"ts": 1.0, "event": "died", "code": -9, "why": "killed by SIGKILL", "tail": []}
    assert note("node-1", typed(died)) == "node-1: ended early, killed by SIGKILL; the others go on"
    assert note("node-1", typed({"ts": 1.0, "event": "banned", "peer": f"{PEER}3"})) == "node-1: banned ..Zf7M8cV3"
    assert note("node-1", typed(round_event(1, ts=1.0))) is None


def test_a_line_on_a_terminal_does_nothing_to_it():
    console = Console(file=io.StringIO(), width=80)
    LineSink(console)(said("warning", message="a\x1b[2J\x1b]0;owned\x07\u202e[b]\nsecond"))
    assert console.file.getvalue().endswith("  a.[2J.]0;owned.[b]\nsecond\n"), repr(console.file.getvalue())


def test_a_node_on_a_terminal_tells_its_story_and_the_join_line_is_whole():
    stream = io.StringIO()
    sink = LineSink(Console(file=stream, width=40))
    command = f"p2ptrain node --peer /ip4/192.168.1.4/tcp/43211/p2p/{PEER}0 --set task.size=micro"
    for event in node_events(0, rounds=2):
        sink(typed(event))
    sink(typed({"ts": 1.0, "event": "join", "command": command}))
    sink(typed({"ts": 1.0, "event": "rejected", "peer": f"{PEER}1", "reason": "nonfinite", "detail": "[/bold]"}))
    sink(typed({"ts": 1.0, "event": "dial_failed", "peer": f"{PEER}2", "detail": "/ip4/10.0.0.9/tcp/4001: refused"}))
    sink(typed({"ts": 1.0, "event": "equivocation", "peer": f"{PEER}1", "reason": "equivocation", "detail": ""}))
    sink(typed({"ts": 1.0, "event": "joined", "round": 7, "donors": 1}))
    sink(typed({"ts": 1.0, "event": "warning"}))
    sink(
        typed(
            {"ts": 1.0, "event": "finished", "summary": {"eval_loss_first": 5.5, "eval_loss_last": 2.5, "wall_s": 60}}
        )
    )
    shown = stream.getvalue()
    assert f"  {command}\n" in shown
    assert "459,776 parameters on cpu" in shown
    assert "round 2/10  loss 4.900" in shown
    assert "nonfinite [/bold]" in shown
    assert "cannot reach ..Zf7M8cV2: /ip4/10.0.0.9/tcp/4001: refused\n" in shown
    assert "..Zf7M8cV1 signed two different updates in one place\n" in shown
    assert "joined at round 7 with the model of 1 neighbour\n" in shown
    assert "finished  eval loss 5.500 -> 2.500  in 1 min 00 s" in shown


def test_the_end_that_is_foretold_is_without_the_pauses_of_the_rounds_before():
    (node,) = swarm(1, rounds=4)
    at, left = node.last_round_at, remaining_s([node], node.last_round_at)
    assert left is not None
    node.observe(typed({"ts": at + 5000.0, "event": "unpaused", "reason": "hours", "seconds": 5000.0}))
    assert remaining_s([node], at + 5000.0) == pytest.approx(left), "nothing was done meanwhile"
    each = left / (node.rounds - node.rounds_done)
    node.observe(typed(round_event(5, ts=at + 5000.0 + each)))
    assert remaining_s([node], node.last_round_at) == pytest.approx(left - each)


def test_a_process_that_was_given_more_rounds_is_not_said_to_be_at_the_last():
    (node,) = swarm(1, rounds=10)
    assert node.rounds_done == node.rounds == 10
    node.observe(typed({"ts": 1500.0, "event": "finished", "summary": {}}))
    node.observe(typed(next(node_events(0, rounds=0)) | {"ts": 2000.0}))
    assert (node.rounds_done, node.rounds) == (10, 0)
    node.observe(typed({"ts": 2001.0, "event": "finished", "summary": {}}))
    assert (node.rounds_done, node.rounds) == (10, 10), "it had nothing to do"


@pytest.mark.parametrize("width", [36, 40, 50, 80])
def test_the_line_of_the_bar_is_one_line_with_whole_words(width):
    lines = drawn(swarm_view(swarm(2), now=1019.0, began=1000.0, width=width), width)
    (line,) = [each for each in lines if "round 6/10" in each]
    assert line.rstrip().endswith("left")
    assert "19 s" in line
