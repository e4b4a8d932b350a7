"""A report as one HTML file: data as inert JSON, scripts and styles inline, and a policy that lets nothing else in.

The policy names the digests of the one script and the one sheet of styles: markup that came in by the data would run
nothing and load nothing, even if it were markup; and it is not, for `<`, `>` and `&` are written as escapes.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from node.reporting import bundle
from node.reporting.document import ReportDocument
from node.system.run_dir import write_atomic

_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)


def as_html(document: ReportDocument) -> str:
    """Return the file's text."""
    script, style = bundle.script(), bundle.styles()
    page = (bundle.OWN / "report.html").read_text(encoding="utf-8")
    policy = _POLICY.format(script=_digest(script), style=_digest(style))
    parts = {
        "policy": policy,
        "style": style,
        "licence": bundle.licence().replace("--", "- -"),
        "data": as_data(document.as_json()),
        "script": script,
    }
    head, *rest = page.split("{{")
    return head + "".join(parts[name] + after for name, _, after in (each.partition("}}") for each in rest))


def as_data(value: Any) -> str:
    """Return JSON that ends no script element, whatever texts are in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES)


def write(document: ReportDocument, path: Path) -> int:
    """Write the file whole or not at all; return its bytes. RunError when the disk does not take it."""
    data = as_html(document).encode("utf-8", errors="replace")  # a lone surrogate in a name
    write_atomic(path, data, "or give another --out")
    return len(data)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
