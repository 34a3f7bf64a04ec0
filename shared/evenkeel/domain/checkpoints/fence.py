"""The fence: the attempt that may still write checkpoints, and the resume point (pin) of every attempt.

A process on a partitioned node may still run, and no service can prove otherwise. So a late manifest of an old attempt
must do no harm. A single conditional write stores the fence together with the pin:

    attempt 1 writes 10, 20, 30 ...          (its node is lost, but the process still runs)
    launch_job of 2 proves step 20           and writes fence {attempt 2, resumeFrom (1, 20)} if the fence is unchanged
    attempt 1 writes 40                      too late: the step is above the pin of attempt 2, so it never counts
    launch_job of 2 is retried               the fence already names attempt 2: its pin is the answer
    attempt 1 saves again                    reads fence 2 > 1 and ends

The fence also stores the pins of all earlier attempts. A checkpoint (attempt m, step s) counts for attempt n only if
every attempt between m and n was pinned at or after it:

    pin.attempt >= m and pin.step >= s

An attempt starts at its own pin and writes steps in rising order. So this rule rejects every checkpoint that an attempt
writes after a later attempt raised the fence.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from evenkeel.domain.checkpoints.layout import CheckpointRef, ref_of_key
from evenkeel.domain.elastic.throughput import MAX_PER_SECOND, MIN_PER_SECOND
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.values import Instant, Value

SCHEMA_VERSION = 1
MAX_REJECTIONS_KEPT = 20


class FenceUnreadableError(ValueError):
    """The fence exists but cannot be parsed. A caller must never treat this as "no fence"."""


class Grade(StrEnum):
    """How certain it is that a checkpoint is complete and correct."""

    PROVED = "PROVED"
    """Every size and checksum in the manifest equals the store's value."""
    COMPLETE_BY_CONVENTION = "COMPLETE_BY_CONVENTION"
    """All files are there, but no checksum shows that they are correct."""
    NONE = "NONE"
    """There is nothing to resume from."""


class RejectionCode(StrEnum):
    """Why a checkpoint was rejected."""

    FENCED = "FENCED"
    """An attempt wrote it after a later attempt was pinned to an older checkpoint."""
    LATER_ATTEMPT = "LATER_ATTEMPT"
    """It belongs to the attempt that resumes, or to a later one."""
    DISTRUSTED = "DISTRUSTED"
    """Its write began after a fault that can corrupt data."""
    MANIFEST_MISSING = "MANIFEST_MISSING"
    """It was never finished: the folder exists, but has no manifest."""
    MANIFEST_UNREADABLE = "MANIFEST_UNREADABLE"
    SHARD_MISSING = "SHARD_MISSING"
    SHARD_SIZE = "SHARD_SIZE"
    SHARD_CHECKSUM = "SHARD_CHECKSUM"
    METRIC_NOT_FINITE = "METRIC_NOT_FINITE"
    """A metric is not a finite number, or the script found weights that are not: training had already diverged."""
    NO_EVIDENCE = "NO_EVIDENCE"
    """The fault may have corrupted it, and its manifest does not show healthy numbers."""
    NO_CLEAN_RUN = "NO_CLEAN_RUN"
    """The fault may have corrupted it, and the next checkpoint of its attempt does not show healthy numbers."""
    BELOW_GRADE = "BELOW_GRADE"
    """It is complete by convention only, and proof is required."""
    DAMAGED = "DAMAGED"
    """An earlier attempt could not resume from it, because its bytes differ from its manifest."""
    NOT_EXAMINED = "NOT_EXAMINED"
    """The limit of examined checkpoints was reached before it."""


UNPROVEN = frozenset(
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
"""Rejections of finished checkpoints that a person may still restore. The other codes are final: such a checkpoint was
never finished, a later attempt fenced it, or a fault makes it distrusted."""


class Rejection(Value):
    """A rejected checkpoint, with the reason."""

    attempt: int
    step: int
    manifest: str
    code: RejectionCode
    detail: str
    """The reason, as one sentence."""


class ResumeChoice(Value):
    """The resume point of an attempt, with the rejected checkpoints."""

    resume_from: ResumePoint | None
    """None if the attempt starts at step 0."""
    grade: Grade
    began_at: Instant | None = None
    """Start of the write of the checkpoint to resume from; None if unknown."""
    rejected: tuple[Rejection, ...] = ()
    """Newest first."""
    throughput: Annotated[float, Field(ge=MIN_PER_SECOND, le=MAX_PER_SECOND)] | None = None
    """Throughput that the checkpoint reports. The fence does not keep it."""
    reason: str
    """The reason as a sentence."""

    @property
    def would_discard_checkpoints(self) -> bool:
        """Whether a start at step 0 would discard finished checkpoints, because none of them is valid."""
        return self.resume_from is None and any(rejection.code in UNPROVEN for rejection in self.rejected)


class Pin(Value):
    """The resume point of one attempt; None if the attempt starts at step 0."""

    attempt: Annotated[StrictInt, Field(ge=1)]
    resume_from: ResumePoint | None = None

    def admits(self, ref: CheckpointRef) -> bool:
        """Whether a checkpoint of an earlier attempt still counts after this pin."""
        point = self.resume_from
        return point is not None and point.attempt >= ref.attempt and point.step >= ref.step


class FenceStatus(StrEnum):
    """Relation of an attempt to the fence."""

    MAY_RAISE = "MAY_RAISE"
    """The fence names an earlier attempt, or there is no fence."""
    PINNED = "PINNED"
    """The fence names this attempt, so its pin is the resume point."""
    STALE = "STALE"
    """The fence names a later attempt, so this attempt must not run."""


class Fence(Value):
    """The highest attempt that may write under a checkpoint URI, its pin with the reason, and all earlier pins."""

    schema_version: StrictInt = SCHEMA_VERSION
    attempt: Annotated[StrictInt, Field(ge=1)]
    resume_from: ResumePoint | None = None
    grade: Grade = Grade.NONE
    began_at: Instant | None = None
    reason: StrictStr = ""
    rejected: tuple[Rejection, ...] = ()
    history: tuple[Pin, ...] = ()
    """Pins of the earlier attempts, oldest first."""

    @model_validator(mode="after")
    def _check_history(self) -> "Fence":
        attempts = [pin.attempt for pin in self.history]
        if attempts != sorted(set(attempts)) or (attempts and attempts[-1] >= self.attempt):
            raise ValueError("the history must list earlier attempts, each once, in order")
        for pin in (*self.history, Pin(attempt=self.attempt, resume_from=self.resume_from)):
            point = pin.resume_from
            if point is None:
                continue
            ref = ref_of_key(point.manifest)
            if point.attempt >= pin.attempt or ref is None or (ref.attempt, ref.step) != (point.attempt, point.step):
                raise ValueError(
                    f"attempt {pin.attempt} cannot resume from {point.manifest!r}: it must be the manifest of "
                    f"step {point.step} of attempt {point.attempt}, and that attempt must be an earlier one"
                )
        return self

    @property
    def pins(self) -> tuple[Pin, ...]:
        """All pins in the order of attempts. The last one is this fence's own."""
        return (*self.history, Pin(attempt=self.attempt, resume_from=self.resume_from))

    def choice(self) -> ResumeChoice:
        """Return the recorded choice behind this fence's pin."""
        return ResumeChoice(
            resume_from=self.resume_from,
            grade=self.grade,
            began_at=self.began_at,
            rejected=self.rejected,
            reason=self.reason,
        )


def parse_fence(document: object) -> Fence:
    """Parse a fence from its JSON form.

    Raises:
        FenceUnreadableError: The document is not a fence of a known schema.
    """
    if not isinstance(document, dict) or document.get("schemaVersion") != SCHEMA_VERSION:
        raise FenceUnreadableError("the fence has no supported schemaVersion")
    try:
        return Fence.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise FenceUnreadableError(f"the fence cannot be used: {error}") from error


def fence_status(fence: Fence | None, attempt: int) -> FenceStatus:
    """Return whether an attempt may raise the fence, already has it, or is behind it."""
    if fence is None or fence.attempt < attempt:
        return FenceStatus.MAY_RAISE
    return FenceStatus.PINNED if fence.attempt == attempt else FenceStatus.STALE


def next_fence(fence: Fence | None, attempt: int, choice: ResumeChoice) -> Fence:
    """Return the new fence of `attempt`, with its pin. The caller writes it only if the stored fence is still `fence`.

    Raises:
        ValueError: The fence already names `attempt` or a later one.
    """
    if fence_status(fence, attempt) is not FenceStatus.MAY_RAISE:
        raise ValueError(f"the fence already names attempt {attempt} or a later one")
    return Fence(
        attempt=attempt,
        resume_from=choice.resume_from,
        grade=choice.grade,
        began_at=choice.began_at,
        reason=choice.reason,
        rejected=choice.rejected[:MAX_REJECTIONS_KEPT],
        history=() if fence is None else fence.pins,
    )


def fence_rejection(fence: Fence | None, attempt: int, ref: CheckpointRef) -> Rejection | None:
    """Return why `attempt` cannot descend from a checkpoint; None if it can."""
    if ref.attempt >= attempt:
        detail = f"It belongs to attempt {ref.attempt}, which is not before attempt {attempt}."
        return reject(ref, RejectionCode.LATER_ATTEMPT, detail)
    for pin in () if fence is None else fence.pins:
        if ref.attempt < pin.attempt < attempt and not pin.admits(ref):
            start = "started at step 0" if pin.resume_from is None else f"resumed from step {pin.resume_from.step}"
            detail = f"Attempt {pin.attempt} {start}, so later checkpoints of attempt {ref.attempt} do not count."
            return reject(ref, RejectionCode.FENCED, detail)
    return None


def reject(ref: CheckpointRef, code: RejectionCode, detail: str) -> Rejection:
    return Rejection(attempt=ref.attempt, step=ref.step, manifest=ref.manifest_key, code=code, detail=detail)
