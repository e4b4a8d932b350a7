"""Newer manifests at a trainer: their training settings apply from the round that they name, at every node alike.

A phase that begins in that round is trained with them, and the round is closed with them. The settings concerned are in
`agreed_settings.CHANGEABLE`. A node that receives a manifest late reports it, and applies it at once.

A version that gives the run more rounds applies at the latest where the rounds before it end: a later round would never
come. So a finished member that receives it goes on.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gossip.core.errors import LocalError
from gossip.membership import Manifest, ManifestChain
from gossip.membership.settings import Settings
from node.events.event_types import ManifestHolds, WarningEvent
from node.events.journal import Emit
from node.swarm import agreed_settings
from node.swarm.effective_manifest import holding, rounds_told
from node.training.node import Node


class Applier:
    """Follows the chain as the node's rounds go by. `emit` records the event `manifest` for each version that is
    applied."""

    def __init__(self, node: Node, chain: ManifestChain, emit: Emit) -> None:
        self._node = node
        self._chain = chain
        self._emit = emit
        self._trained: Manifest | None = None
        self._closed: int | None = None

    def apply(self, trained: int, closed: int) -> None:
        """Apply the settings: the node trains round `trained` from now on, and closes round `closed` next."""
        manifest = holding(self._chain, trained)
        if self._trained is None or manifest.version != self._trained.version:
            first, self._trained = self._trained is None, manifest
            changed = self._apply(manifest, "train")
            if changed or not first:
                version, applies_at = manifest.version, manifest.applies_at
                self._emit(ManifestHolds(version=version, applies_at=applies_at, round=trained, changes=changed))
        manifest = holding(self._chain, closed)
        if manifest.version != self._closed:
            self._closed = manifest.version
            if self._apply(manifest, "network"):
                self._node.service.round_closer.settle(self._node.config.network)

    def rounds_in(self, round_: int) -> int:
        """Return how many rounds the run has by the settings of round `round_`, which this node may be far from."""
        return rounds_told(holding(self._chain, round_)) or self._node.config.train.rounds

    def heard(self, manifest: Manifest) -> None:
        """Note a newer version. It is applied at once where its round is over, otherwise when that round comes. One
        that leaves the settings as they are holds as it comes: its round is that of the settings before it."""
        node, held = self._node, self._trained
        changes = held is None or agreed_settings.differing(held.terms.settings, manifest.terms.settings)
        if changes and manifest.applies_at < node.state.round:
            message = f"version {manifest.version} of the swarm's manifest came late: it holds since round "
            message += f"{manifest.applies_at}, and here from round {node.state.round}"
            self._emit(WarningEvent(message=message))
        node.state.apply_manifests()

    def _apply(self, manifest: Manifest, section: str) -> dict[str, Any]:
        """Apply the settings of one section, and return those that changed, by `section.key`."""
        config = self._node.config
        old = getattr(config, section)
        told = wanted(manifest.terms.settings, section)
        changes = {key: value for key, value in told.items() if getattr(old, key) != value}
        if not changes:
            return {}
        try:
            new = replace(old, **changes)
        except (LocalError, ValueError, TypeError) as error:
            message = f"version {manifest.version} of the swarm's manifest cannot be applied: {error}"
            self._emit(WarningEvent(message=message))
            return {}
        self._node.state.config = config.model_copy(update={section: new})
        if section == "train":
            self._node.inner.trainer.config = new
        return {f"{section}.{key}": value for key, value in changes.items()}


def wanted(settings: Settings, section: str) -> dict[str, Any]:
    """Return those of a section's settings in the manifest that may change while a run goes on."""
    said = agreed_settings.raw_of(settings).get(section, {})
    return {key: value for key, value in said.items() if f"{section}.{key}" in agreed_settings.CHANGEABLE}


def follow_manifests(node: Node, chain: ManifestChain, emit: Emit) -> Callable[[Manifest], None]:
    """Apply the chain to the node from now on. Return the function to call with each newer manifest."""
    applier = Applier(node, chain, emit)
    node.state.manifests = applier
    node.state.apply_manifests()
    return applier.heard
