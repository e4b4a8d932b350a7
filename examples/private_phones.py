"""A hundred phones with fourteen digits each train one model, and no phone's whole data can be told from it.

    python examples/private_phones.py
    python examples/private_phones.py --epsilon 4 --seed 1

User-level differential privacy (DP-FedAvg, McMahan et al., 1710.06963). In each round every phone takes part with
probability RATE, drawn in secret. It takes the model, trains some steps on its own digits, and leaves the difference.
The aggregator clips each difference to the norm CLIP, adds noise to the sum before anything is made of it, and divides
by the number of phones that is expected. Rounds end before epsilon would be exceeded.

Who is trusted: the aggregator, which sees each difference as it is and draws the noise, such as a clinic's machine with
the phones of its patients. Nobody else is: whoever sees the models, all of them, learns of a phone what epsilon allows.
Were the phones to trust nobody, each would need as much noise as the sum has here, and a hundred of them would learn
nothing: the noise of the mean would be ten times as large.
"""

import argparse
import json
from typing import Final

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from p2ptrain import privacy
from p2ptrain.privacy.accounting import RenyiAccountant, noise_for
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import Batch
from p2ptrain.tasks.digits import Digits

PHONES: Final = 100
DIGITS: Final = 14
"""Of each phone."""
RATE: Final = 0.5
"""Probability with which a phone takes part in a round."""
ROUNDS: Final = 16
DELTA: Final = 1e-3
"""Less than one over the number of phones."""
CLIP: Final = 0.25
LOCAL_STEPS: Final = 3
LOCAL_RATE: Final = 0.1
SERVER_RATE: Final = 2.0
MOMENTUM: Final = 0.5
ALONE: Final = 10
"""Phones that train by themselves, without noise, to compare with."""
ALONE_STEPS: Final = 100


def main() -> None:
    """Train, and print what was spent and learned as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0, help="what all rounds together may spend")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the initial model; phones and noise are drawn in secret"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(train(given.epsilon, given.seed)))


def train(budget: float, seed: int) -> dict[str, float]:
    """Return what the phones have spent and learned together, and what one alone learns without any noise."""
    task = Digits()
    images_n, labels_n = data_of(task)
    torch.manual_seed(seed)
    model = task.build_model()
    model_d = parameters_to_vector(model.parameters()).detach()
    alone_nd = model_d + differences(model, model_d, (images_n[:ALONE], labels_n[:ALONE]), steps=ALONE_STEPS)
    alone = [accuracy(task, model, each_d) for each_d in alone_nd]
    noise = noise_for(budget, DELTA, rate=RATE, steps=ROUNDS)
    privatizer = privacy.get("update", noise=noise, clip=CLIP)
    accountant, source, moved_d, rounds = RenyiAccountant(), SecretRandom(), torch.zeros_like(model_d), 0
    release = privatizer.release(rate=RATE, count=1)
    assert release is not None, "a privatizer that protects"
    while accountant.epsilon(DELTA, [release]) <= budget:
        accountant.add(release)
        drawn = source.drawn(PHONES, RATE)
        left_nd = differences(model, model_d, (images_n[drawn], labels_n[drawn]), steps=LOCAL_STEPS)
        factors_n = privatizer.factors(left_nd.norm(dim=1, dtype=torch.float64))  # 0 for what is not finite
        sum_d = (left_nd.nan_to_num(0.0, 0.0, 0.0) * factors_n[:, None].float()).sum(0)
        privatizer.add_noise_(sum_d, source)
        moved_d = MOMENTUM * moved_d + sum_d / (RATE * PHONES)
        model_d = model_d + SERVER_RATE * moved_d
        rounds += 1
    return {
        "phones": PHONES,
        "rounds": rounds,
        "noise": round(noise, 3),
        "epsilon": round(accountant.epsilon(DELTA), 3),
        "delta": DELTA,
        "accuracy": round(accuracy(task, model, model_d), 3),
        "accuracy_of_one_alone": round(sum(alone) / len(alone), 3),
    }


def data_of(task: Digits) -> Batch:
    """Return the digits of all phones: fp32 (n, DIGITS, 64) and int64 (n, DIGITS)."""
    shards = [Shard(index=phone, count=PHONES) for phone in range(PHONES)]
    images, labels = zip(*(task.examples_at(shard, range(DIGITS)) for shard in shards), strict=True)
    return torch.stack(images), torch.stack(labels)


def differences(model: nn.Module, start_d: torch.Tensor, phones: Batch, *, steps: int) -> torch.Tensor:
    """Return what each phone leaves (n, d): where some steps on its own digits lead from the model `start_d` (d,)."""
    vector_to_parameters(start_d.clone(), model.parameters())
    images_n, labels_n = phones
    own = {name: it.detach().expand(len(labels_n), *it.shape) for name, it in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, parameters, (images,)), labels)

    gradients_of = vmap(grad(loss))  # each phone by itself
    for _ in range(steps):
        gradients = gradients_of(own, images_n, labels_n)
        own = {name: it - LOCAL_RATE * gradients[name] for name, it in own.items()}
    return torch.cat([it.flatten(1) for it in own.values()], dim=1) - start_d


def accuracy(task: Digits, model: nn.Module, model_d: torch.Tensor) -> float:
    """Return the share of the held-out digits that a model (d,) names rightly."""
    vector_to_parameters(model_d.clone(), model.parameters())
    return task.accuracy(model)


if __name__ == "__main__":
    main()
