"""What an example is: no byte, and no token, is in two; and private steps with the models of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import privacy
from p2ptrain.tasks import Shard, TaskError, get
from p2ptrain.tasks.byte_lm.split import DomainSplit, Split
from p2ptrain.tasks.hf.token_rows import NOT_COUNTED
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining

TINY_LLAMA = str(Path(__file__).parents[1] / "data/tiny-llama.json")
WINDOW = 17


def texts(count: int) -> str:
    """So many unlike examples."""
    rng = np.random.default_rng(0)
    return "".join(f'{{"text": "{rng.bytes(40).hex()}"}}\n' for _ in range(count))


@given(size=st.integers(3_000, 60_000), index=st.integers(0, 4), domains=st.booleans())
def test_no_byte_of_the_text_is_in_two_windows_and_all_are_the_shards(size: int, index: int, domains: bool) -> None:
    shard = Shard(index=index, count=5)
    split = DomainSplit.of([("a", size), ("b", 2 * size)], WINDOW) if domains else Split.of(size, WINDOW)
    numbers = np.arange(split.train_window_count(shard))
    starts = split.train_windows(shard, numbers)
    assert len(np.unique(starts)) == len(starts) > 0
    assert np.diff(np.sort(starts)).min(initial=WINDOW) >= WINDOW
    assert np.array_equal(split.train_windows(shard, numbers[::-1]), starts[::-1])
    if isinstance(split, Split):
        blocks = split.train_blocks(shard)
        assert np.isin(starts // split.block, blocks).all()
        assert np.array_equal(starts // split.block, (starts + WINDOW - 1) // split.block)


@pytest.mark.parametrize("packing", [True, False])
def test_no_token_is_counted_in_a_row_and_seen_in_the_next(tmp_path: Path, packing: bool) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text(texts(200))
    task = get("hf-lm", model=TINY_LLAMA, data=text, length=16, packing=packing)
    count = task.example_count(Shard())
    inputs, targets = task.examples_at(Shard(), range(count))
    plain_inputs, plain_targets = task.split.rows(Shard()).batch(np.arange(count))
    assert torch.equal(inputs, plain_inputs)
    assert torch.equal(targets[:, :-1], plain_targets[:, :-1])
    assert (targets[:, -1] == NOT_COUNTED).all()
    if packing:
        assert torch.equal(plain_targets[:-1, -1], inputs[1:, 0]), "which would have been in two"


def test_streamed_data_are_refused_in_a_line(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text(texts(100))
    pytest.importorskip("datasets")
    task = get("hf-lm", model=TINY_LLAMA, data=text, length=8, stream=20)
    with pytest.raises(TaskError, match="cannot count the examples of streamed data"):
        Trainer(
            task,
            TrainConfig(device="cpu"),
            Shard(),
            privacy=PrivateTraining(privatizer=privacy.get("example")),
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [("hf-lm", {"length": 16, "model": TINY_LLAMA, "lora": 2}), ("hf-vision", {}), ("hf-vision", {"lora": 2})],
    ids=["llama with lora", "vit", "vit with lora"],
)
@pytest.mark.parametrize(("privatizer", "precision"), [("example", "fp32"), ("example", "bf16"), ("update", "fp32")])
def test_models_of_transformers_are_trained(
    tmp_path: Path, name: str, options: dict, privatizer: str, precision: str
) -> None:
    if name == "hf-lm":
        options = options | {"data": tmp_path / "text.jsonl"}
        options["data"].write_text(texts(100))
    trainer = Trainer(
        get(name, **options),
        TrainConfig(device="cpu", warmup_steps=0, precision=precision),
        Shard(),
        privacy=PrivateTraining(privatizer=privacy.get(privatizer, noise=0.1, clip=0.1)),
    )
    before_d = trainer.vector()
    trainer.begin_round()
    trainer.ask_ahead(2)
    for _ in range(2):
        assert trainer.take_step() is not None
    trainer.end_round()
    assert torch.isfinite(trainer.vector()).all()
    assert not torch.equal(trainer.vector(), before_d)
