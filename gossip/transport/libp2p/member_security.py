"""Membership inside the security handshake: `/p2ptrain/member/1.0.0`, which a private swarm offers instead of `/noise`.

Noise XX as everywhere; then, before a muxer or any protocol is open, each end sends its credentials in one frame over
the encrypted channel:

    frame = length: 2 bytes, big-endian; credentials

Who dialled sends first, and who listens answers only when it has admitted the caller: a stranger hears Noise, which
tells it the key that it has dialled by name, and the end of the connection. A member that was revoked is told why:
it gets a frame whose length has its highest bit set, with a refusal (membership/refusal.py). Who dialled may refuse,
too, once it has seen who listens, and sends such a frame before the muxer's first byte: a node that only listens would
hear it of nobody else. Who dialled shows its credentials to the key that it meant to dial and to no other. Credentials
are no secrets, and are good for the key alone that shows them.

They are asked about again when the connection is registered: a caller that is admitted and then dawdles until it is
revoked (the handshake may take some seconds) would be nobody's connection while connections are cut.
"""

import struct
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IOException
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError
from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID, PROTOCOL_NOT_FOUND_MSG, Multiselect
from libp2p.transport.upgrader import TransportUpgrader

from gossip.core.ids import PeerId
from gossip.transport.base import MAX_CREDENTIALS
from gossip.transport.handshake_admission import AdmissionDeniedError, HandshakeAdmission

MEMBER_ID: Final = TProtocol("/p2ptrain/member/1.0.0")
"""What multistream-select is offered, and all that it is offered."""

_LENGTH: Final = struct.Struct(">H")
_REFUSAL: Final = 0x8000
"""In a frame's length: it is a refusal. Who does not know of refusals takes it for credentials that are too long, or
for no multistream-select."""

READ_S: Final = 1.0
"""Seconds in which who listens may read why it is refused, and hang up. A close before that would be a reset where its
own first bytes are on the way, and a reset may take along what it has not read. Chosen."""

_LIST: Final = "ls"
"""Asks for the names of all protocols."""


class MemberSecurity:
    """An ISecureTransport of libp2p's: `noise`, and then the door."""

    def __init__(self, noise: Any, handshake_admission: HandshakeAdmission) -> None:
        self._noise = noise
        self._handshake_admission = handshake_admission

    async def secure_inbound(self, conn: Any) -> Any:
        """Who calls proves its key, shows its credentials, and sees ours if it is admitted. Raises
        AdmissionDeniedError."""
        session = await self._noise.secure_inbound(conn)
        session.credentials = await self._shown(session)
        try:
            readmit(self._handshake_admission, session)
        except AdmissionDeniedError as refused:
            await _refuse(session, refused.answer)
            raise
        await self._show(session)
        session.read = partial(self._first_words, session)
        return session

    async def secure_outbound(self, conn: Any, peer_id: Any) -> Any:
        """Whom we dialled proves its key, and shows its credentials if it admits us. Raises AdmissionDeniedError."""
        session = await self._noise.secure_outbound(conn, peer_id)
        await self._show(session)
        try:
            session.credentials = await self._shown(session, or_refusal=True)
        except IOException as error:
            why = "it hung up when it had seen our credentials: it does not take us for a member"
            raise AdmissionDeniedError("", why) from error
        try:
            readmit(self._handshake_admission, session)
        except AdmissionDeniedError as refused:
            if refused.answer:
                await _refuse(session, refused.answer)
                await _until_over(session)
            raise
        return session

    async def _first_words(self, session: Any, n: int | None = None) -> bytes:
        """Read what the caller says first when it has seen who we are. No word of multistream-select is as long as a
        frame with the highest bit in its length. Raises AdmissionDeniedError where it refuses us."""
        del session.read  # its own again
        data: bytes = await session.read(n)
        if not data or not data[0] & _REFUSAL >> 8:
            return data
        data += await _exactly(session, max(0, _LENGTH.size - len(data)))
        (size,) = _LENGTH.unpack(data[: _LENGTH.size])
        said = data[_LENGTH.size :]
        said += await _exactly(session, max(0, (size ^ _REFUSAL) - len(said)))
        raise AdmissionDeniedError("", self._handshake_admission.heard(_peer(session), said))

    async def _show(self, session: Any) -> None:
        ours = self._handshake_admission.credentials()
        await session.write(_LENGTH.pack(len(ours)) + ours)

    async def _shown(self, session: Any, *, or_refusal: bool = False) -> bytes:
        """Return the far end's frame. Raises AdmissionDeniedError for one that is too long or (where we dialled) says
        why we are refused, IOException where there is none."""
        (size,) = _LENGTH.unpack(await _exactly(session, _LENGTH.size))
        if or_refusal and size & _REFUSAL:
            raise AdmissionDeniedError(
                "", self._handshake_admission.heard(_peer(session), await _exactly(session, size ^ _REFUSAL))
            )
        if size > MAX_CREDENTIALS:
            why = f"credentials of {size} bytes"
            raise self._handshake_admission.refusal(
                "refused_oversize", why, _peer(session), host_of(session), trio.current_time()
            )
        return await _exactly(session, size)


async def _refuse(session: Any, answer: bytes) -> None:
    if answer:
        with suppress(IOException):  # it is refused, whether it hears why or not
            await session.write(_LENGTH.pack(_REFUSAL | len(answer)) + answer)


async def _until_over(session: Any) -> None:
    with suppress(IOException), trio.move_on_after(READ_S):
        while await session.read():
            pass


async def _exactly(session: Any, size: int) -> bytes:
    data: bytes = await session.read(size)
    if len(data) < size:
        raise IOException("the connection has ended within the credentials")
    return data


def _peer(session: Any) -> PeerId:
    return PeerId(str(session.get_remote_peer()))


def host_of(conn: Any) -> str | None:
    """The IP address at the far end; None where there is none."""
    address = conn.get_remote_address()
    return None if address is None else str(address[0])


def readmit(handshake_admission: HandshakeAdmission, session: Any) -> None:
    """Ask (again) about who has shown its credentials on this session. Raises AdmissionDeniedError."""
    if not handshake_admission.open:
        handshake_admission.admit(_peer(session), session.credentials, host_of(session), trio.current_time())


class _Ear:
    """A communicator of multistream-select's that tells strangers from members by their first words."""

    def __init__(self, communicator: Any, handshake_admission: HandshakeAdmission) -> None:
        self._inner = communicator
        self._handshake_admission = handshake_admission
        self._first = True

    async def read(self) -> str:
        """The next word. Raises AdmissionDeniedError when none like it is ever said by a member."""
        try:
            word: str = await self._inner.read()
        except UnicodeDecodeError:
            raise self._refusal("it speaks no multistream-select") from None
        except MultiselectCommunicatorError as error:
            if isinstance(error.__cause__, ParseError):
                raise self._refusal("it speaks no multistream-select") from None
            raise
        if self._first and word != MULTISELECT_PROTOCOL_ID:
            raise self._refusal("it speaks no multistream-select")
        if word == _LIST:  # would be answered, as often as it asks, by what tells what we are
            await self.write(PROTOCOL_NOT_FOUND_MSG)
        self._first = False
        return word

    async def write(self, word: str) -> None:
        """Say something. Raises AdmissionDeniedError once we have said no."""
        await self._inner.write(word)
        if word == PROTOCOL_NOT_FOUND_MSG:
            raise self._refusal("it offers another security than members do")

    def _refusal(self, why: str) -> AdmissionDeniedError:
        host = host_of(self._inner.read_writer)
        return self._handshake_admission.refusal("refused_protocol", why, None, host, trio.current_time())


class _MembersOnly(Multiselect):  # type: ignore[misc]
    """Multistream-select at the listening end, which hangs up after its first no."""

    def __init__(self, handshake_admission: HandshakeAdmission) -> None:
        super().__init__()
        self._handshake_admission = handshake_admission
        self.add_handler(MEMBER_ID, None)

    async def negotiate(self, communicator: Any, *timeout: int) -> Any:
        """As the base class's. Raises AdmissionDeniedError."""
        return await super().negotiate(_Ear(communicator, self._handshake_admission), *timeout)


def guarded_upgrader(
    noise: Any, noise_id: TProtocol, muxers: dict[Any, Any], handshake_admission: HandshakeAdmission
) -> TransportUpgrader:
    """libp2p's upgrader with Noise alone, or where the door is shut with members' security alone."""
    if handshake_admission.open:
        return TransportUpgrader({noise_id: noise}, muxers)
    upgrader = TransportUpgrader({MEMBER_ID: MemberSecurity(noise, handshake_admission)}, muxers)
    upgrader.security_multistream._selector.multiselect = _MembersOnly(handshake_admission)
    return upgrader
