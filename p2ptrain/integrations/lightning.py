"""`SwarmCallback`: the Trainer of Lightning trains together with others.

    from p2ptrain.integrations.lightning import SwarmCallback
    Trainer(..., callbacks=[SwarmCallback(swarm="invite.txt", run_dir="runs/mine")]).fit(module)

The module stays as it is; with `strategy="ddp"` the processes are one member. The swarm is joined when training begins
and left when it ends; its state lies in Lightning's own checkpoints, and `fit(module, ckpt_path=...)` goes on from it.
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from node.system.errors import UsageError
from p2ptrain.integrations.swarm import Swarm
from p2ptrain.integrations.trainer_swarm import TrainerSwarm


class SwarmCallback(Callback):  # type: ignore[misc]  # lightning is not read by the type checker
    """Trains together with others. Takes the keywords of `p2ptrain.join`, all but model and optimizer. Give `run_dir`
    to be able to resume: it has the node's key."""

    def __init__(self, **keywords: Any) -> None:
        self._training = TrainerSwarm(keywords, to_resume="fit(ckpt_path=...)")
        self._given: dict[str, Any] | None = None

    @property
    def swarm(self) -> Swarm | None:
        """The swarm, while training goes on; None before and after."""
        return self._training.swarm

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join, once Lightning has loaded its checkpoint."""
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            how = type(trainer.strategy).__name__
            raise UsageError(
                f"SwarmCallback wants the whole model in each process, and {how} may shard it",
                "train with strategy='ddp', or on one device",
            )
        if len(trainer.optimizers) != 1:
            raise UsageError(
                f"the module has {len(trainer.optimizers)} optimizers, and which one counts steps cannot be told",
                "use p2ptrain.join without an optimizer, and call swarm.step() in training_step",
            )
        given, self._given = self._given, None
        self._training.begin(
            trainer.strategy.model,  # in its DDP wrapper, where there is one
            trainer.optimizers[0],
            lambda: given or (self.state_dict() if trainer.global_step else {}),  # or this fit goes on from the last
            global_step=trainer.global_step,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass the loss on to those who watch the node. The optimizer's hook has counted the step. Training ends once
        the budget of privacy is spent."""
        trainer.should_stop = trainer.should_stop or self._training.budget_spent
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._training.tell(float(loss))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave, with a last round for the steps since the one before."""
        self._training.leave(cut_short=False)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave at once, with the model saved."""
        self._training.leave(cut_short=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave, where nothing has before."""
        self._training.leave(cut_short=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the swarm's state, for Lightning's checkpoint."""
        return self._training.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the swarm's state from Lightning's checkpoint."""
        self._given = state_dict or None
