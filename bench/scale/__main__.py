"""`python -m bench.scale`: what each part of the service costs as the fleet grows, in modelled time on AWS.

    python -m bench.scale --quick      a minute: 100 and 1,000 nodes
    python -m bench.scale              longer: up to 10,000 nodes and 10,000 jobs

The real handlers run on in-memory ports. Each port reports the calls that its adapter would make, and each call waits
in modelled time (`bench/setups/scale.json`). Calls, bytes and processor time are counted; times on AWS are modelled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.cpu_usage import Usage
from bench.origin import describe_origin, write_figures
from bench.scale import bill, client_costs, each_function, report
from bench.scale.fleet import FleetSize
from bench.scale.functions import MEASURED, cold_start, limits
from bench.scale.model import load_setup, setup_hash
from bench.scale.scenarios import Bench, CaseFigures

OUTPUT: Final = Path(__file__).parents[1] / "results" / "scale.json"
QUICK: Final = (FleetSize(100, 100), FleetSize(1_000, 1_000))
STARTS: Final = 5
"""Number of measured starts of each function."""
FULL: Final = (
    FleetSize(100, 10),
    FleetSize(100, 100),
    FleetSize(1_000, 1_000),
    FleetSize(2_000, 2_000),
    FleetSize(10_000, 10_000),
)

Say = Callable[[str], None]


def main(words: Sequence[str] | None = None) -> int:
    """Measure all cases at all sizes, print, and write the figures."""
    arguments = _arguments(words)
    began, before = time.monotonic(), Usage.now()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - began:5.1f}s  {text}", file=sys.stderr, flush=True)

    say("measuring the clients of AWS and Kubernetes")
    clients = client_costs.measure_clients()
    say("measuring the imports of the functions")
    functions = limits() if arguments.case == "functions" else MEASURED
    starts = {name: cold_start(name, STARTS) for name in functions}
    bench = Bench(load_setup(), clients, starts, arguments.seed)
    sizes = arguments.size or (QUICK if arguments.quick else FULL)
    results = [*_run(bench, sizes, arguments.case, say)]
    print("\n".join(report.report_lines(results)))
    used = {}
    if arguments.case == "functions":
        for size in sizes:
            say(f"functions, {size}")
            used[str(size.nodes)] = each_function.measure_each_function(bench, size)
            print("\n".join(each_function.report_lines(used[str(size.nodes)])))
    bills = _bills(bench, results) if not arguments.case else {}
    print("\n".join(report.bill_lines(bills)))
    print()
    for verdict in report.judge_results(results):
        if not verdict.is_met or arguments.all_aims:
            print(f"  {verdict}")
    others_share = Usage.now().others_since(before)
    print(f"\nOther programs used {others_share:.0%} of the processors meanwhile.")
    document = _document(arguments, bench, results, others_share) | {"bills": bills}
    document["functions"] = {nodes: each_function.to_json(use) for nodes, use in used.items()}
    write_figures(arguments.output, document)
    return 0


def _run(bench: Bench, sizes: Sequence[FleetSize], only: str, say: Say) -> Iterator[CaseFigures]:
    for size in sizes:
        cases: dict[str, Callable[[FleetSize], CaseFigures]] = {
            "event": bench.one_event,
            "watch": lambda size: bench.one_invocation("watch", "watch_cluster", size),
            "cycle": lambda size: bench.one_invocation("cycle", "schedule_jobs", size),
            "sweep": lambda size: bench.one_invocation("sweep", "sweep_fleet", size),
            "storm": bench.storm,
            "settle": bench.settle,
        }
        if only == "queue":
            cases["queue"] = bench.long_queue
        for name, measure in cases.items():
            if only in ("", name):
                say(f"{name}, {size}")
                yield measure(size)


def _bills(bench: Bench, results: Sequence[CaseFigures]) -> dict[str, Any]:
    """Return the bill of a recovery, and of a quiet month at each size with as many jobs as nodes."""
    recovery, counted = bill.recovery_bill(bench.setup, bench.clients.costs, nodes=100)
    months = {
        str(size.nodes): bill.monthly_bill(bench.setup, results, size).to_json()
        for size in dict.fromkeys(result.size for result in results)
        if size.nodes == size.jobs
    }
    return {"recovery": recovery.to_json(), "recoveryCounts": counted, "quietMonth": months}


def _document(
    arguments: argparse.Namespace, bench: Bench, results: Sequence[CaseFigures], others_share: float
) -> dict[str, Any]:
    return {
        **describe_origin("bench.scale", arguments.words or None, [arguments.seed]),
        "setup": setup_hash(),
        "othersShare": round(others_share, 2),
        "objectBytes": {
            "node": bench.clients.sizes.node,
            "pod": bench.clients.sizes.pod,
            "workload": bench.clients.sizes.workload,
        },
        "coldStarts": {
            name: {
                "processorSeconds": round(cold_start.processor_seconds, 3),
                "memoryMB": round(cold_start.memory_bytes / 1e6, 1),
            }
            for name, cold_start in bench.cold_starts.items()
        },
        "results": [report.to_json(result) for result in results],
    }


def _size(text: str) -> FleetSize:
    nodes, _, jobs = text.partition(",")
    return FleetSize(int(nodes), int(jobs or nodes))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description="Calls, bytes, processor time and modelled time by size of the fleet."
    )
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 nodes only")
    parser.add_argument("--size", type=_size, action="append", help="a size, NODES or NODES,JOBS; may be repeated")
    cases = ("", "event", "watch", "cycle", "sweep", "storm", "settle", "queue", "functions")
    parser.add_argument(
        "--case", default="", choices=cases, help="one case; `queue` and `functions` run only if they are named"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the modelled latencies (default 1)")
    parser.add_argument("--all-aims", action="store_true", help="also print the aims that the run meets")
    parser.add_argument("--output", type=Path, help=f"file for the figures as JSON, for example {OUTPUT.name}")
    arguments = parser.parse_args(words)
    arguments.words = words
    return arguments


if __name__ == "__main__":
    sys.exit(main())
