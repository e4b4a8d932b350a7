"""Bytes that are nearly right: the code, and the reader that shares nothing with it, find the same fault or none.

This is what shows that the page says in which order things are checked, and what each fault is called.
"""

import random
from collections.abc import Callable
from typing import Any

import plain_reader as plain
import pytest
from test_vectors import SCOPE, as_a_link, greet, parse_answer, refusal
from vector_files import meant, of

from gossip.core import messages
from gossip.core.identity import Identity

TRIES = 1500
"""Of each form: a second. Thirty thousand showed the same."""
Judged = tuple[str, str]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to three bytes are others, gone, or new."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed) or 1)
        match rng.choice(["other", "other", "gone", "new"]):
            case "other":
                changed[place : place + 1] = rng.randbytes(1)
            case "gone":
                del changed[place : place + 1]
            case "new":
                changed[place:place] = rng.randbytes(1)
    return bytes(changed)


def link(case: dict[str, Any], rng: random.Random) -> Judged:
    """Mutated inside a signature that holds, mostly, so that what comes after it is judged as well."""
    raw, signed = mutated(case["envelope"], rng), mutated(case["signed"], rng)
    if rng.random() < 0.7:
        raw = plain.msgpack.packb([signed, Identity(case["seed"]).sign(plain.DOMAIN + signed)])
    return refusal(as_a_link, raw), refusal(plain.read_statement, raw, SCOPE, "link")


def hello(case: dict[str, Any], rng: random.Random) -> Judged:
    raw = mutated(case["bytes"], rng)
    return refusal(greet, raw), refusal(plain.read_hello, raw, SCOPE)


def request(case: dict[str, Any], rng: random.Random) -> Judged:
    raw = mutated(case["bytes"], rng)
    return refusal(messages.parse_request, raw), refusal(plain.read_request, raw)


def answer(case: dict[str, Any], rng: random.Random) -> Judged:
    raw = mutated(case["answer_bytes"], rng)
    return refusal(parse_answer, raw, case["request"]), refusal(plain.read_answer, raw, case["request"])


@pytest.mark.parametrize(
    ("judge", "vectors"),
    [
        (link, [case for case in of("statements")["good"] if case["kind"] == "link"]),
        (hello, of("messages")["hellos"]),
        (request, of("messages")["requests"]),
        (answer, of("messages")["requests"]),
    ],
    ids=["link", "hello", "request", "answer"],
)
def test_both_readers_find_the_same_fault(
    judge: Callable[[dict[str, Any], random.Random], Judged], vectors: list[dict[str, Any]]
) -> None:
    rng, good = random.Random(1), [meant(case) for case in vectors]
    found = [judge(rng.choice(good), rng) for _ in range(TRIES)]
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert len({ours for ours, _ in found}) >= 2, "nothing was tried but what is right, or nothing but nonsense"
