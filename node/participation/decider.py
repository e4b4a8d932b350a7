"""Whether to train now, by all policies together. Pure: time and readings are passed in, decisions come back.

Training pauses at the first look at which a policy forbids it, and goes on once none has forbidden it for `calm_s`
seconds. So a pause lasts `calm_s` at least. Between two pauses training goes on for `stay_s` at least, unless a policy
forbids it that must be obeyed at once. Both, and the margins of the policies, keep it from flapping: in T seconds there
are at most T / calm_s + 1 pauses, whatever is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.participation.base import ParticipationPolicy, TellsReturn
from node.participation.device_state import DeviceState
from p2ptrain.protocols import implements


@dataclass(frozen=True)
class PauseReason:
    """Why training is paused."""

    policy: str
    why: str
    """In words, for people."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a state lasts at least, in seconds."""

    calm_s: float
    """Nothing may forbid training for so long before it goes on."""
    stay_s: float
    """Training goes on for so long, unless it must stop at once."""


class Decider:
    """Remembers what the policies said at the last look, and since when."""

    def __init__(
        self, policies: Mapping[str, ParticipationPolicy], patience: Patience, *, unread_pauses: bool = False
    ) -> None:
        """`unread_pauses`: what cannot be read forbids training; otherwise it forbids nothing."""
        self._policies = policies
        self._patience = patience
        self._unread_pauses = unread_pauses
        self._forbidding: set[str] = set()
        self._began: float | None = None
        """When training began, or went on; None: it has not begun, or is paused."""
        self._reasoned: list[PauseReason] = []
        """What forbade training at the last look."""
        self._forbidden_at = 0.0
        """When training was forbidden last."""
        self.faults: dict[str, str] = {}
        """Policies that could not decide at the last look, and why."""
        self.reason: PauseReason | None = None
        """Why training is paused; None: it is not."""

    def look(self, state: DeviceState, now: float) -> PauseReason | None:
        """Decide by readings taken at `now` (seconds, monotonic). Return why training is paused, None where it is
        not."""
        reasons = self._reasoned = self._reasons(state)
        if reasons:
            self._forbidden_at = now
        if self.reason is not None:
            if reasons:
                self.reason = next((it for it in reasons if it.policy == self.reason.policy), reasons[0])
            elif now - self._forbidden_at >= self._patience.calm_s:
                self.reason, self._began = None, now
        elif reasons and self._must_stop(reasons, now):
            self.reason, self._began = reasons[0], None
        elif self._began is None:
            self._began = now
        return self.reason

    def pause_seconds(self, state: DeviceState) -> float | None:
        """Return in how many seconds at most after `state`, the readings of the last look, training goes on, if nothing
        else forbids it meanwhile. None where one of the policies that forbade it then does not know, and where none
        did: whether it stays calm is known to nobody."""
        ends = [self._returns_at(reason.policy, state) for reason in self._reasoned]
        known = [end for end in ends if end is not None]
        if not known or len(known) < len(ends):
            return None
        return max(0.0, max(known) - state.now) + self._patience.calm_s

    def _returns_at(self, name: str, state: DeviceState) -> float | None:
        policy = self._policies[name]
        if name in self.faults or not implements(policy, TellsReturn):
            return None
        try:
            return policy.returns_at(state)
        except Exception:  # a third party's; what it says of `forbids` is told, and this is only a help for others
            return None

    def _must_stop(self, reasons: Sequence[PauseReason], now: float) -> bool:
        if self._began is None or now - self._began >= self._patience.stay_s:
            return True
        return any(self._policies[reason.policy].at_once for reason in reasons)

    def _reasons(self, state: DeviceState) -> list[PauseReason]:
        """Return what each policy that forbids training says, in their order."""
        self.faults = {}
        reasons = []
        for name, policy in self._policies.items():
            why = self._why(name, policy, state)
            if why is not None:
                reasons.append(PauseReason(name, why))
            if name not in self.faults:  # else it stays as it was: what it last said still counts for its margin
                (self._forbidding.discard if why is None else self._forbidding.add)(name)
        return reasons

    def _why(self, name: str, policy: ParticipationPolicy, state: DeviceState) -> str | None:
        unread = [reading for reading in policy.reads if reading in state.unread]
        if unread:
            self.faults[name] = state.unread[unread[0]]
        else:
            try:
                return policy.forbids(state, paused=name in self._forbidding)
            except Exception as error:  # a third party's
                self.faults[name] = f"{type(error).__name__}: {error}"
        return f"it cannot be told: {self.faults[name]}" if self._unread_pauses else None
