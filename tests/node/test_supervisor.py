"""Process handling that a healthy node never shows: deaths, deafness, rubbish. Real swarms: tests/integration."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from streams_harness import gone

from node.config.schema import load
from node.events.event_types import Event, Started
from node.system.errors import RunError, describe_code
from node.system.signals import ONE_WISH_S
from node.up import supervisor
from node.up.plan import NodePlan, Plan, make_plan
from node.up.supervisor import Outcome, Supervisor, node_command
from node.up.view import JsonView

FAKE = Path(__file__).with_name("fake_node.py")


class Swarm:
    """A supervisor of fake nodes, and what it said."""

    def __init__(self, run_dir: Path, *behaviours: str) -> None:
        self.plan = make_plan(load(), run_dir=run_dir, nodes=len(behaviours), byzantine=0, cores=2)
        self.behaviours = dict(zip([node.name for node in self.plan.nodes], behaviours, strict=True))
        self.heard: list[tuple[str, Event]] = []
        self.supervisor = Supervisor(self.plan, self.hear, command=self.command)

    def command(self, plan: Plan, node: NodePlan) -> list[str]:
        return [sys.executable, str(FAKE), self.behaviours[node.name], node.name, str(plan.peers_file)]

    def events(self, kind: str) -> dict[str, Event]:
        return {name: event for name, event in self.heard if event.name == kind}

    def hear(self, name: str, event: Event) -> None:
        self.heard.append((name, event))
        if self.interrupting and len(self.events("started")) == len(self.behaviours):
            self.interrupting = False
            os.kill(os.getpid(), signal.SIGINT)

    async def run(self, *, interrupt: bool = False, grace_s: float = 5.0) -> Outcome:
        self.interrupting = interrupt
        with trio.fail_after(30):
            return await self.supervisor.run(stop_grace_s=grace_s)


async def test_nodes_learn_of_each_other_through_the_peers_file(tmp_path):
    swarm = Swarm(tmp_path, "meets", "meets")
    outcome = await swarm.run()
    assert [node.code for node in outcome.nodes] == [0, 0]
    met = swarm.events("finished")["node-0"].summary["met"]
    assert [address.rpartition("/")[2] for address in met] == ["node-0", "node-1"]
    assert load([tmp_path / "node-1" / "config.toml"]).node.shard_index == 1


async def test_a_death_is_told_with_its_last_words_and_the_rest_goes_on(tmp_path):
    swarm = Swarm(tmp_path, "dies", "rubbish")
    outcome = await swarm.run()
    died = swarm.events("died")["node-0"]
    assert (died.code, died.why) == (-9, "killed by SIGKILL")
    assert died.tail == ["Traceback: something broke"]
    assert [node.progress.state for node in outcome.nodes] == ["dead", "finished"]
    assert [node.plan.name for node in outcome.finished] == ["node-1"]


async def test_a_death_is_noticed_although_a_process_of_the_node_lives_on(tmp_path):
    swarm = Swarm(tmp_path, "leaves_a_child", "rubbish")
    try:
        outcome = await swarm.run()
    finally:
        os.kill(int((tmp_path / "node-0.child").read_text()), signal.SIGKILL)
    assert swarm.events("died")["node-0"].why == "killed by SIGKILL"
    assert [node.progress.state for node in outcome.nodes] == ["dead", "finished"]
    assert outcome.seconds < 10


async def test_what_goes_wrong_beside_the_nodes_costs_them_no_checkpoint(tmp_path):
    swarm = Swarm(tmp_path, "saves_long", "saves_long")

    def broken(name: str, event: Event) -> None:
        swarm.heard.append((name, event))
        if len(swarm.events("started")) == 2:
            raise ValueError("a fault of the view's")

    swarm.supervisor._listener = broken
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="of the view's"), flatten_subgroups=True):
        await swarm.run()
    codes = [node.process.returncode for node in swarm.supervisor.nodes if node.process is not None]
    assert codes == [130, 130], "stopped as by Ctrl-C, and not killed"


async def test_a_disk_that_takes_no_addresses_for_a_while_ends_no_node(tmp_path, monkeypatch):
    full = [True]
    write = supervisor.write_peers

    def write_peers(path: Path, addresses: Sequence[str]) -> None:
        if addresses and full[0]:
            raise RunError(f"cannot write {path}: No space left on device")
        write(path, addresses)

    monkeypatch.setattr(supervisor, "write_peers", write_peers)
    monkeypatch.setattr(supervisor, "HEARTBEAT_S", 0.2)
    swarm = Swarm(tmp_path, "meets", "meets")

    def hear(name: str, event: Event) -> None:
        swarm.heard.append((name, event))
        full[0] = len(swarm.events("started")) < 2

    swarm.supervisor._listener = hear
    outcome = await swarm.run()
    assert [node.code for node in outcome.nodes] == [0, 0]
    assert len(swarm.plan.peers_file.read_text().splitlines()) == 2, "written once there was room"
    warnings = [event.message for _, event in swarm.heard if event.name == "warning"]
    assert [message for message in warnings if "No space left" in message] == [
        f"the other nodes do not learn of this one yet: cannot write {swarm.plan.peers_file}: No space left on device"
    ]


async def test_a_node_whose_folder_was_removed_takes_no_other_along(tmp_path):
    swarm = Swarm(tmp_path, "loses_its_folder", "rubbish")
    outcome = await swarm.run()
    died = swarm.events("died")["node-0"]
    assert (died.why, died.tail) == ("exit code 1", [])
    assert [node.plan.name for node in outcome.finished] == ["node-1"]


async def test_who_has_finished_and_does_not_leave_is_ended(tmp_path, monkeypatch):
    swarm = Swarm(tmp_path, "stays")
    monkeypatch.setattr("node.up.supervisor.LEAVE_GRACE_S", 0.3 - swarm.plan.nodes[0].config.node.linger_s)
    outcome = await swarm.run()
    assert outcome.nodes[0].code == -signal.SIGKILL
    assert outcome.seconds < 10


async def test_a_disk_that_is_full_at_the_end_costs_no_other_node(tmp_path):
    swarm = Swarm(tmp_path, "rubbish", "rubbish")

    def full() -> None:
        raise RunError("cannot write targets.json: no space")

    def hear(name: str, event: Event) -> None:
        swarm.hear(name, event)
        if event.name == "finished" and len(swarm.events("started")) == 2:
            swarm.supervisor._write_targets = full

    swarm.supervisor._listener = hear
    outcome = await swarm.run()
    assert [node.code for node in outcome.nodes] == [0, 0]


async def test_a_failure_is_told_in_the_nodes_own_words(tmp_path):
    swarm = Swarm(tmp_path, "fails")
    outcome = await swarm.run()
    assert swarm.events("died")["node-0"].why == "no data"
    assert outcome.nodes[0].code == 2
    assert outcome.nodes[0].progress.state == "failed"


async def test_rubbish_on_stdout_is_passed_over(tmp_path):
    swarm = Swarm(tmp_path, "rubbish")
    outcome = await swarm.run()
    assert outcome.nodes[0].code == 0
    assert [event.name for _, event in swarm.heard] == ["started", "finished"]


async def test_ctrl_c_lets_nodes_say_goodbye(tmp_path):
    swarm = Swarm(tmp_path, "runs", "runs")
    outcome = await swarm.run(interrupt=True)
    assert outcome.interrupted
    assert [node.code for node in outcome.nodes] == [130, 130]
    assert [node.progress.state for node in outcome.nodes] == ["interrupted", "interrupted"]
    assert not swarm.events("died")


async def test_a_terminals_ctrl_c_reaches_no_node(tmp_path):
    swarm, sessions = Swarm(tmp_path, "runs"), list[int]()

    def look(name: str, event: Event) -> None:
        if isinstance(event, Started):
            sessions.append(os.getsid(event.pid))
            os.kill(os.getpid(), signal.SIGINT)

    swarm.supervisor = Supervisor(swarm.plan, look, command=swarm.command)
    await swarm.run()
    assert len(sessions) == 1
    assert os.getsid(0) not in sessions


async def test_ctrl_c_while_a_node_is_being_started_reaches_it(tmp_path):
    swarm = Swarm(tmp_path, "runs", "runs")
    command, swarm.interrupting = swarm.command, False

    def interrupted_command(plan: Plan, node: NodePlan) -> list[str]:
        if node.name == "node-1":
            os.kill(os.getpid(), signal.SIGINT)
        return command(plan, node)

    swarm.supervisor = Supervisor(swarm.plan, swarm.hear, command=interrupted_command)
    outcome = await swarm.run()
    assert outcome.interrupted
    assert -signal.SIGKILL not in [node.code for node in outcome.nodes], "nobody waited for them in vain"
    assert not swarm.events("died")


async def test_last_lines_are_read_after_the_end_of_a_node(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "READ_BYTES", 8)  # so that the end is known long before the last line
    swarm = Swarm(tmp_path, "fails")
    await swarm.run()
    assert swarm.events("failed")


async def test_who_does_not_listen_to_ctrl_c_is_killed(tmp_path):
    swarm = Swarm(tmp_path, "ignores_sigint", "runs")
    outcome = await swarm.run(interrupt=True, grace_s=0.5)
    assert [node.code for node in outcome.nodes] == [-9, 130]
    assert swarm.events("died")["node-0"].why == "killed by SIGKILL"
    assert outcome.seconds < 10


async def test_who_writes_a_large_checkpoint_has_the_time_for_it_and_says_so(tmp_path):
    swarm = Swarm(tmp_path, "saves_long", "runs")
    outcome = await swarm.run(interrupt=True, grace_s=0.3)
    assert [node.code for node in outcome.nodes] == [130, 130]
    told = swarm.events("warning")["node-0"].message
    assert told == "it has up to 51 s for its checkpoint of 2.5 GB; Ctrl-C again ends it without one"


async def test_asked_twice_it_is_not_waited_for(tmp_path):
    swarm = Swarm(tmp_path, "hangs_large")

    def again(name: str, event: Event) -> None:
        swarm.hear(name, event)
        if event.name == "warning":
            threading.Timer(ONE_WISH_S + 0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    swarm.supervisor._listener = again
    outcome = await swarm.run(interrupt=True, grace_s=0.3)
    assert outcome.nodes[0].code == -9
    assert outcome.seconds < 10


async def test_one_wish_that_comes_twice_costs_no_node_its_checkpoint(tmp_path):
    """`make` passes on the SIGTERM that the whole process group got."""
    swarm = Swarm(tmp_path, "saves_long")

    def again(name: str, event: Event) -> None:
        swarm.hear(name, event)
        if event.name == "warning":
            os.kill(os.getpid(), signal.SIGTERM)

    swarm.supervisor._listener = again
    outcome = await swarm.run(interrupt=True, grace_s=0.3)
    assert outcome.nodes[0].code == 130


async def test_a_stopped_process_is_ended_too(tmp_path):
    swarm = Swarm(tmp_path, "runs")

    def stop(name: str, event: Event) -> None:
        if event.name == "started":
            os.kill(event.pid, signal.SIGSTOP)
        swarm.hear(name, event)

    swarm.supervisor._listener = stop
    outcome = await swarm.run(interrupt=True, grace_s=0.3)
    assert outcome.nodes[0].code == -9


async def test_a_node_that_closes_its_stdout_is_waited_for(tmp_path):
    swarm = Swarm(tmp_path, "closes_stdout")
    outcome = await swarm.run(interrupt=True)
    assert outcome.nodes[0].code == 0


async def test_no_process_outlives_a_cancelled_supervisor(tmp_path):
    swarm = Swarm(tmp_path, "ignores_sigint")
    with trio.CancelScope() as scope:

        def cancel(name: str, event: Event) -> None:
            swarm.heard.append((name, event))
            scope.cancel()

        swarm.supervisor._listener = cancel
        await swarm.run()
    with suppress(ProcessLookupError):
        os.kill(swarm.events("started")["node-0"].pid, 0)
        pytest.fail("the node is still there")


async def test_prometheus_finds_the_nodes_but_not_those_that_have_finished(tmp_path):
    swarm = Swarm(tmp_path, "meets", "runs")
    seen = []

    def look(name: str, event: Event) -> None:
        if event.name == "started":
            seen.append(json.loads((tmp_path / "targets.json").read_text()))
        swarm.hear(name, event)

    async def interrupt_the_other() -> None:
        while swarm.supervisor.nodes[0].code is None:  # noqa: ASYNC110  # a node that ended well is no event
            await trio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    swarm.supervisor._listener = look
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt_the_other)
        outcome = await swarm.run()
    assert [node.code for node in outcome.nodes] == [0, 130]
    labels = {"swarm": "p2ptrain", "run": tmp_path.name}
    ours = [
        {"targets": [f"127.0.0.1:{9400 + index}"], "labels": {**labels, "node": f"node-{index}"}} for index in range(2)
    ]
    assert seen[-1] == ours
    assert json.loads((tmp_path / "targets.json").read_text()) == ours[1:]


async def test_a_view_whose_reader_is_gone_costs_no_node_its_goodbye(tmp_path):
    swarm = Swarm(tmp_path, "runs", "runs")
    with gone() as stream, JsonView(stream) as view:

        def show(name: str, event: Event) -> None:
            view.event(name, event)
            swarm.hear(name, event)

        swarm.supervisor._listener = show
        outcome = await swarm.run(interrupt=True)
    assert [node.code for node in outcome.nodes] == [130, 130]


def test_the_real_command_is_the_node_command(tmp_path):
    plan = make_plan(load(), run_dir=tmp_path, nodes=1, byzantine=0, cores=2)
    command = node_command(plan, plan.nodes[0])
    assert command[:4] == [sys.executable, "-m", "p2ptrain", "node"]
    assert command[-1] == str(tmp_path / "node-0" / "config.toml")


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "exit code 1"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99"), (None, "exit code None")],
)
def test_exit_codes_in_words(code, said):
    assert describe_code(code) == said


@pytest.mark.slow
def test_a_node_stops_when_its_supervisor_is_gone():
    """The child sleeps as a node works: for longer than the test, unless it is interrupted."""
    script = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "from node.cli.node_cmd import _end_with_parent\n_end_with_parent()\n"
        "try:\n    print('up', flush=True)\n    time.sleep(20)\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        child.stdin.close()
        assert child.stdout.read() == b"stopped\n"
