"""A crash before or after any effect of any service of a recovery, then a retry: the same end. One test per effect."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel.domain.policy_section import Mode
from tests.crash_points import crash_mark
from tests.fakes import CrashPlan
from tests.fakes.crashes import CrashTiming
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario

EXAMINES = QUICK.replace(repair=QUICK.repair.replace(test_job_image="registry/node-test:1"))

SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reboot": ({}, {}),
    "replace": ({}, {"fault_key": "hp:NvidiaErrorTerminate"}),
    "reboot-then-replace": ({"replacement_is_faulty": True}, {}),
    "stuck-replace": ({"is_stuck": True, "size": 2}, {"fault_key": "hp:NvidiaErrorTerminate"}),
    "examined": ({"policy": EXAMINES, "with_job": False}, {"fault_key": "xid:79", "source": "hyperpod.node-labels"}),
    "observe": ({"mode": Mode.OBSERVE}, {}),
}


def play_recovery(scenario: str, plan: CrashPlan) -> RecoveryScenario:
    settings, fact = SCENARIOS[scenario]
    recovery = RecoveryScenario(**settings, plan=plan)
    recovery.report_fault(**fact)
    recovery.recover()
    return recovery


@functools.cache
def run_without_crash(scenario: str) -> RecoveryScenario:
    return play_recovery(scenario, CrashPlan())


def effects() -> Iterator[Any]:
    for scenario in SCENARIOS:
        reached = run_without_crash(scenario).plan.effects
        for number, name in enumerate(reached, start=1):
            for when in CrashTiming:
                marks = crash_mark(number, when)
                yield pytest.param(scenario, number, when, id=f"{scenario}-{when}-{number}-{name}", marks=marks)


@pytest.mark.parametrize(("scenario", "number", "when"), list(effects()))
def test_recovery_ends_the_same_after_any_crash(scenario: str, number: int, when: CrashTiming) -> None:
    plan = CrashPlan(at=number, when=when)

    recovery = play_recovery(scenario, plan)

    assert recovery.crashes == 1
    assert run_without_crash(scenario).comparable_end() == recovery.comparable_end()
    if when is CrashTiming.AFTER:
        assert timeline_without_calls(run_without_crash(scenario)) == timeline_without_calls(recovery), (
            "the crash repeats a line of the timeline"
        )


def timeline_without_calls(recovery: RecoveryScenario) -> list[str]:
    """All lines but those of provider calls: a call whose intent was recorded and never made is told again, rightly."""
    return sorted(kind for kind in recovery.timeline_kinds() if kind not in ("reboot", "replace"))
