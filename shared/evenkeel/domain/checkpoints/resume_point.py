"""Choose the resume point of an attempt: the newest checkpoint that is not fenced, is trusted and is valid."""

from collections.abc import Collection, Mapping

from evenkeel.domain.checkpoints.fence import (
    Fence,
    Grade,
    Rejection,
    RejectionCode,
    ResumeChoice,
    fence_rejection,
    reject,
)
from evenkeel.domain.checkpoints.layout import CheckpointRef
from evenkeel.domain.checkpoints.manifest import Manifest
from evenkeel.domain.checkpoints.proof import CheckpointContents, Distrust, Proof, readable_manifest, verify
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Value


class ContentsNeeded(Value):
    """The choice needs the contents of this checkpoint. Read them and call `choose_resume_point` again."""

    ref: CheckpointRef


class CheckpointRules(Value):
    """Requirements of a job for the checkpoint that it resumes from."""

    distrust: tuple[Distrust, ...] = ()
    """Distrust of earlier faults. A covered checkpoint is rejected; all other checkpoints must meet its requirement."""
    accepts_convention: bool = False
    """Whether `COMPLETE_BY_CONVENTION` is enough if no fault requires more."""
    damaged: frozenset[CheckpointRef] = frozenset()
    """Checkpoints that an earlier attempt could not read. Without checksums, only this shows the damage."""

    def requirement_of(self, ref: CheckpointRef) -> CheckpointRequirement:
        """Return the strictest requirement that concerns a checkpoint."""
        min_requirement = CheckpointRequirement.CONVENTION if self.accepts_convention else CheckpointRequirement.PROOF
        requirements = (distrust.requirement for distrust in self.distrust if ref.attempt <= distrust.through_attempt)
        return max((min_requirement, *requirements), key=lambda requirement: requirement.strictness)


def choose_resume_point(
    attempt: int,
    fence: Fence | None,
    checkpoints: Collection[CheckpointRef],
    evidence: Mapping[CheckpointRef, CheckpointContents],
    rules: CheckpointRules | None = None,
    *,
    max_reads: int | None = None,
) -> ResumeChoice | ContentsNeeded:
    """Choose the resume point of `attempt`: the newest valid checkpoint, from the newest step backwards.

    Call it first without evidence. Each `ContentsNeeded` names the next checkpoint to read, so the caller reads as few
    checkpoints as possible. The same arguments always give the same answer.

    Args:
        attempt: The attempt to be launched.
        fence: The stored fence, with the pins of all earlier attempts.
        checkpoints: Every checkpoint folder under the URI, finished or not.
        evidence: The contents of the checkpoints that were read so far.
        rules: Requirements of the job for a checkpoint; None = proof, without distrust.
        max_reads: Maximum number of checkpoints to read. The next one is `NOT_EXAMINED`, and none is chosen.
    """
    rules = rules or CheckpointRules()
    rejections: list[Rejection] = []
    for ref in sorted(checkpoints, key=lambda ref: (ref.step, ref.attempt), reverse=True):
        rejection = fence_rejection(fence, attempt, ref)
        if rejection is not None:
            rejections.append(rejection)
            continue
        if ref in rules.damaged:
            detail = "An earlier attempt could not resume from it: its bytes differ from its manifest."
            rejections.append(reject(ref, RejectionCode.DAMAGED, detail))
            continue
        if ref not in evidence:
            if len(evidence) == max_reads:
                detail = f"Evenkeel examined {max_reads} newer checkpoints, which is the limit, and none was valid."
                rejections.append(reject(ref, RejectionCode.NOT_EXAMINED, detail))
                break
            return ContentsNeeded(ref=ref)
        verdict = verify(ref, evidence[ref], rules.distrust)
        if isinstance(verdict, Proof):
            verdict = _missing_evidence(rules.requirement_of(ref), ref, verdict, evidence) or verdict
        if isinstance(verdict, Rejection):
            rejections.append(verdict)
        else:
            return ResumeChoice(
                resume_from=ref.to_resume_point(verdict.key),
                grade=verdict.grade,
                began_at=verdict.began_at,
                throughput=verdict.throughput,
                rejected=tuple(rejections),
                reason=_reason_to_resume(ref, verdict, rejections),
            )
    return ResumeChoice(
        resume_from=None, grade=Grade.NONE, rejected=tuple(rejections), reason=_reason_to_start_over(rejections)
    )


def _missing_evidence(
    requirement: CheckpointRequirement,
    ref: CheckpointRef,
    proof: Proof,
    evidence: Mapping[CheckpointRef, CheckpointContents],
) -> Rejection | None:
    """Return why a valid checkpoint does not meet the requirement; None if it does."""
    if requirement is not CheckpointRequirement.CONVENTION and proof.grade is not Grade.PROVED:
        detail = "Its files are complete but have no checksums, and proof is required."
        return reject(ref, RejectionCode.BELOW_GRADE, detail)
    if requirement is not CheckpointRequirement.EVIDENCE:
        return None
    manifest = readable_manifest(ref, evidence[ref])
    if manifest is None or not manifest.claims_healthy:
        detail = "The fault may have corrupted this checkpoint: its manifest has neither a finite loss nor isFinite."
        return reject(ref, RejectionCode.NO_EVIDENCE, detail)
    next_manifest = _next_after(ref, evidence)
    if next_manifest is None or not next_manifest.claims_healthy:
        why = (
            "its attempt saved no readable checkpoint afterwards"
            if next_manifest is None
            else f"the next checkpoint, step {next_manifest.step}, does not show healthy numbers"
        )
        return reject(ref, RejectionCode.NO_CLEAN_RUN, f"The fault may have corrupted this checkpoint: {why}.")
    return None


def _next_after(ref: CheckpointRef, evidence: Mapping[CheckpointRef, CheckpointContents]) -> Manifest | None:
    """Return the manifest of the next checkpoint of the same attempt that was read; None if there is none.

    That checkpoint may itself be distrusted. Its healthy numbers still show that training continued normally.
    """
    later = sorted(
        (later_ref for later_ref in evidence if later_ref.attempt == ref.attempt and later_ref.step > ref.step),
        key=lambda later_ref: later_ref.step,
    )
    manifests = (readable_manifest(later_ref, evidence[later_ref]) for later_ref in later)
    return next((manifest for manifest in manifests if manifest is not None), None)


def _reason_to_resume(ref: CheckpointRef, proof: Proof, rejections: list[Rejection]) -> str:
    files = count_of(proof.files, "file")
    evidence_text = "every size and checksum matches" if proof.grade is Grade.PROVED else "complete, without checksums"
    text = f"Step {ref.step} of attempt {ref.attempt} is valid: {files}, {proof.size_bytes} bytes, {evidence_text}."
    return f"{text} Rejected: {_summary(rejections)}." if rejections else text


def _reason_to_start_over(rejections: list[Rejection]) -> str:
    if not rejections:
        return "The job has no checkpoint yet, so training starts at step 0."
    return f"No checkpoint is valid. Rejected: {_summary(rejections)}."


def _summary(rejections: list[Rejection]) -> str:
    rejection_texts = [
        f"step {rejection.step} of attempt {rejection.attempt} ({rejection.code.value})" for rejection in rejections[:3]
    ]
    more_count = len(rejections) - len(rejection_texts)
    return ", ".join(rejection_texts) + (f" and {more_count} more" if more_count else "")
