"""Nodes whose data may tell no more: they stop training, serve on, and the others go on: real nodes, virtual clock."""

from pathlib import Path

import pytest
import trio
from sim_swarm import Member, Swarm, played
from sizes import thorough_but

from gossip.core.ids import PeerId
from gossip.updates.announced_pauses import MAX_SAID_S
from node.privacy.ledger import read_ledger
from node.system.errors import RunError, UsageError
from node.system.run_dir import PRIVACY
from node.training.round_report import moment, readings
from node.training.spent_budget import ALL_SPENT_S, NOBODY_HERE_S, QuietTime
from p2ptrain.privacy.accounting import epsilon_of

DELTA = 1e-5
PRIVATE = {"privatizer": "example", "noise": 2.0, "clip": 1.0, "rate": 0.02, "delta": DELTA}
LONG = {"rounds": 40, "eval_every": 4}
SPENT_SOON = PRIVATE | {"epsilon": 0.3}


def spent(member: Member) -> float:
    return epsilon_of(read_ledger(member.folder / PRIVACY).all_releases(), DELTA)


def steps(member: Member) -> int:
    return member.node.inner.steps


def released(member: Member) -> int:
    return sum(read_ledger(member.folder / PRIVACY).releases.values())


async def until_spent(member: Member) -> None:
    while not member.told("privacy_budget_spent"):  # noqa: ASYNC110  # events are a list here
        await trio.sleep(0.05)


@pytest.mark.parametrize("privatizer", thorough_but({"example"}, ["example", "update"]))
def test_a_node_stops_before_the_block_that_would_exceed_its_budget_and_the_others_go_on(
    privatizer: str, tmp_path: Path
) -> None:
    settings = SPENT_SOON | {"privatizer": privatizer}
    if privatizer == "update":
        settings = {key: value for key, value in settings.items() if key != "rate"} | {"noise": 8.0, "epsilon": 2.0}

    async def main(members: Swarm) -> list[Member]:
        found = [await members.start("private", privacy=settings, train=LONG)]
        found += [await members.start(name, wait_for=1, train=LONG) for name in ("one", "other")]
        await members.finished()
        return found

    private, *others = played(main, tmp_path)
    (told,) = private.told("privacy_budget_spent")
    assert 0.8 * settings["epsilon"] <= told["epsilon"] <= settings["epsilon"] < told["would_be"]
    assert told["epsilon"] == pytest.approx(spent(private))
    own_rounds = private.told("round")
    assert 2 <= len(own_rounds) < 38
    made = steps(private) if privatizer == "example" else len(own_rounds)
    assert 0 < made <= released(private)
    assert [fields["epsilon"] for fields in own_rounds] == sorted(fields["epsilon"] for fields in own_rounds)
    assert own_rounds[-1]["epsilon_budget"] == settings["epsilon"]
    assert all(len(member.told("round")) == 40 for member in others)
    assert not any(member.told("banned") + member.told("rejected") for member in (private, *others))
    joined = [fields["round"] for fields in private.told("joined")]
    assert joined == sorted(joined)
    assert len(joined) >= 2, "it takes the others' model again and again"
    assert private.node.state.finished
    assert private.told("evaluated")[-1]["round"] == 40
    assert private.eval_loss == pytest.approx(others[0].eval_loss, rel=0.2), "the model is the others'"
    assert private.told("checkpoint")[-1]["round"] == 40


def test_once_spent_it_says_so_on_the_page_and_in_metrics_and_to_its_neighbours(tmp_path: Path) -> None:
    seen: dict[str, object] = {}

    async def main(members: Swarm) -> Member:
        private = await members.start("private", privacy=SPENT_SOON, train=LONG)
        one = await members.start("one", wait_for=1, train=LONG)
        assert readings(one.node).privacy_epsilon == {}
        assert readings(private.node).paused == {"privacy": 0.0}, "an increase is one from what was seen before"
        await until_spent(private)
        await trio.sleep(2.0)
        seen["metrics"] = readings(private.node)
        seen["told"] = moment(one.node, None).peers[private.node.peer_id]
        await members.finished()
        return private

    private = played(main, tmp_path)
    assert seen["metrics"].privacy_epsilon == {"1e-05": pytest.approx(spent(private))}  # type: ignore[attr-defined]
    assert seen["metrics"].privacy_epsilon_budget == {"1e-05": 0.3}  # type: ignore[attr-defined]
    assert seen["metrics"].paused["privacy"] >= 2.0, "alerts about nodes that train leave it out"  # type: ignore[attr-defined]
    assert seen["told"]["paused"]  # type: ignore[index]
    assert seen["told"]["returns_at"] is None, "in a week would be read as a promise"  # type: ignore[index]


def test_a_restart_with_a_larger_budget_goes_on_and_one_with_the_same_does_not(tmp_path: Path) -> None:
    async def main(members: Swarm) -> list[tuple[int, int, float]]:
        found = []
        for epsilon in (0.3, 0.3, 0.4):
            member = await members.start("private", privacy=PRIVATE | {"epsilon": epsilon}, train={"rounds": 500})
            await until_spent(member)
            member.stop.set()
            await member.done.wait()
            found.append((steps(member), released(member), spent(member)))
        return found

    first, same, larger = played(main, tmp_path)
    assert same == first
    assert larger[0] > first[0]
    assert first[2] <= 0.3 < larger[2] <= 0.4
    for made, written, _ in (first, larger):
        assert made <= written


def test_a_killed_node_has_spent_at_least_what_it_told(tmp_path: Path) -> None:
    async def main(members: Swarm) -> list[tuple[int, int]]:
        found, made = [], 0
        for at in (0.31, 0.77, 1.3, 0.5):
            member = await members.start("private", privacy=PRIVATE | {"epsilon": 5.0}, train={"rounds": 500})
            before = steps(member)
            await trio.sleep(at)
            member.kill()
            await member.done.wait()
            made += steps(member) - before
            found.append((made, released(member)))
        return found

    for made, written in played(main, tmp_path):
        assert 0 < made <= written


def test_a_ledger_that_vanished_or_went_back_is_refused(tmp_path: Path) -> None:
    async def main(members: Swarm) -> None:
        member = await members.start("private", privacy=PRIVATE, train={"rounds": 3})
        await members.finished()
        ledger = member.folder / PRIVACY
        whole = ledger.read_bytes()
        for left in (None, whole.splitlines(keepends=True)[0]):
            ledger.unlink() if left is None else ledger.write_bytes(left)
            with pytest.raises(RunError, match="the checkpoint beside it was made after 3 entries"):
                await members.start("private", privacy=PRIVATE, train={"rounds": 6})
        ledger.write_bytes(whole)
        await members.start("private", privacy=PRIVATE, train={"rounds": 6})
        await members.finished()

    played(main, tmp_path)


def test_what_no_epsilon_covers_is_said(tmp_path: Path) -> None:
    async def main(members: Swarm) -> list[list[str]]:
        found = []
        for rounds, privacy in ((2, {}), (4, PRIVATE)):
            member = await members.start("n", privacy=privacy, train={"rounds": rounds})
            await member.done.wait()
            found.append([each["message"] for each in member.told("warning") if each.get("about") == "privacy"])
        return found

    first, second = played(main, tmp_path)
    assert first == []
    assert second == ["what it trained before round 2 was not protected: no epsilon covers it"]


def test_a_node_that_protects_nothing_has_no_ledger(tmp_path: Path) -> None:
    async def main(members: Swarm) -> Member:
        member = await members.start("n", train={"rounds": 2})
        await members.finished()
        return member

    member = played(main, tmp_path)
    assert not (member.folder / PRIVACY).exists()
    assert "epsilon" not in member.told("round")[-1]


def test_where_all_have_spent_their_budgets_all_end_in_order(tmp_path: Path) -> None:
    ended: list[float] = []

    async def main(members: Swarm) -> list[Member]:
        found = [await members.start("one", privacy=SPENT_SOON, train=LONG)]
        found += [await members.start(name, wait_for=1, privacy=SPENT_SOON, train=LONG) for name in ("two", "three")]
        for member in found:
            await until_spent(member)
        spent_at = trio.current_time()
        for member in found:
            await member.done.wait()
            ended.append(trio.current_time() - spent_at)
        return found

    for member in played(main, tmp_path):
        (told,) = [it["message"] for it in member.told("warning") if it.get("about") == "privacy"]
        assert "nobody trains any more" in told
        assert f"ends at round {member.node.state.round} of " in told
        assert member.told("checkpoint")[-1]["round"] == member.node.state.round < 40
        assert member.told("evaluated")[-1]["round"] == member.node.state.round
        assert member.error is None
    assert ALL_SPENT_S - 1 <= ended[0] <= ended[-1] < ALL_SPENT_S + 30


@pytest.mark.thorough
def test_a_lone_node_serves_on_for_some_time_after_its_budget_is_spent(tmp_path: Path) -> None:
    took: list[float] = []

    async def main(members: Swarm) -> Member:
        member = await members.start("one", privacy=SPENT_SOON, train=LONG)
        await until_spent(member)
        began = trio.current_time()
        await member.done.wait()
        took.append(trio.current_time() - began)
        return member

    member = played(main, tmp_path)
    assert "no other member is here" in member.told("warning")[-1]["message"]
    assert took[0] == pytest.approx(NOBODY_HERE_S, abs=5)


WEEK = float(MAX_SAID_S)
ONE, TWO = PeerId("one"), PeerId("two")


@pytest.mark.parametrize(
    ("returns", "ends_after"),
    [
        ({ONE: WEEK, TWO: WEEK}, ALL_SPENT_S),
        ({ONE: WEEK, TWO: None}, None),  # a policy's pause, without a return
        ({ONE: WEEK, TWO: 3600.0}, None),
        ({ONE: WEEK}, None),  # the other one trains
        ({}, None),
    ],
)
def test_it_ends_only_where_every_neighbour_has_paused_for_good(
    returns: dict[PeerId, float | None], ends_after: float | None
) -> None:
    quiet, here = QuietTime(), [ONE, TWO]
    found = [at for at in range(2000) if quiet.is_over(returns, here, float(at))]
    assert (found[0] if found else None) == ends_after


def test_one_that_takes_its_word_back_makes_the_others_wait_anew() -> None:
    quiet = QuietTime()
    assert not quiet.is_over({ONE: WEEK}, [ONE], 0.0)
    assert not quiet.is_over({}, [ONE], 50.0), "it trains again"
    assert not quiet.is_over({ONE: WEEK}, [ONE], 70.0)
    assert not quiet.is_over({}, [], 129.0), "it has left, and was paused for good"
    assert quiet.is_over({}, [], 130.0)


def test_a_budget_smaller_than_one_round_is_refused_at_the_start(tmp_path: Path) -> None:
    async def main(members: Swarm) -> None:
        with pytest.raises(UsageError, match=r"epsilon=0.01 is less than the first round spends: 5 steps with noise 2"):
            await members.start("one", privacy=PRIVATE | {"epsilon": 0.01}, train=LONG)

    played(main, tmp_path)
    assert not read_ledger(tmp_path / "one" / PRIVACY).mark.entries


def test_a_budget_that_was_made_smaller_than_what_is_spent_still_starts(tmp_path: Path) -> None:
    async def main(members: Swarm) -> tuple[int, int]:
        first = await members.start("one", privacy=SPENT_SOON, train={"rounds": 3})
        await first.done.wait()
        before = released(first)
        again = await members.start("one", privacy=PRIVATE | {"epsilon": 0.01}, train={"rounds": 5})
        await until_spent(again)
        again.stop.set()
        await again.done.wait()
        return before, released(again)

    before, after = played(main, tmp_path)
    assert 0 < before == after
