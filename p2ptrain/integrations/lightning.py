"""`SwarmCallback`: the Trainer of Lightning trains together with others.

    from p2ptrain.integrations.lightning import SwarmCallback
    Trainer(..., callbacks=[SwarmCallback(swarm="invite.txt", run_dir="runs/mine")]).fit(module)

The module stays as it is. The swarm is joined when training begins and left when it ends; its state lies in Lightning's
own checkpoints, and `fit(module, ckpt_path=...)` goes on from it.
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from node.system.errors import UsageError
from node.system.run_dir import CHECKPOINTS
from p2ptrain.integrations.swarm import Swarm, join


class SwarmCallback(Callback):  # type: ignore[misc]  # lightning is not read by the type checker
    """Trains together with others. Takes the keywords of `p2ptrain.join`, all but model and optimizer. Give `run_dir`
    to be able to resume: it has the node's key."""

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords
        self._given: dict[str, Any] | None = None
        self._left: dict[str, Any] | None = None
        self.swarm: Swarm | None = None
        """The swarm, while training goes on; None before and after."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join, once Lightning has loaded its checkpoint."""
        if trainer.world_size > 1:
            raise UsageError(
                f"SwarmCallback is for one process, and this training has {trainer.world_size}",
                "use p2ptrain.join around a loop of your own under torchrun, or start a Trainer a member",
            )
        if len(trainer.optimizers) != 1:
            raise UsageError(
                f"the module has {len(trainer.optimizers)} optimizers, and which one counts steps cannot be told",
                "use p2ptrain.join without an optimizer, and call swarm.step() in training_step",
            )
        settings = {"node.checkpoint_every": 0, **self._keywords.get("settings", {})}
        swarm = join(pl_module, trainer.optimizers[0], **{**self._keywords, "settings": settings})
        if self._given is not None:
            swarm.load_state_dict(self._given)
        elif trainer.global_step == 0 and (swarm.run_dir / CHECKPOINTS).is_dir():
            raise UsageError(
                f"{swarm.run_dir} has the end of a run, and this training begins anew",
                "resume it with fit(ckpt_path=...), or give another run_dir",
            )
        elif trainer.global_step:
            swarm.begin_anew()
        self.swarm = swarm.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass the loss on to those who watch the node. The optimizer's hook has counted the step."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.swarm is not None and loss is not None:
            self.swarm.tell(loss=float(loss))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave, with a last round for the steps since the one before."""
        self._close(cut_short=False)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave at once, with the model saved."""
        self._close(cut_short=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave, where nothing has before."""
        self._close(cut_short=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the swarm's state, for Lightning's checkpoint."""
        found = self._left if self.swarm is None else self.swarm.state_dict()
        return {} if found is None else found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the swarm's state from Lightning's checkpoint."""
        self._given = state_dict or None

    def _close(self, *, cut_short: bool) -> None:
        swarm, self.swarm = self.swarm, None
        if swarm is not None:
            self._left = swarm.leave(cut_short=cut_short)
