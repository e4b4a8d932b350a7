"""`p2ptrain.join`: a model and an optimizer of one's own, in a loop of one's own, trained together with others.

import p2ptrain
with p2ptrain.join(model, optimizer, swarm="invite.txt") as swarm:
    for batch in loader:
        loss(model, batch).backward(); optimizer.step(); optimizer.zero_grad()
"""

import atexit
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from node.cli.membership_options import awaiting_peers, passphrase_in, run_dir_of, secrets_of, settings_in
from node.config.schema import Config, from_raw
from node.config.sections import NodeConfig, merged
from node.config.toml_source import Raw, merge
from node.events.event_types import ENDLESS
from node.roles.assembly import check_runnable, own_data
from node.roles.joined import GO_ON_BY_FOLDER, LOADED_STATE, JoinedNode, JoinSettings, NodeNow
from node.roles.joined_process import ProcessNode
from node.roles.joined_ranks import FollowingNode, LeadingNode, LoopNode, Ranks, cut_vectors, ranks_of
from node.swarm.folder import SwarmFolder
from node.system import run_dir as folders
from node.system.errors import P2PTrainError, RunError, UsageError
from node.training.checkpoint import Checkpoint
from p2ptrain.integrations.private_loop import hooks_of_private_steps, told_as_usage
from p2ptrain.integrations.swarm_state import check_fits, checked, state_of
from p2ptrain.privacy.base import Unit
from p2ptrain.tasks import EXTERNAL, Shard
from p2ptrain.training.example_gradients import Loss
from p2ptrain.training.loop_turn import LoopTurn
from p2ptrain.training.private_loop_steps import ONE_STEP, ExamplesAt, LoopExamples
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.user_model import (
    Evaluate,
    UserModel,
    held_by,
    is_in_backward,
    is_inherited_step,
    torch_optimizer,
    unwrapped,
)

INVITE_BEGINS: Final = "p2p"


class Swarm:
    """A member's view of its swarm. Use it as a context manager around the training loop, in the thread that trains.

    At the end of the block the steps since the last round become one more, the model is saved in the run folder and
    the neighbours are told. An exception inside the block, Ctrl-C among them, ends it at once, with the model saved.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: object | None,
        settings: JoinSettings | None,
        *,
        evaluate: Evaluate | None,
        metric: str,
        go_on: "Checkpoint | Literal['newest', 'genesis']" = "newest",
        ranks: Ranks | None = None,
    ) -> None:
        """`settings`: None in a rank that does not lead its `ranks`."""
        self._model, self._evaluate, self._metric = model, evaluate, metric
        self._optimizer = None if optimizer is None else torch_optimizer(optimizer)
        self._settings, self._ranks = settings, ranks
        self._node_dir = Path() if settings is None else settings.node_dir
        self._learner: UserModel | None = None
        self._joined: LoopNode | None = None
        self._go_on = go_on
        self._given_model = ""
        """Fingerprint in hex of the model that the state in `_go_on` is of."""
        self._hooks: list[Any] = []
        self._turn = LoopTurn()

    def __enter__(self) -> Self:
        """Join, and return once training may begin. Raises UsageError or RunError."""
        if self._joined is not None:
            raise UsageError("this swarm is joined already", "leave it first, or make another one with p2ptrain.join")
        self._check_is_no_others()
        joined = self._made()
        self._joined = joined
        _JOINED.add(self)
        try:
            joined.start()
        except BaseException:
            self._joined = None
            _JOINED.discard(self)
            raise
        self._count_steps()
        atexit.register(self._leave, cut_short=True)
        self._turn.take_back()
        return self

    def checkpoint_at_the_end(self) -> None:
        """Have the node write no checkpoint but one at its end, where its settings say nothing else. Call it before the
        block: for who keeps the state in checkpoints of its own."""
        if self._settings is not None and self._settings.config.node.checkpoint_every == NodeConfig.checkpoint_every:
            config = self._settings.config
            node = replace(config.node, checkpoint_every=0)
            self._settings = replace(self._settings, config=config.model_copy(update={"node": node}))

    def _check_is_no_others(self) -> None:
        """Raise UsageError where parameters of this model are in a swarm already: each would undo the other's work."""
        own = {id(each) for each in self._model.parameters()}
        if any(id(each) in own for other in _JOINED for each in other._model.parameters()):
            raise UsageError("this model is in a swarm already", "leave that one first")

    def _made(self) -> LoopNode:
        """Return the node: in a thread or a process of its own, or in rank 0."""
        if self._settings is None:
            assert self._ranks is not None, "who has no settings follows"
            return FollowingNode(self._ranks, self._learner_of, partial(setattr, self, "_node_dir"))
        kind = ProcessNode if self._settings.config.node.lane == "process" else JoinedNode
        node = kind(self._learner_of, self._settings, self._go_on)
        if self._ranks is None:
            return node
        return LeadingNode(node, self._ranks, self._there, self._settings.config, self._settings.node_dir)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the swarm."""
        self._leave(cut_short=error is not None)

    def leave(self, *, cut_short: bool = False) -> dict[str, Any]:
        """Leave before the block ends, and return the last `state_dict`: the loop goes on alone. `cut_short`: at once,
        without a round for the steps since the last. A rank that follows another has no state: it returns {}. Raises
        RunError where the node has failed."""
        joined = self._running()
        self._let_go()
        try:
            joined.stop(cut_short=cut_short)
            return self._state(joined) if self.has_node else {}
        finally:
            joined.close()

    def begin_anew(self) -> None:
        """Begin with the model as it is when the block is entered, and with nothing of the folder but its key: what it
        has of an earlier checkpoint is not loaded. Raises UsageError in the block."""
        if self._joined is not None:
            raise UsageError("the swarm is joined already", "call begin_anew before the block is entered")
        self._go_on = "genesis"

    def refuse(self, error: P2PTrainError) -> NoReturn:
        """Raise `error`, in place of entering the block. Ranks that wait there for this one raise it, too."""
        if self._ranks is not None and self._ranks.leads:
            self._ranks.refuse(error)
        raise error

    def step(self, *, loss: float | None = None) -> None:
        """Count a step of the optimizer: only for a loop that gave `join` none. `loss`: shown where the run is watched.
        Raises RunError where the node has failed."""
        if self._optimizer is not None:
            raise UsageError("join was given an optimizer, which counts the steps", "leave swarm.step() out")
        self.tell(loss=loss)
        self._stepped()

    def tell(self, *, loss: float | None = None, tokens: int = 0) -> None:
        """Tell what the newest step came to, for who watches: its mean loss, and how many predictions it trained on.
        Where the data are protected (`[privacy]`) neither is passed on."""
        self._there().tell(loss=loss, tokens=tokens)

    @property
    def has_node(self) -> bool:
        """Whether this process has the node: not in a rank of DDP that follows another one."""
        return self._settings is not None

    @property
    def is_joined(self) -> bool:
        """Whether the block was entered, and not left. The others of its properties want that."""
        return self._joined is not None

    @property
    def round(self) -> int:
        """The round being trained, from 0; once the run is over, how many there were."""
        return self._now().round

    @property
    def global_step(self) -> int:
        """How many steps this run has taken, those of earlier processes included."""
        return self._there().global_step

    @property
    def peers(self) -> list[str]:
        """The peer ids of the neighbours there are now; none once the run is over."""
        return self._now().peers

    @property
    def peer_id(self) -> str:
        """This node's own peer id."""
        return self._now().peer_id

    @property
    def addresses(self) -> list[str]:
        """Where other nodes reach this one: what they give as `peers`."""
        return list(self._running().addresses)

    @property
    def page(self) -> str | None:
        """The address of the node's page in a browser; None where it is off."""
        return self._running().page

    @property
    def shard(self) -> Shard:
        """Which part of the data is this node's (`node.shard_count`), by its peer id where it is not set."""
        return self._there().shard

    @property
    def data_seed(self) -> int:
        """A seed for the order of the data, which no other member has: it follows from the peer id."""
        return self._there().data_seed

    @property
    def run_dir(self) -> Path:
        """The node's folder: checkpoints, events, identity. Give its parent as `run_dir` to go on later."""
        return self._node_dir

    @property
    def is_private(self) -> bool:
        """Whether the data are protected (`[privacy]`): the node then goes on from its own checkpoints, which have
        released moves alone, and from no state that the loop keeps."""
        return self._settings is not None and self._settings.config.privacy.on

    @property
    def protects(self) -> Unit:
        """What is protected (`[privacy]`): each `example`, each `update`, or `nothing`; in a rank that follows another
        one `nothing`."""
        return "nothing" if self._settings is None else self._settings.config.privacy.find().unit

    def private_gradients(self, loss: Loss, examples_at: ExamplesAt, count: int) -> Iterator[int]:
        """Yield the number of each step once its private gradient is in `.grad` of the trained parameters (DP-SGD):
        the loop's turn is to step its optimizer, once. Ends with the budget, once the round that was paid for last
        is closed (after half a minute at most), or with the run. With
        `privacy.privatizer = "example"`.

            for _ in swarm.private_gradients(loss, lambda rows: (images[rows], labels[rows]), len(images)):
                optimizer.step()

        Each of `count` examples is drawn for a step with probability `privacy.rate`, from secret randomness, and none
        may be. `examples_at` returns those of a list of numbers as a batch: tensors in tuples, lists or dicts, whose
        first dimension are the examples. `loss` returns the mean loss of the model that it is given on such a batch;
        it is called with one example at a time, and may depend on no other data. The model's state between the steps
        has to be theirs alone: gradients, parameters and buffers that anything else has changed are refused with a
        UsageError, here or in `optimizer.step`, before anything moves.

        Raises UsageError where the loss has no gradients of single examples that are a loop's, and RunError where the
        node has failed, or a step cannot be written down."""
        node, learner = self._private_node(), self._there()
        if node is None or learner.private_steps is None:
            raise UsageError(
                "private gradients are of a loop whose examples are protected",
                "give join settings={'privacy.privatizer': 'example', 'privacy.rate': ...}",
            )
        with told_as_usage():
            examples = learner.private_steps.examples(loss, examples_at, count)
        return self._private_steps_of(node, learner, examples)

    def _private_steps_of(self, node: JoinedNode, learner: UserModel, examples: LoopExamples) -> Iterator[int]:
        steps = learner.private_steps
        assert steps is not None, "examples are protected"
        while self._joined is node and not node.is_over and not node.budget_spent:
            if not node.is_here:
                raise UsageError("this process is a fork of the one that has joined", "take private gradients there")
            with told_as_usage():
                is_filled = learner.fill_gradient(examples)
            if is_filled:
                yield learner.global_step
                if self._joined is node and steps.unstepped:
                    raise UsageError(
                        "[privacy]: this turn's gradient is paid for, and no step was taken by it", ONE_STEP
                    )
            else:
                self._stepped()  # the steps that the round under way has are all that it gets
        if self._joined is node and node.budget_spent:
            with self._turn.lent():
                node.finish_paid_round()

    @property
    def epsilon(self) -> float | None:
        """What the data have spent of their privacy, at `privacy.delta`; None where nothing protects them."""
        node = self._private_node()
        if node is None:
            return None
        with self._turn.lent():
            return node.ask(lambda it: None if it.privacy is None else it.privacy.epsilon)

    @property
    def budget_spent(self) -> bool:
        """Whether the next round would exceed `privacy.epsilon`. The steps from here on are the loop's own: they are
        not counted, and nothing of them leaves; where examples are protected there are none. The node serves on until
        the block ends."""
        node = self._private_node()
        return node is not None and node.budget_spent

    def serve(self) -> None:
        """Serve others until the run is over, or Ctrl-C, once the budget is spent: the model follows theirs. Raises
        UsageError before that, and RunError where the node has failed."""
        node = self._private_node()
        if node is None:
            raise UsageError("no budget of privacy can be spent here: it has no [privacy]", "train on")
        with self._turn.lent():
            node.serve()

    def _private_node(self) -> JoinedNode | None:
        node = self._running()
        return node if isinstance(node, JoinedNode) and node.settings.config.privacy.on else None

    def evaluate(self) -> float:
        """Return the held-out loss of the model as it is now, by the `evaluate` that `join` was given. The global
        random numbers are then as they were before."""
        if self._evaluate is None:
            raise UsageError("join was given no evaluate", "give it one: a function of the model that returns a loss")
        return self._there().evaluate_live()

    def export(self, folder: str | Path) -> Path:
        """Write the model as it is now, and return the folder: by its own `save_pretrained` where it has one, else as
        `model.safetensors` with the names of its `state_dict`. With `[privacy]` it is the model without the own steps
        since the last round. Raises OSError, and UsageError for a model in parts."""
        if self._learner is not None and self._learner.is_private:
            if self._learner.private_steps is not None:
                with told_as_usage():
                    self._learner.private_steps.check_untrained()
            return export_model(self._learner.model_with(), Path(folder))
        if self._ranks is not None and self._ranks.shards is not None:
            raise UsageError(
                "this rank has a part of the model alone",
                f"p2ptrain export {self._node_dir} writes its newest checkpoint, whole",
            )
        return export_model(self._model, Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """Return what another process needs to go on beside the model and the optimizer: the swarm's own state. Call it
        between two steps. It needs the run folder, too, which has the node's key. A rank that follows another has no
        state: it returns {}."""
        joined = self._running()
        return self._state(joined) if self.has_node else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Before the block is entered, or in it before the first step: the node then starts
        again. Model and optimizer are the caller's to load. Raises UsageError, with nothing changed, for a state that
        is damaged, or of another model, another run or another member; before the block, that is found as it is
        entered. Under DDP every rank calls it; what a rank that follows another gives is not looked at."""
        joined = self._joined
        if self.is_private:
            self.refuse(UsageError(LOADED_STATE, GO_ON_BY_FOLDER))
        if joined is not None and joined.has_trained:
            raise UsageError(
                "the swarm's state cannot be loaded once steps were taken", "load it before the first step"
            )
        if self._settings is None:
            if joined is not None:  # rank 0's node starts again
                joined.start()
            return
        try:
            checkpoint, model = checked(state)
            if joined is not None:
                self._check_given(checkpoint, model, self._there(), self._settings.config, self.peer_id)
        except UsageError as error:
            if joined is not None:
                self.refuse(error)
            raise
        self._go_on, self._given_model = checkpoint, model
        if joined is not None:
            self._leave(cut_short=True)
            self.__enter__()

    def _state(self, joined: LoopNode) -> dict[str, Any]:
        assert self._learner is not None, "it is made before the node is"
        with self._turn.lent():
            return state_of(joined.snapshot(), self._learner.fingerprint)

    def _check_given(self, given: Checkpoint, model: str, learner: UserModel, config: Config, peer_id: str) -> None:
        check_fits(given, model, learner=learner, config=config, peer_id=peer_id, folder=self._node_dir)

    def _now(self) -> NodeNow:
        with self._turn.lent():
            return self._running().now()

    def _running(self) -> LoopNode:
        if self._joined is None:
            raise UsageError("the swarm is not joined", "use it inside `with p2ptrain.join(...) as swarm:`")
        return self._joined

    def _learner_of(self, config: Config, peer_id: str) -> UserModel:
        shard, data_seed = own_data(config, peer_id)
        shards = None if self._ranks is None else self._ranks.shards
        if shards is not None and shards.leads:
            shards.scratch = self._node_dir
            cut_vectors(shards, config)
        self._learner = UserModel(
            self._model,
            self._optimizer,
            config.train,
            shard,
            data_seed=data_seed,
            evaluate=self._evaluate,
            metric=self._metric,
            turn=self._turn,
            shards=shards,
        )
        if isinstance(self._go_on, Checkpoint) and self._settings is not None:
            self._check_given(self._go_on, self._given_model, self._learner, config, peer_id)
        return self._learner

    def _there(self) -> UserModel:
        self._running()
        assert self._learner is not None, "it is made before the node is"
        return self._learner

    def _count_steps(self) -> None:
        """Have the optimizer's post-step hook count, and watch for another optimizer of the same parameters."""
        if self._optimizer is None:
            return
        own = self._optimizer
        steps = self._there().private_steps

        def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if is_inherited_step(optimizer):
                return
            if is_in_backward():
                raise UsageError(
                    "the optimizer steps in the backward pass, where no parameter may be corrected",
                    "leave it out of p2ptrain.join, and call swarm.step() after each backward pass",
                )
            if steps is not None:
                with told_as_usage():
                    steps.step_taken()
            self._stepped()

        def another(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if optimizer is own or held_by(own).isdisjoint(held_by(optimizer)):
                return
            raise UsageError(
                f"a second optimizer ({type(optimizer).__name__}) steps parameters that the joined one holds, too: "
                "which of their steps counts cannot be told",
                "leave the optimizer out of p2ptrain.join, and call swarm.step() once a step",
            )

        self._hooks = [
            own.register_step_post_hook(stepped),
            register_optimizer_step_post_hook(another),
        ]
        if steps is not None:
            self._hooks += hooks_of_private_steps(own, steps)

    def _stepped(self) -> None:
        with self._turn.lent():
            self._running().step()

    def _leave(self, *, cut_short: bool) -> None:
        joined = self._joined
        self._let_go()
        if joined is not None:
            try:
                joined.stop(cut_short=cut_short)
            finally:
                joined.close()

    def _let_go(self) -> None:
        """Have the optimizer's steps count no more."""
        if self._joined is not None:
            self._turn.lend()
        self._joined = None
        _JOINED.discard(self)
        atexit.unregister(self._leave)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


_JOINED: Final[set[Swarm]] = set()
"""The swarms of this process that are joined."""


def join(
    model: nn.Module,
    optimizer: object | None = None,
    *,
    swarm: str | Path | None = None,
    peers: Sequence[str] = (),
    run_dir: str | Path | None = None,
    name: str | None = None,
    inner_steps: int | None = None,
    rounds: int | None = None,
    wait_for: int | None = None,
    evaluate: Evaluate | None = None,
    metric: str = "loss",
    config: str | Path | Sequence[str | Path] = (),
    settings: Mapping[str, object] | None = None,
    passphrase_file: str | Path | None = None,
    process_group: dist.ProcessGroup | None = None,
    quiet: bool = False,
) -> Swarm:
    """Return the swarm, to be entered around the training loop: `with p2ptrain.join(model, optimizer, ...) as swarm:`.

    `model`: any module with dense parameters, bare, under DDP or `torch.compile`, or in parts (FSDP2's `fully_shard`,
    `parallelize_module`); those that need gradients are averaged. With several ranks all call `join` and enter the
    block; rank 0 has the node, and the others follow it. All members begin with equal ones (the same seed, or the same
    pretrained model), and name and shape them alike.
    `optimizer`: its steps count; without one the loop calls `swarm.step()`. `process_group`: of the ranks that train
    `model` together, where DDP's wrapper does not say so; they hold equal parameters, and take every step together.

    `swarm`: an invite to a private swarm (a file, or the line itself), the folder of a member, or the one that
    `p2ptrain swarm create --task external` has made; all else is then the swarm's to say. Or `peers`: addresses of
    members of an open swarm. With neither, the node begins an open swarm of its own (`swarm.addresses`).

    `run_dir`: the run folder, by default a new one under `runs/`. One that is there goes on: model, optimizer state and
    counters are loaded from its newest checkpoint, and the loop may begin at `swarm.global_step`. `name`: of the node
    in it. `inner_steps`: steps in a round. `rounds`: after so many the swarm is left and the loop goes on alone; by
    default the run ends when the block does. `wait_for`: neighbours to wait for before the first step.

    `evaluate`: returns the held-out loss of a model (or a dict with `loss` and own metrics), called with a copy of the
    bare model every `train.eval_every` rounds, in another thread while the loop's waits; `metric` says what the loss is
    measured in. `config`: TOML files, `settings`: single settings over them, such as {"sync.compressor": "q2"}.
    `quiet`: print nothing on stderr.

    Raises UsageError for what cannot be meant, here or at the `with`; RunError at the `with`, and from the step in
    which the node is found to have failed.
    """
    ranks = ranks_of(model, process_group, optimizer)
    if ranks is not None and ranks.shards is not None:
        _check_of_shards(evaluate)
    if ranks is not None and not ranks.leads:
        return Swarm(model, optimizer, None, evaluate=evaluate, metric=metric, ranks=ranks)
    try:
        how = settings_of(
            swarm=swarm,
            peers=peers,
            run_dir=run_dir,
            name=name,
            inner_steps=inner_steps,
            rounds=rounds,
            wait_for=wait_for,
            config=config,
            settings=settings,
            passphrase_file=passphrase_file,
            quiet=quiet,
        )
        if ranks is not None and ranks.shards is not None and how.config.node.lane == "process":
            raise UsageError("the node of a model in parts runs in rank 0 itself", "leave node.lane out")
        if ranks is not None and how.config.privacy.on:
            raise UsageError("[privacy] wants the loop in one process, and this has several ranks", "leave it out")
    except P2PTrainError as error:
        if ranks is not None:
            ranks.refuse(error)
        raise
    return Swarm(model, optimizer, how, evaluate=evaluate, metric=metric, ranks=ranks)


def settings_of(
    *,
    swarm: str | Path | None = None,
    peers: Sequence[str] = (),
    run_dir: str | Path | None = None,
    name: str | None = None,
    inner_steps: int | None = None,
    rounds: int | None = None,
    wait_for: int | None = None,
    config: str | Path | Sequence[str | Path] = (),
    settings: Mapping[str, object] | None = None,
    passphrase_file: str | Path | None = None,
    quiet: bool = False,
) -> JoinSettings:
    """Return how a loop takes part, by the keywords of `join`, with the node's folder made. Raises UsageError."""
    given = _given(peers, name, inner_steps, rounds, wait_for, settings)
    files = [config] if isinstance(config, str | Path) else list(config)
    merge(given, {"task": {"name": EXTERNAL}})
    folder, invite = _place(swarm, run_dir)
    folder = folder or run_dir_of(None, None, None)
    raw, member = settings_in(folder, merged([Path(file) for file in files], (), given), invite)
    if rounds is None and member is None:
        merge(raw, {"train": {"rounds": ENDLESS}})
    checked = from_raw(raw)
    if wait_for is None:
        checked = awaiting_peers(checked)
    check_runnable(checked)
    _check_of_a_loop(checked)
    node_dir = folders.make_node_dir(folder, checked.node.name)
    passphrase = passphrase_in(node_dir, None if passphrase_file is None else Path(passphrase_file))
    return JoinSettings(
        config=checked,
        node_dir=node_dir,
        settle=None if member is None else partial(member.settle, passphrase),
        secrets=secrets_of(member),
        passphrase=passphrase,
        quiet=quiet,
    )


def _check_of_a_loop(config: Config) -> None:
    """Raise UsageError for a setting that means nothing where the steps are the user's, or the run has no end, and
    would be missed."""
    if config.node.role != NodeConfig.role:
        raise UsageError(
            f"a training loop has no place in a node with node.role = {config.node.role}",
            f"leave the role out, or run `p2ptrain node --role {config.node.role}`",
        )
    if config.train.drift != TrainConfig.drift:
        raise UsageError(
            f"train.drift = {config.train.drift} corrects the steps of a node, and here they are the loop's",
            "leave it out; a private swarm's admin sets it for all",
        )
    if config.train.late_average and config.train.rounds == ENDLESS:
        raise UsageError(
            "train.late_average averages the last rounds, and this run ends when the loop does",
            "say how many there are: join(..., rounds=...)",
        )
    if config.sync.spec().wants:
        raise UsageError(
            f"sync.strategy = {config.sync.strategy} wants to see the optimizer's work, and here it is the loop's",
            "take allreduce or tracked_gossip; a private swarm's admin sets it for all",
        )
    schedule = config.train.inner_steps_schedule
    if config.train.rounds == ENDLESS and schedule != TrainConfig.inner_steps_schedule:
        raise UsageError(
            f"train.inner_steps_schedule = {schedule} spreads the steps of a run whose end is known, and this has none",
            "say how many rounds it has: rounds=...",
        )


def _check_of_shards(evaluate: Evaluate | None) -> None:
    """Raise UsageError, in each rank, for what wants a whole model where none is."""
    if evaluate is not None:
        raise UsageError(
            "evaluate is given a copy of the model, and no rank of a sharded one could hold it",
            "leave it out: evaluate in your loop, in all ranks",
        )


def export_model(model: nn.Module, folder: Path) -> Path:
    """Write `model` into `folder`, whole or not at all, and return the folder. Raises OSError or UsageError."""
    bare = unwrapped(model)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "nothing is overwritten: give another folder")
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        save = getattr(bare, "save_pretrained", None)
        if callable(save):
            save(beside)
        else:
            held = bare.state_dict()
            if strange := [key for key, value in held.items() if not isinstance(value, torch.Tensor)]:
                raise UsageError(f"{strange[0]} of the model's state_dict is no tensor", "write it by torch.save")
            state = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in held.items()}
            save_file(state, beside / "model.safetensors")
        beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _given(
    peers: Sequence[str],
    name: str | None,
    inner_steps: int | None,
    rounds: int | None,
    wait_for: int | None,
    settings: Mapping[str, object] | None,
) -> Raw:
    """The settings given, as a configuration's. UsageError for a key that is none."""
    raw: Raw = {}
    for key, value in (settings or {}).items():
        section, dot, option = key.partition(".")
        if not dot:
            raise UsageError(f"settings: {key!r} is no setting", 'write {"section.key": value}')
        merge(raw, {section: {option: value}})
    merge(raw, {"train": {k: v for k, v in (("inner_steps", inner_steps), ("rounds", rounds)) if v is not None}})
    if isinstance(peers, str):
        raise UsageError("peers is one string", "give a list of addresses: peers=[...]")
    if peers:
        merge(raw, {"network": {"peers": list(peers)}})
    node = {k: v for k, v in (("name", name), ("wait_for", wait_for)) if v is not None}
    merge(raw, {"node": node})
    return {section: keys for section, keys in raw.items() if keys}


def _place(swarm: str | Path | None, run_dir: str | Path | None) -> tuple[Path | None, str | None]:
    """The run folder, and the invite where one is to be redeemed."""
    folder = None if run_dir is None else Path(run_dir)
    if swarm is None:
        return folder, None
    line = str(swarm)
    if line.startswith(INVITE_BEGINS) or not Path(swarm).is_dir():
        return folder, line
    if folder is not None:
        raise UsageError("swarm is a folder, which has its own node", "leave run_dir out, or give an invite as swarm")
    if not SwarmFolder(Path(swarm)).known and not folders_of_members(Path(swarm)):
        raise UsageError(f"{swarm} is no swarm's folder", "give an invite, or the folder of a member")
    return Path(swarm), None


def folders_of_members(path: Path) -> list[Path]:
    """Return the nodes' folders below `path` that hold a membership."""
    return [each for each in path.glob("*/membership") if each.is_dir()]


__all__ = ["P2PTrainError", "RunError", "Swarm", "UsageError", "export_model", "join"]
