"""Decide how an incident ends, and when another run follows a failed run."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from evenkeel.domain.health.faults import Rung
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import Incident, IncidentState, NodeBranchResult, PlanOutcome
from evenkeel.domain.recovery.approval import is_approved, why_beyond_approval
from evenkeel.domain.recovery.plan import should_ask_person
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import WaitOutcome


class BranchEnd(Value):
    """Outcome of one part of a recovery: the plan, the node branch or the job branch."""

    outcome: str
    """As the workflow wrote it: a `PlanOutcome`, `NodeBranchResult` or `WaitOutcome`, or a text that no enum has."""
    reason: str = ""


def error_message(reason: str) -> str:
    """Return the error message of a failed function, without the JSON and the stack trace that Lambda adds.

    Source: https://docs.aws.amazon.com/lambda/latest/dg/python-exceptions.html. Lambda truncates long messages.
    """
    match = _ERROR_MESSAGE.search(reason)
    return f"{reason[: match.start()]}{match['message']}" if match else reason


_ERROR_MESSAGE = re.compile(r'\{[^{}]*?"errorMessage": ?"(?P<message>(?:[^"\\]|\\.)*)')


class IncidentEnd(Value):
    """The final state of an incident, with the reason."""

    state: IncidentState
    reason: str


ALERTING_STATES = (IncidentState.WAITING_FOR_PERSON, IncidentState.JOB_NOT_RESUMED, IncidentState.FAILED)

_PLANNED: dict[str, IncidentState] = {
    PlanOutcome.OBSERVE: IncidentState.OBSERVED,
    PlanOutcome.NOTHING: IncidentState.OBSERVED,
    PlanOutcome.STAND_DOWN: IncidentState.STOOD_DOWN,
    PlanOutcome.LATER: IncidentState.STOOD_DOWN,
    WaitOutcome.DECLINED: IncidentState.OBSERVED,
}
_SUCCESSFUL_JOB_OUTCOMES = (WaitOutcome.JOBS_RESUMED, WaitOutcome.QUEUED, "NO_JOBS")


def choose_incident_end(
    rungs: Sequence[str], plan: BranchEnd | None, node: BranchEnd | None, jobs: BranchEnd | None, failure: str
) -> IncidentEnd:
    """Return the final state of an incident. The worst outcome of its parts decides; every failure ends in FAILED.

    Args:
        rungs: The rungs of the incident, in order.
        plan: Outcome of the plan; None if there was no plan.
        node: Outcome of the node branch; None if it did not run.
        jobs: Outcome of the job branch; None if it did not run.
        failure: Why the workflow itself failed; empty if it did not.
    """
    if failure:
        return IncidentEnd(state=IncidentState.FAILED, reason=f"Evenkeel failed: {failure}")
    if plan is not None and plan.outcome in _PLANNED:
        if plan.outcome == PlanOutcome.NOTHING and should_ask_person(rungs):
            return IncidentEnd(state=IncidentState.WAITING_FOR_PERSON, reason=plan.reason)
        return IncidentEnd(state=_PLANNED[plan.outcome], reason=plan.reason)
    if plan is None or node is None or jobs is None:
        return IncidentEnd(
            state=IncidentState.FAILED, reason="Evenkeel failed: the recovery workflow ended without an outcome."
        )
    node, jobs = node.replace(reason=error_message(node.reason)), jobs.replace(reason=error_message(jobs.reason))
    both_reasons = f"{node.reason} {jobs.reason}".strip()
    if node.outcome not in tuple(NodeBranchResult):
        return IncidentEnd(state=IncidentState.FAILED, reason=f"The node branch failed: {both_reasons}")
    if jobs.outcome not in (*_SUCCESSFUL_JOB_OUTCOMES, WaitOutcome.DEADLINE_PASSED):
        return IncidentEnd(
            state=IncidentState.FAILED,
            reason=f"The job branch failed: {jobs.reason} {node.reason}".strip(),
        )
    if node.outcome == NodeBranchResult.WAITING_FOR_PERSON:
        return IncidentEnd(state=IncidentState.WAITING_FOR_PERSON, reason=both_reasons)
    if jobs.outcome == WaitOutcome.DEADLINE_PASSED:
        return IncidentEnd(state=IncidentState.JOB_NOT_RESUMED, reason=f"{jobs.reason} {node.reason}".strip())
    if node.outcome == NodeBranchResult.STOOD_DOWN:
        return IncidentEnd(state=IncidentState.STOOD_DOWN, reason=both_reasons)
    return IncidentEnd(state=IncidentState.RECOVERED, reason=both_reasons)


def why_new_plan(incident: Incident, rungs: Sequence[str], workflow_outcome: str) -> str:
    """Return why the incident needs a new plan, as one sentence; empty if its present plan is enough.

    A plan with repairs decides again before each step. A plan without repairs does not, so the incident would end
    without an answer to later signals.

    Args:
        incident: The incident now.
        rungs: The rungs of the incident, in order.
        workflow_outcome: Outcome of the plan, from the workflow.
    """
    plan = incident.plan
    if workflow_outcome == WaitOutcome.DECLINED and is_approved(incident):
        return "The approval came just as its deadline passed."
    if (
        incident.node_branch == NodeBranchResult.STOOD_DOWN
        and is_approved(incident)
        and (beyond_reason := why_beyond_approval(incident, rungs))
    ):
        return beyond_reason
    if (
        plan is None
        or plan.run != incident.run
        or plan.repairs_node
        or not plan.rungs
        or plan.outcome in _OUTCOMES_WITHOUT_REPAIR
    ):
        return ""
    if Rung(rungs[0]).strength > Rung(plan.rungs[0]).strength:
        return f"A later signal ({incident.fault_key}) requires {rungs[0]}, which the plan does not include."
    if (
        plan.outcome == PlanOutcome.NOTHING
        and len(incident.independent_sources) >= _MIN_SOURCES > plan.independent_source_count
    ):
        return "A second, independent source reported the fault after the plan was made."
    if plan.had_recovered and incident.recovered_at is None:
        return "The node became unhealthy again after it had recovered."
    return ""


_OUTCOMES_WITHOUT_REPAIR = ("STAND_DOWN", "LATER")
_MIN_SOURCES = 2


def has_next_run(end: IncidentEnd, incident: Incident, policy: WatchPolicy) -> bool:
    """Whether another run follows a failure of Evenkeel, before a person is paged."""
    return end.state is IncidentState.FAILED and incident.run < policy.max_runs


def next_run_at(incident: Incident, policy: WatchPolicy) -> datetime | None:
    """Return when the next run after a failed run is due; None if no run failed. The pause doubles with each run."""
    if incident.failed_at is None:
        return None
    return incident.failed_at + timedelta(seconds=policy.failed_run_backoff_seconds * 2 ** (incident.run - 1))
