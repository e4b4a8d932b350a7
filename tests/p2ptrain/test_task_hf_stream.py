"""Data that are read by `datasets` in streaming: which rows a step has follows from its number, however often a node
goes on, and the cache holds a bounded part of them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from p2ptrain.tasks import Shard, TaskError, get
from p2ptrain.tasks.byte_lm.corpus import cache_folder
from p2ptrain.tasks.hf.dealing import Part, part_of
from p2ptrain.tasks.hf.token_store import CACHED_STORES
from p2ptrain.tasks.sharding import shards_of
from p2ptrain.training import TrainConfig, Trainer

TINY = str(Path(__file__).parents[1] / "data" / "tiny-llama.json")
FILES, EACH, ROWS, STEPS = 3, 110, 60, 2
TOTAL = FILES * EACH
CONFIG = TrainConfig(rounds=8, inner_steps=2, warmup_steps=1, device="cpu", eval_examples=8, batch_size=4)
SHARD = Shard(index=1, count=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Its own cache, and nobody to ask."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for file in range(FILES):
        rows = [{"text": f"<{file * EACH + n:04}> is a row", "label": n} for n in range(EACH)]
        (folder / f"part-{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def streamed(data, **options):
    return get(
        "hf-lm",
        **{
            "model": TINY,
            "data": data,
            "length": 32,
            "packing": False,
            "stream": ROWS,
            "stream_steps": STEPS,
            **options,
        },
    )


def rows_of(task, step, size=4, shard=SHARD):
    """The numbers of the rows in a batch."""
    inputs, _ = task.train_batch(step, seed=3, shard=shard, size=size)
    return [int(re.search(r"<(\d+)>", task.encoder.decode(row.tolist()))[1]) for row in inputs]


def test_a_step_has_the_rows_of_its_segment_and_of_its_shard(data):
    task = streamed(data)
    store = task.store
    keys = dict(enumerate(store.keys.tolist()))
    assert len(keys) == ROWS
    for step in range(4 * STEPS):
        found = rows_of(task, step)
        assert {row // ROWS for row in found} == {step // STEPS}
        if step < STEPS:
            mine = np.array([keys[row] for row in found], np.uint64)
            assert set(shards_of(mine, 2).tolist()) == {1}
            assert (part_of(store.keys)[found] == Part.TRAIN).all()
    slower = streamed(data, stream_steps=4)
    for segment in range(4):
        found = [row for step in range(4) for row in rows_of(slower, 4 * segment + step)]
        assert len(set(found)) == len(found) == 16, "each row once, before any comes again"
    other = [row for step in range(STEPS) for row in rows_of(task, step, shard=Shard(index=0, count=2))]
    assert not set(other) & {row for step in range(STEPS) for row in rows_of(task, step)}
    whole = get("hf-lm", model=TINY, data=data, length=32, packing=False)
    (held_out, _), *_ = task.eval_batches(100)
    texts = {tuple(row.tolist()) for row in held_out}
    (everywhere, _), *_ = whole.eval_batches(100)
    assert texts
    assert texts <= {tuple(row.tolist()) for row in everywhere}  # what is held out is, however it is read


def test_after_the_last_whole_segment_comes_the_first_in_another_order(data):
    task = streamed(data)
    segments = TOTAL // ROWS
    first = [rows_of(task, step, size=16) for step in range(STEPS)]
    again = [rows_of(task, segments * STEPS + step, size=16) for step in range(STEPS)]
    assert {row // ROWS for rows in (*first, *again) for row in rows} == {0}
    assert first != again
    assert {row // ROWS for row in rows_of(task, (2 * segments - 1) * STEPS)} == {segments - 1}
    fresh = streamed(data)
    assert [rows_of(fresh, segments * STEPS + step, size=16) for step in range(STEPS)] == again


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["nothing", "tokens-*", "everything"])
def test_a_run_that_goes_on_twice_is_the_one_that_was_not_interrupted(data, lost):
    """From the cache, from the reader's states, and by reading again what was before."""
    whole = Trainer(streamed(data), CONFIG, SHARD)
    losses = [whole.step() for _ in range(7)]
    state, resumed = None, []
    for _ in range(3):
        trainer = Trainer(streamed(data), CONFIG, SHARD)
        if state is not None:
            trainer.load_state_dict(state)
        resumed += [trainer.step() for _ in range(3 if state is None else 2)]
        state = trainer.state_dict()
        for folder in cache_folder().glob("stream-*" if lost == "everything" else f"stream-*/{lost}"):
            shutil.rmtree(folder)
    assert resumed == losses
    assert torch.equal(trainer.vector(), whole.vector())
    assert {step // STEPS for step in (2, 4, 6)} == {1, 2, 3}, "it went on inside a segment, and at the start of one"


def test_the_states_of_the_reader_are_used_and_give_the_same_rows(data, monkeypatch):
    task = streamed(data)
    wanted = [rows_of(task, step) for step in range(3 * STEPS)]
    (folder,) = cache_folder().glob("stream-*")
    shutil.rmtree(folder / "tokens-2")
    import datasets

    loaded = []
    load = datasets.IterableDataset.load_state_dict
    monkeypatch.setattr(
        datasets.IterableDataset, "load_state_dict", lambda self, state: (loaded.append(state), load(self, state))[1]
    )
    fresh = streamed(data)
    assert [rows_of(fresh, step) for step in range(2 * STEPS, 3 * STEPS)] == wanted[2 * STEPS :]
    assert len(loaded) == 1


def test_the_cache_holds_a_bounded_part(data):
    task = streamed(data, stream=20, stream_steps=1)
    for step in range(TOTAL // 20):
        rows_of(task, step)
    (folder,) = cache_folder().glob("stream-*")
    assert len(list(folder.glob("tokens-*"))) == CACHED_STORES < TOTAL // 20


def test_a_cache_that_cannot_be_written_costs_nothing_but_reading_again(data, tmp_path, monkeypatch):
    task = streamed(data)
    wanted = [rows_of(task, step) for step in range(7 * STEPS)]
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    held = streamed(data)
    assert [rows_of(held, step) for step in range(7 * STEPS)] == wanted


def test_parquet_columns_of_other_names_and_empty_rows(tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    said = ["" if n % 5 == 0 else f"<{n:04}> in a column" for n in range(120)]
    pyarrow.parquet.write_table(pyarrow.table({"content": said}), folder / "a.parquet")
    task = streamed(folder, stream=100, column="content")
    assert len(task.store.keys) == 80
    assert all(row % 5 for row in rows_of(task, 0))
    chats = [{"chat": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "!"}]} for n in range(60)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    chat = streamed(tmp_path / "chats.jsonl", stream=50, column="chat")
    assert not chat.store.trained.all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": "user/name"}, "name a commit .*user/name@COMMIT"),
        ({"data": "user/name@main", "stream": None}, "name a commit"),
        ({"data": f"user/name@{'a' * 40}", "stream": None}, "where there is a network: hf download user/name"),
        ({"split": "test"}, "cannot be read by datasets: Bad split: test"),
        ({"column": "content"}, "row 1: it has no column 'content', but text, label"),
        ({"stream": None, "split": "train"}, "give stream=ROWS as well"),
        ({"data": None}, "give them with --data"),
        ({"stream_steps": 0}, "1 or more"),
        ({"stream": -1}, "1 or more"),
    ],
)
def test_a_mistake_is_one_line(data, options, said):
    with pytest.raises(TaskError, match=said) as told:
        streamed(**{"data": data, **options})
    assert "\n" not in str(told.value)
