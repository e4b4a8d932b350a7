"""hivemind's Optimizer with local updates: a host trains by itself, and all average their parameters, in fp16, once in
so many examples, in the background. Of its modes the nearest to ours: waiting for an all-reduce at every step it would
be slower than DDP on each link.

Run by a Python that has hivemind, which no other Python of the race needs.
"""

import importlib
import json
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from gossip.core.atomic_file import write_atomic
from node.bench.race.host import adamw
from node.bench.race.spec import HostPlan
from p2ptrain.training.train_config import lr_at

PEERS: Final = "hivemind-peers.json"
"""Where the first host's process tells the others its addresses."""
MATCHMAKING_S: Final = 3.0
"""Its documentation: 3 to 5 s for small local runs."""
AVERAGING_S: Final = 120.0
"""Ample for 2 MB on the slowest link."""


class HivemindStepper:
    """A local step; its Optimizer averages by itself."""

    def __init__(self, plan: HostPlan, model: nn.Module) -> None:
        hivemind = importlib.import_module("hivemind")
        self._model = model
        self._clip_norm = plan.spec.train().clip_norm
        self._optimizer = _optimizer(hivemind, _meet(hivemind, plan), plan, model)

    def step(self, loss: Callable[[nn.Module], torch.Tensor], rate: float) -> None:
        """Do one step. `rate` is not used: hivemind's scheduler sets it once an epoch, as it must be alike at all."""
        self._optimizer.zero_grad()
        loss(self._model).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._optimizer.step()


def stepper(plan: HostPlan, model: nn.Module) -> HivemindStepper:
    """Meet the other hosts; return what trains with them."""
    return HivemindStepper(plan, model)


def _meet(hivemind: Any, plan: HostPlan) -> Any:
    """The first host's table is the one that the others know."""
    told = plan.folder.parent / PEERS
    listen = [f"/ip4/{plan.own_address}/tcp/0"]
    if plan.rank == 0:
        dht = hivemind.DHT(start=True, host_maddrs=listen)
        write_atomic(told, json.dumps([str(address) for address in dht.get_visible_maddrs()]).encode())
        return dht
    while not told.exists():
        time.sleep(0.1)
    return hivemind.DHT(start=True, host_maddrs=listen, initial_peers=json.loads(told.read_text()))


def _optimizer(hivemind: Any, dht: Any, plan: HostPlan, model: nn.Module) -> Any:
    spec, every = plan.spec, int(plan.options["inner_steps"])
    config = spec.train()

    def share(epoch: int) -> float:
        """Of the peak rate, half-way through an epoch of `every` steps."""
        return lr_at(epoch * every + every // 2, spec.steps, config) / spec.learning_rate

    own = adamw(model, spec.learning_rate)
    settings = {key: value for key, value in own.defaults.items() if key in ("lr", "betas", "eps")}
    return hivemind.Optimizer(
        dht=dht,
        run_id="race",
        params=[{"params": group["params"], "weight_decay": group["weight_decay"]} for group in own.param_groups],
        optimizer=lambda groups: torch.optim.AdamW(groups, **settings),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, share),
        batch_size_per_step=spec.batch,
        target_batch_size=spec.batch * spec.hosts * every,
        use_local_updates=True,
        offload_optimizer=False,
        state_averaging_compression=hivemind.compression.Float16Compression(),
        matchmaking_time=MATCHMAKING_S,
        averaging_timeout=AVERAGING_S,
    )
