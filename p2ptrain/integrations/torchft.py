"""`GossipManager`: torchft's `LocalSGD` and `DiLoCo` run over a swarm, unchanged.

    from p2ptrain.integrations.torchft import GossipManager
    with GossipManager([model], swarm="invite.txt") as manager:
        with DiLoCo(manager, [model], inner, outer, sync_every=20):
            ...

It has the part of torchft's `Manager` that these two classes use. There is no lighthouse, no store and no process
group: what they all-reduce is published to the neighbours as an update, and comes back as the aggregate of the round's
members, by the codec and the aggregator of the settings.

By default that is the plain mean of exact updates, over all neighbours that answer before the deadline: what torchft
does. {"sync.compressor": "lossless+q2"} sends sixteen times less; {"sync.aggregator": "trimmed_mean", "sync.f": 1}
withstands a liar.

What travels are models, also where DiLoCo asks for the mean of pseudo-gradients: a pseudo-gradient is what a model has
moved from the outer parameters, so the one mean gives the other. Where all members' outer parameters are equal, as
torchft has it, the result is the same. Where they are not (an update was late), DiLoCo's own outer step then pulls them
together again, which means of pseudo-gradients would not. A late joiner begins with the members' mean model; it has no
state of their outer optimizers.
"""

import atexit
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import nn
from torch.distributed import ReduceOp

from node.config.schema import Config
from node.roles.assembly import own_data
from node.roles.joined import JoinedNode
from node.system.errors import UsageError
from p2ptrain.integrations.swarm import settings_of
from p2ptrain.tasks import Shard
from p2ptrain.tasks.metrics import Measures
from p2ptrain.training.layout import StateLayout
from p2ptrain.training.names import canonical
from p2ptrain.training.train_config import TrainConfig

SETTINGS: Final = {
    "train.inner_steps": 1,
    "sync.compressor": "none",
    "sync.aggregator": "mean",
    "sync.f": 0,
    "network.quorum": 1.0,
    "node.overlap_steps": 64,
    "node.checkpoint_every": 0,
}
"""What torchft means by an all-reduce: exact, the mean, of all who are there. A round waits 64 times as long as the
steps between two exchanges took, or until the learned deadline: the loop waits, too, so nothing gets stale."""


class ExchangedModel:
    """Learner (p2ptrain/training/base.py) of modules that an algorithm of torchft moves by itself: its vector (d,)
    is what was published last, and then what came back."""

    def __init__(self, fragments: Sequence[nn.Module], config: TrainConfig, shard: Shard, data_seed: int) -> None:
        self._fragments = fragments
        self.config, self.shard, self.data_seed = config, shard, data_seed
        self.global_step = self.tokens = self.skipped_steps = 0
        self.learning_rate: float | None = None
        self.metric, self.evaluates = "loss", False
        self.units: Mapping[str, str] = {}
        self.ended = False
        digest = hashlib.blake2b(digest_size=32)
        for name, parameter in _named(fragments):
            digest.update(f"torchft|{canonical(name)}:{'x'.join(map(str, parameter.shape))}\n".encode())
        self.fingerprint = digest.digest()
        self.values_d = flat(fragments)

    @property
    def numel(self) -> int:
        """The length of the vector."""
        return self.values_d.numel()

    @property
    def device(self) -> torch.device:
        """The CPU, where the vector is."""
        return self.values_d.device

    steps_elsewhere: Final = True
    micro_batch: Final = None
    compile_fault: Final = ""
    identity: Final = b""

    def take_step(self, schedule_step: int | None = None, *, rate_factor: float = 1.0) -> float | None:
        """Note an exchange. None where there is no more."""
        if self.ended:
            return None
        self.global_step += 1
        return math.nan

    def doubts(self) -> list[str]:
        """Return nothing: there is no model to doubt."""
        return []

    def vector(self) -> torch.Tensor:
        """Return a copy of the vector."""
        return self.values_d.clone()

    def begin_round(self) -> None:
        """Do nothing."""

    def correct(self, correction_d: torch.Tensor) -> None:
        """Add what makes the own values the members' aggregate."""
        self.values_d.add_(correction_d)

    def load_vector(self, x_d: torch.Tensor) -> None:
        """Set the vector, and the modules' parameters: a late joiner begins with the members' model."""
        self.values_d.copy_(x_d)
        with torch.no_grad():
            parameters = [parameter for _, parameter in _named(self._fragments)]
            for part, own in zip(torch.split(x_d, [each.numel() for each in parameters]), parameters, strict=True):
                own.copy_(part.view(own.shape))

    def evaluate(self, x_d: torch.Tensor | None = None) -> float:
        """Raise: the loop's own loss is not known."""
        raise RuntimeError("torchft's loop tells no loss")

    def measure(self, x_d: torch.Tensor | None = None) -> Measures:
        """Raise: the loop's own loss is not known."""
        raise RuntimeError("torchft's loop tells no loss")

    def judge(self, x_d: torch.Tensor, round: int) -> float:
        """Raise: the loop's own loss is not known."""
        raise RuntimeError("an aggregator that judges models by their loss needs p2ptrain.join, and its evaluate")

    def divergence(self, own_d: torch.Tensor, others: Iterable[torch.Tensor]) -> float | None:
        """Return None: there are no predictions."""
        return None

    def layout(self) -> StateLayout | None:
        """Return None: it has no names."""
        return None

    def counters(self) -> torch.Tensor:
        """Return int64 (3,): exchanges, and two zeros."""
        return torch.tensor([self.global_step, 0, 0], dtype=torch.int64)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the vector and its counters."""
        return {"parameters": self.vector(), "counters": self.counters()}

    def state_view(self) -> dict[str, torch.Tensor]:
        """Return the vector itself, and its counters."""
        return {"parameters": self.values_d, "counters": self.counters()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError where it is of another length."""
        if state["parameters"].shape != self.values_d.shape:
            raise ValueError(f"it has {state['parameters'].numel()} values, and this model {self.numel}")
        self.load_vector(state["parameters"])
        self.global_step = int(state["counters"][0])


class GossipManager:
    """The surface of `torchft.Manager` that `LocalSGD` and `DiLoCo` use.

    `fragments`: the modules that DiLoCo gets; for LocalSGD, a list of the one model. All parameters are exchanged.
    `keywords`: those of `p2ptrain.join` but for model, optimizer, evaluate and inner_steps.
    """

    def __init__(self, fragments: Sequence[nn.Module], **keywords: Any) -> None:
        self._use_async_quorum = False
        self._fragments = list(fragments)
        self._sizes = [sum(parameter.numel() for parameter in fragment.parameters()) for fragment in fragments]
        settings = {**SETTINGS, **keywords.pop("settings", {})}
        self._node = JoinedNode(self._learner, settings_of(**keywords, settings=settings), "genesis")
        self._pending: list[_Exchange] = []
        self._sent: _Sent | None = None
        self._step = 0
        self._error: Exception | None = None
        self._states: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._started = False
        self._model: ExchangedModel | None = None

    def __enter__(self) -> Self:
        """Join the swarm, and return once neighbours are there. Raises UsageError or RunError."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the swarm."""
        self._leave(cut_short=error is not None)

    def shutdown(self, wait: bool = True) -> None:
        """Leave the swarm."""
        self._leave(cut_short=False)

    def _leave(self, *, cut_short: bool) -> None:
        if self._started:
            self._started = False
            atexit.unregister(self.shutdown)
            self._node.stop(cut_short=cut_short)

    def start_quorum(self, **_: Any) -> None:
        """Begin an exchange: what `allreduce` gets from now on goes into one vector."""
        self._start()
        self._pending, self._sent = [], None

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = ReduceOp.AVG
    ) -> "_Exchange":
        """Have `tensor` averaged in place with all others of this exchange: published with the last of them, there when
        one of them was waited for. `should_quantize` is not looked at: `sync.compressor` decides. Raises UsageError for
        another operation."""
        if reduce_op != ReduceOp.AVG:
            raise UsageError(f"{reduce_op} cannot be had by gossip", "LocalSGD and DiLoCo average")
        self._pending.append(_Exchange(self, tensor))
        work, whole = self._pending[-1], sum(each.tensor.numel() for each in self._pending)
        if whole == self._sizes[self._index]:
            self._publish()
        return work

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Return whether what was exchanged may be used: not where an error was reported. Raises RunError where the
        node has failed."""
        error, self._error = self._error, None
        self._step += error is None
        return error is None

    def report_error(self, error: Exception) -> None:
        """Have the next `should_commit` say no."""
        self._error = error

    def errored(self) -> Exception | None:
        """Return the error that was reported since the last commit."""
        return self._error

    def current_step(self) -> int:
        """Return how many exchanges there were: it decides which fragment is next, alike at all members."""
        return self._step

    def num_participants(self) -> int:
        """Return how many members there are now, this one included."""
        return 1 + self._node.ask(lambda node: len(node.service.neighbours()))

    def is_participating(self) -> bool:
        """Return True: every member takes part in every exchange."""
        return True

    def allow_state_dict_read(self) -> None:
        """Do nothing: nobody reads the model while it trains."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing: nobody reads the model while it trains."""

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
        """Note a part of the state, for `state_dict`."""
        self._states[key] = (load, save)

    def state_dict(self) -> dict[str, Any]:
        """Return what the algorithms have registered: backups of parameters, states of outer optimizers."""
        return {key: save() for key, (_, save) in self._states.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up `state_dict`."""
        for key, (load, _) in self._states.items():
            if key in state:
                load(state[key])

    @property
    def addresses(self) -> list[str]:
        """Where other nodes reach this one: what they give as `peers`."""
        return list(self._node.addresses)

    def _start(self) -> None:
        if not self._started:
            self._node.start()
            self._started = True
            self._step = self._node.ask(lambda node: node.state.round)
            atexit.register(self.shutdown)

    def _learner(self, config: Config, peer_id: str) -> ExchangedModel:
        shard, seed = own_data(config, peer_id)
        self._model = ExchangedModel(self._fragments, config.train, shard, seed)
        return self._model

    @property
    def _index(self) -> int:
        """Which fragment is exchanged."""
        return self._step % len(self._sizes)

    def _publish(self) -> None:
        """Publish the fragment as it is now. The others stay what they were."""
        assert self._model is not None, "the node is there since start_quorum"
        begin = sum(self._sizes[: self._index])
        part = slice(begin, begin + self._sizes[self._index])
        own = flat([self._fragments[self._index]])
        told = torch.cat([each.tensor.detach().reshape(-1).float().cpu() for each in self._pending])
        self._sent = _Sent(part=part, own=own, is_model=torch.equal(told, own))
        self._model.values_d[part] = own
        self._node.step()

    def finish(self) -> None:
        """Wait until the round is closed, and write what came of it into all tensors of the exchange."""
        pending, self._pending = self._pending, []
        sent, self._sent = self._sent, None
        if sent is None or self._model is None:
            raise UsageError(
                f"fragment {self._index} has {self._sizes[self._index]} parameters, "
                f"and {sum(each.tensor.numel() for each in pending)} values are to be averaged",
                "give GossipManager the same list of modules as DiLoCo",
            )
        self._node.wait_closed()
        moved = self._model.values_d[sent.part] - sent.own  # from the own model to the members' aggregate
        parts = torch.split(moved if sent.is_model else -moved, [each.tensor.numel() for each in pending])
        for by, each in zip(parts, pending, strict=True):
            each.move(by)


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A fragment that was published."""

    part: slice
    """Where it is in the vector."""
    own: torch.Tensor
    """The model then, fp32, flat."""
    is_model: bool
    """Whether the tensors to be averaged are the model itself (LocalSGD), and no pseudo-gradients (DiLoCo)."""


class _Exchange:
    """torch's `Work`, as far as the algorithms use it: `wait`, and a future for what follows."""

    def __init__(self, manager: GossipManager, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._manager: GossipManager | None = manager
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the exchange, where nobody has yet."""
        if self._manager is not None:
            self._manager.finish()
        return True

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Return a future that is done with the exchange."""
        return self._future

    def move(self, by: torch.Tensor) -> None:
        """Add what makes the tensor the members' mean."""
        self._manager = None
        with torch.no_grad():
            self.tensor.add_(by.view(self.tensor.shape).to(self.tensor))
        self._future.set_result([self.tensor])


def _named(fragments: Sequence[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"{index}.{name}", parameter)
        for index, fragment in enumerate(fragments)
        for name, parameter in fragment.named_parameters()
    ]


def flat(fragments: Sequence[nn.Module]) -> torch.Tensor:
    """Return all parameters of modules as one vector: fp32 on the CPU, a copy."""
    return torch.cat([parameter.detach().reshape(-1).float().cpu() for _, parameter in _named(fragments)])
