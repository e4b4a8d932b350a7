"""Which process is a rank of a site, and what a site is not started with."""

from pathlib import Path

import pytest

from node.config.schema import load
from node.roles.site_check import check_site, idle_site_settings
from node.system.errors import UsageError
from node.system.next_command import node_command
from node.system.ranks import SiteProcess, site_process

VARIABLES = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}
PAIR = SiteProcess(rank=0, count=2, local_rank=0, local_count=2)


def test_torchrun_says_which_rank_this_is() -> None:
    assert site_process(VARIABLES) == SiteProcess(rank=5, count=8, local_rank=1, local_count=4, restarts=3)
    assert site_process({}) is None
    assert site_process(VARIABLES | {"RANK": ""}) is None


def test_several_ranks_are_a_site_and_one_is_where_something_is_set() -> None:
    one, usual = SiteProcess(rank=0, count=1, local_rank=0), load()
    assert check_site(usual, PAIR, run_dir_given=False)
    assert not check_site(usual, one, run_dir_given=False)
    assert not check_site(usual, None, run_dir_given=False)
    recomputed = load(sets=["site.activation_checkpointing=true"])
    assert check_site(recomputed, one, run_dir_given=False)
    assert not check_site(recomputed, None, run_dir_given=False)


def test_what_does_nothing_in_one_process_is_told() -> None:
    assert idle_site_settings(load().site) == []
    (line,) = idle_site_settings(load(sets=["site.activation_checkpointing=true"]).site)
    assert "site.activation_checkpointing" in line
    assert "torchrun" in line


def test_a_site_that_is_to_start_again_wants_a_folder() -> None:
    again = SiteProcess(rank=0, count=2, local_rank=0, restarts=1)
    with pytest.raises(UsageError, match="it would begin anew; give it a --run-dir"):
        check_site(load(), again, run_dir_given=False)
    assert check_site(load(), again, run_dir_given=True)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("node.lane=process", "a site has no node.lane=process; leave it at thread"),
        ("node.role=observer", "a site has no node.role=observer"),
        ("train.compile=true", "a site has no train.compile=true"),
        ("train.step_normalization=fednova", "which works on whole vectors"),
        ("selection.policy=useful", "none is measured; take nearest or random"),
        ("sync.strategy=mime", "which wants the state of the inner optimizer"),
        ("site.tensor=3", r"2 ranks cannot be shared out by site\.tensor=3"),
        ("site.pipeline=3", r"2 ranks cannot be shared out by site\.pipeline=3"),
    ],
)
def test_what_a_site_has_not(wanted: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        check_site(load(sets=[wanted]), PAIR, run_dir_given=False)


def test_a_step_that_a_pipeline_cannot_cut() -> None:
    few = load(sets=["site.pipeline=2", "train.batch_size=1"])
    with pytest.raises(UsageError, match=r"site\.pipeline=2 wants at least 2 as the number of equal micro-batches"):
        check_site(few, PAIR, run_dir_given=False)
    with pytest.raises(UsageError, match=r"site\.pipeline=2 wants several ranks; .* by --set site\.pipeline=1"):
        check_site(few, None, run_dir_given=False)


def test_the_command_that_goes_on_starts_as_many_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    command = node_command(tmp_path / "node")
    assert command == f"torchrun --nproc-per-node 4 -m p2ptrain node --run-dir {tmp_path}"
