"""Start `run_job`, the workflow of an attempt. A scheduling cycle calls this, and the sweep if the cycle crashed."""

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.ports import TransientError, WorkflowName
from evenkeel.services.context import Context


def run(attempt: Attempt, context: Context) -> bool:
    """Start the workflow of an attempt. Return False if it did not start; a later sweep starts it.

    Idempotent: yes, by the execution's name. An execution that exists already is success.
    """
    document = {"schemaVersion": 1, "jobId": attempt.job_id, "attempt": attempt.attempt}
    try:
        context.workflows.start(WorkflowName.RUN_JOB, attempt.workload_name, document)
    except TransientError as error:
        context.telemetry.warning("AttemptWorkflowNotStarted", job_id=attempt.job_id, error=str(error))
        return False
    return True
