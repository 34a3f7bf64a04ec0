"""`make soak`: run all drills in random order at random times, and report every check."""

from __future__ import annotations

import argparse
import random
import sys
import time

from evenkeel_local import PROJECT
from evenkeel_local.data_centre import DataCentre, FleetShape
from evenkeel_local.drills import SHARED, run
from evenkeel_local.processes import interruptible


def main() -> int:
    """Run the drills; return 0 if every check passed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--drills", type=int, default=20, help="number of drills (20)")
    options.add_argument("--seed", type=int, default=None, help="seed of the faults, times and nodes (random)")
    options.add_argument("--only", choices=sorted(SHARED), help="run only this drill")
    options.add_argument("--nodes", type=int, default=5, help="nodes of the data centre (5)")
    args = options.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f"soak: {args.drills} drills, seed {seed}", flush=True)
    try:
        with interruptible():
            return _soak(args.drills, seed, args.only, args.nodes)
    except KeyboardInterrupt:
        return 130


def _soak(count: int, seed: int, only: str | None, nodes: int) -> int:
    dice = random.Random(seed)
    names = [only] if only else sorted(SHARED)
    began, failed_count = time.monotonic(), 0
    with DataCentre.start(PROJECT / ".evenkeel" / "soak", fleet=FleetShape(nodes=nodes), say=_say) as centre:
        for number in range(1, count + 1):
            # Each round runs every drill once, in random order.
            if (number - 1) % len(names) == 0:
                dice.shuffle(names)
            drill = SHARED[names[(number - 1) % len(names)]]
            drill_seed = dice.randrange(10**6)
            result = run(drill, centre, seed=drill_seed)
            failed_count += not result.is_ok
            took = "  ".join(f"{name} {seconds:.1f}s" for name, seconds in result.seconds.items())
            glyph = "●" if result.is_ok else "✖"
            print(
                f"{glyph} {number:>3}/{count} {drill.name:<14} seed {drill_seed:<7} {result.job_id}  {took}", flush=True
            )
            for failure in result.failures():
                print(f"      ✖ {failure}", flush=True)
    print(f"{count - failed_count} passed, {failed_count} failed, in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed_count else 0


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
