"""Looks at data: moments that change with inputs and with nothing else, whatever form a batch has."""

import torch

from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.data_looks import FEATURES, PIECES, moments_of


def test_moments_do_not_depend_on_the_order_of_examples_and_see_a_change_of_them() -> None:
    images = torch.rand(64, 3, 8, generator=torch.Generator().manual_seed(1))
    names = torch.randint(0, 50, (64, 16), generator=torch.Generator().manual_seed(2))
    for values, changed in ((images, images.flip(2)), (names, names + 1)):
        torch.testing.assert_close(moments_of((values, None)), moments_of((values.flip(0), None)))
        assert moments_of(values).shape == (FEATURES,)
        assert float((moments_of(values) - moments_of(changed)).abs().max()) > 0.01


def test_names_are_names_their_size_says_nothing() -> None:
    few, large = torch.tensor([[1, 2, 1, 2]]), torch.tensor([[1, 50_000, 1, 50_000]])
    assert float((moments_of(few) - moments_of(large)).abs().max()) <= 2.0


def test_a_batch_without_tensors_has_no_moments() -> None:
    assert moments_of({"text": "words"}).shape == (0,)


def test_a_look_touches_nothing_and_is_the_same_again() -> None:
    trainer = Trainer(Digits(), TrainConfig(batch_size=16, threads=1), Shard(index=1, count=4))
    kept_d = trainer.vector()
    trainer.step()
    before = trainer.vector()
    one, again = (trainer.look_at_own(kept_d, 5, examples=64) for _ in range(2))
    other = trainer.look_at_own(kept_d, 6, examples=64)
    held_out = trainer.look_at_held_out(kept_d, examples=64)
    assert torch.equal(trainer.vector(), before)
    assert torch.equal(one.losses_n, again.losses_n)
    assert not torch.equal(one.losses_n, other.losses_n), "fresh data in each round"
    assert len(one.losses_n) == len(held_out.losses_n) == PIECES
    assert abs(one.loss - 2.3) < 0.5
    assert held_out.moments_k.shape == (FEATURES,)


def test_a_kept_model_has_the_local_parameters_of_its_round() -> None:
    """They are trained on, and its loss must not move with them."""
    trainer = Trainer(Digits(), TrainConfig(batch_size=16, threads=1, local=("6.*",)), Shard(index=1, count=4))
    for _ in range(5):
        trainer.step()
    kept_d = trainer.kept(trainer.vector())
    assert kept_d.shape == (trainer.trained_numel,)
    before = trainer.look_at_own(kept_d, 5, examples=64)
    for _ in range(20):
        trainer.step()
    assert torch.equal(trainer.look_at_own(kept_d, 5, examples=64).losses_n, before.losses_n)
    whole = Trainer(Digits(), TrainConfig(batch_size=16, threads=1), Shard(index=1, count=4))
    assert torch.equal(whole.kept(whole.vector()), whole.vector())
