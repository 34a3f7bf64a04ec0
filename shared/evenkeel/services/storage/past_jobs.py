"""The latest runs that ended by themselves, from which run times are estimated."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evenkeel.domain.capacity.run_times import PastJob
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Ledger, Table

MAX_RUNS = 200
"""Jobs that are read, newest first: one page."""


def load_past_jobs(ledger: Ledger) -> tuple[PastJob, ...]:
    """Return the run times of the last jobs that succeeded, from their first start, interruptions included.

    A row of another shape is left out: one run less changes an estimate little. The sweep reports such rows.
    """
    page = ledger.by_state(Table.JOBS, f"JOB#{JobState.SUCCEEDED}", limit=MAX_RUNS, newest_first=True)
    return tuple(past_job for row in page.rows if (past_job := _past_job(row.doc)) is not None)


def _past_job(document: Mapping[str, Any]) -> PastJob | None:
    """Return the run of a job; None if it never started, or if this release cannot read it."""
    try:
        started_at, ended_at = (datetime.fromisoformat(document[name]) for name in ("startedAt", "endedAt"))
        spec = document["spec"]
        return PastJob(
            spec["team"], document.get("owner", ""), spec.get("jobType", ""), (ended_at - started_at).total_seconds()
        )
    except (KeyError, TypeError, ValueError):
        return None
