"""The certificate that visitors are shown. It lasts weeks, and nodes run longer: a renewed one is taken over."""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

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
        return True

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
