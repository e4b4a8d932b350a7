"""Services in a private swarm on the virtual clock: members go on, strangers get nothing, and the operator is told."""

import random
from functools import partial

from gossip_swarm import CONFIG, FakeRuntime, Swarm, all_follow, identity, play, swarm, until
from test_handshake_admission import Club

from gossip.bootstrap import BootstrapService


def private(it: Swarm, club: Club) -> None:
    """Nodes that are made from now on are of this club."""
    it.network.attach = partial(type(it.network).attach, it.network, admission=club)


def warned(node: FakeRuntime) -> list[str]:
    return [event.detail for event in node.told("warning")]


async def test_members_train_on_while_strangers_knock(autojump_clock):
    async with swarm() as it:
        private(it, Club())
        members = await it.start_all(3)
        private(it, Club(b"guess"))
        guesser = await it.start(8, peers=tuple(node.address for node in members))
        private(it, None)
        public = await it.start(9, peers=tuple(node.address for node in members))
        await play(members, range(1, 4))
        await until(lambda: all_follow(members))
        await until(lambda: all(node.transport.drops["refused_protocol"] for node in members))
        for node in members:
            assert node.transport.drops["refused_no_member"] >= 1
            assert node.transport.peers == {other.peer for other in members if other is not node}
            assert any(line.startswith(f"refused {guesser.peer}") for line in warned(node))
            assert any(line.startswith(f"refused {public.peer}") for line in warned(node))
        for stranger in (guesser, public):
            assert not stranger.service.neighbours()
            assert stranger.service.peers_known == 0
            assert not stranger.received
            assert stranger.told("dial_failed")


async def test_a_bootstrap_node_of_a_private_swarm_tells_nobody_else(autojump_clock):
    async with swarm() as it:
        private(it, Club())
        key, lines = identity(70), []
        transport = it.network.attach(key.peer_id)
        service = BootstrapService(
            identity=key, transport=transport, config=CONFIG, rng=random.Random(1), warn=lines.append
        )
        await it._nursery.start(lambda *, task_status: service.run(task_status=task_status))
        known = {"peers": transport.addresses}
        members = [await it.start(number, **known) for number in (1, 2)]
        for node in members:
            await node.begin()
        private(it, Club(b"guess"))
        stranger = await it.start(9, **known)
        await until(lambda: all(len(node.service.neighbours()) == 1 for node in members))
        await until(lambda: bool(lines))
        assert stranger.service.peers_known == 0
        assert lines[0].startswith(f"refused {stranger.peer}")
        assert transport.drops["refused_no_member"] >= 1
