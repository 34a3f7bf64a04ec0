"""Count the jobs of the fleet by state, by class and by team, with the longest and the mean wait."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.scheduling.burst_checks import BurstCheckAction
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.storage import (
    pagination,
    team_setup,
)

Json = dict[str, Any]
_MAX_JOBS = 2000
"""Jobs of one state that the overview counts. Beyond it, the count is marked as a lower bound."""


class JobCounts(TypedDict):
    """Jobs of one state, and whether more exist than were read."""

    rows: Sequence[Row]
    is_lower_bound: bool


def count_jobs_by_state(ledger: Ledger) -> dict[JobState, JobCounts]:
    counts: dict[JobState, JobCounts] = {}
    for state in (state for state in JobState if not state.has_ended):
        state_rows, more = pagination.read_partition(ledger, Table.JOBS, f"JOB#{state}", at_most=_MAX_JOBS)
        counts[state] = JobCounts(rows=state_rows, is_lower_bound=more)
    return counts


def job_counts_document(counts: Mapping[JobState, JobCounts], context: Context) -> Json:
    classes: dict[str, dict[JobState, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for state, job_count in counts.items():
        for row in job_count["rows"]:
            # Read without parsing: thousands of rows are counted, and only three fields of each matter.
            classes[row.doc["spec"].get("priorityClass") or ""][state].append(row.doc)
    values = team_setup.load_setup(context.ledger).setup.fleet.priority_classes

    def rank(name: str) -> tuple[bool, int, str]:
        """Highest priority first; classes without a value by name; jobs without a class last."""
        return name == "", -values.get(name, 0), name

    return {
        "counts": {state: len(job_count["rows"]) for state, job_count in counts.items()},
        "isLowerBound": any(job_count["is_lower_bound"] for job_count in counts.values()),
        "classes": [class_counts(name, classes[name], context.now) for name in sorted(classes, key=rank)],
        "mixed": _mixed_counts(counts),
        "waitingForCheck": _waiting_for_check(counts),
        "belowRequestedSize": _below_requested_size(counts),
        "unmanaged": unmanaged_summary(context),
    }


def _mixed_counts(counts: Mapping[JobState, JobCounts]) -> Json:
    """Count the jobs that hold committed and rented nodes together, and the nodes of each part."""
    states = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
    mixed_docs = [row.doc for state in states for row in counts[state]["rows"] if row.doc.get("rentedNodes")]
    rented_nodes = sum(doc["rentedNodes"] for doc in mixed_docs)
    return {
        "jobs": len(mixed_docs),
        "committedNodes": sum(doc["size"] for doc in mixed_docs) - rented_nodes,
        "rentedNodes": rented_nodes,
    }


def _below_requested_size(counts: Mapping[JobState, JobCounts]) -> Json:
    """Count the elastic jobs that run on fewer nodes than requested, with the nodes that they have and requested."""
    docs = [
        row.doc
        for row in counts[JobState.RUNNING]["rows"]
        if row.doc["spec"].get("elastic") and 0 < (row.doc.get("size") or 0) < row.doc["spec"]["nodes"]
    ]
    return {
        "jobs": len(docs),
        "nodes": sum(doc["size"] for doc in docs),
        "requestedNodes": sum(doc["spec"]["nodes"] for doc in docs),
    }


def _waiting_for_check(counts: Mapping[JobState, JobCounts]) -> int:
    """Count the jobs in Kueue's queue whose last answer to the check `evenkeel.io/burst` was not `Ready`."""
    answers = (row.doc.get("placement") for row in counts[JobState.STARTING]["rows"] if row.doc.get("localQueue"))
    return sum(answer is not None and f"/{BurstCheckAction.ADMIT}/" not in answer["key"] for answer in answers)


def unmanaged_summary(context: Context) -> Json:
    """Count the workloads with accelerators that Evenkeel did not start, as the last sweep saw them."""
    workloads = read_jobs.list_unmanaged(context)["items"]
    return {
        "workloads": len(workloads),
        "pods": sum(workload["pods"] for workload in workloads),
        "gpus": sum(workload["accelerators"] for workload in workloads),
    }


def class_counts(name: str, states: Mapping[JobState, list[Json]], now: datetime) -> Json:
    """Return the counts of a priority class. A preempted job counts only as preempted until it starts again."""
    preempted_docs = [doc for docs in states.values() for doc in docs if doc.get("isPreempted")]
    other_docs = {state: [doc for doc in docs if not doc.get("isPreempted")] for state, docs in states.items()}
    running_docs = [*other_docs.get(JobState.RUNNING, ()), *other_docs.get(JobState.STOPPING, ())]
    waiting_docs = [*other_docs.get(JobState.PENDING, ()), *other_docs.get(JobState.STARTING, ())]
    run_seconds = [_age_seconds(doc.get("startedAt") or doc["submittedAt"], now) for doc in running_docs]
    wait = [_age_seconds(doc["submittedAt"], now) for doc in waiting_docs if not doc.get("startedAt")]
    return {
        "priorityClass": name or None,
        "running": len(running_docs),
        "pending": len(waiting_docs),
        "preempted": len(preempted_docs),
        "suspended": len(other_docs.get(JobState.SUSPENDED, ())),
        "averageRunSeconds": _mean_or_none(run_seconds),
        "longestRunSeconds": max(run_seconds, default=None),
        "averageWaitSeconds": _mean_or_none(wait),
        "longestWaitSeconds": max(wait, default=None),
    }


def waits_by_team(counts: Mapping[JobState, JobCounts], now: datetime) -> dict[str, int]:
    """Return the 90th percentile of the waits of each team's open jobs, by nearest rank.

    The wait of a job is the time from its submission to its first start; of a job that never started, until now.
    """
    waits: dict[str, list[int]] = defaultdict(list)
    for state, job_count in counts.items():
        for row in job_count["rows"]:
            started_at = row.doc.get("startedAt")
            if started_at or state in (JobState.PENDING, JobState.STARTING):
                until = datetime.fromisoformat(started_at) if started_at else now
                waits[row.doc["spec"]["team"]].append(_age_seconds(row.doc["submittedAt"], until))
    return {team: sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1] for team, seconds in waits.items()}


def _age_seconds(instant: str, now: datetime) -> int:
    return max(0, round((now - datetime.fromisoformat(instant)).total_seconds()))


def _mean_or_none(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None
