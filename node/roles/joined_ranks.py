"""One node for all ranks that train one model: rank 0 has it, the others follow.

Ranks hold equal models, and DDP keeps them so while each takes the same steps. What the swarm changes is changed in
rank 0's model, and handed on to the others between the same two steps: a word after some of the steps (one small
broadcast, that says how many steps the next is from here), and with a correction the parameters as well.

    rank 0   steps -> JoinedNode.step() -> parameters corrected? -> word, parameters -> next steps
    others   steps -> ------------------------------------------ <- word, parameters -> next steps

Where the model is sharded (FSDP2, tensor parallelism) rank 0 has a part of it alone. What its node asks of the whole is
then a word as well, an `Order` of sharded_model.py, which the others follow before they wait for the next word. The
vectors of its strategy lie in slices in all ranks, where the settings allow it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from node.config.schema import Config
from node.roles.joined import NodeNow
from node.system.errors import P2PTrainError, RunError, UsageError
from node.training.checkpoint import Checkpoint
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync.sliced_averaging import unit_of, whole_because
from p2ptrain.tasks import TaskError
from p2ptrain.training.sharded_model import Order, ShardedModel, ranks_of_shards
from p2ptrain.training.user_model import UserModel, torch_optimizer, unwrapped

LONGEST_WAIT: Final = timedelta(hours=1)
"""For rank 0's node, which may wait for neighbours before the first step. torch's own for gloo is half of it. Chosen.
"""


AS_MANY_STEPS: Final = "give all ranks as many batches: drop the last ones of those that have more"


class LoopNode(Protocol):
    """The node of a user's loop, wherever it runs. All methods belong to the thread that trains."""

    @property
    def addresses(self) -> list[str]:
        """Where other nodes reach it."""

    @property
    def page(self) -> str | None:
        """The address of its page."""

    @property
    def has_trained(self) -> bool:
        """Whether a step was counted in this process."""

    def start(self) -> None:
        """Start it, and return once training may begin. Raises P2PTrainError."""

    def step(self) -> None:
        """Count a step that was taken. Raises P2PTrainError where the node has failed."""

    def stop(self, *, cut_short: bool) -> None:
        """End it: the steps since the last round are one more, unless `cut_short`. Raises P2PTrainError."""

    def close(self) -> None:
        """Let go of it, once it is stopped and no more is asked."""

    def now(self) -> NodeNow:
        """Return what it is at. Raises P2PTrainError where that is not known."""

    def snapshot(self) -> Checkpoint:
        """Return the state with which another process can go on."""


class LedNode(LoopNode, Protocol):
    """A node that may count several steps at once."""

    def step(self, taken: int = 1) -> None:
        """Count the steps that were taken since the last call. Raises P2PTrainError where the node has failed."""

    def untold(self) -> int:
        """Return how many steps may now be taken before `step` is called for all of them."""


class _Word(IntEnum):
    """What rank 0 says after a step, or several."""

    ON = 0
    CHANGED = 1
    """Its parameters are not those of the step alone: they follow."""
    FAILED = 2
    BEGUN = 3
    """Its node has begun, or could not: which of the two, and what with, follows."""
    LEAVING = 4
    """It takes no more steps. One word more says what the last round has changed."""


_WORDS = frozenset(map(int, _Word))


@dataclass
class Ranks:
    """The ranks that train one model, seen from one of them."""

    group: dist.ProcessGroup
    words: dist.ProcessGroup
    """The same ranks, over gloo, for what the node says alone."""
    shards: ShardedModel | None = None
    """Of a sharded model."""
    learner: UserModel | None = None
    untold: int = 0
    """How many steps are taken before the next word: after each of them it would cost small models some percent."""
    _spoken: torch.Tensor | None = None
    """Where a word lies, the same tensor for all of them: gloo's thread may let go of a tensor long after the broadcast
    returned. Were its hold the last one, that thread would need Python to free it, which may be ending by then."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0 of the group."""
        return dist.get_group_rank(self.group, dist.get_rank()) == 0

    def share(self, found: Any = None) -> Any:
        """Return what rank 0 gives, in every rank."""
        box = [found]
        dist.broadcast_object_list(box, dist.get_global_rank(self.words, 0), self.words)
        return box[0]

    def refuse(self, error: P2PTrainError) -> None:
        """Tell the ranks that wait for rank 0's node that there will be none."""
        self.begun(_Begun(failed=error.line()))

    def begun(self, found: "_Begun | None" = None) -> "_Begun":
        """Return what rank 0's node has begun with, in every rank, once its orders are followed."""
        self.say(_Word.BEGUN)
        begun = self.share(found)
        assert isinstance(begun, _Begun)
        return begun

    def say(self, word: "_Word | Order" = _Word.ON, untold: int = 0) -> _Word:
        """Return the word of rank 0, and note how many steps are `untold` after it, in every rank. The others follow
        its orders until one comes."""
        if self._spoken is None:
            self._spoken = torch.zeros(2, dtype=torch.int64, device="cpu")
        while True:
            self._spoken[0], self._spoken[1] = int(word), untold
            dist.broadcast(self._spoken, dist.get_global_rank(self.words, 0), self.words)
            said, self.untold = (int(each) for each in self._spoken)
            if said in _WORDS:
                return _Word(said)
            if self.leads:
                return _Word.ON
            assert self.shards is not None, "orders are for parts of a model"
            try:
                self.shards.follow(Order(said))
            except ValueError:
                if said != Order.UNPACK:
                    raise
                # A state that rank 0 refuses as well: its next word says what comes of it.

    def order(self, order: Order) -> None:
        """Tell the others to follow an order."""
        self.say(order)

    def share_parameters(self) -> None:
        """Make the trained parameters of every rank those of rank 0."""
        assert self.learner is not None
        with torch.no_grad():
            for each in self.learner.parameters:
                dist.broadcast(each, dist.get_global_rank(self.group, 0), self.group)


@dataclass(frozen=True)
class _Begun:
    """What rank 0's node has begun with; or the line with which it has not."""

    failed: str | None = None
    config: Config | None = None
    peer_id: str = ""
    node_dir: Path = Path()
    addresses: tuple[str, ...] = ()
    page: str | None = None
    counters: tuple[int, int, int] = (0, 0, 0)
    optimizer: dict[str, Any] | None = None


@dataclass
class LeadingNode:
    """Rank 0's node: the one there is, and what the others are to know of it."""

    node: LedNode
    ranks: Ranks
    learner: Callable[[], UserModel]
    config: Config
    node_dir: Path
    _changes: int = 0
    _taken: int = 0
    """Steps that the node has not counted yet."""

    @property
    def addresses(self) -> list[str]:
        """Where other nodes reach it."""
        return self.node.addresses

    @property
    def page(self) -> str | None:
        """The address of its page."""
        return self.node.page

    @property
    def has_trained(self) -> bool:
        """Whether a step was counted in this process."""
        return self.node.has_trained

    def start(self) -> None:
        """Start the node and share what it begins with. Raises P2PTrainError, in all ranks."""
        if self.ranks.shards is not None:
            self.ranks.shards.left = False
        try:
            self.node.start()
        except P2PTrainError as error:
            with suppress(RuntimeError):  # gone before us: what we say is the reason
                self.ranks.refuse(error)
            self._let_go_of_slices()
            raise
        learner = self.ranks.learner = self.learner()
        resumed = learner.global_step > 0 and self.ranks.shards is None  # parts of a state are in their ranks already
        self.ranks.begun(
            _Begun(
                config=self.config,
                peer_id=self.node.now().peer_id,
                node_dir=self.node_dir,
                addresses=tuple(self.addresses),
                page=self.page,
                counters=(learner.global_step, learner.tokens, learner.skipped_steps),
                optimizer=_on_host(learner.optimizer) if resumed and learner.optimizer is not None else None,
            )
        )
        if self.ranks.shards is None:
            self.ranks.share_parameters()
        else:
            self.ranks.shards.level()
            self.ranks.say()
        self._changes = learner.changes

    def step(self) -> None:
        """Count a step, and hand on what the swarm has changed. Raises P2PTrainError, in all ranks."""
        self._taken += 1
        if self.ranks.untold:
            self.ranks.untold -= 1
            assert self.ranks.learner is not None
            self.ranks.learner.note_step()
            return
        self._tell()
        self._hand_on(self.node.untold())

    def stop(self, *, cut_short: bool) -> None:
        """End the node. The others have its last correction too, unless `cut_short`."""
        if cut_short:  # who knows whether the others come here
            if self.ranks.shards is not None:
                self.ranks.shards.left = True
            self.node.stop(cut_short=True)
            return
        if self._taken:
            self._tell()
        with self._failing_together():
            self.node.stop(cut_short=False)
        self.ranks.say(_Word.LEAVING)
        self._hand_on()

    def close(self) -> None:
        """Let go of the node."""
        self.node.close()
        self._let_go_of_slices()

    def now(self) -> NodeNow:
        """Return what the node is at."""
        return self.node.now()

    def snapshot(self) -> Checkpoint:
        """Return the state with which another process can go on."""
        return self.node.snapshot()

    def _tell(self) -> None:
        taken, self._taken = self._taken, 0
        with self._failing_together():
            self.node.step(taken)

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        try:
            yield
        except P2PTrainError:
            with suppress(RuntimeError):
                self.ranks.say(_Word.FAILED)
            raise

    def _let_go_of_slices(self) -> None:
        if self.ranks.shards is not None:
            self.ranks.shards.end_slices(waits=False)

    def _hand_on(self, untold: int = 0) -> None:
        assert self.ranks.learner is not None
        changes = self._changes if self.ranks.shards is not None else self.ranks.learner.changes
        if self.ranks.say(_Word.ON if changes == self._changes else _Word.CHANGED, untold) is _Word.CHANGED:
            self.ranks.share_parameters()
        self._changes = changes


@dataclass
class FollowingNode:
    """What another rank has in place of a node."""

    ranks: Ranks
    learner_of: Callable[[Config, str], UserModel]
    began: Callable[[Path], None]
    """Told the node's folder."""
    addresses: list[str] = field(default_factory=list)
    page: str | None = None
    has_trained: bool = False
    _cut_short: bool = False

    def start(self) -> None:
        """Wait for rank 0's node, and begin with its model. Raises RunError where rank 0 could not, or is gone."""
        try:
            begun = self.ranks.begun()
        except RuntimeError as error:  # of the group: a rank is gone, or LONGEST_WAIT is over
            hint = f"see what rank 0 says; it may wait for neighbours (wait_for) for {LONGEST_WAIT} at most"
            raise RunError(f"rank 0's node has not begun ({str(error).partition(chr(10))[0]})", hint) from error
        if begun.failed is not None or begun.config is None:
            raise RunError(f"rank 0: {begun.failed}")
        learner = self.ranks.learner = self.learner_of(begun.config, begun.peer_id)
        self.began(begun.node_dir)
        self.addresses, self.page = list(begun.addresses), begun.page
        learner.global_step, learner.tokens, learner.skipped_steps = begun.counters
        if begun.optimizer is not None and learner.optimizer is not None:
            learner.optimizer.load_state_dict(begun.optimizer)
        if self.ranks.shards is None:
            self.ranks.share_parameters()
        else:
            self.ranks.say()  # follows until rank 0 has all

    def step(self) -> None:
        """Count a step, and take up what the swarm has changed. Raises RunError where rank 0's node has failed, or
        takes no more steps."""
        assert self.ranks.learner is not None
        self.ranks.learner.take_step()
        self.has_trained = True
        if self.ranks.untold:
            self.ranks.untold -= 1
            return
        if self._take_up() is _Word.LEAVING:
            raise RunError("rank 0 has left the swarm, and this rank takes more steps", AS_MANY_STEPS)

    def stop(self, *, cut_short: bool) -> None:
        """Take up the last correction, unless `cut_short`. Raises RunError where rank 0 takes more steps: it would wait
        for this rank in each of them."""
        self._cut_short = cut_short
        if cut_short:
            return
        if self._take_up() is not _Word.LEAVING:
            self._cut_short = True
            raise RunError("this rank leaves the swarm, and rank 0 takes more steps", AS_MANY_STEPS)
        self._take_up()

    def close(self) -> None:
        """Let go of what this rank holds, once rank 0 wants nothing more of it; at once where all was cut short."""
        if self.ranks.shards is not None:
            self.ranks.shards.end_slices(waits=not self._cut_short)

    def now(self) -> NodeNow:
        """Raise UsageError: rank 0 knows."""
        raise UsageError("this is not rank 0, which has the node", "ask there: if accelerator.is_main_process: ...")

    def snapshot(self) -> Checkpoint:
        """Raise UsageError: rank 0 has the state."""
        raise UsageError("this is not rank 0, which has the swarm's state", "save it there")

    def _take_up(self) -> _Word:
        word = self.ranks.say()
        if word is _Word.FAILED:
            raise RunError("the node of rank 0 has failed", "see what rank 0 says")
        if word is _Word.CHANGED:
            self.ranks.share_parameters()
        return word


def _on_host(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state with its tensors on the CPU: a GPU's would be unpacked on that very GPU by every rank
    of a machine."""
    moved: dict[str, Any] = pytree.tree_map_only(torch.Tensor, lambda value: value.cpu(), optimizer.state_dict())
    return moved


def cut_vectors(shards: ShardedModel, config: Config) -> None:
    """Have the ranks hold the strategy's vectors in slices; or rank 0 whole ones, and its user told why. For rank 0,
    while the others follow."""
    if config.node.estimates_on == "disk":
        why = "node.estimates_on = disk keeps whole vectors in files"
    elif config.train.late_average:
        why = "train.late_average averages whole vectors"
    elif config.train.step_normalization != Unnormalized.name:
        why = "train.step_normalization lengthens whole vectors"
    else:
        why = whole_because(config.sync)
    shards.doubt = f"rank 0 holds whole vectors of this model: {why}" if why else ""
    shards.cut(None if why else unit_of(config.sync))


def ranks_of(model: nn.Module, group: dist.ProcessGroup | None = None, optimizer: object | None = None) -> Ranks | None:
    """Return the ranks that train `model` together, by its DDP wrapper, as its parameters are shared out among them, or
    as `group`; None where this process does alone. Collective. Raises UsageError where they cannot be averaged."""
    try:
        return _ranks_of(model, group, optimizer)
    except TaskError as error:
        raise UsageError(str(error)) from None


def _ranks_of(model: nn.Module, group: dist.ProcessGroup | None, optimizer: object | None) -> Ranks | None:
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    if isinstance(model, nn.parallel.DistributedDataParallel):
        group = model.process_group
    sharded_over = ranks_of_shards(unwrapped(model))
    if sharded_over is not None:
        here = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
        if not set(sharded_over) <= set(here):
            raise UsageError("process_group lacks ranks among which the model is shared out", "leave it out")
        here = sharded_over if group is None else here
    elif group is None or dist.get_world_size(group) == 1:
        return None
    else:
        here = dist.get_process_group_ranks(group)
    words = dist.new_group(here, timeout=LONGEST_WAIT, backend="gloo", use_local_synchronization=True)
    assert isinstance(words, dist.ProcessGroup), "this rank is one of them"
    ranks = Ranks(words if group is None else group, words)
    if sharded_over is not None:
        stepped = None if optimizer is None else torch_optimizer(optimizer)
        beside = dist.new_group(here, timeout=LONGEST_WAIT, backend="gloo", use_local_synchronization=True)
        assert isinstance(beside, dist.ProcessGroup), "this rank is one of them"
        ranks.shards = ShardedModel(unwrapped(model), stepped, words, beside, ranks.order)
    return ranks
