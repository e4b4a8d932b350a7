"""The byte-level task: model, corpus, split, batches, speech."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.byte_lm import SIZES, ByteGPT, ByteLM, corpus
from p2ptrain.tasks.byte_lm.corpus import CACHED_CORPORA, cache_folder, open_corpus
from p2ptrain.tasks.byte_lm.gpt import Turns, rotate
from p2ptrain.tasks.byte_lm.split import BLOCK, HELD_OUT_EVERY, DomainSplit, Split

COUNTED = {"nano": 467_808, "micro": 3_213_568, "small": 25_305_600, "base": 125_492_864}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# Model


@pytest.mark.parametrize(("size", "count"), COUNTED.items())
def test_sizes_have_the_parameters_they_claim(size, count):
    with torch.device("meta"):
        model = ByteGPT(SIZES[size])
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert not list(model.buffers())


def test_a_byte_depends_on_no_later_one():
    model = ByteGPT(SIZES["nano"])
    tokens = torch.randint(0, 256, (1, 24))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 256
    first, second = model(tokens), model(changed)
    torch.testing.assert_close(first[:, :12], second[:, :12])
    assert not torch.allclose(first[:, 12:], second[:, 12:])


def test_rotary_scores_depend_on_distance_alone():
    cos, sin = Turns(32)(20, torch.device("cpu"))
    q, k = torch.randn(32), torch.randn(32)
    turned_q, turned_k = (rotate(x.expand(1, 1, 20, 32), cos, sin)[0, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    for distance in (-3, 0, 7):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores[0, 0], q @ k, rtol=1e-4, atol=1e-4)


def test_an_untrained_model_knows_nothing():
    torch.manual_seed(0)
    model = ByteGPT(SIZES["nano"])
    tokens, targets = torch.randint(0, 256, (4, 32)), torch.randint(0, 256, (128,))
    loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, 256), targets)
    assert abs(loss.item() - np.log(256)) < 0.2


# Corpus


def test_a_file_is_its_own_corpus(tmp_path):
    path = tmp_path / "binary.dat"
    path.write_bytes(bytes(range(256)) * 3)
    assert bytes(open_corpus(path)) == path.read_bytes()
    assert not cache_folder().exists()


EMPTIED = """
import sys
from pathlib import Path
from p2ptrain.tasks.byte_lm.corpus import open_corpus

path = Path(sys.argv[1])
corpus = open_corpus(path)
path.write_bytes(b"")
sys.exit(bytes(corpus) != b"some text" * 2000)
"""


def test_a_file_that_is_emptied_meanwhile_ends_no_process(tmp_path):
    """Of a mapped one the pages are gone: reading them is a bus error, which nothing can catch."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"some text" * 2000)
    assert subprocess.run([sys.executable, "-c", EMPTIED, path], check=False).returncode == 0


def test_a_folder_is_joined_in_the_order_of_names(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name, text in {"b.txt": b"B", "a.txt": b"A", "sub/c.bin": b"\xff\x00", ".hidden": b"no"}.items():
        (folder / name).write_bytes(text)
    os.mkfifo(folder / "pipe")
    assert bytes(open_corpus(folder)) == b"AB\xff\x00"
    (folder / "a.txt").write_bytes(b"AA")
    assert bytes(open_corpus(folder)) == b"AAB\xff\x00"


def test_python_itself_is_the_default():
    text = open_corpus(None)
    assert len(text) > 4_000_000
    assert b"class OrderedDict" in bytes(text)
    assert [path.suffix for path in cache_folder().iterdir()] == [".bin"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.mkdir(), "holds no bytes"),
        (lambda path: os.mkfifo(path), "neither a file nor a folder"),
    ],
    ids=["missing", "empty file", "empty folder", "pipe"],
)
def test_what_is_no_corpus_says_what_to_give(tmp_path, make, says):
    make(tmp_path / "data")
    with pytest.raises(TaskError, match=says) as caught:
        open_corpus(tmp_path / "data")
    assert "--data" in str(caught.value)


@pytest.mark.parametrize("content", [b"x", b"x" * 1039])
def test_too_small_a_corpus_says_how_much_it_takes(tmp_path, content):
    path = tmp_path / "small.txt"
    path.write_bytes(content)
    with pytest.raises(TaskError, match="needs at least 1040"):
        ByteLM(data=path, context=64)
    path.write_bytes(b"x" * 1040)
    assert len(ByteLM(data=path, context=64).eval_batches(10)) == 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "plain").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"text")
    assert bytes(open_corpus(tmp_path / "folder")) == b"text"


def test_builders_at_once_leave_one_whole_file(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_bytes(name.encode() * 100_000)
    found = []
    threads = [threading.Thread(target=lambda: found.append(bytes(open_corpus(folder)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"a" * 100_000 + b"b" * 100_000 + b"c" * 100_000] * 4
    assert len(list(cache_folder().iterdir())) == 1


def test_a_user_without_a_home_does_without_a_cache(tmp_path, monkeypatch):
    """As in a container that runs as a number without a name."""

    def nowhere(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", nowhere)
    with pytest.raises(RuntimeError):
        Path.home()
    monkeypatch.setattr(corpus, "_stdlib_files", lambda: [corpus.Source.of(Path(__file__))])
    assert bytes(open_corpus(None)) == Path(__file__).read_bytes()
    with pytest.raises(OSError, match="Not a directory"):
        cache_folder().mkdir(parents=True)


def test_a_cut_cache_is_built_anew_and_old_ones_go(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for size in range(1, CACHED_CORPORA + 4):
        (folder / "a").write_bytes(b"x" * size)
        open_corpus(folder)
    kept = sorted(cache_folder().iterdir(), key=lambda path: path.stat().st_size)
    assert len(kept) == CACHED_CORPORA
    kept[-1].write_bytes(b"cut")
    assert bytes(open_corpus(folder)) == (folder / "a").read_bytes()


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(target, sources):
        target.write(b"half")
        raise TaskError("no more")

    monkeypatch.setattr(corpus, "_join", fail)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"text")
    with pytest.raises(TaskError, match="no more"):
        open_corpus(tmp_path / "folder")
    assert list(cache_folder().iterdir()) == []


def test_a_cache_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    """Its length is what says that it is whole, and after a power cut a file may have its length and hold zeros."""
    calls, fsync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        calls.append(("fsync", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def replaced(self, target):
        calls.append(("replace", self.stat().st_size))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"x" * 1000)
    open_corpus(tmp_path / "folder")
    assert calls == [("fsync", 1000), ("replace", 1000)]


# Split


@given(
    size=st.integers(1, 5_000_000),
    window=st.integers(2, 300),
    count=st.integers(1, 12),
)
def test_every_block_has_one_owner(size, window, count):
    if size < HELD_OUT_EVERY * window:
        with pytest.raises(TaskError):
            Split.of(size, window)
        return
    split = Split.of(size, window)
    assert window <= split.block <= BLOCK
    assert split.blocks * split.block <= size < (split.blocks + 1) * split.block
    owners = [split.held_out_blocks(), *(split.train_blocks(Shard(index=i, count=count)) for i in range(count))]
    assert all(len(blocks) for blocks in owners)
    assert sorted(np.concatenate(owners)) == list(range(split.blocks))


def test_more_shards_than_blocks_share():
    split = Split.of(16 * 65, 65)
    shards = [split.train_blocks(Shard(index=index, count=40)).tolist() for index in range(40)]
    assert all(len(blocks) == 1 for blocks in shards)
    assert {block for blocks in shards for block in blocks} == set(range(15))


def test_windows_stay_in_their_blocks_by_position(tmp_path):
    """The corpus is a row of counters, so that each window says where it was taken."""
    path = tmp_path / "counters.bin"
    path.write_bytes(np.arange(300_000, dtype=">u4").tobytes())
    task = ByteLM(data=path, context=32)
    block, text = task.split.block, path.read_bytes()

    def blocks_of(batches):
        found = set()
        for inputs, targets in batches:
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            windows = torch.cat([inputs, targets[:, -1:]], dim=1).to(torch.uint8).numpy()
            for window in windows:
                start = text.find(window.tobytes())
                assert start // block == (start + len(window) - 1) // block
                found.add(start // block)
        return found

    shards = [
        blocks_of(task.train_batch(step, seed=3, shard=Shard(index=i, count=2), size=64) for step in range(4))
        for i in range(2)
    ]
    held_out = blocks_of(task.eval_batches(200))
    assert held_out == set(task.split.held_out_blocks())
    assert not shards[0] & shards[1]
    assert not held_out & (shards[0] | shards[1])


def test_held_out_windows_are_apart_and_spread():
    split = Split.of(1_000_000, 65)
    few, all_of_them = split.held_out_windows(20), split.held_out_windows(10**9)
    assert len(few) == 20
    assert (np.diff(few) >= 65).all()
    assert set(few) <= set(all_of_them)
    assert {start // split.block for start in few} == set(split.held_out_blocks())
    assert len(split.held_out_windows(0)) == 0


# Domains


@given(count=st.integers(1, 30), domains=st.integers(1, 9))
def test_every_block_of_every_domain_has_one_owner(count, domains):
    split = DomainSplit.of([(str(each), 70_000 + 9_000 * each) for each in range(domains)], 65)
    owned = []
    for index in range(count):
        mine = split.domains_of(Shard(index=index, count=count))
        assert [domain % min(count, domains) for domain, _ in mine] == [index % min(count, domains)] * len(mine)
        assert len(mine) == 1 or count < domains
        owned += [(domain, block) for domain, part in mine for block in split.splits[domain].train_blocks(part)]
    every = {(number, block) for number, each in enumerate(split.splits) for block in each.train_blocks(Shard())}
    assert sorted(owned) == sorted(every)


@given(limit=st.integers(0, 500), domains=st.integers(1, 6))
def test_as_much_of_every_domain_is_held_out(limit, domains):
    split = DomainSplit.of([(str(each), 60_000 * (each + 1)) for each in range(domains)], 65)
    found = split.held_out_windows(limit)
    counts = np.bincount(np.searchsorted(split.offsets, found, side="right") - 1, minlength=domains)
    assert sum(counts) == min(limit, domains * len(split.splits[0].held_out_windows(10**6)))
    assert max(counts) - min(counts) <= 1


@pytest.fixture
def three(tmp_path):
    """Domains of one letter each, c far larger than the others."""
    for letter, size in {"a": 20_000, "b": 30_000, "c": 400_000}.items():
        (tmp_path / "texts" / letter / "deep").mkdir(parents=True)
        (tmp_path / "texts" / letter / "one.txt").write_bytes(letter.encode() * (size // 2))
        (tmp_path / "texts" / letter / "deep" / "two.txt").write_bytes(letter.encode() * (size // 2))
    return tmp_path / "texts"


def letters(batches):
    return [bytes(row.to(torch.uint8).numpy()[:1]) for inputs, _ in batches for row in inputs]


def test_a_shard_reads_its_domain_and_all_are_judged_by_the_same_mixture(three):
    task = ByteLM(data=three, context=32, partition="domain")

    def read(index, count, size=32):
        batches = [
            task.train_batch(step, seed=0, shard=Shard(index=index, count=count), size=size) for step in range(4)
        ]
        return letters(batches)

    assert [set(read(index, 5)) for index in range(5)] == [{b"a"}, {b"b"}, {b"c"}, {b"a"}, {b"b"}]
    assert [set(read(index, 2)) for index in range(2)] == [{b"a", b"c"}, {b"b"}]
    alone = read(0, 1, size=300)
    assert all(abs(alone.count(letter) - 400) < 60 for letter in (b"a", b"b", b"c"))
    held_out = letters(task.eval_batches(31))
    assert [held_out.count(letter) for letter in (b"a", b"b", b"c")] == [11, 10, 10]


def test_what_has_no_domains_says_so(three, tmp_path):
    for data in (None, three / "a" / "one.txt"):
        with pytest.raises(TaskError, match="a subfolder a domain; give one with --data"):
            ByteLM(data=data, partition="domain")
    (three / "small").mkdir()
    (three / "small" / "x").write_bytes(b"x" * 100)
    with pytest.raises(TaskError, match="domain 'small': the data has 100 bytes"):
        ByteLM(data=three, partition="domain")
    (three / "README").write_text("about")
    with pytest.raises(TaskError, match="'README' beside its domains"):
        ByteLM(data=three, partition="domain")
    with pytest.raises(TaskError, match="there are: iid, domain"):
        ByteLM(data=three, partition="label")


# Speech


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcd" * 2000)
    return ByteLM(data=path, context=8)


def test_speech_is_longer_than_the_context_and_always_text(task):
    said = task.generate(task.build_model(), "gr\u00fc\u00df dich", length=40, temperature=2.0, seed=0)
    assert said.startswith("gr\u00fc\u00df dich")
    assert said.encode()


def test_the_likeliest_byte_needs_no_luck(task):
    model = task.build_model()
    assert len({task.generate(model, "", length=5, temperature=0, seed=seed) for seed in range(3)}) == 1


@pytest.mark.parametrize("wrong", [{"length": -1, "temperature": 1.0}, {"length": 1, "temperature": -1.0}])
def test_speech_refuses_what_cannot_be(task, wrong):
    with pytest.raises(TaskError, match="negative"):
        task.generate(task.build_model(), "x", seed=0, **wrong)
