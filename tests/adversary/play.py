"""Play one seed of the adversary, or a plan's file: `python tests/adversary/play.py 123`.

Prints what was broken, and the shortest list of moves that still breaks it. `--events` prints all that honest nodes
told; `--save FOLDER` keeps the shortest plan there, and `--plan FILE` plays it again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """0 where every invariant held."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # as in all tests: sets of strings have one order
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]
    from adversary_plan import Plan, draw
    from adversary_run import play, shortest

    options = _options()
    plans = [Plan.load(path) for path in options.plan] + [draw(seed) for seed in _seeds(options.seeds)]
    failed = 0
    for plan in plans:
        began = time.process_time()
        outcome = play(plan, keep_events=options.events)
        took = time.process_time() - began
        scenario = plan.scenario
        words = f"{scenario.kind} {scenario.honest}+{scenario.hostile} f={scenario.f}"
        print(
            f"seed {plan.seed}: {words}, {len(plan.moves)} moves, {outcome.seconds:.0f} s, loss {outcome.loss:.4g}"
            f" (clean {outcome.clean_loss:.4g}), {took:.1f} s of cpu, {outcome.digest[:8]}"
            f" {'FAILED ' + ' '.join(outcome.names) if outcome.names else 'ok'}",
            flush=True,
        )
        for line in (*outcome.events, *(f"  {each}" for each in outcome.violations)):
            print(line)
        if outcome.names and options.shrink:
            plan = shortest(outcome)
            print(f"  the shortest that breaks `{outcome.names[0]}`: {plan.scenario}")
            for each in plan.moves:
                print(f"    {each}")
        failed += bool(outcome.names)
        if outcome.names and options.save is not None:
            name = f"{plan.scenario.kind}-{outcome.names[0]}-{plan.seed}.json"
            (options.save / name).write_text(plan.to_json() + "\n", "utf-8")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", help="numbers, or ranges such as 0-39")
    parser.add_argument("--plan", type=Path, action="append", default=[])
    parser.add_argument("--save", type=Path)
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--events", action="store_true")
    return parser.parse_args()


def _seeds(texts: list[str]) -> list[int]:
    found: list[int] = []
    for text in texts:
        first, _, last = text.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
