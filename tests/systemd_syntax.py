"""How systemd reads a command line, after systemd.syntax(7) and systemd.service(5), for lines that begin with `:`.

An independent reading of the rules: words are separated by white space, quotes group, escapes as C has them are undone,
then `%%` becomes `%`. With the prefix `:` a `$` stands for itself. What we do not write is not read.
"""

from collections.abc import Iterator

ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}
ESCAPES |= {"s": " "}


def words(line: str) -> list[str]:
    """The words of ExecStart=."""
    assert line.startswith(":"), line
    return [_specifiers(word) for word in _split(line.removeprefix(":"))]


def setting(unit: str, key: str) -> str:
    """The value of a key that a unit has once."""
    (found,) = [line.partition("=")[2] for line in unit.split("\n") if line.startswith(f"{key}=")]
    return found


def _split(text: str) -> Iterator[str]:
    chars, word, quote = iter(text), None, ""
    for char in chars:
        if char == "\\":
            word = (word or "") + _escape(chars)
        elif quote:
            quote, word = ("", word) if char == quote else (quote, (word or "") + char)
        elif char in "\"'":
            quote, word = char, word or ""
        elif char in " \t\n\r":
            if word is not None:
                yield word
            word = None
        else:
            word = (word or "") + char
    assert not quote, text
    if word is not None:
        yield word


def _escape(chars: Iterator[str]) -> str:
    kind = next(chars)
    if kind == "x":
        return chr(int(next(chars) + next(chars), 16))
    return ESCAPES[kind]


def _specifiers(word: str) -> str:
    parts = word.split("%%")
    assert not any("%" in part for part in parts), word
    return "%".join(parts)
