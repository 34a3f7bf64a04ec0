"""Conditions that a recovery waits for: the node is back, the node is valid, the jobs run again."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.health.assessment import signals_of
from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incident_updates import has_failed_after_return
from evenkeel.domain.health.incidents import AffectedJob, Incident, NodeBranchResult, RepairProgress
from evenkeel.domain.health.signal_sources import signal_source
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.other_controllers import controller_mark
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.repair_requests import (
    REBOOT,
    REPLACE,
    WAIT_FOR_CONTROLLER,
    WAIT_FOR_KARPENTER,
    WAIT_FOR_NODE_GROUP,
    WAIT_RUNGS,
    find_failure_since,
)
from evenkeel.domain.recovery.validation import CheckResult, Validity
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import WaitAnswer, WaitOutcome

NODE_LOST_OUTCOMES = (
    NodeBranchResult.WAITING_FOR_PERSON,
    NodeBranchResult.STOOD_DOWN,
    NodeBranchResult.NOT_NEEDED,
    NodeBranchResult.GONE,
)
"""Ends of the node branch that yield no usable node."""


def evaluate_node_back(
    slot_state: SlotState,
    *,
    rung: str,
    boot_id_before: str,
    owner: str = "",
    since: datetime | None = None,
    progress: tuple[RepairProgress, ...] = (),
) -> WaitAnswer | None:
    """Return the answer once the slot has a Ready node: a replacement, or the original after a new boot; else None.

    After a replacement request the original node is never the answer, because it will be terminated. The wait also ends
    if the provider reports that the request failed, or if a node without a slot is gone: only HyperPod has slots.

    Args:
        slot_state: The node slot now.
        rung: The rung that was requested; empty if none.
        boot_id_before: Boot id of the node before the request; empty if unknown.
        owner: Owner of the repair.
        since: Time of the request.
        progress: Repair steps that the provider reported, oldest first.
    """
    has_slot = owner not in (NodeOwner.KARPENTER, NodeOwner.NODE_GROUP)
    if (
        not has_slot
        and rung in (REPLACE, WAIT_FOR_KARPENTER, WAIT_FOR_NODE_GROUP)
        and not slot_state.original.is_listed
    ):
        return WaitAnswer(outcome=WaitOutcome.GONE, reason="The node is gone.")
    if rung == WAIT_FOR_CONTROLLER:
        return _evaluate_controller_release(slot_state)
    failure = find_failure_since(progress, since) if since is not None and rung and rung not in WAIT_RUNGS else None
    if failure is not None:
        return WaitAnswer(outcome=WaitOutcome.REPAIR_FAILED, reason=f"HyperPod reported {failure.code}.")
    if slot_state.replacement and slot_state.replacement.is_ready:
        return _node_back_answer(slot_state.replacement, "The replacement node is Ready.")
    original = slot_state.original
    if rung == REPLACE or not original.is_ready or original.node is None:
        return None
    if boot_id_before and original.node.boot_id == boot_id_before:
        return None
    return _node_back_answer(original, "The node rebooted and is Ready.")


def _evaluate_controller_release(slot_state: SlotState) -> WaitAnswer | None:
    """Return the answer once another controller has replaced the node, released it, or given up; None until then."""
    if slot_state.replacement and slot_state.replacement.is_ready:
        return _node_back_answer(slot_state.replacement, "The replacement node is Ready.")
    mark = controller_mark(slot_state.original.node)
    if mark is not None and mark.has_given_up:
        return WaitAnswer(
            outcome=WaitOutcome.REPAIR_FAILED, reason=f"{mark.controller} gave up its repair ({mark.mark})."
        )
    if mark is not None or not slot_state.original.is_ready:
        return None
    return _node_back_answer(slot_state.original, "The other controller released the node, which is Ready.")


def _node_back_answer(observed_node: ObservedNode, reason: str) -> WaitAnswer:
    assert observed_node.node
    facts = {
        "instanceId": observed_node.instance_id,
        "nodeName": observed_node.node.name,
        "bootId": observed_node.node.boot_id,
    }
    return WaitAnswer(outcome=WaitOutcome.NODE_BACK, reason=reason, facts=facts)


def evaluate_node_valid(
    observed_node: ObservedNode,
    validity: Validity,
    *,
    opened_at: datetime,
    last_signal_at: datetime | None,
    margin: int,
    now: datetime,
    check: CheckResult = CheckResult.PASSED,
) -> WaitAnswer | None:
    """Return the answer once the node has been valid for the margin, or has failed again; None until then.

    Args:
        observed_node: The node in the slot.
        validity: Whether the node may take work now.
        opened_at: Start of the validation.
        last_signal_at: Latest fault signal of this node.
        margin: Seconds that the node must stay valid.
        now: The current time.
        check: Result of the additional check of this node.
    """
    if check is CheckResult.FAILED:
        return WaitAnswer(outcome=WaitOutcome.INVALID, reason="The node failed its health check.")
    if last_signal_at is not None and last_signal_at > opened_at:
        return WaitAnswer(outcome=WaitOutcome.INVALID, reason="The node failed again during validation.")
    if check is CheckResult.PENDING or not validity.is_valid or now - opened_at < timedelta(seconds=margin):
        return None
    name = observed_node.node.name if observed_node.node else ""
    return WaitAnswer(
        outcome=WaitOutcome.VALID,
        reason=validity.reason,
        facts={"instanceId": observed_node.instance_id, "nodeName": name},
    )


def why_reboot_is_too_weak(incident: Incident, policy: Policy, now: datetime) -> str:
    """Return why the faulty node stays invalid after Evenkeel's reboot, as one sentence; empty if it may be valid.

    Only a replacement clears its fault, which was reported after the request. An old signal does not count, as in the
    guardrail STALE_EVIDENCE.
    """
    fault = IncidentFault.of(incident, policy.catalogue)
    is_recent = now - incident.last_fault_at < timedelta(seconds=policy.repair.guardrails.stale_after_seconds)
    is_too_weak = (fault.node_rungs[:1], incident.repairs[-1:]) == ((REPLACE,), (REBOOT,))
    return f"No reboot clears {fault.fault.name}." if is_too_weak and is_recent and not incident.has_recovered else ""


def has_failed_since_boot(
    incident: Incident, node: KubernetesNode | None, *, requested_at: datetime, boot_id_before: str
) -> bool:
    """Whether a fault was reported after the node came back from the reboot of its repair, and is not gone.

    A fault that the node object shows does not count. Its mark may outlive the boot, and `judge_node` sees it.

    Args:
        incident: The incident with its signals.
        node: The node object of the repaired node; None if it is gone.
        requested_at: Time of the repair request.
        boot_id_before: Boot id of the node before the request; empty if unknown.
    """
    has_rebooted = node is not None and boot_id_before and node.boot_id and node.boot_id != boot_id_before
    if not has_rebooted or node is None or node.ready_since is None or node.ready_since <= requested_at:
        return False
    return not incident.has_recovered and any(
        signal.last_at > node.ready_since
        for signal in signals_of(incident)
        if not signal_source(signal.source).is_on_node
    )


class AffectedJobState(Value):
    """An interrupted job and its current state."""

    affected: AffectedJob
    job: Job | None
    interrupted_attempt: Attempt | None


def evaluate_jobs_resumed(
    job_states: Iterable[AffectedJobState], incident: Incident, policy: Policy, *, now: datetime
) -> WaitAnswer | None:
    """Return the answer once each interrupted job runs again, has ended, or waits in the queue; None until then.

    A pending job counts as queued only after a grace, and only if the node branch yields no node. Until then the node
    branch may still return the capacity of the job.
    """
    waiting_job_ids: list[str] = []
    for job in job_states:
        if job.job is None or _has_resumed_or_ended(job.job, job.affected) or _was_never_interrupted(job, incident):
            continue
        if not _is_queued(job, incident, policy, now):
            return _answer_after_return(incident, policy)
        waiting_job_ids.append(job.affected.job_id)
    if waiting_job_ids:
        names = ", ".join(waiting_job_ids)
        return WaitAnswer(
            outcome=WaitOutcome.QUEUED,
            reason=f"Waiting in the queue for capacity: {names}.",
            facts={"jobs": waiting_job_ids},
        )
    return WaitAnswer(outcome=WaitOutcome.JOBS_RESUMED, reason="Every interrupted job runs again or has ended.")


def _answer_after_return(incident: Incident, policy: Policy) -> WaitAnswer | None:
    """Return the answer if the node failed again after its return, so that another incident must repair it."""
    if not has_failed_after_return(incident, policy.catalogue):
        return None
    reason = "The node failed again after its return to service. The next incident waits for the jobs."
    return WaitAnswer(outcome=WaitOutcome.QUEUED, reason=reason)


def _has_resumed_or_ended(job: Job, affected_job: AffectedJob) -> bool:
    return job.state.is_at_rest or (job.current_attempt > affected_job.attempt and job.state is JobState.RUNNING)


def _was_never_interrupted(affected_job: AffectedJobState, incident: Incident) -> bool:
    """Whether the incident never interrupted the job.

    The node branch ended and no service stopped the job, or the job was stopped for another reason before the incident.
    """
    job, attempt = affected_job.job, affected_job.interrupted_attempt
    if job is None or attempt is None:
        return False
    if attempt.ended_at:
        return attempt.state is AttemptState.STOPPED and attempt.ended_at < incident.opened_at
    return bool(incident.node_branch) and job.state is JobState.RUNNING and job.stop_of(attempt.attempt) is None


def overdue_at(
    job_states: Iterable[AffectedJobState], incident: Incident, policy: Policy, *, deadline_at: datetime, now: datetime
) -> datetime:
    """Return when interrupted jobs that do not run yet are overdue: `deadline_at`, or later if a job stopped later.

    A hold keeps a job running on its node. The job cannot be overdue before the node branch stops it.
    """
    stop_times = [
        _stop_time(job, incident, now)
        for job in job_states
        if job.job and not _has_resumed_or_ended(job.job, job.affected)
    ]
    deadline = timedelta(seconds=policy.jobs.resume_deadline_seconds)
    return max([deadline_at, *(at + deadline for at in stop_times if at is not None)])


def _stop_time(affected_job: AffectedJobState, incident: Incident, now: datetime) -> datetime | None:
    """Return when the interrupted attempt ended or was asked to stop; None if no service will ask it to stop.

    `now` if a service will still ask it to stop.
    """
    job, attempt = affected_job.job, affected_job.interrupted_attempt
    if attempt is None or attempt.ended_at:
        return attempt.ended_at if attempt else None
    request = job.stop_of(attempt.attempt) if job else None
    if request:
        return request.requested_at
    return None if incident.node_branch else now


def _is_queued(affected_job: AffectedJobState, incident: Incident, policy: Policy, now: datetime) -> bool:
    job, attempt = affected_job.job, affected_job.interrupted_attempt
    since = attempt.ended_at if attempt and attempt.ended_at else incident.opened_at
    if (
        job
        and job.state is JobState.STARTING
        and job.local_queue
        and job.current_attempt > affected_job.affected.attempt
    ):
        # Kueue alone decides when it admits the job, so a late admission is not a failure of the recovery.
        return now - since >= timedelta(seconds=policy.jobs.resume_deadline_seconds)
    if job is None or job.state is not JobState.PENDING or incident.node_branch not in NODE_LOST_OUTCOMES:
        return False
    return now - since >= timedelta(seconds=policy.watch.execution_grace_seconds)


def evaluate_repair_possible(
    provider_busy: str, *, has_work: bool, work_may_run_until: datetime | None, now: datetime
) -> WaitAnswer | None:
    """Return the answer once neither the provider's own change nor a job delays the repair; None until then."""
    if provider_busy or (has_work and work_may_run_until is not None and now < work_may_run_until):
        return None
    return WaitAnswer(outcome=WaitOutcome.REPAIR_POSSIBLE, reason="Nothing blocks the repair any more.")


def evaluate_guardrails_cleared(*, is_allowed: bool) -> WaitAnswer | None:
    """Return the answer once no hold and no guardrail blocks the next action; None until then."""
    return (
        WaitAnswer(outcome=WaitOutcome.RELEASED, reason="No hold and no guardrail blocks the action any more.")
        if is_allowed
        else None
    )
