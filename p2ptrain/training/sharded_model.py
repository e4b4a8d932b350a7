"""A model whose parameters are shared out among several processes (FSDP2, tensor parallelism), as one fp32 vector.

One of the ranks leads: it has the node, and the vector. To the swarm they are a member like any other, with the order
of coordinates that the whole model has in one process:

    leader     vector()  -> word GATHER  <- each rank's parts, once where several hold the same -> (d,) on the host
               add_(x_d) -> word ADD     -> each rank's parts of x_d, added where they lie
               a checkpoint's optimizer state, and one that is gone on from: tensor by tensor, likewise

Where the strategy's vectors lie in slices (p2ptrain/sync/sliced_averaging.py), no rank has the whole vector. Each has a
slice, which is another cut than that into parts: values travel between these two, and the vector is a `SlicedVector`.

    leader     vector()  -> word SLICE      -> each rank's parts to the ranks whose slices they are in
               add_(x_d) -> word ADD_SLICES -> and back

No rank but the leader holds more of the model than its own parts, and one tensor while an optimizer's state is taken
up. Parts travel as fp32 over a group of gloo that is used for nothing else: what the user's loop says between its ranks
is not in the way.

What a rank holds of a parameter is a block of it: DTensor says which, as torch.distributed.checkpoint asks it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from p2ptrain.saved.tensor_file import Storable
from p2ptrain.sync.model_slice import THETA, ModelSlice
from p2ptrain.sync.sliced_vectors import SlicedVector, SliceHolders, cuts_of
from p2ptrain.tasks.base import TaskError
from p2ptrain.training.flat import trainable
from p2ptrain.training.names import canonical
from p2ptrain.training.optimizer_state import Take, UnheldError, packed, unpack_into
from p2ptrain.training.parameter_vector import ParameterVector, is_sharded
from p2ptrain.training.slice_exchange import SliceExchange, gone
from p2ptrain.training.slice_ranks import SliceRanks, SliceThread
from p2ptrain.training.tensor_block import TensorBlock, are_whole

MISSING: Final = "its optimizer state is damaged: a tensor is missing"

PATIENCE_S: Final = 300.0
"""For the parts of a rank, which has taken the same step: a step's collectives were waited for already. Chosen."""


class Order(IntEnum):
    """What the leader wants of the other ranks. Each is followed by what travels for it."""

    GATHER = 16
    ADD = 17
    LOAD = 18
    PACK = 19
    UNPACK = 20
    LEVEL = 21
    """Take what is not cut, and not trained, as the leader has it: buffers, and frozen parameters."""
    CUT = 22
    """Hold a slice of the strategy's vectors from now on, or no longer."""
    SLICE = 23
    """Put the parameters into the slices."""
    ADD_SLICES = 24
    LOAD_SLICES = 25


def ranks_of_shards(model: nn.Module) -> list[int] | None:
    """Return the ranks among which parameters of `model` are shared out; None where none is. TaskError where they are
    not the same for all of these."""
    _reshard(_fsdp_modules(model))
    cut = [each for each in model.parameters() if is_sharded(each)]
    meshes = {tuple(each.device_mesh.mesh.flatten().tolist()) for each in cut}  # type: ignore[attr-defined]
    if not meshes:
        return None
    widest = max(meshes, key=len)
    if any(not set(each) <= set(widest) for each in meshes):
        raise TaskError("parameters are shared out among unlike ranks (pipeline stages), which cannot be averaged yet")
    return sorted(widest)


class ShardedModel:
    """The ranks of one sharded model, seen from one of them; in the leader with what `ParameterVector` has.

    Collective: all ranks make one together. Then the leader calls the methods, and the others `follow` each `Order`
    that `tell` has told them. TaskError, in all ranks, for what cannot be averaged. `beside`: a group of the same ranks
    for what is asked of their slices while they train.
    """

    is_finer: Final = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        group: dist.ProcessGroup,
        beside: dist.ProcessGroup,
        tell: Callable[[Order], None],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        named = trainable(model)
        self.names = [canonical(name) for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.numel = sum(self.sizes)
        self._optimizer = optimizer
        self._fsdp = _fsdp_modules(model)
        self._untrained = [
            *(each for each in model.parameters() if not each.requires_grad),
            *(each for each in model.buffers() if not is_sharded(each)),
        ]
        self._names = {id(parameter): canonical(name) for name, parameter in model.named_parameters()}
        self._group, self._tell, self._patience = group, tell, timedelta(seconds=patience_s)
        self._beside = beside
        self._rank, self._count = dist.get_group_rank(group, dist.get_rank()), dist.get_world_size(group)
        self.doubt = ""
        """What its user should know of how it takes part."""
        self.scratch: Path | None = None
        """A folder for the optimizer's state, which is whole in a file alone; None: in memory."""
        self.left = False
        """Whether the other ranks are asked for nothing (any more): they may be gone."""
        self.part: ModelSlice | None = None
        """What this rank holds of the strategy's vectors, where they lie in slices; None where it holds none."""
        self._exchange: SliceExchange | None = None
        self._slices: SliceRanks | None = None
        """In the leader."""
        self._thread: SliceThread | None = None
        """In the others."""
        self._here: list[torch.Tensor] = []
        """What this rank holds of each parameter."""
        self._blocks: list[list[TensorBlock]] = []
        """By rank, and parameter."""
        self._brings: list[list[int]] = []
        """By rank: the parameters of which it is the first that holds its block."""
        blocks = self._agreed(lambda: self._looked_at(model))
        self._agreed(lambda: self._laid_out(blocks))
        self._local = ParameterVector.over(list(zip(self.names, self._here, strict=True)))

    @property
    def leads(self) -> bool:
        """Whether this rank has the node."""
        return self._rank == 0

    @property
    def device(self) -> torch.device:
        """Where this rank's first part is."""
        return self._local.device

    @property
    def is_rounded(self) -> bool:
        """Whether a parameter has fewer bits than fp32."""
        return self._local.is_rounded

    def finer(self) -> dict[str, torch.Tensor]:
        """Return nothing: parameters in float64 are refused."""
        return {}

    def add_finer_(self, rests: Mapping[str, torch.Tensor]) -> None:
        """Do nothing."""

    def check_same(self, model: nn.Module) -> None:
        """Raise TaskError where a parameter is no longer `model`'s, or no longer where it was at the join."""
        _reshard(self._fsdp)
        there = {id(parameter) for parameter in model.parameters()}
        for name, parameter, here in zip(self.names, self.parameters, self._here, strict=True):
            if id(parameter) not in there or _local(parameter).data_ptr() != here.data_ptr():
                raise TaskError(
                    f"parameter {name} was replaced, moved or converted after the join: leave the swarm before that, "
                    "and join again with the new model and run_dir"
                )

    @property
    def slices(self) -> SliceHolders | None:
        """The ranks that hold slices, in the leader; None where vectors are whole."""
        return self._slices

    def cut(self, unit: int | None) -> None:
        """Have all ranks hold a slice each of the strategy's vectors, which begins at a multiple of `unit`; None: the
        leader holds whole ones."""
        with self._ordered(Order.CUT):
            self._hold(_broadcast(unit, self._group))

    def end_slices(self, *, waits: bool) -> None:
        """Ask nothing more of the slices, or `waits` until the leader does not. Not collective."""
        if self._slices is not None:
            self._slices.end()
        if self._thread is not None and waits:
            self._thread.join()

    def vector(self) -> torch.Tensor:
        """Return a copy of the whole model's parameters: fp32 (d,) on the CPU, or in slices."""
        if self._slices is not None:
            with self._ordered(Order.SLICE):
                self._fill_slices()
            return SlicedVector.of(self._slices, THETA)
        x_d = torch.empty(self.numel, device="cpu", dtype=torch.float32)
        wholes = self._wholes(x_d)
        with self._ordered(Order.GATHER):
            for rank in range(self._count):
                told_p = self._brought() if rank == self._rank else self._received(self._numel_brought(rank), rank)
                brings, blocks = self._brings[rank], self._blocks[rank]
                pieces = torch.split(told_p, [blocks[index].numel for index in brings])
                for index, piece_p in zip(brings, pieces, strict=True):
                    blocks[index].of(wholes[index]).copy_(piece_p.view(blocks[index].sizes))
        return x_d

    def add_(self, x_d: torch.Tensor) -> None:
        """Add `x_d` (d,) to the parameters; it is used up where it is in slices. ValueError on another shape."""
        if isinstance(x_d, SlicedVector):
            with self._ordered(Order.ADD_SLICES):
                self._local.add_(self._of_slices(x_d.key))
            return
        wholes = self._wholes(x_d)
        with self._ordered(Order.ADD):
            self._local.add_(self._dealt(wholes))

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the parameters to `x_d` (d,), as `add_`."""
        if isinstance(x_d, SlicedVector):
            with self._ordered(Order.LOAD_SLICES):
                self._local.load_(self._of_slices(x_d.key))
            return
        wholes = self._wholes(x_d)
        with self._ordered(Order.LOAD):
            self._local.load_(self._dealt(wholes))

    def level(self) -> None:
        """Make what several ranks have whole the leader's: replicated parameters, frozen ones and buffers."""
        self.load_(self.vector())
        with self._ordered(Order.LEVEL):
            self._share_untrained()

    def packed_optimizer(self, take: Take) -> tuple[dict[str, Storable], list[str]]:
        """Return the optimizer's state as `packed` does, of the whole model, and what no file can hold."""
        assert self._optimizer is not None
        with self._ordered(Order.PACK):
            return packed(self._optimizer, self._names, lambda value: take(self._whole(value)))

    def unpack_optimizer(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Give the optimizer, in every rank its part of, a state of the whole model. ValueError, with nothing changed,
        where it is of another optimizer or damaged."""
        assert self._optimizer is not None
        with self._ordered(Order.UNPACK):
            unpack_into(self._optimizer, self._names, _Shared(saved, self._group), self._part)

    def follow(self, order: Order) -> None:
        """Do what the leader wants of this rank. ValueError as in the leader, where it refuses a state."""
        _reshard(self._fsdp)
        match order:
            case Order.GATHER:
                self._sent(self._brought(), 0)
            case Order.ADD:
                self._local.add_(self._received(self._local.numel, 0))
            case Order.LOAD:
                self._local.load_(self._received(self._local.numel, 0))
            case Order.PACK:
                assert self._optimizer is not None
                packed(self._optimizer, self._names, self._whole)
            case Order.UNPACK:
                assert self._optimizer is not None
                unpack_into(self._optimizer, self._names, _Shared(None, self._group), self._part)
            case Order.LEVEL:
                self._share_untrained()
            case Order.CUT:
                self._hold(_broadcast(None, self._group))
            case Order.SLICE:
                self._fill_slices()
            case Order.ADD_SLICES:
                self._local.add_(self._of_slices(None))
            case Order.LOAD_SLICES:
                self._local.load_(self._of_slices(None))

    def _agreed(self, look: Callable[[], Any]) -> list[Any]:
        """What `look` returns in each rank. TaskError, in all, where it raises one in any."""
        try:
            found: Any = look()
        except TaskError as error:
            found = error
        each: list[Any] = [None] * self._count
        dist.all_gather_object(each, found, self._group)
        for rank, one in enumerate(each):
            if isinstance(one, TaskError):
                raise one if rank == self._rank else TaskError(f"rank {rank}: {one}")
        return each

    def _looked_at(self, model: nn.Module) -> list[TensorBlock]:
        """This rank's block of each parameter; those are kept that it holds."""
        frozen = [name for name, each in model.named_parameters() if not each.requires_grad and is_sharded(each)]
        if frozen:
            raise TaskError(f"parameter {frozen[0]} is frozen and sharded: leave it out of what is shared out")
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.dtype is torch.float64:
                raise TaskError(f"parameter {name} is in float64 and the model sharded: take float32")
        blocks = [_block(name, each) for name, each in zip(self.names, self.parameters, strict=True)]
        self._here = [_local(parameter) for parameter in self.parameters]
        return blocks

    def _laid_out(self, blocks: list[list[TensorBlock]]) -> None:
        """Note who has what; TaskError where the blocks are not the whole."""
        self._blocks, self._brings = blocks, [[] for _ in blocks]
        if len({len(each) for each in blocks}) > 1:
            raise TaskError("ranks have unlike parameters (pipeline stages), which cannot be averaged yet")
        for index, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            seen: set[TensorBlock] = set()
            for rank, held in enumerate(blocks):
                if held[index] not in seen and held[index].numel:
                    self._brings[rank].append(index)
                seen.add(held[index])
            if not are_whole(seen, size):
                raise TaskError(f"parameter {name} is shared out in a way that this version cannot put together")

    @contextmanager
    def _ordered(self, order: Order) -> Iterator[None]:
        """What the leader does of an order. Where it is interrupted in the midst, ranks may have parts of one state and
        parts of another: nothing is asked, nor saved, after that."""
        if self.left:
            raise TaskError(
                "ended between two rounds: this rank has a part of the model alone, and the others may be gone; the "
                "newest checkpoint stays as it is"
            )
        _reshard(self._fsdp)
        try:
            self._tell(order)
            yield
        except BaseException as error:
            is_refused = order is Order.UNPACK and isinstance(error, ValueError)  # by all alike, with nothing changed
            self.left = not is_refused
            raise

    def _hold(self, unit: int | None) -> None:
        """Hold this rank's slice, where vectors are cut at multiples of `unit`."""
        self.end_slices(waits=True)
        self.part = self._exchange = self._slices = self._thread = None
        if unit is None:
            return
        cuts = cuts_of(self.numel, self._count, unit)
        self._exchange = SliceExchange(
            group=self._group,
            rank=self._rank,
            shapes=[tuple(parameter.shape) for parameter in self.parameters],
            blocks=self._blocks,
            brings=self._brings,
            cuts=cuts,
            patience=self._patience,
        )
        if self._rank >= len(cuts):
            return
        self.part = ModelSlice(cuts[self._rank])
        if self.leads:
            self._slices = SliceRanks(self._beside, cuts, self.part, self._patience)
        else:
            self._thread = SliceThread(self._beside, self.part, self._patience)

    def _fill_slices(self) -> None:
        assert self._exchange is not None, "it was cut"
        x_s = self._exchange.up(self._local.vector())
        if self.part is not None:
            self.part.hold(THETA, x_s)
        if not self.leads:
            self._sent(torch.zeros(1, device="cpu", dtype=torch.float32), 0)
            return
        for rank in range(1, self._count):  # what is asked of a slice next comes to its thread at once
            self._received(1, rank)

    def _of_slices(self, key: str | None) -> torch.Tensor:
        """What this rank holds of the vector that the leader gives the name of, one parameter after another."""
        assert self._exchange is not None, "it was cut"
        key = _broadcast(key, self._group)
        return self._exchange.down(
            torch.empty(0, device="cpu", dtype=torch.float32) if self.part is None else self.part.taken(key)
        )

    def _dealt(self, wholes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Send each rank its parts, and return one's own."""
        for rank in range(1, self._count):
            self._sent(_joined(self._blocks[rank], wholes), rank)
        return _joined(self._blocks[0], wholes)

    def _share_untrained(self) -> None:
        leader = dist.get_global_rank(self._group, 0)
        with torch.no_grad():
            for each in self._untrained:
                value = each.detach().to("cpu", copy=True).contiguous()
                if value.numel():
                    dist.broadcast(value.view(-1).view(torch.uint8), leader, self._group)
                    each.copy_(value)

    def _wholes(self, x_d: torch.Tensor) -> list[torch.Tensor]:
        """The parts of `x_d` by parameter, each in its shape. ValueError on another shape."""
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        pieces = torch.split(x_d, self.sizes)
        return [piece.view(each.shape) for piece, each in zip(pieces, self.parameters, strict=True)]

    def _brought(self) -> torch.Tensor:
        """What this rank brings of the vector."""
        pieces = torch.split(self._local.vector(), self._local.sizes)
        brings = self._brings[self._rank]
        return (
            torch.cat([pieces[index] for index in brings])
            if brings
            else torch.empty(0, device="cpu", dtype=torch.float32)
        )

    def _numel_brought(self, rank: int) -> int:
        return sum(self._blocks[rank][index].numel for index in self._brings[rank])

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of the optimizer's, whole where it is sharded: in the leader, others have no use for it."""
        if not is_sharded(value):
            return value
        index, local = self._like(value), _local(value).to("cpu").contiguous()
        if not self.leads:
            if index in self._brings[self._rank]:
                self._sent(local, 0)
            return torch.empty(0, device="cpu", dtype=torch.float32)
        whole = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        for rank in range(self._count):
            if index in self._brings[rank]:
                block = self._blocks[rank][index]
                part = local if rank == 0 else self._received(block.numel, rank, value.dtype).view(block.sizes)
                block.of(whole).copy_(part)
        return whole

    def _part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """This rank's part of `whole`, sharded as the parameter `like` is."""
        from torch.distributed.tensor import DTensor

        assert isinstance(like, DTensor)
        local = self._blocks[self._rank][self._like(like)].of(whole).to(like.device, copy=True).contiguous()
        return DTensor.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def _like(self, value: torch.Tensor) -> int:
        """The number of a parameter that is shared out as `value` is."""
        shared = _sharing(value)
        for index, parameter in enumerate(self.parameters):
            if is_sharded(parameter) and _sharing(parameter) == shared:
                return index
        raise UnheldError("cut unlike any parameter")

    def _sent(self, x_p: torch.Tensor, rank: int) -> None:
        if x_p.numel():
            try:
                leaving = dist.isend(x_p, dist.get_global_rank(self._group, rank), self._group)
                assert leaving is not None, "this rank is of the group"
                leaving.wait(self._patience)
            except RuntimeError as error:
                gone(rank, error)

    def _received(self, numel: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        x_p = torch.empty(numel, dtype=dtype, device="cpu")
        if numel:
            try:
                arriving = dist.irecv(x_p, dist.get_global_rank(self._group, rank), self._group)
                assert arriving is not None, "this rank is of the group"
                arriving.wait(self._patience)
            except RuntimeError as error:
                gone(rank, error)
        return x_p


class _Shared(Mapping[str, torch.Tensor]):
    """A state that the leader has: all ranks ask for the same tensors, one after another, and each gets them. `saved`:
    None in the others."""

    def __init__(self, saved: Mapping[str, torch.Tensor] | None, group: dist.ProcessGroup) -> None:
        self._saved, self._group = saved, group

    def __getitem__(self, path: str) -> torch.Tensor:
        value = None if self._saved is None else self._saved.get(path)
        form = _broadcast(None if value is None else (tuple(value.shape), value.dtype), self._group)
        if form is None:
            raise ValueError(MISSING)
        whole = torch.empty(form[0], dtype=form[1], device="cpu") if value is None else value.to("cpu").contiguous()
        if whole.numel():
            dist.broadcast(whole, dist.get_global_rank(self._group, 0), self._group)
        return whole

    def __contains__(self, path: object) -> bool:
        return True  # what is missing is found in all ranks together, as it is asked for

    def __iter__(self) -> Iterator[str]:
        return iter(self._saved or ())

    def __len__(self) -> int:
        return len(self._saved or ())


def _broadcast(found: Any, group: dist.ProcessGroup) -> Any:
    box = [found]
    dist.broadcast_object_list(box, dist.get_global_rank(group, 0), group)
    return box[0]


def _fsdp_modules(model: nn.Module) -> list[Any]:
    """Those of `fully_shard`, by name for the same reason as in `is_sharded`."""
    return [each for each in model.modules() if any(kind.__name__ == "FSDPModule" for kind in type(each).__mro__)]


def _reshard(modules: Sequence[Any]) -> None:
    """Have FSDP2 let go of what it has gathered: after a forward pass without a backward pass the model's parameters
    are whole copies, which its optimizer does not move."""
    for each in modules:
        each.reshard()


def _sharing(value: torch.Tensor) -> tuple[Any, ...]:
    return value.shape, value.device_mesh, value.placements  # type: ignore[attr-defined]  # a DTensor


def _local(value: torch.Tensor) -> torch.Tensor:
    if value.is_meta:
        return torch.empty((0,) * value.ndim, dtype=value.dtype, device="cpu")
    with torch.no_grad():
        return value.to_local() if is_sharded(value) else value.detach()  # type: ignore[attr-defined]  # a DTensor


def _block(name: str, parameter: torch.Tensor) -> TensorBlock:
    """What this rank holds of a parameter. TaskError where that is no block of it."""
    if parameter.is_meta:  # another rank's stage of a pipeline has it
        return TensorBlock((0,) * parameter.ndim, (0,) * parameter.ndim)
    if not is_sharded(parameter):
        return TensorBlock((0,) * parameter.ndim, tuple(parameter.shape))
    if any(each.is_partial() for each in parameter.placements):  # type: ignore[attr-defined]
        raise TaskError(f"parameter {name} is a sum over ranks, which cannot be averaged")
    chunks = parameter.__create_chunk_list__()  # type: ignore[attr-defined]
    if len(chunks) != 1:
        raise TaskError(f"parameter {name} is shared out in a way that this version cannot put together")
    return TensorBlock(tuple(chunks[0].offsets), tuple(chunks[0].sizes))


def _joined(blocks: Sequence[TensorBlock], wholes: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([block.of(whole).reshape(-1) for block, whole in zip(blocks, wholes, strict=True)])
