"""Redaction of secrets: every event and every log line of a library passes it before it is written or shown.

There are two filters. Secrets of this process (its key's seed, the passphrase, the pre-shared key, the invite, the
page's token) are known by value, and are hidden in any form: as text, hex, base64, or as Python writes bytes. Other
secrets are recognized by their form: invites, keys in the files' own formats, the words after `token=` and the like.

A `Redactor` is a structlog processor, as which library_logs.py uses it; the event log calls `fields` itself. A secret
that is known only by value and is shorter than LEAST_ANYWHERE is hidden only as a whole word: a passphrase `a` must not
hide every letter a. Names of events and of peers are not text from others, and are kept.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

HIDDEN = "[secret]"

LEAST_ANYWHERE = 8
"""Length in characters from which on a known secret is hidden inside words, too."""

SECRET_KEYS = frozenset(
    ["api_key", "authorization", "cookie", "invite", "passphrase", "password", "private_key", "psk", "secret", "token"]
)
"""Fields whose value is always hidden. A run's `seed` is public: members must agree on it."""

_HIDES_NOTHING = frozenset({int, float, bool, type(None)})
"""Types whose values hold no text."""

_VALUE = r"(?:b?\"[^\"]*\"|b?'[^']*'|[^\s\"',;&}\])]+)"
_NAMES = r"passphrase|password|passwd|psk|secret|token|api[_-]?key|private[_-]?key"
_FORMS = re.compile(
    "|".join(
        (
            r"(?<![0-9A-Za-z])p2p\d[A-Za-z0-9_-]{16,}",  # an invite, of any version; not within a peer id
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
            r"(?P<file>p2ptrain-ed25519-1|/key/swarm/psk/[\d.]+/\s*/base\d+/)\s*[0-9A-Za-z+/=]+",
            r"(?P<url>://[^/\s:@]*:)[^/\s@]+(?=@)",
            r"(?P<scheme>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]+",
            rf"(?P<named>\b(?:{_NAMES})[\"']?\s*[:=]\s*){_VALUE}",
            r"(?P<cookie>\bcookie[\"']?\s*[:=]\s*)[^\r\n\"']+",
            r"(?P<seed>\bseed[\"']?\s*[:=]\s*)(?:b\"[^\"]*\"|b'[^']*'|[\"']?[0-9A-Za-z+/_-]{20,}=*[\"']?)",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)
"""Patterns of secrets. The text of a named group is kept, to show what was hidden."""


class Redactor:
    """Hides secrets in text and in fields. Call `learn` with what must never be seen."""

    def __init__(self, secrets: Iterable[str | bytes] = ()) -> None:
        self._forms: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.learn(*secrets)

    def learn(self, *secrets: str | bytes | None) -> None:
        """Hide these from now on; empty ones and None hide nothing."""
        self._forms.update(form for secret in secrets if secret for form in _forms_of(secret))
        longest_first = sorted(self._forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(_pattern, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return the text without its secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _FORMS.sub(_hidden, text)

    def fields(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields with secrets hidden at any depth, also in the names of inner ones: those come from data, as
        a table by address does."""
        return self._fields(fields, str)

    def _fields(self, fields: Mapping[Any, object], named: Callable[[object], str]) -> dict[str, Any]:
        return {
            named(name): HIDDEN
            if value and str(name).lower() in SECRET_KEYS
            else value
            if type(value) in _HIDES_NOTHING  # most values of a round event: this halves the time
            else self._value(value)
            for name, value in fields.items()
        }

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        """Redact as a structlog processor."""
        return self.fields(event)

    def _value(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._fields(value, lambda name: self.text(str(name)))
        if isinstance(value, list | tuple):
            return [self._value(inner) for inner in value]
        shown = self.text(
            str(value)
        )  # a value that JSON lacks is written as its text; it is kept where that text is clean
        return value if isinstance(value, PurePath) and shown == str(value) else shown


def _hidden(match: re.Match[str]) -> str:
    name = match.lastgroup
    return f"{match[name]}{HIDDEN}" if name else HIDDEN


def _forms_of(secret: str | bytes) -> Iterator[str]:
    """Yield the ways in which a secret may be written, without the blanks around it."""
    raw = secret.encode() if isinstance(secret, str) else secret
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text:
        yield from (text, quote(text, safe=""), repr(text)[1:-1])
    yield from (raw.hex(), raw.hex().upper(), repr(raw)[2:-1])
    for coded in (base64.b64encode(raw), base64.urlsafe_b64encode(raw)):
        yield coded.decode().rstrip("=")


def _pattern(form: str) -> str:
    bare = re.escape(form)
    return bare if len(form) >= LEAST_ANYWHERE else rf"(?<!\w){bare}(?!\w)"
