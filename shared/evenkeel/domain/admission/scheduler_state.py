"""The state that one scheduling cycle leaves to the next."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import model_validator

from evenkeel.domain.decisions import OMITTED, packed, unpacked
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.values import Instant, Value


class ElasticState(Value):
    """The state of elastic jobs between cycles."""

    jobs: tuple[str, ...] = ()
    """Ids of the jobs that hold nodes."""
    resizing: tuple[str, ...] = ()
    """Jobs that were asked to stop to change size and have not started again."""
    idle_since: dict[str, Instant] = {}
    """Key of a `NodeLife` → since when that node is idle. It lists only nodes that an elastic job could use."""
    last_announced: dict[str, str] = {}
    """Job id → the resize last recorded for it in a mode other than `act`."""

    @property
    def is_in_use(self) -> bool:
        """Whether a cycle must examine elastic jobs."""
        return bool(self.jobs or self.resizing or self.idle_since)

    def after_admission(self, job_id: str, *, is_elastic: bool) -> "ElasticState":
        """Return the state after a job has started."""
        if not is_elastic and job_id not in self.resizing:
            return self
        jobs = tuple(sorted({*self.jobs, job_id})) if is_elastic else self.jobs
        return self.replace(
            jobs=jobs, resizing=tuple(resizing_id for resizing_id in self.resizing if resizing_id != job_id)
        )


MAX_PAIRS = 500
"""The latest evictions, which the flap guard needs."""


class PreemptionRecord(Value):
    """A preemption: one job preempted another job."""

    preemptor: str
    victim: str
    at: Instant


class SchedulerState(Value):
    """The state that the rules need from earlier scheduling cycles.

    How far a job's flavors were scanned is not stored: a scan ends within one scheduling cycle.
    """

    sticky: dict[str, str] = {}
    """queue → the job that waits there until its victims stop, and stays the head of the queue."""
    stopping: dict[str, str] = {}
    """job that was asked to stop → the job that it stops for; empty if it stops for none."""
    evictions: tuple[PreemptionRecord, ...] = ()
    elastic: ElasticState = ElasticState()

    @model_validator(mode="before")
    @classmethod
    def _unpack(cls, document: Any) -> Any:
        state = unpacked(document)
        return {} if isinstance(state, dict) and OMITTED in state else state

    def to_row(self) -> dict[str, Any] | None:
        """Return the JSON form for the row of the quota tree, packed if it is long; None if there is no state.

        The state grows with the jobs whose stop Evenkeel requested. If the state is too large even when packed, it is
        dropped. Jobs keep their own stop requests, and a lost flap guard costs at most one preemption.
        """
        return packed(self.to_json()) if self != SchedulerState() else None

    def after_admission(self, queue: str, job_id: str) -> "SchedulerState":
        """Return the state after a job has started."""
        return self.replace(
            sticky={
                queue_name: head for queue_name, head in self.sticky.items() if (queue_name, head) != (queue, job_id)
            },
            stopping={stopping_id: head for stopping_id, head in self.stopping.items() if stopping_id != job_id},
        )

    def after_preemption(self, queue: str, job_id: str, victims: Iterable[str], now: datetime) -> "SchedulerState":
        """Return the state after victims were asked to stop for a job."""
        victim_ids = tuple(victims)
        evictions = (
            *self.evictions,
            *(PreemptionRecord(preemptor=job_id, victim=victim, at=now) for victim in victim_ids),
        )
        return self.replace(
            sticky={**self.sticky, queue: job_id},
            stopping={**self.stopping, **dict.fromkeys(victim_ids, job_id)},
            evictions=evictions[-MAX_PAIRS:],
        )

    def pruned(self, charges: Iterable[Charge], setup: TeamSetup, now: datetime) -> "SchedulerState":
        """Return the state without jobs that hold no charge, and without evictions older than the flap guard."""
        charged_jobs = {charge.job_id for charge in charges}
        guard = setup.fleet.switches.flap_guard_seconds
        return self.replace(
            sticky={queue: head for queue, head in self.sticky.items() if queue in setup.by_name},
            stopping={job_id: head for job_id, head in self.stopping.items() if job_id in charged_jobs},
            evictions=tuple(eviction for eviction in self.evictions if (now - eviction.at).total_seconds() < guard),
        )
