"""A host with visitors, without a node: the state of its visits, the HTTP application, and visitors that sign."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import torch
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gossip.core.digests import digest_of
from gossip.core.identity import Identity
from node.config.visits_section import VisitsConfig
from node.visits.difference_head import HEAD_BYTES, LeftDifference
from node.visits.visit_server import VisitServer
from node.visits.visitors import StepAdvice, VisitedRun, Visitors
from p2ptrain.visits.model_versions import ModelVersion
from p2ptrain.visits.visitor_mean import DIFFERENCES

T = TypeVar("T")
NUMEL = 1500
RUN = VisitedRun(run_id=b"r" * 16, task="digits", numel=NUMEL, parameters=[("w", (3, 500))])
ADVICE = StepAdvice(steps=5, batch_size=16, learning_rate=1e-3, clip_norm=1.0)


def settings(**changes: Any) -> VisitsConfig:
    return replace(VisitsConfig(listen="127.0.0.1:8443", buffer=1), **changes)


def noise(seed: int) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


async def here(function: Callable[[], T]) -> T:
    """Compute on the event loop."""
    await trio.lowlevel.checkpoint()
    return function()


def key_of(name: str) -> Identity:
    return Identity(digest_of(name.encode()))


def signed_by(name: str, left: LeftDifference) -> LeftDifference:
    return replace(left, signature=key_of(name).sign(left.signed(RUN.run_id)))


class VisitedHost:
    """A host whose own steps of a round have the norm 1."""

    def __init__(self, **changes: Any) -> None:
        self.config = settings(**changes)
        self.visitors = Visitors(self.config, RUN, lambda: ADVICE)
        self.server = VisitServer(self.config, self.visitors, here)
        self.round = 0
        self.model_d = noise(0)
        self.visited_d: torch.Tensor | None = None

    def close_round(self) -> torch.Tensor | None:
        """Close a round whose own steps go into one direction, and return what visitors add."""
        step_d = torch.nn.functional.normalize(noise(1), dim=0)
        after_d = self.model_d + step_d
        closed = self.visitors.begin_closing().close(after_d, torch.zeros(NUMEL), round=self.round)
        self.visitors.finish_closing(closed)
        self.model_d = after_d if closed.visited_d is None else after_d + closed.visited_d
        self.round += 1
        return closed.visited_d

    def newest(self) -> ModelVersion:
        version = self.visitors._versions.newest
        assert version is not None
        return version

    def left_by(self, name: str, difference_d: torch.Tensor | None = None, **changes: Any) -> LeftDifference:
        """Return what a visitor of this name leaves, signed. `changes` are made after it has signed."""
        version, payload = self.newest(), DIFFERENCES.encode(0.01 * noise(2) if difference_d is None else difference_d)
        left = LeftDifference(
            key=key_of(name).public_key, round=version.round, model=version.digest, signature=b"", payload=payload
        )
        return replace(signed_by(name, left), **changes)

    async def take(self, left: LeftDifference | bytes, host: str = "127.0.0.1") -> None:
        body = left if isinstance(left, bytes) else left.to_bytes()
        with self.visitors.expect(len(body), host) as place:
            self.visitors.check_head(body[:HEAD_BYTES], place)
            await self.visitors.take(body, place, here)

    def client(self, host: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
        """Return a client of the application, which calls from this address."""
        transport = httpx.ASGITransport(self.server.app(), client=(host, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8443", **options)


def certificate(
    folder: Path, encryption: serialization.KeySerializationEncryption | None = None, *, days_off: int = 0
) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1's own, and its key. It is valid a day before and after now, so many days later."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days_off)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encryption = encryption or serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return paths
