"""A site of two and of four ranks trains the model that one process trains, and each goes on from the other."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from site_ranks import ALONE, MORE, cases

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.batches import share_of
from p2ptrain.training.site.batch_shares import batch_share
from p2ptrain.training.site.orders import ENDED, SILENT, RankLostError, why_lost
from p2ptrain.training.site.site_config import SiteConfig
from p2ptrain.training.site.site_trainer import RankThread

HERE = Path(__file__).parent
PARAMETERS = 32_928
"""Of byte-lm pico."""
EMBEDDING = 256 * 32
"""Those of its matrix that the first stage and the last one have."""

QUICK = ("sharded", "tensor", "pipeline")
"""One case of each way to cut a model, for two ranks: `make test` runs these, .ci/run all."""


def with_marks(ranks: int, *words: str) -> Any:
    """Parameters of a test, which is thorough unless the processes with the quick cases have found what it asks."""
    is_quick = ranks == 2 and all(name in QUICK or name not in cases(ranks) for name in words)
    return pytest.param(ranks, *words, marks=() if is_quick else pytest.mark.thorough)


in_cases = pytest.mark.parametrize(
    ("ranks", "case"), [with_marks(ranks, name) for ranks in (2, 4) for name in cases(ranks)]
)
in_both = pytest.mark.parametrize("ranks", [with_marks(2), with_marks(4)])


class Found:
    """What rank 0 has found, by the number of ranks and what was asked; what one start can find is asked at once."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._starts: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}

    def __call__(self, ranks: int, what: str) -> Any:
        start = ranks, self._asked_with(ranks, what)
        if start not in self._starts:
            self._starts[start] = _found(self._folders.mktemp("ranks"), *start)
        return self._starts[start][what]

    @staticmethod
    def _asked_with(ranks: int, what: str) -> tuple[str, ...]:
        if what in ALONE:
            return (what,)
        others = tuple(name for name in cases(ranks) if name not in (*ALONE, *QUICK))
        if ranks > 2:
            return (*QUICK, *others, MORE)
        return others if what in others else (*QUICK, MORE)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory)


def _found(out: Path, ranks: int, asked: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "site_ranks.py", str(ranks), str(out), *asked],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loaded: dict[str, Any] = json.loads((out / "found.json").read_text())
    return loaded


@pytest.mark.slow
@in_cases
def test_a_site_takes_the_steps_of_one_process(found: Found, ranks: int, case: str) -> None:
    far = found(ranks, case)
    assert far["alike"]
    assert far["begun"] == 0.0, "the same seed"
    assert far["losses"] < 1e-5
    assert far["tokens"] == 0
    assert far["parameters"] < 1e-5
    assert far["measured"] < 1e-5
    assert far["judged"] < 1e-5


@pytest.mark.slow
@in_cases
def test_a_site_and_one_process_go_on_from_each_other(found: Found, ranks: int, case: str) -> None:
    far = found(ranks, case)
    assert far["same entries"] == []
    assert far["state"] < 1e-5
    assert far["gone on"] < 2e-5
    assert far["corrected"] < 2e-5


@pytest.mark.slow
@in_both
def test_a_users_task_goes_through_stages_that_share_a_matrix(found: Found, ranks: int) -> None:
    far = found(ranks, "own task")
    assert far["alike"]
    assert far["same entries"] == []
    for what in ("begun", "losses", "parameters", "measured", "judged", "state", "gone on", "corrected"):
        assert far[what] < 1e-5
    assert far["tokens"] == 0


@pytest.mark.slow
@in_both
@pytest.mark.parametrize("model", ["odd", "experts"])
def test_a_model_that_fsdp_alone_does_not_cut_trains_as_in_one_process(found: Found, ranks: int, model: str) -> None:
    far = found(ranks, model)
    assert far["alike"]
    assert far["same entries"] == []
    for what in ("begun", "losses", "parameters", "measured", "judged", "state", "gone on", "corrected"):
        assert far[what] < 1e-5, what
    assert far["tokens"] == 0


@pytest.mark.slow
@in_both
def test_ranks_that_use_unlike_parameters_end_where_fsdp_would_add_them_up(found: Found, ranks: int) -> None:
    assert "take torch 2.13 or newer" in found(ranks, "experts before torch 2.13")


@pytest.mark.slow
@in_both
def test_each_value_is_in_one_rank(found: Found, ranks: int) -> None:
    assert sum(found(ranks, "held")) == PARAMETERS
    assert max(found(ranks, "held")) < 1.1 * PARAMETERS / ranks


@pytest.mark.slow
@in_both
def test_each_value_is_in_one_stage_but_for_those_that_two_train(found: Found, ranks: int) -> None:
    assert sum(found(ranks, "held, in stages")) == PARAMETERS + EMBEDDING
    assert max(found(ranks, "held, in stages")) < 1.1 * (PARAMETERS + EMBEDDING) / ranks


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "words"), [with_marks(2, ""), with_marks(4, ""), with_marks(4, ", in stages")])
def test_gradients_are_added_up_once_a_step(found: Found, ranks: int, words: str) -> None:
    once, accumulated = found(ranks, "syncs" + words)
    assert once == accumulated > 0


@pytest.mark.slow
def test_activations_are_computed_again(found: Found) -> None:
    assert found(2, "attentions") == [2, 4], "of two blocks"


@pytest.mark.slow
@in_both
@pytest.mark.parametrize("words", ["", ", in stages"])
def test_a_step_that_is_no_number_in_one_rank_is_taken_in_none(found: Found, ranks: int, words: str) -> None:
    step = found(ranks, "skipped" + words)
    assert (step["loss"], step["stayed"], step["counted"]) == ("nan", True, 1)
    assert step["next"] > 0


@pytest.mark.slow
def test_another_optimizers_state_is_refused(found: Found) -> None:
    assert "is not that of optimizer adamw" in found(2, "refused")


@pytest.mark.slow
@in_both
@pytest.mark.parametrize("late", [False, True])
def test_metrics_that_fail_in_one_rank_keep_no_other_waiting(found: Found, ranks: int, late: bool) -> None:
    assert "metrics()" in found(ranks, f"fault in one, late {late}")


@pytest.mark.slow
@in_both
def test_an_evaluation_that_fails_leaves_the_live_model(found: Found, ranks: int) -> None:
    assert found(ranks, "after a failure") == 0.0


@pytest.mark.slow
@in_both
@pytest.mark.parametrize("words", ["", ", in stages"])
def test_a_tasks_own_metrics_are_means_over_all_ranks(found: Found, ranks: int, words: str) -> None:
    told = found(ranks, "told" + words)
    assert told["site"] == pytest.approx(told["one"], abs=1e-6)


@pytest.mark.slow
@in_both
def test_a_task_that_fails_at_its_metrics_in_the_last_stage_is_told_of(found: Found, ranks: int) -> None:
    assert "a value of metrics() is no number" in found(ranks, "fault")


def test_ranks_that_the_shards_do_not_divide_are_refused() -> None:
    assert SiteConfig().mesh(6) == (1, 1, 6, 1)
    assert SiteConfig(shard=2).mesh(6) == (1, 3, 2, 1)
    assert SiteConfig(tensor=3).mesh(6) == (1, 1, 2, 3)
    assert SiteConfig(pipeline=3).mesh(6) == (3, 1, 2, 1)
    assert SiteConfig(pipeline=2, tensor=2, shard=1).mesh(8) == (2, 2, 1, 2)
    with pytest.raises(TaskError, match=r"6 ranks cannot be shared out by site\.shard=4: start a multiple of 4"):
        SiteConfig(shard=4).mesh(6)
    with pytest.raises(TaskError, match=r"2 ranks cannot be shared out by site\.pipeline=3: start a multiple of 3"):
        SiteConfig(pipeline=3).mesh(2)
    with pytest.raises(TaskError, match=r"by site\.shard=3 and site\.tensor=4: start a multiple of 12"):
        SiteConfig(shard=3, tensor=4).mesh(6)


def test_shares_of_a_batch_are_the_batch() -> None:
    import torch

    batch = torch.arange(10).view(5, 2), torch.arange(5)
    shares = [share_of(batch, index, 3) for index in range(3)]
    assert [len(share[1]) for share in shares] == [1, 2, 2]
    assert torch.equal(torch.cat([share[0] for share in shares]), batch[0])
    assert share_of(batch, 0, 6) is None


class Masked:
    """Predicts where the target is not negative."""

    name = "masked"

    def tokens(self, batch: Any) -> int:
        return int((batch[1] >= 0).sum())


def test_a_share_without_predictions_counts_nothing() -> None:
    import torch

    batch = torch.zeros(4, 3), torch.tensor([[1], [1], [-1], [-1]])
    with_some, without = (batch_share(Masked(), batch, index, 2) for index in range(2))  # type: ignore[arg-type]
    assert (with_some.share, with_some.predictions) == (1.0, 2)
    assert (without.share, without.predictions) == (0.0, 0.0)
    assert without.batch is batch, "a mean over nothing would be no number"


def test_one_that_waits_for_a_lost_rank_is_released() -> None:
    thread, begun, goes_on = RankThread(), threading.Event(), threading.Event()
    raised: list[str] = []

    def ask() -> None:
        try:
            thread.do(lambda: (begun.set(), goes_on.wait(60)))
        except RankLostError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert begun.wait(60)
    thread.lose("rank 1 is gone")
    waiting.join(60)
    assert raised == ["rank 1 is gone"], "although its collective still waits"
    goes_on.set()
    with pytest.raises(RankLostError, match="rank 1 is gone"):
        thread.do(lambda: None)


def test_torchs_errors_of_other_ranks_are_told_from_a_tasks() -> None:
    assert why_lost(RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer")) == ENDED
    assert why_lost(RuntimeError("[gloo/unbound_buffer.cc] Timed out waiting 5000ms for recv")) == SILENT
    assert why_lost(RuntimeError("shapes (3,) and (4,) do not fit")) == ""
    assert why_lost(ValueError("gloo")) == ""
