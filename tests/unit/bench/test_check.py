"""`make bench-check` separates a regression from noise."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import check, lanes
from bench.check import Figure, Verdict, compare_figures
from bench.lanes import IN_PROCESS, LANES, ON_ENGINE, Pair, Samples
from bench.scale.functions import ColdStart

STEADY_SECONDS = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)
NOISY_SECONDS = (1.0, 3.0, 0.4, 2.5, 0.5, 1.2)


def samples_with_costs(costs: Sequence[float]) -> Samples:
    return {"lane": [Pair(cost, 1.0) for cost in costs]}


@pytest.mark.parametrize(
    ("now", "before", "verdict"),
    [
        (Figure(1.5, 1.4, 1.6), Figure(1.0, 0.95, 1.05), Verdict.SLOWER),
        (Figure(1.2, 1.1, 1.3), Figure(1.0, 0.95, 1.05), Verdict.SAME),  # the intervals are within the margin
        (Figure(0.6, 0.55, 0.65), Figure(1.0, 0.95, 1.05), Verdict.FASTER),
        (Figure(1.2, 0.8, 1.6), Figure(1.0, 0.95, 1.05), Verdict.CANNOT_TELL),
        (Figure(1.2, 1.05, 1.4), Figure(1.0, 0.95, 1.05), Verdict.CANNOT_TELL),  # equal, or slower by a third
        (Figure(2.5, 1.8, 3.2), Figure(1.0, 0.95, 1.05), Verdict.SLOWER),  # noisy, but certainly slower
        (Figure(53, 53, 53), Figure(52, 52, 52), Verdict.SAME),
        (Figure(1.0, 1.0, 1.0), None, Verdict.NEW),
    ],
)
def test_regression_is_decided_by_comparing_two_confidence_intervals(
    now: Figure, before: Figure | None, verdict: Verdict
) -> None:
    assert compare_figures(now, before) is verdict


def write_baseline(folder: Path, figure: Figure, others_share: float = 0.0) -> Path:
    path = folder / "check.json"
    path.write_text(json.dumps(check.baseline_document({"lane": figure}, [], others_share)), encoding="utf-8")
    return path


class IdleMachine:
    """Processor ticks of a machine without other programs."""

    @classmethod
    def now(cls) -> "IdleMachine":
        return cls()

    def others_since(self, _before: "IdleMachine") -> float:
        return 0.0


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "Usage", IdleMachine)


@pytest.mark.parametrize(
    ("runs", "code", "rounds"),
    [
        ([STEADY_SECONDS], 0, [6]),
        ([[2 * cost for cost in STEADY_SECONDS]] * 2, 1, [6, 12]),
        (
            [[2 * cost for cost in STEADY_SECONDS], STEADY_SECONDS],
            0,
            [6, 12],
        ),  # the repeated measurement shows no regression
        ([NOISY_SECONDS] * 2, 2, [6, 12]),
    ],
)
def test_regression_is_measured_again_before_the_check_fails(
    runs: Sequence[Sequence[float]],
    code: int,
    rounds: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    round_counts: list[int] = []

    def measure(wanted: int) -> Samples:
        round_counts.append(wanted)
        return samples_with_costs(runs[len(round_counts) - 1])

    monkeypatch.setattr(check, "_ALL", {"group": measure})
    monkeypatch.setattr(check, "BASELINE", write_baseline(tmp_path, Figure(1.0, 0.98, 1.02)))

    assert check.main([]) == code
    assert round_counts == rounds


def test_baseline_of_a_busy_machine_gives_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [2 * cost for cost in STEADY_SECONDS]
    monkeypatch.setattr(check, "_ALL", {"group": lambda _rounds: samples_with_costs(slow)})
    monkeypatch.setattr(check, "BASELINE", write_baseline(tmp_path, Figure(1.0, 0.98, 1.02), others_share=0.87))

    assert check.main([]) == 2


def test_busy_machine_does_not_hide_additional_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "check.json"
    baseline = {"cycle, calls": Figure(50, 50, 50)}
    path.write_text(json.dumps(check.baseline_document(baseline, [], 0.87)), encoding="utf-8")
    monkeypatch.setattr(check, "_ALL", {"group": lambda _rounds: {"cycle, calls": [Pair(80, 1.0)] * 6}})
    monkeypatch.setattr(check, "BASELINE", path)

    assert check.main([]) == 1


def test_benchmark_report_names_every_measurement_without_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "_ALL", {"group": lambda _rounds: {"lane": [Pair(1, 1.0)] * 6, "new": [Pair(1, 1)] * 6}})
    monkeypatch.setattr(check, "LANES", {"group": ("lane", "new"), "engine": ("evenkeel/empty",)})
    monkeypatch.setattr(check, "BASELINE", write_baseline(tmp_path, Figure(1.0, 0.98, 1.02)))

    assert check.main([]) == 2

    report = capsys.readouterr().out
    assert "nothing guards 2 lanes:\n    group: new\n    engine: evenkeel/empty\n" in report
    assert "python -m bench.check --only group engine --update" in report


def test_measurements_have_the_names_that_the_report_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "cold_start", lambda _function: ColdStart(0.3, 1))
    baseline = check.read_baseline(check.BASELINE)

    assert set(LANES) == set(IN_PROCESS) | set(ON_ENGINE)
    assert set(baseline) <= {name for group in LANES.values() for name in group}
    assert set(lanes.cold_starts(1)) == set(LANES["cold"])


def test_failed_measurement_of_a_group_does_not_stop_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_measure(_rounds: int) -> Samples:
        raise OSError("no engine")

    monkeypatch.setattr(
        check, "_ALL", {"broken": fail_to_measure, "group": lambda _rounds: samples_with_costs(STEADY_SECONDS)}
    )
    monkeypatch.setattr(check, "BASELINE", path := write_baseline(tmp_path, Figure(5.0, 4.9, 5.1)))

    assert check.main(["--update"]) == 2
    assert check.read_baseline(path)["lane"].p50 == 1.0


def test_committed_baseline_has_every_group() -> None:
    baseline = check.read_baseline(check.BASELINE)

    assert {name.partition(",")[0] for name in baseline} >= {
        "verdicts",
        "cycle",
        "watch",
        "sweep",
        "cold start of cordon_node",
        "evenkeel",
    }
    assert all(figure.low <= figure.p50 <= figure.high for figure in baseline.values())
