"""What is left of the output when its reader goes away: nothing, and no error either."""

import io
import os
import subprocess
import sys

import pytest
from streams_harness import gone
from swarm_story import round_event
from typed_events import typed

from node.events.log import JsonSink
from node.events.progress import NodeProgress
from node.system.safe_io import reader_is_gone, say
from node.up.view import JsonView, PlainView

SPEAKER = """
import sys
from node.events.lines import LastingConsole
from node.system.safe_io import reader_is_gone, say
speak = {"say": lambda line: say(sys.stdout, line), "console": LastingConsole().print}[sys.argv[1]]
sys.stdin.read()
for number in range(3):
    speak(f"line {number}\\n")
print("the end", flush=True)
sys.exit(7)
"""


def test_a_stream_with_a_reader_gets_every_line():
    stream = io.StringIO()
    assert say(stream, "one\n")
    assert say(stream, "two\n")
    assert stream.getvalue() == "one\ntwo\n"


def test_a_stream_without_one_falls_silent():
    with gone() as stream:
        assert not say(stream, "lost\n")
        assert say(stream, "nowhere\n"), "on the null device by now"
    assert not say(stream, "closed\n")


def test_views_and_sinks_fall_silent():
    node = NodeProgress("node-0")
    node.observe(typed(round_event(1, ts=1.0)))
    for make in (JsonView, lambda stream: PlainView(stream, [node])):
        with gone() as stream, make(stream) as view:
            for done in (1, 2):
                view.event("node-0", typed(round_event(done, ts=1.0)))
    with gone() as stream:
        sink = JsonSink(stream)
        sink(typed(round_event(1, ts=1.0)))
        sink(typed(round_event(2, ts=1.0)))


@pytest.mark.slow
def test_a_process_whose_reader_is_gone_ends_as_it_meant_to():
    for how in ("say", "console"):
        with subprocess.Popen(
            [sys.executable, "-c", SPEAKER, how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            child.stdout.close()
            child.stdin.close()
            assert child.stderr.read() == b""
            assert child.wait() == 7


def test_a_reader_that_is_gone_is_noticed_without_a_word():
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        assert not reader_is_gone(stream)
        os.close(read)
        assert reader_is_gone(stream)
    assert not reader_is_gone(io.StringIO())
