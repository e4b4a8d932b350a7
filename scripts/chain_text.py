"""Writes a text that no model can learn beyond a known loss: a chain of eight letters with four equally likely
successors.

python scripts/chain_text.py chain.txt

No model does better than ln 4 = 1.386 nats a letter, and a small one comes close within a hundred steps. What liars
cost stands out against that floor, and not against a curve that still falls.
"""

import random
import sys
from pathlib import Path
from typing import Final

from node.system.script_end import ended_in_a_line

LETTERS: Final = "abcdefgh"
SUCCESSORS: Final = 4
LENGTH: Final = 100_000


def chain(length: int = LENGTH, seed: int = 0) -> str:
    """Return so many letters of the chain that belongs to a seed."""
    rng = random.Random(seed)
    followers = {letter: rng.sample(LETTERS, SUCCESSORS) for letter in LETTERS}
    letters = [LETTERS[0]]
    while len(letters) < length:
        letters.append(rng.choice(followers[letters[-1]]))
    return "".join(letters)


if __name__ == "__main__":
    with ended_in_a_line():
        if len(sys.argv) != 2:
            raise SystemExit("usage: python scripts/chain_text.py FILE")
        Path(sys.argv[1]).write_text(chain(), encoding="ascii")
