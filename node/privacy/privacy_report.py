"""What a node's data have told, after or during a run: by its ledger, its settings and its events."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from node.config.schema import Config, load
from node.events.event_types import Ended, PrivacyBudgetSpent, RoundTrained, Started, WarningEvent
from node.events.log import older, read_events
from node.privacy.disclosures import Disclosure, disclosures
from node.privacy.ledger import LedgerContents, read_ledger
from node.system.run_dir import CONFIG, EVENTS, PRIVACY, VISITORS_PRIVACY
from node.visits.visitor_ledger import epsilon_of_sum, read_visitor_ledger
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.accounting.loss_distributions import is_installed, tight_epsilon_of
from p2ptrain.privacy.base import Release


@dataclass(frozen=True, kw_only=True)
class VisitorsReport:
    """What a host's visitors have spent, by its visitors' ledger."""

    delta: float
    budget: float | None
    """What each key may spend; None: as much as it takes."""
    epsilon: float
    """What the key has spent that has spent most, by Renyi divergences; a torn line is spent by all."""
    keys: int
    sums: int
    """Entries of the ledger: a sum may have been charged and not made."""
    torn: int


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """The report of one node."""

    name: str
    privatizer: str
    delta: float
    budget: float | None
    """What may be spent; None: as much as it takes."""
    epsilon: float
    """What is spent, by Renyi divergences: what is enforced."""
    tight_epsilon: float | None
    """The same by privacy loss distributions; None: opacus is not installed, or they cannot tell."""
    releases: list[Release]
    entries: int
    torn: int
    """Lines of the ledger that cannot be read, and are charged with the next release."""
    refused: bool
    """Whether training stopped at the budget."""
    rounds: int
    bytes_sent: int
    """To peers, in all, by what the node has last said of it."""
    sends: bool
    """Whether it may have sent more since: it runs, or was killed."""
    gaps: list[str]
    """What was said of training that no epsilon covers."""
    disclosures: list[Disclosure]
    visitors: VisitorsReport | None = None
    """None: noise hides none, and there is no ledger of it."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values; an epsilon that is no number is None, as JSON has none."""
        return asdict(self) | {"epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


def _visitors(folder: Path, config: Config) -> VisitorsReport | None:
    visits, spent = config.visits, read_visitor_ledger(folder / VISITORS_PRIVACY)
    if visits.noise is None and not spent.mark.entries and not spent.torn:
        return None
    return VisitorsReport(
        delta=visits.delta,
        budget=visits.epsilon,
        epsilon=epsilon_of_sum(spent.most() + spent.owed(visits.noise or math.inf), visits.delta),
        keys=len(spent.by_key),
        sums=spent.mark.entries,
        torn=spent.torn,
    )


def report_of(folder: Path, *, tight: bool = True) -> PrivacyReport:
    """Return the report of the node in this folder. `tight`: whether to compute the tighter epsilon, which takes
    seconds. Raises RunError for a damaged ledger, UsageError for damaged settings."""
    config = load([folder / CONFIG]) if (folder / CONFIG).is_file() else Config()
    contents, told = read_ledger(folder / PRIVACY), _Told()
    told.read(folder)
    delta, visitors = config.privacy.delta, _visitors(folder, config)
    return PrivacyReport(
        name=folder.name,
        privatizer=config.privacy.privatizer,
        delta=delta,
        budget=config.privacy.epsilon,
        epsilon=epsilon_of(contents.all_releases(), delta),
        tight_epsilon=_tight(contents, delta) if tight else None,
        releases=contents.whole_releases(),
        entries=contents.mark.entries,
        torn=contents.torn,
        refused=told.refused,
        rounds=told.rounds,
        bytes_sent=told.bytes_sent,
        sends=told.sends,
        gaps=list(dict.fromkeys(_gaps(told, contents, config, visitors.sums if visitors else 0))),
        disclosures=disclosures(config),
        visitors=visitors,
    )


def _tight(contents: LedgerContents, delta: float) -> float | None:
    return tight_epsilon_of(contents.all_releases(), delta) if is_installed() else None


def _gaps(told: "_Told", contents: LedgerContents, config: Config, visitors: int) -> Iterator[str]:
    """Yield what no epsilon covers, by what the node said and by what is there."""
    yield from told.gaps
    if told.rounds_without and config.privacy.on:
        yield f"{told.rounds_without} of its rounds were trained without protection"
    if told.lost_before is not None and config.privacy.on:
        yield (
            f"the beginning of its log is gone, as logs are bounded: of rounds before {told.lost_before} nobody knows "
            "here which were trained without protection, nor what was sent"
        )
    if told.visits_epsilon > 0 and not visitors:
        yield f"{VISITORS_PRIVACY} is not there, or is empty: nobody knows what visitors have spent"
    if config.privacy.on and told.rounds > told.rounds_without and not contents.mark.entries:
        yield f"{PRIVACY} is not there, or is empty: nobody knows what was spent"


class _Told:
    """What a node's events say of what it sent."""

    def __init__(self) -> None:
        self.refused = self.sends = False
        self.rounds = self.rounds_without = self.bytes_sent = 0
        self.visits_epsilon = 0.0
        self.gaps: list[str] = []
        self.lost_before: int | None = None
        """The first round that the log has, where it does not have the start of the process that trained it."""

    def read(self, folder: Path) -> None:
        """Read the events of the node in this folder. Each process counts its own bytes."""
        before = newest = 0
        told: dict[str, Any] = {}
        started = not older(folder / EVENTS).exists()  # a log with one file has its beginning
        for event in read_events(folder / EVENTS):
            started |= isinstance(event, Started)
            if isinstance(event, RoundTrained):
                if not started and self.lost_before is None:
                    self.lost_before = event.round
                newest, self.rounds, self.sends = event.bytes_sent or newest, self.rounds + 1, True
                self.rounds_without += event.epsilon is None
                self.visits_epsilon = event.visits_epsilon or self.visits_epsilon
            elif isinstance(event, Ended):
                # A start in which nothing was trained repeats the summary of the process before it.
                summary = {} if event.summary == told else event.summary or {}
                before, newest = before + summary.get("bytes_sent", newest), 0
                told = event.summary or told
                self.sends = False
            elif isinstance(event, PrivacyBudgetSpent):
                self.refused = True
            elif isinstance(event, Started):
                before, newest = before + newest, 0
                self.refused, self.sends = False, True
            elif isinstance(event, WarningEvent) and event.about == "privacy" and "no epsilon covers" in event.message:
                self.gaps.append(event.message)
        self.bytes_sent = before + newest
