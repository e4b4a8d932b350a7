"""What every rank of sharded models finds: `torchrun --nproc-per-node 4 sharded_ranks.py OUT`, read by
test_sharded_model.py."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from p2ptrain.saved.tensor_file import FiledTensor, pieces_of
from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.training.optimizer_state import packed
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.sharded_model import Order, ShardedModel, ranks_of_shards
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.user_model import UserModel

RANKS = 4


def model_of() -> nn.Sequential:
    """Rows that no number of ranks divides, and a bias with fewer values than there are ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 6, bias=False), nn.Tanh(), nn.Linear(6, 3))


def fsdp(model: nn.Module) -> None:
    fully_shard(model)


def tensor_parallel(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def both(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])


def replicated_shards(model: nn.Module) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    kind = next(model.parameters()).dtype
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)).to(kind)
    (model(x) * 1.0).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Site:
    """The leader tells its orders; the others follow until it has ended."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.told = torch.zeros(1, dtype=torch.int64)
        self.shards = ShardedModel(model, optimizer, dist.group.WORLD, dist.new_group(), lambda order: self._say(order))

    def _say(self, word: int) -> int:
        self.told.fill_(word)
        dist.broadcast(self.told, 0)
        return int(self.told)

    def led(self, work: Callable[[ShardedModel], Any]) -> Any:
        """What `work` returns in the leader, None in the others."""
        if self.shards.leads:
            try:
                return work(self.shards)
            finally:
                self._say(0)
        refused: ValueError | None = None
        while word := self._say(0):
            try:
                self.shards.follow(Order(word))
            except ValueError as error:
                refused = error
        if refused is not None:
            raise refused
        return None


def sharded_as(cut: Callable[[nn.Module], None]) -> dict[str, Any]:
    """Differences to one process that does the same."""
    model, one = model_of(), model_of()
    cut(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    alone = torch.optim.AdamW(one.parameters(), lr=1e-2, foreach=False)
    for seed in range(3):
        step(model, optimizer, seed)
        step(one, alone, seed)
    site, whole = Site(model, optimizer), ParameterVector(one)
    shift_d = torch.linspace(-1, 1, whole.numel)
    found: dict[str, Any] = {"ranks": ranks_of_shards(model), "names": site.shards.names == whole.names}

    def far(shards: ShardedModel) -> float:
        return float((shards.vector() - whole.vector()).abs().max())

    found["vector"] = site.led(far)
    whole.add_(shift_d)
    site.led(lambda shards: shards.add_(shift_d))
    found["added"] = site.led(far)
    state = site.led(lambda shards: shards.packed_optimizer(lambda value: value.to("cpu", copy=True)))
    expected, _ = packed(alone, {id(each): name for name, each in one.named_parameters()}, torch.clone)
    if state is not None:
        tensors, left_out = state
        found["left_out"] = left_out
        found["same entries"] = tensors.keys() == expected.keys()
        found["state"] = max(float((tensors[name].float() - expected[name].float()).abs().max()) for name in expected)
    for seed in range(3, 5):  # further, and back by what one process has kept
        step(model, optimizer, seed)
    site.led(lambda shards: shards.load_(whole.vector()))
    site.led(lambda shards: shards.unpack_optimizer(expected))
    step(model, optimizer, 9)
    step(one, alone, 9)
    found["loaded"] = site.led(far)
    other = {**expected, "tree": expected["tree"].clone()}
    other["tree"] = torch.frombuffer(
        bytearray(bytes(other["tree"].numpy()).replace(b"AdamW", b"Adamw")), dtype=torch.uint8
    )
    found["refused"] = raised(lambda: site.led(lambda shards: shards.unpack_optimizer(other)))
    dist.barrier()
    return found


def rounded() -> dict[str, Any]:
    """Small corrections in bf16, whose rests each rank keeps of its own part."""
    model, one = model_of().bfloat16(), ParameterVector(model_of().bfloat16())
    fully_shard(model)
    site = Site(model)
    shift_d = torch.full((one.numel,), 1e-4)
    for _ in range(64):
        site.led(lambda shards: shards.add_(shift_d))
        one.add_(shift_d)
    return {
        "rounded": site.shards.is_rounded,
        "far": site.led(lambda it: float((it.vector() - one.vector()).abs().max())),
    }


def raised(work: Callable[[], Any]) -> str:
    """What `work` is refused with."""
    try:
        work()
    except (TaskError, ValueError) as error:
        return str(error)
    return ""


def refusals() -> dict[str, str]:
    double, frozen, replaced = model_of().double(), model_of(), model_of()
    frozen[0].requires_grad_(False)
    for each in (double, frozen, replaced):
        fully_shard(each)
    site = Site(replaced)
    replaced[0].weight = nn.Parameter(replaced[0].weight.detach().clone())
    site.shards.left = True
    return {
        "float64": raised(lambda: Site(double)),
        "frozen": raised(lambda: Site(frozen)),
        "replaced": raised(lambda: site.shards.check_same(replaced)),
        "left": raised(site.shards.vector),
        "one rank alone": raised(lambda: ParameterVector(replaced)),
        "shape": raised(lambda: site.shards.add_(torch.zeros(3))),
    }


def asked_within_a_step() -> float:
    """The gradients' difference to those of one process, where the node asks for names in the midst of the backward
    pass."""
    model, one = model_of(), model_of()
    fully_shard(model)
    site = Site(model)
    learner = UserModel(model, None, TrainConfig(), Shard(), data_seed=0, shards=site.shards)
    layouts = []

    def ask(module: nn.Module, given: Any, out: torch.Tensor) -> None:
        out.register_hook(lambda grad: layouts.append(learner.layout()))

    model[3].register_forward_hook(ask)
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    (model(x) * 1.0).square().mean().backward()
    (layout,) = layouts
    assert layout is not None
    assert [entry.name for entry in layout.parameters] == site.shards.names
    (one(x) * 1.0).square().mean().backward()
    pairs = zip(model.parameters(), one.parameters(), strict=True)
    return max(float((sharded.grad.full_tensor() - whole.grad).abs().max()) for sharded, whole in pairs)


def after_an_evaluation() -> dict[str, Any]:
    """FSDP2 leaves whole copies in the model after a forward pass alone."""
    model, one = model_of(), model_of()
    fully_shard(model)
    with torch.no_grad():
        model(torch.zeros(1, 7))
    seen = ranks_of_shards(model)
    site = Site(model)
    with torch.no_grad():
        model(torch.zeros(1, 7))
    site.shards.check_same(model)
    site.led(lambda shards: shards.add_(torch.ones(shards.numel)))
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for each in one.parameters():
            each.add_(1.0)
        far = float((model(x) - one(x)).abs().max())
    return {"ranks": seen, "far": far}


class Means(torch.optim.Optimizer):
    """Keeps the means of columns, cut as no parameter is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.ndim == 2:
                    self.state[each]["means"] = each.detach().mean(dim=0)


def unheld() -> list[str]:
    """What of such a state fits into no file."""
    model = model_of()
    fully_shard(model)
    optimizer = Means(model)
    optimizer.step()
    packed_state = Site(model, optimizer).led(lambda shards: shards.packed_optimizer(torch.clone))
    return [] if packed_state is None else packed_state[1]


def levelled() -> list[float]:
    """A buffer, a frozen parameter and a replicated one, each unlike in each rank at first."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    rank = dist.get_rank()
    with torch.no_grad():
        for each in (*model.parameters(), model[1].running_mean):
            each.fill_(float(rank))
        model[1].num_batches_tracked.fill_(rank)
    model[0].requires_grad_(False)
    fully_shard(model, ignored_params={*model[0].parameters(), *model[1].parameters()})
    Site(model).led(lambda shards: shards.level())
    whole = [*model[0].parameters(), *model[1].parameters(), model[1].running_mean, model[1].num_batches_tracked]
    return [float(each.abs().max()) for each in whole]


def interrupted() -> dict[str, str]:
    """The leader is interrupted while it hands out a correction; and a state lacks a tensor."""
    model, stepped = model_of(), model_of()
    fully_shard(model)
    optimizer, alone = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(stepped.parameters())
    step(stepped, alone, 0)
    saved, _ = packed(alone, {id(each): name for name, each in stepped.named_parameters()}, torch.clone)
    saved.pop(next(name for name in saved if name.endswith("exp_avg")))
    site = Site(model, optimizer)
    found = {"missing": raised(lambda: site.led(lambda shards: shards.unpack_optimizer(saved)))}

    def cut(shards: ShardedModel) -> str:
        local, shards._local = shards._local, Interrupting()
        try:
            shards.add_(torch.ones(shards.numel))
        except KeyboardInterrupt:
            shards._local = local
        return raised(shards.vector)

    found["interrupted"] = site.led(cut) or ""
    dist.barrier()
    return found


class Interrupting:
    """Is interrupted where a rank's own parts are added."""

    def add_(self, x_p: torch.Tensor) -> None:
        raise KeyboardInterrupt


def filed(out: Path) -> dict[str, Any]:
    """Whether the optimizer's state is put together in a file, and is what it is in memory."""
    model = model_of()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    step(model, optimizer, 0)
    site = Site(model, optimizer)
    learner = UserModel(model, optimizer, TrainConfig(), Shard(), data_seed=0, shards=site.shards)
    site.shards.scratch = out
    view = site.led(lambda shards: learner.state_view())
    site.shards.scratch = out / "no such folder"
    held = site.led(lambda shards: learner.state_view())
    state = site.led(lambda shards: learner.state_dict())
    if view is None:
        return {}
    moments = [name for name in view if name.endswith(("exp_avg", "exp_avg_sq"))]
    return {
        "filed": all(isinstance(view[name], FiledTensor) for name in moments),
        "in memory": all(isinstance(held[name], torch.Tensor) for name in moments),
        "same": all(b"".join(pieces_of(view[name])) == b"".join(pieces_of(value)) for name, value in state.items()),
        "names": view.keys() == state.keys() == held.keys(),
        "moments": len(moments),
    }


def silent() -> str:
    """What the leader finds of a rank that has been told an order and does not follow it."""
    model = model_of()
    fully_shard(model)
    words = dist.new_group(list(range(RANKS)), backend="gloo")
    shards = ShardedModel(model, None, words, words, lambda order: None, patience_s=0.5)
    found = raised(shards.vector) if shards.leads else ""
    dist.barrier()
    return found


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cuts = (fsdp, tensor_parallel, both, replicated_shards)
    found = {cut.__name__: sharded_as(cut) for cut in cuts} | {
        "rounded": rounded(),
        "refusals": refusals(),
        "asked": asked_within_a_step(),
        "evaluated": after_an_evaluation(),
        "unheld": unheld(),
        "levelled": levelled(),
        "interrupted": interrupted(),
        "filed": filed(out),
        "silent": silent(),
    }
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads outlive the group, and may abort a process that ends


if __name__ == "__main__":
    main()
