"""The records of a window that the cost report and showback rest on: attempts, jobs, incidents, rentals."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.plurals import count_of
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Invalid, Key, Ledger, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.storage import pagination
from evenkeel.services.tables import job_rows, rows

E = TypeVar("E", Attempt, Rental)
DEFAULT_WINDOW = timedelta(days=30)
MAX_ATTEMPTS = 10_000
"""Ended attempts that one answer reads, newest first. Then the window begins later, and the answer says so."""


class Window(NamedTuple):
    """The window of an answer, and whether all of its records were read."""

    span: Span
    is_complete: bool = True
    has_all_live: bool = True
    """Whether all attempts that have not ended were read."""


def window_of(since: datetime | None, until: datetime | None, now: datetime, kept_for: timedelta) -> Span:
    """Return the requested window. The window ends now at the latest.

    Args:
        since: Its begin; None: 30 days before its end.
        until: Its end; None: now.
        now: The time.
        kept_for: How long the records of the window are kept.

    Raises:
        Invalid: it is empty, or begins before the oldest records; names the field.
    """
    oldest_kept = now - kept_for
    for name, at in (("since", since), ("until", until)):
        if at and at < oldest_kept:
            why = f"must be at most {count_of(kept_for.days, 'day')} ago, because older figures are not kept"
            raise Invalid("The window is too long ago.", ((name, why),))
    end = min(until or now, now)
    start = since or max(end - DEFAULT_WINDOW, oldest_kept)
    if start >= end:
        wrong = ("since", f"must be before {'until' if until and until < now else 'now'}")
        raise Invalid("The window is empty.", (wrong,))
    return Span(start, end)


def attempts_in(ledger: Ledger, span: Span, unreadable_keys: set[Key]) -> tuple[list[Attempt], Window]:
    """Return the attempts that overlap a window, and the part of the window that they cover completely.

    The functions of this module leave out rows that this release cannot read, and add their keys to `unreadable_keys`.
    """
    live, is_cut = pagination.read_partition(ledger, Table.JOBS, "ATTEMPT#LIVE", at_most=MAX_ATTEMPTS)
    # Ended attempts are read last. So an attempt that ends between the two reads is found twice, and never missed.
    ended_attempts, oldest_read = _ended_since(ledger, "ATTEMPT#ENDED", Attempt, span.start, unreadable_keys)
    window = (
        Window(span)
        if oldest_read is None
        else Window(Span(min(max(span.start, oldest_read), span.end), span.end), False)
    )
    if is_cut:
        window = window._replace(is_complete=False, has_all_live=False)
    attempts = [*rows.readable_values(live, Attempt, unreadable_keys), *ended_attempts]
    unique_attempts = {(attempt.job_id, attempt.attempt): attempt for attempt in attempts}
    return [attempt for attempt in unique_attempts.values() if attempt.admitted_at < window.span.end], window


def _ended_since(
    ledger: Ledger, state: str, kind: type[E], start: datetime, unreadable_keys: set[Key]
) -> tuple[list[E], datetime | None]:
    """Return the records that ended since a time; if there are too many, also the end of the oldest record read."""
    since_start: list[E] = []
    cursor: str | None = None
    while True:
        page = ledger.by_state(Table.JOBS, state, limit=1000, cursor=cursor, newest_first=True)
        # The index states the end of a record, also if its row is unreadable.
        recent_rows = [row for row in page.rows if row.state and row.state[1] >= rfc3339(start)]
        since_start += rows.readable_values(recent_rows, kind, unreadable_keys)
        if page.cursor is None or len(recent_rows) < len(page.rows):
            return since_start, None
        if len(since_start) >= MAX_ATTEMPTS:
            return since_start, since_start[-1].ended_at
        cursor = page.cursor


def jobs_of(ledger: Ledger, job_ids: Iterable[str], unreadable_keys: set[Key]) -> dict[str, Job]:
    """Return the jobs that exist, by id."""
    stored_rows: dict[Key, Row] = get_all(ledger, [job_rows.job_key(job_id) for job_id in job_ids])
    return {job.job_id: job for job in rows.readable_values(stored_rows.values(), Job, unreadable_keys)}


def rentals_in(jobs: Iterable[Job], since: datetime, context: Context, unreadable_keys: set[Key]) -> tuple[Rental, ...]:
    """Return the rentals of jobs, every rental that ended since a time, and every rental that has not ended.

    Rentals that ended before an earlier release was updated have no entry in the index. Evenkeel finds such rentals by
    their jobs.
    """
    keys = [job_rows.rental_key(job.job_id, number) for job in jobs for number in range(1, job.rentals + 1)]
    open_rows, _ = pagination.read_partition(context.ledger, Table.JOBS, "RENTAL#OPEN", at_most=MAX_ATTEMPTS)
    of_jobs = get_all(context.ledger, keys).values()
    # Ended rentals are read last, as ended attempts are.
    ended_rentals, _ = _ended_since(context.ledger, "RENTAL#ENDED", Rental, since, unreadable_keys)
    rentals = [*rows.readable_values((*open_rows, *of_jobs), Rental, unreadable_keys), *ended_rentals]
    return tuple({(rental.job_id, rental.number): rental for rental in rentals}.values())


def unreadable_notes(unreadable_keys: Collection[Key]) -> list[str]:
    """Return the note about records that cannot be read, if there are any."""
    if not unreadable_keys:
        return []
    records_text = count_of(len(unreadable_keys), "attempt, job, rental or node", "attempts, jobs, rentals and nodes")
    return [f"{records_text} cannot be read: the sums are lower bounds."]
