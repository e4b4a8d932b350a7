"""Moves against a swarm of two regions: models that are published for a region, regions that are named, and
questions to who must not answer."""

import msgpack
import trio
from adversary_move import Act, move
from adversary_scenario import BOUND, LABELS, LATE_REGION, REGIONS, RESIDENCY
from adversary_stage import Life
from moves_chains import new_epoch
from moves_lies import invented

from gossip.blobs.blob import blob_manifest_of
from gossip.core.envelope import seal
from gossip.core.errors import GossipError
from gossip.core.limits import MAX_HELLO_RECORDS
from gossip.core.messages import (
    ChunkRequest,
    HeadersRequest,
    ManifestRequest,
    Request,
    SnapshotRequest,
)
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
    among=REGIONS | LATE_REGION,
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


@move("regional.labels", amounts=(2, 20), seconds=(20, 100), speaks=("record", "hello"), among=REGIONS | LATE_REGION)
async def _labels(act: Act) -> None:
    """It changes its region again and again, and names some that there are not."""
    await act.meet()
    for number in range(act.move.amount):
        await come_as(act, act.rng.choice([*LABELS, f"made-up-{number}", "x"]))
        await trio.sleep(act.move.seconds / act.move.amount)


@move(
    "regional.members",
    amounts=(4, 120),
    seconds=(20, 120),
    variants=("nobody", "itself"),
    speaks=("record", "hello"),
    among=REGIONS | LATE_REGION,
)
async def _members(act: Act) -> None:
    """A neighbour that tells of members of its region that there are not: at nobody's address, or all at its own."""
    label = act.rng.choice(LABELS)
    await come_as(act, label)
    where = act.peer.address if act.move.variant == "itself" else "/memory/9999"
    told = [invented(act, number, where.partition("/p2p/")[0], region=label) for number in range(act.move.amount)]
    for start in range(0, len(told), MAX_HELLO_RECORDS):
        act.peer.records = told[start : start + MAX_HELLO_RECORDS]
        for life in act.targets:
            await act.peer.greet(life.peer)
        await trio.sleep(act.move.seconds * MAX_HELLO_RECORDS / max(MAX_HELLO_RECORDS, len(told)))


@move(
    "regional.round",
    amounts=(1, 12),
    seconds=(30, 120),
    variants=("next", "far", "behind", "silent"),
    speaks=("record", "hello", "link"),
    among=LATE_REGION,
)
async def _round(act: Act) -> None:
    """A bridge to the first region that says that it is further than it is, far ahead, behind, or nowhere."""
    chain, stage = act.peer.chain, act.stage
    said = {"next": 4, "far": 10**6, "behind": -3, "silent": 0}[act.move.variant]
    await come_as(act, LABELS[0])
    for number in range(act.move.amount):
        if act.move.variant != "silent":
            chain.begin(epoch=new_epoch(act) + number, round=max(0, stage.round + said), model_d=None)
        for life in act.targets:
            await act.peer.greet(life.peer)
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


@move(
    "regional.pry",
    amounts=(2, 8),
    seconds=(20, 120),
    variants=("outside", "no_record", "same_blob"),
    speaks=("manifest", "chunk", "links", "snapshot", "regional", "record"),
    among=RESIDENCY,
)
async def _pry(act: Act) -> None:
    """It asks members of a region that nothing leaves for updates, models and blobs, all by their names: as a member of
    the other region, as one that gives no record, or after it has stated the same blobs for its own region."""
    if act.move.variant == "no_record":
        act.peer.tells_record = False
        await act.meet()
    else:
        act.peer.tells_record = True
        await come_as(act, LABELS[1])
    for number in range(act.move.amount):
        for life in act.stage.running:
            if life.member.node.config.node.region == LABELS[0]:
                await _ask_all(act, life, number)
        await trio.sleep(act.move.seconds / act.move.amount)


async def _ask_all(act: Act, life: Life, number: int) -> None:
    engine = life.member.node.service._engine
    newest, models = engine.publisher.newest, engine.regional_models.whole()
    held = [it.model for it in models if it.model.region == LABELS[0]]
    if newest is None:
        return
    if act.move.variant == "same_blob":
        for at, model in enumerate(held):
            statement = regional_statement(
                region=LABELS[1],
                round=act.stage.round + 100 * number + at,
                codec=model.codec,
                members=4,
                address=model.address,
                size=model.size,
            )
            await act.peer.tell(seal(act.peer.identity, act.stage.scope, statement).raw)
    asked: list[Request] = [
        HeadersRequest(epoch=newest.epoch, first=0, count=4),
        SnapshotRequest(epoch=newest.epoch, seq=0),
    ]
    for address in (newest.address, *(model.address for model in held)):
        asked += [ManifestRequest(address=address), ChunkRequest(address=address, index=0)]
    await act.peer.greet(life.peer)
    for request in asked:
        await _ask(act, life, request)


async def _ask(act: Act, life: Life, request: Request) -> None:
    try:
        answer = await act.peer.ask(life.peer, request)
    except GossipError:
        return
    if msgpack.unpackb(answer)[0]:
        act.stage.misled.append(
            f"{life.member.name} has given a {type(request).__name__} what must not leave its region"
        )
