"""Sync strategies: the learning rule between two inner phases. `base.py` has their contract.

| name           | averages with          | what travels          | outer step       | withstands liars |
|----------------|------------------------|-----------------------|------------------|------------------|
| tracked_gossip | all neighbours         | q2                    | average          | f = 1            |
| noloco         | a partner, by exchange | fp16 models           | noloco           | no               |
| diloco         | all neighbours         | fp32                  | nesterov         | when told to     |
| sparse_loco    | all neighbours         | topk at 1/64          | average          | when told to     |
| streaming      | all neighbours         | a fragment, in int4   | nesterov         | when told to     |
| moshpit        | a group, by exchange   | fp16 models           | average          | but for owners   |
| allreduce      | all, by exchange       | q2 differences        | average          | but for owners   |
| mime           | all, by exchange       | gradients, rotated+q2 |                  | but for owners   |
| des_loc        | all, by exchange       | q2, int4 moments      | average          | but for owners   |
| sparta         | all, by exchange       | q2 fragments, values  | average          | but for owners   |
| secure_average | all, by secure sums    | masked whole numbers  | average          | across groups    |
| async          | all neighbours         | int4                  | delayed_nesterov | when told to     |
| heloco         | all neighbours         | int4                  | nesterov         | when told to     |
| gossip_pga     | a partner, or all      | int4, or fp32         | average          | no               |
| gradient       | all, gradients         | q2, at every step     |                  | when told to     |

What travels, the aggregator (mean but for tracked_gossip) and the outer step are defaults that [sync] may override.
"""

from collections.abc import Sequence

import torch

from p2ptrain.inner.base import MomentBuffer
from p2ptrain.sync import (
    allreduce,
    asynchronous,
    des_loc,
    diloco,
    gossip_pga,
    gradient,
    heloco,
    mime,
    moshpit,
    noloco,
    secure_average,
    sparse_loco,
    sparta,
    streaming,
    tracked_gossip,
)
from p2ptrain.sync.base import (
    AllReduceStrategy,
    AnchorSteps,
    AveragesMoments,
    GradientStrategy,
    Message,
    Reduced,
    RoundResult,
    SharesEstimates,
    StepsAnchor,
    SyncStrategy,
    TakesInnerState,
    UpdateEncoder,
)
from p2ptrain.sync.byzantine import Byzantine, liar_of
from p2ptrain.sync.group_sum import GroupSum
from p2ptrain.sync.loss_scorer import Judge, Scored
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.sync.secure_average import SecureStrategy
from p2ptrain.sync.strategy_spec import ALLREDUCE, GOSSIP, SECURE, StrategySpec
from p2ptrain.sync.sync_config import SYNC_STRATEGIES, SyncConfig
from p2ptrain.sync.vectors import check_model

__all__ = [
    "ALLREDUCE",
    "GOSSIP",
    "SECURE",
    "SYNC_STRATEGIES",
    "AllReduceStrategy",
    "AnchorSteps",
    "AveragesMoments",
    "Byzantine",
    "GradientStrategy",
    "GroupSum",
    "Message",
    "ModelAveraging",
    "Reduced",
    "RoundResult",
    "SecureStrategy",
    "SharesEstimates",
    "StepsAnchor",
    "StrategySpec",
    "SyncConfig",
    "SyncStrategy",
    "TakesInnerState",
    "UpdateEncoder",
    "averages_gradients",
    "build",
    "build_gradient",
    "liar_of",
]

for _strategy in (
    tracked_gossip,
    noloco,
    diloco,
    sparse_loco,
    streaming,
    moshpit,
    allreduce,
    mime,
    des_loc,
    sparta,
    secure_average,
    asynchronous,
    heloco,
    gossip_pga,
    gradient,
):
    SYNC_STRATEGIES.register(_strategy.method().name)(_strategy.method)


def averages_gradients(strategy: str) -> bool:
    """Return whether a strategy is for `build_gradient` and not for `build`."""
    return SYNC_STRATEGIES.get(strategy).models is None


def build(
    config: SyncConfig,
    genesis_d: torch.Tensor,
    own: str = "",
    *,
    judge: Judge | None = None,
    rounds: int | None = None,
    largest_gamma: float = 1.0,
    steps: AnchorSteps | None = None,
    moments: Sequence[MomentBuffer] = (),
) -> SyncStrategy:
    """Return the configured strategy of the node `own`, for a model that starts as `genesis_d`, fp32 (d,) on the CPU.

    `rounds` of the run decide about outer momentum where none is set; None: as many as the papers want.
    `largest_gamma` bounds the consensus step, where the configuration does not set one.
    `steps` are the inner optimizer's on the swarm's model, for a strategy that `steps_anchor`: it closes no round
    without.
    `moments` are the inner optimizer's, for a strategy that averages them too; without any it averages models alone.
    `judge` is the loss of a model on the node's own data, for an aggregator that tries models (zeno).
    ValueError if the model is not such, where an aggregator needs a judge and there is none, and for a strategy that
    averages gradients: a node cannot run it.
    """
    check_model(genesis_d)
    config = config if rounds is None else config.for_rounds(rounds)
    method = config.spec()
    if method.models is None:
        raise ValueError(
            f"{method.name} averages at every step, for which a node's training would wait: "
            "use tracked_gossip with train.inner_steps = 1, or `p2ptrain bench strategies` to measure it"
        )
    strategy = method.models(config, genesis_d, own)
    if isinstance(strategy, ModelAveraging):
        strategy.largest_gamma = largest_gamma
    if steps is not None and isinstance(strategy, StepsAnchor):
        strategy.steps_by(steps)
    if moments and isinstance(strategy, AveragesMoments):
        strategy.average_moments(moments)
    if config.needs_judge:
        if judge is None or not isinstance(strategy, Scored):
            raise ValueError(f"{config.aggregator} tries models on local data: {method.name} was given no judge")
        strategy.judge_by(judge)
    return strategy


def build_gradient(config: SyncConfig, genesis_d: torch.Tensor, own: str) -> GradientStrategy:
    """Return the configured strategy, one that averages gradients. ValueError for all others."""
    check_model(genesis_d)
    method = config.spec()
    if method.gradients is None:
        raise ValueError(f"{method.name} averages models, not gradients")
    return method.gradients(config, genesis_d, own)
