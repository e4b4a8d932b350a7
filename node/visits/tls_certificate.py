"""The certificate that visitors are shown. It lasts weeks, and nodes run longer: a renewed one is taken over."""

import ssl
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from node.config.visits_section import VisitsConfig
from node.system.errors import UsageError

LOOK_S: Final = 60.0
"""Seconds between two looks at whether the files have changed. Chosen: a certificate is renewed days before its end."""

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file its time, number and size; None: it is not there."""


class RenewedCertificate:
    """The files' certificate, also when they have changed."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises UsageError for files that cannot be used."""
        self._files = certificate, key
        self._loaded = self._seen = self._stamp()
        self._span = _span(certificate)
        self._told: str | None = None
        self.context: ssl.SSLContext = _context(certificate, key)
        """TLS by the newest certificate that can be used. A renewed one is another object: a certificate and its key
        are loaded one after the other, and a handshake between the two would fail."""

    def look(self) -> bool:
        """Take a renewed certificate for the connections that come, and return whether there was one. It has not
        changed since the last look: its two files are written one after the other. Raises UsageError, once, where it
        cannot be used: the one before stays."""
        before, self._seen = self._seen, self._stamp()
        if self._seen == self._loaded or self._seen != before:
            return False
        self._loaded = self._seen
        self.context = _context(*self._files)
        self._span = _span(self._files[0])
        return True

    def refused_why(self, now: datetime) -> str | None:
        """Return why visitors refuse the certificate at `now`, by this machine's clock; None where nothing is wrong,
        or the same was returned before."""
        before, self._told = self._told, _outside(self._span, now)
        return None if self._told == before else self._told

    def _stamp(self) -> _Stamp:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            found.append(None)
            with suppress(OSError):
                if file is not None:
                    its = file.stat()
                    found[-1] = (its.st_mtime_ns, its.st_ino, its.st_size)
        return tuple(found)


def certificate_of(config: VisitsConfig) -> RenewedCertificate | None:
    """Return the certificate in the settings, None where there is none. Raises UsageError for files that cannot be
    used."""
    return None if config.certificate is None else RenewedCertificate(config.certificate, config.key)


def _span(certificate: Path) -> tuple[datetime, datetime] | None:
    """From when to when the first certificate of the file holds, which is the node's own; None where that cannot be
    read. It is told about, and never a reason not to serve."""
    try:
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except (OSError, ValueError, x509.InvalidVersion):
        return None
    return own.not_valid_before_utc, own.not_valid_after_utc


def _outside(span: tuple[datetime, datetime] | None, now: datetime) -> str | None:
    if span is None or span[0] <= now <= span[1]:
        return None
    if now > span[1]:
        return f"has run out on {span[1]:%Y-%m-%d %H:%M} UTC"
    return f"holds from {span[0]:%Y-%m-%d %H:%M} UTC on, and this machine's clock says {now:%Y-%m-%d %H:%M}"


def _context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else OpenSSL asks on the terminal, and waits
    except FileNotFoundError as error:
        missing = key if key is not None and certificate.is_file() else certificate
        raise UsageError(f"no file {missing}", "name the files in visits.certificate and visits.key") from error
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        hint = "visits.certificate and visits.key are PEM files of one certificate"
        raise UsageError(f"the certificate {certificate} cannot be used: {why}", hint) from error
    return context
