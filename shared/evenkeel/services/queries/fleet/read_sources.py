"""The age of every source of facts, for `status`, the metrics and `doctor`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from evenkeel.domain.sources import (
    FACTS,
    SourceAge,
    SourceKind,
    SourceReport,
    SourceState,
    expected_sources,
    judge_sources,
)
from evenkeel.domain.values import rfc3339
from evenkeel.services.context import Context
from evenkeel.services.storage import heartbeats

Json = dict[str, Any]
Ages: TypeAlias = tuple[SourceAge, ...]

NOT_RUNNING = (
    "The schedules are off: no cluster is watched, and nothing completes what a crash interrupted. "
    "Events still open recoveries, and submissions still start scheduling cycles. "
    "Run `evenkeel doctor`, then deploy with Schedules=on (docs/deploy.md)."
)


def read_source_ages(context: Context, results: heartbeats.SourceResults | None = None) -> Ages:
    """Return the age of every source that the fleet should have, by the reports of all functions.

    Args:
        context: The context.
        results: The results of the present run, which are not recorded yet.
    """
    sources = expected_sources(context.site.clusters, has_hyperpod=context.site.has_hyperpod)
    reports = heartbeats.load_source_reports(context.ledger)
    for name, error in (results.errors if results else {}).items():
        reports[name] = SourceReport.after(reports.get(name), error, context.now)
    return judge_sources(
        sources,
        reports,
        context.policy.sources,
        context.now,
        is_running=context.site.schedules_are_on,
    )


def with_staleness(document: Json, ages: Sequence[SourceAge]) -> Json:
    """Return a response that says which of its facts are stale.

    `stale` has one sentence for each source that cannot be trusted now. Each item of a cluster gets `isStale`, and
    `lastSeenAt` if it is stale.
    """
    of_cluster = {age.source.target: age for age in ages if age.source.kind is SourceKind.KUBERNETES_LIST}
    items = document["items"] if isinstance(document.get("items"), list) else [document]
    for item in items:
        age = of_cluster.get(item.get("cluster") or "")
        if age is not None:
            is_stale = not age.is_trusted and item.get("state") not in _STATES_KNOWN_WITHOUT_SOURCE
            seen_at = age.seen_at if is_stale else None
            item |= {"isStale": is_stale, "lastSeenAt": rfc3339(seen_at) if seen_at else None}
    return document | {"stale": source_warnings(ages)}


_STATES_KNOWN_WITHOUT_SOURCE = ("PENDING", "SUSPENDED", "SUCCEEDED", "FAILED", "CANCELLED", "GONE")
"""States that depend on no cluster."""


def source_warnings(ages: Sequence[SourceAge]) -> list[str]:
    """Return one sentence for each source of facts that cannot be trusted now."""
    if any(age.state is SourceState.OFF for age in ages):
        return [NOT_RUNNING]
    return [age.reason for age in ages if age.source.kind in FACTS and not age.is_trusted]
