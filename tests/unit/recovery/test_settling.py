"""The end of an incident."""

import pytest

from evenkeel.domain.recovery.settling import Ended, settle


@pytest.mark.parametrize(
    ("plan", "node", "jobs", "failure", "state"),
    [
        ("ACT", "RETURNED", "JOBS_BACK", "", "RECOVERED"),
        ("ACT", "RETURNED", "NO_JOBS", "", "RECOVERED"),
        ("ACT", "RETURNED", "QUEUED", "", "RECOVERED"),
        ("ACT", "NOT_OURS", "JOBS_BACK", "", "RECOVERED"),
        ("ACT", "GONE", "JOBS_BACK", "", "RECOVERED"),
        ("ACT", "STOOD_DOWN", "JOBS_BACK", "", "STOOD_DOWN"),
        ("ACT", "WAITING_FOR_PERSON", "JOBS_BACK", "", "WAITING_FOR_PERSON"),
        ("ACT", "WAITING_FOR_PERSON", "DEADLINE_PASSED", "", "WAITING_FOR_PERSON"),
        ("ACT", "RETURNED", "DEADLINE_PASSED", "", "JOB_NOT_BACK"),
        ("ACT", "STOOD_DOWN", "DEADLINE_PASSED", "", "JOB_NOT_BACK"),
        ("ACT", "FAILED", "JOBS_BACK", "", "FAILED"),
        ("ACT", "RETURNED", "FAILED", "", "FAILED"),
        ("ACT", "SOMETHING_NEW", "JOBS_BACK", "", "FAILED"),
        ("ACT", None, None, "", "FAILED"),
        (None, None, None, "", "FAILED"),
        (None, None, None, "States.Timeout", "FAILED"),
        ("ACT", "RETURNED", "JOBS_BACK", "States.Timeout", "FAILED"),
        ("OBSERVE", None, None, "", "OBSERVED"),
        ("NOTHING", None, None, "", "OBSERVED"),
        ("STAND_DOWN", None, None, "", "STOOD_DOWN"),
    ],
)
def test_the_worst_part_decides_and_no_failure_ends_well(
    plan: str | None, node: str | None, jobs: str | None, failure: str, state: str
) -> None:
    def part(outcome: str | None) -> Ended | None:
        return Ended(outcome=outcome, reason="So it was.") if outcome else None

    assert settle(("reboot", "replace"), part(plan), part(node), part(jobs), failure).state == state


def test_a_fault_that_only_a_person_can_mend_asks_for_one() -> None:
    assert settle(("page_human",), Ended(outcome="NOTHING"), None, None, "").pages
    assert not settle("node:pressure", Ended(outcome="NOTHING"), None, None, "").pages
