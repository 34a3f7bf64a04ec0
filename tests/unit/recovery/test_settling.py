"""The final state of an incident."""

from typing import Any

import pytest

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.settling import ALERTING_STATES, BranchEnd, choose_incident_end, why_new_plan
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
    def branch_end(outcome: str | None) -> BranchEnd | None:
        return BranchEnd(outcome=outcome, reason="So it was.") if outcome else None

    assert (
        choose_incident_end(("reboot", "replace"), branch_end(plan), branch_end(node), branch_end(jobs), failure).state
        == state
    )


def test_incident_waits_for_a_person_if_its_fault_needs_one() -> None:
    assert choose_incident_end(("ask_person",), BranchEnd(outcome="NOTHING"), None, None, "").state in ALERTING_STATES
    assert (
        choose_incident_end("node:pressure", BranchEnd(outcome="NOTHING"), None, None, "").state not in ALERTING_STATES
    )


# ---------------------------------------------------------------- signals since the plan


def planned_incident(outcome: str = "NOTHING", **changes: Any) -> Incident:
    plan_document = {
        "run": 1,
        "outcome": outcome,
        "repairs_node": False,
        "evidence_wait_seconds": 0,
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
            "plan": plan_document,
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
def test_fault_that_the_plan_does_not_cover_needs_another_plan(
    incident: Incident, rungs: tuple[str, ...], expected: str
) -> None:
    reason = why_new_plan(incident, rungs, "ACT")

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
def test_failed_workflow_is_reported_without_its_stack_trace(cause: str, expected: str) -> None:
    incident_end = choose_incident_end(
        (), BranchEnd(outcome="ACT"), BranchEnd(outcome="FAILED", reason=cause), BranchEnd(outcome="NO_JOBS"), ""
    )

    assert incident_end.reason == f"The node branch failed: {expected}"
