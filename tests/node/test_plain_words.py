"""What a healthy start prints, and what a person is told while something takes long."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typed_events import said, typed

from gossip.core.limits import PROTOCOL_VERSION
from node.cli.telling import Telling
from node.events.event_types import Interrupted
from node.events.lines import LineSink, describe
from node.events.progress import NodeProgress
from node.top.screen import screen
from node.top.source import Watched


def lines(event: dict[str, object]) -> str:
    return "\n".join(line.plain for line in describe(typed({"ts": 0.0, **event})))


def test_what_nobody_has_to_act_on_is_left_to_the_log() -> None:
    assert lines({"event": "rejected", "peer": "p", "reason": "replayed", "detail": "an old link of q"}) == ""
    assert lines({"event": "router", "message": "the router forwards no port by itself", "forwards": False}) == ""
    assert "forwards /ip4" in lines({"event": "router", "message": "the router forwards /ip4/x", "forwards": True})
    assert "forged" in lines({"event": "rejected", "peer": "p", "reason": "forged", "detail": "bad"})


def test_a_ban_says_why() -> None:
    words = lines({"event": "banned", "peer": "12D3", "reason": "wrong_model", "detail": "another initial model"})
    assert words.endswith("banned 12D3: wrong_model another initial model")


@pytest.mark.parametrize(("known", "runs", "says"), [(1, 1, "1 member that answers, in 1 run"), (2, 3, "in 3 runs")])
def test_one_is_not_told_as_several(known: int, runs: int, says: str) -> None:
    assert lines({"event": "members", "members_known": known, "runs": runs}).endswith(says)


def test_one_node_more_is_one_node() -> None:
    nodes = [Watched(NodeProgress(f"node-{number}")) for number in range(4)]
    for left_out in (1, 2):
        out = io.StringIO()
        height = 6 + len(nodes) - left_out  # the frame's lines, and so many rows
        Console(file=out, width=80).print(screen(nodes, now=0.0, width=80, height=height))
        assert f"and {left_out} node{'s' * (left_out > 1)} more" in out.getvalue()


def test_what_is_waited_for_is_a_line_at_once_where_there_is_no_terminal(capsys) -> None:
    with Telling("looking round") as tell:
        assert capsys.readouterr().err == "looking round\n"
        tell("asking peers")
    tell("too late")
    assert capsys.readouterr().err == "asking peers\n"
    with Telling("for nobody", quiet=True) as tell:
        tell("json")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_it_is_drawn_and_gone_at_the_end(monkeypatch) -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    with Telling("looking round") as tell:
        tell("asking [peers]")
    assert "asking [peers]" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # the line is erased


def test_a_node_that_waits_prints_who_is_awaited() -> None:
    out = io.StringIO()
    LineSink(Console(file=out, width=120))(said("waiting", message="waiting for 2 neighbours"))
    assert "waiting for 2 neighbours" in out.getvalue()


def test_the_operators_page_has_the_protocol_version_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    assert re.findall(r"protocol version \((\d+)\)", page) == [str(PROTOCOL_VERSION)]


@pytest.mark.parametrize(
    ("summary", "said_"),
    [
        ({"wall_s": 3.5, "rounds": 4}, "interrupted; the checkpoint is written"),
        ({"wall_s": 0.0, "rounds": 0}, "interrupted before training began; there was no model to keep"),
        ({}, "interrupted"),
    ],
)
def test_who_is_interrupted_is_told_of_a_checkpoint_only_where_there_is_one(
    summary: dict[str, object], said_: str
) -> None:
    (line,) = describe(Interrupted(summary=summary))
    assert line.plain.endswith(said_)


def test_the_last_line_names_no_held_out_loss_where_none_was_measured():
    (untold,) = describe(said("finished", summary={"wall_s": 3.0}))
    assert "finished  in 3 s" in untold.plain
    summary = {"wall_s": 3.0, "eval_loss_first": 2.0, "eval_loss_last": 1.0}
    (told,) = describe(said("finished", summary=summary))
    assert "finished  eval loss 2.000 -> 1.000  in 3 s" in told.plain
