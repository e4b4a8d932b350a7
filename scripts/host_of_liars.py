"""Measures what a host costs the others whose visitors all lie: real nodes in the simulation, one of them so visited.

    python scripts/host_of_liars.py                                # trimmed_mean with f = 1, the default
    python scripts/host_of_liars.py --aggregator mean --f 0
    python scripts/host_of_liars.py --agree                        # and with visits.agreement

Five hosts have a part of the digits each. In every round eight liars take the first host's model, train on digits by
examples/visitors/visit.py, and leave minus ten times what they learned (`--part`: in a part of the coordinates, so
that it seems to agree with the host). Prints one JSON line with held-out losses.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "examples" / "visitors")]

import trio  # noqa: E402
import trio.testing  # noqa: E402
import visit as program  # noqa: E402
from sim_swarm import Member, key_of, swarm  # noqa: E402

from node.system.script_end import ended_in_a_line  # noqa: E402
from node.training.executors import InlineExecutor  # noqa: E402
from node.visits.difference_head import LeftDifference  # noqa: E402
from p2ptrain import aggregate  # noqa: E402
from p2ptrain.tasks.digits import Digits  # noqa: E402

LIE = -10
AGREES = 6.4
"""Times that a fifth of the coordinates is lengthened: 4 would do to outweigh the others, and liars do not know the
host's own steps."""
LOOK_EVERY_S = 0.1
ALL_HELD_OUT = 359


async def lie_to(
    host: Member, name: str, data: program.Floats, rng: np.random.Generator, part: float, lengthened: slice | None
) -> None:
    """Take the host's newest model, train on `data` (n, 65), and leave ten times that, with the opposite sign in this
    part of the coordinates. Those in `lengthened` keep their sign, and are as much longer as makes it agree."""
    visitors = host.node.visitors
    assert visitors is not None
    offload = InlineExecutor(0.0).offload
    version = (await visitors.model_for(b"", "127.0.0.1", offload)).version
    start_d = program.decode(version.payload, program.NUMEL, program.BLOCK)
    trained_d, _ = program.train(start_d, dict(visitors.describe()), data, rng)
    signs_d = np.where(rng.random(program.NUMEL) < part, LIE, -LIE).astype(np.float32)
    if lengthened is not None:
        signs_d[lengthened] = -LIE * AGREES
    payload = program.encode(signs_d * (trained_d - start_d), program.BLOCK)
    key = key_of(name)
    left = LeftDifference(key=key.public_key, round=version.round, model=version.digest, signature=b"", payload=payload)
    run_id = bytes.fromhex(visitors.describe()["run"])
    body = replace(left, signature=key.sign(left.signed(run_id))).to_bytes()
    with visitors.expect(len(body), "127.0.0.1") as place:
        await visitors.take(body, place, offload)


async def losses(given: argparse.Namespace, liars: int, seed: int, folder: Path) -> list[float]:
    """Run the hosts to the end, the first with so many liars a round. Return each one's held-out loss."""
    digits = Digits().train
    rows = torch.cat([digits.images * 16, digits.labels[:, None].float()], dim=1).numpy()
    rng = np.random.default_rng(seed)
    train = {
        "rounds": given.rounds,
        "inner_steps": given.inner_steps,
        "batch_size": 32,
        "learning_rate": 2e-3,
        "epsilon": 3e-2,
        "warmup_steps": 20,
        "eval_every": 10,
        "eval_examples": ALL_HELD_OUT,
        "seed": seed,
    }
    async with swarm(folder, seed=seed) as members:
        hosts = []
        for nth in range(given.hosts):
            sections = {
                "train": train,
                "node": {"shard_count": given.shards, "shard_index": nth},
                "sync": {"aggregator": given.aggregator, "f": given.f},
                "visits": {} if nth else {"listen": "127.0.0.1:8443", "agreement": given.agree},
            }
            hosts.append(await members.start(f"host {nth}", wait_for=given.hosts - 1, **sections))
        for number in range(1, given.rounds - 1) if liars else ():
            while hosts[0].node.state.round < number:  # noqa: ASYNC110  # events of a test's swarm wake nobody
                await trio.sleep(LOOK_EVERY_S)
            for liar in range(liars):
                lengthened = slice(liar, None, liars) if given.lengthened else None
                await lie_to(hosts[0], f"liar {liar}", rows, rng, given.part, lengthened)
        await members.finished()
        if liars:
            assert hosts[0].node.visitors is not None
            assert hosts[0].node.visitors.counts["accepted"] == liars * (given.rounds - 2)
        return [host.eval_loss for host in hosts]


def played(given: argparse.Namespace, liars: int, seed: int) -> Sequence[float]:
    """Return the losses of a run on a virtual clock."""
    with tempfile.TemporaryDirectory() as folder:
        run = partial(losses, given, liars, seed, Path(folder))
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def main() -> None:
    """Print one JSON line."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--hosts", type=int, default=5)
    words.add_argument(
        "--shards", type=int, default=5, help="parts that the digits are cut into, of which each has one"
    )
    words.add_argument("--aggregator", choices=aggregate.names(), default="trimmed_mean")
    words.add_argument("--f", type=int, default=1)
    words.add_argument("--part", type=float, default=1.0, help="the part of the coordinates that has the other sign")
    words.add_argument(
        "--lengthened", action="store_true", help="each liar of five agrees by large values, which trimming leaves out"
    )
    words.add_argument("--agree", action="store_true", help="visits.agreement")
    words.add_argument("--liars", type=int, default=8, help="in each round")
    words.add_argument("--rounds", type=int, default=60)
    words.add_argument("--inner-steps", type=int, default=20)
    words.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    given = words.parse_args()
    without = [played(given, 0, seed) for seed in given.seeds]
    lied_to = [played(given, given.liars, seed) for seed in given.seeds]
    ratios = [fmean(after) / fmean(before) for before, after in zip(without, lied_to, strict=True)]
    told = {
        "aggregator": given.aggregator,
        "f": given.f,
        "agreement": given.agree,
        "part": given.part,
        "without": [round(fmean(each), 4) for each in without],
        "with": [round(fmean(each), 4) for each in lied_to],
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio": round(fmean(ratios), 4),
        "host_itself": [round(each[0], 4) for each in lied_to],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
