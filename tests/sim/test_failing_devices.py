"""What a node tells of a device without enough memory, and of one that is lost."""

from typing import Any

import pytest
import torch
import trio
from sim_swarm import Member, swarm
from torch import nn

from gossip.transport.memory.network import LinkQuality
from node.system.errors import EXIT_FAILED, translate
from p2ptrain import faults
from p2ptrain.tasks import Batch
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import Trainer
from p2ptrain.training.example_gradients import ExampleGradients, Gradients

LOST = "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported"


def failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Have `fails(examples)` called before each loss that is trained on."""
    loss = Digits.loss

    def loss_or_failure(self: Digits, model: nn.Module, batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled():
            fails(len(batch[1]))
        return loss(self, model, batch)

    monkeypatch.setattr(Digits, "loss", loss_or_failure)


async def test_a_batch_that_does_not_fit_is_told_of_once_and_the_run_goes_on(tmp_path, autojump_clock, monkeypatch):
    def room_for_four(examples: int) -> None:
        if examples > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    failing(monkeypatch, room_for_four)
    async with swarm(tmp_path) as members:
        member = await members.start("a", train={"rounds": 3, "inner_steps": 2})
        await members.finished()
    told = [each for each in member.told("warning") if each.get("about") == "micro_batch"]
    (warning,) = told
    assert "4 of a batch's 16 examples" in warning["message"]
    assert member.node.state.round == 3
    assert member.node.inner.trainer.skipped_steps == 0


async def test_of_private_steps_the_chunk_that_fits_is_told(tmp_path, autojump_clock, monkeypatch):
    gradients = ExampleGradients.__call__

    def room_for_four(self: ExampleGradients, batch: Batch) -> Gradients:
        if len(batch[1]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return gradients(self, batch)

    monkeypatch.setattr(ExampleGradients, "__call__", room_for_four)
    async with swarm(tmp_path) as members:
        private = {"privatizer": "example", "noise": 1.0, "clip": 1.0, "chunk": 32}
        member = await members.start("a", train={"rounds": 3, "inner_steps": 2}, privacy=private)
        await members.finished()
    (warning,) = [each for each in member.told("warning") if each.get("about") == "micro_batch"]
    assert "at most 4 of the examples that a step draws" in warning["message"]
    assert "privacy.chunk=4 says so" in warning["message"]
    assert member.node.state.round == 3


@pytest.mark.parametrize("kind", [torch.AcceleratorError, RuntimeError])
async def test_a_lost_device_ends_the_run_with_the_newest_checkpoint_and_a_goodbye(
    tmp_path, autojump_clock, monkeypatch, kind
):
    steps: list[int] = []
    async with swarm(tmp_path, keep_errors=True) as members:
        member = await members.start("a", train={"rounds": 6}, node={"checkpoint_every": 1})
        other = await members.start("b", train={"rounds": 6}, node={"checkpoint_every": 1})
        trainer = member.node.inner.trainer
        assert isinstance(trainer, Trainer)
        whole = trainer.task.loss

        def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
            if trainer.global_step >= 22 and torch.is_grad_enabled():
                steps.append(other.node.inner.steps)
                raise kind(LOST)
            return whole(model, batch)

        monkeypatch.setattr(trainer.task, "loss", loss)
        await members.finished()
    (warning,) = [each for each in member.told("warning") if each.get("about") == "device"]
    assert warning["message"].startswith("cpu was lost (CUDA error: unspecified launch failure): training has ended")
    assert member.error is not None
    error = translate(member.error)
    assert error.message.startswith("cpu was lost in round 4 (CUDA error: unspecified launch failure); the newest")
    assert error.message.endswith("round-00000004")
    assert "nvidia-smi" in error.hint
    assert "p2ptrain node --run-dir" in error.hint
    assert "\n" not in error.line()
    assert error.exit_code == EXIT_FAILED
    assert not member.told("finished")
    (lost,) = other.told("neighbour_lost")
    assert lost["detail"] == "it left"  # and nobody waited to find that out
    assert len(steps) == 1  # it is not tried again, with a smaller batch or otherwise
    assert other.node.inner.steps > steps[0]
    assert other.told("finished") or other.node.state.finished


class LostAfter:
    """Loses the device of a member in the step after so many phases: no loss is computed on it any more, nor is any
    model judged."""

    def __init__(self, member: Member, phases: int) -> None:
        trainer = member.node.inner.trainer
        assert isinstance(trainer, Trainer)
        self._state, self._phases, self._loss = member.node.state, phases, trainer.task.loss
        self.is_lost = False

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        trained = self._state.round + self._state.closing
        self.is_lost = self.is_lost or (trained >= self._phases and torch.is_grad_enabled())
        if self.is_lost:
            raise torch.AcceleratorError(LOST)
        return self._loss(model, batch)


async def test_the_round_before_a_loss_is_sent_closed_and_saved(tmp_path, autojump_clock, monkeypatch):
    """Its parameters and its optimizer's buffers are on the host by then, and the next step ends training."""
    async with swarm(tmp_path, keep_errors=True, link=LinkQuality(latency_s=0.05)) as members:
        settings = {"train": {"rounds": 6, "eval_every": 1}, "node": {"checkpoint_every": 1}}
        member = await members.start("a", **settings)
        other = await members.start("b", wait_for=1, **settings)
        monkeypatch.setattr(member.node.inner.trainer.task, "loss", LostAfter(member, 2))
        await members.finished("a")
        fetched = other.node.counts.deltas
        await members.finished("b")
    assert member.error is not None
    assert translate(member.error).message.endswith("round-00000002")
    assert [each["round"] for each in member.told("round")] == [1, 2]
    assert fetched == 2
    assert not member.told("diverged")
    assert "finished" in {each["event"] for each in other.events} or other.node.state.finished


async def test_who_fetches_from_a_node_without_a_device_is_waited_for(tmp_path, autojump_clock, monkeypatch):
    """The update of its last round is still on its way to a slow neighbour; Ctrl-C ends the wait."""
    fetched = {}
    for stopped in (False, True):
        folder = tmp_path / str(stopped)
        folder.mkdir()
        async with swarm(folder, keep_errors=True, link=LinkQuality(bytes_per_s=4e3)) as members:
            settings = {"train": {"rounds": 6}, "network": {"initial_deadline_s": 0.2}}
            member = await members.start("a", node={"linger_s": 20.0}, **settings)
            other = await members.start("b", wait_for=1, **settings)
            monkeypatch.setattr(member.node.inner.trainer.task, "loss", LostAfter(member, 1))
            while not member.node.state.device_lost:  # noqa: ASYNC110  # the clock is virtual
                await trio.sleep(0.05)
            if stopped:
                member.stop.set()
            await members.finished("a")
            fetched[stopped] = other.node.counts.deltas
            assert member.error is not None
            assert translate(member.error).message.endswith("no checkpoint was written before")  # nor after
    assert fetched == {False: 1, True: 0}


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("HIP error: unspecified launch failure"), True),
        (RuntimeError("unspecified launch failure"), False),  # of whom?
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),  # a wrong label, say
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (ValueError("CUDA error: unspecified launch failure"), False),
    ],
)
def test_what_says_that_a_device_is_lost(error: Exception, lost: bool) -> None:
    assert faults.is_device_lost(error) == lost
    shown = translate(ExceptionGroup("both", [KeyError("other"), error])).line()
    assert ("the device was lost" in shown) == lost
