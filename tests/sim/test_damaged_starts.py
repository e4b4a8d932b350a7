"""A node starts whatever became of its newest checkpoint and of its epoch file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio.testing
from sim_swarm import swarm
from sizes import thorough_but

from node.training.checkpoint import CheckpointStore

Fields = dict[str, Any]


def older(fields: Fields) -> Fields:
    """As a release wrote it that had no digest of the meta."""
    return {key: value for key, value in fields.items() if key != "meta_digest"}


DAMAGE: dict[str, Callable[[Fields], str]] = {
    "nested": lambda fields: json.dumps(older(fields)).replace('"first": {', '"first": {"x": ' + "[" * 50_000),
    "round -5": lambda fields: json.dumps(older(fields) | {"round": -5}),
    "steps 1e400": lambda fields: json.dumps(older(fields) | {"steps": "S"}).replace('"S"', "1e400"),
    "wall infinite": lambda fields: json.dumps(older(fields) | {"wall_s": 1e999}),
    "first of text": lambda fields: json.dumps(older(fields) | {"first": {"train_loss": "low"}}),
    "first no fields": lambda fields: json.dumps(older(fields) | {"first": None}),
    "config text": lambda fields: json.dumps(older(fields) | {"config": "x"}),
    "steps changed": lambda fields: json.dumps(fields | {"steps": fields["steps"] + 1}),
    "round changed": lambda fields: json.dumps(fields | {"round": 5}),
}


@pytest.mark.parametrize("kind", thorough_but([*DAMAGE][::3], DAMAGE))
async def test_a_node_goes_on_from_the_one_before_and_tells_why(
    kind: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        first = await members.start("n0", train={"rounds": 6}, node={"checkpoint_every": 2})
        await members.finished()
        store = CheckpointStore(first.folder / "checkpoint")
        meta = store.folder / "round-00000006" / "meta.json"
        meta.write_text(DAMAGE[kind](json.loads(meta.read_bytes())))
        again = await members.start("n0", train={"rounds": 8})
        await members.finished()
        (skipped,) = again.told("checkpoint_skipped")
        assert "meta.json" in skipped["why"]
        assert again.told("resumed")[0]["round"] == 4
        assert again.told("round")[-1]["round"] == 8


async def test_what_an_older_release_wrote_is_gone_on_from(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        first = await members.start("n0", train={"rounds": 6})
        await members.finished()
        meta = first.folder / "checkpoint" / "round-00000006" / "meta.json"
        fields = older(json.loads(meta.read_bytes()))
        fields.pop("epoch", None)
        meta.write_text(json.dumps(fields, indent=1))
        again = await members.start("n0", train={"rounds": 8})
        await members.finished()
        assert again.told("resumed")[0]["round"] == 6
        assert again.node.inner.steps == 8 * 5
        assert not again.told("checkpoint_skipped")


async def test_an_epoch_that_a_checkpoint_names_is_not_used_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Its file is cut to nothing, and the clock (here: the virtual one) is far behind."""
    used = 10**15
    folder = tmp_path / "n0"
    folder.mkdir()
    (folder / "epoch").write_text(f"{used}\n")
    async with swarm(tmp_path) as members:
        first = await members.start("n0", train={"rounds": 4})
        await members.finished()
        assert first.node.epochs.used == used + 1
        kept = CheckpointStore(folder / "checkpoint").newest()
        assert kept is not None
        assert kept.totals.epoch == used + 1
        (folder / "epoch").write_bytes(b"")
        again = await members.start("n0", train={"rounds": 6})
        await members.finished()
        assert again.node.epochs.used == used + 2
        assert any("epoch is damaged" in fields["message"] for fields in again.told("warning"))
