"""A hundred phones with thirteen digits each visit a host, and no phone's whole data can be told from its model.

    python examples/private_phones.py
    python examples/private_phones.py --liars 0.1        # a tenth leave minus ten times what they learned
    python examples/private_phones.py --without-noise    # the same visits, of which nothing is hidden

The host is a node in a process of its own, with 72 digits of its own, a certificate and `[visits]`. The phones are
`examples/visitors/visit.py`, over HTTPS: each takes the model, trains some steps on its own digits, and leaves the
difference. The host clips each difference to the norm CLIP, sums SUM of them, and adds noise to the sum: user-level
differential privacy (DP-FedAvg, McMahan et al., 1710.06963; FedBuff, 2106.06639). A phone that has spent its epsilon is
refused. At the end the accuracy is that of the model in the host's checkpoint, and epsilon is the ledger's.

Who is trusted: the host, which sees each difference as it is and draws the noise, such as a clinic's machine with the
phones of its patients. Nobody else is: who sees the models, all of them, learns of a phone what epsilon allows.
"""

import argparse
import datetime
import hashlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nacl.signing import SigningKey
from torch import nn

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "visitors"))  # a program of its own, which nobody installs
import visit  # noqa: E402

import p2ptrain  # noqa: E402
from node.visits.visitor_ledger import epsilon_of_sum, read_visitor_ledger  # noqa: E402
from p2ptrain.tasks import Batch, Shard  # noqa: E402
from p2ptrain.tasks.digits import Digits  # noqa: E402

PHONES: Final = 100
DIGITS: Final = 13
"""Of each phone."""
HOST_SHARDS: Final = 20
"""The host has one of so many parts of the digits."""
SUM: Final = 48
"""Phones in a sum."""
CLIP: Final = 0.5
NOISE: Final = 1.15
"""With epsilon 8 a phone is in four sums."""
DELTA: Final = 1e-3
"""Less than one over the number of phones."""
LIE: Final = -10
ROUNDS: Final = 12
INNER_STEPS: Final = 10
WAITS_S: Final = 120.0
"""How long the host waits for its phones, and they for its end."""
LOOK_S: Final = 0.05
PAUSE_S: Final = 0.2
NO_MORE: Final = 1 << 40
"""Visits: nobody comes any more, and the host need not wait."""
ALONE: Final = 5
"""Phones that train by themselves, without noise, to compare with."""
ALONE_STEPS: Final = 100


class AwaitedDigits(Digits):
    """The digits of a host that begins each round once a sum's visits have come: on a slow machine, too."""

    def __init__(self, taken: Path) -> None:
        """`taken`: a file with the number of visits so far, or more where no further one can come."""
        super().__init__()
        self._taken, self._steps = taken, 0

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the batch's mean loss."""
        if model.training:
            rounds, self._steps = self._steps // INNER_STEPS, self._steps + 1
            ends = time.monotonic() + WAITS_S
            while rounds > 1 and self._visits() < (rounds - 1) * SUM and time.monotonic() < ends:
                time.sleep(LOOK_S)
        return super().loss(model, batch)

    def _visits(self) -> int:
        return int(self._taken.read_text()) if self._taken.exists() else 0


def create(taken: str) -> AwaitedDigits:
    """Return the host's task."""
    return AwaitedDigits(Path(taken))


def main() -> None:
    """Run the host and its phones, and print what was spent and learned as one JSON line."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--epsilon", type=float, default=8.0, help="what each phone may spend")
    words.add_argument("--liars", type=float, default=0.0, help="the part of the phones that lie")
    words.add_argument("--without-noise", action="store_true", help="protect nothing, to compare with")
    words.add_argument("--rounds", type=int, default=ROUNDS, help="of the host")
    words.add_argument("--seed", type=int, default=0, help="of the model and of whose digits are whose; noise has none")
    given = words.parse_args()
    if not 0 <= given.liars <= 1:
        words.error("--liars is from 0 to 1")
    torch.set_num_threads(1)
    epsilon = None if given.without_noise else given.epsilon
    with TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), epsilon, given.liars, given.rounds, given.seed)), flush=True)


def run(folder: Path, epsilon: float | None, liars: float, rounds: int, seed: int) -> dict[str, object]:
    """Return what the phones have spent, and what they and the host have learned. `epsilon`: None protects nothing."""
    task, phones = Digits(), phones_of(seed)
    certificate = certificate_in(folder)
    os.environ["SSL_CERT_FILE"] = str(certificate)  # as an authority that the phones know
    with host_in(folder, certificate, epsilon, rounds, seed) as (url, host):
        told = visits_of(phones, url, host, folder / "taken", liars=round(liars * len(phones)), seed=seed)
    ledger = read_visitor_ledger(folder / "run" / "node" / "visitors.jsonl")
    model = task.build_model()
    alone = [accuracy(task, model, trained_alone(model, phone, seed)) for phone in phones[:ALONE]]
    model.load_state_dict(p2ptrain.load(folder / "run"))
    return {
        "phones": len(phones),
        "liars": round(liars * len(phones)),
        **told,
        "sums": ledger.mark.entries,
        "epsilon": round(epsilon_of_sum(ledger.most(), DELTA), 3) if epsilon else None,
        "delta": DELTA,
        "accuracy": round(task.accuracy(model), 3),
        "accuracy_of_one_alone": round(sum(alone) / len(alone), 3),
    }


def phones_of(seed: int) -> list[visit.Floats]:
    """Return the digits of each phone (DIGITS, 65): pixels and label. None is the host's."""
    task = Digits()
    left = [task.examples(Shard(index=nth, count=HOST_SHARDS)) for nth in range(1, HOST_SHARDS)]
    order = np.random.default_rng(seed).permutation(np.concatenate(left))[: PHONES * DIGITS]
    rows = torch.cat([task.train.images * 16, task.train.labels[:, None].float()], dim=1).numpy()
    return list(rows[order].astype(np.float32).reshape(PHONES, DIGITS, -1))


@contextmanager
def host_in(
    folder: Path, certificate: Path, epsilon: float | None, rounds: int, seed: int
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a host in `folder`; yield its URL. It has ended by itself when the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    noise = {"noise": NOISE, "clip": CLIP, "delta": DELTA, "epsilon": epsilon, "trim": 0, "buffer": SUM}
    settings = {
        "train.rounds": rounds,
        "train.inner_steps": INNER_STEPS,
        "train.learning_rate": 5e-3,
        "train.schedule": "constant",
        "train.warmup_steps": 5,
        "train.threads": 1,
        "train.seed": seed,
        "task.taken": folder / "taken",
        "node.shard_index": 0,
        "node.shard_count": HOST_SHARDS,
        "network.mdns": "false",
        "visits.listen": f"127.0.0.1:{port}",
        "visits.certificate": certificate,
        "visits.key": certificate.with_name("key.pem"),
        "visits.most_a_round": PHONES,
        "visits.most_of_network": PHONES,
        "visits.share": 1,
        **({f"visits.{name}": value for name, value in noise.items()} if epsilon else {}),
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "p2ptrain", "node", "--task", "private_phones:create", "--run-dir", "run"]
    paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    said = folder / "host.log"
    with said.open("wb") as log:
        host = subprocess.Popen([*command, *options], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield f"https://127.0.0.1:{port}", host
            if host.wait(WAITS_S):
                raise SystemExit(f"the host has ended: {said.read_text(errors='replace')[-500:]}")
        finally:
            host.kill()
            host.wait()


def visits_of(
    phones: list[visit.Floats], url: str, host: subprocess.Popen[bytes], file: Path, *, liars: int, seed: int
) -> dict[str, object]:
    """Let the phones visit, one after another in another order each time, until the host ends or refuses all of them.
    `file` gets their number. Return how many differences were taken, and why the others were refused."""
    keys, refused = [SigningKey.generate() for _ in phones], Counter[str]()
    models: list[visit.Model | None] = [None] * len(phones)
    rng, taken, due, spent = np.random.default_rng(seed), 0, 0, set[int]()
    while host.poll() is None and (not spent or len(phones) - len(spent) >= SUM):
        before = taken
        for nth in rng.permutation(len(phones)).tolist():
            if nth in spent:
                continue
            try:
                models[nth] = visit_once(url, keys[nth], phones[nth], models[nth], rng, lies=nth < liars)
                taken, due = taken + 1, due + 1
                tell(file, due)
            except SystemExit as error:
                words = str(error).removeprefix("refused: ")
                refused[words] += 1
                if "privacy budget" in words:
                    spent.add(nth)
            except visit.WRONG:  # it starts, or has ended
                if host.poll() is not None:
                    break
                time.sleep(PAUSE_S)
        if taken and taken == before:  # all who may come have come: the host's next round need not wait
            tell(file, due := (due // SUM + 1) * SUM)
            time.sleep(PAUSE_S)
    tell(file, NO_MORE)
    return {"visits": taken, "refused": dict(refused), "phones_spent": len(spent)}


def tell(file: Path, taken: int) -> None:
    """Write how many visits there were, so that a reader never finds half of it."""
    beside = file.with_suffix(".new")
    beside.write_text(str(taken))
    beside.replace(file)


def visit_once(
    url: str, key: SigningKey, data: visit.Floats, have: visit.Model | None, rng: np.random.Generator, *, lies: bool
) -> visit.Model:
    """Visit as `visit.py` does. Return the model that the host gave. SystemExit where it refuses."""
    host, public = visit.Host(url), bytes(key.verify_key)
    asked = host.visit(public)
    model = host.model(have)
    start = visit.decode(model.payload, visit.NUMEL, visit.BLOCK)
    trained, _ = visit.train(start, asked, data, rng)
    payload = visit.encode((trained - start) * (LIE if lies else 1), visit.BLOCK)
    head = public + model.round.to_bytes(8, "little") + model.digest
    signed = b"p2ptrain-visit-1\0" + asked["run"] + head + hashlib.sha256(payload).digest()
    host.ask("/v1/difference", head + key.sign(signed).signature + payload)
    return model


def trained_alone(model: nn.Module, phone: visit.Floats, seed: int) -> visit.Floats:
    """Return what a phone learns from its own digits (numel,), in many steps and without noise."""
    start = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    alone = {"steps": ALONE_STEPS, "batch_size": DIGITS, "learning_rate": 5e-3, "clip_norm": 1.0}
    return visit.train(start, alone, phone, np.random.default_rng(seed))[0]


def accuracy(task: Digits, model: nn.Module, model_d: visit.Floats) -> float:
    """Return the share of the held-out digits that a model (d,) names rightly. The given one stays as it is."""
    kept_d = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(torch.from_numpy(model_d), model.parameters())
    found = task.accuracy(model)
    nn.utils.vector_to_parameters(kept_d, model.parameters())
    return found


def certificate_in(folder: Path) -> Path:
    """Make a certificate of 127.0.0.1's own, and its key beside it; return its file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    (file := folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return file


if __name__ == "__main__":
    main()
