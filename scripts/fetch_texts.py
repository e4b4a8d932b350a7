"""Fetches six domains of English text from Debian's packages, the same bytes on every machine.

    .venv/bin/python scripts/fetch_texts.py FOLDER [--megabytes 3] [--update-digests]

FOLDER gets a folder a domain: Python's documentation, Linux's, Perl's, Debian's reference, the King James Bible, and
fortunes. `task.data = FOLDER` with `task.partition = "domain"` trains each node on one of them. Packages are downloaded
and unpacked into a temporary folder: nothing is installed, and root is not needed (apt's lists must be there).

`texts.toml` beside this script pins each package's version and SHA-256, and the SHA-256 of what a domain comes to at
the default size. Mirrors keep the newest version only: once a pinned one is gone, `--update-digests` takes what there
is and writes the table anew. Figures measured on other texts are other figures.
"""

import argparse
import gzip
import hashlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import tomli_w

from node.system.script_end import ended_in_a_line

TABLE = Path(__file__).with_name("texts.toml")
DEFAULT_MEGABYTES = 3.0
MIN_BYTES = 1000
"""Shorter documents are tables of contents and stubs."""
INDEXES = frozenset({".dat"})
"""What fortune looks its texts up by."""
BLOCK = re.compile(
    "address|article|blockquote|br|chapter|d[dlt]|div|h[1-6r]|lg?|li|ol|p|pre|section|table|title|tr|ul"
).fullmatch
"""Elements of HTML, and of OSIS (Bibles), that begin a line."""
LEFT_OUT = frozenset({"head", "script", "style", "nav", "note"})
"""Elements whose text is no prose; `note` is OSIS' footnote."""

Table = dict[str, dict[str, Any]]
"""By domain: package, version, sha256 (of the .deb), files (globs), digest (of the domain's documents)."""


class FetchError(Exception):
    """What went wrong, and what to do, in one line."""


class _Prose(HTMLParser):
    """Collects the text of HTML or OSIS, a line a block; only in `pre` are line ends kept."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipped, self._pre = 0, 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._skipped += tag in LEFT_OUT
        self._pre += tag == "pre"
        if BLOCK(tag):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._skipped = max(0, self._skipped - (tag in LEFT_OUT))
        self._pre = max(0, self._pre - (tag == "pre"))
        if BLOCK(tag):
            self.parts.append("\n")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        if BLOCK(tag):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        if not self._pre:
            data = re.sub(r"\s+", " ", data)
            data = data.lstrip() if self.parts and self.parts[-1].endswith((" ", "\n")) else data
        if data:
            self.parts.append(data)


def stripped(markup: str) -> str:
    """Return the text of HTML or OSIS."""
    parser = _Prose()
    parser.feed(markup)
    parser.close()
    return "".join(parser.parts)


def normalised(text: str) -> bytes:
    """Return UTF-8 with "\\n" alone at line ends, no blanks before them, one empty line at most, and one end of line
    last."""
    lines = "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return (re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n").encode()


def books(index: bytes, blocks: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and OSIS of a SWORD module's books: `index` (.bzs) has offset, size and plain size of each, 3 x
    uint32; `blocks` (.bzz) is zlib."""
    for offset, size, _ in struct.iter_unpack("<III", index):
        markup = zlib.decompress(blocks[offset : offset + size]).decode("utf-8", errors="replace")
        if found := re.search(r'osisID="(\w+)"', markup):
            yield found[1], markup


def documents_of(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the documents of a file as (name, normalised text): one, or a SWORD module's books."""
    raw = path.read_bytes()
    if name.endswith(".gz"):
        raw, name = gzip.decompress(raw), name.removesuffix(".gz")
    if name.endswith(".bzz"):
        found = books(path.with_suffix(".bzs").read_bytes(), raw)
        yield from ((f"{path.stem}-{book}", normalised(stripped(markup))) for book, markup in found)
    else:
        text = raw.decode("utf-8", errors="replace")
        yield name, normalised(stripped(text) if name.endswith(".html") else text)


def documents(root: Path, globs: Sequence[str]) -> dict[str, bytes]:
    """Return the documents of an unpacked package by name, in the order of names: links and stubs are left out."""
    every = {path for pattern in globs for path in root.glob(pattern) if path.suffix not in INDEXES}
    paths = sorted(path for path in every if path.is_file() and not path.is_symlink())
    prefix = Path(*globs[0].split("*")[0].split("/")[:-1])
    found = {}
    for path in paths:
        name = str(path.relative_to(root / prefix)).replace("/", "-")
        found |= {each: text for each, text in documents_of(path, name) if len(text) >= MIN_BYTES}
    return dict(sorted(found.items()))


def capped(found: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
    """Return whole documents of at most `limit` bytes together: one by one in the order of their names' hashes, those
    that no longer fit passed over."""
    taken, size = set(), 0
    for name in sorted(found, key=lambda each: hashlib.sha256(each.encode()).digest()):
        if size + len(found[name]) <= limit:
            taken.add(name)
            size += len(found[name])
    return {name: text for name, text in found.items() if name in taken}


def digest_of(found: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of documents with their names."""
    digest = hashlib.sha256()
    for name, text in found.items():
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def check(what: str, found: str, pinned: str) -> None:
    """Raise FetchError unless what was found is what is pinned."""
    if found != pinned:
        raise FetchError(f"{what} is {found}, pinned is {pinned}: other texts; --update-digests takes them")


def download(package: str, version: str | None, folder: Path) -> Path:
    """Download a package, of a version or the newest, and return the file. FetchError where it cannot be had."""
    wanted = f"{package}={version}" if version else package
    folder.mkdir()
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=", wanted]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("E: ")
        raise FetchError(f"{wanted}: {why}; refresh apt's lists, or --update-digests takes the newest version")
    return next(folder.glob("*.deb"))


def fetch(domain: str, entry: dict[str, Any], scratch: Path, limit: int, *, update: bool) -> dict[str, bytes]:
    """Return a domain's documents. Pins are checked, or with `update` written into `entry`: the domain's own digest
    only at the default size."""
    deb = download(entry["package"], None if update else entry["version"], scratch / domain)
    field = ["dpkg-deb", "--field", str(deb), "Version"]
    version = subprocess.run(field, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["dpkg-deb", "-x", str(deb), str(scratch / domain / "root")], check=True)
    found = capped(documents(scratch / domain / "root", entry["files"]), limit)
    told = {"version": version, "sha256": hashlib.sha256(deb.read_bytes()).hexdigest()}
    if limit == int(DEFAULT_MEGABYTES * 1e6):
        told["digest"] = digest_of(found)
    if update:
        entry |= told
    for key, value in told.items():
        check(f"{domain}: {key} of {entry['package']}", value, entry[key])
    return found


def write(found: Mapping[str, bytes], folder: Path) -> None:
    """Write documents into a new folder, which is there with all of them or not at all."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for name, text in found.items():
        (new / name).write_bytes(text)
    new.rename(folder)


def main(words: Sequence[str]) -> None:
    """Fetch all domains into the folder. FetchError at the first that is not what is pinned: none is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=DEFAULT_MEGABYTES, help="of each domain at most")
    parser.add_argument("--update-digests", action="store_true", help="take what there is, and pin it")
    given = parser.parse_args(words)
    table: Table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    if taken := [domain for domain in table if (given.folder / domain).exists()]:
        raise FetchError(f"{given.folder / taken[0]} is there already: give another folder, or remove it")
    if given.folder.exists() and not given.folder.is_dir():
        raise FetchError(f"{given.folder} is no folder: give another")
    limit, update = int(given.megabytes * 1e6), given.update_digests
    with tempfile.TemporaryDirectory(prefix="texts-") as scratch:
        found = {name: fetch(name, entry, Path(scratch), limit, update=update) for name, entry in table.items()}
    if update:
        TABLE.write_text(tomli_w.dumps(table), encoding="utf-8")
    given.folder.mkdir(parents=True, exist_ok=True)
    for domain, texts in found.items():
        write(texts, given.folder / domain)
        print(f"{domain:8} {len(texts):4} documents {sum(map(len, texts.values())):9,} bytes  {digest_of(texts)[:16]}")


if __name__ == "__main__":
    with ended_in_a_line():
        try:
            main(sys.argv[1:])
        except FetchError as error:
            sys.exit(f"error: {error}")
        except (OSError, subprocess.SubprocessError) as error:  # a file in the folder's place, a full disk, no Debian
            sys.exit(f"error: {error}: this needs apt-get, dpkg-deb and a folder that can be written")
