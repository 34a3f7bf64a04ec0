"""The rollback of a job that resumed from a checkpoint which is now distrusted."""

from datetime import datetime
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import Attempt, ResumePoint
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.recovery.rollback import Rollback, RollbackDecision, RollbackFacts, decide_rollback
from tests.unit.recovery.facts import at

POLICY = JobPolicy(max_rollbacks=2)


def an_attempt(number: int, source: int | None, began: datetime | None, **changes: Any) -> Attempt:
    """Return an attempt that resumed from a checkpoint of attempt `source`, written at `began`."""
    point = None if source is None else ResumePoint(attempt=source, step=30, manifest="m")
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "attempt": number,
        "state": "RUNNING",
        "cluster": "eks",
        "namespace": "jobs",
        "pool": "p5",
        "nodes": (),
        "node_names": (),
        "accelerators": 8,
        "admitted_at": at(0),
        "launched_at": at(1),
        "is_pinned": True,
        "resume_from": point,
        "resumed_work_from": began,
    }
    return Attempt.model_validate({**facts, **changes})


def rollback_decision(*ancestors: Attempt, **changes: Any) -> RollbackDecision:
    facts: dict[str, Any] = {
        "interrupted_attempt": 1,
        "current_attempt": ancestors[-1].attempt,
        "descent": ancestors,
        "distrust_after": at(-300),
        "requirement": CheckpointRequirement.CONVENTION,
        "distrust_after_at_launch": None,
        "requirement_at_launch": CheckpointRequirement.CONVENTION,
        "rollbacks": 0,
    }
    return decide_rollback(RollbackFacts.model_validate({**facts, **changes}), POLICY)


POISONED, CLEAN = at(-299), at(-300)


@pytest.mark.parametrize(
    ("descent", "action"),
    [
        ([(2, 1, POISONED)], Rollback.STOP),
        ([(2, 1, None)], Rollback.STOP),
        ([(2, 1, CLEAN)], Rollback.LEAVE),
        ([(2, None, None)], Rollback.LEAVE),
        ([(2, 1, POISONED), (3, 2, at(60))], Rollback.STOP),
        ([(2, 1, CLEAN), (3, 2, at(60))], Rollback.LEAVE),
        ([(2, 1, POISONED), (3, 1, CLEAN)], Rollback.LEAVE),
        ([(2, 1, POISONED), (3, None, None)], Rollback.LEAVE),
    ],
)
def test_attempt_from_a_distrusted_checkpoint_is_rolled_back(
    descent: list[tuple[int, int | None, datetime | None]], action: Rollback
) -> None:
    assert rollback_decision(*(an_attempt(*link) for link in descent)).action is action


def test_fault_without_corruption_rolls_nothing_back() -> None:
    assert rollback_decision(an_attempt(2, 1, POISONED), distrust_after=None).action is Rollback.LEAVE


def test_missing_required_evidence_rolls_the_attempt_back() -> None:
    before = an_attempt(2, 1, CLEAN)

    assert rollback_decision(before, requirement=CheckpointRequirement.EVIDENCE).action is Rollback.STOP
    assert (
        rollback_decision(
            before, requirement=CheckpointRequirement.EVIDENCE, requirement_at_launch=CheckpointRequirement.EVIDENCE
        ).action
        is Rollback.LEAVE
    )


def test_attempt_with_unknown_pin_stops_unless_rank_0_distrusted_checkpoints() -> None:
    mounted = an_attempt(2, None, None, is_pinned=False)

    assert rollback_decision(mounted).action is Rollback.STOP
    assert rollback_decision(mounted, distrust_after_at_launch=at(-299)).action is Rollback.STOP
    assert rollback_decision(mounted, distrust_after_at_launch=at(-300)).action is Rollback.LEAVE


def test_attempt_that_was_never_launched_is_not_rolled_back() -> None:
    assert rollback_decision(an_attempt(2, None, None, is_pinned=False, launched_at=None)).action is Rollback.LEAVE


def test_number_of_rollbacks_is_bounded() -> None:
    decision = rollback_decision(an_attempt(2, 1, POISONED), rollbacks=2)

    assert decision.action is Rollback.LIMIT
    assert "already rolled back 2 times" in decision.reason
