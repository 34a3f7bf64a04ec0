"""What an attempt resumes from: proved and pinned by one conditional write, or left to rank 0, or nothing for now.

The fence is the one write that decides. A retry finds it at n and takes its pin for the answer; at more than n the
attempt is stale. Whatever still runs behind a lost node ends at its next save, and what it saved late never counts.

Calls on the store, where there are A attempts and the newest checkpoints L hold no proof: one GET of the fence, 1 + A
LISTs for the folders, for each of L + 1 checkpoints one GET and, unless the manifest alone settles it, one LIST and a
HEAD a shard, and one PUT. L is at most `MOST_LOOKS`; lists of more than 1,000 entries take more pages.
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
    fence_of,
    fence_status,
    parse_manifest,
    raised,
    ref_of_folder,
    verify,
)
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import CheckpointRequirement, Job
from evenkeel.domain.jobs.policy import RESTART, JobPolicy
from evenkeel.ports import CheckpointStore, NotFound, ProofTerms, TooLarge
from evenkeel.services.storage.retries import until_committed

MOST_LOOKS = 50
"""Checkpoints that one launch looks at before it asks a person."""
_SETTLED_BY_MANIFEST = (RejectionCode.DISTRUSTED, RejectionCode.MANIFEST_UNREADABLE)


class PinOutcome(StrEnum):
    """How the question was answered."""

    PINNED = "PINNED"
    """The fence stands at this attempt, with its resume point (None may be the point) in it."""
    IN_CLUSTER = "IN_CLUSTER"
    """No function can look there: rank 0 proves and pins, on the terms given."""
    UNPROVED = "UNPROVED"
    """Finished checkpoints are there and none holds: nothing was raised, so nothing is disowned."""
    STALE = "STALE"
    """A later attempt has raised the fence."""


class PinAnswer(NamedTuple):
    """What an attempt resumes from, as far as it is known here."""

    kind: PinOutcome
    choice: ResumeChoice
    terms: ProofTerms | None = None


def run(job: Job, attempt: Attempt, checkpoints: CheckpointStore, *, policy: JobPolicy) -> PinAnswer:
    """Raise the fence with the resume point in it.

    Idempotent: yes, the first write for this attempt decides; every later call returns what it decided.

    Raises:
        FenceUnreadableError: there is a fence, and it cannot be read.
        Conflict: others kept writing the fence.
    """
    if not job.spec.checkpoint_uri:
        return PinAnswer(PinOutcome.PINNED, _from_the_beginning("The job keeps no checkpoints."))
    if job.spec.keeps_checkpoints_in_cluster:
        reason = (
            "The checkpoints are on storage mounted in the cluster. Rank 0 verifies them and pins the resume point."
        )
        return PinAnswer(PinOutcome.IN_CLUSTER, _from_the_beginning(reason), _terms(job, attempt, policy))
    message = f"the fence of {attempt.workload_name} kept changing while it was to be raised"
    return until_committed(lambda: _pin(job, attempt, checkpoints, policy), message)


def _pin(job: Job, attempt: Attempt, checkpoints: CheckpointStore, policy: JobPolicy) -> PinAnswer:
    """Raise the fence once, as it is read here.

    Raises:
        Conflict: another writer changed the fence meanwhile.
    """
    uri = job.spec.checkpoint_uri
    document, tag = checkpoints.fence(uri)
    fence = None if document is None else fence_of(document)
    match fence_status(fence, attempt.attempt):
        case FenceStatus.STALE:
            return PinAnswer(PinOutcome.STALE, _from_the_beginning("A later attempt has raised the fence."))
        case FenceStatus.PINNED:
            assert fence is not None
            return PinAnswer(PinOutcome.PINNED, fence.choice())
        case FenceStatus.MAY_RAISE:
            pass
    choice = _choose(job, attempt, fence, checkpoints, policy)
    if choice.would_disown_work and not policy.start_over_when_unproved:
        return PinAnswer(PinOutcome.UNPROVED, choice)
    checkpoints.raise_fence(uri, raised(fence, attempt.attempt, choice).to_json(), tag)
    return PinAnswer(PinOutcome.PINNED, choice)


def distrusts(job: Job) -> tuple[Distrust, ...]:
    """Return the suspicions that recoveries laid on a job's checkpoints."""
    found = []
    if job.distrust_through_attempt:
        found.append(
            Distrust(after=job.distrust_after, through_attempt=job.distrust_through_attempt, demand=job.demand)
        )
    plan = job.resume_plan
    if plan and (plan.distrust_after or plan.demand is not CheckpointRequirement.CONVENTION):
        found.append(Distrust(after=plan.distrust_after, through_attempt=plan.after_attempt, demand=plan.demand))
    return tuple(dict.fromkeys(found))


def _accepts_convention(job: Job, attempt: Attempt, policy: JobPolicy) -> bool:
    """Whether completeness by convention will do, as far as no suspicion demands more.

    After a fault its own class decides, and did when its plan was made.
    """
    return job.is_planned(attempt.attempt) or policy.accepts_convention(RESTART)


def _from_the_beginning(reason: str) -> ResumeChoice:
    return ResumeChoice(resume_from=None, grade=Grade.NONE, reason=reason)


def _terms(job: Job, attempt: Attempt, policy: JobPolicy) -> ProofTerms:
    """Return what rank 0 needs to know. It takes one suspicion: the strictest, of everything that any is about."""
    doubts = distrusts(job)
    strictest = (
        Distrust(
            after=min((doubt.after for doubt in doubts if doubt.after), default=None),
            through_attempt=max(doubt.through_attempt for doubt in doubts),
            demand=max((doubt.demand for doubt in doubts), key=lambda demand: demand.rank),
        )
        if doubts
        else None
    )
    return ProofTerms(
        distrust=strictest,
        accepts_convention=_accepts_convention(job, attempt, policy),
        may_start_over=policy.start_over_when_unproved,
        damaged=job.damaged_checkpoints,
    )


def _choose(
    job: Job, attempt: Attempt, fence: Fence | None, checkpoints: CheckpointStore, policy: JobPolicy
) -> ResumeChoice:
    uri = job.spec.checkpoint_uri
    refs = [ref for folder in checkpoints.folders(uri) if (ref := ref_of_folder(folder))]
    rules = CheckpointRules(
        distrust=distrusts(job),
        accepts_convention=_accepts_convention(job, attempt, policy),
        damaged=frozenset(CheckpointRef(attempt=one.attempt, step=one.step) for one in job.damaged_checkpoints),
    )
    evidence: dict[CheckpointRef, CheckpointContents] = {}
    while True:
        answer = choose_resume_point(attempt.attempt, fence, refs, evidence, rules, max_reads=MOST_LOOKS)
        if not isinstance(answer, ContentsNeeded):
            return answer
        evidence[answer.ref] = _examine(uri, answer.ref, checkpoints, rules.distrust)


def _examine(
    uri: str, ref: CheckpointRef, checkpoints: CheckpointStore, doubts: tuple[Distrust, ...]
) -> CheckpointContents:
    """Collect what the store says about one checkpoint: its manifest and, if that settles nothing, its files."""
    named: set[str] = set()
    try:
        manifest: bytes | None = checkpoints.read(uri, ref.manifest_key)
    except NotFound:
        manifest = None  # never finished, or written by another convention
    except TooLarge:
        manifest = b""  # no manifest is as large as that: unreadable like any other nonsense
    if manifest is not None:
        alone = CheckpointContents(manifest=manifest, objects={})
        verdict = verify(ref, alone, doubts)
        if isinstance(verdict, Rejection) and verdict.code in _SETTLED_BY_MANIFEST:
            return alone
        # Only what it names has a checksum to compare with, and each is a question of its own.
        named = {shard.key for shard in parse_manifest(ref, manifest).shards}
    objects = {
        key: StoredObject(size_bytes=one.size_bytes, sha256=one.sha256, modified_at=one.modified_at)
        for key, one in checkpoints.contents(uri, ref.folder, checksums_of=named).items()
    }
    return CheckpointContents(manifest=manifest, objects=objects)
