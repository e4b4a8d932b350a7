"""Moves against a swarm of two regions: models that are published for a region, and regions that are named."""

import trio
from adversary_move import Act, move
from adversary_scenario import BOUND, LABELS, REGIONS

from gossip.blobs.blob import blob_manifest_of
from gossip.core.envelope import seal
from gossip.core.statements import record_statement, regional_statement


def name_region(act: Act, region: str) -> None:
    """A newer record of the hostile node, of this region."""
    peer = act.peer
    peer.version += 1
    statement = record_statement(epoch=1, version=peer.version, addresses=(peer.address,), region=region)
    peer.record = seal(peer.identity, act.stage.scope, statement).raw


async def come_as(act: Act, region: str) -> None:
    """Say hello to the targets as a member of a region."""
    name_region(act, region)
    await act.meet()
    for life in act.targets:
        await act.peer.greet(life.peer)


@move(
    "regional.publish",
    amounts=(4, 60),
    seconds=(30, 120),
    variants=("nobody_has_it", "two", "far", "other_region", "no_region", "huge", "small_talk"),
    speaks=("regional", "record"),
    among=REGIONS,
)
async def _publish(act: Act) -> None:
    """Models for a region: of blobs that nobody has, two for one round, for rounds to come, for a region that is not
    its own or none at all, said to be huge or of a million members, and one after another."""
    await come_as(act, act.rng.choice(LABELS))
    for number in range(act.move.amount):
        ahead = {"far": 10**9 + number, "two": act.stage.round}.get(act.move.variant, act.stage.round + number % 4)
        region = {"other_region": LABELS[number % 2], "no_region": f"made-up-{number}"}.get(act.move.variant)
        statement = regional_statement(
            region=region or act.rng.choice(LABELS),
            round=ahead,
            codec=act.rng.choice(["int8", "none", "nothing"]),
            members=act.rng.choice([1, 4, 1 << 20]),
            address=blob_manifest_of(act.rng.randbytes(8)).address,
            size=(16 << 30) if act.move.variant == "huge" else act.rng.choice([1, 100, 10**6]),
        )
        await act.peer.tell(seal(act.peer.identity, act.stage.scope, statement).raw)
        await trio.sleep(act.move.seconds / act.move.amount)


@move("regional.labels", amounts=(2, 20), seconds=(20, 100), speaks=("record", "hello"), among=REGIONS)
async def _labels(act: Act) -> None:
    """It changes its region again and again, and names some that there are not."""
    await act.meet()
    for number in range(act.move.amount):
        await come_as(act, act.rng.choice([*LABELS, f"made-up-{number}", "x"]))
        await trio.sleep(act.move.seconds / act.move.amount)


@move(
    "regional.bound",
    amounts=(2, 12),
    seconds=(30, 100),
    variants=("says", "publishes", "both"),
    speaks=("record", "hello", "regional"),
    among=BOUND,
)
async def _bound(act: Act) -> None:
    """Its certificate is of the first region. It says that it is of the other, and publishes for that, or says now one
    and now the other."""
    own, other = LABELS
    await act.meet()
    for number in range(act.move.amount):
        await come_as(act, own if act.move.variant == "both" and number % 2 else other)
        if act.move.variant != "says":
            statement = regional_statement(
                region=other,
                round=act.stage.round + number,
                codec="int8",
                members=4,
                address=blob_manifest_of(act.rng.randbytes(8)).address,
                size=8,
            )
            await act.peer.tell(seal(act.peer.identity, act.stage.scope, statement).raw)
        await trio.sleep(act.move.seconds / act.move.amount)
        note_taken_in(act)


def note_taken_in(act: Act) -> None:
    """Where a member of the other region has it as a neighbour, or one has a model of its for that region."""
    peer, (own, other) = act.peer.peer, LABELS
    for life in act.targets:
        service, name = life.member.node.service, life.member.name
        if life.member.node.config.node.region == other and peer in service.neighbours():
            act.stage.misled.append(f"{name} of {other} has a member of {own} as a neighbour")
        if other in (views := service.regional_views()) and peer in {it.peer for it in views[other].models}:
            act.stage.misled.append(f"{name} has a model for {other} of a member of {own}")
