"""The choice of the resume point: the newest checkpoint that counts, is trusted and can be proved."""

from collections.abc import Collection, Mapping

from evenkeel.domain.checkpoints.fence import Fence, Grade, Rejection, RejectionCode, ResumeChoice, refusal, rejection
from evenkeel.domain.checkpoints.layout import CheckpointRef
from evenkeel.domain.checkpoints.manifest import Manifest
from evenkeel.domain.checkpoints.proof import CheckpointContents, Distrust, Proof, readable_manifest, verify
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.values import Value


class ContentsNeeded(Value):
    """The choice cannot be made yet: look at this checkpoint, then ask again."""

    ref: CheckpointRef


def choose_resume_point(
    attempt: int,
    fence: Fence | None,
    found: Collection[CheckpointRef],
    evidence: Mapping[CheckpointRef, CheckpointContents],
    distrust: tuple[Distrust, ...] = (),
    *,
    accepts_convention: bool = False,
    damaged: Collection[CheckpointRef] = (),
    max_reads: int | None = None,
) -> ResumeChoice | ContentsNeeded:
    """Choose what `attempt` resumes from: walk back from the newest step until one checkpoint holds.

    Ask with no evidence first; each `ContentsNeeded` names the one checkpoint to look at next, so that a store is asked
    about as few as possible, and the same arguments always give the same answer.

    Args:
        attempt: The attempt to be launched.
        fence: The fence as it stands, with the pins of every attempt before.
        found: Every checkpoint folder under the URI, finished or not.
        evidence: What the store says about those looked at so far.
        distrust: Suspicions; checkpoints that one covers are passed over, and the others must have what it demands.
        accepts_convention: Whether `COMPLETE_BY_CONVENTION` is good enough where no suspicion demands more.
        damaged: Checkpoints that an earlier attempt could not read back. Where no checksum vouches for a shard, only
            that shows what it is worth.
        max_reads: How many checkpoints may be looked at; past it the next is `NOT_EXAMINED`, and nothing is chosen.
    """
    rejected: list[Rejection] = []
    for ref in sorted(found, key=lambda ref: (ref.step, ref.attempt), reverse=True):
        out = refusal(fence, attempt, ref)
        if out is not None:
            rejected.append(out)
            continue
        if ref in damaged:
            detail = "An earlier attempt could not resume from it: its bytes differ from its manifest."
            rejected.append(rejection(ref, RejectionCode.DAMAGED, detail))
            continue
        if ref not in evidence:
            if len(evidence) == max_reads:
                detail = f"{max_reads} newer ones did not hold, so no more were looked at."
                rejected.append(rejection(ref, RejectionCode.NOT_EXAMINED, detail))
                break
            return ContentsNeeded(ref=ref)
        verdict = verify(ref, evidence[ref], distrust)
        if isinstance(verdict, Proof):
            base = CheckpointRequirement.CONVENTION if accepts_convention else CheckpointRequirement.PROOF
            verdict = _missing_evidence(_demanded(ref, base, distrust), ref, verdict, evidence) or verdict
        if isinstance(verdict, Rejection):
            rejected.append(verdict)
        else:
            return ResumeChoice(
                resume_from=ref.point(verdict.key),
                grade=verdict.grade,
                began_at=verdict.began_at,
                rejected=tuple(rejected),
                reason=_reason(ref, verdict, rejected),
            )
    return ResumeChoice(resume_from=None, grade=Grade.NONE, rejected=tuple(rejected), reason=_no_reason(rejected))


def _demanded(ref: CheckpointRef, base: CheckpointRequirement, distrust: tuple[Distrust, ...]) -> CheckpointRequirement:
    demands = (doubt.demand for doubt in distrust if ref.attempt <= doubt.through_attempt)
    return max((base, *demands), key=lambda demand: demand.rank)


def _missing_evidence(
    demand: CheckpointRequirement,
    ref: CheckpointRef,
    proof: Proof,
    evidence: Mapping[CheckpointRef, CheckpointContents],
) -> Rejection | None:
    """Say what a checkpoint that holds lacks of what is demanded of it; None where it lacks nothing."""
    if demand is not CheckpointRequirement.CONVENTION and proof.grade is not Grade.PROVED:
        detail = "Its files are complete but have no checksum, and this fault requires proof."
        return rejection(ref, RejectionCode.BELOW_GRADE, detail)
    if demand is not CheckpointRequirement.EVIDENCE:
        return None
    own = readable_manifest(ref, evidence[ref])
    if own is None or not own.claims_healthy:
        detail = "The fault may have corrupted it, and its manifest has neither a finite loss nor isFinite."
        return rejection(ref, RejectionCode.NO_EVIDENCE, detail)
    after = _next_after(ref, evidence)
    if after is None or not after.claims_healthy:
        then = "nothing readable was saved after it" if after is None else f"step {after.step} after it is not sound"
        detail = f"The fault may have corrupted anything, and {then}."
        return rejection(ref, RejectionCode.NO_CLEAN_RUN, detail)
    return None


def _next_after(ref: CheckpointRef, evidence: Mapping[CheckpointRef, CheckpointContents]) -> Manifest | None:
    """Return the manifest of the checkpoint that the same attempt saved next, as far as they were looked at.

    It may itself be in doubt: that its numbers are sound still says that training went on soundly from here.
    """
    later = sorted(
        (other for other in evidence if other.attempt == ref.attempt and other.step > ref.step),
        key=lambda other: other.step,
    )
    found = (readable_manifest(other, evidence[other]) for other in later)
    return next((manifest for manifest in found if manifest is not None), None)


def _reason(ref: CheckpointRef, proof: Proof, rejected: list[Rejection]) -> str:
    files = "1 file" if proof.files == 1 else f"{proof.files} files"
    how = "every size and checksum matches" if proof.grade is Grade.PROVED else "complete, without checksums"
    text = f"Step {ref.step} of attempt {ref.attempt} holds: {files}, {proof.size_bytes} bytes, {how}."
    return f"{text} Passed over: {_summary(rejected)}." if rejected else text


def _no_reason(rejected: list[Rejection]) -> str:
    if not rejected:
        return "The job has no checkpoint yet, so training starts from the beginning."
    return f"No checkpoint holds. Passed over: {_summary(rejected)}."


def _summary(rejected: list[Rejection]) -> str:
    named = [f"step {out.step} of attempt {out.attempt} ({out.code.value})" for out in rejected[:3]]
    more = len(rejected) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
