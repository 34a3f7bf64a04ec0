"""Run many seeds in parallel (`make fuzz`). An interrupted run can be resumed. It prints the timeline of each failed
seed.

`python -m tests.simulator.fuzz 1..500`, from the project's root. A single seed (`7..7`) always prints its timeline.
"""

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulator import (
    elastic_invariants,  # noqa: F401 - add their rows to the table
    kueue_invariants,  # noqa: F401
    placement_invariants,  # noqa: F401
    renting_invariants,  # noqa: F401
    team_invariants,  # noqa: F401
)
from tests.simulator.coverage import all_events, never_seen, table
from tests.simulator.invariants import InvariantChecker
from tests.simulator.simulation import Simulation, SimulationResult

ROOT = Path(__file__).resolve().parents[2]
PROGRESS = ROOT / ".evenkeel" / "fuzz.json"
_CHUNK = 25
_SHOWN = 3


@dataclass
class Chunk:
    """Results of consecutive seeds."""

    first: int
    last: int
    incidents: int = 0
    decisions: int = 0
    virtual_seconds: float = 0.0
    failed: list[SimulationResult] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def run_seed(seed: int, *, is_strict: bool = False) -> SimulationResult:
    return Simulation(seed, InvariantChecker(), is_strict=is_strict).run()


def run_chunk(bounds: tuple[int, int]) -> Chunk:
    """Run the seeds from the first to the last, inclusive."""
    chunk = Chunk(*bounds)
    gc.disable()  # the temporary files of the seeds are deleted with their chunk
    try:
        for seed in range(chunk.first, chunk.last + 1):
            result = run_seed(seed, is_strict=seed == chunk.first)
            chunk.incidents += result.incidents
            chunk.decisions += result.decisions
            chunk.virtual_seconds += result.seconds
            chunk.seen.update(result.seen)
            if result.violations:
                chunk.failed.append(result)
    finally:
        gc.enable()
        gc.collect()
    return chunk


def run_all(first: int, last: int, processes: int) -> Iterator[Chunk]:
    """Run the seeds in chunks, and yield the chunks in their order."""
    bounds = [(start, min(start + _CHUNK - 1, last)) for start in range(first, last + 1, _CHUNK)]
    gc.freeze()  # loaded modules stay, so garbage collection skips them
    if processes == 1 or len(bounds) == 1:
        yield from map(run_chunk, bounds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(run_chunk, bounds)


def fingerprint() -> str:
    """Return a hash of everything that a seed's run depends on."""
    digest = hashlib.sha256()
    for folder in ("shared/evenkeel", "functions", "statemachines", "tests/simulator", "tests/fakes", "tests/template"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".json", ".csv"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update((ROOT / "template.yaml").read_bytes())
    return digest.hexdigest()[:16]


def print_trace(result: SimulationResult) -> str:
    """Print the events of a seed."""
    lines = [f"{at:9.2f}  {text}" for at, text in result.event_log]
    texts = [
        f"seed {result.seed}: {violation.invariant} does not hold: {violation.text}" for violation in result.violations
    ]
    return "\n".join([*lines, *texts, f"again: make fuzz SEEDS={result.seed}..{result.seed}"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("seeds", help="first..last")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--coverage", action="store_true", help="how often each kind of thing happened")
    parser.add_argument("--quiet", action="store_true", help="only the outcome")
    args = parser.parse_args(arguments)
    first, _, last = args.seeds.partition("..")
    return _fuzz(int(first), int(last or first), args.processes, is_quiet=args.quiet, tells_all=args.coverage)


def _fuzz(first: int, last: int, processes: int, *, is_quiet: bool, tells_all: bool) -> int:
    if first == last:
        result = run_seed(first)
        print(print_trace(result))
        return 1 if result.violations else 0
    code, seed_range = fingerprint(), f"{first}..{last}"
    done = _resumed(seed_range, code)
    if done["next"] > first:
        print(f"fuzz: goes on at seed {done['next']}")
    began, before = time.monotonic(), done["seconds"]
    failed = 0
    for chunk in run_all(max(first, done["next"]), last, processes):
        failed += len(chunk.failed)
        for result in chunk.failed[: _SHOWN - failed + len(chunk.failed)]:
            print(print_trace(result) if not is_quiet else "\n".join(print_trace(result).splitlines()[-2:]), flush=True)
        if not failed:
            spent = before + time.monotonic() - began
            done |= {
                "next": chunk.last + 1,
                "seconds": spent,
                "incidents": done["incidents"] + chunk.incidents,
                "decisions": done["decisions"] + chunk.decisions,
                "virtualHours": done["virtualHours"] + chunk.virtual_seconds / 3600,
                "seen": Counter(done["seen"]) + chunk.seen,
            }
            _note(done)
        if failed >= _SHOWN:
            break
    seeds = done["next"] - first
    rate = seeds / max(done["seconds"], 0.001)
    print(
        f"fuzz: {seeds} of {last - first + 1} seeds hold every invariant, {rate:.1f} seeds/s on {processes} processes: "
        f"{done['incidents']} incidents, {done['decisions']} decisions, {done['virtualHours']:.0f} virtual hours"
    )
    counts = Counter(done["seen"])
    if tells_all:
        print(table(counts))
    missing = never_seen(counts)
    kinds = len(set(all_events()))
    print(f"fuzz: {kinds - len(missing)} of {kinds} kinds of things happened")
    if failed:
        print(f"fuzz: {failed} seeds failed")
    return 1 if failed else 0


def _resumed(seeds: str, code: str) -> dict[str, Any]:
    """Return the last completed seed of an interrupted run with the same seeds and code."""
    first = int(seeds.partition("..")[0])
    fresh = {"next": first, "seconds": 0.0, "incidents": 0, "decisions": 0, "virtualHours": 0.0, "seen": {}}
    key = {"seeds": seeds, "code": code}
    document: dict[str, Any]
    try:
        document = json.loads(PROGRESS.read_text())
    except (OSError, ValueError):
        document = {}
    if {name: document.get(name) for name in key} != key or document["next"] > int(seeds.partition("..")[2]):
        document = key | fresh
    return document


def _note(done: dict[str, Any]) -> None:
    PROGRESS.parent.mkdir(exist_ok=True)
    draft = PROGRESS.with_suffix(".draft")
    draft.write_text(json.dumps(done))
    draft.replace(PROGRESS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
