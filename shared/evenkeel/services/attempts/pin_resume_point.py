"""Decide the resume point of an attempt: proved and pinned by one conditional write, or left to rank 0, or not yet.

The fence is the write that decides. A retry that finds it at n takes its pin as the result; if it is higher than n, the
attempt is stale. Pods behind a lost node end at their next save, and checkpoints that they save late never count.

Calls to the store, with A attempts and L newest checkpoints without proof:

    one GET of the fence, and 1 + A LISTs of the folders
    for each of L + 1 checkpoints one GET and, unless the manifest alone decides, one LIST and one HEAD for each shard
    one PUT

L is at most `MAX_CHECKPOINTS_READ`; lists of more than 1,000 entries take more pages.
"""

from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.checkpoints import (
    CheckpointContents,
    CheckpointRef,
    CheckpointRules,
    ContentsNeeded,
    Distrust,
    Fence,
    FenceStatus,
    Grade,
    Rejection,
    RejectionCode,
    ResumeChoice,
    StoredObject,
    choose_resume_point,
    fence_status,
    next_fence,
    parse_fence,
    parse_manifest,
    ref_of_folder,
    verify,
)
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import CheckpointRequirement, Job
from evenkeel.domain.jobs.job_policy import RESTART, JobPolicy
from evenkeel.ports import CheckpointStore, NotFound, ProofRules, TooLarge
from evenkeel.services.storage.retries import until_committed

MAX_CHECKPOINTS_READ = 50
"""Checkpoints that one launch examines before it asks a person."""
_SETTLED_BY_MANIFEST = (RejectionCode.DISTRUSTED, RejectionCode.MANIFEST_UNREADABLE)


class PinOutcome(StrEnum):
    """How the resume point was decided."""

    PINNED = "PINNED"
    """The fence is at this attempt and holds its resume point, which may be None."""
    IN_CLUSTER = "IN_CLUSTER"
    """No function can read the store. Rank 0 proves and pins, under the given conditions."""
    UNPROVEN = "UNPROVEN"
    """Finished checkpoints exist but none is proved. The fence was not raised, so no checkpoint is fenced out."""
    STALE = "STALE"
    """A later attempt has raised the fence."""


class PinAnswer(NamedTuple):
    """The resume point of an attempt, as far as it is known here."""

    kind: PinOutcome
    resume_choice: ResumeChoice
    proof_rules: ProofRules | None = None


def run(job: Job, attempt: Attempt, checkpoints: CheckpointStore, *, policy: JobPolicy) -> PinAnswer:
    """Raise the fence with the resume point in it.

    Idempotent: yes, the first write for this attempt decides, and every later call returns its result.

    Raises:
        FenceUnreadableError: there is a fence, and it cannot be read.
        Conflict: other writers kept changing the fence.
    """
    if not job.spec.checkpoint_uri:
        return PinAnswer(PinOutcome.PINNED, _from_the_beginning("The job keeps no checkpoints."))
    if job.spec.keeps_checkpoints_in_cluster:
        reason = (
            "The checkpoints are on storage mounted in the cluster. Rank 0 verifies them and pins the resume point."
        )
        return PinAnswer(PinOutcome.IN_CLUSTER, _from_the_beginning(reason), _proof_rules(job, attempt, policy))
    message = f"the fence of {attempt.workload_name} kept changing while it was to be raised"
    return until_committed(lambda: _raise_fence_once(job, attempt, checkpoints, policy), message)


def _raise_fence_once(job: Job, attempt: Attempt, checkpoints: CheckpointStore, policy: JobPolicy) -> PinAnswer:
    """Raise the fence once, from the state that is read here.

    Raises:
        Conflict: another writer changed the fence meanwhile.
    """
    uri = job.spec.checkpoint_uri
    document, tag = checkpoints.fence(uri)
    fence = None if document is None else parse_fence(document)
    match fence_status(fence, attempt.attempt):
        case FenceStatus.STALE:
            return PinAnswer(PinOutcome.STALE, _from_the_beginning("A later attempt has raised the fence."))
        case FenceStatus.PINNED:
            assert fence is not None
            return PinAnswer(PinOutcome.PINNED, fence.choice())
        case FenceStatus.MAY_RAISE:
            pass
    choice = _choose_resume_point(job, attempt, fence, checkpoints, policy)
    if choice.would_discard_checkpoints and not policy.start_over_when_unproven:
        return PinAnswer(PinOutcome.UNPROVEN, choice)
    checkpoints.raise_fence(uri, next_fence(fence, attempt.attempt, choice).to_json(), tag)
    return PinAnswer(PinOutcome.PINNED, choice)


def distrusts(job: Job) -> tuple[Distrust, ...]:
    """Return which checkpoints of a job its recoveries distrust."""
    job_distrusts = []
    if job.distrust_through_attempt:
        job_distrusts.append(
            Distrust(
                after=job.distrust_after, through_attempt=job.distrust_through_attempt, requirement=job.requirement
            )
        )
    plan = job.resume_plan
    if plan and (plan.distrust_after or plan.requirement is not CheckpointRequirement.CONVENTION):
        job_distrusts.append(
            Distrust(after=plan.distrust_after, through_attempt=plan.after_attempt, requirement=plan.requirement)
        )
    return tuple(dict.fromkeys(job_distrusts))


def _accepts_convention(job: Job, attempt: Attempt, policy: JobPolicy) -> bool:
    """Whether completeness by convention is enough, unless a distrust requires more.

    After a fault, the fault's class decides this when the resume plan is made.
    """
    return job.is_planned(attempt.attempt) or policy.accepts_convention(RESTART)


def _from_the_beginning(reason: str) -> ResumeChoice:
    return ResumeChoice(resume_from=None, grade=Grade.NONE, reason=reason)


def _proof_rules(job: Job, attempt: Attempt, policy: JobPolicy) -> ProofRules:
    """Return the conditions for rank 0.

    Rank 0 receives one distrust. It covers every checkpoint that any distrust covers, with the strictest requirement.
    """
    job_distrusts = distrusts(job)
    strictest_distrust = (
        Distrust(
            after=min((distrust.after for distrust in job_distrusts if distrust.after), default=None),
            through_attempt=max(distrust.through_attempt for distrust in job_distrusts),
            requirement=max(
                (distrust.requirement for distrust in job_distrusts), key=lambda requirement: requirement.strictness
            ),
        )
        if job_distrusts
        else None
    )
    return ProofRules(
        distrust=strictest_distrust,
        accepts_convention=_accepts_convention(job, attempt, policy),
        may_start_over=policy.start_over_when_unproven,
        damaged=job.damaged_checkpoints,
    )


def _choose_resume_point(
    job: Job, attempt: Attempt, fence: Fence | None, checkpoints: CheckpointStore, policy: JobPolicy
) -> ResumeChoice:
    uri = job.spec.checkpoint_uri
    refs = [ref for folder in checkpoints.folders(uri) if (ref := ref_of_folder(folder))]
    rules = CheckpointRules(
        distrust=distrusts(job),
        accepts_convention=_accepts_convention(job, attempt, policy),
        damaged=frozenset(CheckpointRef(attempt=point.attempt, step=point.step) for point in job.damaged_checkpoints),
    )
    evidence: dict[CheckpointRef, CheckpointContents] = {}
    while True:
        answer = choose_resume_point(attempt.attempt, fence, refs, evidence, rules, max_reads=MAX_CHECKPOINTS_READ)
        if not isinstance(answer, ContentsNeeded):
            return answer
        evidence[answer.ref] = _examine_checkpoint(uri, answer.ref, checkpoints, rules.distrust)


def _examine_checkpoint(
    uri: str, ref: CheckpointRef, checkpoints: CheckpointStore, job_distrusts: tuple[Distrust, ...]
) -> CheckpointContents:
    """Read the facts of one checkpoint: its manifest and, if that decides nothing, its files."""
    listed_names: set[str] = set()
    try:
        manifest: bytes | None = checkpoints.read(uri, ref.manifest_key)
    except NotFound:
        manifest = None  # never finished, or written by another convention
    except TooLarge:
        manifest = b""  # no valid manifest is this large: treat it as unreadable
    if manifest is not None:
        alone = CheckpointContents(manifest=manifest, objects={})
        verdict = verify(ref, alone, job_distrusts)
        if isinstance(verdict, Rejection) and verdict.code in _SETTLED_BY_MANIFEST:
            return alone
        # Only files in the manifest have a checksum to compare with, and each check is a call of its own.
        listed_names = {shard.key for shard in parse_manifest(ref, manifest).shards}
    objects = {
        key: StoredObject(size_bytes=shard.size_bytes, sha256=shard.sha256, modified_at=shard.modified_at)
        for key, shard in checkpoints.contents(uri, ref.folder, checksums_of=listed_names).items()
    }
    return CheckpointContents(manifest=manifest, objects=objects)
