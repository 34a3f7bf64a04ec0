"""What one scheduling cycle leaves to the next."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import model_validator

from evenkeel.domain.decisions import packed, unpacked
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.values import Instant, Value


class ElasticState(Value):
    """What passes remember of elastic jobs."""

    jobs: tuple[str, ...] = ()
    """Those that hold nodes, by id."""
    resizing: tuple[str, ...] = ()
    """Those that were asked to stop to change size and have not started again."""
    idle_since: dict[str, Instant] = {}
    """Life of a node that nothing uses and an elastic job could → since when."""
    last_announced: dict[str, str] = {}
    """Job id → the message last announced for it, where nothing is done."""

    @property
    def is_in_use(self) -> bool:
        """Whether a pass has anything to do for an elastic job."""
        return bool(self.jobs or self.resizing or self.idle_since)

    def after_admission(self, job_id: str, *, is_elastic: bool) -> "ElasticState":
        """Return what is remembered once a job has started."""
        if not is_elastic and job_id not in self.resizing:
            return self
        jobs = tuple(sorted({*self.jobs, job_id})) if is_elastic else self.jobs
        return self.but(jobs=jobs, resizing=tuple(name for name in self.resizing if name != job_id))


MOST_PAIRS = 500
"""Evictions that are remembered: the latest."""


class EvictionRecord(Value):
    """One had the other evicted."""

    preemptor: str
    victim: str
    at: Instant


class SchedulerState(Value):
    """What the rules must remember between passes. A pass ends when nothing moves: no scan of flavors outlives it."""

    sticky: dict[str, str] = {}
    """queue → the job that waits there for its evictions, and stays its head."""
    stopping: dict[str, str] = {}
    """job that was asked to stop → for whom."""
    evictions: tuple[EvictionRecord, ...] = ()
    elastic: ElasticState = ElasticState()

    @model_validator(mode="before")
    @classmethod
    def _unpacked(cls, kept: Any) -> Any:
        return unpacked(kept)

    def to_row(self) -> dict[str, Any] | None:
        """Return it as the tree's row keeps it, packed where it is long; None where nothing is remembered.

        It grows with the jobs that are asked to stop. What is too large even then is forgotten: jobs carry their own
        stop requests, and a flap guard that is lost costs a move.
        """
        return packed(self.to_json()) if self != SchedulerState() else None

    def after_admission(self, queue: str, job_id: str) -> "SchedulerState":
        """Return what is remembered once a job has started."""
        return self.but(
            sticky={name: head for name, head in self.sticky.items() if (name, head) != (queue, job_id)},
            stopping={name: head for name, head in self.stopping.items() if name != job_id},
        )

    def after_preemption(self, queue: str, job_id: str, victims: Iterable[str], now: datetime) -> "SchedulerState":
        """Return what is remembered once others were asked to stop for a job."""
        gone = tuple(victims)
        evictions = (
            *self.evictions,
            *(EvictionRecord(preemptor=job_id, victim=victim, at=now) for victim in gone),
        )
        return self.but(
            sticky={**self.sticky, queue: job_id},
            stopping={**self.stopping, **dict.fromkeys(gone, job_id)},
            evictions=evictions[-MOST_PAIRS:],
        )

    def pruned(self, charges: Iterable[Charge], setup: TeamSetup, now: datetime) -> "SchedulerState":
        """Return what still matters: who holds nothing any more has stopped, and a guard ends."""
        held = {charge.job_id for charge in charges}
        guard = setup.fleet.switches.flap_guard_seconds
        return self.but(
            sticky={queue: head for queue, head in self.sticky.items() if queue in setup.by_name},
            stopping={name: head for name, head in self.stopping.items() if name in held},
            evictions=tuple(each for each in self.evictions if (now - each.at).total_seconds() < guard),
        )
