"""Keep the end of each rank's log with its attempt, because Kubernetes deletes a log with its pod or its node.

Services call this when they stop an attempt, when its node is lost, and when they settle it. The newest readable text
stays. If a log does not answer within a few seconds, the reason is stored instead.
"""

import contextlib
from datetime import datetime, timedelta

from evenkeel.domain import kept_logs
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.kept_logs import KEPT_LINES, KEPT_RANKS, KeptLog
from evenkeel.ports import Conflict, EvenkeelError, LogTail, Put
from evenkeel.services.context import Context
from evenkeel.services.tables import job_rows

BEFORE_STOP_SECONDS = 3.0
"""The grace period of the pods begins after it."""
AT_END_SECONDS = 10.0
KEPT_FOR = timedelta(days=30)


def run(job: Job, attempt: Attempt, context: Context, *, within_seconds: float) -> None:
    """Keep the last lines of the attempt's existing pods.

    Never raises errors of the cluster, because a log must not delay a recovery. Idempotent: yes, a text is replaced
    only by a newer one.
    """
    if attempt.launched_at is None:
        return
    try:
        tails = context.cluster.log_tails(attempt, KEPT_LINES, KEPT_RANKS, within_seconds)
        logs = [_kept_log(job, attempt, rank, tail, context.now) for rank, tail in sorted(tails.items())]
        for log in logs:
            if log.why:
                context.telemetry.warning(
                    "LogNotRead", job_id=log.job_id, attempt=log.attempt, pod=log.pod_name, detail=log.why
                )
        if logs:
            _store_logs(logs, context)
    except EvenkeelError as error:
        context.telemetry.warning("LogsNotKept", job_id=job.job_id, attempt=attempt.attempt, detail=str(error))


def _kept_log(job: Job, attempt: Attempt, rank: int, tail: LogTail, now: datetime) -> KeptLog:
    text, is_cut, times = kept_logs.shortened_with_times(tail.text, kept_logs.secrets_of(job.spec.env))
    return KeptLog(
        job_id=attempt.job_id,
        attempt=attempt.attempt,
        rank=rank,
        pod_name=tail.pod_name,
        node_name=tail.node_name,
        text=text,
        times=times,
        is_cut=is_cut,
        why=kept_logs.escaped(kept_logs.redacted(tail.why)),
        kept_at=now,
    )


def _store_logs(logs: list[KeptLog], context: Context) -> None:
    first_log = logs[0]
    if context.ledger.get(job_rows.kept_log_key(first_log.job_id, first_log.attempt, first_log.rank)) is None:
        with contextlib.suppress(Conflict):  # another call keeps them at this moment
            context.ledger.commit(*(Put(job_rows.kept_log_row(log, 0, context.now + KEPT_FOR)) for log in logs))
            return
    for log in logs:
        _store_log_if_newer(log, context)


def _store_log_if_newer(log: KeptLog, context: Context) -> None:
    row = context.ledger.get(job_rows.kept_log_key(log.job_id, log.attempt, log.rank))
    if row is not None and not log.text:
        return
    context.ledger.commit(Put(job_rows.kept_log_row(log, row.version if row else 0, context.now + KEPT_FOR)))
