"""What a node that is interrupted does at once, and not one after the other."""

import signal

import trio
import trio.testing

from node.config.schema import load
from node.events.log import EventLog
from node.roles import trainer
from node.system.errors import EXIT_INTERRUPTED

PATIENCE_S = 10.0


async def test_the_router_is_told_beside_the_goodbye(tmp_path, monkeypatch):
    """Ctrl-C's five seconds are over when the goodbye, the checkpoint and the closing have had theirs."""
    told_at_stop = trio.Event()

    class Mapper:
        async def run(self):
            try:
                await trio.sleep_forever()
            finally:
                told_at_stop.set()

    async def live(node, *, started, stop, **_):
        await started()
        await trio.testing.wait_all_tasks_blocked()
        assert not told_at_stop.is_set()
        signal.raise_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE_S):
            await stop.wait()
            await told_at_stop.wait()  # while the node is still busy ending

    monkeypatch.setattr(trainer, "live", live)
    monkeypatch.setattr(trainer, "mapper_for", lambda *_, **__: Mapper())
    monkeypatch.setattr(trainer, "announce_start", lambda *_: None)
    monkeypatch.setattr(trainer, "finish", lambda *_, **__: None)
    monkeypatch.setattr(trainer.gc_tuning, "running", lambda: None)
    config = load(sets=["task.name=digits", "node.metrics_port=-1"])
    emit = EventLog(tmp_path / "events.jsonl")
    try:
        assert await trainer.run(config, node_dir=tmp_path, emit=emit) == EXIT_INTERRUPTED
    finally:
        emit.close()
