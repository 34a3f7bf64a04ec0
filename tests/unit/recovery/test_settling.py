"""The final state of an incident."""

from typing import Any

import pytest

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.settling import ALERTING_STATES, BranchEnd, choose_incident_end, why_replan
from tests.unit.recovery.facts import LIFE, SLOT, at


@pytest.mark.parametrize(
    ("plan", "node", "jobs", "failure", "state"),
    [
        ("ACT", "RETURNED", "JOBS_RESUMED", "", "RECOVERED"),
        ("ACT", "RETURNED", "NO_JOBS", "", "RECOVERED"),
        ("ACT", "RETURNED", "QUEUED", "", "RECOVERED"),
        ("ACT", "STAYS_CORDONED", "JOBS_RESUMED", "", "RECOVERED"),
        ("ACT", "GONE", "JOBS_RESUMED", "", "RECOVERED"),
        ("ACT", "STOOD_DOWN", "JOBS_RESUMED", "", "STOOD_DOWN"),
        ("ACT", "WAITING_FOR_PERSON", "JOBS_RESUMED", "", "WAITING_FOR_PERSON"),
        ("ACT", "WAITING_FOR_PERSON", "DEADLINE_PASSED", "", "WAITING_FOR_PERSON"),
        ("ACT", "RETURNED", "DEADLINE_PASSED", "", "JOB_NOT_RESUMED"),
        ("ACT", "STOOD_DOWN", "DEADLINE_PASSED", "", "JOB_NOT_RESUMED"),
        ("ACT", "FAILED", "JOBS_RESUMED", "", "FAILED"),
        ("ACT", "RETURNED", "FAILED", "", "FAILED"),
        ("ACT", "SOMETHING_NEW", "JOBS_RESUMED", "", "FAILED"),
        ("ACT", None, None, "", "FAILED"),
        (None, None, None, "", "FAILED"),
        (None, None, None, "States.Timeout", "FAILED"),
        ("ACT", "RETURNED", "JOBS_RESUMED", "States.Timeout", "FAILED"),
        ("OBSERVE", None, None, "", "OBSERVED"),
        ("NOTHING", None, None, "", "OBSERVED"),
        ("STAND_DOWN", None, None, "", "STOOD_DOWN"),
    ],
)
def test_worst_branch_decides_the_final_state_of_the_incident(
    plan: str | None, node: str | None, jobs: str | None, failure: str, state: str
) -> None:
    def part(outcome: str | None) -> BranchEnd | None:
        return BranchEnd(outcome=outcome, reason="So it was.") if outcome else None

    assert choose_incident_end(("reboot", "replace"), part(plan), part(node), part(jobs), failure).state == state


def test_fault_that_needs_a_person_waits_for_one() -> None:
    assert choose_incident_end(("ask_person",), BranchEnd(outcome="NOTHING"), None, None, "").state in ALERTING_STATES
    assert (
        choose_incident_end("node:pressure", BranchEnd(outcome="NOTHING"), None, None, "").state not in ALERTING_STATES
    )


# ---------------------------------------------------------------- what came since the plan


def planned_incident(outcome: str = "NOTHING", **changes: Any) -> Incident:
    brief = {
        "run": 1,
        "outcome": outcome,
        "repairs_node": False,
        "settle_seconds": 0,
        "max_repairs": 3,
        "decision_id": "dec-1",
        "reason": "Watched.",
        "rungs": ("watch", "reboot"),
        "independent_source_count": 1,
        **changes.pop("plan", {}),
    }
    return Incident.model_validate(
        {
            "incident_id": "inc-1",
            "life": LIFE,
            "slot": SLOT,
            "node_name": "node-1",
            "pool": "p5",
            "instance_type": "",
            "state": "RECOVERING",
            "severity": "minor",
            "fault_key": "sxid:11012",
            "first_signal_at": at(0),
            "opened_at": at(0),
            "independent_sources": ("hyperpod",),
            "plan": brief,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("incident", "rungs", "expected"),
    [
        (planned_incident(), ("watch", "reboot"), ""),
        (planned_incident(), ("reboot", "replace"), "requires reboot, which the plan does not include"),
        (planned_incident("ACT", plan={"rungs": ("restart_job",)}), ("replace",), "requires replace"),
        (planned_incident("OBSERVE"), ("reboot",), "requires reboot"),
        (
            planned_incident(independent_sources=("hyperpod", "site:prober")),
            ("watch", "reboot"),
            "A second, independent source",
        ),
        (planned_incident(plan={"had_recovered": True}), ("watch", "reboot"), "The node became unhealthy again"),
        (planned_incident(plan={"had_recovered": True}, recovered_at=at(9)), ("watch", "reboot"), ""),
        (planned_incident("STAND_DOWN"), ("replace",), ""),
        (planned_incident("ACT", plan={"repairs_node": True}), ("replace",), ""),
        (planned_incident(plan={"rungs": ()}), ("replace",), ""),
        (planned_incident(run=2), ("replace",), ""),
    ],
)
def test_fault_beyond_the_plan_needs_a_new_plan(incident: Incident, rungs: tuple[str, ...], expected: str) -> None:
    reason = why_replan(incident, rungs, "ACT")

    assert expected in reason
    assert bool(expected) == bool(reason)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("KeyError: a bug", "KeyError: a bug"),
        ('P: {"errorType": "P", "errorMessage": "Refused: no", "stackTrace": ["x"', "P: Refused: no"),
        ('P: {"errorMessage":"Refused: no", "errorType":"P"}', "P: Refused: no"),
        ('P: {"errorMessage": "Refused: n', "P: Refused: n"),
    ],
)
def test_failure_is_reported_without_its_stack_trace(cause: str, expected: str) -> None:
    ended = choose_incident_end(
        (), BranchEnd(outcome="ACT"), BranchEnd(outcome="FAILED", reason=cause), BranchEnd(outcome="NO_JOBS"), ""
    )

    assert ended.reason == f"The node branch failed: {expected}"
