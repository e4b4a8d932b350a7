"""The certificate that visitors are shown. It lasts weeks, and nodes run longer: a renewed one is taken over."""

import ssl
from contextlib import suppress
from typing import Final

from node.config.visits_section import VisitsConfig
from node.system.errors import UsageError

LOOK_S: Final = 60.0
"""Seconds between two looks at whether the files have changed. Chosen: a certificate is renewed days before its end."""

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file its time, number and size; None: it is not there."""


def tls_of(config: VisitsConfig) -> ssl.SSLContext | None:
    """Return TLS by the certificate in the settings, None where there is none. Raises UsageError for files that cannot
    be used."""
    if config.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, config)
    return context


class RenewedCertificate:
    """Has the files' certificate shown, also when they have changed."""

    def __init__(self, context: ssl.SSLContext, config: VisitsConfig) -> None:
        """`context` has the certificate as it is now."""
        self._context, self._config = context, config
        self._loaded = self._seen = self._stamp()

    def look(self) -> bool:
        """Take a renewed certificate for the connections that come, and return whether there was one. It has not
        changed since the last look: its two files are written one after the other. Raises UsageError, once, where it
        cannot be used: the one before stays."""
        before, self._seen = self._seen, self._stamp()
        if self._seen == self._loaded or self._seen != before:
            return False
        self._loaded = self._seen
        tls_of(self._config)  # or a key of another certificate would leave the context with half of each
        _load(self._context, self._config)
        return True

    def _stamp(self) -> _Stamp:
        found: list[tuple[int, int, int] | None] = []
        for file in (self._config.certificate, self._config.key):
            found.append(None)
            with suppress(OSError):
                if file is not None:
                    its = file.stat()
                    found[-1] = (its.st_mtime_ns, its.st_ino, its.st_size)
        return tuple(found)


def _load(context: ssl.SSLContext, config: VisitsConfig) -> None:
    certificate, key = config.certificate, config.key
    assert certificate is not None, "there is one"
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else OpenSSL asks on the terminal, and waits
    except FileNotFoundError as error:
        missing = key if key is not None and certificate.is_file() else certificate
        raise UsageError(f"no file {missing}", "name the files in visits.certificate and visits.key") from error
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        hint = "visits.certificate and visits.key are PEM files of one certificate"
        raise UsageError(f"the certificate {certificate} cannot be used: {why}", hint) from error
