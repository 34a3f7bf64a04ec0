"""How an incident ends, and when a run that failed is followed by another one."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from evenkeel.domain.health.faults import Rung
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.health.policy import WatchPolicy
from evenkeel.domain.recovery.approval import beyond_approval, is_approved
from evenkeel.domain.recovery.plan import calls_for_person
from evenkeel.domain.values import Value


class BranchEnd(Value):
    """How one part of a recovery ended."""

    outcome: str
    reason: str = ""


def error_message(reason: str) -> str:
    """Return what a function said as it failed, without the JSON and the stack that Lambda puts around it.

    Source: https://docs.aws.amazon.com/lambda/latest/dg/python-exceptions.html. A long one arrives cut off.
    """
    found = _ERROR_MESSAGE.search(reason)
    return f"{reason[: found.start()]}{found['said']}" if found else reason


_ERROR_MESSAGE = re.compile(r'\{[^{}]*?"errorMessage": ?"(?P<said>(?:[^"\\]|\\.)*)')


class IncidentEnd(Value):
    """The end of an incident, and whether a person is called."""

    state: IncidentState
    reason: str

    @property
    def needs_page(self) -> bool:
        """Whether a person must act."""
        return self.state in PAGED


PAGED = (IncidentState.WAITING_FOR_PERSON, IncidentState.JOB_NOT_RESUMED, IncidentState.FAILED)

_PLANNED = {
    "OBSERVE": IncidentState.OBSERVED,
    "NOTHING": IncidentState.OBSERVED,
    "STAND_DOWN": IncidentState.STOOD_DOWN,
    "LATER": IncidentState.STOOD_DOWN,
    "DECLINED": IncidentState.OBSERVED,
}
_GOOD_NODE = ("RETURNED", "NOT_OURS", "GONE", "NOT_NEEDED")
_GOOD_JOBS = ("JOBS_RESUMED", "QUEUED", "NO_JOBS")


def choose_incident_end(
    rungs: Sequence[str], plan: BranchEnd | None, node: BranchEnd | None, jobs: BranchEnd | None, failure: str
) -> IncidentEnd:
    """Decide how an incident ends. The worst part decides, and no failure ends well.

    Args:
        rungs: Of its ladder, in order.
        plan: The plan's outcome; None where there was no plan.
        node: How the node branch ended; None where it did not run.
        jobs: How the job branch ended; None where it did not run.
        failure: Why the workflow itself failed; empty where it did not.
    """
    if failure:
        return IncidentEnd(state=IncidentState.FAILED, reason=f"Evenkeel failed: {failure}")
    if plan is not None and plan.outcome in _PLANNED:
        if plan.outcome == "NOTHING" and calls_for_person(rungs):
            return IncidentEnd(state=IncidentState.WAITING_FOR_PERSON, reason=plan.reason)
        return IncidentEnd(state=_PLANNED[plan.outcome], reason=plan.reason)
    if plan is None or node is None or jobs is None:
        return IncidentEnd(
            state=IncidentState.FAILED, reason="Evenkeel failed: the recovery workflow ended without an outcome."
        )
    node, jobs = node.but(reason=error_message(node.reason)), jobs.but(reason=error_message(jobs.reason))
    both = f"{node.reason} {jobs.reason}".strip()
    if node.outcome not in (*_GOOD_NODE, "WAITING_FOR_PERSON", "STOOD_DOWN"):
        return IncidentEnd(state=IncidentState.FAILED, reason=f"The node branch failed: {both}")
    if jobs.outcome not in (*_GOOD_JOBS, "DEADLINE_PASSED"):
        return IncidentEnd(
            state=IncidentState.FAILED, reason=f"The job branch failed: {jobs.reason} {node.reason}".strip()
        )
    if node.outcome == "WAITING_FOR_PERSON":
        return IncidentEnd(state=IncidentState.WAITING_FOR_PERSON, reason=both)
    if jobs.outcome == "DEADLINE_PASSED":
        return IncidentEnd(state=IncidentState.JOB_NOT_RESUMED, reason=f"{jobs.reason} {node.reason}".strip())
    if node.outcome == "STOOD_DOWN":
        return IncidentEnd(state=IncidentState.STOOD_DOWN, reason=both)
    return IncidentEnd(state=IncidentState.RECOVERED, reason=both)


def why_replan(incident: Incident, rungs: Sequence[str], plan_ended: str) -> str:
    """Say what came since the plan that it does not answer, in one sentence; empty where it answers all.

    A repair looks again before each of its steps. A plan without one would close the incident over what joined it
    meanwhile.

    Args:
        incident: The incident as it stands.
        rungs: Of its ladder, in order.
        plan_ended: What became of the plan, as its workflow says.
    """
    plan = incident.plan
    if plan_ended == "DECLINED" and is_approved(incident):
        return "The approval came just as its deadline passed."
    if incident.node_branch == "STOOD_DOWN" and is_approved(incident) and (more := beyond_approval(incident, rungs)):
        return more
    if plan is None or plan.run != incident.run or plan.repairs_node or not plan.rungs or plan.outcome in _NOT_OURS:
        return ""
    if Rung(rungs[0]).strength > Rung(plan.rungs[0]).strength:
        return f"A later signal ({incident.fault_key}) asks for {rungs[0]}, which the plan does not include."
    if plan.outcome == "NOTHING" and len(incident.independent_sources) >= _MIN_SOURCES > plan.independent_source_count:
        return "A second, independent source reported the fault after the plan was made."
    if plan.had_recovered and incident.recovered_at is None:
        return "The node became unhealthy again after it had recovered."
    return ""


_NOT_OURS = ("STAND_DOWN", "LATER")
_MIN_SOURCES = 2


def has_next_run(decided: IncidentEnd, incident: Incident, policy: WatchPolicy) -> bool:
    """Whether another run follows a failure of Evenkeel, before a person is paged."""
    return decided.state is IncidentState.FAILED and incident.run < policy.max_runs


def next_run_at(incident: Incident, policy: WatchPolicy) -> datetime | None:
    """Return when the next run of an incident whose run failed is due; None where none failed. Doubles each time."""
    if incident.failed_at is None:
        return None
    return incident.failed_at + timedelta(seconds=policy.failed_run_backoff_seconds * 2 ** (incident.run - 1))
