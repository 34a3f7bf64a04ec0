"""Showback for the API: use and cost by team, user, project, pool and type in a window, and the teams' budgets."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.prices import base_price_of
from evenkeel.domain.costs.receipt import cost_usd_micros, microseconds
from evenkeel.domain.costs.rent_report import rented_times
from evenkeel.domain.costs.showback import (
    BudgetForecast,
    ChargedTime,
    ShowbackKey,
    ShowbackKind,
    ShowbackRow,
    ShowbackTotal,
    budget_forecasts,
    showback_rows,
)
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.quotas.spending import Spending, budget_used
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Invalid, Key
from evenkeel.services.context import Context
from evenkeel.services.queries.costs import read_cost_records, read_recent_days
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.rentals import rental_store
from evenkeel.services.storage import charge_rows, pagination
from evenkeel.services.tables import rows

Json = dict[str, Any]

_NOTES = (
    "GPU time counts from the admission of an attempt, at the price of that day. Rented nodes cost their bills.",
    "No row includes jobs that Evenkeel did not start.",
)


class ShowbackFilter(NamedTuple):
    """The requested window and jobs."""

    since: datetime | None = None
    until: datetime | None = None
    team: str | None = None
    label: str = "project"


def read_showback(
    showback_filter: ShowbackFilter, page: pagination.PageRequest, reader: Reader, context: Context
) -> Json:
    """Return one page of rows, the sum of all rows, and the budgets of the teams that the caller sees.

    User, project and cost of other teams' jobs are withheld.

    Raises:
        Invalid: the window is empty or too long ago, or the team is unknown; names the field.
        BadPageToken: this list did not issue the token.
    """
    requested_span = read_cost_records.window_of(showback_filter.since, showback_filter.until, context.now, rows.KEPT)
    unreadable_keys: set[Key] = set()
    attempts, window = read_cost_records.attempts_in(context.ledger, requested_span, unreadable_keys)
    attempts_of_team = [attempt for attempt in attempts if showback_filter.team in (None, attempt.team)]
    job_ids = dict.fromkeys(attempt.job_id for attempt in attempts_of_team)
    jobs = read_cost_records.jobs_of(context.ledger, job_ids, unreadable_keys)
    rentals = [
        rental
        for rental in read_cost_records.rentals_in(jobs.values(), requested_span.start, context, unreadable_keys)
        if showback_filter.team in (None, rental.team)
    ]
    active_teams = frozenset({attempt.team for attempt in attempts} | {rental.team for rental in rentals})
    _refuse_unknown_team(showback_filter.team, active_teams, reader)
    job_ids_of_rentals = {rental.job_id for rental in rentals} - jobs.keys()
    jobs |= read_cost_records.jobs_of(context.ledger, job_ids_of_rentals, unreadable_keys)
    charges = _ChargedTimes(context, jobs, reader, showback_filter.label, window.span)
    team_rows, total = showback_rows([*charges.of_attempts(attempts_of_team), *charges.of_rentals(rentals)])
    is_recorded = bool(team_rows) or _is_recorded(attempts, requested_span, context)
    rows_of_page, token = _page_of(team_rows, page)
    return {
        "fleet": context.site.fleet,
        "since": rfc3339(window.span.start),
        "until": rfc3339(window.span.end),
        "label": showback_filter.label,
        "isComplete": window.is_complete and not unreadable_keys,
        "total": (total if is_recorded else ShowbackTotal()).to_json(),
        "budgets": [forecast.to_json() for forecast in _budget_forecasts(context, reader, showback_filter.team)],
        "items": [row.to_json() for row in rows_of_page],
        "notes": [
            *_NOTES,
            *([] if is_recorded else ["Nothing is recorded in this window, so its use is unknown."]),
            *([] if window.is_complete else ["Too many attempts: the window begins later than requested."]),
            *read_cost_records.unreadable_notes(unreadable_keys),
        ],
        "nextPageToken": token or None,
    }


def _refuse_unknown_team(team: str | None, active_teams: frozenset[str], reader: Reader) -> None:
    """Refuse a team that is neither set up nor in the window: without use it would look like a figure of zero."""
    known_teams = {*reader.setup.by_name, *active_teams}
    if team is not None and team not in known_teams:
        raise Invalid("The team is unknown.", (("team", unknown_name("team", team, known_teams)),))


def _is_recorded(attempts: Sequence[Attempt], span: Span, context: Context) -> bool:
    """Whether a window has records. Otherwise its use is unknown, not zero."""
    if attempts:
        return True
    nodes, _ = read_recent_days.nodes_of(context, set())
    return any(node.launched_at < span.end for node in nodes)


class _ChargedTimes:
    """The charged time of a window, as the caller may see it."""

    def __init__(self, context: Context, jobs: Mapping[str, Job], reader: Reader, label: str, span: Span) -> None:
        self._context, self._jobs, self._reader = context, jobs, reader
        self._label, self._span = label, span

    def of_attempts(self, attempts: Iterable[Attempt]) -> Iterator[ChargedTime]:
        for attempt in attempts:
            start, end = attempt.charged_since, attempt.ended_at or self._span.end
            if start is None:
                continue
            span = Span(max(start, self._span.start), min(end, self._span.end))
            if span.start >= span.end:
                continue
            pool_and_type = (attempt.pool, attempt.instance_type)
            key, is_job_visible = self._showback_key(attempt.job_id, attempt.team, pool_and_type, ShowbackKind.USE)
            gpu_microseconds = attempt.accelerators * microseconds(span.end - span.start)
            yield ChargedTime(
                key,
                attempt.job_id,
                gpu_microseconds,
                self._cost_of_attempt(attempt, microseconds(span.end - span.start)) if is_job_visible else None,
            )

    def _cost_of_attempt(self, attempt: Attempt, duration: int) -> int | None:
        if attempt.is_rented:
            return 0
        price = base_price_of(attempt, self._context.policy.economy)
        return cost_usd_micros(attempt.priced_accelerators * duration, price)

    def of_rentals(self, rentals: Iterable[Rental]) -> Iterator[ChargedTime]:
        for rental in rentals:
            for rented_time in rented_times(rental, self._span):
                pool_and_type = (rented_time.pool, rented_time.instance_type)
                key, is_job_visible = self._showback_key(rental.job_id, rental.team, pool_and_type, ShowbackKind.RENT)
                yield ChargedTime(key, rental.job_id, 0, rented_time.usd_micros if is_job_visible else None)

    def _showback_key(
        self, job_id: str, team: str, pool_and_type: tuple[str, str], kind: ShowbackKind
    ) -> tuple[ShowbackKey, bool]:
        job = self._jobs.get(job_id)
        pool, instance_type = pool_and_type
        is_job_visible = self._reader.may_see_job(job) if job else self._reader.may_see_every_team
        if not is_job_visible:
            return ShowbackKey(team, None, None, pool, instance_type, kind), False
        user = (job.submitter or job.submitted_by) if job else ""
        project = job.spec.labels.get(self._label, "") if job else ""
        return ShowbackKey(team, user, project, pool, instance_type, kind), True


def _budget_forecasts(context: Context, reader: Reader, team: str | None) -> Iterator[BudgetForecast]:
    """Yield the budgets of the teams that the caller sees."""
    setup = reader.setup
    teams = [
        budget_team
        for budget_team in setup.teams
        if budget_team.budgets and team in (None, budget_team.name) and reader.may_see_team(budget_team)
    ]
    if not teams:
        return
    own_setup = setup.replace(teams=tuple(teams))
    live_charges, unreadable_count = charge_rows.readable_charges(context.ledger)
    unreadable_keys: set[Key] = set()
    rentals = rental_store.load_readable(context.ledger, unreadable_keys).rentals
    spent = rental_store.spent_by_period(own_setup, context, rentals)
    is_lower_bound = unreadable_count > 0 or bool(unreadable_keys)
    for budget_team in teams:
        charges = [charge for charge in live_charges if charge.team == budget_team.name]
        periods: dict[str, Spending] = {
            key: amount for (name, key), amount in spent.items() if name == budget_team.name
        }
        for budget in budget_team.budgets:
            spending = budget_used(budget, charges, periods, context.policy.economy, context.now)
            for forecast in budget_forecasts(budget_team.name, budget, spending, context.now):
                yield forecast.replace(is_lower_bound=forecast.is_lower_bound or is_lower_bound)


# ---------------------------------------------------------------- pages of rows


def _page_of(rows: Iterable[ShowbackRow], page: pagination.PageRequest) -> tuple[list[ShowbackRow], str]:
    cursor = _read_token(page.page_token)
    remaining_rows = [row for row in rows if cursor is None or row.sort_key > cursor]
    shown = remaining_rows[: page.size]
    return shown, _write_token(shown[-1].sort_key) if len(remaining_rows) > len(shown) else ""


def _write_token(cursor: tuple[str, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode()


def _read_token(token: str) -> tuple[str, ...] | None:
    if not token:
        return None
    try:
        cursor = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, RecursionError) as error:
        raise pagination.BadPageToken("The page token cannot be read.") from error
    if isinstance(cursor, list) and len(cursor) == 6 and all(isinstance(field, str) for field in cursor):
        return tuple(cursor)
    raise pagination.BadPageToken("The page token belongs to another list.")
