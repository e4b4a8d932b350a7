"""A checkpoint's files may hold anything: what is wrong is a CheckpointError, and the one before counts."""

import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from sizes import examples

from gossip.core.limits import MAX_COUNTER, MAX_STOOD_WITH
from node.privacy.chained_log import LedgerMark
from node.system.errors import RunError
from node.training.checkpoint import Checkpoint, CheckpointError, CheckpointStore, read
from node.training.checkpoint_meta import (
    MAX_MEASURES,
    MAX_META_BYTES,
    MAX_NAME_CHARS,
    MAX_SECONDS,
    dump,
    mark_of,
    parse,
    stood_with,
    totals_of,
)
from node.training.epochs import MAX_EPOCH
from node.training.evaluation import load

FIELDS: dict[str, Any] = {
    "config": {"task": {"name": "digits"}, "train": {"rounds": 60, "learning_rate": 1e-3}, "list": [1, 2.5, None]},
    "peer_id": "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo",
    "first": {"train_loss": 2.25, "eval_loss": math.nan},
    "steps": 600,
    "compute_s": 12.5,
    "wall_s": 14,
    "epoch": 1_785_000_000_000,
    "stood_with": ["12D3KooWMS3Yrvd8U16Qs7XzfPwp3z4NcqJpgAyLEn8tDzJy1J4V"],
    "model": {
        "parameters": [{"name": "a.weight", "shape": [4, 2], "dtype": "float32"}],
        "tied": {"b.weight": "a.weight"},
        "untrained": [{"name": "mask", "shape": [], "dtype": "bool"}],
    },
}
TRUE = dump(FIELDS, round=40, state_digest="ab" * 32)


def test_a_place_in_the_privacy_ledger_is_read_and_may_be_missing() -> None:
    assert mark_of(parse(older())) is None
    assert mark_of(parse(older(privacy={"entries": 3, "digest": "ab"}))) == LedgerMark(3, "ab")


def test_members_that_stood_with_it_are_read_and_may_be_missing() -> None:
    assert stood_with(parse(older())) == FIELDS["stood_with"]
    assert stood_with(parse(older(stood_with=None))) is None
    assert stood_with(parse(older(stood_with=[]))) == []


def older(**changes: Any) -> bytes:
    """As a release wrote it that had no digest of the meta; None takes a field away."""
    fields = {**FIELDS, "format": 1, "round": 40, "digest": "ab" * 32, **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not None}, indent=1).encode()


def model(**changes: Any) -> bytes:
    """One whose model's names have these fields instead."""
    return older(model={**FIELDS["model"], **changes})


def tensors_of(**changes: Any) -> list[dict[str, Any]]:
    """The trained parameters, the first one with these fields instead."""
    return [{"name": "a.weight", "shape": [4, 2], "dtype": "float32", **changes}]


def is_within_bounds(meta: dict[str, Any]) -> bool:
    totals = totals_of(meta)
    return (
        type(meta["round"]) is int
        and 0 <= meta["round"] <= MAX_COUNTER
        and 0 <= totals.steps <= MAX_COUNTER
        and 0 <= totals.epoch <= MAX_EPOCH
        and 0.0 <= totals.compute_s <= MAX_SECONDS
        and 0.0 <= totals.wall_s <= MAX_SECONDS
        and len(totals.first) <= MAX_MEASURES
        and not any(map(math.isinf, totals.first.values()))
        and isinstance(meta["config"], dict)
        and len(meta["digest"]) == 64
    )


def taken(data: bytes) -> bool:
    """Whether it is read; and then all of it is within bounds."""
    try:
        meta = parse(data)
    except CheckpointError as error:
        assert str(error)  # noqa: PT017
        return False
    assert is_within_bounds(meta)
    return True


def test_what_is_written_is_read() -> None:
    meta = parse(TRUE)
    assert (meta["round"], meta["digest"], meta["config"]) == (40, "ab" * 32, FIELDS["config"])
    totals = totals_of(meta)
    assert (totals.steps, totals.compute_s, totals.wall_s, totals.epoch) == (600, 12.5, 14.0, FIELDS["epoch"])
    assert totals.first["train_loss"] == 2.25
    assert math.isnan(totals.first["eval_loss"])


def test_what_an_older_release_wrote_is_read() -> None:
    meta = parse(older(epoch=None))
    assert totals_of(meta).epoch == 0
    assert totals_of(meta).steps == 600
    infinite = parse(older(first={"eval_loss": math.inf}))
    assert math.isnan(totals_of(infinite).first["eval_loss"]), "it wrote what no summary shows"


def test_every_bit_of_it_counts() -> None:
    """But for those in the spaces between: what is read is what was written, or nothing is."""
    true = parse(TRUE)
    for position in range(len(TRUE)):
        for bit in range(8):
            hurt = bytearray(TRUE)
            hurt[position] ^= 1 << bit
            try:
                found = parse(bytes(hurt))
            except CheckpointError:
                continue
            told = {key: value for key, value in found.items() if key in true}
            assert repr(told) == repr({key: true[key] for key in told})


WRONG: dict[str, bytes] = {
    "nested": b'{"format": 1, "first": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "nested in config": older(config="X").replace(b'"X"', b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "huge": b" " * MAX_META_BYTES + TRUE,
    "empty": b"",
    "null": b"null",
    "list": b"[1]",
    "not UTF-8": TRUE.replace(b"digits", b"\xff\xfe"),
    "UTF-16": TRUE.decode().encode("utf-16"),
    "a mark before": b"\xef\xbb\xbf" + TRUE,
    "cut short": TRUE[:-3],
    "format 2": older(format=2),
    "format true": older(format=True),
    "format 1.0": older(format=1.0),
    "round -5": older(round=-5),
    "round 4.5": older(round=4.5),
    "round 40.0": older(round=40.0),
    "round true": older(round=True),
    "round text": older(round="40"),
    "round beyond": older(round=MAX_COUNTER + 1),
    "round 1e400": older().replace(b'"round": 40', b'"round": 1e400'),
    "round of 5,000 digits": older().replace(b'"round": 40', b'"round": ' + b"4" * 5000),
    "no round": older(round=None),
    "no config": older(config=None),
    "config list": older(config=[]),
    "config text": older(config="x"),
    "first list": older(first=[1]),
    "first text": older(first="x"),
    "first of text": older(first={"train_loss": "2.0"}),
    "first of null": older().replace(b"2.25", b"null"),
    "first of lists": older(first={"train_loss": [1.0]}),
    "first true": older(first={"train_loss": True}),
    "first 1e400": older().replace(b"2.25", b"1e400"),
    "first -1e400": older().replace(b"2.25", b"-1e400"),
    "first of a huge count": older(first={"train_loss": 10**400}),
    "first of many": older(first={str(number): 1.0 for number in range(MAX_MEASURES + 1)}),
    "first of long names": older(first={"x" * (MAX_NAME_CHARS + 1): 1.0}),
    "steps negative": older(steps=-1),
    "steps infinite": older(steps=math.inf),
    "steps 1e400": older().replace(b'"steps": 600', b'"steps": 1e400'),
    "steps text": older(steps="many"),
    "steps list": older(steps=[1]),
    "steps beyond": older(steps=MAX_COUNTER + 1),
    "compute negative": older(compute_s=-0.5),
    "compute NaN": older(compute_s=math.nan),
    "wall infinite": older(wall_s=math.inf),
    "wall 1e400": older().replace(b'"wall_s": 14', b'"wall_s": 1e400'),
    "wall text": older(wall_s="x"),
    "wall true": older(wall_s=True),
    "wall beyond": older(wall_s=1e11),
    "epoch beyond": older(epoch=MAX_COUNTER),
    "epoch negative": older(epoch=-1),
    "epoch text": older(epoch="x"),
    "privacy text": older(privacy="x"),
    "privacy without entries": older(privacy={"digest": "ab"}),
    "privacy with entries negative": older(privacy={"entries": -1, "digest": "ab"}),
    "privacy with a digest of numbers": older(privacy={"entries": 1, "digest": 5}),
    "peer id number": older(peer_id=5),
    "peer id long": older(peer_id="x" * 1000),
    "model text": older(model="x"),
    "model empty": older(model={}),
    "model with more": model(more=1),
    "model without parameters": model(parameters=[], tied={}),
    "parameters no list": model(parameters={"name": "a"}),
    "parameters of text": model(parameters=["a.weight"]),
    "name number": model(parameters=tensors_of(name=5)),
    "name empty": model(parameters=tensors_of(name="")),
    "name long": model(parameters=tensors_of(name="x" * 1025), tied={}),
    "name twice": model(parameters=tensors_of() * 2),
    "name of both kinds": model(untrained=tensors_of()),
    "shape text": model(parameters=tensors_of(shape="4")),
    "shape negative": model(parameters=tensors_of(shape=[-4, -2])),
    "shape of fractions": model(parameters=tensors_of(shape=[4.0])),
    "shape true": model(parameters=tensors_of(shape=[True])),
    "shape beyond": model(parameters=tensors_of(shape=[MAX_COUNTER, MAX_COUNTER])),
    "shape of many": model(parameters=tensors_of(shape=[1] * 65)),
    "type of none": model(parameters=tensors_of(dtype="float8")),
    "type list": model(parameters=tensors_of(dtype=["float32"])),
    "a tensor with more": model(parameters=tensors_of(more=1)),
    "tied to nothing": model(tied={"b.weight": "c.weight"}),
    "tied to itself": model(tied={"a.weight": "a.weight"}),
    "tied text": model(tied="a.weight"),
    "tied number": model(tied={"b.weight": 5}),
    "digest missing": older(digest=None),
    "digest number": older(digest=5),
    "digest short": older(digest="ab"),
    "own digest wrong": older(meta_digest="cd" * 32),
    "own digest list": older(meta_digest=[]),
    "own digest null": older().replace(b'"format"', b'"meta_digest": null, "format"'),
    "a field changed": TRUE.replace(b'"steps": 600', b'"steps": 601'),
    "a field added": TRUE.replace(b'"steps"', b'"more": 1, "steps"'),
    "a setting changed": TRUE.replace(b'"rounds": 60', b'"rounds": 61'),
    "members that stood with it are no list": older(stood_with="12D3"),
    "one of them is no name": older(stood_with=["12D3", 3]),
    "more of them than are kept": older(stood_with=["12D3"] * (MAX_STOOD_WITH + 1)),
    "the round changed": TRUE.replace(b'"round": 40', b'"round": 41'),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_passed_over_for_the_one_before(data: bytes, tmp_path: Path) -> None:
    assert not taken(data)
    store = CheckpointStore(tmp_path / "checkpoint")
    tensors = {"trainer.parameters": torch.ones(3)}
    store.save(Checkpoint(round=30, meta=FIELDS, tensors=tensors))
    damaged = store.save(Checkpoint(round=40, meta=FIELDS, tensors=tensors))
    digest = hashlib.blake2b((damaged / "state.safetensors").read_bytes(), digest_size=32).hexdigest()
    (damaged / "meta.json").write_bytes(data.replace(b"ab" * 32, digest.encode()))
    skipped: list[str] = []
    found = store.newest(lambda _, why: skipped.append(why))
    assert found is not None
    assert found.round == 30
    (why,) = skipped
    assert str(damaged / "meta.json") in why
    assert len(why) < 1000


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_checkpoint_s_or_an_error(data: bytes) -> None:
    taken(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(field=st.sampled_from([*FIELDS, "format", "round", "digest", "meta_digest", "more"]), value=JSON)
def test_any_value_of_any_field_is_within_bounds_or_an_error(field: str, value: Any) -> None:
    taken(json.dumps({**json.loads(older()), field: value}).encode())


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(data=st.data())
def test_any_mutation_of_a_true_one_is_within_bounds_or_an_error(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([TRUE, older()]))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(len(whole), begin + 20)))
    words = st.sampled_from([b"", b"-", b"1e400", b"NaN", b"Infinity", b"[", b"{", b'"', b"9" * 400, b"null", b"true"])
    taken(whole[:begin] + data.draw(words | st.binary(max_size=8)) + whole[end:])


def test_a_checkpoint_under_another_round_s_name_is_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    path = store.save(Checkpoint(round=40, meta=FIELDS, tensors={"x": torch.ones(1)}))
    with pytest.raises(CheckpointError, match="is of round 40"):
        read(path.rename(store.folder / "round-00000099"))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint")
    for name in ("meta.json", "state.safetensors"):
        path = store.save(Checkpoint(round=40, meta=FIELDS, tensors={"x": torch.ones(1)}))
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(CheckpointError, match=name):
            read(path)


def test_a_configuration_that_is_none_is_said_to_be_none() -> None:
    for config in ({"a": 1}, {"task": 5, "train": {}}, {"task": {}, "train": None}):
        with pytest.raises(RunError, match="no configuration"):
            load(Checkpoint(round=1, meta={"config": config}, tensors={}))


# -- the tensors' file


def with_state(folder: Path, state: bytes) -> Path:
    """A checkpoint whose digests hold, around any bytes at all."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.safetensors").write_bytes(state)
    digest = hashlib.blake2b(state, digest_size=32).hexdigest()
    (folder / "meta.json").write_bytes(dump(FIELDS, round=40, state_digest=digest))
    return folder


def with_header(header: bytes, body: bytes = b"\0" * 16, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def tensor(dtype: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> bytes:
    return json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


STATES: dict[str, bytes] = {
    "empty": b"",
    "a length alone": struct.pack("<Q", 10),
    "a length without end": with_header(b"{}", length=2**64 - 1),
    "a length of terabytes": with_header(b"{}", length=2**42),
    "not JSON": with_header(b"{nonsense"),
    "not UTF-8": with_header(b'{"\xff\xfe": 1}'),
    "nested": with_header(b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "a list": with_header(b"[]"),
    "an unknown type": with_header(tensor("F33")),
    "a type that torch has not": with_header(tensor("F6_E2M3", (4,), (0, 3))),
    "a shape that is no list": with_header(tensor(shape="x")),
    "a negative size": with_header(tensor(shape=(-4,))),
    "a size that overflows": with_header(tensor(shape=(2**62, 2**62, 16))),
    "a size beyond the file": with_header(tensor(shape=(2**40,), offsets=(0, 2**42))),
    "offsets that go back": with_header(tensor(offsets=(16, 0))),
    "negative offsets": with_header(tensor(offsets=(-16, 0))),
    "offsets of another size": with_header(tensor(offsets=(0, 8))),
    "bytes that nobody has": with_header(tensor(), b"\0" * 64),
    "metadata that is none": with_header(b'{"__metadata__": 5}', b""),
    "overlaps": with_header(
        json.dumps(
            {name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for name in ("x", "y")},
        ).encode()
    ),
}


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_a_header_that_lies_is_a_checkpoint_error(state: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        read(with_state(tmp_path / "round-00000040", state))


@pytest.mark.slow
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_tensors_or_an_error(data: st.DataObject, tmp_path: Path) -> None:
    true = save({"trainer.parameters": torch.arange(8.0), "sync.anchor": torch.ones(2, 2)})
    begin = data.draw(st.integers(0, len(true)))
    end = data.draw(st.integers(begin, min(len(true), begin + 12)))
    words = st.sampled_from([b"", b"-1", b"99999999999999999999", b"BF16", b"[]", b"{}", b"null", b'"'])
    state = true[:begin] + data.draw(words | st.binary(max_size=12)) + true[end:]
    try:
        found = read(with_state(tmp_path / "round-00000040", state))
    except CheckpointError:
        return
    assert all(isinstance(value, torch.Tensor) for value in found.tensors.values())
