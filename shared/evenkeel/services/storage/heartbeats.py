"""Heartbeats of the scheduled functions: the end of each last run, and the sources that answered or failed in it."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from pydantic import ValidationError

from evenkeel.domain.sources import CLOCK_SKEW, Source, SourceReport
from evenkeel.domain.values import rfc3339
from evenkeel.ports import EvenkeelError, Ledger, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import fleet_rows

FUNCTIONS = ("schedule_jobs", "sweep_fleet", "watch_cluster", "receive_event")
"""The functions that report on sources."""
WRITE_INTERVAL = timedelta(seconds=10)
"""A function that runs more often than this does not record unchanged results more often."""


class SourceResults:
    """The results of one run by source. The last result of each source counts."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}

    def record_answer(self, source: Source) -> None:
        """Record that a source answered."""
        self._errors[source.name] = ""

    def record_failure(self, source: Source, error: EvenkeelError | str) -> None:
        """Record that a source failed."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._errors[source.name] = text or "failed"

    @property
    def errors(self) -> Mapping[str, str]:
        """Source name → its failure; empty if it answered."""
        return self._errors


def record_heartbeat(
    function: str, context: Context, results: SourceResults | None = None, read_at: datetime | None = None
) -> None:
    """Record that a run ended, and its results. Sources that were not read keep their report.

    Facts are as old as the beginning of the run (`read_at`), not as its end.

    Idempotent: yes, the newest heartbeat stays.
    """
    key = fleet_rows.heartbeat_key(function)
    row = context.ledger.get(key)
    earlier_reports = _reports_of_row(row)
    errors = results.errors if results else {}
    if row is not None and not _should_write(row, earlier_reports, errors, context.now):
        return
    at = read_at or context.now
    reports = earlier_reports | {
        name: SourceReport.after(earlier_reports.get(name), error, at) for name, error in errors.items()
    }
    sources = {name: report.to_json() for name, report in sorted(reports.items())}
    doc = {**(row.doc if row else {}), "at": rfc3339(context.now), "sources": sources}
    # If the commit fails, a newer run of the same function was first, so the function runs.
    if commit_if_unchanged(context.ledger, Put(Row(key, doc, row.version if row else 0))):
        context.telemetry.count("Heartbeat", function=function)


def load_source_reports(ledger: Ledger) -> dict[str, SourceReport]:
    """Return the joint report of all functions for each source, by its name."""
    reports_by_name: dict[str, list[SourceReport]] = {}
    for function in FUNCTIONS:
        for name, report in _reports_of_row(ledger.get(fleet_rows.heartbeat_key(function))).items():
            reports_by_name.setdefault(name, []).append(report)
    return {name: SourceReport.joined(reports) for name, reports in reports_by_name.items()}


def _reports_of_row(row: Row | None) -> dict[str, SourceReport]:
    """Return the reports of a heartbeat. A source whose report cannot be read counts as never read: UNKNOWN."""
    documents = row.doc.get("sources") or {} if row else {}
    reports: dict[str, SourceReport] = {}
    for name, document in documents.items():
        with suppress(ValidationError):
            reports[name] = SourceReport.model_validate(document, extra="allow")
    return reports


def _should_write(
    row: Row, earlier_reports: Mapping[str, SourceReport], errors: Mapping[str, str], now: datetime
) -> bool:
    age = now - datetime.fromisoformat(str(row.doc["at"]))
    if age >= WRITE_INTERVAL or age < -CLOCK_SKEW:
        return True
    return any(_should_write_source(earlier_reports.get(name), error, now) for name, error in errors.items())


def _should_write_source(report: SourceReport | None, error: str, now: datetime) -> bool:
    """Whether a result is worth a write. A source that is read rarely is recorded each time."""
    return report is None or bool(report.error) != bool(error) or now - report.tried_at >= WRITE_INTERVAL
