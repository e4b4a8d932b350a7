"""Examples, tokens and rows of the tasks of Hugging Face: what is whose, and what is trained on."""

import datetime
import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
import torch
import transformers

from p2ptrain.tasks import Shard, TaskError, get
from p2ptrain.tasks.byte_lm.corpus import cache_folder
from p2ptrain.tasks.hf.dealing import HELD_OUT_ONE_IN, Dealing, Part, drawn, part_of
from p2ptrain.tasks.hf.sources import Example, files_of, has_rows, read_examples
from p2ptrain.tasks.hf.text_encoder import open_encoder
from p2ptrain.tasks.hf.token_rows import NOT_COUNTED, RowConfig, TokenRows, TokenSplit
from p2ptrain.tasks.hf.token_store import TokenStore, open_store
from p2ptrain.tasks.sharding import shards_of

CHAT = [{"role": "user", "content": "zwei und zwei?"}, {"role": "assistant", "content": "fünf, ähm, vier"}]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def encoder():
    return open_encoder("bytes", None, None)


def examples_in(path: Path, block_chars: int = 40) -> list[Example]:
    return list(read_examples(files_of(path), block_chars=block_chars))


def store_of(*lengths: int) -> TokenStore:
    """Examples of these many tokens, each token another number."""
    total = sum(lengths)
    return TokenStore(
        tokens=np.arange(1, total + 1, dtype=np.uint32),
        trained=np.ones(total, np.bool_),
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        keys=np.arange(len(lengths), dtype=np.uint64),
        text_bytes=total,
    )


def test_rows_of_jsonl_and_parquet_are_the_same_examples(tmp_path):
    rows = [{"text": "one\n"}, {"messages": CHAT}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one\n", "two"]}), tmp_path / "b.parquet")
    first, chat, again, two = examples_in(tmp_path)
    assert (first.text, again.text, two.text) == ("one\n", "one\n", "two")
    assert chat.messages == tuple(CHAT)
    assert first.key == again.key
    assert len({first.key, chat.key, two.key}) == 3


def test_text_is_cut_between_lines_and_nothing_is_lost(tmp_path):
    text = "".join(f"line {number}\r\n" for number in range(30)) + "no end"
    (tmp_path / "t.md").write_bytes(text.encode())
    found = [each.text for each in examples_in(tmp_path / "t.md")]
    assert len(found) > 3
    assert all(len(each) >= 40 and each.endswith("\n") for each in found[:-1])
    assert "".join(found) == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"text": "x"}\nnonsense', "a.jsonl:2 is no JSON"),
        ("a.jsonl", '{"label": 1}', 'a.jsonl:1: a row is {"text"'),
        ("a.jsonl", '{"messages": []}', "a row is"),
        ("a.jsonl", '{"messages": [{"content": "no role"}]}', "a row is"),
        ("a.jsonl", "[" * 100_000, "is no JSON"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.txt", b"\xff\xfe\x00", "is no UTF-8 text"),
        ("a.txt", "", "holds nothing"),
    ],
)
def test_what_is_no_example_is_told_with_its_place(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskError, match=said.replace("{", r"\{")) as told:
        examples_in(path)
    assert "\n" not in str(told.value)


def test_a_parquet_file_of_other_columns_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(TaskError, match="neither a column 'text' nor 'messages'"):
        examples_in(tmp_path)


def test_bytes_are_the_ids_of_byt5(encoder):
    text = "grün, 你好 \x00\n"
    (ours,) = encoder.encode([Example(text=text)])
    assert ours.ids.tolist() == encoder.tokenizer(text).input_ids
    assert encoder.decode(ours.ids.tolist()) == text
    assert encoder.vocabulary == 259


def test_the_assistants_words_alone_are_trained_on(encoder):
    (found,) = encoder.encode([Example(messages=tuple(CHAT))])
    said = encoder.decode(found.ids[found.trained].tolist())
    assert said == "fünf, ähm, vier<|im_end|>\n"
    everything = encoder.decode(found.ids.tolist())
    assert everything.startswith("<|im_start|>user\nzwei")


def test_a_fast_tokenizer_marks_the_same_words(encoder, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        ["fünf vier zwei assistant user"] * 5,
        trainers.BpeTrainer(special_tokens=["<|im_end|>", "</s>"], initial_alphabet=alphabet, show_progress=False),
    )
    PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="</s>").save_pretrained(tmp_path / "tokenizer")
    fast = open_encoder(str(tmp_path / "tokenizer"), None, None)
    chat, text = fast.encode([Example(messages=tuple(CHAT)), Example(text="vier zwei")])
    assert fast.tokenizer.decode(chat.ids[chat.trained]) == "fünf, ähm, vier<|im_end|>\n"
    assert text.ids[-1] == fast.end
    assert fast.digest != encoder.digest
    file = open_encoder(str(tmp_path / "tokenizer" / "tokenizer.json"), None, None)
    assert file.digest == fast.digest


def test_a_template_without_marks_trains_on_everything(encoder, tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}|{% endfor %}")
    plain = open_encoder("bytes", None, str(template))
    (found,) = plain.encode([Example(messages=tuple(CHAT))])
    assert found.trained.all()
    assert plain.decode(found.ids.tolist()) == "zwei und zwei?|fünf, ähm, vier|"
    template.write_text("{{ raise_exception('no system role') }}")
    with pytest.raises(TaskError, match="no system role"):
        open_encoder("bytes", None, str(template)).encode([Example(messages=tuple(CHAT))])


def test_a_store_is_made_once_and_read_again(encoder, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"text {n}"}) for n in range(50)))
    made = open_store(tmp_path / "a.jsonl", encoder, block_chars=40)
    monkeypatch.setattr(encoder, "encode", lambda _: pytest.fail("it was tokenized again"))
    again = open_store(tmp_path / "a.jsonl", encoder, block_chars=40)
    assert len(made.keys) == 50
    assert all(
        np.array_equal(getattr(made, name), getattr(again, name)) for name in ("tokens", "trained", "starts", "keys")
    )
    assert made.bytes_per_token == pytest.approx((7 * 50 - 10) / (8 * 50 - 10))


def test_a_cache_that_cannot_be_written_costs_nothing_but_memory(encoder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    cached = open_store(tmp_path / "a.txt", encoder, block_chars=40)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    held = open_store(tmp_path / "a.txt", encoder, block_chars=40)
    assert np.array_equal(cached.tokens, held.tokens)
    assert np.array_equal(cached.keys, held.keys)


def test_examples_are_dealt_by_their_keys_alone():
    keys = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    shuffled = np.random.default_rng(1).permutation(len(keys))
    one, other = Dealing(keys), Dealing(keys[shuffled])
    for part in (Part.TRAIN, Part.OWN_HELD_OUT):
        shard = Shard(index=2, count=5)
        assert np.array_equal(keys[one.of_shard(shard, part)], keys[shuffled][other.of_shard(shard, part)])
    assert np.array_equal(keys[one.held_out()], keys[shuffled][other.held_out()])


def test_every_example_has_one_place():
    keys = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    dealing = Dealing(keys)
    places = [dealing.held_out()]
    places += [
        dealing.of_shard(Shard(index=i, count=3), part) for i in range(3) for part in Part if part != Part.HELD_OUT
    ]
    assert sorted(np.concatenate(places).tolist()) == list(range(4000))
    assert len(places[0]) == pytest.approx(4000 / HELD_OUT_ONE_IN, rel=0.2)
    sizes = [len(each) for each in places[1:]]
    assert all(sizes)


@pytest.mark.parametrize("count", [2, 16, 32])
def test_shards_hold_out_alike_whatever_their_number(count):
    """The hash that holds out is another than the one that deals: else shard 0 of 16 would hold out all it has."""
    keys = np.random.default_rng(0).integers(0, 2**64, 200 * count, dtype=np.uint64)
    parts = part_of(keys)
    for index in range(count):
        assert 0.8 < (parts[shards_of(keys, count) == index] == Part.TRAIN).mean() < 1


def test_of_few_examples_one_is_held_out():
    for count in range(2, 20):
        parts = part_of(np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64))
        assert (parts == Part.HELD_OUT).any()
    with pytest.raises(TaskError, match="too few to hold one out"):
        Dealing(np.array([7], np.uint64))
    few = Dealing(np.arange(20, dtype=np.uint64))
    with pytest.raises(TaskError, match="none for shard 50 of 100"):
        few.of_shard(Shard(index=50, count=100))


def test_an_epoch_has_every_row_once():
    batches = [drawn(step, seed=3, index=1, size=4, count=10) for step in range(5)]
    rows = np.concatenate(batches)
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert not np.array_equal(rows[:10], rows[10:])
    assert np.array_equal(drawn(2, seed=3, index=1, size=4, count=10), batches[2])


def test_packed_rows_predict_every_token_once():
    store = store_of(5, 1, 9, 3)
    rows = TokenRows(store, np.array([2, 0, 1, 3]), RowConfig(length=4, packing=True, padding=0))
    inputs, targets = rows.batch(np.arange(len(rows)))
    stream = [*range(7, 16), *range(1, 6), 6, *range(16, 19)]
    assert len(rows) == (len(stream) - 1) // 4 == 4
    assert inputs.flatten().tolist() == stream[:16]
    assert targets.flatten().tolist() == stream[1:17]


def test_rows_of_their_own_are_filled_up_and_not_counted():
    store = store_of(6, 1, 3)
    rows = TokenRows(store, np.array([0, 1, 2]), RowConfig(length=4, packing=False, padding=0))
    inputs, targets = rows.batch(np.arange(len(rows)))
    no = NOT_COUNTED
    assert inputs.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [8, 9, 10, 0]]
    assert targets.tolist() == [[2, 3, 4, 5], [6, no, no, no], [9, 10, no, no]]


def test_what_is_not_marked_is_seen_and_not_predicted():
    store = store_of(8)
    store.trained[:5] = False
    inputs, targets = TokenRows(store, np.array([0]), RowConfig(length=7, packing=True, padding=0)).batch(np.array([0]))
    assert inputs.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert targets.tolist() == [[NOT_COUNTED] * 4 + [6, 7, 8]]


def test_less_than_a_row_is_filled_up():
    split = TokenSplit(store_of(*[3] * 40), RowConfig(length=500, packing=True, padding=0))
    inputs, targets = split.draw(0, seed=0, shard=Shard(), size=1)
    assert len(split.held_out) == 1
    assert inputs.shape == (1, 500)
    assert int((targets != NOT_COUNTED).sum()) == 3 * len(split._dealing.of_shard(Shard())) - 1
    assert torch.equal(inputs[0, 1:50], targets[0, :49])


def words(folder: Path, *, end: str = "<a>", lower: bool = False):
    """A tokenizer of three words, always with the same vocabulary."""
    ids = {"[UNK]": 0, "hello": 1, "Hello": 2, "<a>": 3, "<b>": 4}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if lower:
        inner.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    return open_encoder(str(folder), None, None)


def test_a_tokenizer_with_other_rules_and_the_same_vocabulary_makes_its_own_tokens(tmp_path):
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "Hello hello"}\n' * 3)
    made = {
        name: open_store(data, words(tmp_path / name, **options), block_chars=9).tokens[:3].tolist()
        for name, options in (("plain", {}), ("other end", {"end": "<b>"}), ("lower", {"lower": True}))
    }
    assert made == {"plain": [2, 1, 3], "other end": [2, 1, 4], "lower": [1, 1, 3]}


@pytest.mark.parametrize("name", ["tokens", "trained", "starts.npy", "keys.npy", "text_bytes"])
@pytest.mark.parametrize("left", [0, 140, None])
def test_a_damaged_cache_is_made_anew(tmp_path, encoder, name, left):
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps({"text": f"number {number}"}) + "\n" for number in range(60)))
    whole = open_store(data, encoder, block_chars=9)
    wanted = [np.array(each) for each in (whole.tokens, whole.trained, whole.starts, whole.keys)]
    (folder,) = cache_folder().glob("tokens-*")
    if left is None:
        (folder / name).unlink()
    else:
        os.truncate(folder / name, min(left, (folder / name).stat().st_size - 1))
    for _ in range(2):
        again = open_store(data, encoder, block_chars=9)
        assert isinstance(again.tokens, np.memmap)  # in the cache again, not in memory
        found = (again.tokens, again.trained, again.starts, again.keys)
        assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))


def test_what_a_killed_process_left_in_the_cache_is_removed_in_time(tmp_path, encoder):
    cache_folder().mkdir(parents=True)
    old, new = (cache_folder() / f".tokens-{age}" for age in ("old", "new"))
    for each in (old, new):
        each.mkdir()
        (each / "tokens").write_bytes(b"half")
    os.utime(old, (0, 0))
    (tmp_path / "a.txt").write_text("text\n")
    open_store(tmp_path / "a.txt", encoder, block_chars=9)
    assert not old.exists()
    assert new.exists()


def test_times_in_conversations_of_parquet_are_read(tmp_path, encoder):
    said = [[{**message, "at": datetime.datetime(2024, 1, day)} for message in CHAT] for day in (1, 1, 2)]
    pyarrow.parquet.write_table(pyarrow.table({"messages": said}), tmp_path / "a.parquet")
    keys = open_store(tmp_path / "a.parquet", encoder, block_chars=9).keys.tolist()
    assert keys[0] == keys[1] != keys[2]


def test_half_a_surrogate_pair_is_a_replacement_character(tmp_path):
    encoder = words(tmp_path / "words")
    rows = [{"text": "hello \ud800 hello"}, {"messages": [{"role": "user", "content": "hello \udfff"}]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = open_store(tmp_path / "a.jsonl", encoder, block_chars=9)
    assert store.tokens[:4].tolist() == [1, 0, 1, 3]


@pytest.mark.parametrize("name", ["a.JSONL", "a.ndjson", "a.json"])
def test_rows_are_rows_whatever_the_suffix_looks_like(tmp_path, name):
    rows = [{"text": "one"}, {"messages": [{"role": "user", "content": "two"}]}]
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = files_of(tmp_path)
    assert has_rows(files)
    assert [each.text for each in read_examples(files, block_chars=9)] == ["one", ""]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_row_ends_with_its_line_and_nowhere_else(tmp_path, name):
    texts = ["one\u2028two\u0085three\x0b", "four"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / name).write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8", newline="")
    assert [each.text for each in read_examples(files_of(tmp_path / name), block_chars=9)] == texts


def test_a_json_file_may_be_a_list_of_rows_or_text(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"text": "one"}, {"text": "two"}], indent=1))
    assert [each.text for each in read_examples(files_of(file), block_chars=9)] == ["one", "two"]
    file.write_text('{"name": "a package"}\n')
    assert not has_rows(files_of(file))
    assert [each.text for each in read_examples(files_of(file), block_chars=9)] == ['{"name": "a package"}\n']
    for content, why in (('[{"text": "one"}, {"label": 1}]', "row 2: a row is"), ('{"text": "one"}\n{', "a.json:2")):
        file.write_text(content)
        with pytest.raises(TaskError, match=why):
            list(read_examples(files_of(file), block_chars=9))


@pytest.mark.parametrize("packing", [True, False])
def test_no_token_is_in_two_examples_that_are_protected(tmp_path, monkeypatch, packing):
    """Else a protected example would be in the gradients of its neighbour, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = "".join(chr(0x4E00 + place) for place in range(6000))  # each character once
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": places[n : n + 60]}) for n in range(0, 6000, 60)))
    task = get("hf-lm", tokenizer="bytes", data=str(tmp_path / "a.jsonl"), length=24, packing=packing)
    shard = Shard(index=1, count=2)
    count = task.example_count(shard)
    inputs, targets = task.examples_at(shard, range(count))
    assert count > 50
    assert (targets[:, -1] == NOT_COUNTED).all()
    seen = targets[:, :-1] != NOT_COUNTED
    assert torch.equal(targets[:, :-1][seen], inputs[:, 1:][seen]), "what is predicted is the example's own"
    ours = ["".join(task.encoder.decode(row.tolist())) for row in inputs]
    whole = [character for row in ours for character in row if character in places]
    assert len(whole) == len(set(whole)) > 100
