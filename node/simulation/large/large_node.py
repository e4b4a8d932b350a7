"""One node of a large simulation: where it is in its run, and what it has done."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from gossip.core.config import GossipConfig
from gossip.core.ids import PeerId
from gossip.updates.rounds import LearnedDeadline
from node.config.schema import Config
from node.simulation.large.payload_times import Receiver
from node.simulation.observations import Observations
from node.simulation.scenario import DeviceClass, LinkClass, NodeGroup
from node.training.run_state import CATCH_UP_FACTOR
from p2ptrain.sync import SyncStrategy


@dataclass
class OpenRound:
    """A round that is being closed, beside the steps of the next one."""

    began_s: float
    ends_s: float
    """Its deadline."""
    theta_d: torch.Tensor
    """The model at the end of its phase."""


@dataclass(eq=False, kw_only=True)
class LargeNode:
    """A node. Rows of the swarm's matrices are its `index`."""

    index: int
    name: str
    group: NodeGroup
    config: Config
    region: str
    device: DeviceClass
    link: LinkClass
    sync: SyncStrategy
    told: Observations
    rng: random.Random
    lied: bool = False
    withstands: bool = True
    """Whether rounds of enough members withstand the liars that its configuration has."""

    present: bool = False
    started: bool = False
    """Whether it has ever been there."""
    returns: bool = False
    """Whether it has come late, or is back, and has not looked around yet."""
    finished: bool = False
    round: int = 0
    """The round that is trained, or being closed."""
    open: OpenRound | None = None
    steps: int = 0
    """Of the phase that is trained."""
    global_step: int = 0
    step_s: float = 0.0
    """How long the step takes that it takes now."""
    next_step_s: float = math.inf
    """When that one is done; infinite: it takes none."""
    announced: int | None = None
    """The newest round that it has published."""
    announced_s: float | None = None
    """When that was."""
    published: int = 1
    """The place in its chain of the next link; the base has the first."""
    arrived: int = -1
    """The newest round whose payload its neighbours have; -1: the base of its chain."""
    chain: int = 0
    """Which of its chains that is of: payloads of an earlier one are dropped."""
    up_free_s: float = 0.0
    """When its uplink has sent all that was asked for."""
    neighbours: frozenset[int] = frozenset()
    around: Sequence["LargeNode"] = ()
    """The neighbours, in order."""
    around_ids: Sequence[PeerId] = ()
    """Their names."""
    stood_with: set[PeerId] = field(default_factory=set)
    """Members of rounds that withstood the liars. All of them: nobody has more neighbours than its ring gives it."""
    receivers: Sequence[Receiver] = ()
    """What a payload's way to each of them is."""
    corrections: list[torch.Tensor] = field(default_factory=list)
    """Of closed rounds, to be added before the next step."""
    exchange_s: float | None = None
    """How long its newest payload took to reach all of its neighbours."""
    message_bytes: int = 0
    """Of its newest payload."""
    payload_bytes: int = 0
    """Sent of payloads and models."""
    bytes_sent: int = 0
    """All that it sent, once the simulation is over."""
    loss_sum: float = 0.0
    """Of the training losses of the steps since its newest closed round."""
    loss_steps: int = 0
    """How many these were."""
    told_s: float = 0.0
    """When it closed its newest round, or started."""
    busy_s: float = 0.0
    """Spent in steps."""
    here_s: float = 0.0
    """Spent training, or waiting to."""
    since_s: float = 0.0
    """When it was there from, where it is."""
    counted: bool = False
    """Whether it has finished, and its time counts no more."""
    slow_until_s: float = 0.0
    next_slow_s: float = math.inf
    round_factor: float = 1.0
    """On all steps of the round that it trains."""
    starts: int = 0
    error: None = None

    def __post_init__(self) -> None:
        network = self.config.network
        self.deadline = LearnedDeadline(
            initial=network.initial_deadline_s, least=network.min_deadline_s, k=GossipConfig.deadline_k
        )
        if self.device.slow_every_s is not None:
            self.next_slow_s = self.rng.expovariate(1 / self.device.slow_every_s)

    @property
    def peer_id(self) -> str:
        """Return its name: nobody signs anything here."""
        return self.name

    @property
    def trained(self) -> bool:
        """Return whether no phase is left to train: the last round is trained, or being closed."""
        return self.round + (self.open is not None) >= self.config.train.rounds

    @property
    def over(self) -> bool:
        """Return whether it has come to the end of the run."""
        return self.finished

    def enough(self, find_behind: Callable[[], int]) -> bool:
        """Return whether the phase may end, as `RunState.enough` says: its steps are done, fewer where the node is
        behind by so many rounds, and the round before it is closed. It is asked how many only where that matters."""
        if self.open is not None:
            return False
        if self.steps >= self.planned:
            return True
        behind = find_behind()
        share = CATCH_UP_FACTOR**behind if behind >= self.config.node.catch_up_rounds else 1.0
        return self.steps >= math.ceil(share * self.planned)

    @property
    def planned(self) -> int:
        """Return the steps of the phase that is trained."""
        return self.config.train.steps_in(self.round + (self.open is not None))

    @property
    def schedule_step(self) -> int:
        """Return the place in the learning rate's schedule, which follows the rounds."""
        return self.config.train.first_step(self.round + (self.open is not None)) + min(self.steps, self.planned - 1)

    @property
    def rate_factor(self) -> float:
        """Return the factor on the learning rate: phases that an exchange lengthens move no further."""
        return min(1.0, self.planned / (self.steps + 1))

    def begin_step(self, now: float) -> None:
        """Begin the next step at this time: it takes what the device's draws say."""
        if now >= self.next_slow_s and self.device.slow_every_s is not None:
            self.slow_until_s = now + self.rng.expovariate(1 / self.device.slow_for_s)
            self.next_slow_s = self.slow_until_s + self.rng.expovariate(1 / self.device.slow_every_s)
        if self.steps == 0 and self.device.round_sigma:
            self.round_factor = self.rng.lognormvariate(0.0, self.device.round_sigma)
        slow = self.round_factor * (self.device.slow_factor if now < self.slow_until_s else 1.0)
        self.step_s = self.device.step_s * slow * self.rng.lognormvariate(0.0, self.device.sigma)
        self.next_step_s = now + self.step_s

    def pause(self, now: float) -> None:
        """It trains no more, for good or until it is back."""
        self.next_step_s = math.inf
        if not self.counted:
            self.here_s += now - self.since_s
        self.since_s, self.counted = now, self.finished
