"""The privacy budget of a node: every release is accounted for ahead, written down, and only then allowed."""

from dataclasses import dataclass
from typing import Final

from node.config.privacy_section import PrivacyConfig
from node.privacy.chained_log import LedgerMark, check_mark
from node.privacy.ledger import PrivacyLedger
from p2ptrain.privacy.accounting import RenyiAccountant, epsilon_of
from p2ptrain.privacy.base import BudgetSpentError, Release

ROUNDING: Final = 1e-9
"""By how much, over itself, a budget may be exceeded: less than anybody's numbers for it differ by."""


@dataclass(frozen=True)
class RefusedRelease:
    """A release that would have exceeded the budget."""

    release: Release
    epsilon: float
    """What would be spent with it."""


class PrivacyBudget:
    """The thread that trains calls `spend`, once at a time. The rest may be read from any thread."""

    def __init__(self, settings: PrivacyConfig, ledger: PrivacyLedger) -> None:
        self.settings = settings
        self.refused: RefusedRelease | None = None
        """The release that was not allowed; None: none was refused. No private step is taken after it."""
        self._ledger = ledger
        self._accountant = RenyiAccountant(ledger.contents.whole_releases())
        self.epsilon = epsilon_of(ledger.contents.all_releases(), settings.delta)
        """What is spent, at `settings.delta`, by Renyi divergences."""

    def spend(self, release: Release) -> None:
        """Write down that `release` is about to be made. Raises BudgetSpentError where it would exceed the budget, with
        nothing written; RunError where it cannot be written."""
        written = self._ledger.with_torn(release)
        would_be = self._accountant.epsilon(self.settings.delta, written)
        if not self.allows(would_be):
            self.refused = RefusedRelease(release=release, epsilon=would_be)
            raise BudgetSpentError(f"{release.count} more would spend {would_be:.4g} of {self.settings.epsilon:g}")
        self._ledger.append(release)
        for each in written:
            self._accountant.add(each)
        self.epsilon = would_be

    @property
    def is_new(self) -> bool:
        """Return whether nothing was spent yet, of what is known."""
        return not (self._ledger.mark.entries or self.torn)

    def with_release(self, release: Release, *later: Release) -> float:
        """Return what would be spent with `release`, and with those after it."""
        return self._accountant.epsilon(self.settings.delta, [*self._ledger.with_torn(release), *later])

    def has_paid_for(self, release: Release) -> bool:
        """Return whether the ledger has as many releases of this mechanism, noise and rate."""
        key = (release.mechanism, release.noise, release.rate)
        return self._ledger.contents.releases.get(key, 0) >= release.count

    def allows(self, epsilon: float) -> bool:
        """Return whether so much may be spent."""
        limit = self.settings.epsilon
        return limit is None or epsilon <= limit * (1 + ROUNDING)  # false for nan, too

    @property
    def torn(self) -> int:
        """Return how many lines of the ledger cannot be read, and are charged with the next release."""
        return self._ledger.contents.torn

    @property
    def mark(self) -> LedgerMark:
        """Return the ledger's newest entry, for a checkpoint."""
        return self._ledger.mark

    def spent_by_delta(self) -> dict[str, float]:
        """Return what is spent, by delta in words, for a metric."""
        return {f"{self.settings.delta:g}": self.epsilon}

    def budget_by_delta(self) -> dict[str, float]:
        """Return what may be spent, in the same way; nothing without a budget."""
        return {} if self.settings.epsilon is None else {f"{self.settings.delta:g}": self.settings.epsilon}

    def check(self, mark: LedgerMark) -> None:
        """Raise RunError where the ledger does not have the entry that a checkpoint names."""
        check_mark(self._ledger.contents, mark, self._ledger.path)

    def close(self) -> None:
        """Let go of the ledger."""
        self._ledger.close()
