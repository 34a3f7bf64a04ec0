"""The events of a plan: documents with the changes of jobs and queues, and their times."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from evenkeel.domain.kueue.objects import StopPolicy
from evenkeel.domain.queue_simulation.documents import Document, Instant, Json, Number, WholeNumber


class TimedEvent(Document):
    """An event of a plan file, with its time."""

    at: Instant = 0
    """When it happens. Events of one instant happen together, in their order."""


class Submit(TimedEvent):
    """Queue one or more jobs."""

    type: Literal["submit"]
    job: Json | None = None
    """The short form, or a Kueue Workload."""
    jobs: tuple[Json, ...] = ()


class Finish(TimedEvent):
    """A job has ended. Its quota is free."""

    type: Literal["finish"]
    job: str


class DeleteEvent(TimedEvent):
    """A pending or running job was deleted."""

    type: Literal["delete"]
    job: str


class Evict(TimedEvent):
    """A running job is asked to stop, for a reason other than quota. It holds its quota until `podsGone`."""

    type: Literal["evict"]
    job: str


class PodsGone(TimedEvent):
    """An evicted job has stopped. It releases its quota and is queued again."""

    type: Literal["podsGone", "evictionDone"]
    job: str
    reason: Literal["Preempted", "PodsReadyTimeout", "AdmissionCheck", "Deactivated"] = "Preempted"
    """After PodsReadyTimeout and AdmissionCheck, the job loses its position in the queue. After Deactivated it is not
    queued again."""
    requeue_after_seconds: Number | None = None
    """Time until the job may be tried again."""


class PodsReady(TimedEvent):
    """All pods of a job are ready. It matters if `waitForPodsReady.blockAdmission` is on."""

    type: Literal["podsReady"]
    job: str


class NotReady(TimedEvent):
    """A job's pods missed their ready timeout. It stops, loses its queue position and backs off, longer each time."""

    type: Literal["notReady"]
    job: str


class Shrink(TimedEvent):
    """A pending or running job continues with smaller counts. The quota of a running job falls at once."""

    type: Literal["shrink"]
    job: str
    counts: tuple[WholeNumber, ...]
    """By pod set."""


class Resize(TimedEvent):
    """A job requests other counts.

    If the job is pending, its counts change in its queue. A running job shrinks at once, or grows by a new,
    larger slice.
    """

    type: Literal["resize"]
    job: str
    counts: tuple[WholeNumber, ...]
    slice: str = ""
    """Name of the larger slice. Default: the job's name with `-2`, `-3`, …"""


class PriorityChange(TimedEvent):
    """The priority of a pending or running job changes."""

    type: Literal["priority"]
    job: str
    priority: WholeNumber


class QuotaChange(TimedEvent):
    """Quota documents are added. A document replaces the earlier document with the same name."""

    type: Literal["quota"]
    documents: tuple[Json, ...] = ()
    remove: tuple[str, ...] = ()
    """Names of the queues or cohorts to remove."""


class StopPolicyChange(TimedEvent):
    """The stop policy of a queue changes."""

    type: Literal["stopPolicy"]
    queue: str
    policy: StopPolicy


class RunCycles(TimedEvent):
    """Cycles run now. With such an event in the file, cycles run only at these events."""

    type: Literal["cycle"]
    count: WholeNumber = Field(1, ge=1)


Event: TypeAlias = Annotated[
    Submit
    | Finish
    | DeleteEvent
    | Evict
    | PodsGone
    | PodsReady
    | NotReady
    | Shrink
    | Resize
    | PriorityChange
    | QuotaChange
    | StopPolicyChange
    | RunCycles,
    Field(discriminator="type"),
]


class Events(Document):
    """The events of a plan."""

    events: tuple[Event, ...] = ()
