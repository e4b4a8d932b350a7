"""A member of a region that is killed after it has published its region's model, and started again."""

import trio
from sim_swarm import Member, Swarm, swarm

REGIONS = ["east", "west"]
EACH = 3
ROUNDS = 24


async def start(it: Swarm, number: int) -> Member:
    return await it.start(
        f"node-{number}",
        wait_for=EACH - 1,
        node={
            "region": REGIONS[number % 2],
            "shard_count": 2 * EACH,
            "shard_index": number,
            "checkpoint_every": 4,
        },
        sync={"regions": REGIONS},
        train={"rounds": ROUNDS, "eval_every": ROUNDS},
    )


async def test_who_is_killed_and_closes_a_round_again_states_no_second_model_of_it(tmp_path, autojump_clock):
    """Each member is one of the four that are drawn. The model of round 6 is stated, and a checkpoint of round 4 is
    what the next start finds."""
    async with swarm(tmp_path) as it:
        for number in range(2 * EACH):
            await start(it, number)
        victim = it.members["node-0"]
        while victim.node.state.round < 7:  # noqa: ASYNC110  # virtual time
            await trio.sleep(0.05)
        victim.kill()
        await start(it, 0)
        await it.finished()
        again = it.members["node-0"]
        assert again.resumed
        assert again.told("round")[0]["round"] < 6 < victim.told("round")[-1]["round"], "it closes the round again"
        for member in it.members.values():
            assert not member.told("equivocation"), f"to {member.name} it has signed two histories"
