"""What each role may do in a private swarm, held against members whose own code does not keep to it."""

import pytest
import trio
from gossip_samples import link
from gossip_swarm import RUN, all_follow, identity, play, until
from private_liars import OURS, Insider, insider, reasons
from private_swarm import met, private_swarm

from gossip.core.digests import NO_DIGEST
from gossip.core.envelope import seal
from gossip.core.errors import LocalError, Reason
from gossip.core.ids import PeerId
from gossip.core.messages import FindRequest, PartRequest, Refused
from gossip.core.statements import Stage, part_statement, record_statement
from gossip.membership import Role
from gossip.updates.roles import MAX_LISTENERS, Roles

LISTENERS = (Role.OBSERVER, Role.RELAY)


def a_link(liar: Insider, seq: int = 0) -> bytes:
    """A new epoch that the liar would have others follow."""
    return link(by=liar.identity, scope=OURS, epoch=1000 + seq, genesis=RUN.genesis).raw


@pytest.mark.parametrize("role", LISTENERS)
async def test_a_listener_follows_everybody_and_is_followed_by_nobody(autojump_clock, tmp_path, role):
    async with private_swarm(tmp_path) as it:
        trainers = await it.enter_all(1, 2, 3)
        it.enroll(4, role=role)
        watcher = await it.enter(4, (trainers[0],))
        await until(lambda: len(watcher.service.neighbours()) == 3)
        views = await play(trainers, range(1, 5))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        assert all(view.neighbours == 2 for row in views for view in row)
        await until(lambda: all(watcher.follows(node) for node in trainers))
        assert all_follow(trainers)
        for node in trainers:
            assert watcher.peer not in node.service.neighbours()
            assert met(node, watcher.peer)
            assert watcher.peer not in {record.peer for record in node.service._engine.peerstore.known()}
            assert watcher.peer not in node.service._engine.mesh.rings.wanted
            assert not reasons(node, watcher)
            assert node.service._engine.mesh.dialable(watcher.peer, trio.current_time()) == (role is Role.RELAY)
        assert watcher.service.role is role
        with pytest.raises(LocalError, match="publishes nothing"):
            await watcher.begin()
        with pytest.raises(LocalError, match="publishes nothing"):
            await watcher.publish(1)


@pytest.mark.slow
async def test_so_many_listen_to_one_member_and_no_more(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it:
        trainer = await it.enter(1)
        numbers = range(10, 11 + MAX_LISTENERS)
        for number in numbers:
            it.enroll(number, role=Role.OBSERVER)
        watchers = [await it.enter(number, (trainer,)) for number in numbers]
        await trio.sleep(30)
        assert sum(bool(each.service.neighbours()) for each in watchers) == MAX_LISTENERS
        lucky = next(each for each in watchers if each.service.neighbours())
        await it.stop(lucky)
        await until(lambda: all(each.service.neighbours() for each in watchers if each is not lucky), 300)


@pytest.mark.parametrize("role", [*LISTENERS, Role.BOOTSTRAP])
@pytest.mark.parametrize("what", ["link", "record", "records"])
async def test_a_hello_says_nothing_that_its_sender_may_not(autojump_clock, tmp_path, role, what):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2)
        liar = await insider(it, nursery, 66, role=role)
        own = seal(liar.identity, OURS, record_statement(epoch=1, version=1, addresses=())).raw
        injected = seal(identity(77), OURS, record_statement(epoch=1, version=1, addresses=())).raw
        liar.link = a_link(liar) if what == "link" else b""
        liar.record = own if what == "record" else b""
        liar.records = (injected,) if what == "records" else ()
        for node in nodes:
            if (role, what) == (Role.BOOTSTRAP, "records"):
                await liar.greet(node)  # that is what it is for
                await until(lambda node=node: identity(77).peer_id in known(node))
                assert liar.peer not in node.service.neighbours()
            else:
                with pytest.raises(Refused, match="wrong_role"):
                    await liar.greet(node)
                assert reasons(node, liar) == {Reason.WRONG_ROLE: 1}
                assert not known(node) & {liar.peer, identity(77).peer_id}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("role", [*LISTENERS, Role.BOOTSTRAP])
async def test_what_a_listener_announces_is_refused_by_all_and_bans_it(autojump_clock, tmp_path, role):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2, 3)
        liar = await insider(it, nursery, 66, role=role)
        for node in nodes:
            await liar.transport.dial(node.address)
        for seq in range(5):
            await liar.transport.publish(a_link(liar, seq))
        await until(lambda: all(Reason.WRONG_ROLE in reasons(node, liar) for node in nodes))
        await until(lambda: all(liar.peer in {event.peer for event in node.told("banned")} for node in nodes))
        assert not any(reasons(node, other) for node in nodes for other in nodes)
        nursery.cancel_scope.cancel()


async def test_a_member_that_passes_on_what_an_observer_announces_finds_nobody_to_believe_it(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2, 3)
        watcher, accomplice = await insider(it, nursery, 66, role=Role.OBSERVER), await insider(it, nursery, 67)
        await watcher.transport.dial(nodes[0].address)
        await accomplice.transport.dial(nodes[1].address)
        await until(lambda: all(watcher.peer in {it.peer for it in node.service.roster_view()} for node in nodes))
        await accomplice.transport.publish(a_link(watcher))
        await until(lambda: Reason.WRONG_ROLE in reasons(nodes[1], accomplice))
        await trio.sleep(10)
        assert not reasons(nodes[2], accomplice)  # it was not passed on
        assert not reasons(nodes[2], nodes[1])
        nursery.cancel_scope.cancel()


async def test_nobody_knows_who_announced_that(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2)
        accomplice = await insider(it, nursery, 67)
        await accomplice.transport.dial(nodes[0].address)
        stranger = Insider(identity(99), accomplice.transport)
        await accomplice.transport.publish(a_link(stranger))
        await until(lambda: Reason.NO_MEMBER in reasons(nodes[0], accomplice))
        await trio.sleep(5)
        assert not reasons(nodes[1], nodes[0])
        nursery.cancel_scope.cancel()


async def test_a_listener_has_no_part_in_exchanges_and_is_found_by_nobody(autojump_clock, tmp_path):
    async with private_swarm(tmp_path) as it, trio.open_nursery() as nursery:
        nodes = await it.enter_all(1, 2)
        liar = await insider(it, nursery, 66, role=Role.OBSERVER)
        statement = part_statement(exchange=NO_DIGEST, round=1, stage=Stage.WHOLE, address=NO_DIGEST, size=1)
        record = seal(liar.identity, OURS, record_statement(epoch=1, version=1, addresses=())).raw
        find = FindRequest(swarm=OURS.swarm, run=OURS.run, genesis=RUN.genesis, target=NO_DIGEST, record=record)
        for node in nodes:
            await liar.greet(node)
            for request in (PartRequest(envelope=seal(liar.identity, OURS, statement).raw), find):
                with pytest.raises(Refused, match="wrong_role"):
                    await liar.asks(node, request)
            assert reasons(node, liar) == {Reason.WRONG_ROLE: 2}
            assert liar.peer not in known(node)
        nursery.cancel_scope.cancel()


def known(node):
    return {record.peer for record in node.service._engine.peerstore.known()}


@pytest.mark.parametrize("ours", list(Role))
def test_only_a_trainer_has_something_for_listeners(ours: Role) -> None:
    me, other = PeerId("me"), PeerId("other")
    roles = Roles(me, lambda peer: ours if peer == me else Role.OBSERVER)
    assert roles.takes(other, 0.0, 30.0) is (ours is Role.TRAINER)


def test_an_author_that_is_not_known_yet_is_not_called_nobody() -> None:
    """A newcomer hears updates before it has everybody's certificate: the founder's among them."""
    objection = Roles(PeerId("me"), role_of=lambda peer: None).objection(PeerId("founder"))
    assert objection is not None
    assert str(objection).endswith("its author is no member known here, or not yet")
