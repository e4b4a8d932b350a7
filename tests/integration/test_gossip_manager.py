"""`GossipManager` by itself, over real libp2p: every exchange gives the mean, the first one too."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.paired, pytest.mark.thorough, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ALONE: dict[str, object] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.linger_s": 1.0,
}


def moved(model: nn.Module, seed: int) -> None:
    """Stands in for training: every member moves elsewhere."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw))


def test_every_exchange_is_the_mean_of_all(tmp_path: Path) -> None:
    pytest.importorskip("torchft")
    from p2ptrain.integrations.torchft import GossipManager, flat

    members, rounds = 3, 3
    models = [nn.Linear(30, 20) for _ in range(members)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    managers: dict[int, Any] = {}
    errors: list[BaseException] = []
    all_there = threading.Barrier(members, timeout=60)
    apart: list[float] = []

    def loop(index: int, peers: list[str]) -> None:
        try:
            manager = managers[index] = GossipManager(
                [models[index]], peers=peers, run_dir=tmp_path / str(index), wait_for=2, settings=ALONE, quiet=True
            )
            with manager:
                for number in range(rounds):
                    moved(models[index], 100 * number + index)
                    all_there.wait()
                    mean = torch.stack([flat([model]) for model in models]).mean(0)
                    all_there.wait()
                    manager.start_quorum()
                    copies = [parameter.detach().clone() for parameter in models[index].parameters()]
                    for work in [manager.allreduce(copy) for copy in copies]:
                        work.wait()
                    assert manager.should_commit()
                    with torch.no_grad():
                        for parameter, copy in zip(models[index].parameters(), copies, strict=True):
                            parameter.copy_(copy)
                    apart.append(float((flat([models[index]]) - mean).abs().max()))
        except BaseException as error:
            errors.append(error)
            all_there.abort()

    first = threading.Thread(target=loop, args=(0, []))
    first.start()
    ends = time.monotonic() + 30
    while 0 not in managers or not managers[0].addresses:
        assert time.monotonic() < ends
        time.sleep(0.05)
    others = [threading.Thread(target=loop, args=(index, managers[0].addresses)) for index in range(1, members)]
    for thread in others:
        thread.start()
    for thread in (first, *others):
        thread.join(90)
    assert errors == []
    assert len(apart) == members * rounds
    assert max(apart) < 1e-5, "what fp32 rounds; the members are several units apart before"
