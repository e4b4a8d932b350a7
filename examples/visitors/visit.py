"""Visit a p2ptrain node: take its model of the digits, train some steps on data of one's own, leave the difference.

    python visit.py http://127.0.0.1:8443 my_digits.csv --state visitor

The data file has a digit a line: 64 pixels from 0 to 16 and the label, with commas between. `--state` is a folder for
the visitor's key and its model. It needs numpy and PyNaCl, and no p2ptrain. docs/visits.md describes the interface.
"""

import argparse
import hashlib
import json
import sys
import urllib.request
import zlib
from http.client import HTTPException
from math import erf, pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from nacl.signing import SigningKey

Floats = npt.NDArray[np.float32]
BETAS, EPSILON = (0.9, 0.95), 3e-2  # of Adam, as the node's task has them
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "4.weight", "4.bias", "6.weight", "6.bias")
LAYOUT = dict(zip(NAMES, ([64, 64], [64], [64], [64], [64, 64], [64], [64], [64], [10, 64], [10]), strict=True))
NUMEL, BLOCK, PAYLOAD_BYTES, MOST_TEXT = 9226, 1024, 4 * 10 + 9226, 1 << 20
WRONG = (ArithmeticError, HTTPException, LookupError, OSError, RecursionError, TypeError, ValueError, zlib.error)
_erf = np.vectorize(erf, otypes=[np.float32])


class Model(NamedTuple):
    """The node's model: its bytes, and the round that begins with it."""

    payload: bytes
    round: int

    @property
    def digest(self) -> bytes:
        """Return what it is known by."""
        return hashlib.sha256(self.payload).digest()


def decode(payload: bytes, numel: int, block: int) -> Floats:
    """Return the values (numel,) of a payload."""
    scales = np.frombuffer(payload[: 4 * (blocks := -(-numel // block))], "<f4")
    return np.repeat(scales, block)[:numel] * np.frombuffer(payload[4 * blocks :], np.int8)


def encode(x: Floats, block: int) -> bytes:
    """Return the payload of values (numel,): scales of blocks, fp32, then a signed byte a value."""
    scales = np.array([np.abs(x[at : at + block]).max() / 127 for at in range(0, len(x), block)], "<f4")
    steps = np.repeat(np.where(scales > 0, scales, 1), block)[: len(x)]
    return scales.tobytes() + np.rint(x / steps).astype(np.int8).tobytes()


def changed(older: bytes, difference: bytes, blocks: int) -> bytes:
    """Return the bytes of a newer model, from those of an older one and the difference."""
    raw = zlib.decompressobj().decompress(difference, len(older))
    before, change = (np.frombuffer(each[4 * blocks :], np.uint8) for each in (older, raw))
    return raw[: 4 * blocks] + (before + change).tobytes()


def gradient(w: dict[str, Floats], images: Floats, labels: npt.NDArray[np.int64]) -> tuple[float, dict[str, Floats]]:
    """Return a batch's mean cross entropy, and its gradient by name: linear, norm, GELU, twice, and linear."""
    x, kept, grads = images, [], {}
    for linear, norm in (("0", "1"), ("3", "4")):
        h = x @ w[f"{linear}.weight"].T + w[f"{linear}.bias"]
        spread = np.sqrt(h.var(axis=1, keepdims=True) + 1e-5)
        unit = (h - h.mean(axis=1, keepdims=True)) / spread
        y = unit * w[f"{norm}.weight"] + w[f"{norm}.bias"]
        share = (1 + _erf(y / sqrt(2))) / 2
        kept.append((linear, norm, x, spread, unit, share + y * np.exp(-(y**2) / 2) / sqrt(2 * pi)))
        x = y * share
    odds = np.exp((logits := x @ w["6.weight"].T + w["6.bias"]) - logits.max(axis=1, keepdims=True))
    odds, rows = odds / odds.sum(axis=1, keepdims=True), np.arange(len(labels))
    loss = float(-np.log(odds[rows, labels] + 1e-12).sum() / len(rows))
    back = (odds - np.eye(10, dtype=np.float32)[labels]) / len(rows)
    grads["6.weight"], grads["6.bias"] = back.T @ x, back.sum(axis=0)
    back = back @ w["6.weight"]
    for linear, norm, x, spread, unit, slope in reversed(kept):
        back = back * slope
        grads[f"{norm}.weight"], grads[f"{norm}.bias"] = (back * unit).sum(axis=0), back.sum(axis=0)
        back = back * w[f"{norm}.weight"]
        mean, along = (each.mean(axis=1, keepdims=True) for each in (back, back * unit))
        back = (back - mean - unit * along) / spread
        grads[f"{linear}.weight"], grads[f"{linear}.bias"] = back.T @ x, back.sum(axis=0)
        back = back @ w[f"{linear}.weight"]
    return loss, grads


def train(start: Floats, visit: dict[str, Any], data: Floats, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return the model after the steps that the node asks for, by Adam, and the mean loss of these steps."""
    x, mean, square, losses = start.copy(), np.zeros_like(start), np.zeros_like(start), []
    parts = np.split(x, np.cumsum([np.prod(shape) for shape in LAYOUT.values()])[:-1])  # views of x
    w = {name: part.reshape(LAYOUT[name]) for name, part in zip(NAMES, parts, strict=True)}
    for step in range(1, visit["steps"] + 1):
        chosen = data[rng.integers(0, len(data), visit["batch_size"])]
        loss, grads = gradient(w, chosen[:, :64] / 16, chosen[:, 64].astype(np.int64))
        losses.append(loss)
        g = np.concatenate([grads[name].ravel() for name in NAMES])
        g *= min(1.0, visit["clip_norm"] / (float(np.linalg.norm(g)) + 1e-12)) if visit["clip_norm"] else 1.0
        mean, square = mean + (1 - BETAS[0]) * (g - mean), square + (1 - BETAS[1]) * (g**2 - square)
        rate = visit["learning_rate"] / (1 - BETAS[0] ** step)
        x -= rate * mean / (np.sqrt(square / (1 - BETAS[1] ** step)) + EPSILON)
    return x, sum(losses) / len(losses)


class Host:
    """The node that is visited. It may answer anything: what makes no sense raises one of WRONG."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._token, self.bytes = url.rstrip("/"), token, 0  # bytes of bodies, in both directions

    def ask(self, path: str, body: bytes | None = None, most: int = MOST_TEXT) -> tuple[bytes, Any]:
        """Return an answer's body, of so many bytes at most, and headers. Exits with the node's words if it refuses."""
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(f"{self._url}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read(most + 1)
        except urllib.request.HTTPError as error:
            said = str(json.loads(error.read(MOST_TEXT))["error"])[:200]
            raise SystemExit(f"refused: {''.join(filter(str.isprintable, said))}") from None
        if len(text) > most:
            raise ValueError(f"more than {most} bytes")
        self.bytes += len(text) + len(body or b"")
        return text, answer.headers

    def visit(self, key: bytes) -> dict[str, Any]:
        """Return what there is to do, within what this program would do. Exits if a difference would be refused now."""
        visit: dict[str, Any] = json.loads(self.ask(f"/v1/visit?key={key.hex()}")[0])
        layout = {part["name"]: part["shape"] for part in visit["parameters"]}
        if visit["version"] != 1 or list(layout.items()) != list(LAYOUT.items()) or visit["block"] != BLOCK:
            raise SystemExit("this program trains the digits' model; the node has another one")
        for name, most in (("steps", 10_000), ("batch_size", 1024), ("learning_rate", 100), ("clip_norm", 1e9)):
            if not 0 <= visit[name] <= most:
                raise ValueError(f"{name} is not from 0 to {most}")
        return {**visit, "run": bytes.fromhex(visit["run"])}

    def model(self, have: Model | None) -> Model:
        """Return the newest model."""
        path = "/v1/model" if have is None else f"/v1/model?have={have.digest.hex()}"
        text, head = self.ask(path, most=PAYLOAD_BYTES)
        if have is not None and (form := head["p2ptrain-form"]) != "whole":
            text = have.payload if form == "same" else changed(have.payload, text, -(-NUMEL // BLOCK))
        model = Model(text, int(head["p2ptrain-round"]))
        if len(text) != PAYLOAD_BYTES or model.digest.hex() != head["p2ptrain-model"]:
            raise ValueError("the model that arrived is another one than the node says")
        return model


def key_of(file: Path) -> SigningKey:
    """Return the visitor's key, made if there is none; a full disk leaves an empty file."""
    if not file.exists() or not file.stat().st_size:
        file.touch(0o600)
        file.write_bytes(bytes(SigningKey.generate()))
    return SigningKey(file.read_bytes())


@np.errstate(invalid="raise")  # one of WRONG: a model that is no numbers, or becomes none
def main() -> None:
    """Visit once, and print the round, the loss and the bytes."""
    words = argparse.ArgumentParser(description="Train some steps with a p2ptrain node.")
    words.add_argument("url")
    for name, default in (("data", None), ("--state", Path("visitor")), ("--token-file", None)):
        words.add_argument(name, type=Path, default=default)
    given = words.parse_args()
    try:
        given.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, file = key_of(given.state / "key"), given.state / "model"
        host = Host(given.url, given.token_file.read_text().strip() if given.token_file else "")
        kept = file.read_bytes() if file.exists() else b""
        data = np.loadtxt(given.data, delimiter=",", dtype=np.float32, ndmin=2, usecols=range(65))
        if not len(data) or not np.isfinite(data).all() or not np.isin(data[:, 64], range(10)).all():
            raise ValueError(f"{given.data} has no digits")
    except (OSError, ValueError) as error:
        raise SystemExit(f"cannot visit with {given.data} and the folder {given.state}: {error}") from None
    try:
        visit = host.visit(bytes(key.verify_key))
        model = host.model(Model(kept, 0) if len(kept) == PAYLOAD_BYTES else None)
        try:
            file.write_bytes(model.payload)
        except OSError as error:  # the next visit fetches all of it
            print(f"the model is not kept in {file}: {error}", file=sys.stderr)
        start = decode(model.payload, NUMEL, BLOCK)
        trained, loss = train(start, visit, data, np.random.default_rng())
        payload = encode(trained - start, BLOCK)
        head = bytes(key.verify_key) + model.round.to_bytes(8, "little") + model.digest
        signed = b"p2ptrain-visit-1\0" + visit["run"] + head + hashlib.sha256(payload).digest()
        host.ask("/v1/difference", head + key.sign(signed).signature + payload)
    except WRONG as error:
        raise SystemExit(f"no answer of a p2ptrain node from {given.url}: {error}") from None
    print(json.dumps({"round": model.round, "loss": round(loss, 4), "bytes": host.bytes}))


if __name__ == "__main__":
    main()
