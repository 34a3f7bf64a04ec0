"""The fence: which attempt may still write, and what each attempt resumed from.

Nobody can prove that a process on a partitioned node is dead, so a late manifest of an old attempt must be harmless.
The fence and the pin are one conditional write:

    attempt 1 writes 10, 20, 30 ...          (its node is lost; it runs on)
    LaunchJob of 2 proves step 20, then puts fence {attempt 2, resumeFrom (1, 20)} if the fence is as it was read
    attempt 1 writes 40                      late: above what attempt 2 pinned, so it is never a candidate again
    LaunchJob of 2 is retried                the fence says 2: its resumeFrom is the answer, nothing is chosen twice
    attempt 1 saves once more                sees fence 2 > 1 and ends

The history carries every earlier pin. A checkpoint (m, s) counts for attempt n only if each fence j between them was
pinned at or after it: pin.attempt >= m and pin.step >= s. An attempt writes its steps in rising order and starts at its
own pin, so whatever it writes after fence j fails one of the two.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from evenkeel.domain.checkpoints.layout import CheckpointRef, ref_of_key
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.values import Instant, Value

SCHEMA_VERSION = 1
MAX_REJECTIONS_KEPT = 20


class FenceUnreadableError(ValueError):
    """A fence is there but cannot be read. It must never be taken for no fence."""


class Grade(StrEnum):
    """How sure it is that a checkpoint is whole."""

    PROVED = "PROVED"
    """Manifest, every size and every checksum agree with what the store itself says."""
    COMPLETE_BY_CONVENTION = "COMPLETE_BY_CONVENTION"
    """The files say that they are complete, but no checksum says that they are right."""
    NONE = "NONE"
    """There is nothing to resume from."""


class RejectionCode(StrEnum):
    """Why a checkpoint was passed over."""

    FENCED = "FENCED"
    """Written by an attempt after a later one had been pinned to something older."""
    LATER_ATTEMPT = "LATER_ATTEMPT"
    """Belongs to this attempt or a later one: not its past."""
    DISTRUSTED = "DISTRUSTED"
    """Its write began after the first suspicious signal of a fault that can corrupt."""
    MANIFEST_MISSING = "MANIFEST_MISSING"
    """Half written: the folder is there, the manifest is not."""
    MANIFEST_UNREADABLE = "MANIFEST_UNREADABLE"
    SHARD_MISSING = "SHARD_MISSING"
    SHARD_SIZE = "SHARD_SIZE"
    SHARD_CHECKSUM = "SHARD_CHECKSUM"
    METRIC_NOT_FINITE = "METRIC_NOT_FINITE"
    """Its loss is no number: the training had already diverged."""
    NO_EVIDENCE = "NO_EVIDENCE"
    """The fault may have corrupted anything, and it does not say of itself that its numbers are sound."""
    NO_CLEAN_RUN = "NO_CLEAN_RUN"
    """The fault may have corrupted anything, and nothing shows that training went on soundly from it."""
    BELOW_GRADE = "BELOW_GRADE"
    """Complete by convention only, where this fault asks for proof."""
    DAMAGED = "DAMAGED"
    """An earlier attempt was to resume from it and could not: its bytes are not those its manifest promises."""
    NOT_EXAMINED = "NOT_EXAMINED"
    """So many newer ones did not hold that no more were looked at."""


UNPROVED = frozenset(
    {
        RejectionCode.MANIFEST_UNREADABLE,
        RejectionCode.SHARD_MISSING,
        RejectionCode.SHARD_SIZE,
        RejectionCode.SHARD_CHECKSUM,
        RejectionCode.METRIC_NOT_FINITE,
        RejectionCode.NO_EVIDENCE,
        RejectionCode.NO_CLEAN_RUN,
        RejectionCode.BELOW_GRADE,
        RejectionCode.DAMAGED,
        RejectionCode.NOT_EXAMINED,
    }
)
"""Rejections of work that was finished once and may be worth saving. What was never finished, what a later attempt left
behind and what a fault casts doubt on is not among them: nothing that a person does makes it count."""


class Rejection(Value):
    """One checkpoint that was passed over, and why."""

    attempt: int
    step: int
    manifest: str
    code: RejectionCode
    detail: str
    """One sentence."""


class ResumeChoice(Value):
    """What an attempt resumes from, and what was passed over on the way there, newest first."""

    resume_from: ResumePoint | None
    grade: Grade
    began_at: Instant | None = None
    """When the write of what it resumes from began, where that is known."""
    rejected: tuple[Rejection, ...] = ()
    reason: str
    """A sentence for an operator."""

    @property
    def would_disown_work(self) -> bool:
        """Whether it begins at the beginning although finished checkpoints are there: none of them could be proved."""
        return self.resume_from is None and any(out.code in UNPROVED for out in self.rejected)


class Pin(Value):
    """What one past attempt resumed from; None = nothing, it began at the beginning."""

    attempt: Annotated[StrictInt, Field(ge=1)]
    resume_from: ResumePoint | None = None

    def admits(self, ref: CheckpointRef) -> bool:
        """Whether a checkpoint from before this pin stood when it was pinned."""
        point = self.resume_from
        return point is not None and point.attempt >= ref.attempt and point.step >= ref.step


class FenceStatus(StrEnum):
    """How an attempt stands against the fence."""

    MAY_RAISE = "MAY_RAISE"
    """The fence is lower, or there is none."""
    PINNED = "PINNED"
    """The fence is this attempt's: its pin is the answer."""
    STALE = "STALE"
    """A later attempt has been fenced: this one must not run."""


class Fence(Value):
    """The highest attempt that may write under a checkpoint URI, its pin, and every pin before it."""

    schema_version: StrictInt = SCHEMA_VERSION
    attempt: Annotated[StrictInt, Field(ge=1)]
    resume_from: ResumePoint | None = None
    grade: Grade = Grade.NONE
    began_at: Instant | None = None
    reason: StrictStr = ""
    rejected: tuple[Rejection, ...] = ()
    history: tuple[Pin, ...] = ()
    """Pins of the attempts before, oldest first."""

    @model_validator(mode="after")
    def _check_history(self) -> "Fence":
        attempts = [pin.attempt for pin in self.history]
        if attempts != sorted(set(attempts)) or (attempts and attempts[-1] >= self.attempt):
            raise ValueError("the history must name earlier attempts, each once, in order")
        for pin in (*self.history, Pin(attempt=self.attempt, resume_from=self.resume_from)):
            point = pin.resume_from
            if point is None:
                continue
            ref = ref_of_key(point.manifest)
            if point.attempt >= pin.attempt or ref is None or (ref.attempt, ref.step) != (point.attempt, point.step):
                raise ValueError(f"attempt {pin.attempt} cannot be pinned to {point.manifest!r}")
        return self

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Every pin, this fence's own last."""
        return (*self.history, Pin(attempt=self.attempt, resume_from=self.resume_from))

    def choice(self) -> ResumeChoice:
        """Return what this fence pinned, as it was decided."""
        return ResumeChoice(
            resume_from=self.resume_from,
            grade=self.grade,
            began_at=self.began_at,
            rejected=self.rejected,
            reason=self.reason,
        )


def fence_of(document: object) -> Fence:
    """Read a fence from its JSON form.

    Raises:
        FenceUnreadableError: It is no fence of a known schema.
    """
    if not isinstance(document, dict) or document.get("schemaVersion") != SCHEMA_VERSION:
        raise FenceUnreadableError("the fence has no known schemaVersion")
    try:
        return Fence.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise FenceUnreadableError(f"the fence cannot be used: {error}") from error


def fence_status(fence: Fence | None, attempt: int) -> FenceStatus:
    """Say how an attempt stands against the fence."""
    if fence is None or fence.attempt < attempt:
        return FenceStatus.MAY_RAISE
    return FenceStatus.PINNED if fence.attempt == attempt else FenceStatus.STALE


def raised(fence: Fence | None, attempt: int, choice: ResumeChoice) -> Fence:
    """Return the fence of `attempt`, pinned to what it resumes from. To be put only if the fence is still `fence`.

    Raises:
        ValueError: The fence already stands at `attempt` or above.
    """
    if fence_status(fence, attempt) is not FenceStatus.MAY_RAISE:
        raise ValueError(f"the fence cannot be raised to attempt {attempt} again")
    return Fence(
        attempt=attempt,
        resume_from=choice.resume_from,
        grade=choice.grade,
        began_at=choice.began_at,
        reason=choice.reason,
        rejected=choice.rejected[:MAX_REJECTIONS_KEPT],
        history=() if fence is None else fence.pins,
    )


def refusal(fence: Fence | None, attempt: int, ref: CheckpointRef) -> Rejection | None:
    """Say why a checkpoint cannot be in the past of `attempt`; None where it can."""
    if ref.attempt >= attempt:
        detail = f"It belongs to attempt {ref.attempt}, which is not before attempt {attempt}."
        return rejection(ref, RejectionCode.LATER_ATTEMPT, detail)
    for pin in () if fence is None else fence.pins:
        if ref.attempt < pin.attempt < attempt and not pin.admits(ref):
            at = "the beginning" if pin.resume_from is None else f"step {pin.resume_from.step}"
            detail = f"Attempt {pin.attempt} was pinned to {at}; nothing after that counts from attempt {ref.attempt}."
            return rejection(ref, RejectionCode.FENCED, detail)
    return None


def rejection(ref: CheckpointRef, code: RejectionCode, detail: str) -> Rejection:
    return Rejection(attempt=ref.attempt, step=ref.step, manifest=ref.manifest_key, code=code, detail=detail)
