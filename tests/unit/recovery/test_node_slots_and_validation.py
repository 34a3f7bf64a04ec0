"""The instance in a node slot, its validation, and the answers to waits."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.faults import Severity
from evenkeel.domain.health.incidents import AffectedJob, Incident, IncidentState
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState, StopRequest
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState, find_slot_state
from evenkeel.domain.recovery.recovery_waits import (
    AffectedJobState,
    evaluate_guardrails_cleared,
    evaluate_jobs_resumed,
    evaluate_node_back,
    evaluate_node_valid,
)
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.validation import (
    DEEP_CHECK_STATUS,
    CheckFacts,
    CheckKind,
    CheckResult,
    choose_check,
    expected_accelerators,
    judge_deep_check,
    judge_node,
    margin_seconds,
)
from tests.fakes import a_node, a_provider_node
from tests.unit.recovery.facts import INVALID, LIFE, SLOT, VALID, a_slot_state, a_successor, at
from tests.unit.scheduling.builders import a_job, an_attempt

PREFIX = "sagemaker.amazonaws.com/"


def slot_state_of(*records: Any, slot: str = SLOT, nodes: Any = ()) -> SlotState:
    return find_slot_state(LIFE, slot, "p5-workers", provider_nodes=records, nodes=nodes, since=at(0))


# ---------------------------------------------------------------- node slots


def test_faulty_node_keeps_its_slot_until_a_replacement_takes_it() -> None:
    new_node = a_provider_node(9, logical_id="seat-1", launched_at=at(60))

    before, during = slot_state_of(a_provider_node(1), a_provider_node(2)), slot_state_of(a_provider_node(2), new_node)

    assert (before.original.instance_id, before.replacement) == (LIFE.instance_id, None)
    assert not during.original.is_listed
    assert during.replacement
    assert during.replacement.instance_id == new_node.instance_id


def test_younger_node_takes_the_slot_without_logical_ids() -> None:
    younger_node = a_provider_node(9, logical_id=None, launched_at=at(60))
    older_node = a_provider_node(8, logical_id=None)
    other_group = a_provider_node(7, logical_id=None, launched_at=at(60), instance_group="others")

    slot_state = slot_state_of(older_node, younger_node, other_group, slot=LIFE.key)

    assert slot_state.replacement
    assert slot_state.replacement.instance_id == younger_node.instance_id


def test_no_node_takes_the_slot_of_a_listed_node() -> None:
    listed_node = a_provider_node(1, logical_id=None)

    assert (
        slot_state_of(listed_node, a_provider_node(9, logical_id=None, launched_at=at(60)), slot=LIFE.key).replacement
        is None
    )


# ---------------------------------------------------------------- validation


@pytest.mark.parametrize(
    ("machine", "is_valid", "word"),
    [
        (ObservedNode(provider_node=a_provider_node(1), node=a_node(1)), True, "Ready"),
        (ObservedNode(node=a_node(1)), True, "Ready"),
        (ObservedNode(provider_node=a_provider_node(1)), False, "not joined"),
        (ObservedNode(provider_node=a_provider_node(1, status="Pending"), node=a_node(1)), False, "Pending"),
        (ObservedNode(provider_node=a_provider_node(1), node=a_node(1, is_ready=False)), False, "not Ready"),
        (ObservedNode(provider_node=a_provider_node(1), node=a_node(1, accelerators=7)), False, "7 of 8"),
        (ObservedNode(node=a_node(1, labels={f"{PREFIX}fault-types": "EfaError"})), False, "EfaError"),
        (
            ObservedNode(node=a_node(1, labels={f"{PREFIX}node-health-status": "UnschedulablePendingReboot"})),
            False,
            "Pending",
        ),
        (ObservedNode(node=a_node(1, labels={f"{PREFIX}node-health-status": "Schedulable"})), True, "Ready"),
        (ObservedNode(node=a_node(1, labels={f"{PREFIX}deep-health-check-status": "InProgress"})), False, "InProgress"),
    ],
)
def test_node_is_valid_by_its_readiness_devices_and_faults(machine: ObservedNode, is_valid: bool, word: str) -> None:
    verdict = judge_node(machine, expected_count=8)

    assert verdict.is_valid is is_valid
    assert word in verdict.reason


def test_expected_devices_come_from_peers_or_the_table() -> None:
    peers = [a_node(2, accelerators=4), a_node(3, accelerators=8, is_ready=False), a_node(4, instance_type="other")]

    assert expected_accelerators("ml.p5.48xlarge", peers) == 4
    assert expected_accelerators("ml.p5.48xlarge", []) == 8
    assert expected_accelerators("ml.c5.xlarge", []) == 0


@pytest.mark.parametrize(
    ("validity", "signal", "now", "outcome"),
    [
        (VALID, 0, 60, "VALID"),
        (VALID, 0, 55, None),
        (INVALID, 0, 60, None),
        (VALID, 52, 60, "INVALID"),
    ],
    ids=["well for long enough", "not long enough", "not well", "faulted again"],
)
def test_validation_wait_ends_when_the_node_is_valid_or_fails(
    validity: Any, signal: float, now: float, outcome: str | None
) -> None:
    answer = evaluate_node_valid(
        a_slot_state().original, validity, opened_at=at(50), last_signal_at=at(signal), margin=10, now=at(now)
    )

    assert (answer.outcome if answer else None) == outcome


# ---------------------------------------------------------------- the wait for a node


@pytest.mark.parametrize(
    ("why", "slot_state", "rung", "is_back"),
    [
        ("it has not booted again", a_slot_state(), "reboot", False),
        ("it has booted again", a_slot_state(boot_id="boot-2"), "reboot", True),
        ("it has booted again, by its owner", a_slot_state(boot_id="boot-2"), "owner", True),
        ("it boots", a_slot_state(boot_id="boot-2", is_ready=False), "reboot", False),
        ("it is to go, and has only booted again", a_slot_state(boot_id="boot-2"), "replace", False),
        ("another is there", a_slot_state(successor=a_successor()), "replace", True),
        ("another is there instead of a reboot", a_slot_state(successor=a_successor()), "reboot", True),
        ("another comes up", a_slot_state(successor=a_successor(status="Pending")), "replace", False),
        ("another has not joined", a_slot_state(successor=a_successor(is_ready=False)), "replace", False),
    ],
)
def test_node_wait_ends_once_the_node_is_back(why: str, slot_state: SlotState, rung: str, is_back: bool) -> None:
    answer = evaluate_node_back(slot_state, rung=rung, boot_id_before="boot-1")

    assert (answer is not None) is is_back, why


# ---------------------------------------------------------------- the wait for jobs


def an_incident(**changes: Any) -> Incident:
    facts: dict[str, Any] = {
        "incident_id": "inc-1",
        "life": LIFE,
        "slot": SLOT,
        "node_name": "node-1",
        "pool": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "state": IncidentState.RECOVERING,
        "severity": Severity.MAJOR,
        "fault_key": "hp:NvidiaErrorReboot",
        "first_signal_at": at(0),
        "opened_at": at(0),
    }
    return Incident.model_validate({**facts, **changes})


@pytest.mark.parametrize(
    ("state", "attempt", "branch", "now", "outcome"),
    [
        (JobState.RUNNING, 1, "", 60, None),
        (JobState.PENDING, 1, "", 60, None),
        (JobState.STARTING, 2, "", 60, None),
        (JobState.RUNNING, 2, "", 60, "JOBS_RESUMED"),
        (JobState.SUCCEEDED, 1, "", 60, "JOBS_RESUMED"),
        (JobState.CANCELLED, 1, "", 60, "JOBS_RESUMED"),
        (JobState.PENDING, 1, "RETURNED", 60, None),
        (JobState.PENDING, 1, "WAITING_FOR_PERSON", 60, "QUEUED"),
        (JobState.PENDING, 1, "WAITING_FOR_PERSON", 20, None),
        (JobState.PENDING, 1, "STOOD_DOWN", 60, "QUEUED"),
    ],
)
def test_job_wait_ends_once_the_jobs_are_settled(
    state: JobState, attempt: int, branch: str, now: float, outcome: str | None
) -> None:
    affected = AffectedJobState(
        affected=AffectedJob(job_id="job-1", attempt=1),
        job=a_job(state=state, current_attempt=attempt),
        interrupted_attempt=an_attempt(ended_at=at(10)),
    )

    answer = evaluate_jobs_resumed([affected], an_incident(node_branch=branch), Policy(), now=at(now))

    assert (answer.outcome if answer else None) == outcome


@pytest.mark.parametrize(
    ("local_queue", "attempt", "late", "outcome"),
    [("default", 2, True, "QUEUED"), ("default", 2, False, None), ("default", 1, True, None), ("", 2, True, None)],
)
def test_job_that_waits_in_kueue_does_not_fail_a_recovery(
    local_queue: str, attempt: int, late: bool, outcome: str | None
) -> None:
    seconds = Policy().jobs.resume_deadline_seconds
    affected = AffectedJobState(
        affected=AffectedJob(job_id="job-1", attempt=1),
        job=a_job(state=JobState.STARTING, current_attempt=attempt, local_queue=local_queue),
        interrupted_attempt=an_attempt(ended_at=at(10)),
    )

    answer = evaluate_jobs_resumed([affected], an_incident(), Policy(), now=at(10 + seconds - (not late)))

    assert (answer.outcome if answer else None) == outcome


def test_job_wait_continues_while_a_job_is_starting() -> None:
    pending_job = AffectedJobState(
        affected=AffectedJob(job_id="a", attempt=1), job=a_job(state=JobState.PENDING), interrupted_attempt=None
    )
    starting_job = AffectedJobState(
        affected=AffectedJob(job_id="b", attempt=1),
        job=a_job(state=JobState.STARTING, current_attempt=2),
        interrupted_attempt=None,
    )
    incident = an_incident(node_branch="WAITING_FOR_PERSON")

    assert evaluate_jobs_resumed([pending_job, starting_job], incident, Policy(), now=at(900)) is None


@pytest.mark.parametrize(
    ("why", "branch", "stop", "is_back"),
    [
        ("the node was found well before its turn", "RETURNED", False, True),
        ("the node was left to a person", "STOOD_DOWN", False, True),
        ("the node branch may stop it yet", "", False, False),
        ("it was asked to stop", "RETURNED", True, False),
    ],
)
def test_job_without_a_stop_counts_as_resumed_after_the_repair(
    why: str, branch: str, stop: bool, is_back: bool
) -> None:
    request = StopRequest(attempt=1, reason="", by="x", outcome=AttemptState.LOST, grace_seconds=1, requested_at=at(5))
    job = a_job(state=JobState.RUNNING, current_attempt=1, stop_request=request if stop else None)
    affected = AffectedJobState(
        affected=AffectedJob(job_id="job-1", attempt=1), job=job, interrupted_attempt=an_attempt(ended_at=None)
    )

    answer = evaluate_jobs_resumed([affected], an_incident(node_branch=branch), Policy(), now=at(100))

    assert (answer is not None) is is_back, why


@pytest.mark.parametrize(
    ("state", "ended_seconds", "is_awaited"),
    [(AttemptState.STOPPED, -1, False), (AttemptState.STOPPED, 1, True), (AttemptState.LOST, -1, True)],
)
def test_job_stopped_before_the_incident_is_not_awaited(
    state: AttemptState, ended_seconds: int, *, is_awaited: bool
) -> None:
    incident = an_incident()
    affected = AffectedJobState(
        affected=AffectedJob(job_id="job-1", attempt=1),
        job=a_job(state=JobState.PENDING, current_attempt=1),
        interrupted_attempt=an_attempt(state=state, ended_at=incident.opened_at + timedelta(seconds=ended_seconds)),
    )

    answer = evaluate_jobs_resumed([affected], incident, Policy(), now=incident.opened_at + timedelta(seconds=2))

    assert (answer is None) is is_awaited


def test_guardrail_wait_ends_once_the_incident_may_proceed() -> None:
    assert evaluate_guardrails_cleared(is_allowed=False) is None
    assert evaluate_guardrails_cleared(is_allowed=True)


# ---------------------------------------------------------------- health checks

CHECKS = RepairPolicy(deep_checks_after=("hardware",), test_job_image="registry/node-test:1")


@pytest.mark.parametrize(
    ("facts", "policy", "kind"),
    [
        (("hardware", "deep", True), CHECKS, CheckKind.DEEP),
        (("hardware", "deep", False), CHECKS, CheckKind.TEST_JOB),
        (("mixed", "deep", True), CHECKS, CheckKind.TEST_JOB),
        (("hardware", "basic", True), CHECKS, CheckKind.TEST_JOB),
        (("info", "basic", True), CHECKS, CheckKind.BASIC),
        (("hardware", "none", True), CHECKS, CheckKind.BASIC),
        (("hardware", "deep", True), RepairPolicy(), CheckKind.BASIC),
    ],
)
def test_node_gets_the_strongest_check_that_the_site_allows(
    facts: tuple[str, str, bool], policy: RepairPolicy, kind: CheckKind
) -> None:
    fault_class, asks_for, is_hyperpod = facts
    check_facts = CheckFacts(fault_class=fault_class, asks_for=asks_for, is_hyperpod=is_hyperpod)

    decision = choose_check(check_facts, policy)

    assert decision.kind is kind
    assert decision == choose_check(CheckFacts.model_validate(check_facts.to_json()), policy)
    assert all(alternative.why_not for alternative in decision.alternatives)


@pytest.mark.parametrize(
    ("label", "seconds", "result"),
    [
        ("Passed", 59, CheckResult.PENDING),
        ("Passed", 60, CheckResult.PASSED),
        ("InProgress", 60, CheckResult.PENDING),
        ("", 60, CheckResult.PENDING),
        ("Failed", 60, CheckResult.FAILED),
    ],
)
def test_deep_check_result_counts_only_after_a_minimum_time(label: str, seconds: float, result: CheckResult) -> None:
    node = a_node(1, labels={DEEP_CHECK_STATUS: label})

    assert judge_deep_check(node, started_at=at(0), min_seconds=60, now=at(seconds)) is result


@pytest.mark.parametrize(("returns", "margin"), [(0, 10), (1, 40), (3, 640), (9, 640)])
def test_repeatedly_faulty_node_must_stay_healthy_for_longer(returns: int, margin: int) -> None:
    assert margin_seconds(returns, RepairPolicy()) == margin
