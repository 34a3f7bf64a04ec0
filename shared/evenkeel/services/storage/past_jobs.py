"""The latest runs that ended by themselves, from which run times are estimated."""

from datetime import datetime

from evenkeel.domain.capacity.run_times import PastJob
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Ledger, Table

MAX_RUNS = 200
"""Jobs that are read, newest first: one page."""


def load_past_jobs(ledger: Ledger) -> tuple[PastJob, ...]:
    """Return the run times of the last jobs that succeeded, from their first start, interruptions included."""
    page = ledger.by_state(Table.JOBS, f"JOB#{JobState.SUCCEEDED}", limit=MAX_RUNS, newest_first=True)
    return tuple(
        PastJob(
            row.doc["spec"]["team"],
            row.doc.get("owner", ""),
            row.doc["spec"].get("jobType", ""),
            (datetime.fromisoformat(row.doc["endedAt"]) - datetime.fromisoformat(row.doc["startedAt"])).total_seconds(),
        )
        for row in page.rows
        if row.doc.get("startedAt") and row.doc.get("endedAt")
    )
