"""`make bench-check`: short versions of all benchmarks against committed baselines, in about five minutes.

    .venv/bin/python -m bench.check                       all lanes
    .venv/bin/python -m bench.check --only verdicts cli   some of them
    .venv/bin/python -m bench.check --update              write the figures of this run as the new baseline

A lane is slower only if the whole 95 % interval of its ratio lies more than `MARGIN` above the baseline's ratio. A
second run with twice the rounds must show it again. The verdict on a wide interval is "cannot tell". The report names
every lane without a baseline: nothing guards such a lane.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bench.cordon_timer import BenchFailed
from bench.cpu_usage import Usage
from bench.figures import Ratio, ratio
from bench.lanes import IN_PROCESS, LANES, ON_ENGINE, Samples
from bench.origin import describe_origin
from evenkeel.domain.plurals import count_of
from evenkeel_local.processes import interruptible

BASELINE: Final = Path(__file__).parent / "baselines" / "check.json"
MARGIN: Final = 0.1
"""Share of a ratio by which it may differ from its baseline, beyond the two intervals."""
WIDEST: Final = 0.5
"""Width of an interval, as a share of the ratio, above which a lane that looks the same cannot be told from noise."""
HIDDEN: Final = 0.25
"""Share by which an interval may reach beyond the baseline's interval. A wider reach could hide a slower lane."""
BUSY: Final = 0.5
"""Share of processor time of other programs above which a run is neither compared nor a good baseline."""
CALLS: Final = ", calls"
"""Suffix of the name of a lane that counts calls. Other programs cannot affect it."""
ROUNDS: Final = 6
_ALL: Final = {**IN_PROCESS, **ON_ENGINE}


class Verdict(StrEnum):
    """The comparison of one lane with its baseline."""

    SAME = "same"
    SLOWER = "SLOWER"
    FASTER = "faster"
    CANNOT_TELL = "cannot tell"
    NEW = "no baseline"


@dataclass(frozen=True)
class Figure:
    """A ratio with its 95 % interval."""

    p50: float
    low: float
    high: float

    @classmethod
    def of(cls, ratio: Ratio) -> Figure:
        return cls(round(ratio.p50, 4), round(ratio.p50_low, 4), round(ratio.p50_high, 4))

    @property
    def width(self) -> float:
        """Width of the interval, as a share of the ratio."""
        return (self.high - self.low) / self.p50 if self.p50 else 0.0


def compare_figures(figure: Figure, baseline: Figure | None) -> Verdict:
    """Compare a figure with its baseline. Figures whose intervals are within the margin are equal."""
    if baseline is None:
        return Verdict.NEW
    if figure.low > baseline.high * (1 + MARGIN):
        return Verdict.SLOWER
    if figure.high < baseline.low * (1 - MARGIN):
        return Verdict.FASTER
    hides_slowdown = figure.high > baseline.high * (1 + HIDDEN)
    return Verdict.CANNOT_TELL if figure.width > WIDEST or hides_slowdown else Verdict.SAME


def lane_figures(samples: Samples) -> dict[str, Figure]:
    """Return the figure of each lane."""
    return {
        name: Figure.of(ratio([pair.lane for pair in pairs], [pair.yardstick for pair in pairs]))
        for name, pairs in samples.items()
    }


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 if no lane is slower, 1 if one is, 2 if a lane cannot be measured, told from noise or compared.

    Also 2 if other programs used too much of the processors, in this run or in the baseline's run. Then only lanes
    that count calls can be slower.
    """
    arguments = _arguments(words)
    baseline, share_then = read_baseline(BASELINE), other_programs_share(BASELINE)
    began = Usage.now()
    measured: dict[str, Figure] = {}
    failed = False
    with interruptible():
        for group in arguments.only:
            print(f"  measuring {group}", file=sys.stderr, flush=True)
            try:
                measured |= _measure_group(group, baseline, 1 if arguments.update else 2)
            except (BenchFailed, RuntimeError, OSError) as error:
                failed = True
                print(f"bench-check: {group} cannot be measured: {error}", file=sys.stderr)
    others_share = Usage.now().others_since(began)
    verdicts = {name: compare_figures(figure, baseline.get(name)) for name, figure in measured.items()}
    print("\n".join([*verdict_lines(measured, baseline, verdicts), *missing_baseline_lines(baseline)]))
    print(f"\nOther programs used {others_share:.0%} of the processors meanwhile.")
    if arguments.update:
        BASELINE.write_text(
            json.dumps(baseline_document(baseline | measured, words, others_share), indent=1) + "\n", encoding="utf-8"
        )
        print(f"Baseline written: {BASELINE}")
        return 2 if failed else 0
    is_busy = max(others_share, share_then) > BUSY
    counted = {verdict for name, verdict in verdicts.items() if not is_busy or name.endswith(CALLS)}
    if Verdict.SLOWER in counted:
        return 1
    if is_busy:
        print(f"Only the verdicts on calls count. Other programs may use at most {BUSY:.0%} of the processors.")
        print(f"In the run of the baseline, they used {share_then:.0%}.")
        return 2
    return 2 if failed or counted & {Verdict.CANNOT_TELL, Verdict.NEW} else 0


def _measure_group(group: str, baseline: Mapping[str, Figure], max_runs: int) -> dict[str, Figure]:
    """Measure a group of lanes. Repeat with twice the rounds if a lane seems slower or is too noisy."""
    measured = lane_figures(_ALL[group](ROUNDS))
    for _ in range(1, max_runs):
        doubtful = (Verdict.SLOWER, Verdict.CANNOT_TELL)
        if any(compare_figures(figure, baseline.get(name)) in doubtful for name, figure in measured.items()):
            print(f"  measuring {group} again", file=sys.stderr, flush=True)
            measured = lane_figures(_ALL[group](2 * ROUNDS))
    return measured


def read_baseline(path: Path) -> dict[str, Figure]:
    """Read the figures of a baseline; none if there is no file."""
    if not path.exists():
        return {}
    lanes = json.loads(path.read_text(encoding="utf-8"))["lanes"]
    return {name: Figure(**figure) for name, figure in lanes.items()}


def other_programs_share(path: Path) -> float:
    """Return the share of the processors that other programs used during the run of a baseline."""
    return float(json.loads(path.read_text(encoding="utf-8"))["othersShare"]) if path.exists() else 0.0


def baseline_document(
    measured: Mapping[str, Figure], words: Sequence[str] | None, others_share: float
) -> dict[str, Any]:
    """Return the file of a baseline."""
    lanes = {name: vars(figure) for name, figure in measured.items()}
    return {**describe_origin("bench.check", words, [1]), "othersShare": round(others_share, 2), "lanes": lanes}


def verdict_lines(
    measured: Mapping[str, Figure], baseline: Mapping[str, Figure], verdicts: Mapping[str, Verdict]
) -> Iterator[str]:
    """Yield the report as lines."""
    yield ""
    yield f"  {'cost / yardstick':<44}{'now':>9}{'95 % interval':>20}{'baseline':>10}  verdict"
    for name, figure in measured.items():
        baseline_figure = baseline.get(name)
        interval = f"{figure.low:.3g} – {figure.high:.3g}"
        baseline_text = f"{baseline_figure.p50:.3g}" if baseline_figure else "none"
        yield f"  {name:<44}{figure.p50:>9.3g}{interval:>20}{baseline_text:>10}  {verdicts[name]}"


def missing_baseline_lines(baseline: Mapping[str, Figure]) -> Iterator[str]:
    """Yield the report about lanes without a baseline, including unmeasured ones."""
    missing = {group: [lane for lane in lanes if lane not in baseline] for group, lanes in LANES.items()}
    missing = {group: lanes for group, lanes in missing.items() if lanes}
    if missing:
        yield ""
        yield f"  No baseline, so nothing guards {count_of(sum(map(len, missing.values())), 'lane')}:"
        yield from (f"    {group}: {lane}" for group, lanes in missing.items() for lane in lanes)
        yield f"  On an idle machine: python -m bench.check --only {' '.join(missing)} --update"


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description="Short benchmarks against baselines.")
    parser.add_argument("--only", nargs="+", choices=tuple(_ALL), default=tuple(_ALL), help="only these groups")
    parser.add_argument("--update", action="store_true", help="write the figures as the new baseline")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
