"""The certificate that visitors are shown."""

import ssl

from node.config.visits_section import VisitsConfig
from node.system.errors import UsageError


def tls_of(config: VisitsConfig) -> ssl.SSLContext | None:
    """Return TLS by the certificate in the settings, None where there is none. Raises UsageError for files that cannot
    be used."""
    certificate, key = config.certificate, config.key
    if certificate is None:
        return None
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
