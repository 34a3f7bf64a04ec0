"""The GPU time of each team within its own quota, borrowed and lent, from attempts and from past setups.

    GPU time held = within quota + borrowed + without quota + unknown

Use and quotas change only when an attempt starts or ends, or when the setup changes. Between two changes, the figures
of `usage_report` hold, times the duration.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.capacity.instance_types import is_accelerator
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.receipt import microseconds
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.capacity import Tree
from evenkeel.domain.kueue.objects import Amounts, Key
from evenkeel.domain.quotas.flavor_matching import amounts_by_queue
from evenkeel.domain.quotas.setup_history import SetupPeriod
from evenkeel.domain.quotas.usage_report import usage_of_key
from evenkeel.domain.values import Value


class QuotaTime(Value):
    """The GPU time of a team by quota, in GPUs times microseconds."""

    within_quota: int = 0
    borrowed: int = 0
    without_quota: int = 0
    """The team had no quota for these GPUs: it has no queue, or its queue has no flavor for the nodes."""
    unknown: int = 0
    """Time without recorded quotas, or with an attempt whose use of quota is not recorded."""
    lent: int = 0
    """Its quota that other teams used. It is not part of the GPU time that the team held."""


class HeldQuota(NamedTuple):
    """The accelerators of an attempt, with the quota that they use."""

    charge: Charge
    is_use_known: bool
    span: Span


class DayOfQuotas(NamedTuple):
    """The quota time of a day, or of a part of it."""

    teams: Mapping[str, QuotaTime]
    """Teams that held or lent GPUs."""
    known_microseconds: int
    """Duration in which all quotas and their use are known."""


def quota_times(held_quotas: Iterable[HeldQuota], periods: Iterable[SetupPeriod], day: Span) -> DayOfQuotas:
    """Return the quota time of each team in a day, or in a part of it. Equal facts give equal figures, in any order.

    Args:
        held_quotas: Accelerators that attempts held. Time outside the day does not count.
        periods: The setups of the day, oldest first. Other time has unknown quotas.
        day: The day or its part.
    """
    quotas_of_day = [(entry, span) for entry in held_quotas if (span := _overlap(entry.span, day))]
    unknown_spans = [span for entry, span in quotas_of_day if not entry.is_use_known]
    totals = _Totals()
    known_microseconds = 0
    for period in periods:
        in_period = _overlap(Span(period.since, period.until), day)
        for span in _gaps(unknown_spans, in_period) if in_period else ():
            known_microseconds += microseconds(span.end - span.start)
            _add_known_time(
                [
                    (entry.charge, span_part)
                    for entry, held_span in quotas_of_day
                    if (span_part := _overlap(held_span, span))
                ],
                period,
                span,
                totals,
            )
    for entry, span in quotas_of_day:
        totals.held[entry.charge.team] += entry.charge.accelerators * microseconds(span.end - span.start)
    return DayOfQuotas(totals.by_team(), known_microseconds)


class _Totals:
    """Sums by team, in GPUs times microseconds."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.known_held: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self.borrowed: Counter[str] = Counter()
        self.lent: Counter[str] = Counter()

    def by_team(self) -> dict[str, QuotaTime]:
        return {
            team: QuotaTime(
                within_quota=self.within[team],
                borrowed=self.borrowed[team],
                without_quota=self.known_held[team] - self.within[team] - self.borrowed[team],
                unknown=self.held[team] - self.known_held[team],
                lent=self.lent[team],
            )
            for team in sorted({*self.held, *self.lent})
            if self.held[team] or self.lent[team]
        }


def _add_known_time(
    charges_and_spans: Sequence[tuple[Charge, Span]], period: SetupPeriod, span: Span, totals: _Totals
) -> None:
    """Add the time of a span with constant quotas, in which each use is known.

    Only the figures of the flavors that an attempt uses change with it, so each change computes these alone.
    """
    declarations = period.setup.scheduler_declarations
    tree = Tree(declarations.queues, declarations.cohorts)
    changed_at: dict[Key, datetime] = defaultdict(lambda: span.start)
    changes: list[tuple[datetime, int, str, Amounts]] = []
    uses = amounts_by_queue((charge for charge, _ in charges_and_spans), declarations)
    for (charge, span_part), (queue, amounts) in zip(charges_and_spans, uses, strict=True):
        totals.known_held[charge.team] += charge.accelerators * microseconds(span_part.end - span_part.start)
        gpus = {key: amount for key, amount in amounts.items() if is_accelerator(key[1])}
        changes += [(span_part.start, 1, queue, gpus), (span_part.end, -1, queue, gpus)]

    def add_until(at: datetime, key: Key) -> None:
        duration = microseconds(at - changed_at[key])
        changed_at[key] = at
        for name, row in usage_of_key(tree, key).items() if duration else ():
            totals.within[name] += (row.used - row.borrowed) * duration
            totals.borrowed[name] += row.borrowed * duration
            totals.lent[name] += row.lent * duration

    for at, sign, queue, gpus in sorted(changes, key=lambda change: change[:3]):
        for key, amount in gpus.items():
            add_until(at, key)
            quota_cell = tree.queues[queue].at(key)
            quota_cell.add(amount) if sign > 0 else quota_cell.remove(amount)


def _overlap(span: Span, other_span: Span) -> Span | None:
    start, end = max(span.start, other_span.start), min(span.end, other_span.end)
    return Span(start, end) if start < end else None


def _gaps(spans: Iterable[Span], within: Span) -> Iterator[Span]:
    """Yield the parts of a span that no other span covers."""
    start = within.start
    for span in sorted(spans):
        if start < min(span.start, within.end):
            yield Span(start, min(span.start, within.end))
        start = max(start, span.end)
    if start < within.end:
        yield Span(start, within.end)
