"""What visitors are told and what they left: the state of a node's visits, and the decisions on them. It does no I/O.

A round closes in three parts: `begin_closing` hands over what came, `ClosingVisits.close` makes one mean of it and the
model with which the next round begins, and `finish_closing` publishes that. The caller adds the mean to the moving
model: it is a part of the host's own difference of the next round.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, TypeVar

import torch

from node.config.visits_section import VisitsConfig
from node.system.errors import RunError
from node.visits.difference_head import HEAD_BYTES, LeftDifference, parsed_difference
from node.visits.refusals import Refusal, RefusedVisitError
from node.visits.visit_bounds import Place, VisitBounds
from node.visits.visit_noise import VisitNoise
from p2ptrain.compress import PayloadError
from p2ptrain.visits.model_versions import ModelVersion, ModelVersions, difference_between, version_of
from p2ptrain.visits.visitor_mean import (
    DIFFERENCES,
    VisitorDifference,
    agreeing,
    checked_difference,
    nothing_left,
    staleness_weight,
    visitors_mean,
    without_opposing,
)

INTERFACE_VERSION: Final = 1
ENCODING: Final = "int8"
"""The codec of models and differences, by docs/protocol.md."""
ACCEPTED: Final = "accepted"
RESULTS: Final = (ACCEPTED, *(refusal.label for refusal in Refusal))
"""What may become of a difference."""
VERIFIED_HERE: Final = 1 << 18
"""Most bytes of a payload whose signature is checked on the event loop: a millisecond."""

T = TypeVar("T")
Offload = Callable[[Callable[[], T]], Awaitable[T]]


@dataclass(frozen=True, kw_only=True)
class VisitedRun:
    """What a visitor must know of the run."""

    run_id: bytes
    task: str
    numel: int
    parameters: Sequence[tuple[str, Sequence[int]]] = ()
    """Names and shapes, in the order of the vector; empty where they are not known."""


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    """How a visitor should train, as the host does itself. Nothing holds it to that."""

    steps: int
    batch_size: int
    learning_rate: float
    clip_norm: float


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """A model for a visitor."""

    form: str
    """`whole`, `difference` (to the model that the visitor has), or `same` (no bytes)."""
    version: ModelVersion
    payload: bytes


@dataclass(eq=False, kw_only=True)
class _Waiting:
    """A difference whose signature holds, until a round counts it."""

    key: bytes
    network: str
    started: ModelVersion
    difference: VisitorDifference | None = None
    """None while it is decoded."""


class Visitors:
    """The visits of one node. Memory: the newest models and `most_a_round` differences, a byte a parameter each, and
    one model, fp32; while a mean is taken, as many differences again, and a few chunks of columns for each."""

    def __init__(
        self, config: VisitsConfig, run: VisitedRun, advice: Callable[[], StepAdvice], noise: VisitNoise | None = None
    ) -> None:
        """`noise`: what hides each visitor's part; None: nothing does."""
        self._config = config
        self.noise = noise
        self._run = run
        self._advice = advice
        self._versions = ModelVersions(run.numel)
        self._bounds = VisitBounds(most=config.most_a_round, most_of_network=config.most_of_network)
        self._left: list[_Waiting] = []
        self._base_d: torch.Tensor | None = None
        """The model from which the host takes this round's steps, fp32 (d,); None where it is not known."""
        self._own_norm: float | None = None
        self._computed: set[bytes] = set()
        """Versions from which a difference to the newest is being computed."""
        self._adoptions = 0
        self._over = self._closed = False
        self.counts: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        """Differences by what became of them."""

    @property
    def body_bytes(self) -> int:
        """Return the bytes of a visitor's request with a difference."""
        return HEAD_BYTES + DIFFERENCES.size(self._run.numel)

    def describe(self, key: bytes = b"") -> Mapping[str, Any]:
        """Return what `/v1/visit` answers to who names this key, if any. Raises RefusedVisitError before the first
        round is closed."""
        newest, advice = self._newest(), self._advice()
        return {
            "version": INTERFACE_VERSION,
            "run": self._run.run_id.hex(),
            "task": self._run.task,
            "round": newest.round,
            "model": newest.digest.hex(),
            "numel": self._run.numel,
            "parameters": [{"name": name, "shape": list(shape)} for name, shape in self._run.parameters],
            "steps": advice.steps,
            "batch_size": advice.batch_size,
            "learning_rate": advice.learning_rate,
            "clip_norm": advice.clip_norm,
            "encoding": ENCODING,
            "block": DIFFERENCES.block,
            "difference_bytes": self.body_bytes,
            **({} if self.noise is None else {"privacy": self.noise.describe(key)}),
        }

    def check_turn(self, key: bytes, host: str) -> None:
        """Raise RefusedVisitError where a difference by this key, from this host and to the newest model, would be
        refused for now: its visitor need neither fetch a model nor train. Nothing is reserved."""
        newest = self._newest()
        self._check_key(key, newest.digest)
        self._bounds.reserve(host).give_back()

    async def model_for(
        self, have: bytes, host: str, offload: Offload[bytes], hold: Callable[[], None] = lambda: None
    ) -> ModelAnswer:
        """Return the newest model for a visitor that has the one with digest `have`. `hold` is called once it is known
        that it is sent one. Raises RefusedVisitError."""
        newest = self._newest()
        if have == newest.digest:
            return ModelAnswer(form="same", version=newest, payload=b"")
        self._bounds.check_models(host)
        self._bounds.count_model(host)
        hold()
        older = self._versions.find(have)
        if older is not None:
            difference = await self._difference(older, newest, offload)
            if difference is not None and len(difference) < len(newest.payload):
                return ModelAnswer(form="difference", version=newest, payload=difference)
        return ModelAnswer(form="whole", version=newest, payload=newest.payload)

    def expect(self, size: int, host: str) -> Place:
        """Return the place of a difference of so many bytes from this host, for as long as it is read. Raises
        RefusedVisitError where it is refused before."""
        self._newest()
        if size != self.body_bytes:
            raise RefusedVisitError(Refusal.WRONG_SIZE)
        return self._bounds.reserve(host)

    def check_head(self, head: bytes, place: Place) -> None:
        """Raise RefusedVisitError where a body that begins with these HEAD_BYTES is not read any further."""
        self._checked_start(parsed_difference(head, 0))
        self._bounds.count_body(place)

    async def take(self, body: bytes, place: Place, offload: Offload[Any]) -> None:
        """Take a difference. Raises RefusedVisitError where it is refused."""
        left = parsed_difference(body, DIFFERENCES.size(self._run.numel))
        del body  # `left` has a copy of it
        self._checked_start(left)
        if len(left.payload) <= VERIFIED_HERE:
            left.check_signature(self._run.run_id)
        else:
            await offload(lambda: left.check_signature(self._run.run_id))
        started = self._checked_start(left)  # a round may have ended, or the same have come twice
        self._bounds.count(left.key, left.model, place)
        waiting = _Waiting(key=left.key, network=place.network, started=started)
        self._left.append(waiting)
        try:
            waiting.difference = await offload(lambda: checked_difference(left.payload, self._run.numel))
        except PayloadError as error:
            if self.noise is not None:  # what was left must not decide whether a sum is made: it is in it, as zeros
                waiting.difference = nothing_left(self._run.numel)
            kind = Refusal.NOT_FINITE if error.reason == "nonfinite" else Refusal.MALFORMED
            raise RefusedVisitError(kind) from error
        finally:
            if waiting.difference is None and waiting in self._left:
                self._left.remove(waiting)
        self._newest()
        self.counts[ACCEPTED] += 1

    def refused(self, refusal: Refusal) -> None:
        """Count a difference that was refused."""
        self.counts[refusal.label] += 1

    def begin_closing(self) -> "ClosingVisits":
        """Hand over what has come: it counts in the round that is being closed, where it is enough."""
        left = [each for each in self._left if self._versions.is_kept(each.started.digest)]
        ready = [
            CountedVisit(waiting=each, difference=each.difference, staleness=self._versions.staleness(each.started))
            for each in left
            if each.difference is not None
        ]
        counts = self._base_d is not None or (self._own_norm is not None and not self._config.agreement)
        counted = self._chosen(ready) if counts else []
        taken = {each.waiting for each in counted}
        self._left = [each for each in left if each not in taken]
        return ClosingVisits(
            visits=counted,
            noise=self.noise,
            buffer=self._config.buffer,
            base_d=self._base_d,
            own_norm=self._own_norm,
            share=self._config.share,
            trim=self._config.trim,
            agreement=self._config.agreement,
        )

    def finish_closing(self, closed: "ClosedVisits") -> None:
        """Begin the next round: publish its model, and give a place again to everybody but those whose difference
        waits."""
        self._base_d, self._own_norm = closed.base_d, closed.own_norm
        self._left = [*(each.waiting for each in closed.waits), *self._left]
        self._closed |= bool(closed.failed)
        self._versions.publish(closed.version)
        self._bounds.begin_round(self._versions.is_kept, ((each.key, each.network) for each in self._left))

    def follow(self, adoptions: int) -> None:
        """Note how many times another model has taken the place of the host's. Where it is once more, the host's own
        steps since the last round cannot be told."""
        if adoptions != self._adoptions:
            self._adoptions, self._base_d = adoptions, None

    def end(self) -> None:
        """Note that the run is over: nothing that comes counts any more."""
        self._over = True
        self._left.clear()

    async def _difference(self, older: ModelVersion, newest: ModelVersion, offload: Offload[bytes]) -> bytes | None:
        """Return what leads from one version to the newest; None while it is being computed for another visitor."""
        found = self._versions.known_difference(older)
        if found is not None or older.digest in self._computed:
            return found
        self._computed.add(older.digest)
        try:
            found = await offload(lambda: difference_between(newest.payload, older.payload, self._run.numel))
        finally:
            self._computed.discard(older.digest)
        self._versions.keep_difference(older, newest, found)
        return found

    def _checked_start(self, left: LeftDifference) -> ModelVersion:
        """Return the model that a difference started from, as its head says. Raises RefusedVisitError where the head is
        enough to refuse it."""
        self._newest()
        started = self._versions.find(left.model)
        if started is None or not self._versions.had_round(started, left.round):
            raise RefusedVisitError(Refusal.UNKNOWN_MODEL)
        self._check_key(left.key, left.model)
        return started

    def _check_key(self, key: bytes, model: bytes) -> None:
        """Raise RefusedVisitError where this key's difference to this model is not taken."""
        self._bounds.check(key, model)
        refusal = None if self.noise is None else self.noise.refusal_of(key)
        if refusal is not None:
            raise RefusedVisitError(refusal)

    def _chosen(self, ready: "Sequence[CountedVisit]") -> "Sequence[CountedVisit]":
        """Return those that count: all that are there, or as many as a sum with noise has, once they are enough."""
        if self.noise is not None:
            may = [each for each in ready if self.noise.refusal_of(each.waiting.key) is None]
            return self.noise.chosen(may, self._config.buffer)
        return ready if len(ready) >= self._config.buffer else []

    def _newest(self) -> ModelVersion:
        if self._over:
            raise RefusedVisitError(Refusal.OVER)
        if self._closed:
            raise RefusedVisitError(Refusal.CLOSED)
        if self._versions.newest is None:
            raise RefusedVisitError(Refusal.NO_MODEL)
        return self._versions.newest


@dataclass(frozen=True, kw_only=True)
class CountedVisit:
    """A difference that a round is to count, and how many rounds old its start is."""

    waiting: _Waiting
    difference: VisitorDifference
    staleness: int


@dataclass(frozen=True, kw_only=True)
class ClosedVisits:
    """What a closed round makes of its visits."""

    visited_d: torch.Tensor | None
    """What visitors add to the moving model, fp32 (d,); None: nothing."""
    base_d: torch.Tensor
    """The model with which the next round begins, `visited_d` included."""
    own_norm: float | None
    """The norm of the host's own steps in the round, or in the newest one where it is known."""
    version: ModelVersion
    waits: Sequence[CountedVisit] = ()
    """Those that agree with the host's steps, where they are too few to be counted."""
    failed: str = ""
    """Why the visitors' ledger could not be written: then no visitor counts any more; empty: it was."""


@dataclass(frozen=True, kw_only=True)
class ClosingVisits:
    """The work of closing a round, apart from the state of the visits: it may run in a thread."""

    visits: Sequence[CountedVisit]
    buffer: int
    base_d: torch.Tensor | None
    """The model from which the host took the round's steps; it is overwritten."""
    own_norm: float | None
    share: float
    trim: float
    agreement: bool
    noise: VisitNoise | None = None

    def close(self, model_d: torch.Tensor, correction_d: torch.Tensor, *, round: int) -> ClosedVisits:
        """Close a round: `model_d` (d,) is the model that came of it, and `correction_d` what of it the swarm added to
        the model after the host's steps. Both are read, and not kept."""
        moved_d = self._own_steps(model_d, correction_d)
        own_norm = self.own_norm if moved_d is None else float(torch.linalg.vector_norm(moved_d, dtype=torch.float64))
        waits: Sequence[CountedVisit] = ()
        failed = ""
        if self.noise is not None:
            visited_d, failed = self._noised_mean(self.noise, model_d.numel(), own_norm, moved_d)
        else:
            visits, waits = self._agreeing(moved_d) if self.agreement else (self.visits, ())
            visited_d = self._mean(visits, model_d.numel(), own_norm, moved_d)
        base_d = model_d.clone() if visited_d is None else model_d + visited_d
        version = version_of(model_d, round + 1)
        return ClosedVisits(
            visited_d=visited_d, base_d=base_d, own_norm=own_norm, version=version, waits=waits, failed=failed
        )

    def _own_steps(self, model_d: torch.Tensor, correction_d: torch.Tensor) -> torch.Tensor | None:
        """Return how far the host's own steps went (d,), in the memory of `base_d`; None where it is not known."""
        if self.base_d is None:
            return None
        moved_d = torch.sub(model_d, self.base_d, out=self.base_d).sub_(correction_d)
        return moved_d if bool(torch.isfinite(moved_d).all()) else None

    def _agreeing(self, moved_d: torch.Tensor | None) -> tuple[Sequence[CountedVisit], Sequence[CountedVisit]]:
        """Return the visits that count, of those that go the way of the host's own steps, and those that wait: as few
        as one of a crowd would else have all of what visitors may move."""
        if moved_d is None or not self.visits:
            return (), ()
        agree = list(compress(self.visits, agreeing([each.difference for each in self.visits], moved_d)))
        return (agree, ()) if len(agree) >= self.buffer else ((), agree)

    def _mean(
        self, visits: Sequence[CountedVisit], numel: int, own_norm: float | None, moved_d: torch.Tensor | None
    ) -> torch.Tensor | None:
        if not visits or own_norm is None:
            return None
        differences, staleness = [each.difference for each in visits], [each.staleness for each in visits]
        share, trim = self.share, self.trim
        mean_d = visitors_mean(differences, staleness, numel=numel, own_norm=own_norm, share=share, trim=trim)
        return without_opposing(mean_d, moved_d) if self.agreement and moved_d is not None else mean_d

    def _noised_mean(
        self, noise: VisitNoise, numel: int, own_norm: float | None, moved_d: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, str]:
        """Return the mean with noise; None and why, where the ledger cannot be written. What opposes the host's own
        steps is in it as zeros, as the number of those in a sum is set. As the norm of what they left is the
        clipping norm at most, the mean is shortened as if it were that: the noise beside it is no visitor's."""
        if not self.visits or own_norm is None or (self.agreement and moved_d is None):
            return None, ""
        differences = [each.difference for each in self.visits]
        agree = agreeing(differences, moved_d) if self.agreement and moved_d is not None else [True] * len(differences)
        weights = [
            staleness_weight(each.staleness) if agrees else 0.0 for each, agrees in zip(self.visits, agree, strict=True)
        ]
        try:
            mean_d = noise.mean([each.waiting.key for each in self.visits], differences, weights, numel)
        except RunError as error:
            return None, str(error)
        mean_d.mul_(min(1.0, self.share * own_norm / noise.clip))
        return (without_opposing(mean_d, moved_d) if self.agreement and moved_d is not None else mean_d), ""
