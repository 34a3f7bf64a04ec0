"""Store the figures of each ended UTC day, so that reports outlive the records and read few rows."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.costs.day_figures import DAY, DayFigures, DayRow, begin_of_day, day_of
from evenkeel.domain.costs.day_summary import summarise_day, summarise_pools
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Put, Row, Telemetry, get_all
from evenkeel.services.queries.costs import read_cost_records, read_recent_days
from evenkeel.services.queries.costs.read_cost_report import REFOLDED
from evenkeel.services.queries.costs.read_recent_days import RecentDays
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import day_rows, rows

_MARGIN = timedelta(minutes=15)
"""Time after midnight in which services may still write records of the ended day."""
_SETTLED_AFTER = timedelta(days=2)
"""Age from which a day counts as settled, unless an incident or interruption of it is open."""
_MAX_MISSING = 5
"""Missing days that one run stores at most."""
_RETRY_AT = "missingDaysRetryAt"
_RETRY_AFTER = timedelta(hours=1)


def fold_days(sweep: SweepRun) -> int:
    """Compute the figures of the recent days once after each midnight, and store those that changed.

    Late records change a past day while the ledger keeps all its records. The row of the latest day comes last: it says
    that the run of this midnight has ended. Later runs of the day only store days without a row, a few in each run.

    Idempotent: yes, a repeat computes the same figures and writes nothing.
    """
    context = sweep.context
    today = begin_of_day(day_of(context.now))
    if context.now < today + _MARGIN:
        return 0
    keys = {at: day_rows.day_key(day_of(at)) for at in _days_between(today - REFOLDED + DAY, today)}
    stored_rows = get_all(context.ledger, keys.values())
    latest_rows = [row for row in [stored_rows.get(keys[today - DAY])] if row]
    if any(day.folded_at >= today for _, day in sweep.readable_rows(latest_rows, DayRow)):
        _store_missing([at for at, key in keys.items() if key not in stored_rows], today, sweep)
        return 0
    _fold({at: stored_rows.get(key) for at, key in keys.items()}, today, sweep)
    return 0


def _store_missing(missing_days: Sequence[datetime], today: datetime, sweep: SweepRun) -> None:
    """Store the newest days without a row, as in a table that was restored.

    A day whose records cannot all be read stays missing. The next try is then an hour later, because each try reads all
    records since that day.
    """
    now, retry_at = sweep.context.now, sweep.notes.get(_RETRY_AT)
    if not missing_days or (retry_at and now < datetime.fromisoformat(retry_at)):
        return
    chosen_days = missing_days[-_MAX_MISSING:]
    if _fold(dict.fromkeys(chosen_days), today, sweep) < len(chosen_days):
        sweep.notes[_RETRY_AT] = rfc3339(now + _RETRY_AFTER)


def _fold(stored_rows: Mapping[datetime, Row | None], today: datetime, sweep: SweepRun) -> int:
    """Compute and store days. Return how many have the figures of their records now.

    Args:
        stored_rows: The begin of each day with its row, oldest first.
        today: Begin of the present day.
        sweep: The run.
    """
    context, folded_days = sweep.context, 0
    recent = read_recent_days.read_days(
        Span(min(stored_rows), context.now), context, max_jobs=read_cost_records.MAX_ATTEMPTS
    )
    if recent.unreadable_incidents or recent.unreadable_records:
        unreadable_count = recent.unreadable_incidents + recent.unreadable_records
        records_text = count_of(unreadable_count, "record")
        sweep.failures.append(f"{records_text} cannot be read, so no figures of days are stored.")
        return 0
    if not recent.is_node_time_complete:
        sweep.failures.append("Too many nodes to read, so no figures of days are stored.")
        return 0
    for figures in recent.days:
        if figures.since not in stored_rows or figures.since < recent.whole_from or figures.until - figures.since < DAY:
            continue
        is_settled = context.now - figures.until >= _SETTLED_AFTER and figures.since not in recent.open_since
        day = DayRow(day=str(day_of(figures.since)), folded_at=context.now, is_settled=is_settled, figures=figures)
        with sweep.isolate_item(f"day {day.day}"):
            _store_day(day, stored_rows[figures.since], sweep, recent)
            folded_days += 1
    if today - DAY in stored_rows and recent.whole_from > today - DAY:
        sweep.failures.append("Yesterday has more records than one run reads, so its figures are not stored.")
    return folded_days


def _days_between(begin: datetime, end: datetime) -> list[datetime]:
    return [begin + number * DAY for number in range((end - begin).days)]


def _store_day(day: DayRow, stored_row: Row | None, sweep: SweepRun, recent: RecentDays) -> None:
    """Store a day. Figures of records that were not all read never replace stored ones.

    The write of the latest day decides which of several sweeps emits its metrics. After a crash between the write and
    the metrics, this day has no data points. The stored row and the reports are complete nevertheless.
    """
    is_latest = day.figures.until == begin_of_day(day_of(day.folded_at))
    if stored_row is not None:
        earlier_day = rows.decode(stored_row, DayRow)
        is_same = (earlier_day.figures, earlier_day.is_settled) == (day.figures, day.is_settled)
        if not is_latest and (is_same or not recent.is_complete):
            return
    day_put = Put(day_rows.day_row(day, stored_row.version if stored_row else 0))
    # If the commit fails, a newer sweep was first.
    if commit_if_unchanged(sweep.context.ledger, day_put) and is_latest:
        _emit_day_metrics(day.figures, sweep.context.telemetry)


def _emit_day_metrics(figures: DayFigures, telemetry: Telemetry) -> None:
    """Emit the known figures of the last whole day."""
    summary = summarise_day(figures)
    if summary.training_time_ratio is not None:
        telemetry.gauge("DayTrainingTimeRatio", summary.training_time_ratio)
    if summary.recovery_seconds is not None:
        telemetry.seconds("DayRecoverySeconds", summary.recovery_seconds)
    if summary.seconds_between_failures is not None:
        telemetry.seconds("DaySecondsBetweenFailures", summary.seconds_between_failures)
    for gpu_use, seconds in summary.node_seconds.items():
        telemetry.seconds("DayNodeSeconds", seconds, use=gpu_use)
    if summary.lost_usd is not None:
        telemetry.gauge("DayLostUsd", summary.lost_usd)
    for pool in summarise_pools(figures):
        if pool.training_time_ratio is not None:
            telemetry.gauge("DayPoolTrainingTimeRatio", pool.training_time_ratio, pool=pool.pool)
        if pool.recovery_seconds is not None:
            telemetry.seconds("DayPoolRecoverySeconds", pool.recovery_seconds, pool=pool.pool)
        if pool.seconds_between_failures is not None:
            telemetry.seconds("DayPoolSecondsBetweenFailures", pool.seconds_between_failures, pool=pool.pool)
