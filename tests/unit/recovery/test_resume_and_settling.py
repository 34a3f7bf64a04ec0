"""The way back of a job, and the end of an incident."""

from typing import Any

import pytest

from evenkeel.domain.health.faults import CheckpointTrust
from evenkeel.domain.policy import JobPolicy
from evenkeel.domain.recovery.resume import PoolRoom, ResumeDecision, ResumeFacts, plan_resume
from evenkeel.domain.recovery.settling import Ended, settle
from evenkeel.domain.scheduling.jobs import ResumeOption
from tests.unit.recovery.facts import LIFE, at

POLICY = JobPolicy(expected_resume_seconds=100, expected_replace_seconds=900, distrust_guard_seconds=300)


def resume(usable: int, spares: int = 0, **changes: Any) -> ResumeDecision:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "attempt": 1,
        "nodes": 2,
        "accelerators_per_node": 8,
        "rooms": (PoolRoom(pool="p5", usable=usable, spares=spares),),
        "fault_key": "xid:79",
        "trust": CheckpointTrust.TRUSTED,
        "first_signal_at": at(0),
        "sick_life": LIFE.key,
        "will_be_replaced": False,
        "is_repaired": True,
    }
    return plan_resume(ResumeFacts.model_validate({**facts, **changes}), POLICY)


@pytest.mark.parametrize(
    ("usable", "spares", "option", "seconds"),
    [
        (2, 0, ResumeOption.FREE_NODE, 100),
        (3, 1, ResumeOption.FREE_NODE, 100),
        (2, 1, ResumeOption.SPARE, 100),
        (1, 1, ResumeOption.WAIT_FOR_REPAIR, 1000),
        (0, 0, ResumeOption.WAIT_FOR_REPAIR, 1000),
    ],
)
def test_the_option_with_the_least_loss(usable: int, spares: int, option: ResumeOption, seconds: float) -> None:
    decision = resume(usable, spares)

    assert (decision.option, decision.expected_seconds) == (option, seconds)
    assert decision.gpu_hours_lost == pytest.approx(seconds * 16 / 3600, abs=0.001)
    assert {each.option for each in decision.alternatives} == set(ResumeOption) - {option}


def test_a_pool_that_has_room_is_found_behind_one_that_has_none() -> None:
    rooms = (PoolRoom(pool="full", usable=1, spares=0), PoolRoom(pool="roomy", usable=2, spares=0))

    assert resume(0, rooms=rooms).pool == "roomy"


def test_only_a_life_that_will_be_replaced_is_avoided() -> None:
    assert resume(2).avoid == ()
    assert resume(2, will_be_replaced=True).avoid == (LIFE.key,)


@pytest.mark.parametrize("trust", [CheckpointTrust.SUSPECT_SINCE_FIRST_SIGNAL, CheckpointTrust.NONE])
def test_checkpoints_near_a_corrupting_fault_are_distrusted_and_it_is_said(trust: CheckpointTrust) -> None:
    decision = resume(2, trust=trust)

    assert resume(2).distrust_after is None
    assert decision.distrust_after == at(-300)
    assert "are not used" in decision.reason


# ---------------------------------------------------------------- settling


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

    assert settle("hp:NvidiaErrorReboot", part(plan), part(node), part(jobs), failure).state == state


def test_a_fault_that_only_a_person_can_mend_asks_for_one() -> None:
    assert settle("node:clock_unsynced", Ended(outcome="NOTHING"), None, None, "").pages
    assert not settle("node:pressure", Ended(outcome="NOTHING"), None, None, "").pages
