"""scripts/fetch_texts.py: the same texts on every machine, or one line that says why not. Nothing is downloaded."""

import errno
import gzip
import importlib.util
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
LONG = "A sentence that is long enough to be no stub. " * 30
CONTROL = (
    "Package: tiny-doc\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@localhost>\nDescription: texts\n"
)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_texts", ROOT / "scripts" / "fetch_texts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


texts = script()


def test_html_becomes_lines_of_prose() -> None:
    page = (
        "<html><head><title>no</title></head><body><nav>no</nav><h1>Head</h1><p>One\n  two <b>three</b> &amp; four.</p>"
        "<script>no()</script><pre>a\n  b</pre><ul><li>x</li><li>y<br/>z</li></ul></body></html>"
    )
    assert texts.normalised(texts.stripped(page)) == b"Head\n\nOne two three & four.\n\na\n  b\n\nx\n\ny\nz\n"


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = texts.normalised(text.encode(errors="ignore").decode())
    assert texts.normalised(once.decode()) == once
    assert once.endswith(b"\n")
    assert b"\r" not in once


@given(st.dictionaries(st.text(min_size=1), st.binary(max_size=50)), st.integers(0, 300))
def test_whole_documents_up_to_a_size(found: dict[str, bytes], limit: int) -> None:
    taken = texts.capped(found, limit)
    size = sum(map(len, taken.values()))
    assert size <= limit
    assert taken.items() <= found.items()
    assert all(size + len(found[name]) > limit for name in found.keys() - taken.keys())
    assert texts.capped(dict(reversed(found.items())), limit) == taken


def test_a_domain_is_its_files_without_stubs_links_and_indexes(tmp_path: Path) -> None:
    folder = tmp_path / "usr" / "doc"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text(LONG + "\r\nend  ")
    (folder / "b.html.gz").write_bytes(gzip.compress(f"<p>{LONG}</p>".encode()))
    (folder / "stub.txt").write_text("see a.txt")
    (folder / "a.dat").write_text(LONG)
    (folder / "link.txt").symlink_to("sub/a.txt")
    found = texts.documents(tmp_path, ["usr/doc/**/*"])
    assert list(found) == ["b.html", "sub-a.txt"]
    assert found["b.html"].decode() == LONG.strip() + "\n"
    assert found["sub-a.txt"].endswith(b".\nend\n")


def test_a_bible_is_a_document_a_book(tmp_path: Path) -> None:
    blocks, index = b"", b""
    for name in ("Gen", "Exod"):
        block = zlib.compress(f'<div osisID="{name}" type="book"/>{LONG}<note>no</note>'.encode())
        index += struct.pack("<III", len(blocks), len(block), 0)
        blocks += block + b"pad"
    (tmp_path / "ot.bzz").write_bytes(blocks)
    (tmp_path / "ot.bzs").write_bytes(index)
    assert texts.documents(tmp_path, ["*.bzz"]) == {
        f"ot-{name}": LONG.strip().encode() + b"\n" for name in ("Exod", "Gen")
    }


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of one domain, and a mirror that has its package."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    for path, text in {"DEBIAN/control": CONTROL, "usr/doc/a.txt": LONG, "usr/doc/b.txt": LONG + "b"}.items():
        (tmp_path / "package" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / path).write_text(text)
    deb = tmp_path / "tiny.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tmp_path / "package", deb], check=True, capture_output=True)
    table = tmp_path / "texts.toml"
    table.write_text('[tiny]\npackage = "tiny-doc"\nfiles = ["usr/doc/*.txt"]\n')

    def download(package: str, version: str | None, folder: Path) -> Path:
        folder.mkdir()
        return Path(shutil.copy(deb, folder))

    monkeypatch.setattr(texts, "TABLE", table)
    monkeypatch.setattr(texts, "download", download)
    return tmp_path


def test_what_was_pinned_is_fetched_again_and_nothing_else(mirror: Path) -> None:
    texts.main([str(mirror / "first"), "--update-digests"])
    texts.main([str(mirror / "second")])
    found = [
        {path.name: path.read_bytes() for path in (mirror / each / "tiny").iterdir()} for each in ("first", "second")
    ]
    assert found[0] == found[1] == {"a.txt": LONG.strip().encode() + b"\n", "b.txt": LONG.encode() + b"b\n"}
    pinned = (mirror / "texts.toml").read_text()
    for key in ("version", "sha256", "digest"):
        value = texts.tomllib.loads(pinned)["tiny"][key]
        (mirror / "texts.toml").write_text(pinned.replace(value, "0"))
        with pytest.raises(texts.FetchError, match=f"tiny: {key} .* pinned is 0: other texts; --update-digests takes"):
            texts.main([str(mirror / "third")])
    assert not (mirror / "third").exists()
    with pytest.raises(texts.FetchError, match="is there already"):
        texts.main([str(mirror / "first")])


def test_a_domain_is_written_whole_or_not_at_all(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts.main([str(mirror / "first"), "--update-digests"])

    def full(path: Path, text: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            texts.main([str(mirror / "second")])
    assert not (mirror / "second" / "tiny").exists()
    texts.main([str(mirror / "second")])
    assert [path.name for path in (mirror / "second").iterdir()] == ["tiny"]


def test_a_file_in_the_folders_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(ROOT / "scripts" / "fetch_texts.py"), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is no folder: give another" in done.stderr


def test_another_size_has_no_digest_to_be_held_to(mirror: Path) -> None:
    texts.main([str(mirror / "first"), "--update-digests"])
    texts.main([str(mirror / "small"), "--megabytes", "0.002"])
    assert len(list((mirror / "small" / "tiny").iterdir())) == 1


def test_the_table_pins_every_domain() -> None:
    table = texts.tomllib.loads(texts.TABLE.read_text())
    assert len(table) == 6
    assert {tuple(sorted(entry)) for entry in table.values()} == {("digest", "files", "package", "sha256", "version")}


def test_a_package_that_is_not_to_be_had_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 100, "", "E: Version '1' for 'tiny-doc' was not found\n")
    monkeypatch.setattr(texts.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(texts.FetchError, match=r"tiny-doc=1: Version .* was not found; .* --update-digests takes"):
        texts.download("tiny-doc", "1", tmp_path / "new")
