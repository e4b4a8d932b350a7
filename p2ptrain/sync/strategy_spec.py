"""A sync strategy as a user chooses it: how it is put together, and the defaults that belong to it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import torch

from p2ptrain.inner.inner_state import Wanted
from p2ptrain.privacy.noise_shares import NoiseShares
from p2ptrain.sync.base import GradientStrategy, SyncStrategy

if TYPE_CHECKING:
    from p2ptrain.sync.sync_config import SyncConfig

S = TypeVar("S", covariant=True)
Build = Callable[["SyncConfig", torch.Tensor, str], S]
"""From a checked configuration, the genesis model (d,) and own id."""


GOSSIP: Final = "gossip"
ALLREDUCE: Final = "allreduce"
SECURE: Final = "secure"


def no_run_key(config: "SyncConfig") -> str:
    """Default run key: members may differ in their [sync], as every message names its codec."""
    return ""


def anything_goes(config: "SyncConfig") -> None:
    """Default check: accepts every combination."""


@dataclass(frozen=True, kw_only=True)
class StrategySpec:
    """Registered as a function that returns it: `SYNC_STRATEGIES.register("mine")(method)`, or an entry point.

    The function's keyword parameters are the strategy's options, and it refuses values that cannot be. The fields are
    defaults: what a user sets in [sync] comes before them.
    """

    name: str
    models: Build[SyncStrategy] | None = None
    """Averages models, once a round: what a node runs."""
    gradients: Build[GradientStrategy] | None = None
    """Averages gradients, at every step: for drivers that stop between a trainer's two half steps."""
    averager: str = GOSSIP
    """What closes its rounds with others (node/training/averagers). `ALLREDUCE`: what `models` makes is an
    AllReduceStrategy. `SECURE`: a SecureStrategy."""
    run_key: Callable[["SyncConfig"], str] = no_run_key
    """What else, as text, all members must have alike to take part in one run: it goes into the run's id."""
    compressor: str = "q2"
    codec_options: Mapping[str, object] = field(default_factory=dict)
    """For its last part, where that is the one used, whatever stages are before it."""
    aggregator: str = "trimmed_mean"
    f: int = 1
    outer: str = "average"
    turn: int = 1
    """Rounds from one outer step of a parameter to its next one."""
    staleness_exponent: float = 0.5
    vectors: int = 0
    """How many fp32 vectors of the model's size it holds beside anchor, estimates and what the outer optimizer
    remembers."""
    wants: Collection[Wanted] = ()
    """What it wants of a round's steps beside the model. Where anything: `models` makes one that `TakesInnerState`."""
    steps_anchor: bool = False
    """Whether `models` makes a `StepsAnchor`: it wants the inner optimizer."""
    ends_at_anchor: bool = False
    """Whether a closed round takes the model to the anchor, so that what it then moves are own steps. What `models`
    makes then is a `HasAnchor`, whose rounds have a `snapshot_d`: a step normalization wants both."""
    draws_partners: bool = False
    """Whether two members that average work out alike that they do, so that none may pass over the other."""
    local_rate: float = 1.0
    """Factor on the learning rate of a trainer's own steps."""
    noise_shares: NoiseShares | None = None
    """The noise that its members share out, so that the sums of their moves tell little of one; None: there is
    none."""
    takes_layers: bool = False
    """Whether `models` makes a `Layered`: its updates may have refinements."""
    check: Callable[["SyncConfig"], None] = anything_goes
    """ValueError, in one line, on a combination that cannot work."""
