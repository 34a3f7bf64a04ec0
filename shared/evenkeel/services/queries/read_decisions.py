"""The decisions about one job or one incident, in pages, newest first."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.ports import Row, Table
from evenkeel.services.context import Context
from evenkeel.services.queries import explain, read_incidents, read_jobs
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.storage import pagination, rows

Json = dict[str, Any]


class DecisionFilter(NamedTuple):
    """The requested decisions."""

    subject: str
    """Id of a job or an incident."""
    kinds: Sequence[str] = ()
    """Empty = all."""

    def is_match(self, row: Row) -> bool:
        """Whether a decision's row matches, apart from its subject."""
        return not self.kinds or row.doc["kind"] in self.kinds


def list_decisions(filters: DecisionFilter, page: pagination.PageRequest, reader: Reader, context: Context) -> Json:
    """Return one page of the decisions about a job or an incident, newest first.

    A caller outside the job's team gets the public part of each decision, and `isRedacted` is set.

    Raises:
        NotFound: there is no such job or incident.
        BadPageToken: this list did not issue the token.
    """
    may_see_all = _may_see_all(filters.subject, reader, context)
    answer = pagination.page_newest_first(
        context.ledger,
        Table.INCIDENTS,
        [f"DEC#{filters.subject}"],
        page,
        filters.is_match if filters.kinds else None,
    )
    items = [
        explain.short_decision(read_incidents.disclosed_decision(decision, may_see_all))
        for _, decision in rows.readable_rows(answer.rows, Decision)
    ]
    return {
        "subject": filters.subject,
        "items": items,
        "isRedacted": not may_see_all,
        "nextPageToken": answer.next_token or None,
    }


def _may_see_all(subject: str, reader: Reader, context: Context) -> bool:
    if subject.startswith("inc-"):
        return reader.may_see_all_of(read_incidents.load_incident(context.ledger, subject), context.ledger)
    return reader.may_see_job(read_jobs.load_job(context.ledger, subject))
