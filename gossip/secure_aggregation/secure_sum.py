"""A secure sum as one member sees it: what to say, pull and compute next, and whom to charge.

Stages, each a signed statement to all members (gossip/core/secure_statements.py); Bonawitz et al. 2017 with no server:

1. KEYS: fresh X25519 keys, and a digest of the seed of the member's own mask.
2. SHARES: both secrets (that seed, and the private key of the masks with others), dealt to all members, each share
   sealed.
3. MASKED: the vector, with all masks added, served as a blob; and from whose statements they were made.
4. HELD: whose vectors' parts the member has pulled.
5. AGREED: the survivors. Members take turns to propose (an order drawn from the exchange's name); each signs one set,
   the first that is proposed in turn and that fits what it holds. Nothing is opened before `threshold` members sign the
   same; and where not all have, not before these are shown who has, as some may have signed two.
6. OPENED: the member's own seed, and its shares of the other survivors' seeds and of the mask keys of all that left.
   Who tells a share tells the key that sealed it, so that nobody can tell a wrong one. A secret that its shares do not
   give is the dealer's offence, and ends the sum.
7. SUMMED: the sum of a part with all masks taken away, served as a blob by each of its owners, pulled by all others.

A member that is silent at a stage costs its own vector if it left before the survivors were agreed, and nothing
after that, but the parts that it alone owns. A member tells shares once, for the one set that it signed.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from gossip.core.api import BlobSource
from gossip.core.digests import digest_of
from gossip.core.envelope import Statement
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import KIB
from gossip.core.secure_statements import (
    AgreedBody,
    KeysBody,
    OpenedBody,
    SecureBody,
    SecureStage,
    SecureStatement,
    SharesBody,
    SummedBody,
    ViewBody,
    secure_statement,
)
from gossip.secure_aggregation.masks import (
    SEED_BYTES,
    MaskTerm,
    masked_bytes,
    pair_term,
    public_key,
    shared_secret,
    unmasked_sum,
)
from gossip.secure_aggregation.packing import Values, unpack_values
from gossip.secure_aggregation.secret_shares import (
    SEALED_BYTES,
    Secret,
    combine,
    commitment,
    open_share,
    seal_share,
    share_key,
    split,
)
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum, SecureSumError, SummedPart
from gossip.secure_aggregation.survivors import agreement, are_survivors, choose_survivors, lasting_masks
from gossip.updates.hash_chain import EquivocationError

TURNS: Final = 8
"""Turns into which the time after the gathering is cut. The first four are for agreeing on the survivors, the others
for opening and summing."""

AGREE_TURNS: Final = 4

FORWARDED: Final = frozenset({SecureStage.KEYS, SecureStage.SHARES, SecureStage.MASKED, SecureStage.AGREED})
"""Stages whose statements are passed on where two members differ in what they have of a third."""

Bytes = bytes | memoryview


@dataclass(frozen=True, kw_only=True)
class Say:
    """Sign a statement, give it back to `learn_own`, and send it to all other members."""

    statement: Statement


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Send another's signed statement to a member that has not the same."""

    peer: PeerId
    raw: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Call `run` (pure; where it is costly, in a thread), then `done` with what it returns. `size`: bytes gone over."""

    size: int
    run: Callable[[], object]
    done: Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Call `run`, hold the bytes that it returns as a blob for the others, then call `done` with the blob's address,
    and its data."""

    size: int
    run: Callable[[], bytes]
    done: Callable[[Digest, "bytes | BlobSource"], None]


@dataclass(frozen=True, kw_only=True)
class PullPart:
    """Pull the blob `address` of `size` bytes from a member, or its chunks `span`, and call `pulled` or `failed`."""

    peer: PeerId
    address: Digest
    size: int
    span: range | None
    key: tuple[int, int]
    """Whose vector or sum (the member's place), and of which part (its first owner's)."""
    is_sum: bool


SecureWork = Say | Forward | Compute | Serve | PullPart


class _Pulling:
    """What is pulled and what has come, by member and part."""

    def __init__(self) -> None:
        self.under_way: set[tuple[int, int]] = set()
        self.failed: set[tuple[int, int]] = set()
        self.here: dict[tuple[int, int], Bytes] = {}

    def may_begin(self, key: tuple[int, int]) -> bool:
        return key not in self.under_way and self.is_awaited(key)

    def is_awaited(self, key: tuple[int, int]) -> bool:
        return key not in self.failed and key not in self.here


class SecureSumming:
    """One secure sum. `gather_until`, `ends_at`: seconds of the caller's clock; `began`: now."""

    def __init__(
        self,
        group: SecureGroup,
        me: PeerId,
        values: Values,
        *,
        began: float,
        gather_until: float,
        ends_at: float,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Raises LocalError when we are not in the group, or `values` do not fit it."""
        if me not in group.members:
            raise LocalError("we are not of the group")
        if values.shape != (group.count,) or values.dtype != np.uint32:
            raise LocalError(f"values of shape {values.shape} and type {values.dtype} in a sum of {group.count} uint32")
        if group.bits < 32 and int(values.max()) >> group.bits:
            raise LocalError(f"a value above {group.bits} bits")
        self.group, self.name = group, group.name
        self.offences: list[tuple[PeerId, RemoteError]] = []
        """What members did, to be charged and forgotten by the caller."""
        self.failure = ""
        """Why there is no sum, once that is certain."""
        self.sums: dict[int, Bytes | BlobSource] = {}
        """Packed sums that are here, by part."""
        self._me = group.members.index(me)
        self._others = [place for place in range(len(group.members)) if place != self._me]
        self._parts = [place for place, member in enumerate(group.members) if group.parts.part_size(member)]
        """The parts that are not empty, by their first owners."""
        behind = {(self._me - each) % len(group.members) for each in range(group.owners)}
        self._own_parts = [part for part in self._parts if part in behind]
        """Those of which we are one of the owners, if all members survive."""
        self._owners: dict[int, list[int]] = {}
        """The members that sum each part, once the survivors are agreed."""
        self._dropouts: frozenset[int] = frozenset()
        """The members for which survivors masked, and whose vectors are not summed."""
        self._place_of = {member: place for place, member in enumerate(group.members)}
        self._values: Values | None = values
        self._gather_s = min(gather_until, ends_at) - began
        self._gather_until, self.ends_at, self._began = min(gather_until, ends_at), ends_at, began
        self._turn_s = (ends_at - self._gather_until) / TURNS
        self._channel, self._mask_key, self._seed = (entropy(SEED_BYTES) for _ in range(3))
        self._told: dict[int, dict[tuple[SecureStage, int], SecureStatement]] = {
            place: {} for place in range(len(group.members))
        }
        self._excused: frozenset[int] = frozenset()
        self._liars: set[int] = set()
        """Members that signed two different statements, or dealt what nobody can open."""
        self._begun: set[object] = set()
        """Work that is given out once."""
        self._outbox: list[SecureWork] = []
        """What follows from events, to be given out with the next work."""
        self._forwarded: set[tuple[int, int, SecureStage]] = set()
        self._channels: dict[int, bytes] = {}
        """What X25519 makes of our channel key and each member's."""
        self._opens: dict[int, bool] = {}
        """Whether what a dealer sealed for us opens. It is asked with each proposal, and never changes."""
        self._view: dict[int, Digest] = {}
        """What we have of those for whom our vector is masked: the digests of the shares that they dealt."""
        self._own: bytes | BlobSource | None = None
        """Our masked vector, packed."""
        self._vectors, self._pulled_sums = _Pulling(), _Pulling()
        self._signed: tuple[frozenset[int], Digest] | None = None
        """The one set of survivors that we signed, and what we signed of it."""
        self._agreed: tuple[frozenset[int], Digest] | None = None
        """The set that as many as the threshold have signed."""
        self._shows_at = 0.0
        """When members that have not signed it are shown who has."""
        self._opens_at: float | None = None
        """When it is opened."""
        self._secrets: dict[tuple[int, Secret], bytes] = {}
        order = sorted(self._place_of, key=lambda member: digest_of(self.name + member.encode("ascii")))
        self._turn_of = {self._place_of[member]: turn for turn, member in enumerate(order)}

    # -- events

    def learn_own(self, statement: SecureStatement) -> None:
        """Note what we have signed. It is never anything else in the same place."""
        assert statement.place not in self._told[self._me], "signed once"
        self._told[self._me][statement.place] = statement

    def learn(self, statement: SecureStatement) -> None:
        """Process a member's signed statement. Raises RemoteError where it has no place in this sum: who brought it is
        charged; `offences` are their signers'."""
        place = self._place_of.get(statement.peer)
        if statement.exchange != self.name or statement.round != self.group.round or place in (None, self._me):
            raise RemoteError(Reason.PROTOCOL, "a statement of another secure sum, or of no other member")
        assert place is not None
        known = self._told[place].get(statement.place)
        if known is not None and known.digest != statement.digest:
            self._blame(place, EquivocationError(known.raw, statement.raw))
            return
        if known is not None:
            return
        if (fault := self._fault(statement)) is not None:
            self._blame(place, fault)
            return
        self._told[place][statement.place] = statement
        if isinstance(statement.body, ViewBody):
            self._compare(place, statement.stage, statement.body.view)

    def excuse(self, gone: Collection[PeerId]) -> None:
        """Do not wait for these members."""
        self._excused = frozenset(self._place_of[peer] for peer in gone if peer in self._place_of)

    def pulled(self, pull: PullPart, data: Bytes) -> None:
        """Note that a pull brought what was announced."""
        pulling = self._pulled_sums if pull.is_sum else self._vectors
        pulling.under_way.discard(pull.key)
        if pull.is_sum:
            self.sums.setdefault(pull.key[1], data)
        else:
            pulling.here[pull.key] = data

    def failed(self, pull: PullPart, *, again: bool) -> None:
        """Note that a pull failed; it is tried again where the network failed, and not the peer."""
        pulling = self._pulled_sums if pull.is_sum else self._vectors
        pulling.under_way.discard(pull.key)
        if not again:
            pulling.failed.add(pull.key)

    # -- questions

    def work(self, now: float) -> list[SecureWork]:
        """Return what is to be done now, each once. Ask again after each event and at `deadline`."""
        if self.failure or now >= self.ends_at:
            return []
        work, self._outbox = self._outbox, []
        for step in (
            self._announce_keys,
            self._deal,
            self._mask,
            self._pull_vectors,
            self._hold,
            self._agree,
            self._show_proposer,
            self._count,
            self._open,
            self._recover,
            self._sum,
            self._pull_sums,
        ):
            if not self.failure:
                work += step(now)
        return work

    def deadline(self, now: float) -> float:
        """Return when `work` or `done` may change without any event."""
        turns = [self._gather_until + self._turn_s * (0.5 + turn) for turn in range(TURNS)]
        waits = [self._keys_until, self._shares_until, self._gather_until, *turns, self._agree_until]
        if self._opens_at is not None:
            half_s = self._turn_s / 2
            waits += [self._shows_at, *(self._opens_at + halves * half_s for halves in range(3))]
        return min([wait for wait in waits if wait > now], default=self.ends_at)

    def done(self, now: float) -> bool:
        """Return whether all has come, nothing can come, or time is up."""
        whole = self._survivors is not None and self._seeds_known and self.sums.keys() >= set(self._parts)
        return bool(self.failure) or now >= self.ends_at or whole

    def result(self) -> SecureSum:
        """Return what was opened. Raises SecureSumError where nothing was."""
        survivors = self._survivors
        if self.failure or survivors is None or not self._seeds_known:
            raise SecureSumError(self.failure or self._what_lacks())
        seeds = [self._secrets[place, Secret.SEED] for place in sorted(survivors)]
        return SecureSum(
            survivors=tuple(self.group.members[place] for place in sorted(survivors)),
            parts=tuple(self._part(part) for part in self._parts),
            seeds=digest_of(b"p2ptrain-secure-seeds-v1\x00" + self.name + b"".join(seeds)),
        )

    def let_go(self) -> None:
        """Forget what came, and all secrets."""
        self._vectors, self._pulled_sums = _Pulling(), _Pulling()
        self.sums.clear()
        self._secrets.clear()
        self._channels.clear()
        self._channel = self._mask_key = self._seed = b""
        self._own = self._values = None

    # -- what others say

    def _fault(self, statement: SecureStatement) -> RemoteError | None:
        """What no honest member signs, whatever it has seen of others."""
        members, body = len(self.group.members), statement.body
        named: Collection[int] = ()
        match body:
            case KeysBody():
                try:
                    shared = shared_secret(self._channel, body.channel)
                    shared_secret(self._mask_key, body.mask)
                except ValueError:
                    return RemoteError(Reason.MALFORMED, "a public key of small order")
                self._channels[self._place_of[statement.peer]] = shared
            case SharesBody():
                named = body.holders
            case ViewBody():
                named = body.view
            case AgreedBody():
                named = body.survivors
                if len(named) < self.group.threshold:
                    return RemoteError(Reason.PROTOCOL, f"{len(named)} survivors of {self.group.threshold} at least")
            case OpenedBody():
                named = body.share_keys
            case SummedBody():
                if body.part >= members or not self.group.parts.part_size(self.group.members[body.part]):
                    return RemoteError(Reason.WRONG_SHAPE, "the sum of a part that there is none of")
        if max(named, default=0) >= members:
            return RemoteError(Reason.WRONG_SHAPE, "a member that the group has not")
        return None

    def _compare(self, place: int, stage: SecureStage, view: Mapping[int, Digest]) -> None:
        """Find where a member has other statements of third ones than we have, and give it ours: either of them may
        lack it, or there are two, which proves a lie."""
        if stage is SecureStage.MASKED:
            compared = [SecureStage.SHARES, SecureStage.KEYS]
            ours = {third for third in self._told if self._statement(third, SecureStage.SHARES)}
        else:
            compared = [SecureStage.MASKED]
            ours = set(view)
        for third in ours - {place, self._me}:
            known = self._statement(third, compared[0])
            if known is not None and view.get(third) != known.digest:
                for each in compared:
                    self._forward(place, third, each)

    def _forward(self, to: int, third: int, stage: SecureStage) -> None:
        statement = self._statement(third, stage)
        if statement is not None and (to, third, stage) not in self._forwarded:
            self._forwarded.add((to, third, stage))
            self._outbox.append(Forward(peer=self.group.members[to], raw=statement.raw))

    def _blame(self, place: int, error: RemoteError) -> None:
        if place in self._liars and isinstance(error, EquivocationError):
            return  # one proof is enough
        if isinstance(error, EquivocationError):
            self._liars.add(place)
        self.offences.append((self.group.members[place], error))

    def _statement(self, place: int, stage: SecureStage, part: int = 0) -> SecureStatement | None:
        return self._told[place].get((stage, part))

    def _say(self, stage: SecureStage, body: SecureBody, payload: Digest | None = None) -> Say:
        named = {} if payload is None else {"payload": payload}
        return Say(
            statement=secure_statement(exchange=self.name, round=self.group.round, stage=stage, body=body, **named)
        )

    def _once(self, what: object) -> bool:
        first = what not in self._begun
        self._begun.add(what)
        return first

    # -- 1, 2: keys and shares

    @property
    def _keys_until(self) -> float:
        """The first wait is the longest: members come to a sum as their phases end, and the later stages are two round
        trips each."""
        return self._began + self._gather_s / 2

    @property
    def _shares_until(self) -> float:
        return self._began + self._gather_s * 3 / 4

    def _is_early(self, now: float, until: float, there: int) -> bool:
        """Whether to wait for more members: until the stage's end, and where fewer than the threshold are there until
        the end of the gathering. Going on without them would end the sum, for those too that come a little later."""
        return now < (until if there >= self.group.threshold else self._gather_until)

    def _all_have(self, stage: SecureStage, places: Collection[int]) -> bool:
        return all(self._statement(place, stage) or place in self._excused for place in places)

    def _keys_of(self, place: int) -> KeysBody | None:
        statement = self._statement(place, SecureStage.KEYS)
        body = None if statement is None else statement.body
        assert body is None or isinstance(body, KeysBody)
        return body

    def _announce_keys(self, now: float) -> list[SecureWork]:
        if not self._once(SecureStage.KEYS):
            return []
        keys = KeysBody(channel=public_key(self._channel), mask=public_key(self._mask_key), seed=commitment(self._seed))
        return [self._say(SecureStage.KEYS, keys)]

    def _deal(self, now: float) -> list[SecureWork]:
        own = self._statement(self._me, SecureStage.KEYS)
        if own is None or SecureStage.SHARES in self._begun:
            return []
        holders = [place for place in self._others if place in self._channels and place not in self._liars]
        waits = not self._all_have(SecureStage.KEYS, self._others)
        if waits and self._is_early(now, self._keys_until, len(holders) + 1):
            return []
        self._begun.add(SecureStage.SHARES)
        if self._too_few(len(holders) + 1, "announced keys"):
            return []
        channels = {place: self._channels[place] for place in holders}
        return [Compute(size=len(holders) * KIB, run=partial(self._dealt, channels), done=self._say_shares)]

    def _dealt(self, channels: Mapping[int, bytes]) -> SharesBody:
        """Return our shares for all members, sealed; splitting takes a tenth of a second for 64 members."""
        members, threshold = len(self.group.members), self.group.threshold
        shares = {
            Secret.SEED: split(self._seed, threshold, members),
            Secret.KEY: split(self._mask_key, threshold, members),
        }
        sealed = b""
        for holder in sorted(channels):
            for secret, of in shares.items():
                key = share_key(channels[holder], secret, exchange=self.name, dealer=self._me, holder=holder)
                sealed += seal_share(of[holder], key, exchange=self.name, dealer=self._me, holder=holder)
        return SharesBody(holders=frozenset(channels), sealed=sealed)

    def _say_shares(self, body: SharesBody) -> None:
        own = self._statement(self._me, SecureStage.KEYS)
        assert own is not None
        self._outbox.append(self._say(SecureStage.SHARES, body, own.digest))

    # -- 3, 4: masked vectors

    def _shares_of(self, place: int) -> SharesBody | None:
        """The shares that a member dealt, if they belong to the keys of it that we have."""
        statement, keys = self._statement(place, SecureStage.SHARES), self._statement(place, SecureStage.KEYS)
        if statement is None or keys is None or statement.payload != keys.digest:
            return None
        assert isinstance(statement.body, SharesBody)
        return statement.body

    def _share_of(self, dealer: int, secret: Secret, holder: int, key: bytes) -> bytes | None:
        """What a holder was dealt, opened with the key that sealed it."""
        shares = self._shares_of(dealer)
        sealed = None if shares is None else shares.of(holder)
        if sealed is None:
            return None
        sealed = sealed[secret * SEALED_BYTES : (secret + 1) * SEALED_BYTES]
        return open_share(sealed, key, exchange=self.name, dealer=dealer, holder=holder)

    def _share_key(self, dealer: int, secret: Secret) -> bytes:
        """The key that sealed what a dealer gave to us."""
        return share_key(self._channels[dealer], secret, exchange=self.name, dealer=dealer, holder=self._me)

    def _gave_us_shares(self, dealer: int) -> bool:
        """Whether both shares that a member dealt to us can be opened. A dealer that seals nonsense is charged."""
        shares = self._shares_of(dealer)
        if shares is None or shares.of(self._me) is None:
            return False
        if dealer not in self._opens:
            keys = {secret: self._share_key(dealer, secret) for secret in Secret}
            shares_told = [self._share_of(dealer, secret, self._me, key) for secret, key in keys.items()]
            self._opens[dealer] = None not in shares_told
            if not self._opens[dealer]:
                self._blame(dealer, RemoteError(Reason.FORGED, "shares that are sealed under another key"))
        return self._opens[dealer]

    def _masks_with(self, place: int, dealt: int) -> bool:
        """Whether a member dealt shares to us, and to so many that its key can be found if it leaves: itself does not
        count, as it tells none then. `dealt`: to how many we did."""
        shares = self._shares_of(place)
        enough = shares is not None and len(shares.holders - {place}) >= min(self.group.threshold, dealt)
        return enough and place not in self._liars and self._gave_us_shares(place)

    def _view_of(self, place: int, stage: SecureStage) -> Mapping[int, Digest] | None:
        statement = self._statement(place, stage)
        if statement is None:
            return None
        assert isinstance(statement.body, ViewBody)
        return statement.body.view

    def _mask(self, now: float) -> list[SecureWork]:
        own = self._statement(self._me, SecureStage.SHARES)
        if own is None or SecureStage.MASKED in self._begun:
            return []
        assert isinstance(own.body, SharesBody)
        waits = not self._all_have(SecureStage.SHARES, own.body.holders)
        if waits and now < self._shares_until:
            return []
        masked_for = [place for place in sorted(own.body.holders) if self._masks_with(place, len(own.body.holders))]
        if waits and self._is_early(now, self._shares_until, len(masked_for) + 1):
            return []
        self._begun.add(SecureStage.MASKED)
        if self._too_few(len(masked_for) + 1, "dealt shares"):
            return []
        dealt = {place: self._statement(place, SecureStage.SHARES) for place in masked_for}
        self._view = {place: statement.digest for place, statement in dealt.items() if statement is not None}
        terms = [MaskTerm(self._seed, 1), *(self._pair_term(self._mask_key, self._me, place) for place in masked_for)]
        values, self._values = self._values, None
        assert values is not None
        return [
            Serve(
                size=4 * len(values) * len(terms),
                run=partial(masked_bytes, values, terms, self.group.bits),
                done=self._say_masked,
            )
        ]

    def _pair_term(self, private: bytes, of: int, other: int) -> MaskTerm:
        """The mask between two members as it stands in the vector of the first, whose private key this is."""
        keys = self._keys_of(other)
        assert keys is not None, "it masked for nobody whose keys it had not"
        return pair_term(private, keys.mask, exchange=self.name, me=of, other=other)

    def _say_masked(self, address: Digest, data: "bytes | BlobSource") -> None:
        self._own = data
        self._outbox.append(self._say(SecureStage.MASKED, ViewBody(view=self._view), address))

    def _pull_vector(self, place: int, part: int) -> list[SecureWork]:
        statement, key = self._statement(place, SecureStage.MASKED), (place, part)
        if statement is None or not self._vectors.may_begin(key):
            return []
        self._vectors.under_way.add(key)
        return [
            PullPart(
                peer=self.group.members[place],
                address=statement.payload,
                size=self.group.packed_bytes,
                span=self.group.parts.span(self.group.members[part]),
                key=key,
                is_sum=False,
            )
        ]

    def _pull_vectors(self, now: float) -> list[SecureWork]:
        if SecureStage.HELD in self._begun:
            return []
        # Begins with the member after us, so that not everybody pulls from the same one.
        turn = sorted(self._view, key=lambda place: (place - self._me) % len(self.group.members))
        return [work for place in turn for part in self._own_parts for work in self._pull_vector(place, part)]

    def _holds(self, place: int) -> bool:
        return all((place, part) in self._vectors.here for part in self._own_parts)

    def _hold(self, now: float) -> list[SecureWork]:
        own = self._statement(self._me, SecureStage.MASKED)
        if own is None or SecureStage.HELD in self._begun:
            return []
        waits = any(
            place not in self._excused
            and (
                self._statement(place, SecureStage.MASKED) is None
                or any(self._vectors.is_awaited((place, part)) for part in self._own_parts)
            )
            for place in self._view
        )
        if waits and now < self._gather_until:
            return []
        self._begun.add(SecureStage.HELD)
        said = {place: self._statement(place, SecureStage.MASKED) for place in self._view if self._holds(place)}
        view = {place: statement.digest for place, statement in said.items() if statement is not None}
        return [self._say(SecureStage.HELD, ViewBody(view={**view, self._me: own.digest}))]

    # -- 5: the survivors

    @property
    def _agree_until(self) -> float:
        return self._gather_until + self._turn_s * AGREE_TURNS

    def _views(self, stage: SecureStage) -> dict[int, Mapping[int, Digest]]:
        found = {place: self._view_of(place, stage) for place in self._told}
        return {place: view for place, view in found.items() if view is not None}

    def _vector_digests(self) -> dict[int, Digest]:
        said = {place: self._statement(place, SecureStage.MASKED) for place in self._told}
        return {place: statement.digest for place, statement in said.items() if statement is not None}

    def _agree(self, now: float) -> list[SecureWork]:
        """Sign the set that most have signed of those that are proposed and fit; or propose one, when it is our
        turn."""
        held = self._view_of(self._me, SecureStage.HELD)
        if held is None or self._signed is not None or now >= self._agree_until:
            return []
        survivors = self._proposed(now, held)
        if survivors is None and self._proposes(now):
            held_by = self._views(SecureStage.HELD)
            survivors = choose_survivors(
                self._views(SecureStage.MASKED),
                {place: view for place, view in held_by.items() if place not in self._liars},
                self._vector_digests(),
                self.group.threshold,
                self._can_find,
            )
        if survivors is None or self._me not in survivors:
            return []
        agreed = agreement(self.name, survivors, self._vector_digests())
        self._signed = survivors, agreed
        return [self._say(SecureStage.AGREED, AgreedBody(survivors=survivors), agreed)]

    def _shown(self) -> list[SecureWork]:
        shown, self._outbox = self._outbox, []
        return shown

    def _show_proposer(self, now: float) -> list[SecureWork]:
        """Give who signed another set than ours what the first in turn has signed of ours: if it is the one that has
        proposed theirs, that proves a lie."""
        if self._signed is None:
            return []
        signed = self._signatures()
        ours = signed.pop(self._signed, set()) - {self._me}
        if ours:
            proposer = min(ours, key=self._turn_of.__getitem__)
            for place in frozenset().union(*signed.values()) - {self._me, proposer}:
                self._forward(place, proposer, SecureStage.AGREED)
        return self._shown()

    def _proposes(self, now: float) -> bool:
        """Whether it is our turn to propose: the first member's, when all that masked a vector have said what they
        hold, and else a turn each."""
        turn = self._turn_of[self._me]
        if now >= self._gather_until + self._turn_s * (turn + 0.5):
            return True
        masked = self._views(SecureStage.MASKED).keys() | self._view.keys()
        return turn == 0 and self._all_have(SecureStage.HELD, masked)

    def _in_turn(self, place: int, now: float) -> bool:
        return self._turn_of[place] == 0 or now >= self._gather_until + self._turn_s * (self._turn_of[place] + 0.5)

    def _proposed(self, now: float, held: Mapping[int, Digest]) -> frozenset[int] | None:
        signed = self._signatures()
        in_turn = {each for each, by in signed.items() if any(self._in_turn(place, now) for place in by)}
        for survivors, agreed in sorted(in_turn, key=lambda each: (-len(signed[each]), sorted(each[0]))):
            if self._fits(survivors, agreed, held):
                return survivors
        return None

    def _fits(self, survivors: frozenset[int], agreed: Digest, held: Mapping[int, Digest]) -> bool:
        """Whether we hold what this set needs, and it is what its proposers mean by it."""
        vectors, masked = self._vector_digests(), self._views(SecureStage.MASKED)
        return (
            self._me in survivors
            and survivors <= held.keys()
            and not survivors & self._liars
            and are_survivors(survivors, masked)
            and agreement(self.name, survivors, vectors) == agreed
            and not any(lasting_masks(place, survivors, masked, self._can_find) for place in survivors)
        )

    def _can_find(self, dropout: int, dealt: Digest, survivors: Collection[int]) -> bool:
        """Whether survivors can find the mask key of a member outside them: we have what it `dealt`, enough of them
        hold a share of it, and ours opens, if it dealt us one. Who masked for it may lie about it."""
        statement, shares = self._statement(dropout, SecureStage.SHARES), self._shares_of(dropout)
        if statement is None or shares is None or statement.digest != dealt:
            return False
        if len((shares.holders & set(survivors)) - {dropout}) < self.group.threshold:
            return False
        return self._me not in shares.holders or self._gave_us_shares(dropout)

    def _signatures(self) -> dict[tuple[frozenset[int], Digest], set[int]]:
        """The members that signed each set, of those in it."""
        signed: dict[tuple[frozenset[int], Digest], set[int]] = {}
        for place in self._told:
            statement = self._statement(place, SecureStage.AGREED)
            if statement is not None:
                assert isinstance(statement.body, AgreedBody)
                if place in statement.body.survivors:
                    signed.setdefault((statement.body.survivors, statement.payload), set()).add(place)
        return signed

    def _count(self, now: float) -> list[SecureWork]:
        """See whether enough members have signed one set. Where not all have that may sign, those that lack are shown
        who has, before it is opened, and who has signed another set as well does not count: so many liars as can sign
        two sets would have each member tell its seed in one of them, and its mask key be told in the other."""
        if self._opens_at is not None and now >= self._opens_at:
            return []
        signed = self._signatures()
        agreed = next((each for each, by in signed.items() if self._is_enough(by)), None)
        if agreed != self._agreed:
            self._begin_agreed(agreed, now)
        if agreed is None:
            return []
        lacking = (agreed[0] | self._dropouts) - signed[agreed]
        if not lacking:
            self._opens_at = now
        elif now >= self._shows_at:
            for place in lacking - {self._me}:
                for signer in signed[agreed] - {self._me}:
                    self._forward(place, signer, SecureStage.AGREED)
        return self._shown()

    def _begin_agreed(self, agreed: tuple[frozenset[int], Digest] | None, now: float) -> None:
        """Note the set that enough have signed, or that they have not. The others get half a turn to sign it, where
        they are of it, and half a turn for what they are shown."""
        self._agreed, self._opens_at = agreed, None
        if agreed is not None:
            self._settle(agreed[0])
            self._shows_at = now + (0.0 if self._dropouts else self._turn_s / 2)
            self._opens_at = self._shows_at + self._turn_s / 2

    def _is_enough(self, signers: Collection[int]) -> bool:
        return len(set(signers) - self._liars) >= self.group.threshold

    def _settle(self, survivors: frozenset[int]) -> None:
        """Find what follows from the survivors: who left, and who sums which part (the first survivors from its first
        owner on)."""
        masked, count = self._views(SecureStage.MASKED), len(self.group.members)
        told = [masked[place].keys() for place in survivors if place in masked]
        self._dropouts = frozenset().union(*told) - survivors
        for part in self._parts:
            order = [(part + behind) % count for behind in range(count)]
            self._owners[part] = [place for place in order if place in survivors][: self.group.owners]

    @property
    def _survivors(self) -> frozenset[int] | None:
        return None if self._agreed is None else self._agreed[0]

    # -- 6: opening

    def _open(self, now: float) -> list[SecureWork]:
        """Tell shares, for the one set that we signed, when enough others have."""
        agreed, opens_at = self._agreed, self._opens_at
        if agreed is None or opens_at is None or now < opens_at:
            return []
        if self._signed != agreed or not self._once(SecureStage.OPENED):
            return []
        survivors = agreed[0]
        held = {place for place in self._told if place != self._me and self._gave_us_shares(place)}
        seeds, keys = survivors & held, self._dropouts & held
        opened = {place: self._share_key(place, Secret.SEED) for place in seeds}
        opened |= {place: self._share_key(place, Secret.KEY) for place in keys}
        body = OpenedBody(seed=self._seed, seeds=frozenset(seeds), keys=frozenset(keys), share_keys=opened)
        return [self._say(SecureStage.OPENED, body, agreed[1])]

    def _opened(self) -> dict[int, OpenedBody]:
        """What members told for the set that is opened."""
        agreed, found = self._agreed, {}
        for place in self._told:
            statement = self._statement(place, SecureStage.OPENED)
            if statement is not None and agreed is not None and statement.payload == agreed[1]:
                assert isinstance(statement.body, OpenedBody)
                found[place] = statement.body
        return found

    def _wanted(self, survivors: frozenset[int]) -> list[tuple[int, Secret]]:
        """The secrets that are still to be found: without them masks stay in the sum."""
        wanted = [(place, Secret.SEED) for place in sorted(survivors)]
        wanted += [(place, Secret.KEY) for place in sorted(self._dropouts)]
        return [each for each in wanted if each not in self._secrets]

    def _recover(self, now: float) -> list[SecureWork]:
        """Take the seeds that survivors told themselves; of those that did not, and of the dropouts' keys, combine
        shares, after a wait for who may still tell its own."""
        survivors = self._survivors
        if survivors is None or self._opens_at is None or not self._wanted(survivors):
            return []
        opened = self._opened()
        for place, body in opened.items():
            self._take_opened(place, body, survivors)
        wanted = self._wanted(survivors)
        enough = len(opened) >= self.group.threshold
        silent = any(secret is Secret.SEED for _, secret in wanted)
        if not wanted or not enough or (silent and now < self._opens_at + self._turn_s / 2):
            return []
        shares = {each: self._shares_told(*each, opened) for each in wanted}
        ready = {each: of for each, of in shares.items() if len(of) >= self.group.threshold}
        if len(ready) < len(wanted) or not self._once(frozenset(wanted)):
            return []
        size = len(ready) * self.group.threshold**2 * KIB
        return [Compute(size=size, run=partial(_combined, ready, self.group.threshold), done=self._take_combined)]

    def _take_opened(self, place: int, body: OpenedBody, survivors: frozenset[int]) -> None:
        if not self._once(("opened", place)):
            return
        keys = self._keys_of(place)
        if body.seeds - survivors or body.keys & survivors or (body.seed and place not in survivors):
            self._blame(place, RemoteError(Reason.PROTOCOL, "a share that the survivors do not ask for"))
            self._liars.add(place)
        elif keys is not None and body.seed:
            if commitment(body.seed) == keys.seed:
                self._secrets[place, Secret.SEED] = body.seed
            else:
                self._blame(place, RemoteError(Reason.FORGED, "another seed than it has committed itself to"))

    def _shares_told(self, dealer: int, secret: Secret, opened: Mapping[int, OpenedBody]) -> dict[int, bytes]:
        """The shares of a secret that members told, by the holder's place; who tells a key that opens nothing is
        charged."""
        shares = {}
        for holder, body in opened.items():
            told = body.seeds if secret is Secret.SEED else body.keys
            if holder == dealer or dealer not in told or self._shares_of(dealer) is None:
                continue
            share = self._share_of(dealer, secret, holder, body.share_keys[dealer])
            if share is not None:
                shares[holder] = share
            elif self._once(("forged", holder)):
                self._blame(holder, RemoteError(Reason.FORGED, "a key that opens no share of its dealer"))
        return shares

    def _take_combined(self, found: Mapping[tuple[int, Secret], bytes]) -> None:
        for (place, secret), value in found.items():
            keys = self._keys_of(place)
            assert keys is not None
            fits = commitment(value) == keys.seed if secret is Secret.SEED else public_key(value) == keys.mask
            if fits:
                self._secrets[place, secret] = value
            else:
                self._blame(
                    place, RemoteError(Reason.FORGED, "shares that do not give the secret it committed itself to")
                )
                self.failure = f"{self.group.members[place]} dealt shares that do not give its secret"

    @property
    def _seeds_known(self) -> bool:
        survivors = self._survivors
        return survivors is not None and all((place, Secret.SEED) in self._secrets for place in survivors)

    # -- 7: sums

    def _sum(self, now: float) -> list[SecureWork]:
        survivors = self._survivors
        if survivors is None or self._me not in survivors or not self._seeds_known or self._wanted(survivors):
            return []
        work: list[SecureWork] = []
        for part in self._parts:
            if self._me not in self._owners[part] or (SecureStage.SUMMED, part) in self._begun:
                continue
            missing = [place for place in survivors - {self._me} if (place, part) not in self._vectors.here]
            work += [each for place in missing for each in self._pull_vector(place, part)]
            if not missing:
                self._begun.add((SecureStage.SUMMED, part))
                work.append(self._summing(part, survivors))
        return work

    def _summing(self, part: int, survivors: frozenset[int]) -> Serve:
        owner = self.group.members[part]
        assert self._own is not None
        vectors: list[Bytes] = [self._vectors.here.pop((place, part)) for place in sorted(survivors - {self._me})]
        vectors.append(self._own[self.group.parts.part(owner)])
        values = self.group.values_of(owner)
        terms = self._masks_in_the_sum(survivors)
        run = partial(
            unmasked_sum,
            vectors,
            terms,
            count=values.stop - values.start,
            bits=self.group.bits,
            start=values.start,
        )
        size = 4 * (values.stop - values.start) * (len(terms) + len(vectors))
        return Serve(size=size, run=run, done=partial(self._say_sum, part))

    def _masks_in_the_sum(self, survivors: frozenset[int]) -> list[MaskTerm]:
        """All masks that the survivors' sum has, with the signs that take them away."""
        masked = self._views(SecureStage.MASKED)
        terms = [MaskTerm(self._secrets[place, Secret.SEED], -1) for place in sorted(survivors)]
        for dropout in sorted(self._dropouts):
            for place in sorted(survivors):
                if dropout in masked[place]:
                    terms.append(self._pair_term(self._secrets[dropout, Secret.KEY], dropout, place))
        return terms

    def _say_sum(self, part: int, address: Digest, data: "bytes | BlobSource") -> None:
        self.sums[part] = data
        self._outbox.append(self._say(SecureStage.SUMMED, SummedBody(part=part), address))

    def _pull_sums(self, now: float) -> list[SecureWork]:
        survivors = self._survivors
        if survivors is None or self._opens_at is None:
            return []
        work: list[SecureWork] = []
        for part in self._parts:
            owners = self._owners[part]
            under_way = any(key[1] == part for key in self._pulled_sums.under_way)
            if part in self.sums or under_way or (self._me in owners and self._sums_itself(part, now)):
                continue
            source = self._source_of(part, owners, now)
            if source is not None:
                self._pulled_sums.under_way.add((source, part))
                work.append(self._pull_sum(source, part))
        return work

    def _sums_itself(self, part: int, now: float) -> bool:
        """Whether we, an owner, have summed a part or still may: not when a vector that we lack does not come, because
        its member left after it had signed."""
        if (SecureStage.SUMMED, part) in self._begun:
            return True
        assert self._opens_at is not None
        lacks = any(key[1] == part for key in self._vectors.failed)
        return not lacks and now < self._opens_at + self._turn_s

    def _source_of(self, part: int, owners: list[int], now: float) -> int | None:
        """An owner to pull a sum from: one that says what more than half of them say; after a while, what most do."""
        said = {place: self._statement(place, SecureStage.SUMMED, part) for place in owners}
        sums = {place: statement.payload for place, statement in said.items() if statement is not None}
        if not sums:
            return None
        address, votes = Counter(sums.values()).most_common(1)[0]
        assert self._opens_at is not None
        if 2 * votes <= len(owners) and now < self._opens_at + self._turn_s:
            return None
        agreeing = (place for place in owners if sums.get(place) == address)
        return next((place for place in agreeing if self._pulled_sums.may_begin((place, part))), None)

    def _pull_sum(self, source: int, part: int) -> PullPart:
        statement = self._statement(source, SecureStage.SUMMED, part)
        assert statement is not None
        return PullPart(
            peer=self.group.members[source],
            address=statement.payload,
            size=self.group.parts.part_size(self.group.members[part]),
            span=None,
            key=(source, part),
            is_sum=True,
        )

    # -- the result

    def _part(self, part: int) -> SummedPart:
        owner = self.group.members[part]
        values, packed = self.group.values_of(owner), self.sums.get(part)
        if packed is None:
            return SummedPart(owner=owner, part=values, values=None)
        summed = unpack_values(packed[0 : len(packed)], values.stop - values.start, self.group.bits)
        return SummedPart(owner=owner, part=values, values=summed)

    def _too_few(self, there: int, what: str) -> bool:
        """Whether so few have done something that the sum is off."""
        if there >= self.group.threshold:
            return False
        self.failure = f"{there} of {len(self.group.members)} members {what} in time, and {self.group.threshold} must"
        return True

    def _what_lacks(self) -> str:
        members, threshold = len(self.group.members), self.group.threshold
        if self._survivors is not None:
            return f"{len(self._opened())} of {members} members told their shares, and {threshold} must"
        signed = max((len(by - self._liars) for by in self._signatures().values()), default=0)
        return f"{signed} of {members} members signed one set of survivors in time, and {threshold} must"


def _combined(
    shares: Mapping[tuple[int, Secret], Mapping[int, bytes]], threshold: int
) -> dict[tuple[int, Secret], bytes]:
    """Return each secret, combined from the first shares of it that are enough."""
    found = {}
    for each, of in shares.items():
        found[each] = combine({place: of[place] for place in sorted(of)[:threshold]})
    return found
