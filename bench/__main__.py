"""`python -m bench`: measure, print, compare with the committed baseline."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import event_to_cordon
from bench.cordon_timer import BenchFailed
from bench.event_to_cordon import AIM, AIMED, LatencyReport
from bench.figures import RegressionLimit, quantile, regressions
from bench.origin import describe_origin, write_figures
from evenkeel_local import PROJECT
from evenkeel_local.processes import interruptible

BASELINE: Final = Path(__file__).parent / "results" / "event_to_cordon.json"
RUN_DIR: Final = PROJECT / ".evenkeel" / "bench"
BUSY: Final = 0.5
"""Share of processor time of other programs above which a run is not compared."""
OUTPUT: Final = PROJECT / ".evenkeel" / "event_to_cordon.json"


def main(words: Sequence[str] | None = None) -> int:
    """Return 0; 1 if a ratio exceeds the limit of its baseline; 2 if nothing could be measured or compared."""
    arguments = _arguments(words)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - began:5.1f}s  {text}", file=sys.stderr, flush=True)

    try:
        with interruptible():
            report = event_to_cordon.run(
                RUN_DIR, rounds=arguments.rounds, warm_up=arguments.warm_up, cold_rounds=arguments.cold_rounds, say=say
            )
    except BenchFailed as failed:
        print(f"bench: {failed}. Logs: {RUN_DIR}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted, everything is ended", file=sys.stderr)
        return 130
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    baseline: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    print("\n".join(report_lines(report, baseline["ratios"])))
    print(f"\nSamples: {arguments.output}")
    print(f"Other programs used {report.others:.0%} of the processors meanwhile.")
    if report.others > BUSY:
        print(f"Too busy to compare (at most {BUSY:.0%}): a lane with more calls waits more for its processor.")
        return 2
    if arguments.update:
        baseline |= {
            **describe_origin("bench", words, []),
            "rounds": arguments.rounds,
            "coldRounds": arguments.cold_rounds,
            "othersShare": round(report.others, 2),
            "ratios": report.ratios(),
        }
        write_figures(BASELINE, baseline)
        print(f"Baseline written: {BASELINE}")
        return 0
    limits = {
        name: RegressionLimit(baseline["ratios"][name], tolerance)
        for name, tolerance in baseline["tolerances"].items()
        if name in baseline["ratios"]
    }
    worse = regressions(report.ratios(), limits)
    for sentence in worse:
        print(f"REGRESSION: {sentence}")
    if not worse:
        print("Within the baseline's tolerances.")
    return 1 if worse else 0


def report_lines(report: LatencyReport, baseline: dict[str, float]) -> list[str]:
    """Return the report as lines: ratios first, then the time of each stage on this machine."""
    lines = ["", "EVENT → NODE UNSCHEDULABLE, one run, one engine", ""]
    lines.append(f"  {'ratio':<36}{'p50':>7}  {'95 % interval':>14}{'p99':>8}{'baseline p50':>15}")
    for name, ratio in report.comparisons().items():
        was = baseline.get(f"{name}, p50")
        p99 = "" if name.endswith("cold") else f"{ratio.p99:.2f}"
        interval = f"{ratio.p50_low:.2f} – {ratio.p50_high:.2f}"
        lines.append(
            f"  {name:<36}{ratio.p50:>7.2f}  {interval:>14}{p99:>8}{'none' if was is None else f'{was:.2f}':>15}"
        )
    aimed = report.comparisons()[AIMED]
    met = "met" if aimed.p50 <= AIM else "MISSED"
    lines += ["", f"  aim: {AIMED} ≤ {AIM} at the median: {met}", ""]
    lines.append(f"  {'stage, ms on this machine, warm':<48}{'evenkeel':>10}{'empty':>8}")
    lines += [f"  {stage.name:<48}{stage.evenkeel * 1000:>10.1f}{stage.empty * 1000:>8.1f}" for stage in report.stages]
    lines += ["", f"  {'own time, ms on this machine':<36}{'p50':>8}{'p99':>8}"]
    lines += [
        f"  {name:<36}{statistics.median(spent) * 1000:>8.0f}{quantile(spent, 0.99) * 1000:>8.0f}"
        for name, spent in report.own.items()
    ]
    return lines


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="From a node-health event to a cordoned node, against two yardsticks."
    )
    parser.add_argument("--rounds", type=int, default=40, help="measured events per lane (default 40)")
    parser.add_argument("--warm-up", type=int, default=3, help="unmeasured rounds before them (default 3)")
    parser.add_argument(
        "--cold-rounds", type=int, default=5, help="events per lane with every function cold (default 5)"
    )
    parser.add_argument("--update", action="store_true", help="write the ratios as the new baseline")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write the samples to, as JSON")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
