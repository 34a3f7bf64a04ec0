"""Jobs for the API: a list, one job with its attempts, its timeline and its logs."""

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from evenkeel.domain.economics import money
from evenkeel.domain.external.unmanaged_workloads import UnmanagedWorkload
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import LIST_ORDER, Job, JobState
from evenkeel.domain.kept_logs import KeptLog
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.unmanaged_restarts import describe_fault_consequence
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.submitted import shown_fields
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Invalid, Key, Ledger, NotFound, Refused, Row, Table, TransientError
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure, sorted_list
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import read_queue
from evenkeel.services.queries.sorted_list import Sort
from evenkeel.services.storage import fleet_counts, pagination
from evenkeel.services.tables import fleet_rows, job_rows, rows, subject_rows

Json = dict[str, Any]

LARGEST_LOG = 1_000_000
"""Characters of a log in one response: the newest characters. The response of a function is limited to 6 MB."""


_UNKNOWN_TIMES_NOTE = " The times of these lines are unknown."


class JobFilter(NamedTuple):
    """The filter of a list of jobs."""

    states: Sequence[JobState] = ()
    """None = all."""
    team: str = ""
    priority_class: str | None = None
    """Empty: jobs without a priority class."""

    def is_match(self, row: Row) -> bool:
        """Whether a job's row matches, apart from its state."""
        spec = row.doc["spec"]
        fits_team = not self.team or spec["team"] == self.team
        return fits_team and self.priority_class in (None, spec.get("priorityClass") or "")


_JOB_ORDER = {state: index for index, state in enumerate(JobState)}
_SORT_VALUES: dict[str, sorted_list.SortValue] = {
    "state": lambda job: _JOB_ORDER[job["state"]],
    "nodes": lambda job: job["currentNodes"] or job["nodes"],
    **{name: itemgetter(name) for name in ("name", "team", "priority", "submittedAt", "startedAt", "endedAt")},
}
"""Field → its sort value in the summary of a job, as the caller may see it."""


def list_jobs(
    filters: JobFilter, page: pagination.PageRequest, reader: Reader, context: Context, *, sort: Sort | None = None
) -> Json:
    """Return one page of jobs, newest first; a list of pending jobs only, in the order of their queues.

    If teams exist, pending jobs come before all other jobs, by team, and each queue from its end, as in the index. A
    job that starts between two pages may be returned twice.

    Raises:
        BadPageToken: this list did not issue the token.
        Invalid: the list is empty, and a name in the filter is unknown.
        TooManyToSort: more jobs match than a list can sort.
    """
    keep = filters.is_match if filters.team or filters.priority_class is not None else None
    partitions = [f"JOB#{state}" for state in LIST_ORDER if not filters.states or state in filters.states]
    counts = fleet_counts.job_states(context.ledger)
    if sort is not None:
        matching_rows = sorted_list.matching_rows(context.ledger, Table.JOBS, partitions, keep)
        if not matching_rows:
            _check_names(filters, reader, context.policy.priority_classes)
        jobs = [job_summary(reader.view_of_job(job)) for _, job in rows.readable_rows(matching_rows, Job)]
        items, token = sorted_list.sorted_page(jobs, sort, _SORT_VALUES, page, item_id="jobId")
        return {"items": items, "nextPageToken": token or None, "counts": counts}
    if tuple(filters.states) == (JobState.PENDING,):
        answer = pagination.page_in_order(context.ledger, Table.JOBS, partitions[0], page, keep)
    else:
        answer = pagination.page_newest_first(context.ledger, Table.JOBS, partitions, page, keep)
    if not answer.rows and not page.page_token:
        _check_names(filters, reader, context.policy.priority_classes)
    items = [job_summary(reader.view_of_job(job)) for _, job in rows.readable_rows(answer.rows, Job)]
    return {"items": items, "nextPageToken": answer.next_token or None, "counts": counts}


def _check_names(filters: JobFilter, reader: Reader, classes: Collection[str]) -> None:
    """Distinguish a misspelt filter from an empty list.

    Args:
        filters: The filter.
        reader: Knows the teams and the priority classes.
        classes: Priority classes that the policy allows without teams.

    Raises:
        Invalid: there is no such team or priority class. Without teams, a job may name any team.
    """
    wrong = []
    if reader.setup.has_teams:
        classes = reader.setup.fleet.priority_classes
    if filters.team and reader.setup.has_teams and filters.team not in reader.setup.by_name:
        wrong.append(("team", unknown_name("team", filters.team, reader.setup.by_name)))
    if filters.priority_class and filters.priority_class not in classes:
        wrong.append(("class", unknown_name("priority class", filters.priority_class, classes)))
    if wrong:
        raise Invalid("No job can match the filter.", tuple(wrong))


def list_unmanaged(context: Context) -> Json:
    """Return the workloads with accelerators that Evenkeel did not start, as the last sweep saw them."""
    stored_rows = (context.ledger.get(fleet_rows.unmanaged_workloads_key(cluster)) for cluster in context.site.clusters)
    workloads = [
        UnmanagedWorkload.model_validate(workload) for row in stored_rows if row for workload in row.doc["workloads"]
    ]
    adopted_namespaces = context.policy.adoption.namespaces
    consequences = (
        describe_fault_consequence(workload, by_policy=workload.namespace in adopted_namespaces)
        for workload in workloads
    )
    items = [workload.to_json() | {"says": text} for workload, text in zip(workloads, consequences, strict=True)]
    return {"items": items, "nextPageToken": None}


def show_job(job_id: str, reader: Reader, context: Context) -> Json:
    """Return a job, its queue position, and all its attempts, newest first.

    A caller outside its team gets fewer fields, and `isRedacted` is set.

    Raises:
        NotFound: there is no such job.
    """
    row = context.ledger.get(job_rows.job_key(job_id))
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    stored_job = rows.decode(row, Job)
    is_redacted = not reader.may_see_job(stored_job)
    job = reader.view_of_job(stored_job)
    spec = job.spec
    submitted_fields = shown_fields(spec, only_public=is_redacted)
    waits = read_queue.waits_with_kueue(job, context.ledger)
    unreadable_keys: set[Key] = set()
    attempts = load_attempts(context.ledger, job_id, unreadable_keys)
    rentals = () if is_redacted else load_rentals(context.ledger, job_id, unreadable_keys)
    summary = job_summary(job if waits is None else job.replace(reason=waits.kueue_status))
    public = (
        summary
        | {name: value for name, value in submitted_fields.items() if name not in summary}
        | {
            "version": row.version,
            "isRedacted": is_redacted,
            "cluster": job.cluster,
            "notBefore": _instant_text(job.not_before),
            "queue": read_queue.queue_position(job, context),
            "unreadableRecords": len(unreadable_keys),
        }
    )
    if is_redacted:
        return public | {"attempts": [public_attempt(attempt) for attempt in reversed(attempts)]}
    return public | {
        # The values may be secret; the names show which variables are set.
        "envNames": sorted(spec.env),
        "pools": [choice.to_json() for choice in spec.pools],
        "tolerations": [toleration.to_pod() for toleration in spec.tolerations],
        "checkpoint": submitted_fields["checkpoint"] | {"claim": spec.checkpoint_claim or None},
        "namespace": job.namespace,
        "serviceAccount": job.service_account or None,
        "distrustAfter": _instant_text(job.distrust_after),
        "resumePlan": job.resume_plan.to_json() if job.resume_plan else None,
        "stopRequest": job.stop_request.to_json() if job.stop_request else None,
        "mixedGrowth": _mixed_growth_document(job),
        "attempts": [_attempt_document(attempt) for attempt in reversed(attempts)],
        "rentals": [shown_rental(rental) for rental in reversed(rentals)],
        "result": job.result,
    }


def job_logs(
    job_id: str,
    reader: Reader,
    context: Context,
    *,
    attempt: int | None,
    rank: int | None,
    tail: int,
    timestamps: bool = False,
) -> Json:
    """Return the last lines of a rank's log, of the latest attempt unless another is named.

    If the pod is gone or not reachable, these are the lines that were kept with the attempt. Without a rank it is the
    log of rank 0, or else the lowest rank whose lines were kept: Kubernetes deletes the running pods of a failed job.

    Raises:
        NotYourTeam: the caller is not in the job's team.
        NotFound: there is no such job or attempt, or neither a pod nor kept lines; says why.
    """
    job = load_job(context.ledger, job_id)
    reader.require_access(job)
    number = job.current_attempt if attempt is None else attempt
    if number == 0:
        raise NotFound(f"{job_id} has not started yet, so it has no log.")
    row = context.ledger.get(job_rows.attempt_key(job_id, number))
    if row is None:
        raise NotFound(f"{job_id} has no attempt {number}; its latest is {job.current_attempt}.")
    chosen_attempt = rows.decode(row, Attempt)
    if rank is not None and rank >= chosen_attempt.ranks:
        raise Refused(
            f"Attempt {number} of {job_id} has {count_of(chosen_attempt.ranks, 'pod')}; "
            f"the highest rank is {chosen_attempt.ranks - 1}."
        )
    read_rank = rank or 0
    document: Json = {"jobId": job_id, "attempt": number, "rank": read_rank}
    try:
        text = context.cluster.logs(chosen_attempt, read_rank, tail, timestamps=timestamps)
    except (NotFound, Refused, TransientError) as error:
        kept_row = context.ledger.get(job_rows.kept_log_key(job_id, number, read_rank))
        kept_log = rows.decode(kept_row, KeptLog) if kept_row else None
        if kept_log is None or not kept_log.text:
            if not isinstance(error, NotFound) and chosen_attempt.ended_at is None:
                raise
            kept_logs = _load_kept_logs(context.ledger, chosen_attempt)
            if rank is not None or not kept_logs:
                raise NotFound(_why_no_log(chosen_attempt, read_rank, kept_log, str(error), kept_logs)) from error
            kept_log = kept_logs[0]
        text = kept_log.last_lines(tail, timestamps=timestamps)
        is_cut = kept_log.is_cut or len(kept_log.text.splitlines()) > tail
        times_note = _UNKNOWN_TIMES_NOTE if timestamps and not kept_log.times else ""
        rank_note = f"Rank {read_rank} left no log; this is rank {kept_log.rank}. "
        return document | {
            "rank": kept_log.rank,
            "text": text,
            "isCut": is_cut,
            "keptAt": rfc3339(kept_log.kept_at),
            "note": rank_note * (kept_log.rank != read_rank) + _kept_log_note(chosen_attempt, kept_log) + times_note,
        }
    return document | {"text": text[-LARGEST_LOG:], "isCut": len(text) > LARGEST_LOG, "keptAt": None, "note": None}


def _load_kept_logs(ledger: Ledger, attempt: Attempt) -> list[KeptLog]:
    """Read the kept logs of an attempt that have lines, by rank."""
    first = job_rows.kept_log_key(attempt.job_id, attempt.attempt, 0)
    stored = ledger.partition(Table.JOBS, first.pk, first.sk.removesuffix(f"{0:06d}"))
    return [log for row in stored if (log := rows.decode(row, KeptLog)).text]


def _why_no_log(
    attempt: Attempt, rank: int, kept_log: KeptLog | None, error: str, other_logs: Sequence[KeptLog]
) -> str:
    if kept_log is not None:
        why = f"It could not be read at {rfc3339(kept_log.kept_at)}: {kept_log.why or 'it was empty'}"
        pod = f"Rank {rank} of {attempt.workload_name}"
        return f"{pod} has no kept log. {why.rstrip('.')}. {_rest_of_log_text(attempt, kept_log)}"
    if other_logs:
        command = f"evenkeel jobs logs {attempt.job_id} --attempt {attempt.attempt} --rank {other_logs[0].rank}"
        cause = f"Kubernetes deletes the running pods of a failed job. Other ranks have a log: {command}"
    elif attempt.ended_at:
        cause = f"The attempt ended: {attempt.reason}"
    else:
        cause = f"Its pod cannot be read: {error}"
    return f"Rank {rank} of {attempt.workload_name} has no pod and no kept log. {cause}"


def _kept_log_note(attempt: Attempt, kept_log: KeptLog) -> str:
    extent = "The last lines" if kept_log.is_cut else "The whole log"
    rest_text = _rest_of_log_text(attempt, kept_log)
    return f"{extent} of pod {kept_log.pod_name}, kept at {rfc3339(kept_log.kept_at)}. {rest_text}"


def _rest_of_log_text(attempt: Attempt, kept_log: KeptLog) -> str:
    log_path = f"/var/log/pods/{attempt.namespace}_{kept_log.pod_name}_*"
    node = kept_log.node_name or "its node"
    return f"The rest is on {node} in {log_path} while the node and the pod exist; afterwards ask your log collector."


def load_job(ledger: Ledger, job_id: str) -> Job:
    """Read a job.

    Raises:
        NotFound: there is no such job.
    """
    return rows.load(ledger, job_rows.job_key(job_id), Job, f"job {job_id}")


def load_attempts(ledger: Ledger, job_id: str, unreadable_keys: set[Key]) -> tuple[Attempt, ...]:
    """Read all attempts of a job, oldest first. Unreadable rows are left out; their keys are added to the set."""
    stored_rows = ledger.partition(Table.JOBS, job_rows.job_key(job_id).pk, "ATTEMPT#")
    return tuple(rows.readable_values(stored_rows, Attempt, unreadable_keys))


def load_rentals(ledger: Ledger, job_id: str, unreadable_keys: set[Key]) -> tuple[Rental, ...]:
    """Read all rentals of a job, oldest first, as `load_attempts`."""
    stored_rows = ledger.partition(Table.JOBS, job_rows.job_key(job_id).pk, "RENTAL#")
    return tuple(rows.readable_values(stored_rows, Rental, unreadable_keys))


def stored_timeline(ledger: Ledger, subject: str) -> list[Json]:
    """Return the stored entries in the timeline of a job or an incident, oldest first."""
    table, pk = subject_rows.subject_partition(subject)
    return [row.doc for row in ledger.partition(table, pk, "EVENT#")]


def job_timeline(ledger: Ledger, job_id: str) -> list[Json]:
    """Return the timeline of a job, oldest first. The entry of an admission follows from its attempt."""
    stored_entries = stored_timeline(ledger, job_id)
    # Earlier releases stored the entry.
    known_decision_ids = {entry.get("decisionId") for entry in stored_entries if entry["kind"] == "admitted"}
    admission_entries = [
        _admission_entry(attempt).to_json()
        for attempt in load_attempts(ledger, job_id, set())
        if attempt.decision_id not in known_decision_ids
    ]
    return sorted([*admission_entries, *stored_entries], key=lambda entry: str(entry["at"]))


def _admission_entry(attempt: Attempt) -> TimelineEntry:
    where = ", ".join(attempt.node_names[:4]) + (" and more" if len(attempt.node_names) > 4 else "")
    return TimelineEntry(
        at=attempt.admitted_at,
        kind="admitted",
        text=f"Attempt {attempt.attempt} goes to Kueue's LocalQueue {attempt.local_queue}."
        if attempt.local_queue
        else f"Attempt {attempt.attempt} admitted to {_pools_text(attempt)}: {where}.",
        decision_id=attempt.decision_id,
        writer="schedule_jobs",
    )


def _pools_text(attempt: Attempt) -> str:
    rented_part = attempt.rented_part
    if rented_part is None:
        return attempt.pool
    base_text = count_of(attempt.ranks - attempt.rented_ranks, "node")
    return f"{base_text} of {attempt.pool} and {attempt.rented_ranks} of {rented_part.pool}"


_STATES_WITH_PROGRESS = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


def job_summary(job: Job) -> Json:
    """Return the fields that a list shows."""
    spec = job.spec
    return {
        "jobId": job.job_id,
        "name": spec.name,
        "team": spec.team,
        "jobType": spec.job_type or None,
        "kind": spec.kind,
        "priorityClass": spec.priority_class or None,
        "priority": job.priority,
        "state": job.state,
        "isSuspended": job.is_suspended,
        "reason": job.reason,
        "nodes": spec.nodes,
        "elastic": spec.elastic.to_json() if spec.elastic else None,
        "currentNodes": job.size or None if job.state in _STATES_WITH_PROGRESS else None,
        "gpusPerNode": spec.accelerators_per_node,
        "cluster": job.cluster or None,
        "currentAttempt": job.current_attempt,
        "applicationFailures": job.application_failures,
        "submittedAt": rfc3339(job.submitted_at),
        "submittedBy": job.submitted_by,
        "startedAt": _instant_text(job.started_at),
        "endedAt": _instant_text(job.ended_at),
    }


def public_attempt(attempt: Attempt) -> Json:
    """Return the public fields of an attempt."""
    attempt = disclosure.public_attempt(attempt)
    return {
        "attempt": attempt.attempt,
        "state": attempt.state,
        "pool": attempt.pool,
        "localQueue": attempt.local_queue or None,
        "nodes": [
            {"name": name, "instanceId": life.instance_id}
            for name, life in zip(attempt.node_names, attempt.nodes, strict=False)
        ],
        "size": attempt.ranks,
        "requestedSize": attempt.requested_size or None,
        "gpus": attempt.accelerators,
        "cpu": attempt.requested.cpu,
        "memoryGib": attempt.requested.memory_gib,
        "admittedAt": rfc3339(attempt.admitted_at),
        "launchedAt": _instant_text(attempt.launched_at),
        "runningAt": _instant_text(attempt.running_at),
        "endedAt": _instant_text(attempt.ended_at),
    }


def _mixed_growth_document(job: Job) -> Json | None:
    note = job.mixed_note
    return {"reason": note.text, "decisionId": note.decision_id} if note else None


def _rented_part_document(attempt: Attempt) -> Json | None:
    rented_part = attempt.rented_part
    return (
        {"rental": rented_part.rental, "pool": rented_part.pool, "nodes": list(rented_part.node_names)}
        if rented_part
        else None
    )


def _attempt_document(attempt: Attempt) -> Json:
    return public_attempt(attempt) | {
        "rentedPart": _rented_part_document(attempt),
        "reason": attempt.reason,
        "execution": attempt.workload_name,
        "resumeFrom": attempt.resume_from.to_json() if attempt.resume_from else None,
        "isPinned": attempt.is_pinned,
        "resumedWorkFrom": _instant_text(attempt.resumed_work_from),
        "rejectedCheckpoints": list(attempt.rejected_checkpoints),
        "exitCodes": attempt.exit_codes,
        "decisionId": attempt.decision_id or None,
    }


def shown_rental(rental: Rental) -> Json:
    """Return present and past rentals for the API."""
    return {
        "rental": rental.number,
        "state": rental.state,
        "reason": rental.reason,
        "nodes": rental.nodes,
        "joinsBase": rental.joins_base,
        "nodeNames": list(rental.node_names),
        "offers": [
            {
                "pool": offer.pool,
                "cluster": offer.cluster,
                "market": offer.market,
                "microsPerNodeHour": offer.micros_per_node_hour,
                "openedAt": rfc3339(offer.opened_at),
                "closedAt": _instant_text(offer.closed_at),
                "joinedNodes": len(offer.joined_node_names),
                "refused": offer.refused or None,
            }
            for offer in rental.offers
        ],
        "begunAt": rfc3339(rental.begun_at),
        "handedOverAt": _instant_text(rental.handed_over_at),
        "endedAt": _instant_text(rental.ended_at),
        "incidentId": rental.incident_id or None,
        "dueAt": _instant_text(rental.due_at),
        "costUsd": f"{rental.cost_parts / money.COST_PARTS_PER_USD:.6f}" if rental.ended_at else None,
        "decisionId": rental.decision_id,
    }


def _instant_text(value: Any) -> str | None:
    return rfc3339(value) if value else None
