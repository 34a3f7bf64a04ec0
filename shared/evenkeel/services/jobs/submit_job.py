"""Queue a submitted job, once for each idempotency key."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from datetime import datetime

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.job_types import check_type, with_defaults
from evenkeel.domain.jobs.spec import DEFAULT_TEAM, JobSpec
from evenkeel.domain.jobs.validation import SpecError, check_deadline, check_spec
from evenkeel.domain.quotas.permissions import check_permitted, may_read, team_of
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.mixed_capacity import mixed_pool_errors
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Conflict, Invalid, KeyReused, Ledger, Put, Row, Table, Throttled, every
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_fit, check_role
from evenkeel.services.storage import open_jobs, team_setup
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "submit_job"
_TRIES = 50
"""Tries of a commit. A try fails if another submission, or the end of a job, was committed first."""
_MAX_NESTED_CLAIMS = 20
"""Claims of nested checkpoint folders that one submission reads. Most of them belong to jobs that never ran."""


class SubmitJobRequest(Value):
    """A submission: the job, the caller and the idempotency key."""

    spec: JobSpec
    requester: check_role.Requester
    """The caller: owner of the idempotency key, and the identity whose team roles are checked."""
    idempotency_key: str


class SubmitJobResult(Value):
    """The job as it was accepted, or its present state if the request is a repeat."""

    job: Job
    is_repeat: bool


def run(request: SubmitJobRequest, context: Context) -> SubmitJobResult:
    """Queue a job and request a scheduling cycle.

    The job type fills omitted fields once; a later change of the type changes no job. If teams exist, the team decides
    the namespace and the service account.

    Idempotent: yes, by the row of the key, which is written in the job's own transaction.

    Raises:
        Invalid: the job is impossible, uses another job's checkpoints, or could never start on the configured fleet;
            names each field.
        NotYourTeam: the caller may not submit for its team.
        KeyReused: the key was used for another job.
        TooManyOpenJobs: the caller or the team has as many open jobs as the policy allows.
        Throttled: other submissions were committed first too often.
    """
    requester = request.requester
    fingerprint = _fingerprint(request.spec)
    earlier = context.ledger.get(job_rows.idempotency_key(requester.principal, request.idempotency_key))
    if earlier and not _has_expired(earlier, context.now):
        return _repeated_outcome(earlier, fingerprint, context)

    setup = team_setup.load_setup(context.ledger).setup
    job_id = context.ids.new("job")
    job = checked_job(
        request.spec,
        requester,
        setup,
        context,
        job_id=job_id,
    )
    if context.site.admission is AdmissionAuthority.EVENKEEL:
        check_not_in_kueue_namespace(job, context.ledger)
        check_fits_fleet(job, setup, context)
    job = job.replace(open_job_counters=open_jobs.counter_names_of(job))
    text = f"Submitted by {job.submitted_by}."
    answer = {"jobId": job.job_id, "fingerprint": fingerprint}
    idempotency_row = job_rows.idempotency_row(
        requester.principal,
        request.idempotency_key,
        answer,
        context.now,
        version=earlier.version if earlier else 0,
    )
    entry = TimelineEntry(at=context.now, kind="submitted", text=text, writer=WRITER)
    for _ in range(_TRIES):
        try:
            context.ledger.commit(
                Put(job_rows.job_row(job, 0)),
                Put(idempotency_row),
                Put(subject_rows.timeline_row(job.job_id, entry, "submitted")),
                *checkpoint_folder_claim(job, requester, setup, context.ledger),
                *open_jobs.increment_writes(job, context.ledger, context.policy.scheduling),
            )
        except (Conflict, Invalid, open_jobs.TooManyOpenJobs) as error:
            first_row = context.ledger.get(idempotency_row.key)
            if first_row is not None and not _has_expired(first_row, context.now):
                return _repeated_outcome(first_row, fingerprint, context)
            if isinstance(error, Conflict):
                continue  # another job was submitted or ended first, or claimed this folder
            raise
        context.cycle_requests.request(f"{job.job_id} submitted")
        return SubmitJobResult(job=job, is_repeat=False)
    raise Throttled("Other submissions kept changing the same rows. Submit the job again.")


def checked_job(
    spec: JobSpec,
    requester: check_role.Requester,
    setup: TeamSetup,
    context: Context,
    *,
    job_id: str,
) -> Job:
    """Return the job as it would be queued, with the fields that its type fills.

    Raises:
        Invalid: the job is impossible, or its team does not allow it; names each field.
        NotYourTeam: the caller may not submit for its team.
    """
    _raise_if_any(check_type(spec, context.policy.job_types))
    spec = with_defaults(spec, context.policy.job_types)
    spec = spec.replace(team=team_of(spec, setup, requester.identity))
    if spec.team in setup.by_name:
        # Checked before the team's settings, because an error would disclose its images and folders.
        check_role.to_submit(requester, spec.team, setup)
    _raise_if_any((*check_spec(spec.replace(team=spec.team or DEFAULT_TEAM)), *check_deadline(spec, context.now)))
    is_kueue = context.site.admission is AdmissionAuthority.KUEUE
    pools = context.policy.pools_for_jobs
    _raise_if_any(mixed_pool_errors(spec, context.site.default_cluster, pools, is_kueue=is_kueue))
    _raise_if_any(check_permitted(spec, setup, context.policy.priority_classes, context.policy.jobs.allowed))
    # Checked again, because the first check skips a team that does not exist.
    check_role.to_submit(requester, spec.team, setup)
    team = setup.by_name.get(spec.team)
    return Job(
        job_id=job_id,
        spec=spec,
        state=JobState.PENDING,
        reason="The job waits for the next scheduling cycle.",
        submitted_at=context.now,
        submitted_by=requester.actor or requester.principal,
        submitter=requester.principal,
        cluster=context.site.default_cluster,
        namespace=(team.namespace if team else "") or context.site.job_namespace,
        service_account=team.service_account if team else "",
        queue=team.name if team else "",
        priority=setup.priority_of(spec.priority_class),
    )


def _raise_if_any(errors: tuple[SpecError, ...]) -> None:
    if errors:
        message = "; ".join(f"{error.field}: {error.message}" for error in errors)
        raise Invalid(f"The job was refused. {message}", tuple(errors))


def check_not_in_kueue_namespace(job: Job, ledger: Ledger) -> None:
    """Refuse a job in a namespace where Kueue admits jobs, because it would never start there.

    The last sweep listed these namespaces, usually a minute ago. The scheduling cycle holds back jobs in newer Kueue
    namespaces.

    Raises:
        Invalid: Kueue admits jobs in the namespace.
    """
    page = ledger.by_state(Table.FLEET, "KUEUE", prefix=job.cluster)
    kueue_object = next(
        (row.doc["namespaces"].get(job.namespace) for row in page.rows if row.doc["cluster"] == job.cluster), None
    )
    if kueue_object is not None:
        error = (
            f"The job's pods would run in namespace {job.namespace}, where Kueue admits jobs ({kueue_object}): "
            "Evenkeel starts no jobs there."
        )
        raise Invalid(f"The job was refused. Field `team`: {error}", (("team", error),))


def check_fits_fleet(job: Job, setup: TeamSetup, context: Context) -> None:
    """Refuse a job that could never start on the configured fleet. A fleet that no sweep has read refuses no job.

    Raises:
        Invalid: names the field that keeps the job from starting.
    """
    error = check_fit.why_never_fits(
        job, check_fit.read_configured_fleet(job.cluster, context.ledger), setup, context.policy, context.now
    )
    if error is not None:
        raise Invalid(f"The job was refused. Field `{error.field}`: {error.message}", (error,))


def checkpoint_folder_claim(
    job: Job, requester: check_role.Requester, setup: TeamSetup, ledger: Ledger
) -> tuple[Put, ...]:
    """Return the writes that reserve a checkpoint folder for this job; none if the job keeps no checkpoints.

    If two jobs claim one folder at once, one commit fails. A folder inside another job's folder, or a parent of it, is
    refused if the index already lists it. Folder names of the checkpoint layout are always refused, so neither job
    overwrites the checkpoints of the other job.

    Raises:
        Invalid: another job owns the folder, a parent folder, or a folder inside it.
    """
    if not job.spec.checkpoint_uri:
        return ()
    folder = job_rows.checkpoint_folder(job)
    key = job_rows.checkpoints_key(folder)
    claim_row = ledger.get(key)
    parent_claims = (ledger.get(job_rows.checkpoints_key(parent)) for parent in _parent_folders(folder))
    state, prefix = job_rows.checkpoints_entry(folder)
    nested_claims = every(lambda cursor: ledger.by_state(Table.JOBS, state, prefix=prefix, cursor=cursor))
    for claim in (claim_row, *parent_claims, *itertools.islice(nested_claims, _MAX_NESTED_CLAIMS)):
        if claim is not None and _is_claim_in_force(claim, ledger):
            owner_id = str(claim.doc["jobId"])
            row = ledger.get(job_rows.job_key(owner_id))
            is_visible = row is not None and may_read(
                setup, rows.decode(row, Job), requester.identity, requester.principal
            )
            relation = "The path holds" if claim.key == key else "The path overlaps the path of"
            owner = owner_id if is_visible else "another job"
            error = f"{relation} the checkpoints of {owner}. Give each job its own path."
            raise Invalid(f"The job was refused. {error}", (("checkpoint.uri", error),))
    return (Put(job_rows.checkpoints_row(job, claim_row.version if claim_row else 0)),)


def _parent_folders(folder: str) -> Iterator[str]:
    """Yield the parent folders of a folder, the closest first."""
    root, separator, path = folder.partition("://")
    segments = path.lstrip("/").split("/")
    lead = "/" if path.startswith("/") else ""
    for count in range(len(segments) - 1, 0, -1):
        yield f"{root}{separator}{lead}{'/'.join(segments[:count])}"


def _is_claim_in_force(claim: Row, ledger: Ledger) -> bool:
    """Whether a folder still belongs to its job. It is free if the job is gone, or ended without writing there."""
    row = ledger.get(job_rows.job_key(str(claim.doc["jobId"])))
    if row is None:
        return False
    job = rows.decode(row, Job)
    if not job.state.has_ended or job.current_attempt > 1:
        return True
    if job.current_attempt == 0:
        return False
    first_attempt_row = ledger.get(job_rows.attempt_key(job.job_id, 1))
    return first_attempt_row is not None and rows.decode(first_attempt_row, Attempt).launched_at is not None


def _repeated_outcome(earlier: Row, fingerprint: str, context: Context) -> SubmitJobResult:
    job_id = str(earlier.doc["jobId"])
    if earlier.doc.get("fingerprint") != fingerprint:
        raise KeyReused(f"This idempotency key was already used for another job, {job_id}.")
    row = context.ledger.get(job_rows.job_key(job_id))
    if row is None:
        raise Conflict(f"{job_id} was accepted under this idempotency key, but its row is gone.")
    context.cycle_requests.request(f"{job_id} submitted")
    return SubmitJobResult(job=rows.decode(row, Job), is_repeat=True)


def _has_expired(row: Row, now: datetime) -> bool:
    # DynamoDB deletes expired rows within days, not at once.
    return row.expires_at is not None and row.expires_at <= now


def _fingerprint(spec: JobSpec) -> str:
    # Digest of the request as sent: a type may change between a request and its repeat.
    document = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
