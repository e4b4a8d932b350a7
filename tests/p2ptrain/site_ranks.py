"""What the ranks of a site come to, beside one process: `python site_ranks.py RANKS OUT CASE...`, read by
test_site.py. Rank 0 compares; the others follow it, forked from it once the libraries are imported."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from p2ptrain.tasks.base import Batch, Shard, TaskError
from p2ptrain.tasks.byte_lm import ByteLM
from p2ptrain.tasks.byte_lm.task import EVAL_BATCH
from p2ptrain.training.site.orders import OrderChannel
from p2ptrain.training.site.site_config import SiteConfig
from p2ptrain.training.site.site_rank import SiteRank
from p2ptrain.training.site.site_trainer import RankThread, SiteTrainer
from p2ptrain.training.train_config import TrainConfig
from p2ptrain.training.trainer import Trainer

STEPS = 4
SHARD, DATA_SEED = Shard(index=1, count=3), 11
CONFIG = TrainConfig(rounds=10, inner_steps=5, warmup_steps=3, batch_size=8, eval_examples=70, device="cpu", threads=1)
FAULTY_STEP = 1
ALONE = ("tensor and replicas", "pipeline and tensors")
"""Cases that want processes of their own: two meshes in which tensors are shared out by the same ranks cannot be in
one."""
MORE = "more"
"""What is found beside the cases; asked for as one of them."""


class Heads(ByteLM):
    """Of pico's size, with heads that four ranks can share."""

    def __init__(self) -> None:
        super().__init__("pico")
        self.size = replace(self.size, heads=4)


class Deep(Heads):
    """With a block for each of four stages."""

    def __init__(self) -> None:
        super().__init__()
        self.size = replace(self.size, layers=4)


class Counting(TorchDispatchMode):
    """Counts the calls of operations with this word in their name."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.calls = word, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += self.word in str(func)
        return func(*args, **(kwargs or {}))


class Faulty(Deep):
    """Whose loss is no number in one step, in the last rank alone."""

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        self.step = step
        return super().train_batch(step, seed=seed, shard=shard, size=size)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = super().loss(model, batch)
        fails = model.training and self.step == FAULTY_STEP and dist.get_rank() == dist.get_world_size() - 1
        return loss * torch.nan if fails else loss


class Told(Deep):
    """With metrics of its own."""

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return {"accuracy": float((model(batch[0]).argmax(-1) == batch[1]).float().mean())}


class FailsAtMetrics(Told):
    """Whose metrics are no numbers, from the second batch on."""

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return super().metrics(model, batch) if len(batch[0]) == EVAL_BATCH else {"accuracy": "none"}  # type: ignore[dict-item]


class FailsInOne(Told):
    """Whose metrics fail in the last rank alone, before the model is called and after it, in turn."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        fails = dist.get_rank() == dist.get_world_size() - 1
        if self.late or not fails:
            super().metrics(model, batch)
        return {"accuracy": "none" if fails else 1.0}  # type: ignore[dict-item]


class FailsAfterwards(Told):
    """That cannot say what follows from a loss."""

    def derived_metrics(self, loss: float) -> dict[str, float]:
        raise ValueError("a user's own")


class TiedModel(nn.Module):
    """A user's: one matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(256, 16), nn.Linear(16, 16), nn.Linear(16, 256, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.hidden(self.embedding(tokens)).relu())
        return out


class OwnTask(ByteLM):
    """A user's: two stages of plain modules, and a loss on some of the targets."""

    def __init__(self) -> None:
        super().__init__("pico")

    def build_model(self) -> nn.Module:
        return TiedModel()

    def cut_stages(self, model: nn.Module, stages: int) -> list[nn.Module]:
        assert isinstance(model, TiedModel)
        return [nn.Sequential(model.embedding, model.hidden), nn.Sequential(nn.ReLU(), model.out)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        asked = batch[1] % 3 > 0
        return nn.functional.cross_entropy(model(batch[0])[asked], batch[1][asked])

    def tokens(self, batch: Batch) -> int:
        return int((batch[1] % 3 > 0).sum())


class Layer(nn.Module):
    """Adds something to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).relu()


class OddModel(nn.Module):
    """Of what FSDP2 does not cut by itself: a number, an empty parameter, one that is not contiguous, one in bf16, one
    that a block has in common with the model, a block that is there twice, and lists of lists."""

    def __init__(self) -> None:
        super().__init__()
        twice = Layer()
        self.layers = nn.ModuleList([nn.Embedding(256, 16), nn.ModuleList([Layer(), twice]), twice, Layer()])
        self.layers[3].linear.bias = self.layers[2].linear.bias
        self.out = nn.Linear(16, 256, bias=False)
        self.out.weight = self.layers[0].weight
        self.turned, self.empty = nn.Parameter(torch.randn(16, 8).t() / 8), nn.Parameter(torch.zeros(0, 4))
        self.scale, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.zeros(1))
        self.layers[0].weight.data /= 8
        self.float()
        self.scale.data = self.scale.data.to(torch.bfloat16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](tokens)
        for layer in (*self.layers[1], self.layers[2], self.layers[3]):
            x = layer(x)
        x = (x + (x @ self.turned.t()) @ self.turned) * self.scale + self.shift + self.empty.sum()
        out: torch.Tensor = self.out(x)
        return out


class Experts(nn.Module):
    """Each computes the examples that are its own, where there are some."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
        for own, expert in zip((is_first, ~is_first), self.experts, strict=True):
            if own.any():
                x = x.index_put((own.nonzero()[:, 0],), expert(x[own]))
        return x


class ExpertModel(nn.Module):
    """One whose ranks use other parameters than each other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers, self.out = nn.Embedding(256, 16), nn.ModuleList([Experts()]), nn.Linear(16, 256)
        self.float()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.layers[0](self.embedding(tokens), tokens[:, 0] % 2 == 0))
        return out


class OfModel(ByteLM):
    """A user's, for any model of next bytes."""

    keeps_dtypes = True

    def __init__(self, made: Callable[[], nn.Module]) -> None:
        super().__init__("pico")
        self.made = made

    def build_model(self) -> nn.Module:
        return self.made()

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def cases(ranks: int) -> dict[str, tuple[SiteConfig, TrainConfig]]:
    """By name, how the model is cut, and how it is trained."""
    found = {
        "sharded": (SiteConfig(), CONFIG),
        "checkpointed": (SiteConfig(activation_checkpointing=True), CONFIG),
        "accumulated": (SiteConfig(), replace(CONFIG, grad_accumulation=3)),
        "batches dealt": (SiteConfig(), replace(CONFIG, batch_size=3, grad_accumulation=ranks)),
        "fewer examples than ranks": (SiteConfig(), replace(CONFIG, batch_size=1)),
        "sgd": (SiteConfig(), replace(CONFIG, optimizer="sgd", learning_rate=0.1)),
        "schedule_free": (SiteConfig(), replace(CONFIG, optimizer="schedule_free")),
    }
    interleaved = SiteConfig(pipeline=2, pipeline_schedule="interleaved")
    if ranks == 2:
        found["tensor"] = (SiteConfig(tensor=2), CONFIG)
        found["tensor, checkpointed"] = (SiteConfig(tensor=2, activation_checkpointing=True), CONFIG)
        found["offloaded"] = (SiteConfig(offload=True), CONFIG)
        found["pipeline"] = (SiteConfig(pipeline=2), CONFIG)
        found["pipeline, accumulated"] = (SiteConfig(pipeline=2, micro_batches=6), replace(CONFIG, grad_accumulation=3))
        found["pipeline, interleaved"] = (interleaved, replace(CONFIG, optimizer="schedule_free"))
    if ranks == 4:
        found["replicas"] = (SiteConfig(shard=2), CONFIG)
        found["tensor by 4"] = (SiteConfig(tensor=4), CONFIG)
        found["tensor and shards"] = (SiteConfig(tensor=2), CONFIG)
        found["tensor and shards, accumulated"] = (SiteConfig(tensor=2), replace(CONFIG, grad_accumulation=3))
        found["pipeline by 4"] = (SiteConfig(pipeline=4, activation_checkpointing=True), CONFIG)
        clipped = replace(CONFIG, optimizer="sgd", learning_rate=0.03, grad_accumulation=3)
        found["pipeline and shards"] = (SiteConfig(pipeline=2), clipped)
        found["pipeline and shards, interleaved"] = (interleaved, CONFIG)
        found["pipeline and replicas, batches dealt"] = (
            SiteConfig(pipeline=2, shard=1),
            replace(CONFIG, batch_size=3, grad_accumulation=2),
        )
        found["pipeline and tensors"] = (SiteConfig(pipeline=2, tensor=2), CONFIG)
        found["tensor and replicas"] = (SiteConfig(tensor=2, shard=1), CONFIG)
    return found


def rank_of(task: ByteLM, site: SiteConfig, config: TrainConfig, orders: OrderChannel) -> SiteRank:
    return SiteRank(task, config, site, SHARD, orders, data_seed=DATA_SEED, device=torch.device("cpu"))


def as_site(
    orders: OrderChannel, task: ByteLM, site: SiteConfig, config: TrainConfig, lead: Callable[[SiteTrainer], Any]
) -> Any:
    """What `lead` makes of the site's trainer; None in the ranks that follow."""
    if not orders.leads:
        rank = rank_of(task, site, config, orders)
        rank.follow()
        rank.part()
        return None
    trainer = SiteTrainer(lambda: rank_of(task, site, config, orders), RankThread())
    found = lead(trainer)
    trainer.end()
    return found


def experts_before(orders: OrderChannel, config: TrainConfig) -> str:
    """What the first step says whose ranks use unlike parameters, with an FSDP2 that cannot be told to mind it."""
    told = FSDPModule.set_reduce_scatter_unused_params
    del FSDPModule.set_reduce_scatter_unused_params
    try:
        rank = rank_of(OfModel(ExpertModel), SiteConfig(), config, orders)
        for number in range(2 * STEPS):  # in some both ranks have examples of one expert
            rank.step(number, 1e-3)
    except TaskError as error:
        return str(error)
    finally:
        FSDPModule.set_reduce_scatter_unused_params = told  # type: ignore[method-assign]
    return ""


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def compared(site: SiteTrainer, config: TrainConfig, task: ByteLM) -> dict[str, Any]:
    """How far the site is from a trainer of one process, after as many steps, and after each has gone on from the
    other."""
    one = Trainer(task, config, SHARD, data_seed=DATA_SEED)
    found: dict[str, Any] = {"alike": site.fingerprint == one.fingerprint and site.numel == one.numel}
    found["begun"] = far(site.vector(), one.vector())
    losses = [[trainer.take_step() for _ in range(STEPS)] for trainer in (site, one)]
    found["losses"] = far(*map(torch.tensor, losses))
    found["tokens"] = site.tokens - one.tokens
    measured = one.evaluate(site.vector())
    found["measured"] = abs(site.evaluate() - measured) + abs(site.measure(one.vector()).loss - measured)
    found["judged"] = abs(site.judge(one.vector(), 3) - one.judge(one.vector(), 3))
    found["parameters"] = far(site.vector(), one.vector())
    states = site.state_dict(), one.state_dict()
    found["same entries"] = sorted(states[0].keys() ^ states[1].keys())
    found["state"] = max(far(states[0][name], states[1][name]) for name in states[1])
    for trainer in (site, one):
        trainer.take_step()
    site.load_state_dict(states[1])
    one.load_state_dict(states[0])
    losses = [[trainer.take_step() for _ in range(STEPS)] for trainer in (site, one)]
    found["gone on"] = far(site.vector(), one.vector()) + far(*map(torch.tensor, losses))
    correction_d = torch.linspace(-1, 1, site.numel)
    for trainer in (site, one):
        trainer.correct(correction_d)
        trainer.take_step()
    found["corrected"] = far(site.vector(), one.vector())
    return found


def refused(site: SiteTrainer) -> str:
    """What a site says to a state of another optimizer, before it has changed anything."""
    before_d = site.vector()
    other = Trainer(Heads(), replace(CONFIG, optimizer="sgd"), SHARD, data_seed=DATA_SEED)
    try:
        site.load_state_dict(other.state_dict())
    except ValueError as error:
        assert torch.equal(site.vector(), before_d)
        return str(error)
    return ""


def skipped(site: SiteTrainer) -> dict[str, Any]:
    """What the site makes of a step whose loss is no number in one rank."""
    site.take_step()
    before_d = site.vector()
    loss = site.take_step()
    stayed = torch.equal(site.vector(), before_d)
    site.take_step()
    return {"loss": str(loss), "stayed": stayed, "counted": site.skipped_steps, "next": far(site.vector(), before_d)}


def told(site: SiteTrainer) -> dict[str, float]:
    """The site's own metrics, and those of one process."""
    one = Trainer(Told(), CONFIG, SHARD, data_seed=DATA_SEED)
    return {"site": site.measure().own["accuracy"], "one": one.measure().own["accuracy"]}


def after_a_failure(site: SiteTrainer) -> float:
    """How far the live model is from what it was, once an evaluation of another one has failed."""
    before_d = site.vector()
    try:
        site.measure(torch.zeros_like(before_d))
    except ValueError:
        return far(site.vector(), before_d)
    raise AssertionError("it does not fail")


def syncs(orders: OrderChannel, parts: int, pipeline: int = 1) -> int:
    """How often this rank's gradients are added up to those of the others, in a step of `parts` batches for each."""
    ranks = dist.get_world_size() // pipeline
    config = replace(CONFIG, batch_size=pipeline, grad_accumulation=parts * ranks)
    rank = rank_of(Deep(), SiteConfig(pipeline=pipeline), config, orders)
    if pipeline > 1:
        rank.step(0, 1e-3)  # in which torch tries each stage, to see what it makes
    with Counting("reduce_scatter") as counted:
        rank.step(1, 1e-3)
    return counted.calls


def attentions(orders: OrderChannel, checkpointing: bool) -> int:
    """How often attention is computed in a step: again in the backward pass where activations are not kept."""
    rank = rank_of(Heads(), SiteConfig(activation_checkpointing=checkpointing), CONFIG, orders)
    with Counting("attention_for_cpu.default") as counted:
        rank.step(0, 1e-3)
    return counted.calls


def held(rank: SiteRank) -> int:
    """Values that this rank has of parameters, and of one of the optimizer's buffers."""
    parts = sum(each.numel() for each in rank.sharded.parts)
    assert parts == sum(each.numel() for each in rank.optimizers.buffers("exp_avg"))
    return parts


def main(ranks: int, out: Path, asked: list[str]) -> None:
    torch.set_num_threads(1)  # one thread, so that forks can compute
    rank = next((number for number in range(1, ranks) if not os.fork()), 0)
    dist.init_process_group("gloo", init_method=f"file://{out / 'meeting'}", rank=rank, world_size=ranks)
    orders = OrderChannel(dist.new_group(backend="gloo"))
    found: dict[str, Any] = {}
    for name, (site, config) in cases(dist.get_world_size()).items():
        if name in asked:
            task = Deep() if site.pipeline > 1 else Heads()
            found[name] = as_site(orders, task, site, config, partial(compared, config=config, task=task))
    if MORE in asked:
        found |= more(orders)
    if orders.leads:
        (out / "found.json").write_text(json.dumps(found))
    dist.barrier()
    if not rank:
        for _ in range(1, ranks):
            os.wait()


def more(orders: OrderChannel) -> dict[str, Any]:
    """What is found beside the cases."""
    found: dict[str, Any] = {}
    found["refused"] = as_site(orders, Heads(), SiteConfig(), CONFIG, refused)
    for words, site in (("", SiteConfig()), (", in stages", SiteConfig(pipeline=2))):
        found["skipped" + words] = as_site(orders, Faulty(), site, CONFIG, skipped)
        found["told" + words] = as_site(orders, Told(), site, CONFIG, told)
        found["held" + words] = orders.gathered(held(rank_of(Heads(), site, CONFIG, orders)))
    own = partial(compared, config=CONFIG, task=OwnTask())
    found["own task"] = as_site(orders, OwnTask(), SiteConfig(pipeline=2), CONFIG, own)
    few = replace(CONFIG, batch_size=dist.get_world_size())  # an example for each
    for words, made in (("odd", OddModel), ("experts", ExpertModel)):
        of_model = OfModel(made)
        found[words] = as_site(orders, of_model, SiteConfig(), few, partial(compared, config=few, task=of_model))
    found["experts before torch 2.13"] = experts_before(orders, few)
    found["fault"] = as_site(orders, FailsAtMetrics(), SiteConfig(pipeline=2), CONFIG, lambda it: it.measure().fault)
    for late in (False, True):
        found[f"fault in one, late {late}"] = as_site(
            orders, FailsInOne(late), SiteConfig(), CONFIG, lambda it: it.measure().fault
        )
    found["after a failure"] = as_site(orders, FailsAfterwards(), SiteConfig(), CONFIG, after_a_failure)
    found["syncs"] = [syncs(orders, parts) for parts in (1, 3)]
    if dist.get_world_size() > 2:
        found["syncs, in stages"] = [syncs(orders, parts, 2) for parts in (1, 3)]
    found["attentions"] = [attentions(orders, checkpointing) for checkpointing in (False, True)]
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads outlive the group
