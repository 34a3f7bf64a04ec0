"""A run is reported as ratios, a table and a file. A baseline contains only ratios."""

import json
from collections.abc import Sequence

from bench.__main__ import BASELINE, report_lines
from bench.cordon_timer import Sample
from bench.event_to_cordon import AIMED, BARE, EMPTY, EVENKEEL, LIBRARIES, LatencyReport, LatencyStage

PAUSE = 0.15
STAGE_TIMES = {"started": 0.01, "entered PlanRecovery": 0.01 + PAUSE, "entered CordonNode": 0.18}


def a_sample(lane: str, seconds: float) -> Sample:
    marks = {} if lane == BARE else STAGE_TIMES
    return Sample(lane, "node-1", "event-1", 0.0, accept_seconds=0.002, seconds=seconds, marks=marks)


def a_report(*, evenkeel: float = 0.21, cold: Sequence[float] = (2.0,)) -> LatencyReport:
    seconds = {EVENKEEL: evenkeel, EMPTY: 0.17, BARE: 0.007}
    return LatencyReport(
        warm={lane: [a_sample(lane, duration)] * 3 for lane, duration in seconds.items()},
        cold={lane: [a_sample(lane, duration) for duration in cold] for lane in (*seconds, LIBRARIES)},
        stages=(LatencyStage("received", 0.02, 0.01),),
        own={"plan_recovery": (0.017, 0.018)},
        others=0.0,
    )


def test_polling_delay_is_subtracted_from_measurement_and_baseline() -> None:
    ratios = a_report().ratios()

    assert ratios[f"{AIMED}, p50"] == round(0.21 / 0.17, 3)
    assert ratios[f"{AIMED}, without the pause, p50"] == round((0.21 - PAUSE) / (0.17 - PAUSE), 3)


def test_p99_is_omitted_if_few_cold_starts_were_measured() -> None:
    ratios = a_report().ratios()

    assert f"{AIMED}, cold, p50" in ratios
    assert f"{AIMED}, cold, p99" not in ratios


def test_measurement_without_cold_starts_has_no_cold_start_figure() -> None:
    assert not any("cold" in name for name in a_report(cold=()).ratios())


def test_table_shows_whether_the_target_is_met() -> None:
    met, missed = "\n".join(report_lines(a_report(evenkeel=0.2), {})), "\n".join(report_lines(a_report(), {}))

    assert "≤ 1.2 at the median: met" in met
    assert "≤ 1.2 at the median: MISSED" in missed


def test_report_can_be_written_as_json() -> None:
    document = json.loads(json.dumps(a_report().to_json()))

    assert set(document["samples"]) == {"warm", "cold"}


def test_every_tolerated_ratio_has_a_stored_baseline() -> None:
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))

    assert set(baseline["tolerances"]) <= set(baseline["ratios"])
    assert set(baseline["ratios"]) <= set(a_report().ratios())
