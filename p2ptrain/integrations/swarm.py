"""`p2ptrain.join`: a model and an optimizer of one's own, in a loop of one's own, trained together with others.

import p2ptrain
with p2ptrain.join(model, optimizer, swarm="invite.txt") as swarm:
    for batch in loader:
        loss(model, batch).backward(); optimizer.step(); optimizer.zero_grad()
"""

import atexit
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from node.cli.membership_options import passphrase_in, run_dir_of, secrets_of, settings_in
from node.config.schema import Config, from_raw
from node.config.sections import merged
from node.config.toml_source import Raw, merge
from node.roles.assembly import check_runnable, own_data
from node.roles.joined import ENDLESS, JoinedNode, JoinSettings
from node.roles.joined_process import ProcessNode
from node.roles.joined_ranks import FollowingNode, LeadingNode, LoopNode, Ranks
from node.swarm.folder import SwarmFolder
from node.system import run_dir as folders
from node.system.errors import P2PTrainError, RunError, UsageError
from node.training.checkpoint import Checkpoint
from p2ptrain.integrations.swarm_state import check_fits, checked, state_of
from p2ptrain.tasks import EXTERNAL, Shard
from p2ptrain.training.user_model import Evaluate, UserModel, measures_of, torch_optimizer, unwrapped

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

    def __enter__(self) -> Self:
        """Join, and return once training may begin. Raises UsageError or RunError."""
        if self._joined is not None:
            raise UsageError("this swarm is joined already", "leave it first, or make another one with p2ptrain.join")
        joined = self._made()
        self._joined = joined
        try:
            joined.start()
        except BaseException:
            self._joined = None
            raise
        self._count_steps()
        atexit.register(self._leave, cut_short=True)
        return self

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
            return {} if self._settings is None else self._state(joined)
        finally:
            joined.close()

    def begin_anew(self) -> None:
        """Begin with the model as it is when the block is entered, and with nothing of the folder but its key: what it
        has of an earlier checkpoint is not loaded. Raises UsageError in the block."""
        if self._joined is not None:
            raise UsageError("the swarm is joined already", "call begin_anew before the block is entered")
        self._go_on = "genesis"

    def step(self, *, loss: float | None = None) -> None:
        """Count a step of the optimizer: only for a loop that gave `join` none. `loss`: shown where the run is watched.
        Raises RunError where the node has failed."""
        if self._optimizer is not None:
            raise UsageError("join was given an optimizer, which counts the steps", "leave swarm.step() out")
        self.tell(loss=loss)
        self._stepped()

    def tell(self, *, loss: float | None = None, tokens: int = 0) -> None:
        """Tell what the newest step came to, for who watches: its mean loss, and how many predictions it trained on."""
        learner = self._there()
        learner.newest_loss = math.nan if loss is None else float(loss)
        learner.tokens += tokens

    @property
    def is_joined(self) -> bool:
        """Whether the block was entered, and not left. The others of its properties want that."""
        return self._joined is not None

    @property
    def round(self) -> int:
        """The round being trained, from 0; once the run is over, how many there were."""
        return self._running().now().round

    @property
    def global_step(self) -> int:
        """How many steps this run has taken, those of earlier processes included."""
        return self._there().global_step

    @property
    def peers(self) -> list[str]:
        """The peer ids of the neighbours there are now; none once the run is over."""
        return self._running().now().peers

    @property
    def peer_id(self) -> str:
        """This node's own peer id."""
        return self._running().now().peer_id

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

    def evaluate(self) -> float:
        """Return the held-out loss of the model as it is now, by the `evaluate` that `join` was given."""
        if self._evaluate is None:
            raise UsageError("join was given no evaluate", "give it one: a function of the model that returns a loss")
        model = unwrapped(self._model)
        training = model.training
        try:
            with torch.no_grad():
                return measures_of(self._evaluate(model.eval())).loss
        finally:
            model.train(training)

    def export(self, folder: str | Path) -> Path:
        """Write the model as it is now, and return the folder: by its own `save_pretrained` where it has one, else as
        `model.safetensors` with the names of its `state_dict`. Raises OSError."""
        return export_model(self._model, Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """Return what another process needs to go on beside the model and the optimizer: the swarm's own state. Call it
        between two steps. It needs the run folder, too, which has the node's key."""
        return self._state(self._running())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Before the block is entered, or in it before the first step: the node then starts
        again. Model and optimizer are the caller's to load. Raises UsageError, with nothing changed, for a state that
        is damaged, or of another model, another run or another member; before the block, that is found as it is
        entered."""
        checkpoint, model = checked(state)
        joined = self._joined
        if joined is not None and joined.has_trained:
            raise UsageError(
                "the swarm's state cannot be loaded once steps were taken", "load it before the first step"
            )
        if joined is not None and self._settings is not None:
            self._check_given(checkpoint, model, self._there(), self._settings.config, joined.now().peer_id)
        self._go_on, self._given_model = checkpoint, model
        if joined is not None:
            self._leave(cut_short=True)
            self.__enter__()

    def _state(self, joined: LoopNode) -> dict[str, Any]:
        assert self._learner is not None, "it is made before the node is"
        return state_of(joined.snapshot(), self._learner.fingerprint)

    def _check_given(self, given: Checkpoint, model: str, learner: UserModel, config: Config, peer_id: str) -> None:
        check_fits(given, model, learner=learner, config=config, peer_id=peer_id, folder=self._node_dir)

    def _running(self) -> LoopNode:
        if self._joined is None:
            raise UsageError("the swarm is not joined", "use it inside `with p2ptrain.join(...) as swarm:`")
        return self._joined

    def _learner_of(self, config: Config, peer_id: str) -> UserModel:
        shard, data_seed = own_data(config, peer_id)
        self._learner = UserModel(
            self._model,
            self._optimizer,
            config.train,
            shard,
            data_seed=data_seed,
            evaluate=self._evaluate,
            metric=self._metric,
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
        held = {id(each) for group in own.param_groups for each in group["params"]}

        def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._stepped()

        def another(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if optimizer is own or not any(
                id(each) in held for group in optimizer.param_groups for each in group["params"]
            ):
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

    def _stepped(self) -> None:
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
        self._joined = None
        atexit.unregister(self._leave)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


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
    quiet: bool = False,
) -> Swarm:
    """Return the swarm, to be entered around the training loop: `with p2ptrain.join(model, optimizer, ...) as swarm:`.

    `model`: any module with dense parameters, bare or under DDP or `torch.compile`; those that need gradients are
    averaged. Under DDP all ranks call `join` and enter the block; rank 0 has the node, and the others follow it. All
    members begin with equal ones (the same seed, or the same pretrained model), and name and shape them alike.
    `optimizer`: its steps count; without one the loop calls `swarm.step()`.

    `swarm`: an invite to a private swarm (a file, or the line itself), the folder of a member, or the one that
    `p2ptrain swarm create --task external` has made; all else is then the swarm's to say. Or `peers`: addresses of
    members of an open swarm. With neither, the node begins an open swarm of its own (`swarm.addresses`).

    `run_dir`: the run folder, by default a new one under `runs/`. One that is there goes on: model, optimizer state and
    counters are loaded from its newest checkpoint, and the loop may begin at `swarm.global_step`. `name`: of the node
    in it. `inner_steps`: steps in a round. `rounds`: after so many the swarm is left and the loop goes on alone; by
    default the run ends when the block does. `wait_for`: neighbours to wait for before the first step.

    `evaluate`: returns the held-out loss of a model (or a dict with `loss` and own metrics), called in another thread
    with a copy of the bare model, every `train.eval_every` rounds; `metric` says what it is measured in. `config`: TOML
    files, `settings`: single settings over them, such as {"sync.compressor": "q2"}. `quiet`: print nothing on stderr.

    Raises UsageError for what cannot be meant, here or at the `with`; RunError at the `with`, and from the step in
    which the node is found to have failed.
    """
    ranks = ranks_of(model)
    if ranks is not None and not ranks.leads:
        return Swarm(model, optimizer, None, evaluate=evaluate, metric=metric, ranks=ranks)
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
    checked = _awaiting(from_raw(raw), wait_for)
    check_runnable(checked)
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


def ranks_of(model: nn.Module) -> Ranks | None:
    """Return the ranks that train `model` together; None where this process does alone."""
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    if not isinstance(model, nn.parallel.DistributedDataParallel) or torch.distributed.get_world_size() == 1:
        return None
    return Ranks(model.process_group)


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
            state = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in bare.state_dict().items()}
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


def _awaiting(config: Config, wait_for: int | None) -> Config:
    """Who names peers wants one of them at least before training begins."""
    if wait_for is not None or not config.network.peers or config.node.wait_for:
        return config
    return config.model_copy(update={"node": replace(config.node, wait_for=1)})


__all__ = ["P2PTrainError", "RunError", "Swarm", "UsageError", "export_model", "join"]
