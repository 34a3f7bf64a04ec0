"""Read the charges of the quota tree: of live attempts, or released by jobs that wait to run again.

A charge row is put when an attempt is admitted. When the attempt is settled and its job waits again, the row is not
deleted but marked as released, in the same write. So one strongly consistent read of one row shows either that the
quota is held, or whose it was. A scheduling cycle never sees freed quota without the job that had it.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.ports import Conflict, Delete, Ledger, Row, Unreadable
from evenkeel.services.tables import quota_rows, rows

_MAX_DELETES = 90
"""In one commit, which holds 100 writes."""


class Charges(NamedTuple):
    """All charge rows of the tree, as one query returned them."""

    live: tuple[Charge, ...] = ()
    """The charges of live attempts."""
    released: tuple[tuple[Charge, Row], ...] = ()
    """Each with its row, since its deletion is conditional on the version."""

    @property
    def released_job_ids(self) -> tuple[str, ...]:
        """Jobs that released a charge. A cycle reads each of them, wherever the index lists it."""
        return tuple(charge.job_id for charge, _ in self.released)

    def released_by(self, job: Job) -> Row | None:
        """Return the row that this job's last attempt released; None if there is none."""
        return next((row for charge, row in self.released if charge.job_id == job.job_id), None)

    def as_of(self, jobs: Mapping[str, tuple[Job, int]]) -> "Charges":
        """Return the charges at the time of a later read of their jobs.

        An attempt may be settled between the two reads. Then its job waits, and its charge is no longer live.

        Raises:
            Conflict: The job of a released charge still shows the settled attempt as live. The transaction that settled
                it is visible in one row and not yet in the other: read again.
        """
        for charge, _ in self.released:
            job = jobs[charge.job_id][0] if charge.job_id in jobs else None
            if job and job.current_attempt == charge.attempt and job.state.has_live_attempt:
                raise Conflict(f"{charge.job_id} is being settled during this read")
        attempt_by_pending_job = {
            job_id: job.current_attempt for job_id, (job, _) in jobs.items() if job.state is JobState.PENDING
        }
        return self._replace(
            live=tuple(charge for charge in self.live if attempt_by_pending_job.get(charge.job_id) != charge.attempt)
        )

    def unneeded_rows(self, jobs: Mapping[str, tuple[Job, int]]) -> tuple[Row, ...]:
        """Return the released rows of jobs that no longer wait, or were admitted again since."""
        return tuple(
            row
            for charge, row in self.released
            if charge.job_id not in jobs
            or jobs[charge.job_id][0].state is not JobState.PENDING
            or jobs[charge.job_id][0].current_attempt != charge.attempt
        )


class ReadableCharges(NamedTuple):
    """The charges of live attempts to show. They never decide who may start."""

    live: tuple[Charge, ...]
    unreadable_count: int
    """Rows that this release cannot read. Each may hold quota, so every sum of the charges is a lower bound."""


def load_charges(ledger: Ledger) -> Charges:
    """Read all charges in one query of the tree's partition, strongly consistent.

    Raises:
        Unreadable: a charge cannot be read, so the free quota is unknown.
    """
    charges = [(rows.decode(row, Charge), row) for row in _stored_rows(ledger)]
    return Charges(
        tuple(charge for charge, _ in charges if charge.is_live),
        tuple((charge, row) for charge, row in charges if not charge.is_live),
    )


def live_charges(ledger: Ledger) -> tuple[Charge, ...]:
    """Return the charges of live attempts. Raises Unreadable as `load_charges`."""
    return load_charges(ledger).live


def readable_charges(ledger: Ledger) -> ReadableCharges:
    """Return the charges of live attempts without unreadable rows, which are counted."""
    errors: list[Unreadable] = []
    charges = [charge for _, charge in rows.readable_rows(_stored_rows(ledger), Charge, errors.append)]
    return ReadableCharges(tuple(charge for charge in charges if charge.is_live), len(errors))


def _stored_rows(ledger: Ledger) -> tuple[Row, ...]:
    tree = quota_rows.tree_key()
    return ledger.partition(tree.table, tree.pk, "CHARGE#")


def delete(charge_rows: Iterable[Row], ledger: Ledger) -> None:
    """Delete outdated released rows. Idempotent: yes; the next cycle deletes rows that changed meanwhile."""
    all_rows = tuple(charge_rows)
    for start in range(0, len(all_rows), _MAX_DELETES):
        with contextlib.suppress(Conflict):
            ledger.commit(*(Delete(row.key, row.version) for row in all_rows[start : start + _MAX_DELETES]))
