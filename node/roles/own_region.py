"""`node.region = "auto"`: which region a node is of, found out once, before it is built, and kept in its folder.

A region is not changed in the midst of a run: its neighbours would be others, and the rounds that it has closed would
be another region's. So every start writes down the node's region, and a later one that is to choose takes that.
"""

import json
import random
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gossip.core.api import RunInfo
from gossip.core.backoff import addresses_in
from gossip.core.envelope import Scope
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.statements import PeerRecord
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.private_swarm import PrivateMembership
from gossip.regions.region_choice import RegionChoice, RegionSurvey, choose_region
from gossip.regions.region_survey_task import WITHIN_S, SurveyedRun, run_survey
from gossip.transport.base import Transport
from node.config.schema import Config
from node.config.sections import AUTO_REGION
from node.events.event_types import RegionChosen, WaitingFor
from node.events.journal import Emit
from node.swarm.credentials import Credentials
from node.system.errors import RunError, UsageError
from node.system.run_dir import CHECKPOINTS, REGION, write_atomic

MAX_FILE_BYTES: Final = 64 * 1024
"""Of a file with one region's name and some numbers."""


def in_region(config: Config, region: str) -> Config:
    """Return the settings of a node of this region."""
    return config.model_copy(update={"node": replace(config.node, region=region)})


def with_kept_region(config: Config, node_dir: Path) -> Config:
    """Return the settings with the region of the last start; as they are where there is none of the run's, or where
    nobody answered then and nothing has come of it: the network may have been down. Raises RunError for a damaged file,
    UsageError where the node has trained in a region that nothing tells."""
    file = node_dir / REGION
    if config.node.region != AUTO_REGION:
        return config
    trained = any(node_dir.glob(f"{CHECKPOINTS}/*"))
    if not file.exists():
        if trained:
            raise UsageError(
                f"{node_dir} has checkpoints, and no {REGION} that says of which region",
                "give the node's region itself: --set node.region=...",
            )
        return config
    region, why = _kept(file)
    asks_again = region not in config.sync.regions or (why == "nobody" and not trained)
    return config if asks_again else in_region(config, str(region))


def keep_region(config: Config, node_dir: Path) -> None:
    """Write down which region the node is of, for later starts: no node changes its region in the midst of a run."""
    file = node_dir / REGION
    if not config.node.region:
        return
    with suppress(RunError):  # a damaged file is replaced: who names the region means it
        if file.exists() and _kept(file)[0] == config.node.region:
            return
    _write(node_dir, {"region": config.node.region})


async def with_chosen_region(
    config: Config,
    run: SurveyedRun,
    *,
    transport: Transport,
    private: PrivateMembership | None,
    rng: random.Random,
    node_dir: Path,
    emit: Emit,
) -> Config:
    """Measure the round trips to members of the regions over `transport`, which is of no other use and ends with it;
    keep the choice in the node's folder, and return the settings with it."""
    emit(WaitingFor(message=f"node.region=auto: asks members how far they are, for {WITHIN_S:.0f} s at most"))
    file = config.network.peers_file
    seeds = [*config.network.peers, *(addresses_in(file) if file else ())]
    survey = RegionSurvey(config.sync.regions, dict.fromkeys(seeds), rng, _region_of(private))
    if seeds:
        await run_survey(survey, transport, run, secrets.token_bytes)
    choice = choose_region(config.sync.regions, survey.voices)
    told = _told(choice)
    _write(node_dir, {"region": told.region, **told.measured})
    emit(told)
    return in_region(config, choice.region)


def _kept(file: Path) -> tuple[object, object]:
    """The region of the last start, and why it was chosen, where it was; raises RunError."""
    try:
        with file.open("rb") as opened:
            told = json.loads(opened.read(MAX_FILE_BYTES))
            return told["region"], told.get("why")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{file} is damaged: {error}", "give the node's region itself: --set node.region=...") from error


def _write(node_dir: Path, told: Mapping[str, object]) -> None:
    write_atomic(node_dir / REGION, json.dumps(told).encode() + b"\n")


def scope_of(config: Config, run: RunInfo, private: PrivateMembership | None) -> Scope:
    """Return the swarm and the run whose members are asked."""
    swarm = config.network.named if private is None else private.admission.chain.swarm
    return Scope(swarm=swarm, run=run.run_id)


def surveyor(held: Credentials) -> tuple[Identity, PrivateMembership | None]:
    """Return as whom the members are asked: in an open swarm as somebody with a key of its own, which is thrown away,
    so that nobody takes the connection for the node's; in a private one as ourselves, for strangers get no answer."""
    return (Identity.generate(), None) if held.private is None else (held.identity, held.private)


def _region_of(private: PrivateMembership | None) -> Callable[[PeerRecord], str]:
    """A record that contradicts its signer's certificate is of no region."""
    bound: Callable[[PeerId], frozenset[str]] = lambda peer: frozenset()  # noqa: E731
    if private is not None:
        bound = AntiEntropy(private.admission).regions_of
    return lambda record: record.region if not (held := bound(record.peer)) or record.region in held else ""


def _told(choice: RegionChoice) -> RegionChosen:
    return RegionChosen(
        region=choice.region,
        why=choice.why,
        round_trips_ms={region: round(1000 * seconds, 1) for region, seconds in choice.round_trips.items()},
        members=dict(choice.members),
    )
